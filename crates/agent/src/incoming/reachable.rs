//! Whether a client can be reached at the moment.

use splitter::Away;
use tokio::sync::watch;
use tokio::time::Instant;

/// Where a client is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Presence {
    Here,
    /// Its connection is lost. It may be back until then, and is gone for good after it.
    AwayUntil(Instant),
}

/// Knows whether a client can be reached at the moment. One that cannot may be back soon, and keeps what it has.
#[derive(Debug, Clone)]
pub struct Reachable(watch::Receiver<Presence>);

impl Reachable {
    #[must_use]
    pub fn new(presence: watch::Receiver<Presence>) -> Self {
        Self(presence)
    }

    /// That of a client whose connection ends when it is gone.
    #[must_use]
    pub fn always() -> Self {
        Self(watch::channel(Presence::Here).1)
    }

    pub(super) fn is_so(&self) -> bool {
        *self.0.borrow() == Presence::Here
    }

    pub(super) fn away(&self) -> Option<Away> {
        match *self.0.borrow() {
            Presence::Here => None,
            Presence::AwayUntil(until) => Some(Away {
                keeps_for: until.saturating_duration_since(Instant::now()),
            }),
        }
    }

    /// Waits until something has changed since this was last called.
    pub(super) async fn changed(&mut self) {
        if self.0.changed().await.is_err() {
            std::future::pending::<()>().await;
        }
    }

    /// Waits until the client cannot be reached.
    pub(super) async fn lost(mut self) {
        let is_away = |presence: &Presence| *presence != Presence::Here;
        if self.0.wait_for(is_away).await.is_err() {
            std::future::pending::<()>().await;
        }
    }

    /// Waits until the client can be reached. One that is gone for good never is.
    pub(super) async fn found(mut self) {
        let is_here = |presence: &Presence| *presence == Presence::Here;
        if self.0.wait_for(is_here).await.is_err() {
            std::future::pending::<()>().await;
        }
    }
}
