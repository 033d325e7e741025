//! Observes HTTP/1 requests and responses in the bytes of a connection. It does not change the bytes, and does not report
//! what it cannot parse.

use std::collections::VecDeque;
use std::time::{Duration, Instant};

use httparse::{EMPTY_HEADER, Request, Response, Status};

/// Longer heads are not parsed.
pub(super) const MAX_HEAD_BYTES: usize = 32 * 1024;
const MAX_HEADERS: usize = 100;
/// The maximum number of pipelined requests. No real client sends more.
const MAX_PENDING: usize = 256;
/// An exchange that lasts longer than this after the start of its response is reported before its end, which may be hours
/// later.
pub(super) const LONG_EXCHANGE: Duration = Duration::from_secs(2);
/// Longer paths are truncated.
pub(super) const MAX_PATH_CHARS: usize = 1024;

/// A request and its response.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct Exchange {
    pub(super) method: String,
    pub(super) path: String,
    pub(super) protocol: &'static str,
    pub(super) host: Option<String>,
    pub(super) status: Option<u16>,
    pub(super) latency: Duration,
    /// Bytes of the request body.
    pub(super) received: u64,
    /// Bytes of the response body.
    pub(super) sent: u64,
}

/// Observes both directions of an HTTP/1 connection.
#[derive(Debug, Default)]
pub(super) struct Http1Observer {
    requests: HalfParser,
    responses: HalfParser,
    /// Requests without a response, in order; the next response is for the first one.
    pending: VecDeque<Pending>,
    /// The exchange whose response has begun. The response may end before the request does.
    responding: Option<Responding>,
}

#[derive(Debug)]
struct Pending {
    exchange: Exchange,
    since: Instant,
}

#[derive(Debug)]
struct Responding {
    exchange: Exchange,
    since: Instant,
}

/// The parser of one direction.
#[derive(Debug, Default)]
struct HalfParser {
    /// The beginning of an incomplete head.
    head: Vec<u8>,
    body: Body,
    /// The bytes cannot be parsed any more. The other direction continues.
    is_lost: bool,
}

/// What the next bytes are.
#[derive(Debug, Default, Clone, Copy, PartialEq, Eq)]
enum Body {
    /// A head.
    #[default]
    None,
    Length(u64),
    Chunks(Chunk),
    /// The body lasts until the end of the connection.
    Rest,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Chunk {
    /// The size so far, and whether its digits have ended.
    Size(u64, bool),
    Data(u64),
    /// The line end after data.
    After,
    /// Trailer lines after the last chunk, and whether the current one is empty so far.
    Trailer(bool),
}

impl Http1Observer {
    /// Observes bytes of the client. Returns finished exchanges.
    pub(super) fn request(&mut self, mut bytes: &[u8], now: Instant) -> Vec<Exchange> {
        let mut finished = Vec::new();
        while !bytes.is_empty() && !self.requests.is_lost {
            if self.requests.body == Body::None {
                let Some(used) = self.request_head(bytes, now) else {
                    break;
                };
                bytes = &bytes[used..];
            } else {
                let (used, data, _) = self.requests.skip(bytes);
                if let Some(last) = self.pending.back_mut() {
                    last.exchange.received += data;
                } else if let Some(responding) = &mut self.responding {
                    responding.exchange.received += data;
                }
                bytes = &bytes[used..];
                finished.extend(self.take_finished(now));
            }
        }
        finished
    }

    /// Observes bytes of the program. Returns finished exchanges.
    pub(super) fn response(&mut self, mut bytes: &[u8], now: Instant) -> Vec<Exchange> {
        let mut finished = Vec::new();
        while !bytes.is_empty() && !self.responses.is_lost {
            if self.responses.body == Body::None {
                let Some(used) = self.response_head(bytes, now) else {
                    return finished;
                };
                bytes = &bytes[used..];
            } else {
                let (used, data, _) = self.responses.skip(bytes);
                if let Some(responding) = &mut self.responding {
                    responding.exchange.sent += data;
                }
                bytes = &bytes[used..];
            }
            finished.extend(self.take_finished(now));
        }
        finished
    }

