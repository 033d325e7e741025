//! Events of a session, with their messages to the user.

mod incoming;
mod kind;

use std::collections::BTreeMap;
use std::fmt;
use std::fs;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use config::SkipReason;
use interceptor::{Errno, Notice};

use crate::agent::AgentId;

pub(crate) use self::incoming::describe;
pub use self::incoming::{
    EarlierSession, IncomingEvent, IncomingEventKind, MissedReason, RedirectCheck, SubscriptionInfo,
};
pub use self::kind::EventKind;

/// Receives the events of a session. It is called on any thread and must not block.
pub type EventSink = Arc<dyn Fn(&Event) + Send + Sync>;

#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub enum Event {
    /// The link is reconnecting. No state is lost.
    ConnectionLost(String),
    ConnectionRestored,
    /// The stateful agent is gone, with all of its open files and connections.
    AgentLost {
        agent: AgentId,
        reason: String,
    },
    /// This agent is the stateful agent from now on.
    SessionRestored(AgentId),
    /// An agent other than the stateful one has joined.
    AgentJoined(AgentId),
    /// An agent other than the stateful one has left.
    AgentLeft {
        agent: AgentId,
        reason: String,
    },
    /// An agent other than the stateful one cannot be connected.
    AgentJoinFailed {
        agent: AgentId,
        reason: String,
    },
    /// The number of agents at the beginning, and with several clusters the number in each of them.
    Coverage {
        pods: usize,
        clusters: BTreeMap<String, usize>,
    },
    /// One of several clusters cannot be reached.
    ClusterUnreachable {
        cluster: String,
        /// Whether files, DNS and outgoing connections use this cluster.
        is_default: bool,
        reason: String,
    },
    ClusterRestored(String),
    /// The target has no running pod. Calls wait for so many seconds.
    NoTargetPods(u64),
    /// What the administrators of the cluster allow at this agent has changed.
    RulesChanged(AgentId),
    /// The session was ended from outside.
    SessionEnded(String),
    /// There is no agent, and calls fail until there is one.
    SessionLost(String),
    TargetExited,
    TargetRestarted,
    /// About a program of the session.
    Program(Notice),
    /// A program outside of the session cannot be started in a directory of the target, because this machine has none with
    /// the same path, or because it cannot be entered.
    NoLocalDirectory {
        program: PathBuf,
        directory: PathBuf,
        errno: Errno,
        /// Why the program is outside of the session.
        reason: SkipReason,
    },
    /// About the target's traffic.
    Incoming(IncomingEvent),
    /// The maximum number of connections through the target, given here, is open.
    TooManyConnections(usize),
    /// A file of the target cannot be used as the program expects.
    File(PathBuf, FileProblem),
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum FileProblem {
    /// Without FUSE, a file with content cannot be changed.
    NotEmpty,
    /// Without FUSE, whole files are read into memory, and this one is too large.
    TooLarge,
    /// A pipe, socket or device.
    Special,
    /// The file was opened for reading and writing, so the local one is used, while the target has one too.
    OtherContent,
    /// Data that the program wrote is lost.
    NotWritten(Errno),
}

impl Event {
    /// The event of a session that begins with these agents.
    pub(crate) fn coverage_of<'agents>(agents: impl IntoIterator<Item = &'agents AgentId>) -> Self {
        let (mut pods, mut clusters) = (0, BTreeMap::new());
        for agent in agents {
            pods += 1;
            if let Some(cluster) = &agent.cluster {
                *clusters.entry(cluster.clone()).or_default() += 1;
            }
        }
        Self::Coverage { pods, clusters }
    }

    /// Whether the event is only informational, and no warning.
    #[must_use]
    pub fn is_informational(&self) -> bool {
        match self {
            Self::AgentJoined(_)
            | Self::AgentLeft { .. }
            | Self::Coverage { .. }
            | Self::ClusterRestored(_) => true,
            Self::Incoming(event) => !event.is_warning(),
            _ => false,
        }
    }
}

