//! Limits the number of concurrent connections through the agent, in both directions.
//!
//! Each connection is one HTTP/2 stream, and the agent limits the number of streams. Requests about files and DNS need
//! streams too: without a limit here, they would have to wait for a connection to close.

use std::sync::Arc;

use tokio::sync::{OwnedSemaphorePermit, Semaphore};

/// The stream limit of an agent that does not announce one.
const DEFAULT_STREAMS: u32 = 8192;
/// One of so many streams is reserved for requests that are not connections.
const RESERVED_DIVISOR: usize = 8;

/// Clones share the limit.
#[derive(Debug, Clone)]
pub(crate) struct ConnectionLimit {
    free: Arc<Semaphore>,
    pub(crate) max: usize,
}

impl ConnectionLimit {
    /// For an agent that allows `streams` streams; 0 if it does not announce a limit.
    pub(crate) fn for_streams(streams: u32) -> Self {
        let streams = if streams == 0 {
            DEFAULT_STREAMS
        } else {
            streams
        };
        let streams = usize::try_from(streams).unwrap_or(usize::MAX);
        let max = (streams - streams / RESERVED_DIVISOR).clamp(1, Semaphore::MAX_PERMITS);
        Self {
            free: Arc::new(Semaphore::new(max)),
            max,
        }
    }

    /// Counts one more connection until the permit is dropped. `None` if the limit is reached.
    pub(crate) fn try_acquire(&self) -> Option<OwnedSemaphorePermit> {
        Arc::clone(&self.free).try_acquire_owned().ok()
    }
}

impl Default for ConnectionLimit {
    fn default() -> Self {
        Self::for_streams(0)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn connections_leave_streams_for_other_requests() {
        let limit = ConnectionLimit::for_streams(16);
        let mut permits: Vec<_> = (0..14).map(|_| limit.try_acquire().unwrap()).collect();
        assert!(limit.clone().try_acquire().is_none());
        permits.pop();
        let again = limit.try_acquire();
        assert!(again.is_some() && limit.try_acquire().is_none());
        assert_eq!(ConnectionLimit::default().max, 7168);
        assert_eq!(ConnectionLimit::for_streams(1).max, 1);
    }
}
