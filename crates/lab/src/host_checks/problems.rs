//! Problems of the host, derived from facts that are collected once.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use rustix::fs::inotify::{self, CreateFlags};

use super::{REQUIREMENTS, missing};
use crate::binaries;
use crate::cgroup::Layout;
use crate::command::run;
use crate::paths::Paths;
use crate::plan::{ClusterPlan, LabRequest};

/// The kernel of Ubuntu 22.04. Older kernels lack features that sessions need (nftables tables with an owner, seccomp
/// notification descriptors).
const MIN_KERNEL: (u32, u32) = (5, 15);
const MIN_GO: (u32, u32) = (1, 24);
const DISK_TO_BUILD: u64 = 8 << 30;
const DISK_TO_RUN: u64 = 2 << 30;
const MEMORY_PER_CLUSTER: u64 = 700 << 20;
const MEMORY_PER_NODE: u64 = 150 << 20;
/// Inotify instances, which Kubernetes uses to watch files. A component that cannot create one exits. These numbers cover the
/// control plane and a node's own components, not what runs in pods.
const INOTIFY_PER_CLUSTER: u64 = 10;
const INOTIFY_PER_NODE: u64 = 8;

/// One problem, and what to do about it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Problem {
    pub what: String,
    pub remedy: String,
}

/// The state of the host as far as the lab depends on it.
#[derive(Clone, Debug)]
pub struct HostFacts {
    pub root: bool,
    pub kernel: String,
    /// Whether control groups are mounted in a supported layout.
    pub has_cgroups: bool,
    pub tun_device: bool,
    /// The output of `go version`, if Go is installed.
    pub go: Option<String>,
    /// Whether Go can fetch the modules, if they are needed; otherwise its error output.
    pub modules: Result<(), String>,
    /// Whether the lab's programs are not built yet.
    pub must_build: bool,
    pub disk_free: u64,
    pub memory_free: u64,
    /// Inotify instances that root can still create, counted up to the demand. `None` when not running as root.
    pub inotify_free: Option<u64>,
    pub missing_packages: Vec<&'static str>,
    pub directory: PathBuf,
}

/// The number of clusters and nodes that the host must have resources for.
#[derive(Clone, Copy, Debug, Default)]
pub struct ResourceDemand {
    pub clusters: u64,
    pub nodes: u64,
}

impl ResourceDemand {
    /// The clusters of a request that do not run yet.
    pub fn of(request: &LabRequest, running: &[&ClusterPlan]) -> Self {
        let missing = || {
            request
                .clusters
                .iter()
                .filter(|requested| running.iter().all(|plan| plan.name != requested.name))
        };
        ResourceDemand {
            clusters: missing().count() as u64,
            nodes: missing().map(|cluster| cluster.nodes as u64).sum(),
        }
    }

    fn inotify(self) -> u64 {
        self.clusters * INOTIFY_PER_CLUSTER + self.nodes * INOTIFY_PER_NODE
    }
}

impl HostFacts {
    pub fn collect(paths: &Paths, must_build: bool, demand: ResourceDemand) -> Self {
        let root = nix::unistd::geteuid().is_root();
        HostFacts {
            root,
            kernel: fs::read_to_string("/proc/sys/kernel/osrelease")
                .unwrap_or_default()
                .trim()
                .to_owned(),
            has_cgroups: Layout::detect().is_ok(),
            tun_device: tun_device_exists(),
            go: run(Command::new("go").arg("version")).ok(),
            modules: if must_build {
                binaries::check_modules()
            } else {
                Ok(())
            },
            must_build,
            disk_free: disk_free(paths.base()),
            memory_free: memory_free(&fs::read_to_string("/proc/meminfo").unwrap_or_default()),
            inotify_free: root.then(|| inotify_free(demand.inotify())),
            missing_packages: missing(&REQUIREMENTS)
                .iter()
                .map(|requirement| requirement.package)
                .collect(),
            directory: paths.base().to_owned(),
        }
    }
}

/// All problems that prevent the lab from running, so that the user can fix them in one go.
pub fn problems(facts: &HostFacts, demand: ResourceDemand) -> Vec<Problem> {
    let mut list = system_problems(facts);
    if facts.must_build {
        list.extend(build_problem(facts));
    }
    list.extend(resource_problems(facts, demand));
    if !facts.missing_packages.is_empty() {
        list.push(problem(
            format!(
                "these packages are missing: {}",
                facts.missing_packages.join(", ")
            ),
            "`cargo xtask lab up` installs them, or `apt-get install` by hand",
        ));
    }
    list
}

