//! Observes HTTP/2 requests and responses in the bytes of a connection, as [`http1`](super::http1) does for HTTP/1.

mod hpack;
mod huffman;

use std::collections::HashMap;
use std::time::{Duration, Instant};

use self::hpack::{Decoder, Head};
use super::http1::{Exchange, LONG_EXCHANGE, MAX_HEAD_BYTES, MAX_PATH_CHARS};

/// The first bytes of a client.
pub(super) const PREFACE: &[u8] = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n";
/// The maximum number of observed streams. No real connection has more open streams.
const MAX_STREAMS: usize = 4096;

const DATA: u8 = 0;
const HEADERS: u8 = 1;
const RESET: u8 = 3;
const PROMISE: u8 = 5;
const CONTINUATION: u8 = 9;

const END_STREAM: u8 = 0x1;
const END_HEADERS: u8 = 0x4;
const PADDED: u8 = 0x8;
const PRIORITY: u8 = 0x20;

/// Observes both directions of an HTTP/2 connection, after the preface.
#[derive(Debug, Default)]
pub(super) struct Http2Observer {
    requests: HalfParser,
    responses: HalfParser,
    streams: HashMap<u32, Stream>,
}

/// A stream whose request or response has not ended. A program may respond before it has the whole request.
#[derive(Debug)]
struct Stream {
    exchange: Exchange,
    since: Instant,
    /// When the response began.
    responded_at: Option<Instant>,
    request_ended: bool,
    response_ended: bool,
}

/// The parser of one direction.
#[derive(Debug, Default)]
struct HalfParser {
    /// The beginning of an incomplete frame.
    head: Vec<u8>,
    /// Bytes of the current frame that are still to be skipped.
    skip: usize,
    /// A header block that continues in the next frame.
    block: Option<HeaderBlock>,
    decoder: Decoder,
    /// The bytes cannot be parsed any more.
    is_lost: bool,
}

/// A header block.
#[derive(Debug)]
struct HeaderBlock {
    stream: u32,
    ends: bool,
    is_promise: bool,
    bytes: Vec<u8>,
}

/// The sender of the bytes.
#[derive(Debug, Clone, Copy)]
enum Side {
    Client,
    Program,
}

/// A relevant part of a frame.
#[derive(Debug, PartialEq, Eq)]
enum FrameEvent {
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

impl Http2Observer {
    /// Observes bytes of the client. Returns finished exchanges.
    pub(super) fn request(&mut self, mut bytes: &[u8], now: Instant) -> Vec<Exchange> {
        let mut finished = Vec::new();
        while let Some((event, used)) = self.requests.next(bytes) {
            bytes = bytes.get(used..).unwrap_or_default();
            finished.extend(event.and_then(|event| self.handle(Side::Client, event, now)));
        }
        finished
    }

    /// Observes bytes of the program. Returns finished exchanges.
    pub(super) fn response(&mut self, mut bytes: &[u8], now: Instant) -> Vec<Exchange> {
        let mut finished = Vec::new();
        while let Some((event, used)) = self.responses.next(bytes) {
            bytes = bytes.get(used..).unwrap_or_default();
            finished.extend(event.and_then(|event| self.handle(Side::Program, event, now)));
        }
        finished
    }

    /// Handles a frame. Returns the exchange that it finishes.
    fn handle(&mut self, side: Side, event: FrameEvent, now: Instant) -> Option<Exchange> {
        let (number, length, ends) = match event {
            FrameEvent::Head { stream, head, ends } => {
                match side {
                    Side::Client => self.start_request(stream, head, now),
                    Side::Program => self.start_response(stream, &head, now),
                }
                (stream, 0, ends)
            }
            FrameEvent::Data {
                stream,
                length,
                ends,
            } => (stream, length, ends),
            FrameEvent::Reset { stream } => return self.finish(stream, now),
        };
        let stream = self.streams.get_mut(&number)?;
        match side {
            Side::Client => {
                stream.exchange.received += length;
                stream.request_ended |= ends;
            }
            Side::Program => {
                stream.exchange.sent += length;
                stream.response_ended |= ends;
            }
        }
        let elapsed = stream
            .responded_at
            .map(|at| now.saturating_duration_since(at));
        let is_long = elapsed.is_some_and(|elapsed| elapsed >= LONG_EXCHANGE);
        let has_ended = stream.request_ended && stream.response_ended;
        (has_ended || is_long).then(|| self.finish(number, now))?
    }

    /// The connection has ended. Returns unfinished exchanges as far as they are known.
    pub(super) fn end(&mut self, now: Instant) -> Vec<Exchange> {
        let mut streams: Vec<u32> = self.streams.keys().copied().collect();
        streams.sort_unstable();
        let all = streams.into_iter();
        all.filter_map(|stream| self.finish(stream, now)).collect()
    }

