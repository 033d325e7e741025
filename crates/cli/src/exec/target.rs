//! Which process of this machine a target is.

use std::path::Path;
use std::process::Command;
use std::time::Duration;

use anyhow::{Result, bail};
use config::Target;

use super::podman::Podman;

/// How often to look whether a container that has ended runs again.
const LOOK_EVERY: Duration = Duration::from_secs(1);

/// A target of this machine.
#[derive(Debug, Clone)]
pub(super) enum LocalTarget {
    Process(u32),
    Container { name: String, podman: Podman },
}

impl LocalTarget {
    /// None: it is in a cluster.
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

    /// The target's process, as it is now.
    pub(super) async fn process(&self) -> Result<u32> {
        match self {
            Self::Process(pid) if !Path::new(&format!("/proc/{pid}")).exists() => bail!(
                "there is no process {pid}: it has ended, or never was. `pgrep -n <program>` prints the id of a running one"
            ),
            Self::Process(pid) => Ok(*pid),
            Self::Container { name, podman } => podman.process_of(name).await,
        }
    }

    /// Starts a program where it can be beside the target. A user's own containers live in a user namespace of podman, in
    /// which the user has every right, and outside of which none.
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

    /// Ends when the target runs as another process than `before`. A process never does.
    pub(super) async fn successor(&self, before: Option<u32>) {
        let Self::Container { name, podman } = self else {
            return std::future::pending().await;
        };
        loop {
            tokio::time::sleep(LOOK_EVERY).await;
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
