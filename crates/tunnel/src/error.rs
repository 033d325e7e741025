//! Errors, distinguished by what the caller can do about them.

use std::io;
use std::sync::Arc;
use std::time::Duration;

use link::LinkError;

use crate::limits::Limit;

/// Why a tunnel cannot be opened, or a request in it failed.
#[derive(Debug, Clone, thiserror::Error)]
pub enum Error {
    /// A setting cannot be used.
    #[error("{0}")]
    Setting(String),
    /// There is no TCP connection.
    #[error("{address} cannot be reached")]
    Unreachable {
        address: String,
        #[source]
        source: Arc<io::Error>,
    },
    /// The proxy does not forward the connection.
    #[error("the proxy {proxy} does not connect to {address}: {reason}")]
    Proxy {
        proxy: String,
        address: String,
        reason: String,
    },
    /// The TLS handshake failed, for a reason that is explained.
    #[error("{explanation}")]
    Tls {
        explanation: String,
        #[source]
        source: Arc<rustls::Error>,
    },
    /// The connection ended before the tunnel was established.
    #[error("the connection to {address} was lost before the tunnel was established")]
    Lost {
        address: String,
        #[source]
        source: Arc<io::Error>,
    },
    /// Whatever answers is no hub.
    #[error(
        "{found}: something between agent and hub terminates TLS or HTTP, such as a load balancer. Use TCP passthrough for the hub's agent address"
    )]
    Intermediary { found: String },
    /// The hub and the agent are too many releases apart.
    #[error(
        "the hub uses version {theirs} of the tunnel protocol and this agent version {ours}: upgrade the older one"
    )]
    VersionMismatch { ours: u16, theirs: u16 },
    /// The hub refuses the agent.
    #[error("the hub refuses the tunnel ({status}): {text}")]
    Refused { status: u16, text: String },
    /// The link over the connection failed.
    #[error("the tunnel cannot be established")]
    Link(#[source] LinkError),
    /// The tunnel is at a limit. Nothing was sent.
    #[error("{0}")]
    Limited(#[from] Limit),
    /// The tunnel has ended.
    #[error("the tunnel ended: {reason}")]
    Disconnected {
        reason: EndReason,
        /// Whether the agent may have received a part of the request.
        is_sent: bool,
    },
    /// The stream of a request failed, and the tunnel continues.
    #[error("the request failed in the tunnel")]
    Stream(#[source] LinkError),
    /// The agent answered a request for an upgrade with something else than a response to it.
    #[error("the agent does not answer the upgrade properly: {0}")]
    Upgrade(String),
}

impl Error {
    /// Whether nothing of the request was sent, so that it can be sent again elsewhere.
    pub fn is_unsent(&self) -> bool {
        match self {
            Self::Limited(_) => true,
            Self::Disconnected { is_sent, .. } => !is_sent,
            _ => false,
        }
    }

    /// Whether the next attempt will most likely fail in the same way, until an administrator acts.
    pub fn is_final(&self) -> bool {
        match self {
            Self::Setting(_) | Self::VersionMismatch { .. } => true,
            Self::Refused { status, .. } => matches!(status, 400..=499) && *status != 429,
            _ => false,
        }
    }
}

/// Why a session ended.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum EndReason {
    /// This end closed it.
    #[error("{0}")]
    Closed(String),
    /// The other end closed it, and said why.
    #[error("the other end closed the tunnel: {0}")]
    ClosedByPeer(String),
    /// The other end has left properly, as for a shutdown.
    #[error("the other end has left")]
    Left,
    /// The connection could not be resumed in time.
    #[error("the connection was lost, and could not be resumed within {} s", .0.as_secs())]
    Lost(Duration),
    /// The other end has lost its state, as after a restart.
    #[error("the other end was restarted")]
    Restarted,
    /// Anything else.
    #[error("{0}")]
    Failed(String),
}

impl EndReason {
    pub(crate) fn of(error: &LinkError) -> Self {
        match error {
            LinkError::WindowExpired { window } => Self::Lost(*window),
            LinkError::StateLost => Self::Restarted,
            LinkError::Aborted(abort) => Self::ClosedByPeer(abort.text.clone()),
            error => Self::Failed(error_chain::error_chain(error)),
        }
    }
}

/// The error inside the I/O error of a dialer, which can only return those.
pub(crate) fn of_link(error: LinkError) -> Error {
    if let LinkError::Unreachable(source) = &error
        && let Some(inner) = source.get_ref()
        && let Some(inner) = inner.downcast_ref::<Error>()
    {
        return inner.clone();
    }
    Error::Link(error)
}
