//! Limits and timeouts, and the notices that are sent to a session.

use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use crate::memory::Memory;

/// Timeouts and memory limits.
#[derive(Debug, Clone)]
pub struct Settings {
    /// A session that has not started its response within this time loses the request to the original application.
    /// `None` waits for as long as the client does. A claim may override it for its own session.
    pub response_timeout: Option<Duration>,
    /// How long a session gets no requests after a failure.
    pub failure_cooldown: Duration,
    /// How many bytes of a request are kept for replaying it to another upstream.
    pub replay_limit: usize,
    /// Maximum size of a request head. The connection of a longer one is forwarded unchanged.
    pub head_limit: usize,
    /// How long a request head may take to arrive. After that its connection is forwarded unchanged.
    pub head_timeout: Duration,
    /// Maximum size of a body that filters inspect. A longer one does not match.
    pub body_limit: usize,
    /// How long a body that filters inspect may take to arrive. After that it does not match.
    pub body_timeout: Duration,
    /// How long a connection to the original application stays in the pool after its client has disconnected.
    pub idle_timeout: Duration,
    /// Maximum number of connections in the pool.
    pub max_idle_connections: usize,
    /// Maximum number of bytes that are buffered for one mirror. A mirror that needs more is dropped.
    pub mirror_limit: usize,
    /// Maximum number of bytes that are buffered for all mirrors of a session. A mirror that needs more is dropped.
    pub session_mirror_limit: usize,
    /// On a port where clients usually speak first, a client that is silent for this long gets an upstream connection
    /// anyway.
    pub client_silence_timeout: Duration,
    /// The budget for everything that is buffered, of all ports that have it in their settings.
    pub memory: Memory,
}

impl Default for Settings {
    fn default() -> Self {
        Self {
            response_timeout: Some(Duration::from_secs(30)),
            failure_cooldown: Duration::from_secs(5),
            replay_limit: 64 * 1024,
            head_limit: 64 * 1024,
            head_timeout: Duration::from_secs(10),
            body_limit: 64 * 1024,
            body_timeout: Duration::from_secs(1),
            idle_timeout: Duration::from_secs(4),
            max_idle_connections: 64,
            mirror_limit: 4 * 1024 * 1024,
            session_mirror_limit: 32 * 1024 * 1024,
            client_silence_timeout: Duration::from_millis(50),
            memory: Memory::default(),
        }
    }
}

/// An event that the user of a session should see.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Notice {
    /// A request that matched the session went to the original application.
    FellBack { reason: FailureReason },
    /// A request that matched the session was lost: too much of it had been sent to replay it.
    Lost { reason: FailureReason },
    /// A mirror of a connection was dropped because the session was too slow.
    MirrorDropped,
}

/// Why a session did not get a request.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum FailureReason {
    /// The session could not be reached.
    Unreachable,
    /// The session ended the connection without a response.
    NoResponse,
    /// The session did not respond in time.
    Timeout,
}

/// The request that a notice refers to.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct RequestLine {
    pub method: String,
    pub path: String,
}

impl RequestLine {
    /// Longer paths are truncated.
    const MAX_PATH_LENGTH: usize = 1024;

    pub(crate) fn new(method: &str, path: &str) -> Self {
        Self {
            method: method.to_owned(),
            path: path.chars().take(Self::MAX_PATH_LENGTH).collect(),
        }
    }

    /// Parses the first line of an HTTP/1 request.
    pub(crate) fn parse(request: &[u8]) -> Option<Self> {
        let mut request = request.trim_ascii_start();
        let end = request.iter().position(|byte| *byte == b'\r')?;
        request = request.get(..end)?;
        let mut parts = std::str::from_utf8(request).ok()?.split(' ');
        let (method, path, version) = (parts.next()?, parts.next()?, parts.next()?);
        version
            .starts_with("HTTP/1.")
            .then(|| Self::new(method, path))
    }
}

/// Receives the notices of a session.
#[derive(Clone)]
pub struct NoticeHandler(Arc<dyn Fn(Notice, Option<RequestLine>) + Send + Sync>);

impl NoticeHandler {
    /// The callback gets the notice, and the request that it refers to if that is known.
    pub fn new(callback: impl Fn(Notice, Option<RequestLine>) + Send + Sync + 'static) -> Self {
        Self(Arc::new(callback))
    }

    pub(crate) fn notify(&self, notice: Notice, request: Option<RequestLine>) {
        (self.0)(notice, request);
    }
}

impl Default for NoticeHandler {
    fn default() -> Self {
        Self::new(|notice, _| tracing::warn!(?notice, "incoming traffic missed"))
    }
}

impl fmt::Debug for NoticeHandler {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.write_str("NoticeHandler")
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn request_lines_are_parsed() {
        let line = |text: &str| {
            let line = RequestLine::parse(text.as_bytes())?;
            Some(format!("{} {}", line.method, line.path))
        };
        let expected = Some("GET /cart?a=b".to_owned());
        assert_eq!(line("GET /cart?a=b HTTP/1.1\r\nHost: x\r\n\r\n"), expected);
        assert_eq!(line("\r\nGET /cart?a=b HTTP/1.0\r\n"), expected);
        for text in ["", "GET /cart HTTP/1.1", "PING\r\n", "a b c\r\n"] {
            assert_eq!(line(text), None, "{text}");
        }
    }
}
