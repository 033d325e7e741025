//! All agents of a session that are there.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use link::http2::Client;
use protocol::rpc::HelloResponse;
use router::Router;
use tokio::sync::watch;

use super::{AgentId, Connection, Preference};
use crate::outgoing::Budget;

/// An agent that is there, until it is lost: then there is another one, even if in the same place.
#[derive(Debug, Clone)]
pub(crate) struct Member {
    number: u64,
    pub(crate) client: Client,
    /// How many connections there may be through it.
    pub(crate) connections: Budget,
}

impl Member {
    pub(crate) fn new(client: Client, hello: &HelloResponse) -> Self {
        static NUMBERS: AtomicU64 = AtomicU64::new(0);
        Self {
            number: NUMBERS.fetch_add(1, Ordering::Relaxed),
            client,
            connections: Budget::of(hello.limits.map_or(0, |limits| limits.streams)),
        }
    }
}

impl PartialEq for Member {
    fn eq(&self, other: &Self) -> bool {
        self.number == other.number
    }
}

/// Clones are the same.
#[derive(Debug, Clone)]
pub(crate) struct Agents {
    pub(crate) router: Router<AgentId, Member>,
    /// The one that is asked alone.
    pub(crate) connection: Connection,
    /// From the keeper to whoever wants to begin with all agents: those of the beginning are there, or cannot be.
    settled: Arc<watch::Sender<bool>>,
}

impl Agents {
    /// One agent that never changes.
    pub(crate) fn only(member: Member) -> Self {
        let agents = Self::default();
        agents.connection.replace(member.clone());
        let router = &agents.router;
        router.join(AgentId::default(), member, Preference::Preferred);
        agents.settle();
        agents
    }

    pub(super) fn settle(&self) {
        self.settled.send_replace(true);
    }

    pub(super) fn is_settled(&self) -> bool {
        *self.settled.borrow()
    }

    pub(crate) async fn settled(&self) {
        let mut settled = self.settled.subscribe();
        // We hold a sender, so somebody is always there.
        let _ = settled.wait_for(|settled| *settled).await;
    }
}

impl Default for Agents {
    /// Nobody yet.
    fn default() -> Self {
        Self {
            router: Router::new(),
            connection: Connection::default(),
            settled: Arc::new(watch::Sender::new(false)),
        }
    }
}
