//! Finds the end of a body.

use bytes::BytesMut;

use super::head::Malformed;

/// The rest of a body.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Body {
    /// This number of bytes.
    Length(u64),
    /// Chunks up to the last one, and the trailers.
    Chunked(Chunked),
}

/// The part of some bytes that belongs to the body.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Consumed {
    pub(crate) length: usize,
    /// The body ends with these bytes.
    pub(crate) is_end: bool,
}

impl Body {
    /// Returns how many of the bytes belong to the body.
    pub(crate) fn consume(&mut self, bytes: &[u8]) -> Result<Consumed, Malformed> {
        match self {
            Self::Length(left) => {
                let length =
                    usize::try_from(*left).map_or(bytes.len(), |left| left.min(bytes.len()));
                *left -= length as u64;
                Ok(Consumed {
                    length,
                    is_end: *left == 0,
                })
            }
            Self::Chunked(chunked) => chunked.consume(bytes, None),
        }
    }

    /// Like [`Self::consume`], and appends the content without the chunk framing.
    pub(crate) fn consume_into(
        &mut self,
        bytes: &[u8],
        content: &mut BytesMut,
    ) -> Result<Consumed, Malformed> {
        match self {
            Self::Length(_) => {
                let consumed = self.consume(bytes)?;
                content.extend_from_slice(&bytes[..consumed.length]);
                Ok(consumed)
            }
            Self::Chunked(chunked) => chunked.consume(bytes, Some(content)),
        }
    }
}

/// The parse state of a chunked body. Only input that every parser reads the same way is accepted: no white space around a
/// size, no line that ends without a carriage return.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Chunked {
    Size { value: u64, digits: u8 },
    Extension { value: u64 },
    SizeLineFeed { value: u64 },
    Data { left: u64 },
    DataCarriageReturn,
    DataLineFeed,
    TrailerStart,
    Trailer,
    TrailerLineFeed,
    LastLineFeed,
}

/// More digits than chunks need, and few enough that a size cannot overflow.
const MAX_SIZE_DIGITS: u8 = 15;

impl Default for Chunked {
    fn default() -> Self {
        Self::Size {
            value: 0,
            digits: 0,
        }
    }
}

impl Chunked {
    fn consume(
        &mut self,
        bytes: &[u8],
        mut content: Option<&mut BytesMut>,
    ) -> Result<Consumed, Malformed> {
        let mut at = 0;
        while at < bytes.len() {
            if let Self::Data { left } = self {
                let available = bytes.len() - at;
                let length = usize::try_from(*left).map_or(available, |left| left.min(available));
                if let Some(content) = &mut content {
                    content.extend_from_slice(&bytes[at..at + length]);
                }
                at += length;
                *left -= length as u64;
                if *left == 0 {
                    *self = Self::DataCarriageReturn;
                }
                continue;
            }
            let byte = bytes[at];
            at += 1;
            if *self == Self::LastLineFeed && byte == b'\n' {
                return Ok(Consumed {
                    length: at,
                    is_end: true,
                });
            }
            *self = self.after(byte).ok_or(Malformed::Chunk)?;
        }
        Ok(Consumed {
            length: at,
            is_end: false,
        })
    }

    /// The state after one byte of framing, or `None` if the byte is not allowed here.
    fn after(self, byte: u8) -> Option<Self> {
        match (self, byte) {
            (Self::Size { value, digits }, _) if byte.is_ascii_hexdigit() => {
                let digit = u64::from(char::from(byte).to_digit(16)?);
                (digits < MAX_SIZE_DIGITS).then_some(Self::Size {
                    value: value * 16 + digit,
                    digits: digits + 1,
                })
            }
            (Self::Size { value, digits }, b'\r') if digits > 0 => {
                Some(Self::SizeLineFeed { value })
            }
            (Self::Size { value, digits }, b';') if digits > 0 => Some(Self::Extension { value }),
            (Self::Extension { value }, b'\r') => Some(Self::SizeLineFeed { value }),
            (Self::Extension { .. }, _) => is_line_byte(byte).then_some(self),
            (Self::SizeLineFeed { value: 0 } | Self::TrailerLineFeed, b'\n') => {
                Some(Self::TrailerStart)
            }
            (Self::SizeLineFeed { value }, b'\n') => Some(Self::Data { left: value }),
            (Self::DataCarriageReturn, b'\r') => Some(Self::DataLineFeed),
            (Self::DataLineFeed, b'\n') => Some(Self::default()),
            (Self::TrailerStart, b'\r') => Some(Self::LastLineFeed),
            // Some parsers treat a line that starts with white space as a continuation of the previous one, others do not.
            (Self::TrailerStart, b' ' | b'\t') => None,
            (Self::Trailer, b'\r') => Some(Self::TrailerLineFeed),
            (Self::TrailerStart | Self::Trailer, _) => is_line_byte(byte).then_some(Self::Trailer),
            _ => None,
        }
    }
}

