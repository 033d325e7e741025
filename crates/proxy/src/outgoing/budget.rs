//! How many connections there may be through the target at once, in both directions.
//!
//! Each is a stream for as long as it lives, and the agent bounds how many streams there are. Files and names need some
//! too: without a bound here, they would wait for a connection to close.

use std::sync::Arc;

use tokio::sync::{OwnedSemaphorePermit, Semaphore};

/// What an agent allows that does not say.
const USUAL_STREAMS: u32 = 8192;
/// One part in so many is kept for everything else.
const KEPT: usize = 8;

/// Clones share it.
#[derive(Debug, Clone)]
pub(crate) struct Budget {
    free: Arc<Semaphore>,
    pub(crate) most: usize,
}

impl Budget {
    /// For an agent that allows so many streams; 0 when it does not say.
    pub(crate) fn of(streams: u32) -> Self {
        let streams = if streams == 0 { USUAL_STREAMS } else { streams };
        let streams = usize::try_from(streams).unwrap_or(usize::MAX);
        let most = (streams - streams / KEPT).clamp(1, Semaphore::MAX_PERMITS);
        Self {
            free: Arc::new(Semaphore::new(most)),
            most,
        }
    }

    /// One more connection, until what this returns is dropped. `None` when there are as many as may be.
    pub(crate) fn take(&self) -> Option<OwnedSemaphorePermit> {
        Arc::clone(&self.free).try_acquire_owned().ok()
    }
}

impl Default for Budget {
    fn default() -> Self {
        Self::of(0)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn connections_leave_streams_for_everything_else() {
        let budget = Budget::of(16);
        let mut taken: Vec<_> = (0..14).map(|_| budget.take().unwrap()).collect();
        assert!(budget.clone().take().is_none());
        taken.pop();
        let again = budget.take();
        assert!(again.is_some() && budget.take().is_none());
        assert_eq!(Budget::default().most, 7168);
        assert_eq!(Budget::of(1).most, 1);
    }
}
