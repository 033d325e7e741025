//! Sees requests and answers of HTTP/2 in the bytes of a connection, as [`http1`](super::http1) does in those of HTTP/1.

mod hpack;
mod huffman;

use std::collections::HashMap;
use std::time::{Duration, Instant};

use self::hpack::{Decoder, Head};
use super::http1::{Exchange, LONG, LONGEST_HEAD, LONGEST_PATH};

/// What a client says first.
pub(super) const PREFACE: &[u8] = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n";
/// Streams that are known at a time. More are open at once with nobody.
const MOST_STREAMS: usize = 4096;

const DATA: u8 = 0;
const HEADERS: u8 = 1;
const RESET: u8 = 3;
const PROMISE: u8 = 5;
const CONTINUATION: u8 = 9;

const END_STREAM: u8 = 0x1;
const END_HEADERS: u8 = 0x4;
const PADDED: u8 = 0x8;
const PRIORITY: u8 = 0x20;

/// Both directions of a connection, after the preface.
#[derive(Debug, Default)]
pub(super) struct Observer {
    requests: Half,
    responses: Half,
    streams: HashMap<u32, Stream>,
}

/// A request that has not ended, or whose answer has not: a program may answer before it has the whole request.
#[derive(Debug)]
struct Stream {
    exchange: Exchange,
    since: Instant,
    /// When the answer began.
    answered: Option<Instant>,
    request_ended: bool,
    answer_ended: bool,
}

#[derive(Debug, Default)]
struct Half {
    /// The beginning of what is not complete.
    head: Vec<u8>,
    /// So much of a frame is still to come, and of no interest.
    skip: usize,
    /// A head that goes on in the next frame.
    block: Option<Block>,
    decoder: Decoder,
    /// What is spoken is not understood, or not any more.
    lost: bool,
}

#[derive(Debug)]
struct Block {
    stream: u32,
    ends: bool,
    is_promise: bool,
    bytes: Vec<u8>,
}

/// Whose bytes they are.
#[derive(Debug, Clone, Copy)]
enum Side {
    Client,
    Program,
}

/// What a frame says.
#[derive(Debug, PartialEq, Eq)]
enum Said {
    Head {
        stream: u32,
        head: Head,
        ends: bool,
    },
    Data {
        stream: u32,
        length: u64,
        ends: bool,
    },
    Reset {
        stream: u32,
    },
}

impl Observer {
    /// Bytes of the client.
    pub(super) fn request(&mut self, mut bytes: &[u8], now: Instant) -> Vec<Exchange> {
        let mut finished = Vec::new();
        while let Some((said, used)) = self.requests.next(bytes) {
            bytes = bytes.get(used..).unwrap_or_default();
            finished.extend(said.and_then(|said| self.hear(Side::Client, said, now)));
        }
        finished
    }

    /// Bytes of the program.
    pub(super) fn response(&mut self, mut bytes: &[u8], now: Instant) -> Vec<Exchange> {
        let mut finished = Vec::new();
        while let Some((said, used)) = self.responses.next(bytes) {
            bytes = bytes.get(used..).unwrap_or_default();
            finished.extend(said.and_then(|said| self.hear(Side::Program, said, now)));
        }
        finished
    }

    /// What a frame says, and the exchange that is over with it.
    fn hear(&mut self, side: Side, said: Said, now: Instant) -> Option<Exchange> {
        let (number, length, ends) = match said {
            Said::Head { stream, head, ends } => {
                match side {
                    Side::Client => self.asked(stream, head, now),
                    Side::Program => self.answered(stream, &head, now),
                }
                (stream, 0, ends)
            }
            Said::Data {
                stream,
                length,
                ends,
            } => (stream, length, ends),
            Said::Reset { stream } => return self.end_of(stream, now),
        };
        let stream = self.streams.get_mut(&number)?;
        match side {
            Side::Client => {
                stream.exchange.received += length;
                stream.request_ended |= ends;
            }
            Side::Program => {
                stream.exchange.sent += length;
                stream.answer_ended |= ends;
            }
        }
        let answered = stream.answered.map(|at| now.saturating_duration_since(at));
        let is_long = answered.is_some_and(|since| since >= LONG);
        let has_ended = stream.request_ended && stream.answer_ended;
        (has_ended || is_long).then(|| self.end_of(number, now))?
    }

    /// Nothing more comes: what was asked is told with what is known.
    pub(super) fn end(&mut self, now: Instant) -> Vec<Exchange> {
        let mut streams: Vec<u32> = self.streams.keys().copied().collect();
        streams.sort_unstable();
        let all = streams.into_iter();
        all.filter_map(|stream| self.end_of(stream, now)).collect()
    }

    fn asked(&mut self, stream: u32, head: Head, now: Instant) {
        // Without a method it is what follows a body.
        let Some(method) = head.method else { return };
        if self.streams.len() >= MOST_STREAMS {
            return;
        }
        let path = head.path.unwrap_or_default();
        let exchange = Exchange {
            method,
            path: path.chars().take(LONGEST_PATH).collect(),
            protocol: "HTTP/2",
            host: head.authority,
            status: None,
            latency: Duration::ZERO,
            received: 0,
            sent: 0,
        };
        let stream_of = Stream {
            exchange,
            since: now,
            answered: None,
            request_ended: false,
            answer_ended: false,
        };
        self.streams.insert(stream, stream_of);
    }