fn is_line_byte(byte: u8) -> bool {
    byte == b'\t' || (byte >= b' ' && byte != 0x7f)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The body's length in bytes and its content. They must not depend on how the bytes are split into reads.
    fn read(bytes: &[u8]) -> Result<Option<(usize, Vec<u8>)>, Malformed> {
        let whole = read_in_pieces(bytes, bytes.len().max(1));
        for piece in 1..bytes.len() {
            assert_eq!(read_in_pieces(bytes, piece), whole, "in pieces of {piece}");
        }
        whole
    }

    fn read_in_pieces(bytes: &[u8], piece: usize) -> Result<Option<(usize, Vec<u8>)>, Malformed> {
        let mut body = Body::Chunked(Chunked::default());
        let mut content = BytesMut::new();
        let mut length = 0;
        for part in bytes.chunks(piece) {
            let consumed = body.consume_into(part, &mut content)?;
            length += consumed.length;
            if consumed.is_end {
                return Ok(Some((length, content.to_vec())));
            }
            assert_eq!(consumed.length, part.len());
        }
        Ok(None)
    }

    #[test]
    fn chunked_bodies_are_parsed() {
        let cases: &[(&str, usize, &str)] = &[
            ("0\r\n\r\n", 5, ""),
            ("5\r\nhello\r\n0\r\n\r\nGET /", 15, "hello"),
            ("2;name=\"value\"\r\nok\r\n00\r\n\r\n", 26, "ok"),
            (
                "A\r\n0123456789\r\n0\r\nChecksum: 1\r\nOther: 2\r\n\r\n",
                43,
                "0123456789",
            ),
            ("1\r\n\r\r\n0\r\n\r\n", 11, "\r"),
        ];
        for (bytes, length, content) in cases {
            assert_eq!(
                read(bytes.as_bytes()),
                Ok(Some((*length, content.as_bytes().to_vec()))),
                "{bytes:?}"
            );
        }
    }

    #[test]
    fn ambiguous_chunks_are_rejected() {
        for bytes in [
            "5\nhello\r\n0\r\n\r\n",
            " 5\r\nhello\r\n",
            "5 \r\nhello\r\n",
            "0x5\r\nhello\r\n",
            "+5\r\nhello\r\n",
            "-1\r\n",
            "\r\n",
            ";x\r\n",
            "5;a\rb\r\n",
            "5;a\nb\r\n",
            "5\r\nhelloX",
            "5\r\nhello\n0\r\n",
            "FFFFFFFFFFFFFFFFF\r\n",
            "0\r\n folded: line\r\n\r\n",
            "0\r\nName: value\n\r\n",
            "0\r\nName: va\rlue\r\n\r\n",
            "0\r\n\rX",
        ] {
            assert_eq!(read(bytes.as_bytes()), Err(Malformed::Chunk), "{bytes:?}");
        }
    }

    #[test]
    fn a_body_with_a_length_ends_after_it() {
        let mut body = Body::Length(5);
        let first = body.consume(b"hel").unwrap();
        assert_eq!((first.length, first.is_end), (3, false));
        let last = body.consume(b"loGET /").unwrap();
        assert_eq!((last.length, last.is_end), (2, true));
    }
}
