//! Which agents a session has. Whoever starts the session knows.

use std::fmt;
use std::future::Future;

pub use router::Preference;

use super::Reach;

/// The agents of a session, as they come and go: one beside a process, one in each pod of a workload, those that an
/// operator relays to. The proxy reaches each of them, keeps one link to it, and merges what they say.
pub trait Source: Send + 'static {
    /// How one of the agents is reached, and reached again.
    type Reach: Reach;

    /// What has changed since the last call, at least one thing. The first call returns whatever is there, the best
    /// first; the session begins with these. Later ones wait until something changes, for ever if nothing does. A call
    /// that is given up before its end must lose nothing.
    fn changes(&mut self) -> impl Future<Output = Vec<Change<Self::Reach>>> + Send;

    /// Whether agents beside the first are reached only when the program listens, and so wants their traffic. Where agents
    /// leave something behind, as in pods, a program that never listens should not have any that it does not need.
    fn is_on_demand(&self) -> bool {
        false
    }
}

/// What happens to the agents of a session.
#[derive(Debug)]
pub enum Change<R> {
    /// There is an agent, or one can be started. What had the same id before is gone: a pod whose container was restarted
    /// comes again.
    Came(Place<R>),
    /// Nobody has to look for this agent any more, and why.
    Went(AgentId, String),
    /// What the administrators allow beside this agent has changed.
    RulesChanged(AgentId),
    /// Somebody who may has ended the session, and why. It is the last change.
    Over(String),
}

/// Where an agent is, or can be started.
#[derive(Debug)]
pub struct Place<R> {
    pub id: AgentId,
    /// Whether it may be asked for files, names and connections, which is one agent's work. All agents have traffic.
    pub preference: Preference,
    pub reach: R,
}

/// Tells the agents of a session apart, and names them to the user.
#[derive(Debug, Clone, Default, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct AgentId {
    /// With several clusters, the cluster's name.
    pub cluster: Option<String>,
    /// In a cluster, the name of the target's pod.
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

    /// Where its target is: `pod checkout-1`.
    #[must_use]
    pub fn place(&self) -> String {
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
        write!(formatter, "the agent in {}", self.place())
    }
}

/// A source with one agent, for targets that are one thing: a process, a container, an agent that was named.
#[derive(Debug)]
pub struct One<R>(Option<R>);

impl<R> One<R> {
    pub fn new(reach: R) -> Self {
        Self(Some(reach))
    }
}

impl<R: Reach> Source for One<R> {
    type Reach = R;

    async fn changes(&mut self) -> Vec<Change<R>> {
        match self.0.take() {
            Some(reach) => vec![Change::Came(Place {
                id: AgentId::default(),
                preference: Preference::Preferred,
                reach,
            })],
            None => std::future::pending().await,
        }
    }
}
