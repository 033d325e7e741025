//! Parses request heads: where they end, what they contain, and whether every parser reads them the same way.

use std::mem::MaybeUninit;

use httparse::Header;

use super::body::{Body, Chunked};

/// Longer than any registered method.
const MAX_METHOD_LENGTH: usize = 24;
/// Number of headers that are parsed without allocating.
const INLINE_HEADERS: usize = 64;
/// More than servers accept.
const MAX_HEADERS: usize = 4096;

/// Why bytes cannot be split into requests. They are forwarded unchanged instead.
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

/// The result of a scan.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Scan {
    /// The head is not complete.
    More,
    /// The head ends before this position.
    Complete(usize),
    /// Parsers may disagree about this head.
    Malformed,
}

/// Finds the end of a request head in a growing buffer. Each byte is scanned once.
#[derive(Debug, Clone, Copy, Default)]
pub(crate) struct RequestScanner {
    at: usize,
    state: ScanState,
}

#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
enum ScanState {
    /// Empty lines before a request, which old clients send. Until the first byte of a method.
    #[default]
    LeadingEmptyLines,
    /// Until the space after it.
    Method { start: usize },
    /// Until the space after it.
    Target { start: usize },
    /// Until the end of the line.
    Version { start: usize },
    /// Header lines. Until an empty one.
    Headers { line: usize },
    /// Final.
    Complete { end: usize },
}

impl RequestScanner {
    /// Continues the scan. `bytes` starts with the bytes of the earlier calls.
    pub(crate) fn scan(&mut self, bytes: &[u8]) -> Scan {
        if let ScanState::Complete { end } = self.state {
            return Scan::Complete(end);
        }
        while self.at < bytes.len() {
            if let ScanState::Headers { line } = self.state {
                match scan_lines(bytes, &mut self.at, line) {
                    Lines::More(line) => self.state = ScanState::Headers { line },
                    Lines::End(end) => {
                        self.state = ScanState::Complete { end };
                        return Scan::Complete(end);
                    }
                    Lines::Malformed => return Scan::Malformed,
                }
                continue;
            }
            let Some(state) = self.after(bytes[self.at]) else {
                return Scan::Malformed;
            };
            self.state = state;
            self.at += 1;
        }
        Scan::More
    }

    /// Whether the request line is complete.
    pub(crate) fn has_request_line(&self) -> bool {
        matches!(self.state, ScanState::Headers { .. })
    }

    /// Whether the head is complete.
    pub(crate) fn is_complete(&self) -> bool {
        matches!(self.state, ScanState::Complete { .. })
    }

    /// Whether only empty lines have been scanned.
    pub(crate) fn has_only_empty_lines(&self) -> bool {
        self.state == ScanState::LeadingEmptyLines
    }

    fn after(&self, byte: u8) -> Option<ScanState> {
        let at = self.at;
        match self.state {
            // An empty line has two bytes, so carriage returns are at even positions.
            ScanState::LeadingEmptyLines if byte == b'\r' => {
                at.is_multiple_of(2).then_some(ScanState::LeadingEmptyLines)
            }
            ScanState::LeadingEmptyLines if byte == b'\n' => {
                (!at.is_multiple_of(2)).then_some(ScanState::LeadingEmptyLines)
            }
            ScanState::LeadingEmptyLines => (at.is_multiple_of(2) && byte.is_ascii_uppercase())
                .then_some(ScanState::Method { start: at }),
            ScanState::Method { start } if byte == b' ' => {
                (at - start <= MAX_METHOD_LENGTH).then_some(ScanState::Target { start: at + 1 })
            }
            ScanState::Method { start } => (at - start < MAX_METHOD_LENGTH
                && (byte.is_ascii_uppercase() || matches!(byte, b'-' | b'_')))
            .then_some(self.state),
            ScanState::Target { start } if byte == b' ' => {
                (at > start).then_some(ScanState::Version { start: at + 1 })
            }
            ScanState::Target { .. } => (byte > b' ' && byte != 0x7f).then_some(self.state),
            ScanState::Version { start } => self.after_version_byte(at - start, byte),
            ScanState::Headers { .. } | ScanState::Complete { .. } => Some(self.state),
        }
    }

    fn after_version_byte(&self, index: usize, byte: u8) -> Option<ScanState> {
        const VERSION: &[u8; 7] = b"HTTP/1.";
        match index {
            0..=6 => (byte == VERSION[index]).then_some(self.state),
            7 => matches!(byte, b'0' | b'1').then_some(self.state),
            8 => (byte == b'\r').then_some(self.state),
            _ => (byte == b'\n').then_some(ScanState::Headers { line: self.at + 1 }),
        }
    }
}

/// The result of [`scan_lines`].
pub(super) enum Lines {
    /// The line that starts here is not complete.
    More(usize),
    /// The empty line ends before this position.
    End(usize),
    Malformed,
}

