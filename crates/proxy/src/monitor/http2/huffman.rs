//! The Huffman code of HPACK (RFC 7541, appendix B).
//!
//! The code is canonical: codes of one length are consecutive in the order of their symbols, so the lengths define it.

use std::sync::OnceLock;

/// The code lengths in bits, by symbol.
#[rustfmt::skip]
const LENGTHS: [u8; 256] = [
    13, 23, 28, 28, 28, 28, 28, 28, 28, 24, 30, 28, 28, 30, 28, 28, 28, 28, 28, 28, 28, 28, 30, 28, 28, 28, 28, 28, 28, 28, 28, 28,
    6, 10, 10, 12, 13, 6, 8, 11, 10, 10, 8, 11, 8, 6, 6, 6, 5, 5, 5, 6, 6, 6, 6, 6, 6, 6, 7, 8, 15, 6, 12, 10,
    13, 6, 7, 7, 7, 7, 7, 7, 7, 7, 7, 7, 7, 7, 7, 7, 7, 7, 7, 7, 7, 7, 7, 7, 8, 7, 8, 13, 19, 13, 14, 6,
    15, 5, 6, 5, 6, 5, 6, 6, 6, 5, 7, 7, 6, 6, 6, 5, 6, 7, 6, 5, 5, 6, 7, 7, 7, 7, 7, 15, 11, 14, 13, 28,
    20, 22, 20, 20, 22, 22, 22, 23, 22, 23, 23, 23, 23, 23, 24, 23, 24, 24, 22, 23, 24, 23, 23, 23, 23, 21, 22, 23, 22, 23, 23, 24,
    22, 21, 20, 22, 22, 23, 23, 21, 23, 22, 22, 24, 21, 22, 23, 23, 21, 21, 22, 21, 23, 22, 23, 23, 20, 22, 22, 22, 23, 22, 22, 23,
    26, 26, 20, 19, 22, 23, 22, 25, 26, 26, 26, 27, 27, 26, 24, 25, 19, 21, 26, 27, 27, 26, 27, 24, 21, 21, 26, 26, 28, 27, 27, 27,
    20, 24, 20, 21, 22, 21, 21, 23, 22, 22, 25, 25, 24, 24, 26, 23, 26, 27, 26, 26, 27, 27, 27, 27, 27, 28, 27, 27, 27, 27, 27, 26,
];
const MIN_BITS: u32 = 5;
const MAX_BITS: u32 = 30;

/// The codes of one length.
#[derive(Debug, Clone, Copy, Default)]
struct Codes {
    first: u32,
    count: u32,
    /// The index of their first symbol.
    start: usize,
}

struct Table {
    by_length: [Codes; MAX_BITS as usize + 1],
    symbols: Vec<u8>,
}

impl Table {
    fn new() -> Self {
        let mut symbols: Vec<u8> = (0..=u8::MAX).collect();
        symbols.sort_by_key(|symbol| LENGTHS[usize::from(*symbol)]);
        let mut by_length = [Codes::default(); MAX_BITS as usize + 1];
        let mut next = 0_u32;
        let mut start = 0;
        for (length, codes) in by_length.iter_mut().enumerate() {
            next <<= 1;
            let count = LENGTHS.iter().filter(|of| usize::from(**of) == length);
            let count = u32::try_from(count.count()).unwrap_or_default();
            *codes = Codes {
                first: next,
                count,
                start,
            };
            next += count;
            start += count as usize;
        }
        Self { by_length, symbols }
    }
}

/// Decodes a string, or returns `None` if it is invalid.
pub(super) fn decode(bytes: &[u8]) -> Option<Vec<u8>> {
    static TABLE: OnceLock<Table> = OnceLock::new();
    let table = TABLE.get_or_init(Table::new);
    let mut text = Vec::with_capacity(bytes.len() * 8 / 5);
    let (mut code, mut length) = (0_u32, 0_u32);
    for byte in bytes {
        for bit in (0..8).rev() {
            code = code << 1 | u32::from(byte >> bit & 1);
            length += 1;
            if length < MIN_BITS {
                continue;
            }
            let codes = table.by_length.get(length as usize)?;
            if let Some(at) = code.checked_sub(codes.first).filter(|at| *at < codes.count) {
                text.push(*table.symbols.get(codes.start + at as usize)?);
                (code, length) = (0, 0);
            }
        }
    }
    // The last byte is padded with the beginning of the end-of-string code, which is all ones.
    let is_padding = length < 8 && code == (1 << length) - 1;
    is_padding.then_some(text)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_examples_of_the_rfc_are_decoded() {
        let cases: [(&[u8], &str); 3] = [
            (
                &[
                    0xf1, 0xe3, 0xc2, 0xe5, 0xf2, 0x3a, 0x6b, 0xa0, 0xab, 0x90, 0xf4, 0xff,
                ],
                "www.example.com",
            ),
            (&[0xa8, 0xeb, 0x10, 0x64, 0x9c, 0xbf], "no-cache"),
            (&[0x64, 0x02], "302"),
        ];
        for (code, text) in cases {
            assert_eq!(decode(code).as_deref(), Some(text.as_bytes()), "{text}");
        }
        assert_eq!(decode(&[0xff; 4]), None);
        assert_eq!(decode(&[0x00]), None);
    }
}
