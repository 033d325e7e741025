//! How a link behaves. The defaults are meant for a session between a laptop and a cluster.

use std::time::Duration;

use crate::greeting::Token;
use crate::machine::Limits;

/// How long to try to say a last word before giving up quietly.
const FAREWELL: Duration = Duration::from_secs(5);

/// How a client's link behaves.
#[derive(Debug, Clone, Default)]
pub struct Settings {
    /// Shown to the server with every connection.
    pub token: Token,
    pub buffers: Buffers,
    pub keep_alive: KeepAlive,
    pub redial: Redial,
}

/// How a server's links behave.
#[derive(Debug, Clone)]
pub struct ServerSettings {
    pub buffers: Buffers,
    pub keep_alive: KeepAlive,
    /// The longest time that a client may take to come back, whatever it asks for.
    pub longest_resume_window: Duration,
    /// How long a pipe may take to greet.
    pub greeting_timeout: Duration,
    /// As many links there may be at once, with and without a connection.
    pub most_links: usize,
}

/// How much memory a link may use in each direction. Nothing is allocated before it is needed.
///
/// A link carries at most one window per round trip: 4 MiB give 100 MiB/s over 40 ms.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Buffers {
    /// Bytes that this end keeps until they are acknowledged. When there are as many, writing waits.
    pub replay_capacity: u32,
    /// Bytes that the peer may send ahead of this end's user.
    pub receive_window: u32,
}

/// How a peer that is gone without a word is noticed.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct KeepAlive {
    /// Ask whether the peer is there when nothing has come for so long.
    pub every: Duration,
    /// Take the connection as lost when nothing has come for so long.
    pub dead_after: Duration,
}

/// How a client makes connections.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Redial {
    /// How long the client would like to be able to come back. The server may allow less.
    pub resume_window: Duration,
    /// How long to try to make the first connection. Zero means: once.
    pub first_connection: Duration,
    /// How long one attempt may take, including the greeting.
    pub attempt_timeout: Duration,
    /// The pause before the second attempt; the first is made at once. Each further pause is twice as long.
    pub shortest_pause: Duration,
    pub longest_pause: Duration,
}

impl Default for ServerSettings {
    fn default() -> Self {
        Self {
            buffers: Buffers::default(),
            keep_alive: KeepAlive::default(),
            longest_resume_window: Duration::from_secs(600),
            greeting_timeout: Duration::from_secs(10),
            most_links: 1024,
        }
    }
}

impl Default for Buffers {
    fn default() -> Self {
        Self {
            replay_capacity: 4 * 1024 * 1024,
            receive_window: 4 * 1024 * 1024,
        }
    }
}

impl Default for KeepAlive {
    fn default() -> Self {
        Self {
            every: Duration::from_secs(5),
            dead_after: Duration::from_secs(15),
        }
    }
}

impl Default for Redial {
    fn default() -> Self {
        Self {
            resume_window: Duration::from_secs(600),
            first_connection: Duration::ZERO,
            attempt_timeout: Duration::from_secs(10),
            shortest_pause: Duration::from_millis(100),
            longest_pause: Duration::from_secs(5),
        }
    }
}

impl Redial {
    /// The pause after as many failures in a row. `chance` is between 0 and 1: clients that lost the same relay must not
    /// all come back at the same moment.
    pub(crate) fn pause(&self, failures: u32, chance: f64) -> Duration {
        let Some(doublings) = failures.checked_sub(1) else {
            return Duration::ZERO;
        };
        let factor = 2_u32.saturating_pow(doublings);
        let pause = self.shortest_pause.saturating_mul(factor);
        pause.min(self.longest_pause).mul_f64(0.5 + chance / 2.0)
    }
}

/// How many threads a runtime should have whose work is to carry links. A link is a line: what one thread does, another
/// waits for, so more threads only wake each other. With one instead of two on two processors a small exchange took a
/// tenth less time.
pub fn worker_threads() -> usize {
    let processors = std::thread::available_parallelism().map_or(1, usize::from);
    (processors / 2).clamp(1, 2)
}

/// Both kinds of settings as the machine's limits. A buffer of no bytes would carry nothing.
pub(crate) fn limits(buffers: Buffers, keep_alive: KeepAlive) -> Limits {
    Limits {
        replay_capacity: buffers.replay_capacity.max(1),
        receive_window: buffers.receive_window.max(1),
        ping_every: keep_alive.every,
        dead_after: keep_alive.dead_after,
        farewell: FAREWELL,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pauses_double_up_to_the_longest_and_are_shortened_by_chance() {
        let redial = Redial::default();
        let pauses = |chance| -> Vec<u128> {
            let pause = |failures| redial.pause(failures, chance).as_millis();
            [0, 1, 2, 3, 6, 7, 1000].map(pause).to_vec()
        };
        assert_eq!(pauses(1.0), [0, 100, 200, 400, 3200, 5000, 5000]);
        assert_eq!(pauses(0.0), [0, 50, 100, 200, 1600, 2500, 2500]);
    }
}