impl fmt::Display for Event {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::ConnectionLost(reason) => write!(
                formatter,
                "connection to the agent lost, reconnecting; operations that need the target wait ({reason})"
            ),
            Self::ConnectionRestored => {
                formatter.write_str("reconnected to the agent; nothing was lost")
            }
            Self::AgentLost { agent, reason } => write!(
                formatter,
                "{agent} is lost ({reason}): its pending operations fail; connecting to another agent"
            ),
            Self::SessionRestored(agent) => {
                formatter.write_str("the session continues with another agent")?;
                if *agent != AgentId::default() {
                    write!(formatter, ", in {}", agent.location())?;
                }
                formatter.write_str(
                    "; connections and files that were open through the target were reset",
                )
            }
            Self::AgentJoined(agent) => write!(formatter, "{} has joined the session", agent.location()),
            Self::AgentLeft { agent, reason } => {
                write!(
                    formatter,
                    "{} has left the session ({reason})",
                    agent.location()
                )
            }
            Self::AgentJoinFailed { agent, reason } => write!(
                formatter,
                "{} cannot join the session, so its traffic does not arrive: {reason}",
                agent.location()
            ),
            Self::Coverage { pods, clusters } => write_coverage(formatter, *pods, clusters),
            Self::ClusterUnreachable {
                cluster,
                is_default: true,
                reason,
            } => write!(
                formatter,
                "cluster {cluster} cannot be reached ({reason}): operations that need the target wait"
            ),
            Self::ClusterUnreachable {
                cluster, reason, ..
            } => write!(
                formatter,
                "cluster {cluster} cannot be reached ({reason}): its traffic does not arrive, and the session continues without it"
            ),
            Self::ClusterRestored(cluster) => write!(formatter, "cluster {cluster} is reachable again"),
            Self::NoTargetPods(seconds) => write!(
                formatter,
                "the target has no pod now: operations that need it wait, for up to {seconds} s"
            ),
            Self::RulesChanged(agent) => write!(
                formatter,
                "the rules of the cluster's administrators for {} have changed: what they forbid now has ended",
                agent.location()
            ),
            Self::SessionEnded(reason) => write!(
                formatter,
                "the session has ended ({reason}): the program keeps running, and operations that need the target fail"
            ),
            Self::SessionLost(reason) => write!(
                formatter,
                "there is no agent ({reason}): the program keeps running, and operations that need the target fail"
            ),
            Self::TargetExited => formatter.write_str(
                "the target has ended: the program keeps running, and operations that need the target fail",
            ),
            Self::TargetRestarted => formatter.write_str("the target has restarted"),
            Self::Program(notice) => write_notice(formatter, notice),
            Self::NoLocalDirectory {
                program,
                directory,
                errno,
                reason,
            } => write_no_local_directory(formatter, (program, directory), *errno, *reason),
            Self::Incoming(event) => event.fmt(formatter),
            Self::TooManyConnections(max) => write!(
                formatter,
                "{max} connections through the target are open, which is the maximum: further ones fail as if there were no \
                 free ports"
            ),
            Self::File(path, problem) => write!(formatter, "{} {problem}", path.display()),
        }
    }
}

fn write_coverage(
    formatter: &mut fmt::Formatter<'_>,
    pods: usize,
    clusters: &BTreeMap<String, usize>,
) -> fmt::Result {
    write!(formatter, "the session is with {pods} pods")?;
    for (index, (cluster, pods)) in clusters.iter().enumerate() {
        let before = if index == 0 { ": " } else { ", " };
        write!(formatter, "{before}{pods} in cluster {cluster}")?;
    }
    Ok(())
}

impl fmt::Display for FileProblem {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::NotEmpty => formatter.write_str(
                "has content at the target, and without FUSE only new and emptied files can be written; \
                 `standin diagnose` says what FUSE needs",
            ),
            Self::TooLarge => formatter.write_str(
                "is too large: without FUSE, whole files are read into memory; `standin diagnose` says what FUSE needs",
            ),
            Self::Special => formatter.write_str(
                "is a pipe, a socket or a device of the target, which cannot be opened from here",
            ),
            Self::OtherContent => formatter.write_str(
                "is at the target, and was opened for reading and writing: in the mode `read` that is a file of this machine, \
                 with other content. Use `--fs-mode write`, or name it in `feature.fs.read_write`",
            ),
            Self::NotWritten(errno) => write!(
                formatter,
                "was not written: what the program wrote did not reach the target ({errno})"
            ),
        }
    }
}

