//! Tracks the responses on an upstream connection to find where each of them ends. The bytes are forwarded in any case.

use std::collections::VecDeque;
use std::mem::MaybeUninit;

use bytes::{Buf, BytesMut};
use httparse::Header;

use super::body::{Body, Chunked};
use super::head::{Framing, Lines, Malformed, RequestKind, authenticates_connection, scan_lines};

/// More headers than servers send.
const MAX_HEADERS: usize = 256;
/// A longer head is forwarded without looking for its end.
const MAX_HEAD: usize = 256 * 1024;

/// Tracks the responses on one connection.
#[derive(Debug, Default)]
pub(crate) struct ResponseTracker {
    /// Requests without a complete response, the oldest first.
    expected: VecDeque<RequestKind>,
    state: State,
    /// The first part of a head that is not complete.
    partial: BytesMut,
    /// The upstream closes the connection after a response, or the connection is bound to one client.
    must_not_be_reused: bool,
}

/// The parse state of the responses.
#[derive(Debug, Default)]
enum State {
    /// Until the head is complete.
    #[default]
    Head,
    /// Until the body is complete.
    Body(Body),
    /// Responses are not parsed any more. Final.
    Passthrough(PassthroughReason),
}

/// Why responses are not parsed any more.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum PassthroughReason {
    /// The body ends with the connection.
    UntilClose,
    /// The connection has switched to another protocol.
    ProtocolSwitched,
    /// A response cannot be parsed.
    Malformed,
}

/// A parsed response head.
struct ResponseHead {
    status: u16,
    framing: Result<Framing, Malformed>,
    closes: bool,
    binds_connection: bool,
}

impl ResponseTracker {
    /// A request has been sent.
    pub(crate) fn expect(&mut self, kind: RequestKind) {
        self.expected.push_back(kind);
    }

    /// The size of the buffer.
    pub(crate) fn buffered(&self) -> usize {
        self.partial.capacity()
    }

    /// Whether every request has a complete response.
    pub(crate) fn is_idle(&self) -> bool {
        self.expected.is_empty() && matches!(self.state, State::Head) && self.partial.is_empty()
    }

    pub(crate) fn passthrough(&self) -> Option<PassthroughReason> {
        match self.state {
            State::Passthrough(passthrough) => Some(passthrough),
            State::Head | State::Body(_) => None,
        }
    }

    /// Whether the connection can be used for further requests, of this or another client.
    pub(crate) fn may_be_reused(&self) -> bool {
        self.is_idle() && !self.must_not_be_reused
    }

    pub(crate) fn never_reuse(&mut self) {
        self.must_not_be_reused = true;
    }

    /// Parses the next bytes.
    pub(crate) fn observe(&mut self, mut bytes: &[u8]) {
        while !bytes.is_empty() {
            match &mut self.state {
                State::Passthrough(_) => return,
                State::Body(body) => match body.consume(bytes) {
                    Ok(consumed) => {
                        bytes.advance(consumed.length);
                        if consumed.is_end {
                            self.finish();
                        }
                    }
                    Err(_) => self.pass_through(PassthroughReason::Malformed),
                },
                State::Head if self.expected.is_empty() => {
                    self.pass_through(PassthroughReason::Malformed);
                }
                State::Head => bytes.advance(self.observe_head(bytes)),
            }
        }
    }

    /// Parses bytes of a head, and returns how many of them belong to it.
    fn observe_head(&mut self, bytes: &[u8]) -> usize {
        if self.partial.is_empty() {
            match end_of_head(bytes) {
                Lines::End(end) => {
                    self.start_response(&bytes[..end]);
                    return end;
                }
                Lines::More(_) => self.partial.extend_from_slice(bytes),
                Lines::Malformed => self.pass_through(PassthroughReason::Malformed),
            }
            return bytes.len();
        }
        let before = self.partial.len();
        self.partial.extend_from_slice(bytes);
        let head = std::mem::take(&mut self.partial);
        match end_of_head(&head) {
            Lines::End(end) => {
                self.start_response(&head[..end]);
                // The earlier bytes did not contain the end, so it is in the new ones.
                end.saturating_sub(before)
            }
            Lines::More(_) if head.len() < MAX_HEAD => {
                self.partial = head;
                bytes.len()
            }
            Lines::More(_) | Lines::Malformed => {
                self.pass_through(PassthroughReason::Malformed);
                bytes.len()
            }
        }
    }

