//! The pool of idle connections to the original application.
//!
//! A client has its own connection to the application for as long as it is connected, as without the proxy. When it has
//! disconnected and all responses are complete, the next client may reuse that connection, so that short-lived clients do
//! not exhaust the ports of the machine. Connections with connection-based authentication are never reused.

use std::collections::VecDeque;
use std::fmt;
use std::sync::{Arc, Weak};
use std::time::Duration;

use parking_lot::Mutex;
use tokio::time::Instant;

use crate::stream::{BoxStream, is_idle_and_open};

/// The application may close an idle connection at the moment when it is reused. A request that must not be sent twice
/// would then be lost, so it only gets a connection that has been idle for a shorter time than any server's timeout.
const NON_IDEMPOTENT_MAX_IDLE: Duration = Duration::from_millis(500);

/// Idle connections, the oldest first.
#[derive(Default)]
pub(crate) struct Pool {
    idle: Mutex<Idle>,
}

#[derive(Default)]
struct Idle {
    streams: VecDeque<(Instant, BoxStream)>,
    has_sweeper: bool,
}

impl Pool {
    /// Takes the oldest connection that is open: an application that serves its connections one after the other waits for
    /// that one.
    pub(crate) fn take(&self, is_idempotent: bool, idle_timeout: Duration) -> Option<BoxStream> {
        let mut idle = self.idle.lock();
        let now = Instant::now();
        let max_age = if is_idempotent {
            idle_timeout
        } else {
            idle_timeout.min(NON_IDEMPOTENT_MAX_IDLE)
        };
        let mut at = 0;
        while at < idle.streams.len() {
            let (since, stream) = &mut idle.streams[at];
            let age = now.saturating_duration_since(*since);
            let is_usable = is_idle_and_open(stream);
            if is_usable && age < max_age {
                return idle.streams.remove(at).map(|(_, stream)| stream);
            }
            if is_usable && age < idle_timeout {
                at += 1;
            } else {
                idle.streams.remove(at);
            }
        }
        None
    }

    /// Adds an idle connection.
    pub(crate) fn put(self: &Arc<Self>, stream: BoxStream, idle_timeout: Duration, limit: usize) {
        let mut idle = self.idle.lock();
        if idle.streams.len() >= limit {
            idle.streams.pop_front();
        }
        idle.streams.push_back((Instant::now(), stream));
        if !idle.has_sweeper {
            idle.has_sweeper = true;
            tokio::spawn(sweep(Arc::downgrade(self), idle_timeout));
        }
    }
}

/// Closes expired connections until the pool is empty.
async fn sweep(pool: Weak<Pool>, idle_timeout: Duration) {
    loop {
        tokio::time::sleep(idle_timeout / 4).await;
        let Some(pool) = pool.upgrade() else {
            return;
        };
        let mut idle = pool.idle.lock();
        let now = Instant::now();
        idle.streams.retain_mut(|(since, stream)| {
            now.saturating_duration_since(*since) < idle_timeout && is_idle_and_open(stream)
        });
        if idle.streams.is_empty() {
            idle.has_sweeper = false;
            return;
        }
    }
}

impl fmt::Debug for Pool {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(formatter, "Pool of {}", self.idle.lock().streams.len())
    }
}