    fn answered(&mut self, stream: u32, head: &Head, now: Instant) {
        let Some(stream) = self.streams.get_mut(&stream) else {
            return;
        };
        // What is not final is no answer yet, and what follows a body has no status.
        if let Some(status @ 200..) = head.status {
            stream.exchange.status = Some(status);
            stream.exchange.latency = now.saturating_duration_since(stream.since);
            stream.answered = Some(now);
        }
    }

    fn end_of(&mut self, stream: u32, now: Instant) -> Option<Exchange> {
        let stream = self.streams.remove(&stream)?;
        let mut exchange = stream.exchange;
        if stream.answered.is_none() {
            exchange.latency = now.saturating_duration_since(stream.since);
        }
        Some(exchange)
    }
}

impl Half {
    /// The next frame in these bytes, as far as it is of interest, and how many of the bytes it took. Nothing when they are
    /// used up.
    fn next(&mut self, bytes: &[u8]) -> Option<(Option<Said>, usize)> {
        if bytes.is_empty() || self.lost {
            return None;
        }
        if self.skip > 0 {
            let skipped = self.skip.min(bytes.len());
            self.skip -= skipped;
            return Some((None, skipped));
        }
        let before = self.head.len();
        let wanted = self.wanted();
        if wanted > LONGEST_HEAD {
            self.lost = true;
            return None;
        }
        let taken = wanted.saturating_sub(before).min(bytes.len());
        self.head.extend_from_slice(bytes.get(..taken)?);
        if self.head.len() < wanted || self.wanted() > wanted {
            return Some((None, taken));
        }
        let frame = std::mem::take(&mut self.head);
        match self.read(&frame) {
            Ok(said) => Some((said, taken)),
            Err(()) => {
                self.lost = true;
                None
            }
        }
    }

    /// How many bytes of a frame have to be there: its nine first ones, and the rest if it has a head in it.
    fn wanted(&self) -> usize {
        match Frame::of(&self.head) {
            None => Frame::LENGTH,
            Some(frame) => Frame::LENGTH + frame.looked_at(),
        }
    }

    fn read(&mut self, bytes: &[u8]) -> Result<Option<Said>, ()> {
        let frame = Frame::of(bytes).ok_or(())?;
        self.skip = frame.length - frame.looked_at();
        let payload = bytes.get(Frame::LENGTH..).unwrap_or_default();
        let (stream, ends) = (frame.stream, frame.flags & END_STREAM != 0);
        if self.block.is_some() && frame.kind != CONTINUATION {
            return Err(());
        }
        match frame.kind {
            DATA => {
                let padding = match frame.flags & PADDED {
                    0 => 0,
                    _ => 1 + u64::from(*payload.first().ok_or(())?),
                };
                let length = (frame.length as u64).saturating_sub(padding);
                Ok(Some(Said::Data {
                    stream,
                    length,
                    ends,
                }))
            }
            RESET => Ok(Some(Said::Reset { stream })),
            HEADERS | PROMISE | CONTINUATION => self.head(&frame, payload),
            _ => Ok(None),
        }
    }

    fn head(&mut self, frame: &Frame, payload: &[u8]) -> Result<Option<Said>, ()> {
        let mut block = match frame.kind {
            CONTINUATION => self.block.take().ok_or(())?,
            kind => Block {
                stream: frame.stream,
                ends: frame.flags & END_STREAM != 0,
                is_promise: kind == PROMISE,
                bytes: Vec::new(),
            },
        };
        block
            .bytes
            .extend_from_slice(frame.fragment(payload).ok_or(())?);
        if block.stream != frame.stream || block.bytes.len() > LONGEST_HEAD {
            return Err(());
        }
        if frame.flags & END_HEADERS == 0 {
            self.block = Some(block);
            return Ok(None);
        }
        let head = self.decoder.read(&block.bytes).ok_or(())?;
        // A promise is about another stream, which nobody asked for.
        Ok((!block.is_promise).then_some(Said::Head {
            stream: block.stream,
            head,
            ends: block.ends,
        }))
    }
}

/// The beginning of a frame.
#[derive(Debug)]
struct Frame {
    length: usize,
    kind: u8,
    flags: u8,
    stream: u32,
}

impl Frame {
    const LENGTH: usize = 9;

    fn of(bytes: &[u8]) -> Option<Self> {
        let [one, two, three, kind, flags, stream @ ..] = bytes.first_chunk::<9>()?;
        Some(Self {
            length: u32::from_be_bytes([0, *one, *two, *three]) as usize,
            kind: *kind,
            flags: *flags,
            stream: u32::from_be_bytes(*stream) & 0x7fff_ffff,
        })
    }

    /// How much of what it carries is looked at.
    fn looked_at(&self) -> usize {
        match self.kind {
            HEADERS | PROMISE | CONTINUATION => self.length,
            DATA if self.flags & PADDED != 0 => self.length.min(1),
            _ => 0,
        }
    }

    /// The part of a head in it.
    fn fragment<'a>(&self, payload: &'a [u8]) -> Option<&'a [u8]> {
        if self.kind == CONTINUATION {
            return Some(payload);
        }
        let has_padding = self.flags & PADDED != 0;
        let padding = match has_padding {
            true => usize::from(*payload.first()?),
            false => 0,
        };
        let priority = match (self.kind, self.flags & PRIORITY) {
            (HEADERS, PRIORITY) => 5,
            (PROMISE, _) => 4,
            _ => 0,
        };
        let end = payload.len().checked_sub(padding)?;
        payload.get(usize::from(has_padding) + priority..end)
    }
}

#[cfg(test)]
mod properties;
#[cfg(test)]
mod tests;
