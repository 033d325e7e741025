//! Sees requests and answers of HTTP/1 in the bytes of a connection, without a part in them: what it does not
//! understand it does not report, and bytes go on as they come.

use std::collections::VecDeque;
use std::time::{Duration, Instant};

use httparse::{EMPTY_HEADER, Request, Response, Status};

/// A longer head is not looked at.
pub(super) const LONGEST_HEAD: usize = 32 * 1024;
const MOST_HEADERS: usize = 100;
/// Requests without an answer of which it is known. More are pipelined by nobody.
const MOST_PENDING: usize = 256;
/// An exchange that goes on for longer after its answer began is told with what it is so far: it may go on for hours.
pub(super) const LONG: Duration = Duration::from_secs(2);
/// What is shown of a path.
pub(super) const LONGEST_PATH: usize = 1024;

/// A request and its answer.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct Exchange {
    pub(super) method: String,
    pub(super) path: String,
    pub(super) protocol: &'static str,
    pub(super) host: Option<String>,
    pub(super) status: Option<u16>,
    pub(super) latency: Duration,
    /// Of the bodies.
    pub(super) received: u64,
    pub(super) sent: u64,
}

/// Both directions of a connection.
#[derive(Debug, Default)]
pub(super) struct Observer {
    requests: Half,
    responses: Half,
    /// In the order in which they came; the first one is answered next.
    pending: VecDeque<Pending>,
    /// Its answer has begun, and may have ended before the request did.
    answering: Option<Answering>,
}

#[derive(Debug)]
struct Pending {
    exchange: Exchange,
    since: Instant,
}

#[derive(Debug)]
struct Answering {
    exchange: Exchange,
    since: Instant,
}

#[derive(Debug, Default)]
struct Half {
    /// The beginning of a head whose end has not come.
    head: Vec<u8>,
    body: Body,
    /// What is spoken is not understood, or not any more. The other half goes on with what it knows.
    lost: bool,
}

/// What comes next.
#[derive(Debug, Default, Clone, Copy, PartialEq, Eq)]
enum Body {
    /// A head.
    #[default]
    None,
    Length(u64),
    Chunks(Chunk),
    /// All that comes.
    Rest,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Chunk {
    /// Digits so far, and whether they have ended.
    Size(u64, bool),
    Data(u64),
    /// The line end after data.
    After,
    /// Lines after the last chunk, and whether this one is empty so far.
    Trailer(bool),
}

impl Observer {
    /// Bytes of the client.
    pub(super) fn request(&mut self, mut bytes: &[u8], now: Instant) -> Vec<Exchange> {
        let mut finished = Vec::new();
        while !bytes.is_empty() && !self.requests.lost {
            if self.requests.body == Body::None {
                let Some(used) = self.request_head(bytes, now) else {
                    break;
                };
                bytes = &bytes[used..];
            } else {
                let (used, data, _) = self.requests.skip(bytes);
                if let Some(last) = self.pending.back_mut() {
                    last.exchange.received += data;
                } else if let Some(answering) = &mut self.answering {
                    answering.exchange.received += data;
                }
                bytes = &bytes[used..];
                finished.extend(self.finished(now));
            }
        }
        finished
    }

    /// Bytes of the program.
    pub(super) fn response(&mut self, mut bytes: &[u8], now: Instant) -> Vec<Exchange> {
        let mut finished = Vec::new();
        while !bytes.is_empty() && !self.responses.lost {
            if self.responses.body == Body::None {
                let Some(used) = self.response_head(bytes, now) else {
                    return finished;
                };
                bytes = &bytes[used..];
            } else {
                let (used, data, _) = self.responses.skip(bytes);
                if let Some(answering) = &mut self.answering {
                    answering.exchange.sent += data;
                }
                bytes = &bytes[used..];
            }
            finished.extend(self.finished(now));
        }
        finished
    }

    /// The exchange whose both halves have ended. A request that goes on for long after its answer is told without its end.
    fn finished(&mut self, now: Instant) -> Option<Exchange> {
        let answering = self.answering.as_ref()?;
        // Where a later request has come, the answered one is whole.
        let is_asked = self.requests.body == Body::None || !self.pending.is_empty();
        let is_long = now.saturating_duration_since(answering.since) >= LONG;
        let is_over = match self.responses.body {
            Body::None => is_asked || is_long,
            // What has no end of its own is told when it begins: it may go on for hours.
            Body::Rest => true,
            _ => false,
        };
        let over = is_over.then(|| self.answering.take())?;
        over.map(|answering| answering.exchange)
    }

    /// Nothing more comes: what was asked is told with what is known.
    pub(super) fn end(&mut self, now: Instant) -> Vec<Exchange> {
        let answering = self.answering.take().into_iter();
        let mut finished: Vec<Exchange> = answering.map(|answering| answering.exchange).collect();
        if !self.responses.lost {
            finished.extend(self.pending.drain(..).map(|pending| Exchange {
                latency: now.saturating_duration_since(pending.since),
                ..pending.exchange
            }));
        }
        finished
    }

