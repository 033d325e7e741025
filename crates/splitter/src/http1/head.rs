//! The head of a request: where it ends, what it says, and whether every program would read it alike.

use std::mem::MaybeUninit;

use httparse::Header;

use super::body::{Body, Chunked};

/// Longer methods than any that is registered.
const LONGEST_METHOD: usize = 24;
/// As many headers are looked at without asking for memory.
const USUAL_HEADERS: usize = 64;
/// More than any server accepts.
const MOST_HEADERS: usize = 4096;

/// Why bytes are not split into requests. They are passed on untouched instead.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub(crate) enum Malformed {
    #[error("a request line is not one of HTTP/1")]
    RequestLine,
    #[error("a head cannot be read")]
    Head,
    #[error("a length is not a number, or is there more than once")]
    Length,
    #[error("a transfer coding is not \"chunked\" alone")]
    TransferCoding,
    #[error("there is both a length and a transfer coding")]
    LengthAndTransferCoding,
    #[error("a chunk cannot be read")]
    Chunk,
}

/// What a scan found.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Scan {
    /// The head is not complete.
    More,
    /// The head ends before this position.
    Complete(usize),
    /// This is not a head that every program reads alike.
    Malformed,
}

/// Looks for the end of a request's head in bytes that become more. Each byte is looked at once, however they come.
#[derive(Debug, Clone, Copy, Default)]
pub(crate) struct RequestScanner {
    at: usize,
    stage: Stage,
}

#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
enum Stage {
    /// Empty lines before a request, which old clients send. Left at the first byte of a method.
    #[default]
    Filler,
    /// Left at the space after it.
    Method { start: usize },
    /// Left at the space after it.
    Target { start: usize },
    /// Left at the end of the line.
    Version { start: usize },
    /// Lines of headers. Left at an empty one.
    Headers { line: usize },
    /// Never left.
    Complete { end: usize },
}

impl RequestScanner {
    /// Goes on with all bytes of which an earlier call has seen the first part.
    pub(crate) fn scan(&mut self, bytes: &[u8]) -> Scan {
        if let Stage::Complete { end } = self.stage {
            return Scan::Complete(end);
        }
        while self.at < bytes.len() {
            if let Stage::Headers { line } = self.stage {
                match scan_lines(bytes, &mut self.at, line) {
                    Lines::More(line) => self.stage = Stage::Headers { line },
                    Lines::End(end) => {
                        self.stage = Stage::Complete { end };
                        return Scan::Complete(end);
                    }
                    Lines::Malformed => return Scan::Malformed,
                }
                continue;
            }
            let Some(stage) = self.after(bytes[self.at]) else {
                return Scan::Malformed;
            };
            self.stage = stage;
            self.at += 1;
        }
        Scan::More
    }

    /// Whether a whole request line has been seen.
    pub(crate) fn has_request_line(&self) -> bool {
        matches!(self.stage, Stage::Headers { .. })
    }

    /// Whether the head is complete.
    pub(crate) fn is_complete(&self) -> bool {
        matches!(self.stage, Stage::Complete { .. })
    }

    /// Whether nothing but empty lines has been seen.
    pub(crate) fn has_only_filler(&self) -> bool {
        self.stage == Stage::Filler
    }

    fn after(&self, byte: u8) -> Option<Stage> {
        let at = self.at;
        match self.stage {
            // An empty line is two bytes, so its carriage returns are at even positions.
            Stage::Filler if byte == b'\r' => at.is_multiple_of(2).then_some(Stage::Filler),
            Stage::Filler if byte == b'\n' => (!at.is_multiple_of(2)).then_some(Stage::Filler),
            Stage::Filler => (at.is_multiple_of(2) && byte.is_ascii_uppercase())
                .then_some(Stage::Method { start: at }),
            Stage::Method { start } if byte == b' ' => {
                (at - start <= LONGEST_METHOD).then_some(Stage::Target { start: at + 1 })
            }
            Stage::Method { start } => (at - start < LONGEST_METHOD
                && (byte.is_ascii_uppercase() || matches!(byte, b'-' | b'_')))
            .then_some(self.stage),
            Stage::Target { start } if byte == b' ' => {
                (at > start).then_some(Stage::Version { start: at + 1 })
            }
            Stage::Target { .. } => (byte > b' ' && byte != 0x7f).then_some(self.stage),
            Stage::Version { start } => self.after_version_byte(at - start, byte),
            Stage::Headers { .. } | Stage::Complete { .. } => Some(self.stage),
        }
    }