    fn start_request(&mut self, stream: u32, head: Head, now: Instant) {
        // Headers without a method are trailers.
        let Some(method) = head.method else { return };
        if self.streams.len() >= MAX_STREAMS {
            return;
        }
        let path = head.path.unwrap_or_default();
        let exchange = Exchange {
            method,
            path: path.chars().take(MAX_PATH_CHARS).collect(),
            protocol: "HTTP/2",
            host: head.authority,
            status: None,
            latency: Duration::ZERO,
            received: 0,
            sent: 0,
        };
        let new_stream = Stream {
            exchange,
            since: now,
            responded_at: None,
            request_ended: false,
            response_ended: false,
        };
        self.streams.insert(stream, new_stream);
    }

    fn start_response(&mut self, stream: u32, head: &Head, now: Instant) {
        let Some(stream) = self.streams.get_mut(&stream) else {
            return;
        };
        // Informational responses are not the response yet, and trailers have no status.
        if let Some(status @ 200..) = head.status {
            stream.exchange.status = Some(status);
            stream.exchange.latency = now.saturating_duration_since(stream.since);
            stream.responded_at = Some(now);
        }
    }

    fn finish(&mut self, stream: u32, now: Instant) -> Option<Exchange> {
        let stream = self.streams.remove(&stream)?;
        let mut exchange = stream.exchange;
        if stream.responded_at.is_none() {
            exchange.latency = now.saturating_duration_since(stream.since);
        }
        Some(exchange)
    }
}

impl HalfParser {
    /// Parses the next frame in these bytes. Returns its relevant part, if any, and how many bytes were used; `None` when the
    /// bytes are used up.
    fn next(&mut self, bytes: &[u8]) -> Option<(Option<FrameEvent>, usize)> {
        if bytes.is_empty() || self.is_lost {
            return None;
        }
        if self.skip > 0 {
            let skipped = self.skip.min(bytes.len());
            self.skip -= skipped;
            return Some((None, skipped));
        }
        let before = self.head.len();
        let needed = self.needed_bytes();
        if needed > MAX_HEAD_BYTES {
            self.is_lost = true;
            return None;
        }
        let taken = needed.saturating_sub(before).min(bytes.len());
        self.head.extend_from_slice(bytes.get(..taken)?);
        if self.head.len() < needed || self.needed_bytes() > needed {
            return Some((None, taken));
        }
        let frame = std::mem::take(&mut self.head);
        match self.read(&frame) {
            Ok(event) => Some((event, taken)),
            Err(()) => {
                self.is_lost = true;
                None
            }
        }
    }

    /// How many bytes of a frame are needed to parse it: the frame header, and the payload if it has a header block.
    fn needed_bytes(&self) -> usize {
        match FrameHeader::of(&self.head) {
            None => FrameHeader::LENGTH,
            Some(frame) => FrameHeader::LENGTH + frame.parsed_bytes(),
        }
    }

    fn read(&mut self, bytes: &[u8]) -> Result<Option<FrameEvent>, ()> {
        let frame = FrameHeader::of(bytes).ok_or(())?;
        self.skip = frame.length - frame.parsed_bytes();
        let payload = bytes.get(FrameHeader::LENGTH..).unwrap_or_default();
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
                Ok(Some(FrameEvent::Data {
                    stream,
                    length,
                    ends,
                }))
            }
            RESET => Ok(Some(FrameEvent::Reset { stream })),
            HEADERS | PROMISE | CONTINUATION => self.head(&frame, payload),
            _ => Ok(None),
        }
    }

    fn head(&mut self, frame: &FrameHeader, payload: &[u8]) -> Result<Option<FrameEvent>, ()> {
        let mut block = match frame.kind {
            CONTINUATION => self.block.take().ok_or(())?,
            kind => HeaderBlock {
                stream: frame.stream,
                ends: frame.flags & END_STREAM != 0,
                is_promise: kind == PROMISE,
                bytes: Vec::new(),
            },
        };
        block
            .bytes
            .extend_from_slice(frame.fragment(payload).ok_or(())?);
        if block.stream != frame.stream || block.bytes.len() > MAX_HEAD_BYTES {
            return Err(());
        }
        if frame.flags & END_HEADERS == 0 {
            self.block = Some(block);
            return Ok(None);
        }
        let head = self.decoder.decode(&block.bytes).ok_or(())?;
        // A promise is about another stream, which the client did not request.
        Ok((!block.is_promise).then_some(FrameEvent::Head {
            stream: block.stream,
            head,
            ends: block.ends,
        }))
    }
}

/// The header of a frame.
#[derive(Debug)]
struct FrameHeader {
    length: usize,
    kind: u8,
    flags: u8,
    stream: u32,
}

impl FrameHeader {
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

    /// How many bytes of the payload are parsed.
    fn parsed_bytes(&self) -> usize {
        match self.kind {
            HEADERS | PROMISE | CONTINUATION => self.length,
            DATA if self.flags & PADDED != 0 => self.length.min(1),
            _ => 0,
        }
    }

    /// The header block fragment of the payload.
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