    /// Takes the current exchange if its request and its response have ended. A request that lasts long after its response
    /// is reported before its end.
    fn take_finished(&mut self, now: Instant) -> Option<Exchange> {
        let responding = self.responding.as_ref()?;
        // If a later request has begun, this one is complete.
        let is_request_complete = self.requests.body == Body::None || !self.pending.is_empty();
        let is_long = now.saturating_duration_since(responding.since) >= LONG_EXCHANGE;
        let is_over = match self.responses.body {
            Body::None => is_request_complete || is_long,
            // A response without an end of its own is reported at its beginning: it may last for hours.
            Body::Rest => true,
            _ => false,
        };
        let finished = is_over.then(|| self.responding.take())?;
        finished.map(|responding| responding.exchange)
    }

    /// The connection has ended. Returns unfinished exchanges as far as they are known.
    pub(super) fn end(&mut self, now: Instant) -> Vec<Exchange> {
        let responding = self.responding.take().into_iter();
        let mut finished: Vec<Exchange> =
            responding.map(|responding| responding.exchange).collect();
        if !self.responses.is_lost {
            finished.extend(self.pending.drain(..).map(|pending| Exchange {
                latency: now.saturating_duration_since(pending.since),
                ..pending.exchange
            }));
        }
        finished
    }

    /// Parses a request head. Returns how many of these bytes it takes, or `None` if it is incomplete.
    fn request_head(&mut self, bytes: &[u8], now: Instant) -> Option<usize> {
        let mut headers = [EMPTY_HEADER; MAX_HEADERS];
        let mut request = Request::new(&mut headers);
        let joined = self.requests.join(bytes);
        let parsed = request.parse(joined.as_deref().unwrap_or(bytes));
        let length = match parsed {
            Ok(Status::Complete(length)) => length,
            Ok(Status::Partial) => {
                self.requests.is_lost |= !self.requests.buffer_head(bytes);
                return None;
            }
            Err(_) => {
                self.requests.is_lost = true;
                return None;
            }
        };
        let body = body_of(request.headers);
        let path = request.path.unwrap_or_default();
        let host = request
            .headers
            .iter()
            .find(|header| header.name.eq_ignore_ascii_case("host"));
        let exchange = Exchange {
            method: request.method.unwrap_or_default().to_owned(),
            path: path.chars().take(MAX_PATH_CHARS).collect(),
            protocol: protocol(request.version),
            host: host.map(|header| String::from_utf8_lossy(header.value).into_owned()),
            status: None,
            latency: Duration::ZERO,
            received: 0,
            sent: 0,
        };
        if self.pending.len() >= MAX_PENDING {
            self.requests.is_lost = true;
            return None;
        }
        let used = self.requests.start_body(length, body.unwrap_or(Body::None));
        let since = now;
        self.pending.push_back(Pending { exchange, since });
        Some(used)
    }

    fn response_head(&mut self, bytes: &[u8], now: Instant) -> Option<usize> {
        let mut headers = [EMPTY_HEADER; MAX_HEADERS];
        let mut response = Response::new(&mut headers);
        let joined = self.responses.join(bytes);
        let parsed = response.parse(joined.as_deref().unwrap_or(bytes));
        let length = match parsed {
            Ok(Status::Complete(length)) => length,
            Ok(Status::Partial) => {
                self.responses.is_lost |= !self.responses.buffer_head(bytes);
                return None;
            }
            Err(_) => {
                self.responses.is_lost = true;
                return None;
            }
        };
        let status = response.code.unwrap_or_default();
        let body = body_of(response.headers);
        if (100..200).contains(&status) && status != 101 {
            return Some(self.responses.start_body(length, Body::None));
        }
        let Some(Pending { exchange, since }) = self.pending.pop_front() else {
            self.responses.is_lost = true;
            return None;
        };
        let switches =
            status == 101 || exchange.method == "CONNECT" && (200..300).contains(&status);
        let has_none = exchange.method == "HEAD" || status == 204 || status == 304;
        let body = match body {
            _ if switches => Body::Rest,
            _ if has_none => Body::None,
            Some(body) => body,
            None => Body::Rest,
        };
        if switches {
            self.requests.body = Body::Rest;
        }
        self.responding = Some(Responding {
            exchange: Exchange {
                status: Some(status),
                latency: now.saturating_duration_since(since),
                ..exchange
            },
            since: now,
        });
        Some(self.responses.start_body(length, body))
    }
}

impl HalfParser {
    /// The buffered bytes together with these, if there are any.
    fn join(&self, bytes: &[u8]) -> Option<Vec<u8>> {
        (!self.head.is_empty()).then(|| [self.head.as_slice(), bytes].concat())
    }

