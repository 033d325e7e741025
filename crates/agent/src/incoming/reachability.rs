//! Whether a client is connected at the moment.

use splitter::Unreachable;
use tokio::sync::watch;
use tokio::time::Instant;

/// Whether a client is connected.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ClientReachability {
    Connected,
    /// The connection is lost. The client can reconnect until this time; after it, its session ends.
    DisconnectedUntil(Instant),
}

/// Watches whether a client is connected. A client that is disconnected may reconnect, and keeps its claims until then.
#[derive(Debug, Clone)]
pub struct ReachabilityWatch(watch::Receiver<ClientReachability>);

impl ReachabilityWatch {
    #[must_use]
    pub fn new(reachability: watch::Receiver<ClientReachability>) -> Self {
        Self(reachability)
    }

    /// For a client that cannot reconnect: it is reachable as long as its connection exists.
    #[must_use]
    pub fn always() -> Self {
        Self(watch::channel(ClientReachability::Connected).1)
    }

    pub(super) fn is_reachable(&self) -> bool {
        *self.0.borrow() == ClientReachability::Connected
    }

    pub(super) fn unreachable(&self) -> Option<Unreachable> {
        match *self.0.borrow() {
            ClientReachability::Connected => None,
            ClientReachability::DisconnectedUntil(until) => Some(Unreachable {
                expires_in: until.saturating_duration_since(Instant::now()),
            }),
        }
    }

    /// Waits until the state has changed since the last call.
    pub(super) async fn changed(&mut self) {
        if self.0.changed().await.is_err() {
            std::future::pending::<()>().await;
        }
    }

    /// Waits until the client is disconnected.
    pub(super) async fn disconnected(mut self) {
        let is_disconnected =
            |reachability: &ClientReachability| *reachability != ClientReachability::Connected;
        if self.0.wait_for(is_disconnected).await.is_err() {
            std::future::pending::<()>().await;
        }
    }

    /// Waits until the client is connected. Never returns if its session has ended.
    pub(super) async fn connected(mut self) {
        let is_connected =
            |reachability: &ClientReachability| *reachability == ClientReachability::Connected;
        if self.0.wait_for(is_connected).await.is_err() {
            std::future::pending::<()>().await;
        }
    }
}
