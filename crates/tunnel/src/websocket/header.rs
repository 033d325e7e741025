//! The header of a WebSocket frame.
//!
//! Two bytes with the opcode and the length, up to eight more for a long length, and four for the mask.

use std::io;

use super::invalid;

pub(super) const MAX_HEADER: usize = 14;
/// Maximum payload of a control frame.
pub(super) const MAX_CONTROL: usize = 125;
/// The payload of a close frame: the code for a normal end.
pub(super) const NORMAL_CLOSURE: [u8; 2] = 1000_u16.to_be_bytes();

const FIN: u8 = 0x80;
const RESERVED: u8 = 0x70;
const MASKED: u8 = 0x80;
const LENGTH_16: u8 = 126;
const LENGTH_64: u8 = 127;

/// What a frame is. Text is not used.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Opcode {
    /// The first frame of a binary message, or a later one.
    Data,
    Close,
    Ping,
    Pong,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Header {
    pub(super) opcode: Opcode,
    pub(super) length: usize,
    pub(super) mask: Option<[u8; 4]>,
}

/// Decodes headers from bytes that may be received one by one.
#[derive(Debug, Default)]
pub(super) struct HeaderDecoder {
    bytes: [u8; MAX_HEADER],
    length: usize,
}

impl HeaderDecoder {
    /// How many bytes are needed at least to complete the header.
    pub(super) fn missing(&self) -> usize {
        self.expected() - self.length
    }

    /// Adds bytes, at most as many as were missing. Returns the header when it is complete.
    pub(super) fn push(&mut self, bytes: &[u8]) -> io::Result<Option<Header>> {
        self.bytes[self.length..self.length + bytes.len()].copy_from_slice(bytes);
        self.length += bytes.len();
        if self.missing() > 0 {
            return Ok(None);
        }
        let header = self.decode()?;
        self.length = 0;
        Ok(Some(header))
    }

    /// The length of the header, as far as it is known.
    fn expected(&self) -> usize {
        if self.length < 2 {
            return 2;
        }
        let mask = if self.bytes[1] & MASKED == 0 { 0 } else { 4 };
        2 + self.extended_length() + mask
    }

    fn extended_length(&self) -> usize {
        match self.bytes[1] & !MASKED {
            LENGTH_16 => 2,
            LENGTH_64 => 8,
            _ => 0,
        }
    }

    fn decode(&self) -> io::Result<Header> {
        let first = self.bytes[0];
        if first & RESERVED != 0 {
            return Err(invalid("the WebSocket frame uses an unknown extension"));
        }
        let opcode = match first & 0x0f {
            0x0 | 0x2 => Opcode::Data,
            0x8 => Opcode::Close,
            0x9 => Opcode::Ping,
            0xa => Opcode::Pong,
            _ => return Err(invalid("the WebSocket message is not binary")),
        };
        let extended = self.extended_length();
        let length = match extended {
            0 => u64::from(self.bytes[1] & !MASKED),
            _ => self.bytes[2..2 + extended]
                .iter()
                .fold(0, |length, byte| length << 8 | u64::from(*byte)),
        };
        if opcode != Opcode::Data && (length > MAX_CONTROL as u64 || first & FIN == 0) {
            return Err(invalid("the WebSocket control frame is too long"));
        }
        let mask = &self.bytes[2 + extended..self.expected()];
        Ok(Header {
            opcode,
            length: usize::try_from(length)
                .map_err(|_| invalid("the WebSocket frame is too long"))?,
            mask: mask.try_into().ok(),
        })
    }
}

/// Adds the header of a whole message.
pub(super) fn put(buffer: &mut Vec<u8>, opcode: Opcode, length: usize, mask: Option<[u8; 4]>) {
    let code = match opcode {
        Opcode::Data => 0x2,
        Opcode::Close => 0x8,
        Opcode::Ping => 0x9,
        Opcode::Pong => 0xa,
    };
    let masked = if mask.is_some() { MASKED } else { 0 };
    buffer.push(FIN | code);
    match length {
        0..=125 => buffer.push(masked | length as u8),
        126..=0xffff => {
            buffer.push(masked | LENGTH_16);
            buffer.extend_from_slice(&(length as u16).to_be_bytes());
        }
        _ => {
            buffer.push(masked | LENGTH_64);
            buffer.extend_from_slice(&(length as u64).to_be_bytes());
        }
    }
    buffer.extend_from_slice(mask.as_ref().map_or(&[][..], |mask| &mask[..]));
}

