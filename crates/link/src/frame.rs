//! Frames: the messages on a pipe after the handshake.
//!
//! A frame is a kind (one byte), the length of its body (three bytes) and the body; all integers are big-endian.
//!
//! | kind | body | meaning |
//! |---|---|---|
//! | DATA | offset (8), bytes | bytes of the stream, the first of which has this offset |
//! | ACK | received (8), limit (8) | everything before `received` was received; nothing from `limit` on may be sent yet |
//! | PING, PONG | stamp (8) | keep-alive; the response repeats the stamp |
//! | FIN | offset (8) | the stream ends here. The end itself takes this offset, so that it is acknowledged like a byte |
//! | ABORT | code (2), text | the sender aborts the link, with a reason |
//! | CLOSED | | the server has seen the end of both streams, and removes the link |
//!
//! The decoder returns the bytes of a DATA frame as they are received, so it never waits for, or allocates, a whole frame,
//! and a connection that is lost in the middle of a frame loses no bytes that were received. Every length is checked before
//! it is used; malformed input is an error, never a panic.

use bytes::{Buf, Bytes, BytesMut};

use crate::error::Malformed;

/// Maximum number of stream bytes in one DATA frame. Large enough that the overhead of headers is negligible, small enough
/// that an ACK does not wait long behind one.
pub(crate) const MAX_DATA: usize = 256 * 1024;
/// Maximum length of the text of an ABORT frame or a refusal, in bytes.
pub(crate) const MAX_TEXT: usize = 512;

const HEADER: usize = 4;
const OFFSET: usize = 8;

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
    /// `offset` belongs to the first byte of this part. Never empty.
    Data {
        offset: u64,
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
        offset: u64,
    },
    Abort {
        code: u16,
        text: String,
    },
    Closed,
}

/// Decodes frames from the front of a buffer.
#[derive(Debug, Default)]
pub(crate) struct Decoder {
    /// The rest of the DATA frame whose header has been decoded: the offset of its next byte and the number of bytes.
    data: Option<(u64, usize)>,
}

impl Decoder {
    /// The next frame, or `None` if more bytes are needed.
    pub(crate) fn next(&mut self, buffer: &mut BytesMut) -> Result<Option<Frame>, Malformed> {
        if self.data.is_none() {
            let Some((kind, length)) = peek_header(buffer)? else {
                return Ok(None);
            };
            if kind != DATA {
                return Ok(take_small(kind, length, buffer));
            }
            if buffer.len() < HEADER + OFFSET {
                return Ok(None);
            }
            buffer.advance(HEADER);
            self.data = Some((buffer.get_u64(), length - OFFSET));
        }
        Ok(self.take_data(buffer))
    }

    /// How many bytes of the current DATA frame have not been received: the pipe's next bytes belong to the stream.
    pub(crate) fn data_remaining(&self) -> usize {
        self.data.map_or(0, |(_, rest)| rest)
    }

    /// The offset of the next of these bytes.
    pub(crate) fn next_offset(&self) -> Option<u64> {
        self.data.map(|(offset, _)| offset)
    }

    /// Bytes of the current DATA frame have been read without this decoder.
    pub(crate) fn skip_data(&mut self, count: usize) {
        if let Some((offset, rest)) = self.data {
            self.set_rest(offset, rest, count);
        }
    }

    fn take_data(&mut self, buffer: &mut BytesMut) -> Option<Frame> {
        let (offset, rest) = self.data.filter(|_| !buffer.is_empty())?;
        let count = rest.min(buffer.len());
        self.set_rest(offset, rest, count);
        let bytes = buffer.split_to(count).freeze();
        Some(Frame::Data { offset, bytes })
    }

    fn set_rest(&mut self, offset: u64, rest: usize, taken: usize) {
        // Wraps only for a peer that sends a wrong offset, which then differs from the expected one.
        let next = offset.wrapping_add(taken as u64);
        self.data = (rest > taken).then(|| (next, rest - taken));
    }
}

/// The kind and the length of the frame at the front of the buffer, if they are complete and valid.
fn peek_header(buffer: &[u8]) -> Result<Option<(u8, usize)>, Malformed> {
    let Some(&[kind, high, middle, low]) = buffer.first_chunk() else {
        return match buffer.first() {
            // An unknown kind is rejected with its first byte, before the rest of the header.
            Some(&kind) if !(DATA..=CLOSED).contains(&kind) => Err(Malformed::Kind(kind)),
            _ => Ok(None),
        };
    };
    let length = u32::from_be_bytes([0, high, middle, low]) as usize;
    let allowed = match kind {
        DATA => OFFSET + 1..=OFFSET + MAX_DATA,
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

/// Decodes a frame other than DATA. The header has been checked, so the length of the body is valid.
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
            offset: body.get_u64(),
        },
        ABORT => Frame::Abort {
            code: body.get_u16(),
            text: readable(&body),
        },
        _ => Frame::Closed,
    })
}

/// A peer's text, safe to display: characters that are not printable are replaced.
pub(crate) fn readable(bytes: &[u8]) -> String {
    let text = String::from_utf8_lossy(bytes);
    let printable = |character: char| match character {
        character if character.is_control() => char::REPLACEMENT_CHARACTER,
        character => character,
    };
    text.chars().map(printable).collect()
}

/// Truncates a text so that it fits into a frame.
pub(crate) fn truncated(text: &str) -> &str {
    &text[..text.floor_char_boundary(MAX_TEXT)]
}

/// Encodes the header of a DATA frame; `length` bytes of the stream follow.
pub(crate) fn put_data_header(out: &mut Vec<u8>, offset: u64, length: usize) {
    put_header(out, DATA, OFFSET + length);
    out.extend_from_slice(&offset.to_be_bytes());
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

pub(crate) fn put_fin(out: &mut Vec<u8>, offset: u64) {
    put_header(out, FIN, 8);
    out.extend_from_slice(&offset.to_be_bytes());
}

pub(crate) fn put_abort(out: &mut Vec<u8>, code: u16, text: &str) {
    let text = truncated(text);
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
