//! What the lab needs of a machine, checked before anything is changed.

mod problems;

use std::env;
use std::path::{Path, PathBuf};

pub use self::problems::{Demand, Facts, Problem, problems};
use crate::binaries::Binaries;
use crate::error::{Error, Result};
use crate::paths::Paths;

/// A program that is needed, and the Debian package that brings it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Requirement {
    /// The program's name, or the path of a file.
    pub program: &'static str,
    pub package: &'static str,
    pub purpose: &'static str,
}

/// What clusters are made of, apart from what is built from source.
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
        purpose: "forgets connections of Services that changed",
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
        purpose: "stories in which programs are killed",
    },
];

/// Where the plugins for pod networks may be: below `/usr`, which nodes share with the machine.
const NETWORK_PLUGINS: [&str; 2] = ["/usr/lib/cni/ptp", "/usr/libexec/cni/ptp"];

/// Fails when the caller is not root, before anything else is tried.
pub(crate) fn check_root() -> Result<()> {
    if nix::unistd::geteuid().is_root() {
        Ok(())
    } else {
        refuse(vec![problems::needs_root()])
    }
}

/// Fails with everything that keeps the lab from running here, before anything is changed.
pub fn check(paths: &Paths, demand: Demand) -> Result<()> {
    let facts = Facts::gather(paths, Binaries::find(paths).is_none(), demand);
    refuse(problems(&facts, demand))
}

/// Like [`check`], before packages are installed and root's rights are asked for: both are about to come.
pub fn check_before_preparing(paths: &Paths, demand: Demand) -> Result<()> {
    let mut facts = Facts::gather(paths, Binaries::find(paths).is_none(), demand);
    facts.root = true;
    facts.missing_packages.clear();
    refuse(problems(&facts, demand))
}

fn refuse(problems: Vec<Problem>) -> Result<()> {
    if problems.is_empty() {
        Ok(())
    } else {
        Err(Error::Surroundings(problems))
    }
}

/// The requirements that this machine does not meet. A program that came in another package is as good.
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

/// A program on the PATH or in the folders for administrators, which a user's PATH often lacks.
pub fn find_program(name: &str) -> Option<PathBuf> {
    let path = env::var("PATH").unwrap_or_default();
    path.split(':')
        .chain(["/usr/local/sbin", "/usr/sbin", "/sbin"])
        .map(|folder| Path::new(folder).join(name))
        .find(|candidate| candidate.is_file())
}

/// The folder with the plugins for pod networks.
pub(crate) fn network_plugins() -> Option<PathBuf> {
    let found = NETWORK_PLUGINS
        .iter()
        .map(Path::new)
        .find(|plugin| plugin.is_file())?;
    found.parent().map(Path::to_owned)
}