/// Masks or unmasks bytes that start at this position of the payload.
pub(super) fn apply_mask(bytes: &mut [u8], mask: [u8; 4], position: usize) {
    let mut mask = mask;
    mask.rotate_left(position % 4);
    let word = u32::from_ne_bytes(mask);
    let long = (u64::from(word) << 32 | u64::from(word)).to_ne_bytes();
    let (words, rest) = bytes.as_chunks_mut::<8>();
    let long = u64::from_ne_bytes(long);
    for bytes in words {
        *bytes = (u64::from_ne_bytes(*bytes) ^ long).to_ne_bytes();
    }
    for (byte, mask) in rest.iter_mut().zip(mask.iter().cycle()) {
        *byte ^= mask;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Encodes a header, decodes it with these numbers of bytes at a time, and compares.
    fn check(opcode: Opcode, length: usize, mask: Option<[u8; 4]>, header_length: usize) {
        let mut bytes = Vec::new();
        put(&mut bytes, opcode, length, mask);
        assert_eq!(bytes.len(), header_length);
        for step in [1, 3, MAX_HEADER] {
            let mut decoder = HeaderDecoder::default();
            let (mut rest, mut decoded) = (&bytes[..], None);
            while !rest.is_empty() {
                assert_eq!(decoded, None);
                let (now, later) = rest.split_at(decoder.missing().min(step).min(rest.len()));
                decoded = decoder.push(now).unwrap();
                rest = later;
            }
            let expected = Header {
                opcode,
                length,
                mask,
            };
            assert_eq!(decoded, Some(expected), "in steps of {step}");
        }
    }

    #[test]
    fn headers_are_decoded_as_they_were_encoded() {
        let mask = Some([1, 2, 3, 4]);
        check(Opcode::Data, 0, None, 2);
        check(Opcode::Data, 125, mask, 6);
        check(Opcode::Data, 126, None, 4);
        check(Opcode::Data, 65_535, mask, 8);
        check(Opcode::Data, 65_536, None, 10);
        check(Opcode::Data, 65_536, mask, 14);
        check(Opcode::Ping, 4, mask, 6);
        check(Opcode::Pong, 125, None, 2);
        check(Opcode::Close, 2, mask, 6);
    }

    #[test]
    fn malformed_headers_are_refused() {
        let check = |bytes: &[u8], expected: &str| {
            let mut decoder = HeaderDecoder::default();
            let mut rest = bytes;
            let mut result = Ok(None);
            while !rest.is_empty() {
                let (now, later) = rest.split_at(decoder.missing().min(rest.len()));
                result = decoder.push(now);
                rest = later;
            }
            assert_eq!(result.unwrap_err().to_string(), expected);
        };
        check(&[0x81, 1], "the WebSocket message is not binary");
        check(&[0xc2, 1], "the WebSocket frame uses an unknown extension");
        check(
            &[0x89, 126, 0, 126],
            "the WebSocket control frame is too long",
        );
        check(&[0x09, 1], "the WebSocket control frame is too long");
    }

    #[test]
    fn masking_in_parts_is_masking_at_once() {
        let bytes: Vec<u8> = (0..100).collect();
        let mask = [7, 77, 177, 222];
        let expected: Vec<u8> = bytes
            .iter()
            .zip(mask.iter().cycle())
            .map(|(byte, mask)| byte ^ mask)
            .collect();
        for cut in 0..bytes.len() {
            let mut masked = bytes.clone();
            let (first, second) = masked.split_at_mut(cut);
            apply_mask(first, mask, 0);
            apply_mask(second, mask, cut);
            assert_eq!(masked, expected, "cut at {cut}");
        }
    }
}
