//! Settings of links. The defaults are meant for a session between a laptop and a cluster.

use std::time::Duration;

use backoff::Backoff;

use crate::handshake::Token;
use crate::machine::Limits;

/// How long to try to deliver the last frames of a link before it is dropped silently.
const CLOSE_TIMEOUT: Duration = Duration::from_secs(5);

/// Settings of a client's link.
#[derive(Debug, Clone, Default)]
pub struct Settings {
    /// Sent to the server with every connection.
    pub token: Token,
    pub buffers: Buffers,
    pub keep_alive: KeepAlive,
    pub redial: Redial,
}

/// Settings of a server's links.
#[derive(Debug, Clone)]
pub struct ServerSettings {
    pub buffers: Buffers,
    pub keep_alive: KeepAlive,
    /// The maximum resume window, whatever the client requests.
    pub max_resume_window: Duration,
    /// How long the handshake of a pipe may take.
    pub handshake_timeout: Duration,
    /// Maximum number of links, with and without a connection.
    pub max_links: usize,
}

/// Memory limits of a link, per direction. Memory is allocated on demand.
///
/// A link carries at most one window per round trip: 4 MiB allow 100 MiB/s over 40 ms.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Buffers {
    /// Bytes that this end keeps until they are acknowledged. When the buffer is full, writes wait.
    pub replay_capacity: u32,
    /// Bytes that the peer may send before this end's user reads them.
    pub receive_window: u32,
    /// Bytes that wait to be sent. When there are so many, writes wait, so that the user of the link decides late what is
    /// sent next: what waits here delays everything that is written after it. Bytes in flight do not count.
    pub max_unsent: u32,
    /// Acknowledge at least after so many received bytes. The peer keeps what is not acknowledged.
    pub max_ack_step: u32,
}

/// How a dead peer is detected.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct KeepAlive {
    /// Send a ping when nothing has been received for this long.
    pub interval: Duration,
    /// Treat the connection as lost when nothing has been received for this long.
    pub timeout: Duration,
}

/// How a client connects and reconnects.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Redial {
    /// The requested resume window: how long the link may be disconnected. The server may allow less.
    pub resume_window: Duration,
    /// How long to retry the first connection. Zero means a single attempt.
    pub first_connection_timeout: Duration,
    /// How long one attempt may take, including the handshake.
    pub attempt_timeout: Duration,
    /// The delay before the second attempt; the first is made immediately. Each further delay doubles.
    pub min_backoff: Duration,
    pub max_backoff: Duration,
}

impl Default for ServerSettings {
    fn default() -> Self {
        Self {
            buffers: Buffers::default(),
            keep_alive: KeepAlive::default(),
            max_resume_window: Duration::from_secs(600),
            handshake_timeout: Duration::from_secs(10),
            max_links: 1024,
        }
    }
}

impl Default for Buffers {
    fn default() -> Self {
        Self {
            replay_capacity: 4 * 1024 * 1024,
            receive_window: 4 * 1024 * 1024,
            max_unsent: u32::MAX,
            max_ack_step: u32::MAX,
        }
    }
}

impl Default for KeepAlive {
    fn default() -> Self {
        Self {
            interval: Duration::from_secs(5),
            timeout: Duration::from_secs(15),
        }
    }
}

impl Default for Redial {
    fn default() -> Self {
        Self {
            resume_window: Duration::from_secs(600),
            first_connection_timeout: Duration::ZERO,
            attempt_timeout: Duration::from_secs(10),
            min_backoff: Duration::from_millis(100),
            max_backoff: Duration::from_secs(5),
        }
    }
}

impl Redial {
    pub(crate) fn backoff(&self) -> Backoff {
        Backoff::new(self.min_backoff, self.max_backoff)
    }
}

/// How many worker threads a runtime should have that mainly carries links. The steps of a link depend on each other, so
/// more threads mostly wake each other. With one thread instead of two on two processors a small exchange took a tenth less
/// time.
pub fn worker_threads() -> usize {
    let processors = std::thread::available_parallelism().map_or(1, usize::from);
    (processors / 2).clamp(1, 2)
}

/// The limits of the state machine. Buffers have at least one byte, because an empty buffer could carry nothing.
pub(crate) fn limits(buffers: Buffers, keep_alive: KeepAlive) -> Limits {
    Limits {
        replay_capacity: buffers.replay_capacity.max(1),
        receive_window: buffers.receive_window.max(1),
        max_unsent: buffers.max_unsent.max(1),
        max_ack_step: buffers.max_ack_step.max(1),
        ping_interval: keep_alive.interval,
        keep_alive_timeout: keep_alive.timeout,
        close_timeout: CLOSE_TIMEOUT,
    }
}
