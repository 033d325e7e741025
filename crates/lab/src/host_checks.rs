//! Checks that the host can run the lab, before anything is changed.

mod problems;

use std::env;
use std::path::{Path, PathBuf};

pub use self::problems::{HostFacts, Problem, ResourceDemand, problems};
use crate::binaries::Binaries;
use crate::error::{Error, Result};
use crate::paths::Paths;

/// A required program, and the Debian package that contains it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Requirement {
    /// The program's name, or the path of a file.
    pub program: &'static str,
    pub package: &'static str,
    pub purpose: &'static str,
}

/// The programs that clusters need, except those that are built from source.
pub const REQUIREMENTS: [Requirement; 9] = [
    Requirement {
        program: "containerd",
        package: "containerd",
        purpose: "runs the containers of a node",
    },
    Requirement {
        program: "runc",
        package: "runc",
        purpose: "starts one container",
    },
    Requirement {
        program: NETWORK_PLUGINS[0],
        package: "containernetworking-plugins",
        purpose: "gives pods their addresses",
    },
    Requirement {
        program: "iptables",
        package: "iptables",
        purpose: "Services, through kube-proxy",
    },
    Requirement {
        program: "nft",
        package: "nftables",
        purpose: "faults of the network",
    },
    Requirement {
        program: "conntrack",
        package: "conntrack",
        purpose: "drops connection tracking of Services that changed",
    },
    Requirement {
        program: "ip",
        package: "iproute2",
        purpose: "joins clusters with a bridge",
    },
    Requirement {
        program: "nsenter",
        package: "util-linux",
        purpose: "namespaces of nodes",
    },
    Requirement {
        program: "pkill",
        package: "procps",
        purpose: "tests that kill processes",
    },
];

/// Where the CNI plugins may be: below `/usr`, which nodes share with the host.
const NETWORK_PLUGINS: [&str; 2] = ["/usr/lib/cni/ptp", "/usr/libexec/cni/ptp"];

/// Fails when the caller is not root, before anything else is tried.
pub(crate) fn check_root() -> Result<()> {
    if nix::unistd::geteuid().is_root() {
        Ok(())
    } else {
        fail_on(vec![problems::needs_root()])
    }
}

/// Fails with all problems that prevent the lab from running here.
pub fn check(paths: &Paths, demand: ResourceDemand) -> Result<()> {
    let facts = HostFacts::collect(paths, Binaries::find(paths).is_none(), demand);
    fail_on(problems(&facts, demand))
}

/// Like [`check`], without root privileges and missing packages: the caller obtains both afterwards.
pub fn check_before_preparing(paths: &Paths, demand: ResourceDemand) -> Result<()> {
    let mut facts = HostFacts::collect(paths, Binaries::find(paths).is_none(), demand);
    facts.root = true;
    facts.missing_packages.clear();
    fail_on(problems(&facts, demand))
}

fn fail_on(problems: Vec<Problem>) -> Result<()> {
    if problems.is_empty() {
        Ok(())
    } else {
        Err(Error::UnsuitableHost(problems))
    }
}

/// The requirements that this machine does not meet. Which package a program came from does not matter.
pub fn missing(requirements: &[Requirement]) -> Vec<Requirement> {
    requirements
        .iter()
        .copied()
        .filter(|requirement| !is_met(requirement))
        .collect()
}

fn is_met(requirement: &Requirement) -> bool {
    if requirement.program == NETWORK_PLUGINS[0] {
        return network_plugins().is_some();
    }
    find_program(requirement.program).is_some()
}

/// Finds a program on the PATH or in the `sbin` folders, which a user's PATH often lacks.
pub fn find_program(name: &str) -> Option<PathBuf> {
    let path = env::var("PATH").unwrap_or_default();
    path.split(':')
        .chain(["/usr/local/sbin", "/usr/sbin", "/sbin"])
        .map(|folder| Path::new(folder).join(name))
        .find(|candidate| candidate.is_file())
}

/// The folder with the CNI plugins.
pub(crate) fn network_plugins() -> Option<PathBuf> {
    let found = NETWORK_PLUGINS
        .iter()
        .map(Path::new)
        .find(|plugin| plugin.is_file())?;
    found.parent().map(Path::to_owned)
}
