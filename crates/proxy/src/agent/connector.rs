//! How an agent is connected. The program that starts the session implements it.

use std::error::Error;
use std::fmt;
use std::future::Future;
use std::pin::Pin;
use std::sync::Arc;

use link::Link;

/// Connects to an agent at the target. Called again when the agent or the target is gone.
pub trait Connector: Send + Sync + 'static {
    /// Makes a link to the agent, which may involve starting one.
    fn connect(
        &self,
    ) -> impl Future<Output = Result<Connected, Box<dyn Error + Send + Sync>>> + Send;

    /// Completes when a target that had exited runs again, as with a container that is restarted. By default it never
    /// completes.
    fn target_restarted(&self) -> impl Future<Output = ()> + Send {
        std::future::pending()
    }

    /// Completes when [`connect`](Connector::connect) should be retried after it has failed.
    fn retry_ready(&self) -> impl Future<Output = ()> + Send {
        std::future::pending()
    }
}

impl<R: Connector> Connector for Arc<R> {
    fn connect(
        &self,
    ) -> impl Future<Output = Result<Connected, Box<dyn Error + Send + Sync>>> + Send {
        R::connect(self)
    }

    fn target_restarted(&self) -> impl Future<Output = ()> + Send {
        R::target_restarted(self)
    }

    fn retry_ready(&self) -> impl Future<Output = ()> + Send {
        R::retry_ready(self)
    }
}

/// A connection to an agent before the handshake.
pub struct Connected {
    pub link: Link,
    /// The token that the agent requires.
    pub token: String,
    /// Completes with the reason when the agent is known to have ended. The link alone would keep trying to reconnect.
    pub ended: Pin<Box<dyn Future<Output = String> + Send>>,
}

impl fmt::Debug for Connected {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        // Without the token, which is a secret.
        let mut debug = formatter.debug_struct("Connected");
        debug.field("link", &self.link).finish_non_exhaustive()
    }
}