    fn start_response(&mut self, head: &[u8]) {
        let Some(response) = parse_response(head) else {
            return self.pass_through(PassthroughReason::Malformed);
        };
        let Some(kind) = self.expected.front().copied() else {
            return self.pass_through(PassthroughReason::Malformed);
        };
        self.must_not_be_reused |= response.closes || response.binds_connection;
        match (response.status, response.framing) {
            (101, _) => self.pass_through(PassthroughReason::ProtocolSwitched),
            // An informational response: the final one follows.
            (100..=199, _) => {}
            (200..=299, _) if kind == RequestKind::Connect => {
                self.pass_through(PassthroughReason::ProtocolSwitched);
            }
            (204 | 304, _) => self.finish(),
            (_, _) if kind == RequestKind::Head => self.finish(),
            (_, Ok(Framing::Length(0))) => self.finish(),
            (_, Ok(Framing::Length(length))) => self.state = State::Body(Body::Length(length)),
            (_, Ok(Framing::Chunked)) => {
                self.state = State::Body(Body::Chunked(Chunked::default()));
            }
            (_, Ok(Framing::Nothing)) => self.pass_through(PassthroughReason::UntilClose),
            (_, Err(_)) => self.pass_through(PassthroughReason::Malformed),
        }
    }

    fn finish(&mut self) {
        self.expected.pop_front();
        self.state = State::Head;
    }

    fn pass_through(&mut self, passthrough: PassthroughReason) {
        self.must_not_be_reused = true;
        self.partial = BytesMut::new();
        self.state = State::Passthrough(passthrough);
    }
}

fn end_of_head(bytes: &[u8]) -> Lines {
    let mut at = 0;
    let mut line = 0;
    while at < bytes.len() {
        match scan_lines(bytes, &mut at, line) {
            // A response never starts with an empty line.
            Lines::End(2) => return Lines::Malformed,
            Lines::More(next) => line = next,
            found => return found,
        }
    }
    Lines::More(line)
}

