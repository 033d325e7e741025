//! What a user should know of a session that goes on.

mod incoming;

use std::collections::BTreeMap;
use std::error::Error;
use std::fmt;
use std::fs;
use std::path::PathBuf;
use std::sync::Arc;

use interceptor::{Errno, Notice};

use crate::agent::AgentId;

pub(crate) use self::incoming::describe;
pub use self::incoming::{Checked, Earlier, IncomingEvent, MissedReason, News, Subscribed};

/// Says something to the user. It is called on any thread, and must not wait.
pub type Tell = Arc<dyn Fn(&Event) + Send + Sync>;

#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub enum Event {
    /// The connection is lost, and is being made again. Nothing is lost with it.
    ConnectionLost(String),
    ConnectionBack,
    /// The agent that is asked alone is gone, and with it everything that it held.
    AgentLost {
        agent: AgentId,
        reason: String,
    },
    /// This agent is the one that is asked alone from now on.
    SessionRestored(AgentId),
    /// Another agent has come, or gone.
    Joined(AgentId),
    Left {
        agent: AgentId,
        reason: String,
    },
    /// Another agent cannot be had.
    NotJoined {
        agent: AgentId,
        reason: String,
    },
    /// So many agents are there at the beginning, and with several clusters so many in each of them.
    Covers {
        pods: usize,
        clusters: BTreeMap<String, usize>,
    },
    /// Of several clusters, one cannot be reached.
    ClusterAway {
        cluster: String,
        /// Files, names and connections are this cluster's.
        is_default: bool,
        reason: String,
    },
    ClusterBack(String),
    /// The target has nothing that an agent could be beside. Calls wait for so many seconds.
    NobodyThere(u64),
    /// What the administrators of the cluster allow there has changed.
    RulesChanged(AgentId),
    /// Somebody has ended the session.
    SessionOver(String),
    /// There is no agent, and there may be none again.
    SessionLost(String),
    TargetGone,
    TargetBack,
    /// About a program of the session.
    Program(Notice),
    /// About the target's traffic.
    Incoming(IncomingEvent),
    /// So many connections through the target are open, and no more can be made.
    TooManyConnections(usize),
    /// A file of the target could not be what the program wanted it to be.
    File(PathBuf, FileProblem),
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum FileProblem {
    /// Without FUSE, a file with content cannot be changed.
    NotEmpty,
    /// Without FUSE, files come whole into memory, and this one is too large for that.
    TooLarge,
    /// A pipe, socket or device.
    Special,
    /// It is opened for reading and writing, and so this machine's is used; the target has one too.
    OtherContent,
    /// What the program wrote is lost.
    NotWritten(Errno),
}

