//! Where the agent of a session is. Whoever starts the session knows.

use std::error::Error;
use std::fmt;
use std::future::Future;
use std::pin::Pin;
use std::sync::Arc;

use link::Link;

/// Makes connections to an agent beside the target. Asked again when the agent, or the target, has gone.
pub trait Reach: Send + Sync + 'static {
    /// Makes a link to the agent, which may mean to start one.
    fn reach(&self) -> impl Future<Output = Result<Reached, Box<dyn Error + Send + Sync>>> + Send;

    /// Ends when a target that had gone has come back, as a container does that is restarted. For most there is no such
    /// time.
    fn successor(&self) -> impl Future<Output = ()> + Send {
        std::future::pending()
    }

    /// Ends when it is worth to try [`reach`](Reach::reach) again after it has failed.
    fn another_try(&self) -> impl Future<Output = ()> + Send {
        std::future::pending()
    }
}

impl<R: Reach> Reach for Arc<R> {
    fn reach(&self) -> impl Future<Output = Result<Reached, Box<dyn Error + Send + Sync>>> + Send {
        R::reach(self)
    }

    fn successor(&self) -> impl Future<Output = ()> + Send {
        R::successor(self)
    }

    fn another_try(&self) -> impl Future<Output = ()> + Send {
        R::another_try(self)
    }
}

/// A connection to an agent that has not been greeted yet.
pub struct Reached {
    pub link: Link,
    /// What the agent wants to be shown.
    pub token: String,
    /// Ends, with the reason, when the agent is known to have ended. A link alone would hope for its return.
    pub ended: Pin<Box<dyn Future<Output = String> + Send>>,
}

impl fmt::Debug for Reached {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        // Not the token.
        let mut debug = formatter.debug_struct("Reached");
        debug.field("link", &self.link).finish_non_exhaustive()
    }
}
