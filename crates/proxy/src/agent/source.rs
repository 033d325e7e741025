//! Which agents a session has. The program that starts the session implements it.

use std::fmt;
use std::future::Future;

pub use router::Preference;

use super::Connector;

/// The agents of a session, as they appear and disappear: one at a process, one in each pod of a workload, or those that an
/// operator relays to. The proxy keeps one link to each of them and merges their responses.
pub trait AgentSource: Send + 'static {
    /// Connects and reconnects one of the agents.
    type Connector: Connector;

    /// Returns the changes since the last call, at least one. The first call returns the current agents, the best one
    /// first; the session begins with these. Later calls wait until something changes, forever if nothing does. The
    /// future must be cancel-safe.
    fn changes(&mut self) -> impl Future<Output = Vec<AgentChange<Self::Connector>>> + Send;

    /// Whether agents other than the first are connected only when the program listens and needs their traffic. Where agents
    /// leave something behind, as ephemeral containers in pods do, a program that never listens should not start agents
    /// that it does not need.
    fn is_on_demand(&self) -> bool {
        false
    }
}

/// A change of the agents of a session.
#[derive(Debug)]
pub enum AgentChange<R> {
    /// There is an agent, or one can be started. It replaces an earlier agent with the same id: a pod whose container was
    /// restarted is added again.
    Added(AgentEndpoint<R>),
    /// This agent is gone, with the reason.
    Removed(AgentId, String),
    /// What the administrators allow at this agent has changed.
    RulesChanged(AgentId),
    /// An authorized user has ended the session, with the reason. It is the last change.
    SessionEnded(String),
}

/// Where an agent is, or can be started.
#[derive(Debug)]
pub struct AgentEndpoint<R> {
    pub id: AgentId,
    /// Whether it may become the stateful agent, which serves files, DNS and outgoing connections. All agents provide
    /// incoming traffic.
    pub preference: Preference,
    pub connector: R,
}

/// Identifies an agent of a session, also to the user.
#[derive(Debug, Clone, Default, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct AgentId {
    /// The name of the cluster, in a session over several clusters.
    pub cluster: Option<String>,
    /// The name of the target's pod, in a cluster.
    pub pod: Option<String>,
}

impl AgentId {
    #[must_use]
    pub fn in_pod(pod: impl Into<String>) -> Self {
        Self {
            cluster: None,
            pod: Some(pod.into()),
        }
    }

    #[must_use]
    pub fn of_cluster(mut self, cluster: impl Into<String>) -> Self {
        self.cluster = Some(cluster.into());
        self
    }

    /// Where its target runs: `pod checkout-1`.
    #[must_use]
    pub fn location(&self) -> String {
        match (&self.pod, &self.cluster) {
            (Some(pod), Some(cluster)) => format!("pod {pod} of cluster {cluster}"),
            (Some(pod), None) => format!("pod {pod}"),
            (None, Some(cluster)) => format!("cluster {cluster}"),
            (None, None) => "the target".to_owned(),
        }
    }

    fn is_only(&self) -> bool {
        *self == Self::default()
    }
}

impl fmt::Display for AgentId {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        if self.is_only() {
            return formatter.write_str("the agent");
        }
        write!(formatter, "the agent in {}", self.location())
    }
}

/// A source with one agent, for a target that is a single process or container, or an agent with a given address.
#[derive(Debug)]
pub struct SingleAgent<R>(Option<R>);

impl<R> SingleAgent<R> {
    pub fn new(connector: R) -> Self {
        Self(Some(connector))
    }
}

impl<R: Connector> AgentSource for SingleAgent<R> {
    type Connector = R;

    async fn changes(&mut self) -> Vec<AgentChange<R>> {
        match self.0.take() {
            Some(connector) => vec![AgentChange::Added(AgentEndpoint {
                id: AgentId::default(),
                preference: Preference::Preferred,
                connector,
            })],
            None => std::future::pending().await,
        }
    }
}