    fn after_version_byte(&self, index: usize, byte: u8) -> Option<Stage> {
        const VERSION: &[u8; 7] = b"HTTP/1.";
        match index {
            0..=6 => (byte == VERSION[index]).then_some(self.stage),
            7 => matches!(byte, b'0' | b'1').then_some(self.stage),
            8 => (byte == b'\r').then_some(self.stage),
            _ => (byte == b'\n').then_some(Stage::Headers { line: self.at + 1 }),
        }
    }
}

/// What was found among lines.
pub(super) enum Lines {
    /// The line that starts here is not complete.
    More(usize),
    /// The empty line ends before this position.
    End(usize),
    Malformed,
}

/// Goes on to the next end of a line. `at` is moved behind what was looked at.
pub(super) fn scan_lines(bytes: &[u8], at: &mut usize, line: usize) -> Lines {
    let Some(found) = memchr::memchr(b'\n', &bytes[*at..]) else {
        *at = bytes.len();
        return Lines::More(line);
    };
    let feed = *at + found;
    if feed == line || bytes[feed - 1] != b'\r' {
        // It stays where it is, so that asking again gives the same answer.
        return Lines::Malformed;
    }
    *at = feed + 1;
    if feed - 1 == line {
        Lines::End(feed + 1)
    } else {
        Lines::More(feed + 1)
    }
}

/// A request's head, as it says itself.
#[derive(Debug)]
pub(crate) struct RequestHead<'bytes, 'headers> {
    pub(crate) method: &'bytes str,
    pub(crate) target: &'bytes str,
    pub(crate) headers: &'headers [Header<'bytes>],
}

/// What follows a request's head.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct RequestShape {
    pub(crate) body: Option<Body>,
    pub(crate) kind: RequestKind,
    /// The client waits for a word before it sends the body.
    pub(crate) expects_continue: bool,
    /// Sending it twice does what sending it once does.
    pub(crate) is_idempotent: bool,
    /// It logs in for as long as the connection lasts, so nobody else may use the connection.
    pub(crate) binds_connection: bool,
}

/// What a request makes of its answer.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum RequestKind {
    Ordinary,
    /// The answer never has a body.
    Head,
    /// After a good answer the connection belongs to something else.
    Connect,
    /// After an answer that says so the connection belongs to something else.
    Upgrade,
}

impl RequestKind {
    /// The answer may be the end of HTTP on the connection, so what the client sends cannot be judged before it.
    pub(crate) fn may_leave_http(self) -> bool {
        matches!(self, Self::Connect | Self::Upgrade)
    }
}