fn problem(what: impl Into<String>, remedy: &str) -> Problem {
    Problem {
        what: what.into(),
        remedy: remedy.to_owned(),
    }
}

pub(super) fn needs_root() -> Problem {
    problem(
        "the lab creates namespaces, devices and control groups, which needs root",
        "run the command as root, or install sudo and allow this user to use it",
    )
}

/// Privileges and the kernel.
fn system_problems(facts: &HostFacts) -> Vec<Problem> {
    let mut list = Vec::new();
    if !facts.root {
        list.push(needs_root());
    }
    if version_of(&facts.kernel).is_some_and(|version| version < MIN_KERNEL) {
        list.push(problem(
            format!(
                "Linux {} is older than {}.{}",
                facts.kernel, MIN_KERNEL.0, MIN_KERNEL.1
            ),
            "use a newer kernel: Debian 12 and Ubuntu 22.04 have one",
        ));
    }
    if !facts.has_cgroups {
        list.push(problem(
            "no control groups are mounted below /sys/fs/cgroup",
            "use a machine with systemd, or mount them: `mount -t cgroup2 none /sys/fs/cgroup`",
        ));
    }
    if !facts.tun_device {
        list.push(problem(
            "there is no /dev/net/tun, which network faults need",
            "load the kernel module: `modprobe tun`; in a container, pass the device in",
        ));
    }
    list
}

/// Whether Kubernetes can be built.
fn build_problem(facts: &HostFacts) -> Option<Problem> {
    let Some(go) = &facts.go else {
        return Some(problem(
            "Go is not installed; Kubernetes is built with it, once",
            "install Go 1.24 or newer and put `go` on the PATH",
        ));
    };
    if version_of(go.trim_start_matches("go version go")).is_some_and(|version| version < MIN_GO) {
        let what = format!("{} is too old to build Kubernetes", go.trim());
        return Some(problem(what, "install Go 1.24 or newer"));
    }
    let output = facts.modules.as_ref().err()?;
    Some(problem(
        format!("Go cannot fetch the modules of Kubernetes: {output}"),
        "check the network and `go env GOPROXY`; behind a proxy set HTTPS_PROXY",
    ))
}

/// Disk, memory and kernel limits.
fn resource_problems(facts: &HostFacts, demand: ResourceDemand) -> Vec<Problem> {
    let mut list = Vec::new();
    let disk_needed = if facts.must_build {
        DISK_TO_BUILD
    } else {
        DISK_TO_RUN
    };
    if facts.disk_free < disk_needed {
        list.push(problem(
            format!(
                "{} has {} free, the lab needs {}",
                facts.directory.display(),
                size(facts.disk_free),
                size(disk_needed)
            ),
            "free some space, or set STANDIN_LAB_DIR to a folder on a larger disk",
        ));
    }
    let memory_needed = demand.clusters * MEMORY_PER_CLUSTER
        + demand.nodes.saturating_sub(demand.clusters) * MEMORY_PER_NODE;
    if facts.memory_free < memory_needed {
        list.push(problem(
            format!(
                "{} of memory is free, {} cluster(s) with {} node(s) need {}",
                size(facts.memory_free),
                demand.clusters,
                demand.nodes,
                size(memory_needed)
            ),
            "stop other programs, or ask for fewer clusters or `--control-plane-only`",
        ));
    }
    if let Some(free) = facts.inotify_free
        && free < demand.inotify()
    {
        list.push(problem(
            format!(
                "root can create {free} more inotify instances, {} cluster(s) with {} node(s) need {}",
                demand.clusters,
                demand.nodes,
                demand.inotify()
            ),
            "raise the kernel's limit: `sysctl fs.inotify.max_user_instances=1024`, and the same line in a file of /etc/sysctl.d to keep it; or stop other clusters: `cargo xtask lab down --all`",
        ));
    }
    list
}

fn tun_device_exists() -> bool {
    let device = Path::new("/dev/net/tun");
    // Loading the module has no other effect on the host.
    device.exists() || (run(Command::new("modprobe").arg("tun")).is_ok() && device.exists())
}

fn disk_free(directory: &Path) -> u64 {
    let mut existing = directory;
    while !existing.exists() {
        match existing.parent() {
            Some(parent) => existing = parent,
            None => return 0,
        }
    }
    nix::sys::statvfs::statvfs(existing).map_or(0, |numbers| {
        numbers.blocks_available() * numbers.fragment_size()
    })
}

