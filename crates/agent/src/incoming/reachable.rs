//! Whether a client can be reached at the moment.

use tokio::sync::watch;

/// Knows whether a client can be reached at the moment. One that cannot may be back soon, and keeps what it has.
#[derive(Debug, Clone)]
pub struct Reachable(watch::Receiver<bool>);

impl Reachable {
    #[must_use]
    pub fn new(is_reachable: watch::Receiver<bool>) -> Self {
        Self(is_reachable)
    }

    /// That of a client whose connection ends when it is gone.
    #[must_use]
    pub fn always() -> Self {
        Self(watch::channel(true).1)
    }

    pub(super) fn is_so(&self) -> bool {
        *self.0.borrow()
    }

    /// Waits until the client cannot be reached.
    pub(super) async fn lost(mut self) {
        if self.0.wait_for(|is_reachable| !is_reachable).await.is_err() {
            std::future::pending::<()>().await;
        }
    }

    /// Waits until the client can be reached. One that is gone for good never is.
    pub(super) async fn found(mut self) {
        if self.0.wait_for(|is_reachable| *is_reachable).await.is_err() {
            std::future::pending::<()>().await;
        }
    }
}
