//! Frames: what travels on a pipe once both ends have greeted each other.
//!
//! A frame is a kind (one byte), the length of its body (three bytes) and the body; all numbers are big-endian.
//!
//! | kind | body | meaning |
//! |---|---|---|
//! | DATA | number (8), bytes | bytes of the stream, the first of which has this number |
//! | ACK | received (8), limit (8) | everything before `received` has arrived; nothing from `limit` on may be sent yet |
//! | PING, PONG | stamp (8) | is anybody there; the answer repeats the stamp |
//! | FIN | number (8) | the stream ends here. The end itself takes this number, so that it is acknowledged like a byte |
//! | ABORT | code (2), text | the sender gives up, and why |
//! | CLOSED | | the server has seen both streams end, and forgets the link |
//!
//! The decoder hands out the bytes of a DATA frame as they arrive, so it never waits for, or allocates, a whole frame,
//! and a connection that is lost in the middle of one loses nothing that had arrived. Every length is checked before
//! it is used; an input that makes no sense is an error, never a panic.

use bytes::{Buf, Bytes, BytesMut};

use crate::error::Malformed;

/// The most bytes of the stream in one DATA frame. Large enough that headers cost nothing, small enough that an
/// acknowledgement does not wait long behind one.
pub(crate) const MAX_DATA: usize = 256 * 1024;
/// The longest text of an ABORT frame or a refusal, in bytes.
pub(crate) const MAX_TEXT: usize = 512;

const HEADER: usize = 4;
const NUMBER: usize = 8;

const DATA: u8 = 1;
const ACK: u8 = 2;
const PING: u8 = 3;
const PONG: u8 = 4;
const FIN: u8 = 5;
const ABORT: u8 = 6;
const CLOSED: u8 = 7;

/// A whole frame, or a part of a DATA frame.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Frame {
    /// `number` is that of the first byte of this part. Never empty.
    Data {
        number: u64,
        bytes: Bytes,
    },
    Ack {
        received: u64,
        limit: u64,
    },
    Ping {
        stamp: u64,
    },
    Pong {
        stamp: u64,
    },
    Fin {
        number: u64,
    },
    Abort {
        code: u16,
        text: String,
    },
    Closed,
}

/// Takes frames from the front of a buffer.
#[derive(Debug, Default)]
pub(crate) struct Decoder {
    /// The rest of the DATA frame whose header has been read: the number of its next byte and how many there are.
    data: Option<(u64, usize)>,
}

impl Decoder {
    /// The next frame, or None when the buffer has to grow first.
    pub(crate) fn next(&mut self, buffer: &mut BytesMut) -> Result<Option<Frame>, Malformed> {
        if self.data.is_none() {
            let Some((kind, length)) = peek_header(buffer)? else {
                return Ok(None);
            };
            if kind != DATA {
                return Ok(take_small(kind, length, buffer));
            }
            if buffer.len() < HEADER + NUMBER {
                return Ok(None);
            }
            buffer.advance(HEADER);
            self.data = Some((buffer.get_u64(), length - NUMBER));
        }
        Ok(self.take_data(buffer))
    }

    /// How many bytes of the current DATA frame are still to come: the pipe's next bytes belong to the stream.
    pub(crate) fn data_to_come(&self) -> usize {
        self.data.map_or(0, |(_, rest)| rest)
    }

    /// The number that the next of these bytes has.
    pub(crate) fn next_number(&self) -> Option<u64> {
        self.data.map(|(number, _)| number)
    }

    /// As many bytes of the current DATA frame have been read past this decoder.
    pub(crate) fn skip_data(&mut self, count: usize) {
        if let Some((number, rest)) = self.data {
            self.set_rest(number, rest, count);
        }
    }

    fn take_data(&mut self, buffer: &mut BytesMut) -> Option<Frame> {
        let (number, rest) = self.data.filter(|_| !buffer.is_empty())?;
        let count = rest.min(buffer.len());
        self.set_rest(number, rest, count);
        let bytes = buffer.split_to(count).freeze();
        Some(Frame::Data { number, bytes })
    }

    fn set_rest(&mut self, number: u64, rest: usize, taken: usize) {
        // Wraps only for a peer that lies about the number; it then differs from the one that is expected.
        let next = number.wrapping_add(taken as u64);
        self.data = (rest > taken).then(|| (next, rest - taken));
    }
}