/// Counts the instances by creating and closing them: the kernel does not report the number.
fn inotify_free(max: u64) -> u64 {
    let created = (0..max).map_while(|_| inotify::init(CreateFlags::CLOEXEC).ok());
    created.collect::<Vec<_>>().len() as u64
}

/// Reads the text of `/proc/meminfo`.
fn memory_free(text: &str) -> u64 {
    text.lines()
        .find_map(|line| line.strip_prefix("MemAvailable:"))
        .and_then(|rest| rest.split_whitespace().next())
        .and_then(|number| number.parse::<u64>().ok())
        .map_or(0, |kibibytes| kibibytes << 10)
}

/// The first two numbers of a version.
fn version_of(text: &str) -> Option<(u32, u32)> {
    let mut numbers = text.split(|c: char| !c.is_ascii_digit());
    Some((numbers.next()?.parse().ok()?, numbers.next()?.parse().ok()?))
}

fn size(bytes: u64) -> String {
    #[expect(
        clippy::cast_precision_loss,
        reason = "shown with one digit after the point"
    )]
    let gibibytes = bytes as f64 / f64::from(1 << 30);
    format!("{gibibytes:.1} GiB")
}

#[cfg(test)]
mod tests {
    use super::*;

    fn good() -> HostFacts {
        HostFacts {
            root: true,
            kernel: "6.1.0-13-amd64".to_owned(),
            has_cgroups: true,
            tun_device: true,
            go: Some("go version go1.24.1 linux/amd64".to_owned()),
            modules: Ok(()),
            must_build: true,
            disk_free: 100 << 30,
            memory_free: 8 << 30,
            inotify_free: Some(1000),
            missing_packages: Vec::new(),
            directory: PathBuf::from("/cache"),
        }
    }

    fn check(change: impl FnOnce(&mut HostFacts), expected: &[&str]) {
        let mut facts = good();
        change(&mut facts);
        let found: Vec<String> = problems(
            &facts,
            ResourceDemand {
                clusters: 2,
                nodes: 3,
            },
        )
        .into_iter()
        .map(|problem| problem.what)
        .collect();
        assert_eq!(found.len(), expected.len(), "{found:?}");
        for (what, part) in found.iter().zip(expected) {
            assert!(what.contains(part), "{what} does not contain {part}");
        }
    }

    #[test]
    fn each_problem_is_reported() {
        check(|_| {}, &[]);
        check(|facts| facts.root = false, &["needs root"]);
        check(
            |facts| facts.kernel = "5.10.0-8-amd64".to_owned(),
            &["older than 5.15"],
        );
        check(|facts| facts.kernel = "10.0.1".to_owned(), &[]);
        check(|facts| facts.has_cgroups = false, &["no control groups"]);
        check(|facts| facts.tun_device = false, &["/dev/net/tun"]);
        check(|facts| facts.go = None, &["Go is not installed"]);
        check(
            |facts| facts.go = Some("go version go1.19.8 linux/amd64".to_owned()),
            &["too old"],
        );
        check(
            |facts| facts.go = Some("go version go1.9 linux/amd64".to_owned()),
            &["too old"],
        );
        check(
            |facts| {
                facts.go = None;
                facts.must_build = false;
            },
            &[],
        );
        check(
            |facts| facts.modules = Err("dial tcp: no route to host".to_owned()),
            &["cannot fetch the modules of Kubernetes: dial tcp"],
        );
        check(
            |facts| facts.disk_free = 1 << 30,
            &["1.0 GiB free, the lab needs 8.0 GiB"],
        );
        check(
            |facts| facts.memory_free = 1 << 30,
            &["2 cluster(s) with 3 node(s) need"],
        );
        check(
            |facts| facts.inotify_free = Some(20),
            &["20 more inotify instances, 2 cluster(s) with 3 node(s) need"],
        );
        check(|facts| facts.inotify_free = None, &[]);
        check(
            |facts| facts.missing_packages = vec!["runc"],
            &["missing: runc"],
        );
    }

    #[test]
    fn all_problems_are_reported_at_once() {
        check(
            |facts| {
                facts.root = false;
                facts.memory_free = 0;
            },
            &["needs root", "of memory is free"],
        );
    }

    #[test]
    fn kernel_files_are_parsed() {
        assert_eq!(
            memory_free("MemTotal: 10 kB\nMemAvailable:   2048 kB\n"),
            2 << 20
        );
        assert_eq!(memory_free(""), 0);
        assert_eq!(version_of("6.18.44-fc"), Some((6, 18)));
        assert_eq!(version_of("nonsense"), None);
    }
}