fn parse_response(head: &[u8]) -> Option<ResponseHead> {
    // The parser initializes the array.
    let mut headers = [const { MaybeUninit::<Header<'_>>::uninit() }; MAX_HEADERS];
    let mut response = httparse::Response::new(&mut []);
    let Ok(httparse::Status::Complete(_)) = httparse::ParserConfig::default()
        .parse_response_with_uninit_headers(&mut response, head, &mut headers)
    else {
        return None;
    };
    let version = response.version?;
    let headers: &[Header<'_>] = response.headers;
    let mut response_head = ResponseHead {
        status: response.code?,
        framing: Framing::parse(headers, version),
        closes: version == 0,
        binds_connection: false,
    };
    for header in headers {
        if header.name.eq_ignore_ascii_case("connection") {
            if has_token(header.value, "close") {
                response_head.closes = true;
            } else if has_token(header.value, "keep-alive") {
                response_head.closes = false;
            }
        } else if header.name.eq_ignore_ascii_case("www-authenticate") {
            response_head.binds_connection |= authenticates_connection(header.value);
        }
    }
    Some(response_head)
}

fn has_token(value: &[u8], token: &str) -> bool {
    value
        .split(|byte| *byte == b',')
        .any(|part| part.trim_ascii().eq_ignore_ascii_case(token.as_bytes()))
}

#[cfg(test)]
mod tests {
    use super::*;

    /// `is_idle`, `may_be_reused` and `passthrough`.
    type Tracked = (bool, bool, Option<PassthroughReason>);

    /// The tracker's state after the responses. It must not depend on how they are split into reads.
    fn track(kinds: &[RequestKind], responses: &str) -> Tracked {
        let tracked = |piece: usize| {
            let mut tracker = ResponseTracker::default();
            for kind in kinds {
                tracker.expect(*kind);
            }
            for part in responses.as_bytes().chunks(piece) {
                tracker.observe(part);
            }
            (
                tracker.is_idle(),
                tracker.may_be_reused(),
                tracker.passthrough(),
            )
        };
        let whole = tracked(responses.len());
        for piece in 1..responses.len() {
            assert_eq!(tracked(piece), whole, "{responses:?} in pieces of {piece}");
        }
        whole
    }

    #[test]
    fn the_end_of_a_response_depends_on_its_head_and_request() {
        use RequestKind::{Connect, Head, Ordinary, Upgrade};
        let done = (true, true, None);
        let waiting = (false, false, None);
        let passthrough = |reason| (false, false, Some(reason));
        let cases: &[(&[RequestKind], &str, Tracked)] = &[
            (
                &[Ordinary],
                "HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nok",
                done,
            ),
            (
                &[Ordinary],
                "HTTP/1.1 200 OK\r\nContent-Length: 3\r\n\r\nok",
                waiting,
            ),
            (
                &[Ordinary, Ordinary],
                "HTTP/1.1 200 OK\r\nContent-Length: 0\r\n\r\n",
                waiting,
            ),
            (
                &[Ordinary, Ordinary],
                "HTTP/1.1 204 A\r\n\r\nHTTP/1.1 304 B\r\nContent-Length: 9\r\n\r\n",
                done,
            ),
            (
                &[Head],
                "HTTP/1.1 200 OK\r\nContent-Length: 500\r\n\r\n",
                done,
            ),
            (
                &[Head],
                "HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n",
                done,
            ),
            (
                &[Ordinary],
                "HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n2\r\nok\r\n0\r\nA: b\r\n\r\n",
                done,
            ),
            (
                &[Ordinary],
                "HTTP/1.1 100 Continue\r\n\r\nHTTP/1.1 103 Hints\r\nLink: x\r\n\r\nHTTP/1.1 200 OK\r\nContent-Length: 0\r\n\r\n",
                done,
            ),
            (&[Ordinary], "HTTP/1.1 100 Continue\r\n\r\n", waiting),
            (
                &[Ordinary],
                "HTTP/1.1 200 OK\r\nConnection: close\r\nContent-Length: 0\r\n\r\n",
                (true, false, None),
            ),
            (
                &[Ordinary],
                "HTTP/1.0 200 OK\r\nContent-Length: 0\r\n\r\n",
                (true, false, None),
            ),
            (
                &[Ordinary],
                "HTTP/1.0 200 OK\r\nConnection: keep-alive\r\nContent-Length: 0\r\n\r\n",
                done,
            ),
            (
                &[Ordinary],
                "HTTP/1.1 401 No\r\nWWW-Authenticate: NTLM\r\nContent-Length: 0\r\n\r\n",
                (true, false, None),
            ),
            (
                &[Ordinary],
                "HTTP/1.1 200 OK\r\n\r\nuntil the end",
                passthrough(PassthroughReason::UntilClose),
            ),
            (
                &[Upgrade],
                "HTTP/1.1 101 Switching Protocols\r\nUpgrade: x\r\n\r\n\x01\x02",
                passthrough(PassthroughReason::ProtocolSwitched),
            ),
            (
                &[Upgrade],
                "HTTP/1.1 426 No\r\nContent-Length: 0\r\n\r\n",
                done,
            ),
            (
                &[Connect],
                "HTTP/1.1 200 OK\r\nContent-Length: 5\r\n\r\n",
                passthrough(PassthroughReason::ProtocolSwitched),
            ),
            (
                &[Connect],
                "HTTP/1.1 407 No\r\nContent-Length: 0\r\n\r\n",
                done,
            ),
            (
                &[Ordinary],
                "HTTP/1.1 200 OK\nContent-Length: 0\n\n",
                passthrough(PassthroughReason::Malformed),
            ),
            (
                &[Ordinary],
                "HTTP/1.1 200 OK\r\nContent-Length: 1\r\nTransfer-Encoding: chunked\r\n\r\n",
                passthrough(PassthroughReason::Malformed),
            ),
            (
                &[Ordinary],
                "\r\nHTTP/1.1 200 OK\r\n",
                passthrough(PassthroughReason::Malformed),
            ),
            (
                &[Ordinary],
                "SSH-2.0-x\r\n\r\n",
                passthrough(PassthroughReason::Malformed),
            ),
            (
                &[],
                "HTTP/1.1 408 Too late\r\n\r\n",
                passthrough(PassthroughReason::Malformed),
            ),
        ];
        for (kinds, responses, expected) in cases {
            assert_eq!(track(kinds, responses), *expected, "{responses:?}");
        }
    }
}
