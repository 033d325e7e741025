//! A decoder of HTTP/2 header blocks (HPACK, RFC 7541) for the few headers that are reported.
//!
//! Both ends of a connection keep a table of previous headers. To decode one block, all blocks before it must have been read,
//! so a table is kept here as well. It stores the values of reported headers only. Other values may be secret and long, and
//! are discarded while they are read. The cost for each byte is about the same, whatever a client sends.
//!
//! There is a decoder here because no library fits. The one of `h2`, which the rest of this repository uses for HTTP/2, is
//! private. `hpack` and `fluke-hpack` panic on one byte of a hostile client (RUSTSEC-2023-0085), and those that do not are
//! hardly used. They return every header, and a block of 32 KiB can repeat a long one thousands of times. The tests compare
//! with what `h2` writes.

use std::borrow::Cow;
use std::collections::VecDeque;

use super::huffman;

/// The maximum table size. No real peers agree on a larger one.
const MAX_TABLE_SIZE: usize = 1 << 20;
/// The table size before an update.
const DEFAULT_TABLE_SIZE: usize = 4096;
/// The size of an entry in addition to its name and value.
const ENTRY_OVERHEAD: usize = 32;

/// The static table.
#[rustfmt::skip]
const STATIC: [(&str, &str); 61] = [
    (":authority", ""),
    (":method", "GET"),
    (":method", "POST"),
    (":path", "/"),
    (":path", "/index.html"),
    (":scheme", "http"),
    (":scheme", "https"),
    (":status", "200"),
    (":status", "204"),
    (":status", "206"),
    (":status", "304"),
    (":status", "400"),
    (":status", "404"),
    (":status", "500"),
    ("accept-charset", ""),
    ("accept-encoding", "gzip, deflate"),
    ("accept-language", ""),
    ("accept-ranges", ""),
    ("accept", ""),
    ("access-control-allow-origin", ""),
    ("age", ""),
    ("allow", ""),
    ("authorization", ""),
    ("cache-control", ""),
    ("content-disposition", ""),
    ("content-encoding", ""),
    ("content-language", ""),
    ("content-length", ""),
    ("content-location", ""),
    ("content-range", ""),
    ("content-type", ""),
    ("cookie", ""),
    ("date", ""),
    ("etag", ""),
    ("expect", ""),
    ("expires", ""),
    ("from", ""),
    ("host", ""),
    ("if-match", ""),
    ("if-modified-since", ""),
    ("if-none-match", ""),
    ("if-range", ""),
    ("if-unmodified-since", ""),
    ("last-modified", ""),
    ("link", ""),
    ("location", ""),
    ("max-forwards", ""),
    ("proxy-authenticate", ""),
    ("proxy-authorization", ""),
    ("range", ""),
    ("referer", ""),
    ("refresh", ""),
    ("retry-after", ""),
    ("server", ""),
    ("set-cookie", ""),
    ("strict-transport-security", ""),
    ("transfer-encoding", ""),
    ("user-agent", ""),
    ("vary", ""),
    ("via", ""),
    ("www-authenticate", ""),
];

/// The reported headers.
#[derive(Debug, Default, PartialEq, Eq)]
pub(super) struct Head {
    pub(super) method: Option<String>,
    pub(super) path: Option<String>,
    pub(super) authority: Option<String>,
    pub(super) status: Option<u16>,
}

impl Head {
    /// Sets a header. The first one of a name counts. A second one is invalid, and thousands of them must not be copied.
    fn set(&mut self, name: Name, value: &[u8]) {
        let slot = match name {
            Name::Method => &mut self.method,
            Name::Path => &mut self.path,
            Name::Authority => &mut self.authority,
            Name::Status => {
                let status = || std::str::from_utf8(value).ok()?.parse().ok();
                self.status = self.status.or_else(status);
                return;
            }
            Name::Other => return,
        };
        slot.get_or_insert_with(|| String::from_utf8_lossy(value).into_owned());
    }
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Name {
    Method,
    Path,
    Authority,
    Status,
    /// Not reported.
    Other,
}

impl Name {
    fn of(text: &[u8]) -> Self {
        match text {
            b":method" => Self::Method,
            b":path" => Self::Path,
            b":authority" => Self::Authority,
            b":status" => Self::Status,
            _ => Self::Other,
        }
    }
}

/// The decoder of one direction of a connection.
#[derive(Debug)]
pub(super) struct Decoder {
    /// The newest entry first.
    table: VecDeque<Entry>,
    size: usize,
    max_size: usize,
}

#[derive(Debug)]
struct Entry {
    name: Name,
    /// In bytes.
    name_length: usize,
    /// Empty if the header is not reported.
    value: Vec<u8>,
    value_length: usize,
}

/// A literal header.
struct Literal<'a> {
    name: Name,
    name_length: usize,
    value: Cow<'a, [u8]>,
}