impl Event {
    /// For a session that begins with these agents.
    pub(crate) fn covers<'agents>(agents: impl IntoIterator<Item = &'agents AgentId>) -> Self {
        let (mut pods, mut clusters) = (0, BTreeMap::new());
        for agent in agents {
            pods += 1;
            if let Some(cluster) = &agent.cluster {
                *clusters.entry(cluster.clone()).or_default() += 1;
            }
        }
        Self::Covers { pods, clusters }
    }

    /// Whether it is only good to know.
    #[must_use]
    pub fn is_reassuring(&self) -> bool {
        match self {
            Self::Joined(_) | Self::Left { .. } | Self::Covers { .. } | Self::ClusterBack(_) => {
                true
            }
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
                "the connection to the agent is lost and is being made again; what needs the target waits ({reason})"
            ),
            Self::ConnectionBack => {
                formatter.write_str("the connection to the agent is back; nothing was lost")
            }
            Self::AgentLost { agent, reason } => write!(
                formatter,
                "{agent} is gone ({reason}): what it was doing fails; looking for another one"
            ),
            Self::SessionRestored(agent) => {
                formatter.write_str("the session goes on with another agent")?;
                if *agent != AgentId::default() {
                    write!(formatter, ", in {}", agent.place())?;
                }
                formatter.write_str(
                    "; connections and files that were open through the target were reset",
                )
            }
            Self::Joined(agent) => write!(formatter, "{} has joined the session", agent.place()),
            Self::Left { agent, reason } => {
                write!(
                    formatter,
                    "{} has left the session ({reason})",
                    agent.place()
                )
            }
            Self::NotJoined { agent, reason } => write!(
                formatter,
                "{} cannot join the session, so that its traffic does not come: {reason}",
                agent.place()
            ),
            Self::Covers { pods, clusters } => write_covers(formatter, *pods, clusters),
            Self::ClusterAway {
                cluster,
                is_default: true,
                reason,
            } => write!(
                formatter,
                "cluster {cluster} cannot be reached ({reason}): what needs the target waits"
            ),
            Self::ClusterAway {
                cluster, reason, ..
            } => write!(
                formatter,
                "cluster {cluster} cannot be reached ({reason}): its traffic does not come, and the session goes on without it"
            ),
            Self::ClusterBack(cluster) => write!(formatter, "cluster {cluster} is there again"),
            Self::NobodyThere(seconds) => write!(
                formatter,
                "the target has no pod now: what needs it waits, for up to {seconds} s"
            ),
            Self::RulesChanged(agent) => write!(
                formatter,
                "the rules of the cluster's administrators for {} have changed: what they forbid now has ended",
                agent.place()
            ),
            Self::SessionOver(reason) => write!(
                formatter,
                "the session is over ({reason}): the program goes on, and what needs the target fails"
            ),
            Self::SessionLost(reason) => write!(
                formatter,
                "there is no agent ({reason}): the program goes on, and what needs the target fails"
            ),
            Self::TargetGone => formatter.write_str(
                "the target has ended: the program goes on, and what needs the target fails",
            ),
            Self::TargetBack => formatter.write_str("the target is back"),
            Self::Program(notice) => write_notice(formatter, notice),
            Self::Incoming(event) => event.fmt(formatter),
            Self::TooManyConnections(most) => write!(
                formatter,
                "{most} connections through the target are open, and no more can be made at the same time: the next \
                 ones fail as if there were no free ports"
            ),
            Self::File(path, problem) => write!(formatter, "{} {problem}", path.display()),
        }
    }
}

fn write_covers(
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
                "is too large: without FUSE, files come whole into memory; `standin diagnose` says what FUSE needs",
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
            name_of(*process)
        ),
        Notice::Unreadable { process, errno } => write!(
            formatter,
            "the memory of {} cannot be read ({errno}): everything that it does is local",
            name_of(*process)
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
        Notice::SocketHere { path } => write!(
            formatter,
            "the socket {} is made on this machine: nobody at the target reaches it",
            path.display()
        ),
        Notice::ProgramNotHere { path } => write!(
            formatter,
            "{} is a program of the target: programs are started from this machine, which does not have it",
            path.display()
        ),
        Notice::PortMoved { asked, used, .. } => write!(
            formatter,
            "{asked} cannot be had on this machine: the program sees it as its own, and is reached from here at {used}"
        ),
        other => write!(formatter, "{other:?}"),
    }
}

/// The program of a process, by which a user knows it.
fn name_of(process: i32) -> String {
    match fs::read_to_string(format!("/proc/{process}/comm")) {
        Ok(name) => format!("`{}`", name.trim_end()),
        Err(_) => format!("process {process}"),
    }
}

/// An error with everything behind it, in one line.
pub(crate) fn chain(error: &dyn Error) -> String {
    let mut text = error.to_string();
    let mut source = error.source();
    while let Some(error) = source {
        text = format!("{text}: {error}");
        source = error.source();
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_session_says_how_many_pods_are_where() {
        let pod = |name: &str, cluster: &str| AgentId::in_pod(name).of_cluster(cluster);
        let agents = [pod("a", "west"), pod("a", "east"), pod("b", "east")];
        assert_eq!(
            Event::covers(&agents).to_string(),
            "the session is with 3 pods: 2 in cluster east, 1 in cluster west"
        );
        let agents = [AgentId::in_pod("a"), AgentId::in_pod("b")];
        assert_eq!(
            Event::covers(&agents).to_string(),
            "the session is with 2 pods"
        );
    }
}
