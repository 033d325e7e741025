//! Errors, distinguished by what the caller can do about them.

use std::io;
use std::sync::Arc;
use std::time::Duration;

/// Why a link failed, or could not be created.
///
/// Losing a connection is not an error: the link reconnects. These errors are final.
#[derive(Debug, Clone, thiserror::Error)]
pub enum LinkError {
    /// The first connection could not be established.
    #[error("the other end cannot be reached")]
    Unreachable(#[source] Arc<io::Error>),
    /// The first connection was established, but the handshake timed out or the connection was lost.
    #[error("the connection was established, but the other end did not complete the handshake")]
    NoHandshake(#[source] Arc<io::Error>),
    /// The peer does not have the link any more, as after a restart. Bytes in flight are lost.
    #[error("the other end has lost its state of this link, as after a restart")]
    StateLost,
    /// There was no connection for longer than the resume window.
    #[error("the connection could not be restored within {}", seconds(.window))]
    WindowExpired { window: Duration },
    /// The peer uses another version of the protocol.
    #[error(
        "the other end uses version {theirs} of the link protocol, this end uses version {ours}: use the same release on both ends"
    )]
    VersionMismatch { ours: u16, theirs: u16 },
    /// The peer does not accept the token.
    #[error("the other end does not accept the token: {text}")]
    WrongToken { text: String },
    /// The peer refuses the link for another reason, such as having too many links.
    #[error("the other end refuses the link: {text}")]
    Refused { text: String },
    /// The peer aborted the link.
    #[error("the other end aborted the link: {0}")]
    Aborted(Abort),
    /// The peer violates the protocol.
    #[error("the other end violates the link protocol")]
    Protocol(#[from] Malformed),
    /// A certificate, key or server name cannot be used for TLS.
    #[error("TLS cannot be set up")]
    Tls(#[source] Arc<rustls::Error>),
    /// HTTP/2 over a link failed, most often because the link failed.
    #[error("HTTP/2 over the link failed")]
    Http2(#[source] Arc<hyper::Error>),
}

impl LinkError {
    /// Whether the same peer may accept a new link. The bytes of this link are lost, but the session can continue.
    pub fn may_retry_with_new_link(&self) -> bool {
        match self {
            Self::Unreachable(_)
            | Self::NoHandshake(_)
            | Self::StateLost
            | Self::WindowExpired { .. }
            | Self::Aborted(_)
            | Self::Http2(_) => true,
            Self::VersionMismatch { .. }
            | Self::WrongToken { .. }
            | Self::Refused { .. }
            | Self::Protocol(_)
            | Self::Tls(_) => false,
        }
    }
}

impl From<LinkError> for io::Error {
    fn from(error: LinkError) -> Self {
        let kind = match &error {
            LinkError::Unreachable(source) | LinkError::NoHandshake(source) => source.kind(),
            LinkError::StateLost | LinkError::Aborted(_) => io::ErrorKind::ConnectionReset,
            LinkError::WindowExpired { .. } => io::ErrorKind::TimedOut,
            LinkError::WrongToken { .. } | LinkError::Refused { .. } => {
                io::ErrorKind::PermissionDenied
            }
            LinkError::VersionMismatch { .. } | LinkError::Protocol(_) => {
                io::ErrorKind::InvalidData
            }
            LinkError::Tls(_) => io::ErrorKind::InvalidInput,
            LinkError::Http2(_) => io::ErrorKind::Other,
        };
        Self::new(kind, error)
    }
}

impl From<rustls::Error> for LinkError {
    fn from(error: rustls::Error) -> Self {
        Self::Tls(Arc::new(error))
    }
}

impl From<rcgen::Error> for LinkError {
    fn from(error: rcgen::Error) -> Self {
        Self::from(rustls::Error::General(error.to_string()))
    }
}

impl From<hyper::Error> for LinkError {
    fn from(error: hyper::Error) -> Self {
        Self::Http2(Arc::new(error))
    }
}

/// Why one end aborts a link.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{text}")]
pub struct Abort {
    /// For programs. The users of the link define the codes; 0 is reserved for the link itself.
    pub code: u16,
    /// For people. Truncated to 512 bytes when it is sent.
    pub text: String,
}

impl Abort {
    /// The link was dropped without being shut down.
    pub(crate) fn dropped() -> Self {
        Self {
            code: 0,
            text: "it was dropped".to_owned(),
        }
    }
}

/// An input that violates the protocol.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum Malformed {
    #[error("the connection does not start like a link")]
    NotALink,
    #[error("unknown handshake message of kind {0}")]
    Handshake(u8),
    #[error("a handshake message of kind {kind} has {length} bytes")]
    HandshakeLength { kind: u8, length: usize },
    #[error("a frame has the unknown kind {0}")]
    Kind(u8),
    #[error("a frame of kind {kind} has {length} bytes")]
    Length { kind: u8, length: usize },
    #[error("byte {expected} was expected, but byte {received} was received")]
    Offset { expected: u64, received: u64 },
    #[error("more was sent than the receiver has room for")]
    Overrun,
    #[error("a frame was sent after the end of the stream")]
    AfterFin,
    #[error("byte {0} was acknowledged, but never sent")]
    AckOfUnsent(u64),
    #[error("the link was closed before both streams had ended")]
    ClosedEarly,
}

fn seconds(duration: &Duration) -> String {
    format!("{} s", duration.as_secs_f64())
}