    /// Buffers the beginning of a head. Returns false if it is too long.
    fn buffer_head(&mut self, bytes: &[u8]) -> bool {
        self.head.extend_from_slice(bytes);
        self.head.len() <= MAX_HEAD_BYTES
    }

    /// Continues with the body after a head of this length. Returns how many bytes of the head were not buffered.
    fn start_body(&mut self, length: usize, body: Body) -> usize {
        let used = length - self.head.len();
        self.head = Vec::new();
        self.body = body;
        used
    }

    /// Skips bytes of a body. Returns how many were used, how many of these are content, and whether the body has ended.
    fn skip(&mut self, bytes: &[u8]) -> (usize, u64, bool) {
        match &mut self.body {
            Body::None => (0, 0, true),
            Body::Rest => (bytes.len(), bytes.len() as u64, false),
            Body::Length(left) => {
                let taken = usize::try_from(*left)
                    .unwrap_or(usize::MAX)
                    .min(bytes.len());
                *left -= taken as u64;
                let ended = *left == 0;
                if ended {
                    self.body = Body::None;
                }
                (taken, taken as u64, ended)
            }
            Body::Chunks(chunk) => {
                let (taken, data, ended) = chunk.skip(bytes);
                if ended {
                    self.body = Body::None;
                }
                (taken, data, ended)
            }
        }
    }
}

impl Chunk {
    fn skip(&mut self, bytes: &[u8]) -> (usize, u64, bool) {
        let mut data = 0;
        let mut at = 0;
        while let Some(byte) = bytes.get(at) {
            match self {
                Chunk::Data(left) => {
                    let rest = bytes.len() - at;
                    let taken = usize::try_from(*left).unwrap_or(usize::MAX).min(rest);
                    *left -= taken as u64;
                    data += taken as u64;
                    at += taken;
                    if *left == 0 {
                        *self = Chunk::After;
                    }
                    continue;
                }
                Chunk::After if *byte == b'\n' => *self = Chunk::Size(0, false),
                Chunk::After => {}
                Chunk::Size(0, _) if *byte == b'\n' => *self = Chunk::Trailer(true),
                Chunk::Size(size, _) if *byte == b'\n' => *self = Chunk::Data(*size),
                Chunk::Size(size, ended) => match char::from(*byte).to_digit(16) {
                    Some(digit) if !*ended => {
                        *size = size.saturating_mul(16).saturating_add(digit.into());
                    }
                    _ => *ended = true,
                },
                Chunk::Trailer(true) if *byte == b'\n' => return (at + 1, data, true),
                Chunk::Trailer(empty) => *empty = *byte == b'\n' || *empty && *byte == b'\r',
            }
            at += 1;
        }
        (at, data, false)
    }
}

/// The body that the headers announce; `None` if they announce nothing.
fn body_of(headers: &[httparse::Header<'_>]) -> Option<Body> {
    let mut length = None;
    for header in headers {
        if header.name.eq_ignore_ascii_case("transfer-encoding") {
            return Some(Body::Chunks(Chunk::Size(0, false)));
        }
        if header.name.eq_ignore_ascii_case("content-length") {
            length = std::str::from_utf8(header.value).ok()?.trim().parse().ok();
        }
    }
    length.map(|length| match length {
        0 => Body::None,
        length => Body::Length(length),
    })
}

fn protocol(version: Option<u8>) -> &'static str {
    match version {
        Some(0) => "HTTP/1.0",
        _ => "HTTP/1.1",
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Feeds a conversation in pieces of each size, and checks the observed exchanges.
    #[track_caller]
    fn check(requests: &str, responses: &str, expected: &[&str]) {
        let now = Instant::now();
        for size in 1..=requests.len().max(responses.len()) {
            let mut observer = Http1Observer::default();
            for piece in requests.as_bytes().chunks(size) {
                observer.request(piece, now);
            }
            let mut seen = Vec::new();
            for piece in responses.as_bytes().chunks(size) {
                seen.extend(observer.response(piece, now));
            }
            seen.extend(observer.end(now));
            let seen: Vec<String> = seen
                .into_iter()
                .map(|exchange| {
                    let Exchange {
                        method,
                        path,
                        status,
                        received,
                        ..
                    } = exchange;
                    let status = status.map_or("-".to_owned(), |status| status.to_string());
                    format!("{method} {path} {status} {received}")
                })
                .collect();
            assert_eq!(seen, expected, "in pieces of {size}");
        }
    }

    #[test]
    fn requests_are_observed_with_their_responses() {
        check(
            "GET /a HTTP/1.1\r\nHost: x\r\n\r\nPOST /b HTTP/1.1\r\nContent-Length: 3\r\n\r\nabcHEAD /c HTTP/1.1\r\n\r\n",
            "HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nokHTTP/1.1 100 Continue\r\n\r\nHTTP/1.1 201 Created\r\nTransfer-Encoding: \
             chunked\r\n\r\n2;x=y\r\nab\r\nA\r\n0123456789\r\n0\r\nTrailer: 1\r\n\r\nHTTP/1.1 304 Not Modified\r\nContent-Length: 9\r\n\r\n",
            &["GET /a 200 0", "POST /b 201 3", "HEAD /c 304 0"],
        );
    }

    #[test]
    fn unfinished_and_missing_responses_are_reported() {
        check(
            "GET /events HTTP/1.1\r\n\r\n",
            "HTTP/1.1 200 OK\r\n\r\nHTTP/1.1 500 not a head",
            &["GET /events 200 0"],
        );
        check("GET /lost HTTP/1.1\r\n\r\n", "", &["GET /lost - 0"]);
        check(
            "GET /ws HTTP/1.1\r\nUpgrade: websocket\r\n\r\n\x01\x02GET",
            "HTTP/1.1 101 Switching\r\n\r\n\x01HTTP/1.1 400",
            &["GET /ws 101 0"],
        );
    }

    #[test]
    fn other_protocols_are_not_reported() {
        check("*1\r\n$4\r\nPING\r\n", "+PONG\r\n", &[]);
        check("PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n", "", &[]);
        check("", "220 mail.example.com\r\n", &[]);
    }

    #[test]
    fn bytes_of_response_bodies_are_counted() {
        let now = Instant::now();
        let mut observer = Http1Observer::default();
        observer.request(b"GET / HTTP/1.0\r\nHost: shop\r\n\r\n", now);
        let response =
            b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n3\r\nabc\r\n0\r\n\r\n";
        let later = now + Duration::from_millis(5);
        let seen = observer.response(response, later);
        let expected = Exchange {
            method: "GET".to_owned(),
            path: "/".to_owned(),
            protocol: "HTTP/1.0",
            host: Some("shop".to_owned()),
            status: Some(200),
            latency: Duration::from_millis(5),
            received: 0,
            sent: 3,
        };
        assert_eq!(seen, [expected]);
    }

    #[test]
    fn a_request_that_is_answered_early_is_reported_with_its_whole_body() {
        let now = Instant::now();
        let mut observer = Http1Observer::default();
        observer.request(b"POST / HTTP/1.1\r\nContent-Length: 7\r\n\r\none", now);
        let response = b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nok";
        assert_eq!(observer.response(response, now), []);
        let seen = observer.request(b"=twoGET /next HTTP/1.1\r\n\r\n", now);
        let counts: Vec<_> = seen.iter().map(|one| (one.received, one.sent)).collect();
        assert_eq!(counts, [(7, 2)]);
    }

    #[test]
    fn a_long_request_is_reported_before_its_end() {
        let now = Instant::now();
        let mut observer = Http1Observer::default();
        observer.request(b"POST / HTTP/1.1\r\nContent-Length: 9\r\n\r\n", now);
        let response = b"HTTP/1.1 200 OK\r\nContent-Length: 0\r\n\r\n";
        assert_eq!(observer.response(response, now), []);
        assert_eq!(observer.request(b"one", now), []);
        let seen = observer.request(b"two", now + LONG_EXCHANGE);
        assert_eq!(seen.iter().map(|one| one.received).collect::<Vec<_>>(), [6]);
        assert_eq!(observer.request(b"end", now + LONG_EXCHANGE), []);
    }
}
