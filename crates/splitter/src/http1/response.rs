//! Watches answers go by, to know where each of them ends. The bytes are passed on whatever it thinks of them.

use std::collections::VecDeque;
use std::mem::MaybeUninit;

use bytes::{Buf, BytesMut};
use httparse::Header;

use super::body::{Body, Chunked};
use super::head::{Framing, Lines, Malformed, RequestKind, logs_in_a_connection, scan_lines};

/// More headers than any server sends.
const MOST_HEADERS: usize = 256;
/// A longer head is passed on without looking for its end.
const LONGEST_HEAD: usize = 256 * 1024;

/// Follows the answers on one connection.
#[derive(Debug, Default)]
pub(crate) struct Responses {
    /// Requests that were sent and not answered to the end, the oldest first.
    expected: VecDeque<RequestKind>,
    state: State,
    /// The first part of a head that came in parts.
    partial: BytesMut,
    /// The other end closes the connection after an answer, or it belongs to one client for good.
    must_not_be_reused: bool,
}

/// Where in the answers we are.
#[derive(Debug, Default)]
enum State {
    /// A head comes next. Left when it is complete.
    #[default]
    Head,
    /// Left when the body has come.
    Body(Body),
    /// What comes cannot be told apart any more. Never left.
    Left(Leaving),
}

/// Why the answers are not told apart any more.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Leaving {
    /// The body lasts as long as the connection.
    UntilClose,
    /// The connection belongs to something else than HTTP now.
    Switched,
    /// It is not understood.
    Unknown,
}

/// What a head says.
struct Answer {
    status: u16,
    framing: Result<Framing, Malformed>,
    closes: bool,
    binds_connection: bool,
}

impl Responses {
    /// A request has been sent.
    pub(crate) fn expect(&mut self, kind: RequestKind) {
        self.expected.push_back(kind);
    }

    /// Every request has been answered to the end.
    pub(crate) fn is_idle(&self) -> bool {
        self.expected.is_empty() && matches!(self.state, State::Head) && self.partial.is_empty()
    }

    pub(crate) fn leaving(&self) -> Option<Leaving> {
        match self.state {
            State::Left(leaving) => Some(leaving),
            State::Head | State::Body(_) => None,
        }
    }

    /// Whether the connection can be used for further requests, of this client or another.
    pub(crate) fn may_be_reused(&self) -> bool {
        self.is_idle() && !self.must_not_be_reused
    }

    pub(crate) fn never_reuse(&mut self) {
        self.must_not_be_reused = true;
    }

    /// Looks at the next bytes.
    pub(crate) fn observe(&mut self, mut bytes: &[u8]) {
        while !bytes.is_empty() {
            match &mut self.state {
                State::Left(_) => return,
                State::Body(body) => match body.consume(bytes) {
                    Ok(consumed) => {
                        bytes.advance(consumed.length);
                        if consumed.is_end {
                            self.finish();
                        }
                    }
                    Err(_) => self.leave(Leaving::Unknown),
                },
                State::Head if self.expected.is_empty() => self.leave(Leaving::Unknown),
                State::Head => bytes.advance(self.observe_head(bytes)),
            }
        }
    }

    /// Looks at bytes of a head, and says how many of them belong to it.
    fn observe_head(&mut self, bytes: &[u8]) -> usize {
        if self.partial.is_empty() {
            match end_of_head(bytes) {
                Lines::End(end) => {
                    self.answer(&bytes[..end]);
                    return end;
                }
                Lines::More(_) => self.partial.extend_from_slice(bytes),
                Lines::Malformed => self.leave(Leaving::Unknown),
            }
            return bytes.len();
        }
        let before = self.partial.len();
        self.partial.extend_from_slice(bytes);
        let head = std::mem::take(&mut self.partial);
        match end_of_head(&head) {
            Lines::End(end) => {
                self.answer(&head[..end]);
                // What came before did not have the end, so the end is in what came now.
                end.saturating_sub(before)
            }
            Lines::More(_) if head.len() < LONGEST_HEAD => {
                self.partial = head;
                bytes.len()
            }
            Lines::More(_) | Lines::Malformed => {
                self.leave(Leaving::Unknown);
                bytes.len()
            }
        }
    }

    fn answer(&mut self, head: &[u8]) {
        let Some(answer) = read_response(head) else {
            return self.leave(Leaving::Unknown);
        };
        let Some(kind) = self.expected.front().copied() else {
            return self.leave(Leaving::Unknown);
        };
        self.must_not_be_reused |= answer.closes || answer.binds_connection;
        match (answer.status, answer.framing) {
            (101, _) => self.leave(Leaving::Switched),
            // It announces another answer to the same request.
            (100..=199, _) => {}
            (200..=299, _) if kind == RequestKind::Connect => self.leave(Leaving::Switched),
            (204 | 304, _) => self.finish(),
            (_, _) if kind == RequestKind::Head => self.finish(),
            (_, Ok(Framing::Length(0))) => self.finish(),
            (_, Ok(Framing::Length(length))) => self.state = State::Body(Body::Length(length)),
            (_, Ok(Framing::Chunked)) => {
                self.state = State::Body(Body::Chunked(Chunked::default()));
            }
            (_, Ok(Framing::Nothing)) => self.leave(Leaving::UntilClose),
            (_, Err(_)) => self.leave(Leaving::Unknown),
        }
    }

