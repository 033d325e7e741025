//! Targets of this machine: processes and containers.

use std::path::Path;
use std::process::Command;
use std::time::Duration;

use anyhow::{Result, bail};
use config::Target;

use super::podman::Podman;

/// How often to check whether a container that has ended runs again.
const POLL_INTERVAL: Duration = Duration::from_secs(1);

/// A target of this machine.
#[derive(Debug, Clone)]
pub(super) enum LocalTarget {
    Process(u32),
    Container { name: String, podman: Podman },
}

impl LocalTarget {
    /// `None` if the target is in a cluster.
    pub(super) fn of(target: &Target) -> Option<Self> {
        match target {
            Target::Process(pid) => Some(Self::Process(*pid)),
            Target::Container(name) => Some(Self::Container {
                name: name.clone(),
                podman: Podman::find(),
            }),
            Target::Targetless | Target::Workload { .. } => None,
        }
    }

    /// The current process of the target.
    pub(super) async fn process(&self) -> Result<u32> {
        match self {
            Self::Process(pid) if !Path::new(&format!("/proc/{pid}")).exists() => bail!(
                "there is no process {pid}: it has ended, or never existed. `pgrep -n <program>` prints the id of a running one"
            ),
            Self::Process(pid) => Ok(*pid),
            Self::Container { name, podman } => podman.process_of(name).await,
        }
    }

    /// A command for a program that has the rights to access the target. Rootless containers run in a user namespace of
    /// podman, in which the user has all rights.
    pub(super) fn start(&self, program: &Path) -> Command {
        match self {
            Self::Container { podman, .. } if !rustix::process::geteuid().is_root() => {
                let mut command = podman.command();
                command.arg("unshare").arg(program);
                command
            }
            _ => Command::new(program),
        }
    }

    /// Completes when the target runs as another process than `before`. Never for a target that is a process.
    pub(super) async fn wait_for_restart(&self, before: Option<u32>) {
        let Self::Container { name, podman } = self else {
            return std::future::pending().await;
        };
        loop {
            tokio::time::sleep(POLL_INTERVAL).await;
            match podman.process_of(name).await {
                Ok(now) if Some(now) != before => return,
                _ => {}
            }
        }
    }
}

impl std::fmt::Display for LocalTarget {
    fn fmt(&self, formatter: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Self::Process(pid) => write!(formatter, "process/{pid}"),
            Self::Container { name, .. } => write!(formatter, "container/{name}"),
        }
    }
}
