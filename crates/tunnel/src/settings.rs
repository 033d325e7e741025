//! Settings of both ends. The defaults are meant for a cluster behind a firewall.

use std::time::Duration;

use link::http2::Windows;
use link::{Buffers, Redial, ServerSettings};

use crate::error::Error;
use crate::flow;
use crate::greeting::{Endpoint, VERSION};
use crate::limits::Limits;
use crate::proxy::ProxyRules;

/// Bytes of one direction that are kept until they are acknowledged: what 200 MiB/s carry in 80 ms.
const LINK_BUFFER: u32 = 16 * 1024 * 1024;
/// Bytes that wait in the link for the connection. Everything that is written later waits behind them.
const MAX_UNSENT: u32 = 256 * 1024;
/// Acknowledgements come after so many bytes at the latest, so that the sender keeps little of what was received.
const MAX_ACK_STEP: u32 = 256 * 1024;
/// The number of bytes of one stream before another stream gets its turn.
const FRAME: u32 = 64 * 1024;

pub use link::KeepAlive;

/// Settings of the agent's end.
#[derive(Debug, Clone)]
pub struct Settings {
    /// The hub's address, such as `wss://hub.example.com:8443`.
    pub url: String,
    /// The cluster that the agent claims to be. The hub compares it with the certificate.
    pub cluster: String,
    /// Which proxy leads to the hub.
    pub proxy: ProxyRules,
    /// How long a tunnel may be interrupted without an end of its streams.
    pub resume_window: Duration,
    pub keep_alive: KeepAlive,
    pub reconnect: Reconnect,
    pub limits: Limits,
    /// How long to wait for a TCP connection. A short time, because an attempt that began during an outage delays the next.
    pub connect_timeout: Duration,
    /// How long the TLS handshake and the upgrade may take.
    pub handshake_timeout: Duration,
    /// How long requests may still take after the shutdown has begun.
    pub drain_timeout: Duration,
    /// The version of the protocol. Others than [`VERSION`] are for tests of what happens then.
    pub version: u16,
}

/// The delays between attempts to connect. Each is random between zero and a maximum, which doubles.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Reconnect {
    /// The first maximum.
    pub min: Duration,
    /// The largest maximum while the hub has been away for less than [`Self::soon`].
    pub max_at_first: Duration,
    pub soon: Duration,
    /// The largest maximum later.
    pub max: Duration,
    /// The maximum after a refusal that only an administrator can change.
    pub refused: Duration,
    /// A session that lasted this long resets the delays.
    pub lasted: Duration,
}

/// Settings of the hub's end.
#[derive(Debug, Clone)]
pub struct AcceptorSettings {
    /// The largest resume window, whatever an agent requests.
    pub max_resume_window: Duration,
    pub keep_alive: KeepAlive,
    /// Of each tunnel.
    pub limits: Limits,
    /// How long an upgrade and the handshake after it may take.
    pub handshake_timeout: Duration,
    pub max_sessions: usize,
    /// The version of the protocol. Others than [`VERSION`] are for tests of what happens then.
    pub version: u16,
}

impl Settings {
    /// The usual settings for a hub and a cluster.
    pub fn new(url: impl Into<String>, cluster: impl Into<String>) -> Self {
        Self {
            url: url.into(),
            cluster: cluster.into(),
            proxy: ProxyRules::default(),
            resume_window: Duration::from_secs(30),
            keep_alive: KeepAlive::default(),
            reconnect: Reconnect::default(),
            limits: Limits::default(),
            connect_timeout: Duration::from_secs(2),
            handshake_timeout: Duration::from_secs(10),
            drain_timeout: Duration::from_secs(10),
            version: VERSION,
        }
    }

    pub(crate) fn link(&self) -> link::Settings {
        link::Settings {
            buffers: buffers(),
            keep_alive: self.keep_alive,
            redial: Redial {
                resume_window: self.resume_window,
                first_connection_timeout: Duration::ZERO,
                attempt_timeout: self.connect_timeout + self.handshake_timeout,
                min_backoff: Duration::from_millis(100),
                max_backoff: Duration::from_secs(1),
            },
            ..link::Settings::default()
        }
    }

    /// Whether the address can be used at all.
    ///
    /// # Errors
    /// When it is no `wss://` address, which is better reported before the first attempt.
    pub fn check(&self) -> Result<(), Error> {
        Endpoint::parse(&self.url).map(drop)
    }
}

impl AcceptorSettings {
    pub(crate) fn link(&self) -> ServerSettings {
        ServerSettings {
            buffers: buffers(),
            keep_alive: self.keep_alive,
            max_resume_window: self.max_resume_window,
            handshake_timeout: self.handshake_timeout,
            max_links: self.max_sessions,
        }
    }
}

impl Default for Reconnect {
    fn default() -> Self {
        Self {
            min: Duration::from_millis(500),
            max_at_first: Duration::from_secs(2),
            soon: Duration::from_secs(60),
            max: Duration::from_secs(30),
            refused: Duration::from_secs(60),
            lasted: Duration::from_secs(30),
        }
    }
}

impl Default for AcceptorSettings {
    fn default() -> Self {
        Self {
            max_resume_window: Duration::from_secs(30),
            keep_alive: KeepAlive::default(),
            limits: Limits::default(),
            handshake_timeout: Duration::from_secs(10),
            max_sessions: 10_000,
            version: VERSION,
        }
    }
}

fn buffers() -> Buffers {
    Buffers {
        replay_capacity: LINK_BUFFER,
        receive_window: LINK_BUFFER,
        max_unsent: MAX_UNSENT,
        max_ack_step: MAX_ACK_STEP,
    }
}

/// The windows of HTTP/2. They only stop a peer that ignores the windows of [`flow`], which are smaller.
pub(crate) fn windows(limits: &Limits) -> Windows {
    let connection = limits.bytes_in_flight.saturating_mul(2);
    Windows {
        stream: flow::MAX_WINDOW as u32,
        streams: limits.streams.saturating_add(flow::OWN_STREAMS),
        connection: u32::try_from(connection).unwrap_or(u32::MAX),
        frame: FRAME,
    }
}
