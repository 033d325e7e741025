//! Bounds, and what is told to a session.

use std::fmt;
use std::sync::Arc;
use std::time::Duration;

/// Bounds of what is waited for and of what is kept in memory.
#[derive(Debug, Clone)]
pub struct Settings {
    /// A session that has not begun to answer by then does not get the request: the original application does.
    /// `None` waits for as long as the client does. A claim may say otherwise for its own session.
    pub answer_within: Option<Duration>,
    /// A session that failed is left alone for so long.
    pub pause_after_failure: Duration,
    /// Of a request that may have to be sent again, so many bytes are kept.
    pub replay_limit: usize,
    /// A longer head is not looked at, and its connection passed on.
    pub head_limit: usize,
    /// A head that is not complete by then is not waited for, and its connection passed on.
    pub head_within: Duration,
    /// A longer body is not looked at, and does not match.
    pub body_limit: usize,
    /// A body that is not complete by then is not looked at, and does not match.
    pub body_within: Duration,
    /// A connection to the original application is kept for so long after its client has gone.
    pub keep_idle: Duration,
    /// As many are kept.
    pub idle_limit: usize,
    /// A copy that is so many bytes behind ends.
    pub copy_limit: usize,
    /// All copies of a session together may be so many bytes behind; one that would need more ends.
    pub copies_limit: usize,
    /// On a port where clients speak first, a client that is silent for so long gets its connection all the same.
    pub silence: Duration,
}

impl Default for Settings {
    fn default() -> Self {
        Self {
            answer_within: Some(Duration::from_secs(30)),
            pause_after_failure: Duration::from_secs(5),
            replay_limit: 64 * 1024,
            head_limit: 64 * 1024,
            head_within: Duration::from_secs(10),
            body_limit: 64 * 1024,
            body_within: Duration::from_secs(1),
            keep_idle: Duration::from_secs(4),
            idle_limit: 64,
            copy_limit: 4 * 1024 * 1024,
            copies_limit: 32 * 1024 * 1024,
            silence: Duration::from_millis(50),
        }
    }
}

/// What a user of a session would want to know.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Notice {
    /// A request that the session wanted went to the original application.
    FellBack { reason: Reason },
    /// A request that the session wanted was lost: too much of it had been sent to send it again.
    Lost { reason: Reason },
    /// The session's copy of a connection ended, because it was too far behind.
    CopyDropped,
}

/// Why a session did not get a request.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Reason {
    /// It could not be reached.
    Unreachable,
    /// It ended the connection without an answer.
    NoAnswer,
    /// It did not answer in time.
    TooSlow,
}

/// Which request a notice is about.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct RequestLine {
    pub method: String,
    pub path: String,
}

impl RequestLine {
    /// More is not told of a path.
    const LONGEST_PATH: usize = 1024;

    pub(crate) fn new(method: &str, path: &str) -> Self {
        Self {
            method: method.to_owned(),
            path: path.chars().take(Self::LONGEST_PATH).collect(),
        }
    }

    /// From the bytes of a request of HTTP/1.
    pub(crate) fn read(request: &[u8]) -> Option<Self> {
        let mut request = request.trim_ascii_start();
        let end = request.iter().position(|byte| *byte == b'\r')?;
        request = request.get(..end)?;
        let mut words = std::str::from_utf8(request).ok()?.split(' ');
        let (method, path, version) = (words.next()?, words.next()?, words.next()?);
        version
            .starts_with("HTTP/1.")
            .then(|| Self::new(method, path))
    }
}

/// Who is told.
#[derive(Clone)]
pub struct Notices(Arc<dyn Fn(Notice, Option<RequestLine>) + Send + Sync>);

impl Notices {
    /// With the request that it is about, where that is known.
    pub fn new(tell: impl Fn(Notice, Option<RequestLine>) + Send + Sync + 'static) -> Self {
        Self(Arc::new(tell))
    }

    pub(crate) fn tell(&self, notice: Notice, request: Option<RequestLine>) {
        (self.0)(notice, request);
    }
}

impl Default for Notices {
    fn default() -> Self {
        Self::new(|notice, _| tracing::warn!(?notice, "incoming traffic"))
    }
}

impl fmt::Debug for Notices {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.write_str("Notices")
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_line_of_a_request_is_read() {
        let line = |text: &str| {
            let line = RequestLine::read(text.as_bytes())?;
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