impl Entry {
    fn size(&self) -> usize {
        self.name_length + self.value_length + ENTRY_OVERHEAD
    }
}

impl Default for Decoder {
    fn default() -> Self {
        Self {
            table: VecDeque::new(),
            size: 0,
            max_size: DEFAULT_TABLE_SIZE,
        }
    }
}

impl Decoder {
    /// Decodes a complete header block. After an error (`None`), later blocks cannot be decoded.
    pub(super) fn decode(&mut self, block: &[u8]) -> Option<Head> {
        let mut head = Head::default();
        let mut rest = block;
        while let Some(first) = rest.first() {
            match first {
                0x80.. => {
                    let index = number(&mut rest, 7)?;
                    self.indexed(index, &mut head)?;
                }
                0x40.. => {
                    let literal = self.literal(&mut rest, 6)?;
                    head.set(literal.name, &literal.value);
                    self.add(literal);
                }
                0x20.. => {
                    let size = number(&mut rest, 5)?;
                    self.max_size = Some(size).filter(|size| *size <= MAX_TABLE_SIZE)?;
                    self.evict(self.max_size);
                }
                _ => {
                    let literal = self.literal(&mut rest, 4)?;
                    head.set(literal.name, &literal.value);
                }
            }
        }
        Some(head)
    }

    fn indexed(&self, index: usize, head: &mut Head) -> Option<()> {
        let index = index.checked_sub(1)?;
        match STATIC.get(index) {
            Some((name, value)) => head.set(Name::of(name.as_bytes()), value.as_bytes()),
            None => {
                let entry = self.table.get(index - STATIC.len())?;
                head.set(entry.name, &entry.value);
            }
        }
        Some(())
    }

    fn literal<'a>(&self, rest: &mut &'a [u8], bits: u32) -> Option<Literal<'a>> {
        let (name, name_length) = match number(rest, bits)? {
            0 => {
                let name = text(rest)?;
                (Name::of(&name), name.len())
            }
            index => match STATIC.get(index - 1) {
                Some((name, _)) => (Name::of(name.as_bytes()), name.len()),
                None => {
                    let entry = self.table.get(index - 1 - STATIC.len())?;
                    (entry.name, entry.name_length)
                }
            },
        };
        Some(Literal {
            name,
            name_length,
            value: text(rest)?,
        })
    }

    fn add(&mut self, literal: Literal<'_>) {
        let value_length = literal.value.len();
        let entry = Entry {
            name: literal.name,
            name_length: literal.name_length,
            value: match literal.name {
                Name::Other => Vec::new(),
                _ => literal.value.into_owned(),
            },
            value_length,
        };
        let size = entry.size();
        self.evict(self.max_size.saturating_sub(size));
        if size <= self.max_size {
            self.size += size;
            self.table.push_front(entry);
        }
    }

    /// Evicts the oldest entries until the table is no larger than this.
    fn evict(&mut self, max_size: usize) {
        while self.size > max_size {
            let Some(oldest) = self.table.pop_back() else {
                return;
            };
            self.size -= oldest.size();
        }
    }
}

/// Decodes an integer that begins in the last bits of a byte and continues in the next bytes if it does not fit.
fn number(rest: &mut &[u8], bits: u32) -> Option<usize> {
    let (first, mut after) = rest.split_first()?;
    let full = (1_usize << bits) - 1;
    let mut value = usize::from(*first) & full;
    if value == full {
        for shift in (0..28).step_by(7) {
            let (next, more) = after.split_first()?;
            after = more;
            value += usize::from(next & 0x7f) << shift;
            if next & 0x80 == 0 {
                *rest = after;
                return Some(value);
            }
        }
        return None;
    }
    *rest = after;
    Some(value)
}

/// Decodes a string literal.
fn text<'a>(rest: &mut &'a [u8]) -> Option<Cow<'a, [u8]>> {
    let is_huffman = rest.first()? & 0x80 != 0;
    let length = number(rest, 7)?;
    let (bytes, after) = rest.split_at_checked(length)?;
    *rest = after;
    match is_huffman {
        true => huffman::decode(bytes).map(Cow::Owned),
        false => Some(Cow::Borrowed(bytes)),
    }
}

