//! Finds resources that labs left on the host: processes, mounts, namespaces, devices, rules and control groups.

use std::collections::BTreeSet;
use std::fmt;
use std::fs;
use std::path::Path;
use std::process::Command;
use std::thread;
use std::time::{Duration, Instant};

use crate::command::run;
use crate::lab::Lab;
use crate::role::MARKER;

/// A snapshot of all resources on the host that labs create. The difference of two snapshots is what was left behind.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct HostResources {
    resources: BTreeSet<(Kind, String)>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Kind {
    Process,
    Mount,
    Namespace,
    Device,
    Rule,
    ControlGroup,
}

/// Texts that identify a lab's resources of each kind. Other programs on the host create such resources at any time.
const MARKERS: [(Kind, &[&str]); 4] = [
    (
        Kind::Mount,
        &[
            "standin",
            "/var/lib/kubelet",
            "/run/containerd",
            "/run/netns/cni-",
        ],
    ),
    (Kind::Device, &["standin", "cni", "wire"]),
    (Kind::Rule, &["standin", "KUBE-", "CNI-", "10.200."]),
    (Kind::ControlGroup, &["standin-lab", "kubepods", "k8s.io"]),
];

impl HostResources {
    /// Lists the resources that exist now.
    pub fn snapshot() -> Self {
        let mut resources = BTreeSet::new();
        processes_and_namespaces(&mut resources);
        let mut groups = Vec::new();
        control_groups(Path::new("/sys/fs/cgroup"), &mut groups);
        let output = |program: &str, arguments: &[&str]| {
            run(Command::new(program).args(arguments)).unwrap_or_default()
        };
        let found = [
            (
                Kind::Mount,
                fs::read_to_string("/proc/self/mounts").unwrap_or_default(),
            ),
            (
                Kind::Device,
                first_words(&output("ip", &["-brief", "link"])),
            ),
            (
                Kind::Rule,
                output("nft", &["--stateless", "list", "ruleset"]),
            ),
            (Kind::Rule, output("ip", &["rule"])),
            (Kind::Rule, output("ip", &["route"])),
            (Kind::ControlGroup, groups.join("\n")),
        ];
        for (kind, text) in found {
            let marked = text.lines().filter(|line| has_marker(kind, line));
            resources.extend(marked.map(|line| (kind, line.trim().to_owned())));
        }
        HostResources { resources }
    }

    /// The resources that are not in an earlier snapshot.
    pub fn added_since(&self, before: &HostResources) -> Vec<(Kind, String)> {
        self.resources
            .difference(&before.resources)
            .cloned()
            .collect()
    }

    /// Waits until every resource that is not in `before` is gone, and returns those that still exist after the timeout.
    /// The kernel removes a namespace shortly after its last process has exited. Resources of `other_labs` are ignored.
    pub fn wait_for_cleanup(
        before: &HostResources,
        other_labs: &[&Lab],
        timeout: Duration,
    ) -> Vec<(Kind, String)> {
        let deadline = Instant::now() + timeout;
        loop {
            let mut left = HostResources::snapshot().added_since(before);
            left.retain(|(_, resource)| !other_labs.iter().any(|lab| belongs_to(resource, lab)));
            if left.is_empty() || Instant::now() > deadline {
                return left;
            }
            thread::sleep(Duration::from_millis(50));
        }
    }

    /// The number of resources of a kind.
    pub fn count(&self, kind: Kind) -> usize {
        self.resources
            .iter()
            .filter(|(other, _)| *other == kind)
            .count()
    }
}

impl fmt::Display for Kind {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.write_str(match self {
            Kind::Process => "process",
            Kind::Mount => "mount",
            Kind::Namespace => "namespace",
            Kind::Device => "device",
            Kind::Rule => "rule or route",
            Kind::ControlGroup => "control group",
        })
    }
}

/// Whether a resource has the name of the lab's network or folder, which all resources of a lab have.
fn belongs_to(resource: &str, lab: &Lab) -> bool {
    let device = lab.network().device();
    let separators = |character: char| !character.is_ascii_alphanumeric() && character != '-';
    resource
        .split(separators)
        .any(|word| word == device || word == lab.name())
}

fn has_marker(kind: Kind, line: &str) -> bool {
    MARKERS
        .iter()
        .filter(|(other, _)| *other == kind)
        .any(|(_, markers)| markers.iter().any(|marker| line.contains(marker)))
}

/// Every process of a node is in the lab's control group, and the daemon has its role on its command line. A namespace
/// without processes could only be kept alive by a mount, which is another kind.
fn processes_and_namespaces(resources: &mut BTreeSet<(Kind, String)>) {
    for entry in fs::read_dir("/proc").into_iter().flatten().flatten() {
        let Ok(pid) = entry.file_name().to_string_lossy().parse::<u32>() else {
            continue;
        };
        let read = |name: &str| fs::read_to_string(entry.path().join(name)).unwrap_or_default();
        let group = read("cgroup");
        let line = read("cmdline").replace('\0', " ");
        let owner = match group.split_once("/standin-lab/") {
            Some((_, rest)) => rest.split('/').next().unwrap_or_default().to_owned(),
            None if line.contains(MARKER) => line,
            None => continue,
        };
        resources.insert((
            Kind::Process,
            format!("{pid} {} of {}", read("comm").trim(), owner.trim()),
        ));
        for kind in ["pid", "mnt", "net", "uts", "ipc"] {
            if let Ok(link) = fs::read_link(entry.path().join("ns").join(kind)) {
                resources.insert((
                    Kind::Namespace,
                    format!("{} of {}", link.display(), owner.trim()),
                ));
            }
        }
    }
}

fn control_groups(folder: &Path, found: &mut Vec<String>) {
    for entry in fs::read_dir(folder).into_iter().flatten().flatten() {
        if entry.file_type().is_ok_and(|kind| kind.is_dir()) {
            found.push(entry.path().display().to_string());
            control_groups(&entry.path(), found);
        }
    }
}

/// The device names of `ip -brief link`, without the link states, which change by themselves.
fn first_words(text: &str) -> String {
    text.lines()
        .filter_map(|line| line.split_whitespace().next())
        .map(|word| format!("{word}\n"))
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_difference_is_what_was_added() {
        let device = |name: &str| (Kind::Device, name.to_owned());
        let before = HostResources {
            resources: [device("lo"), device("eth0")].into(),
        };
        let after = HostResources {
            resources: [device("lo"), device("standin0")].into(),
        };
        assert_eq!(after.added_since(&before), [device("standin0")]);
        assert_eq!(after.count(Kind::Device), 2);
    }

    #[test]
    fn only_resources_of_labs_are_counted() {
        for (kind, line, expected) in [
            (Kind::Device, "standin0@if2", true),
            (Kind::Device, "docker0", false),
            (Kind::Rule, "10.200.3.0/24 dev standin3", true),
            (Kind::Rule, "default via 192.0.2.1 dev eth0", false),
            (
                Kind::ControlGroup,
                "/sys/fs/cgroup/memory/standin-lab/standin0",
                true,
            ),
            (Kind::ControlGroup, "/sys/fs/cgroup/user.slice", false),
            (
                Kind::Mount,
                "tmpfs /var/lib/kubelet/pods/x tmpfs rw 0 0",
                true,
            ),
            (Kind::Mount, "proc /proc proc rw 0 0", false),
        ] {
            assert_eq!(has_marker(kind, line), expected, "{line}");
        }
    }
}