/// Scans to the next end of a line, and moves `at` past it.
pub(super) fn scan_lines(bytes: &[u8], at: &mut usize, line: usize) -> Lines {
    let Some(found) = memchr::memchr(b'\n', &bytes[*at..]) else {
        *at = bytes.len();
        return Lines::More(line);
    };
    let feed = *at + found;
    if feed == line || bytes[feed - 1] != b'\r' {
        // `at` is not moved, so that a repeated scan has the same result.
        return Lines::Malformed;
    }
    *at = feed + 1;
    if feed - 1 == line {
        Lines::End(feed + 1)
    } else {
        Lines::More(feed + 1)
    }
}

/// A parsed request head.
#[derive(Debug)]
pub(crate) struct RequestHead<'bytes, 'headers> {
    pub(crate) method: &'bytes str,
    pub(crate) target: &'bytes str,
    pub(crate) headers: &'headers [Header<'bytes>],
}

/// The properties of a request that determine how it is forwarded.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct RequestShape {
    pub(crate) body: Option<Body>,
    pub(crate) kind: RequestKind,
    /// The client waits for `100 Continue` before it sends the body.
    pub(crate) expects_continue: bool,
    /// The request may safely be sent twice.
    pub(crate) is_idempotent: bool,
    /// The request authenticates the connection, so no other client may use it.
    pub(crate) binds_connection: bool,
}

/// How the request affects the parsing of its response.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum RequestKind {
    Ordinary,
    /// The response never has a body.
    Head,
    /// After a 2xx response the connection is a tunnel.
    Connect,
    /// After a 101 response the connection uses another protocol.
    Upgrade,
}

impl RequestKind {
    /// Whether the response may end HTTP on the connection. The client's next bytes cannot be parsed before it.
    pub(crate) fn may_switch_protocol(self) -> bool {
        matches!(self, Self::Connect | Self::Upgrade)
    }
}

/// Parses a complete head, and calls `then` with it.
pub(crate) fn parse_request<T>(
    bytes: &[u8],
    then: impl FnOnce(&RequestHead<'_, '_>, RequestShape) -> T,
) -> Result<T, Malformed> {
    // The parser initializes the array.
    let mut inline = [const { MaybeUninit::<Header<'_>>::uninit() }; INLINE_HEADERS];
    let mut request = httparse::Request::new(&mut []);
    let config = httparse::ParserConfig::default();
    match config.parse_request_with_uninit_headers(&mut request, bytes, &mut inline) {
        Ok(httparse::Status::Complete(_)) => finish_request(&request, then),
        Err(httparse::Error::TooManyHeaders) => {
            let mut many = vec![httparse::EMPTY_HEADER; MAX_HEADERS];
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
    let framing = Framing::parse(headers, version)?;
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
            shape.binds_connection |= authenticates_connection(header.value);
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

/// NTLM and Negotiate authenticate the connection instead of the request.
pub(super) fn authenticates_connection(value: &[u8]) -> bool {
    let starts_with = |scheme: &str| {
        value
            .get(..scheme.len())
            .is_some_and(|start| start.eq_ignore_ascii_case(scheme.as_bytes()))
    };
    starts_with("ntlm") || starts_with("negotiate")
}

/// How the headers delimit the body.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Framing {
    Nothing,
    Length(u64),
    Chunked,
}

impl Framing {
    /// Accepts only what every parser reads the same way: one length or one transfer coding.
    pub(super) fn parse(headers: &[Header<'_>], version: u8) -> Result<Self, Malformed> {
        let mut framing = Self::Nothing;
        for header in headers {
            if header.name.eq_ignore_ascii_case("content-length") {
                framing = match framing {
                    Self::Nothing => Self::Length(parse_length(header.value)?),
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

fn parse_length(value: &[u8]) -> Result<u64, Malformed> {
    const MAX_DIGITS: usize = 18;
    if value.is_empty() || value.len() > MAX_DIGITS || !value.iter().all(u8::is_ascii_digit) {
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
        let incremental = (1..=bytes.len())
            .map(|length| scanner.scan(&bytes.as_bytes()[..length]))
            .find(|scan| *scan != Scan::More)
            .unwrap_or(Scan::More);
        assert_eq!(incremental, whole, "{bytes:?}");
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
        parse_request(head.as_bytes(), |_, shape| shape)
    }

    #[test]
    fn the_headers_delimit_the_body() {
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
    fn more_headers_than_the_inline_array_are_parsed() {
        let many: String = (0..1000).map(|index| format!("x-{index}: y\r\n")).collect();
        let shape = shape(&format!("GET / HTTP/1.1\r\n{many}Upgrade: x\r\n\r\n")).unwrap();
        assert_eq!(shape.kind, RequestKind::Upgrade);
    }
}