#[cfg(test)]
impl Decoder {
    /// Checks the recorded size of the table and its limits.
    pub(super) fn check_table(&self) {
        let size: usize = self.table.iter().map(Entry::size).sum();
        assert_eq!(self.size, size);
        assert!(self.size <= self.max_size && self.max_size <= MAX_TABLE_SIZE);
        let stored: usize = self.table.iter().map(|entry| entry.value.len()).sum();
        assert!(stored <= size);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn bytes(text: &str) -> Vec<u8> {
        let digits: Vec<u8> = text.bytes().filter(|byte| *byte != b' ').collect();
        let pairs = digits
            .chunks(2)
            .map(|pair| std::str::from_utf8(pair).unwrap());
        pairs
            .map(|pair| u8::from_str_radix(pair, 16).unwrap())
            .collect()
    }

    #[track_caller]
    fn check(decoder: &mut Decoder, block: &str, method: &str, path: &str, authority: &str) {
        let head = decoder.decode(&bytes(block)).unwrap();
        let some = |text: &str| Some(text.to_owned());
        let expected = Head {
            method: some(method),
            path: some(path),
            authority: some(authority),
            status: None,
        };
        assert_eq!(head, expected);
    }

    #[test]
    fn the_request_examples_of_the_rfc_are_decoded() {
        let plain = &mut Decoder::default();
        let authority = "www.example.com";
        let first = "8286 8441 0f77 7777 2e65 7861 6d70 6c65 2e63 6f6d";
        check(plain, first, "GET", "/", authority);
        check(
            plain,
            "8286 84be 5808 6e6f 2d63 6163 6865",
            "GET",
            "/",
            authority,
        );
        let third = "8287 85bf 400a 6375 7374 6f6d 2d6b 6579 0c63 7573 746f 6d2d 7661 6c75 65";
        check(plain, third, "GET", "/index.html", authority);
        assert_eq!((plain.size, plain.table.len()), (164, 3));
        let huffman = &mut Decoder::default();
        check(
            huffman,
            "8286 8441 8cf1 e3c2 e5f2 3a6b a0ab 90f4 ff",
            "GET",
            "/",
            authority,
        );
        check(
            huffman,
            "8286 84be 5886 a8eb 1064 9cbf",
            "GET",
            "/",
            authority,
        );
    }

    #[test]
    fn old_entries_are_evicted() {
        let mut decoder = Decoder {
            max_size: 256,
            ..Decoder::default()
        };
        let first = "4803 3330 3258 0770 7269 7661 7465 611d 4d6f 6e2c 2032 3120 4f63 7420 3230 3133 2032 303a 3133 3a32 \
                     3120 474d 546e 1768 7474 7073 3a2f 2f77 7777 2e65 7861 6d70 6c65 2e63 6f6d";
        assert_eq!(decoder.decode(&bytes(first)).unwrap().status, Some(302));
        assert_eq!(decoder.size, 222);
        // The new status evicts the old one.
        let second = decoder.decode(&bytes("4803 3330 37c1 c0bf")).unwrap();
        assert_eq!((second.status, decoder.size), (Some(307), 222));
        assert_eq!(
            decoder.decode(&bytes("88c1 c0bf")).unwrap().status,
            Some(200)
        );
        // A table of size zero is empty.
        assert_eq!(decoder.decode(&bytes("20")).unwrap(), Head::default());
        assert_eq!(decoder.decode(&bytes("be")), None);
    }

    #[test]
    fn invalid_blocks_are_rejected() {
        for block in [
            "80",
            "ff ff ff ff ff ff",
            "41 7f",
            "00 85 ff ff ff ff ff 00",
            "3f ff ff ff 7f",
        ] {
            assert_eq!(Decoder::default().decode(&bytes(block)), None, "{block}");
        }
    }

    #[test]
    fn a_repeated_header_is_not_copied_each_time() {
        // A long path is added to the table and then referenced many times.
        let long = "a".repeat(3000);
        let mut block = vec![0x44, 0x7f, 0xb9, 0x16];
        block.extend(long.bytes());
        block.extend([0xbe; 20_000]);
        let mut decoder = Decoder::default();
        let head = decoder.decode(&block).unwrap();
        assert_eq!(head.path, Some(long));
        // The first one of two different headers counts, as with servers that do not reject both.
        let head = decoder.decode(&bytes("8485 8283")).unwrap();
        assert_eq!(head.path.as_deref(), Some("/"));
        assert_eq!(head.method.as_deref(), Some("GET"));
    }

    #[test]
    fn values_that_are_not_reported_are_discarded() {
        let mut decoder = Decoder::default();
        let block = [b"\x40\x06cookie\x06secret".as_slice(), b"\x44\x04/pay"].concat();
        decoder.decode(&block).unwrap();
        let stored: Vec<&[u8]> = decoder.table.iter().map(|entry| &entry.value[..]).collect();
        assert_eq!(stored, [b"/pay".as_slice(), b""]);
        assert_eq!(decoder.size, 32 + 5 + 4 + 32 + 6 + 6);
    }
}