fn write_notice(formatter: &mut fmt::Formatter<'_>, notice: &Notice) -> fmt::Result {
    match notice {
        Notice::ForeignArchitecture { process } => write!(
            formatter,
            "{} is a program of another architecture: everything that it does is local",
            program_name(*process)
        ),
        Notice::UnreadableMemory { process, errno } => write!(
            formatter,
            "the memory of {} cannot be read ({errno}): everything that it does is local",
            program_name(*process)
        ),
        Notice::WatchRefused { path } => write!(
            formatter,
            "{} is the target's and cannot be watched for changes: let the program poll instead",
            path.display()
        ),
        Notice::NoPrivileges { path } => write!(
            formatter,
            "{} runs without the privileges that it has otherwise: only root can give them in a session",
            path.display()
        ),
        Notice::LocalUnixSocket { path } => write!(
            formatter,
            "the socket {} is created on this machine: processes at the target cannot reach it",
            path.display()
        ),
        Notice::RemoteProgram { path } => write!(
            formatter,
            "{} is a program of the target: programs are started from this machine, which does not have it",
            path.display()
        ),
        Notice::PortMoved {
            requested, actual, ..
        } => write!(
            formatter,
            "{requested} is not available on this machine: the program sees it as its own, and is reached from here at {actual}"
        ),
        other => write!(formatter, "{other:?}"),
    }
}

fn write_no_local_directory(
    formatter: &mut fmt::Formatter<'_>,
    (program, directory): (&Path, &Path),
    errno: Errno,
    reason: SkipReason,
) -> fmt::Result {
    let (setting, instead) = match reason {
        SkipReason::BuildTool => ("skip_build_tools", "set `skip_build_tools` to `false`"),
        SkipReason::Listed => ("skip_processes", "remove it from `skip_processes`"),
    };
    write!(
        formatter,
        "{} was not started: it runs outside of the session (`{setting}`), and its working directory {} is the target's; ",
        program.display(),
        directory.display()
    )?;
    match errno {
        Errno::ENOENT | Errno::ENOTDIR => {
            formatter.write_str("this machine has no such directory")
        }
        Errno::EPERM => formatter.write_str(
            "the session cannot let it change to that of this machine, because it cannot be traced: a debugger may trace it already",
        ),
        errno => write!(formatter, "that of this machine cannot be entered ({errno})"),
    }?;
    write!(
        formatter,
        ". Change to a directory of this machine first, or {instead}"
    )
}

/// The program name of a process, which a user recognizes.
fn program_name(process: i32) -> String {
    match fs::read_to_string(format!("/proc/{process}/comm")) {
        Ok(name) => format!("`{}`", name.trim_end()),
        Err(_) => format!("process {process}"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_program_that_cannot_run_in_its_directory_names_the_setting() {
        const TOOL: &str = "/usr/bin/make was not started: it runs outside of the session (`skip_build_tools`), and its \
                            working directory /srv/a is the target's; ";
        const LISTED: &str = "/usr/bin/make was not started: it runs outside of the session (`skip_processes`), and its \
                              working directory /srv/a is the target's; ";
        const INSTEAD: &str =
            ". Change to a directory of this machine first, or set `skip_build_tools` to `false`";
        const REMOVE: &str =
            ". Change to a directory of this machine first, or remove it from `skip_processes`";
        let missing = "this machine has no such directory";
        let closed = "that of this machine cannot be entered (EACCES: Permission denied)";
        let traced = "the session cannot let it change to that of this machine, because it cannot be traced: a debugger may trace it already";
        for (errno, reason, expected) in [
            (
                Errno::ENOENT,
                SkipReason::BuildTool,
                [TOOL, missing, INSTEAD],
            ),
            (
                Errno::ENOTDIR,
                SkipReason::Listed,
                [LISTED, missing, REMOVE],
            ),
            (
                Errno::EACCES,
                SkipReason::BuildTool,
                [TOOL, closed, INSTEAD],
            ),
            (Errno::EPERM, SkipReason::BuildTool, [TOOL, traced, INSTEAD]),
        ] {
            let event = Event::NoLocalDirectory {
                program: "/usr/bin/make".into(),
                directory: "/srv/a".into(),
                errno,
                reason,
            };
            assert_eq!(event.to_string(), expected.concat());
        }
    }

    #[test]
    fn coverage_lists_the_pods_of_each_cluster() {
        let pod = |name: &str, cluster: &str| AgentId::in_pod(name).of_cluster(cluster);
        let agents = [pod("a", "west"), pod("a", "east"), pod("b", "east")];
        assert_eq!(
            Event::coverage_of(&agents).to_string(),
            "the session is with 3 pods: 2 in cluster east, 1 in cluster west"
        );
        let agents = [AgentId::in_pod("a"), AgentId::in_pod("b")];
        assert_eq!(
            Event::coverage_of(&agents).to_string(),
            "the session is with 2 pods"
        );
    }
}
