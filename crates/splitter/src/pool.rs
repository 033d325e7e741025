//! Connections to the original application that wait for their next client.
//!
//! A client has its own connection to the application for as long as it stays, as it would without us. Only when it has
//! gone, and every answer has come, the next client gets that connection, so that short clients do not use up the ports
//! of the machine. Connections that somebody has logged in are never handed on.

use std::collections::VecDeque;
use std::fmt;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};
use std::time::Duration;

use tokio::time::Instant;

use crate::stream::{BoxStream, is_open_and_silent};

/// The application may close a connection in the very moment in which it is used again. A request that must not be sent
/// twice then is lost, so it only gets a connection that nobody closes yet.
const CERTAINLY_OPEN: Duration = Duration::from_millis(500);

/// Connections that wait, the oldest first.
#[derive(Default)]
pub(crate) struct Pool {
    idle: Mutex<Idle>,
}

#[derive(Default)]
struct Idle {
    streams: VecDeque<(Instant, BoxStream)>,
    is_swept: bool,
}

impl Pool {
    /// Takes a connection that is open. The oldest comes first: an application that serves one connection after the other
    /// waits on that one.
    pub(crate) fn take(&self, may_be_sent_again: bool, keep: Duration) -> Option<BoxStream> {
        let mut idle = self.lock();
        let now = Instant::now();
        let longest = if may_be_sent_again {
            keep
        } else {
            keep.min(CERTAINLY_OPEN)
        };
        let mut at = 0;
        while at < idle.streams.len() {
            let (since, stream) = &mut idle.streams[at];
            let age = now.saturating_duration_since(*since);
            let is_usable = is_open_and_silent(stream);
            if is_usable && age < longest {
                return idle.streams.remove(at).map(|(_, stream)| stream);
            }
            if is_usable && age < keep {
                at += 1;
            } else {
                idle.streams.remove(at);
            }
        }
        None
    }

    /// Keeps a connection for a while.
    pub(crate) fn put(self: &Arc<Self>, stream: BoxStream, keep: Duration, limit: usize) {
        let mut idle = self.lock();
        if idle.streams.len() >= limit {
            idle.streams.pop_front();
        }
        idle.streams.push_back((Instant::now(), stream));
        if !idle.is_swept {
            idle.is_swept = true;
            tokio::spawn(sweep(Arc::downgrade(self), keep));
        }
    }

    fn lock(&self) -> MutexGuard<'_, Idle> {
        self.idle.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Closes what nobody wants, until nothing is left.
async fn sweep(pool: Weak<Pool>, keep: Duration) {
    loop {
        tokio::time::sleep(keep / 4).await;
        let Some(pool) = pool.upgrade() else {
            return;
        };
        let mut idle = pool.lock();
        let now = Instant::now();
        idle.streams.retain_mut(|(since, stream)| {
            now.saturating_duration_since(*since) < keep && is_open_and_silent(stream)
        });
        if idle.streams.is_empty() {
            idle.is_swept = false;
            return;
        }
    }
}

impl fmt::Debug for Pool {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(formatter, "Pool of {}", self.lock().streams.len())
    }
}