/// Reads a complete head, and calls with what it says.
pub(crate) fn read_request<T>(
    bytes: &[u8],
    then: impl FnOnce(&RequestHead<'_, '_>, RequestShape) -> T,
) -> Result<T, Malformed> {
    // The parser fills the array, so it is not filled before.
    let mut usual = [const { MaybeUninit::<Header<'_>>::uninit() }; USUAL_HEADERS];
    let mut request = httparse::Request::new(&mut []);
    let config = httparse::ParserConfig::default();
    match config.parse_request_with_uninit_headers(&mut request, bytes, &mut usual) {
        Ok(httparse::Status::Complete(_)) => finish_request(&request, then),
        Err(httparse::Error::TooManyHeaders) => {
            let mut many = vec![httparse::EMPTY_HEADER; MOST_HEADERS];
            let mut request = httparse::Request::new(&mut many);
            match request.parse(bytes) {
                Ok(httparse::Status::Complete(_)) => finish_request(&request, then),
                _ => Err(Malformed::Head),
            }
        }
        _ => Err(Malformed::Head),
    }
}

fn finish_request<'bytes, T>(
    request: &httparse::Request<'_, 'bytes>,
    then: impl FnOnce(&RequestHead<'bytes, '_>, RequestShape) -> T,
) -> Result<T, Malformed> {
    let (Some(method), Some(target), Some(version)) =
        (request.method, request.path, request.version)
    else {
        return Err(Malformed::RequestLine);
    };
    let headers: &[Header<'bytes>] = request.headers;
    let framing = Framing::read(headers, version)?;
    let mut shape = RequestShape {
        body: framing.body(),
        kind: match method {
            "HEAD" => RequestKind::Head,
            "CONNECT" => RequestKind::Connect,
            _ => RequestKind::Ordinary,
        },
        expects_continue: false,
        is_idempotent: matches!(
            method,
            "GET" | "HEAD" | "OPTIONS" | "TRACE" | "PUT" | "DELETE"
        ),
        binds_connection: false,
    };
    for header in headers {
        if header.name.eq_ignore_ascii_case("upgrade") && shape.kind == RequestKind::Ordinary {
            shape.kind = RequestKind::Upgrade;
        } else if header.name.eq_ignore_ascii_case("expect") {
            shape.expects_continue = true;
        } else if header.name.eq_ignore_ascii_case("authorization") {
            shape.binds_connection |= logs_in_a_connection(header.value);
        }
    }
    Ok(then(
        &RequestHead {
            method,
            target,
            headers,
        },
        shape,
    ))
}

/// NTLM and Negotiate log in a connection instead of a request.
pub(super) fn logs_in_a_connection(value: &[u8]) -> bool {
    let starts_with = |scheme: &str| {
        value
            .get(..scheme.len())
            .is_some_and(|start| start.eq_ignore_ascii_case(scheme.as_bytes()))
    };
    starts_with("ntlm") || starts_with("negotiate")
}

/// What headers say of a body's end.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Framing {
    Nothing,
    Length(u64),
    Chunked,
}

impl Framing {
    /// Takes only what every program reads alike: one length or one transfer coding, and no more.
    pub(super) fn read(headers: &[Header<'_>], version: u8) -> Result<Self, Malformed> {
        let mut framing = Self::Nothing;
        for header in headers {
            if header.name.eq_ignore_ascii_case("content-length") {
                framing = match framing {
                    Self::Nothing => Self::Length(read_length(header.value)?),
                    Self::Length(_) => return Err(Malformed::Length),
                    Self::Chunked => return Err(Malformed::LengthAndTransferCoding),
                };
            } else if header.name.eq_ignore_ascii_case("transfer-encoding") {
                framing = match framing {
                    Self::Nothing if version == 0 => return Err(Malformed::TransferCoding),
                    Self::Nothing if header.value.eq_ignore_ascii_case(b"chunked") => Self::Chunked,
                    Self::Nothing | Self::Chunked => return Err(Malformed::TransferCoding),
                    Self::Length(_) => return Err(Malformed::LengthAndTransferCoding),
                };
            }
        }
        Ok(framing)
    }

    fn body(self) -> Option<Body> {
        match self {
            Self::Nothing | Self::Length(0) => None,
            Self::Length(length) => Some(Body::Length(length)),
            Self::Chunked => Some(Body::Chunked(Chunked::default())),
        }
    }
}

fn read_length(value: &[u8]) -> Result<u64, Malformed> {
    const LONGEST: usize = 18;
    if value.is_empty() || value.len() > LONGEST || !value.iter().all(u8::is_ascii_digit) {
        return Err(Malformed::Length);
    }
    Ok(value
        .iter()
        .fold(0, |sum, digit| sum * 10 + u64::from(digit - b'0')))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn scan(bytes: &str) -> Scan {
        let whole = RequestScanner::default().scan(bytes.as_bytes());
        let mut scanner = RequestScanner::default();
        let bit_by_bit = (1..=bytes.len())
            .map(|length| scanner.scan(&bytes.as_bytes()[..length]))
            .find(|scan| *scan != Scan::More)
            .unwrap_or(Scan::More);
        assert_eq!(bit_by_bit, whole, "{bytes:?}");
        whole
    }

    #[test]
    fn a_head_ends_at_its_empty_line() {
        let cases = [
            ("GET / HTTP/1.1\r\n\r\n", Scan::Complete(18)),
            ("GET / HTTP/1.1\r\nHost: a\r\n\r\nrest", Scan::Complete(27)),
            ("\r\n\r\nGET / HTTP/1.0\r\n\r\n", Scan::Complete(22)),
            ("GET / HTTP/1.1\r\nHost: a\r\n", Scan::More),
            ("GET / HTTP/1.1\r\nHost: a\n\r\n", Scan::Malformed),
            ("GET / HTTP/1.1\r\nHost: a\r\n\n", Scan::Malformed),
            ("\nGET / HTTP/1.1\r\n\r\n", Scan::Malformed),
            ("\r\rGET / HTTP/1.1\r\n\r\n", Scan::Malformed),
            (" GET / HTTP/1.1\r\n\r\n", Scan::Malformed),
            ("GET / HTTP/1.2\r\n\r\n", Scan::Malformed),
            ("GET / HTTP/1.1 \r\n\r\n", Scan::Malformed),
            ("GET /a b HTTP/1.1\r\n\r\n", Scan::Malformed),
            ("GET\t/ HTTP/1.1\r\n\r\n", Scan::Malformed),
        ];
        for (bytes, expected) in cases {
            assert_eq!(scan(bytes), expected, "{bytes:?}");
        }
    }

    fn shape(head: &str) -> Result<RequestShape, Malformed> {
        read_request(head.as_bytes(), |_, shape| shape)
    }

    #[test]
    fn a_body_ends_as_its_head_says() {
        let body = |headers: &str| {
            shape(&format!("POST / HTTP/1.1\r\n{headers}\r\n")).map(|shape| shape.body)
        };
        let chunked = Some(Body::Chunked(Chunked::default()));
        let cases = [
            ("", Ok(None)),
            ("content-length: 0\r\n", Ok(None)),
            ("CONTENT-LENGTH:\t12 \r\n", Ok(Some(Body::Length(12)))),
            ("Transfer-Encoding: Chunked\r\n", Ok(chunked)),
            (
                "Content-Length: 1\r\nContent-Length: 1\r\n",
                Err(Malformed::Length),
            ),
            ("Content-Length: 1, 1\r\n", Err(Malformed::Length)),
            ("Content-Length: +1\r\n", Err(Malformed::Length)),
            ("Content-Length: 0x1\r\n", Err(Malformed::Length)),
            ("Content-Length:\r\n", Err(Malformed::Length)),
            (
                "Content-Length: 9999999999999999999\r\n",
                Err(Malformed::Length),
            ),
            (
                "Transfer-Encoding: gzip, chunked\r\n",
                Err(Malformed::TransferCoding),
            ),
            (
                "Transfer-Encoding: chunked, identity\r\n",
                Err(Malformed::TransferCoding),
            ),
            (
                "Transfer-Encoding: chunked\r\nTransfer-Encoding: x\r\n",
                Err(Malformed::TransferCoding),
            ),
            (
                "Transfer-Encoding: xchunked\r\n",
                Err(Malformed::TransferCoding),
            ),
            (
                "Content-Length: 1\r\nTransfer-Encoding: chunked\r\n",
                Err(Malformed::LengthAndTransferCoding),
            ),
            (
                "Transfer-Encoding: chunked\r\nContent-Length: 1\r\n",
                Err(Malformed::LengthAndTransferCoding),
            ),
            ("Transfer-Encoding : chunked\r\n", Err(Malformed::Head)),
            ("A: b\r\n folded\r\n", Err(Malformed::Head)),
            ("A: b\rc\r\n", Err(Malformed::Head)),
            ("A\0: b\r\n", Err(Malformed::Head)),
            ("no colon\r\n", Err(Malformed::Head)),
        ];
        for (headers, expected) in cases {
            assert_eq!(body(headers), expected, "{headers:?}");
        }
        assert_eq!(
            shape("POST / HTTP/1.0\r\nTransfer-Encoding: chunked\r\n\r\n"),
            Err(Malformed::TransferCoding)
        );
    }

    #[test]
    fn many_headers_are_read_too() {
        let many: String = (0..1000).map(|index| format!("x-{index}: y\r\n")).collect();
        let shape = shape(&format!("GET / HTTP/1.1\r\n{many}Upgrade: x\r\n\r\n")).unwrap();
        assert_eq!(shape.kind, RequestKind::Upgrade);
    }
}
