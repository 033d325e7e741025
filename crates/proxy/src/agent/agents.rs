//! The connected agents of a session.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use link::http2::Client;
use protocol::rpc::HelloResponse;
use router::Router;
use tokio::sync::watch;

use super::{AgentId, Preference, StatefulAgent};
use crate::outgoing::ConnectionLimit;

/// A connected agent. After a reconnect there is a new one, even with the same id.
#[derive(Debug, Clone)]
pub(crate) struct AgentConnection {
    number: u64,
    pub(crate) client: Client,
    /// How many connections may be open through the agent.
    pub(crate) connections: ConnectionLimit,
}

impl AgentConnection {
    pub(crate) fn new(client: Client, hello: &HelloResponse) -> Self {
        static NEXT_NUMBER: AtomicU64 = AtomicU64::new(0);
        Self {
            number: NEXT_NUMBER.fetch_add(1, Ordering::Relaxed),
            client,
            connections: ConnectionLimit::for_streams(
                hello.limits.map_or(0, |limits| limits.streams),
            ),
        }
    }
}

impl PartialEq for AgentConnection {
    fn eq(&self, other: &Self) -> bool {
        self.number == other.number
    }
}

/// The agents of a session. Clones share the same state.
#[derive(Debug, Clone)]
pub(crate) struct Agents {
    pub(crate) router: Router<AgentId, AgentConnection>,
    /// The client of the current stateful agent.
    pub(crate) stateful: StatefulAgent,
    /// Set by the parts that subscribe to traffic, read by the supervisor: all agents are needed.
    all_needed: Arc<watch::Sender<bool>>,
    /// Set by the supervisor when each initial agent has connected or failed.
    initial_done: Arc<watch::Sender<bool>>,
}

impl Agents {
    /// One agent that never changes.
    pub(crate) fn only(agent: AgentConnection) -> Self {
        let agents = Self::default();
        agents.stateful.replace(agent.clone());
        let router = &agents.router;
        router.join(AgentId::default(), agent, Preference::Preferred);
        agents.set_initial_done();
        agents
    }

    /// Completes when all agents are needed.
    pub(super) async fn all_needed(&self) {
        let mut all_needed = self.all_needed.subscribe();
        // This object holds a sender, so the channel is never closed.
        let _ = all_needed.wait_for(|all_needed| *all_needed).await;
    }

    pub(super) fn set_initial_done(&self) {
        self.initial_done.send_replace(true);
    }

    pub(super) fn is_initial_done(&self) -> bool {
        *self.initial_done.borrow()
    }

    /// Requests connections to all agents and waits until each agent that is known when they are requested first has
    /// connected or failed.
    pub(crate) async fn connect_all(&self) {
        self.all_needed.send_replace(true);
        let mut initial_done = self.initial_done.subscribe();
        // This object holds a sender, so the channel is never closed.
        let _ = initial_done.wait_for(|done| *done).await;
    }
}

impl Default for Agents {
    /// No agents yet.
    fn default() -> Self {
        Self {
            router: Router::new(),
            stateful: StatefulAgent::default(),
            all_needed: Arc::new(watch::Sender::new(false)),
            initial_done: Arc::new(watch::Sender::new(false)),
        }
    }
}
