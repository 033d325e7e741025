//! What can go wrong, told apart by what the caller can do about it.

use std::io;
use std::sync::Arc;
use std::time::Duration;

/// Why a link failed, or never came to be.
///
/// Losing a connection is not an error: the link makes a new one. These are what is left when that is impossible.
#[derive(Debug, Clone, thiserror::Error)]
pub enum LinkError {
    /// The first connection could not be made.
    #[error("the other end cannot be reached")]
    Unreachable(#[source] Arc<io::Error>),
    /// The first connection was made, and then nobody answered the greeting, or the connection broke.
    #[error("the connection was made, but the other end did not answer the greeting")]
    NoGreeting(#[source] Arc<io::Error>),
    /// The peer does not know the link any more, as after a restart. What was on its way is lost.
    #[error("the other end has lost its state of this link, as after a restart")]
    StateLost,
    /// There was no connection for longer than the resume window.
    #[error("no connection could be made again within {}", seconds(.window))]
    WindowExpired { window: Duration },
    /// The peer speaks another version of the protocol.
    #[error(
        "the other end speaks version {theirs} of the link protocol, this one version {ours}: use the same release on both ends"
    )]
    VersionMismatch { ours: u16, theirs: u16 },
    /// The peer does not accept the token.
    #[error("the other end does not accept the token: {text}")]
    WrongToken { text: String },
    /// The peer refuses for another reason, such as having too many links.
    #[error("the other end refuses the link: {text}")]
    Refused { text: String },
    /// The peer gave the link up.
    #[error("the other end gave the link up: {0}")]
    Aborted(Abort),
    /// The peer says things that make no sense.
    #[error("the other end does not keep to the link protocol")]
    Protocol(#[from] Malformed),
    /// A certificate, key or name cannot be used for TLS.
    #[error("TLS cannot be set up")]
    Tls(#[source] Arc<rustls::Error>),
    /// HTTP/2 over a link failed, most often because the link did.
    #[error("HTTP/2 over the link failed")]
    Http2(#[source] Arc<hyper::Error>),
}

impl LinkError {
    /// Whether the same peer may well accept a new link now: what the link carried is lost, the session can go on.
    pub fn new_link_may_help(&self) -> bool {
        match self {
            Self::Unreachable(_)
            | Self::NoGreeting(_)
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
            LinkError::Unreachable(source) | LinkError::NoGreeting(source) => source.kind(),
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

/// Why one end gives a link up.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{text}")]
pub struct Abort {
    /// For programs: what it means is between the two that use the link. 0 is the link's own.
    pub code: u16,
    /// For people. Cut to 512 bytes when it is sent.
    pub text: String,
}

impl Abort {
    /// The link was dropped without being shut down.
    pub(crate) fn dropped() -> Self {
        Self {
            code: 0,
            text: "its user is gone".to_owned(),
        }
    }
}

/// An input that makes no sense.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum Malformed {
    #[error("the connection does not start like a link")]
    NotALink,
    #[error("a greeting of kind {0} is not known here")]
    Greeting(u8),
    #[error("a greeting of kind {kind} has {length} bytes")]
    GreetingLength { kind: u8, length: usize },
    #[error("a frame has the unknown kind {0}")]
    Kind(u8),
    #[error("a frame of kind {kind} has {length} bytes")]
    Length { kind: u8, length: usize },
    #[error("byte {expected} was expected, and byte {got} came")]
    Number { expected: u64, got: u64 },
    #[error("more was sent than the receiver has room for")]
    Overrun,
    #[error("something was sent after the end of the stream")]
    AfterTheEnd,
    #[error("an acknowledgement of byte {0}, which was never sent")]
    AckOfUnsent(u64),
    #[error("the link was closed before both streams had ended")]
    ClosedEarly,
}

fn seconds(duration: &Duration) -> String {
    format!("{} s", duration.as_secs_f64())
}