    fn finish(&mut self) {
        self.expected.pop_front();
        self.state = State::Head;
    }

    fn leave(&mut self, leaving: Leaving) {
        self.must_not_be_reused = true;
        self.partial = BytesMut::new();
        self.state = State::Left(leaving);
    }
}

fn end_of_head(bytes: &[u8]) -> Lines {
    let mut at = 0;
    let mut line = 0;
    while at < bytes.len() {
        match scan_lines(bytes, &mut at, line) {
            // An answer never starts with an empty line.
            Lines::End(2) => return Lines::Malformed,
            Lines::More(next) => line = next,
            found => return found,
        }
    }
    Lines::More(line)
}

fn read_response(head: &[u8]) -> Option<Answer> {
    // The parser fills the array, so it is not filled before.
    let mut headers = [const { MaybeUninit::<Header<'_>>::uninit() }; MOST_HEADERS];
    let mut response = httparse::Response::new(&mut []);
    let Ok(httparse::Status::Complete(_)) = httparse::ParserConfig::default()
        .parse_response_with_uninit_headers(&mut response, head, &mut headers)
    else {
        return None;
    };
    let version = response.version?;
    let headers: &[Header<'_>] = response.headers;
    let mut answer = Answer {
        status: response.code?,
        framing: Framing::read(headers, version),
        closes: version == 0,
        binds_connection: false,
    };
    for header in headers {
        if header.name.eq_ignore_ascii_case("connection") {
            if has_word(header.value, "close") {
                answer.closes = true;
            } else if has_word(header.value, "keep-alive") {
                answer.closes = false;
            }
        } else if header.name.eq_ignore_ascii_case("www-authenticate") {
            answer.binds_connection |= logs_in_a_connection(header.value);
        }
    }
    Some(answer)
}

fn has_word(value: &[u8], word: &str) -> bool {
    value
        .split(|byte| *byte == b',')
        .any(|part| part.trim_ascii().eq_ignore_ascii_case(word.as_bytes()))
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Whether all requests are answered, whether the connection can be used again, and why answers are not told apart.
    type Known = (bool, bool, Option<Leaving>);

    /// What is known after the answers, however they are cut.
    fn watch(kinds: &[RequestKind], answers: &str) -> Known {
        let seen = |piece: usize| {
            let mut responses = Responses::default();
            for kind in kinds {
                responses.expect(*kind);
            }
            for part in answers.as_bytes().chunks(piece) {
                responses.observe(part);
            }
            (
                responses.is_idle(),
                responses.may_be_reused(),
                responses.leaving(),
            )
        };
        let whole = seen(answers.len());
        for piece in 1..answers.len() {
            assert_eq!(seen(piece), whole, "{answers:?} in pieces of {piece}");
        }
        whole
    }

    #[test]
    fn an_answer_ends_as_its_head_and_its_request_say() {
        use RequestKind::{Connect, Head, Ordinary, Upgrade};
        let done = (true, true, None);
        let waiting = (false, false, None);
        let left = |leaving| (false, false, Some(leaving));
        let cases: &[(&[RequestKind], &str, Known)] = &[
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
                left(Leaving::UntilClose),
            ),
            (
                &[Upgrade],
                "HTTP/1.1 101 Switching Protocols\r\nUpgrade: x\r\n\r\n\x01\x02",
                left(Leaving::Switched),
            ),
            (
                &[Upgrade],
                "HTTP/1.1 426 No\r\nContent-Length: 0\r\n\r\n",
                done,
            ),
            (
                &[Connect],
                "HTTP/1.1 200 OK\r\nContent-Length: 5\r\n\r\n",
                left(Leaving::Switched),
            ),
            (
                &[Connect],
                "HTTP/1.1 407 No\r\nContent-Length: 0\r\n\r\n",
                done,
            ),
            (
                &[Ordinary],
                "HTTP/1.1 200 OK\nContent-Length: 0\n\n",
                left(Leaving::Unknown),
            ),
            (
                &[Ordinary],
                "HTTP/1.1 200 OK\r\nContent-Length: 1\r\nTransfer-Encoding: chunked\r\n\r\n",
                left(Leaving::Unknown),
            ),
            (
                &[Ordinary],
                "\r\nHTTP/1.1 200 OK\r\n",
                left(Leaving::Unknown),
            ),
            (&[Ordinary], "SSH-2.0-x\r\n\r\n", left(Leaving::Unknown)),
            (&[], "HTTP/1.1 408 Too late\r\n\r\n", left(Leaving::Unknown)),
        ];
        for (kinds, answers, expected) in cases {
            assert_eq!(watch(kinds, answers), *expected, "{answers:?}");
        }
    }
}