/// The kind and the length of the frame at the front of the buffer, if they are there and allowed.
fn peek_header(buffer: &[u8]) -> Result<Option<(u8, usize)>, Malformed> {
    let Some(&[kind, high, middle, low]) = buffer.first_chunk() else {
        return match buffer.first() {
            // An unknown kind is refused with its first byte, not when its peer falls silent.
            Some(&kind) if !(DATA..=CLOSED).contains(&kind) => Err(Malformed::Kind(kind)),
            _ => Ok(None),
        };
    };
    let length = u32::from_be_bytes([0, high, middle, low]) as usize;
    let allowed = match kind {
        DATA => NUMBER + 1..=NUMBER + MAX_DATA,
        ACK => 16..=16,
        PING | PONG | FIN => 8..=8,
        ABORT => 2..=2 + MAX_TEXT,
        CLOSED => 0..=0,
        _ => return Err(Malformed::Kind(kind)),
    };
    if allowed.contains(&length) {
        Ok(Some((kind, length)))
    } else {
        Err(Malformed::Length { kind, length })
    }
}

/// Takes a frame other than DATA. The header has been checked, so the lengths of the bodies are right.
fn take_small(kind: u8, length: usize, buffer: &mut BytesMut) -> Option<Frame> {
    if buffer.len() < HEADER + length {
        return None;
    }
    buffer.advance(HEADER);
    let mut body = buffer.split_to(length);
    Some(match kind {
        ACK => Frame::Ack {
            received: body.get_u64(),
            limit: body.get_u64(),
        },
        PING => Frame::Ping {
            stamp: body.get_u64(),
        },
        PONG => Frame::Pong {
            stamp: body.get_u64(),
        },
        FIN => Frame::Fin {
            number: body.get_u64(),
        },
        ABORT => Frame::Abort {
            code: body.get_u16(),
            text: readable(&body),
        },
        _ => Frame::Closed,
    })
}

/// A peer's text, safe to show: whatever is not a printable character is replaced.
pub(crate) fn readable(bytes: &[u8]) -> String {
    let text = String::from_utf8_lossy(bytes);
    let printable = |character: char| match character {
        character if character.is_control() => char::REPLACEMENT_CHARACTER,
        character => character,
    };
    text.chars().map(printable).collect()
}

/// The start of a text that fits into a frame.
pub(crate) fn shortened(text: &str) -> &str {
    &text[..text.floor_char_boundary(MAX_TEXT)]
}

/// Writes the header of a DATA frame; `length` bytes of the stream follow.
pub(crate) fn put_data_header(out: &mut Vec<u8>, number: u64, length: usize) {
    put_header(out, DATA, NUMBER + length);
    out.extend_from_slice(&number.to_be_bytes());
}

pub(crate) fn put_ack(out: &mut Vec<u8>, received: u64, limit: u64) {
    put_header(out, ACK, 16);
    out.extend_from_slice(&received.to_be_bytes());
    out.extend_from_slice(&limit.to_be_bytes());
}

pub(crate) fn put_ping(out: &mut Vec<u8>, stamp: u64) {
    put_header(out, PING, 8);
    out.extend_from_slice(&stamp.to_be_bytes());
}

pub(crate) fn put_pong(out: &mut Vec<u8>, stamp: u64) {
    put_header(out, PONG, 8);
    out.extend_from_slice(&stamp.to_be_bytes());
}

pub(crate) fn put_fin(out: &mut Vec<u8>, number: u64) {
    put_header(out, FIN, 8);
    out.extend_from_slice(&number.to_be_bytes());
}

pub(crate) fn put_abort(out: &mut Vec<u8>, code: u16, text: &str) {
    let text = shortened(text);
    put_header(out, ABORT, 2 + text.len());
    out.extend_from_slice(&code.to_be_bytes());
    out.extend_from_slice(text.as_bytes());
}

pub(crate) fn put_closed(out: &mut Vec<u8>) {
    put_header(out, CLOSED, 0);
}

fn put_header(out: &mut Vec<u8>, kind: u8, length: usize) {
    // Lengths are bounded by MAX_DATA and MAX_TEXT, far below three bytes.
    let [_, high, middle, low] = (length as u32).to_be_bytes();
    out.extend_from_slice(&[kind, high, middle, low]);
}

#[cfg(test)]
mod tests;