    /// How many bytes the head takes of these; nothing if it is not complete.
    fn request_head(&mut self, bytes: &[u8], now: Instant) -> Option<usize> {
        let mut headers = [EMPTY_HEADER; MOST_HEADERS];
        let mut request = Request::new(&mut headers);
        let joined = self.requests.join(bytes);
        let parsed = request.parse(joined.as_deref().unwrap_or(bytes));
        let length = match parsed {
            Ok(Status::Complete(length)) => length,
            Ok(Status::Partial) => {
                self.requests.lost |= !self.requests.keep(bytes);
                return None;
            }
            Err(_) => {
                self.requests.lost = true;
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
            path: path.chars().take(LONGEST_PATH).collect(),
            protocol: protocol(request.version),
            host: host.map(|header| String::from_utf8_lossy(header.value).into_owned()),
            status: None,
            latency: Duration::ZERO,
            received: 0,
            sent: 0,
        };
        if self.pending.len() >= MOST_PENDING {
            self.requests.lost = true;
            return None;
        }
        let used = self.requests.begin(length, body.unwrap_or(Body::None));
        let since = now;
        self.pending.push_back(Pending { exchange, since });
        Some(used)
    }

    fn response_head(&mut self, bytes: &[u8], now: Instant) -> Option<usize> {
        let mut headers = [EMPTY_HEADER; MOST_HEADERS];
        let mut response = Response::new(&mut headers);
        let joined = self.responses.join(bytes);
        let parsed = response.parse(joined.as_deref().unwrap_or(bytes));
        let length = match parsed {
            Ok(Status::Complete(length)) => length,
            Ok(Status::Partial) => {
                self.responses.lost |= !self.responses.keep(bytes);
                return None;
            }
            Err(_) => {
                self.responses.lost = true;
                return None;
            }
        };
        let status = response.code.unwrap_or_default();
        let body = body_of(response.headers);
        if (100..200).contains(&status) && status != 101 {
            return Some(self.responses.begin(length, Body::None));
        }
        let Some(Pending { exchange, since }) = self.pending.pop_front() else {
            self.responses.lost = true;
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
        self.answering = Some(Answering {
            exchange: Exchange {
                status: Some(status),
                latency: now.saturating_duration_since(since),
                ..exchange
            },
            since: now,
        });
        Some(self.responses.begin(length, body))
    }
}

impl Half {
    /// What came before together with these, if something came before.
    fn join(&self, bytes: &[u8]) -> Option<Vec<u8>> {
        (!self.head.is_empty()).then(|| [self.head.as_slice(), bytes].concat())
    }

    /// Keeps the beginning of a head, unless it is too long.
    fn keep(&mut self, bytes: &[u8]) -> bool {
        self.head.extend_from_slice(bytes);
        self.head.len() <= LONGEST_HEAD
    }

    /// A head of this length was read. Says how many of its bytes are new.
    fn begin(&mut self, length: usize, body: Body) -> usize {
        let used = length - self.head.len();
        self.head = Vec::new();
        self.body = body;
        used
    }

    /// Goes over bytes of a body: how many it took, how many of these are content, and whether the body ended.
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

/// What a head says of the body; nothing if it says nothing.
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

    /// Brings a conversation in pieces of each size, and checks what was seen.
    #[track_caller]
    fn check(requests: &str, responses: &str, expected: &[&str]) {
        let now = Instant::now();
        for size in 1..=requests.len().max(responses.len()) {
            let mut observer = Observer::default();
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
    fn requests_are_seen_with_their_answers() {
        check(
            "GET /a HTTP/1.1\r\nHost: x\r\n\r\nPOST /b HTTP/1.1\r\nContent-Length: 3\r\n\r\nabcHEAD /c HTTP/1.1\r\n\r\n",
            "HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nokHTTP/1.1 100 Continue\r\n\r\nHTTP/1.1 201 Created\r\nTransfer-Encoding: \
             chunked\r\n\r\n2;x=y\r\nab\r\nA\r\n0123456789\r\n0\r\nTrailer: 1\r\n\r\nHTTP/1.1 304 Not Modified\r\nContent-Length: 9\r\n\r\n",
            &["GET /a 200 0", "POST /b 201 3", "HEAD /c 304 0"],
        );
    }

    #[test]
    fn an_answer_without_an_end_and_one_that_never_comes_are_told() {
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
    fn what_is_not_http_is_not_reported() {
        check("*1\r\n$4\r\nPING\r\n", "+PONG\r\n", &[]);
        check("PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n", "", &[]);
        check("", "220 mail.example.com\r\n", &[]);
    }

    #[test]
    fn bodies_of_answers_are_counted() {
        let now = Instant::now();
        let mut observer = Observer::default();
        observer.request(b"GET / HTTP/1.0\r\nHost: shop\r\n\r\n", now);
        let answer = b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n3\r\nabc\r\n0\r\n\r\n";
        let later = now + Duration::from_millis(5);
        let seen = observer.response(answer, later);
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
    fn a_request_that_is_answered_before_it_is_whole_is_told_with_all_of_it() {
        let now = Instant::now();
        let mut observer = Observer::default();
        observer.request(b"POST / HTTP/1.1\r\nContent-Length: 7\r\n\r\none", now);
        let answer = b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nok";
        assert_eq!(observer.response(answer, now), []);
        let seen = observer.request(b"=twoGET /next HTTP/1.1\r\n\r\n", now);
        let counts: Vec<_> = seen.iter().map(|one| (one.received, one.sent)).collect();
        assert_eq!(counts, [(7, 2)]);
    }

    #[test]
    fn a_request_that_goes_on_after_its_answer_is_told_before_it_ends() {
        let now = Instant::now();
        let mut observer = Observer::default();
        observer.request(b"POST / HTTP/1.1\r\nContent-Length: 9\r\n\r\n", now);
        let answer = b"HTTP/1.1 200 OK\r\nContent-Length: 0\r\n\r\n";
        assert_eq!(observer.response(answer, now), []);
        assert_eq!(observer.request(b"one", now), []);
        let seen = observer.request(b"two", now + LONG);
        assert_eq!(seen.iter().map(|one| one.received).collect::<Vec<_>>(), [6]);
        assert_eq!(observer.request(b"end", now + LONG), []);
    }
}
