//! The kernel's FUSE protocol, as far as we speak it: requests to what they mean, answers to bytes.
//!
//! The numbers and layouts are those of `linux/fuse.h`, version 7.31 and newer, which the kernel promises to keep. We
//! speak it ourselves because the library of this field gives a file the number of its node; our files have the numbers
//! that they have at the target.

use std::time::Duration;

use protocol::rpc::{Metadata, Time};

/// The node of the directory in which we look up files to open.
pub(super) const ROOT: u64 = 1;

const MAJOR: u32 = 7;
const MINOR: u32 = 31;

/// The longest write that the kernel sends at once, and the longest read that it asks for.
pub(super) const LONGEST: usize = 1024 * 1024;
/// Room for a request with all its fields.
pub(super) const REQUEST_ROOM: usize = LONGEST + 8192;

const HEADER: usize = 40;

/// What the kernel should do, of what it can.
mod capability {
    pub(super) const ASYNC_READ: u64 = 1 << 0;
    pub(super) const BIG_WRITES: u64 = 1 << 5;
    /// Cached pages go when size or modification time have changed.
    pub(super) const AUTO_INVAL_DATA: u64 = 1 << 12;
    pub(super) const ASYNC_DIO: u64 = 1 << 15;
    pub(super) const PARALLEL_DIROPS: u64 = 1 << 18;
    pub(super) const MAX_PAGES: u64 = 1 << 22;
    /// The target's kernel takes set-user-id bits away when a file is written. Else ours would ask before every write.
    pub(super) const HANDLE_KILLPRIV_V2: u64 = 1 << 28;
    /// There are more than 32 capabilities.
    pub(super) const INIT_EXT: u64 = 1 << 30;
    pub(super) const DIRECT_IO_ALLOW_MMAP: u64 = 1 << 36;
    pub(super) const WANTED: u64 = ASYNC_READ
        | BIG_WRITES
        | AUTO_INVAL_DATA
        | ASYNC_DIO
        | PARALLEL_DIROPS
        | MAX_PAGES
        | HANDLE_KILLPRIV_V2
        | INIT_EXT
        | DIRECT_IO_ALLOW_MMAP;
}

/// How an opened file is treated by the kernel.
pub(super) const DIRECT_IO: u32 = 1 << 0;
pub(super) const KEEP_CACHE: u32 = 1 << 1;

#[derive(Debug, PartialEq, Eq)]
pub(super) struct Request<'b> {
    pub(super) unique: u64,
    pub(super) node: u64,
    /// The thread that waits for the answer; 0 when it is the kernel itself.
    pub(super) thread: u32,
    pub(super) operation: Operation<'b>,
}

#[derive(Debug, PartialEq, Eq)]
pub(super) enum Operation<'b> {
    Init {
        max_readahead: u32,
        capabilities: u64,
    },
    Lookup {
        name: &'b [u8],
    },
    /// Node and how many of its lookups are undone. No answer is wanted.
    Forget(Vec<(u64, u64)>),
    Describe {
        handle: Option<u64>,
    },
    Change(Change),
    Open {
        flags: i32,
        directory: bool,
    },
    Read {
        handle: u64,
        offset: u64,
        size: u32,
    },
    Write {
        handle: u64,
        offset: u64,
        data: &'b [u8],
    },
    Release {
        handle: u64,
    },
    List {
        handle: u64,
        offset: u64,
        size: u32,
    },
    Sync {
        handle: u64,
        data_only: bool,
    },
    Allocate {
        handle: u64,
        offset: u64,
        length: u64,
        mode: i32,
    },
    Seek {
        handle: u64,
        offset: u64,
        whence: i32,
    },
    FileSystem,
    Attribute {
        name: &'b [u8],
        size: u32,
    },
    Attributes {
        size: u32,
    },
    SetAttribute {
        name: &'b [u8],
        value: &'b [u8],
        flags: i32,
    },
    RemoveAttribute {
        name: &'b [u8],
    },
    /// Somebody who waits for an answer got a signal.
    Interrupt {
        unique: u64,
    },
    /// What we do not do; the kernel then does without.
    Other(u32),
}

/// What `SETATTR` changes.
#[derive(Debug, Default, PartialEq, Eq)]
pub(super) struct Change {
    pub(super) handle: Option<u64>,
    pub(super) mode: Option<u32>,
    pub(super) user: Option<u32>,
    pub(super) group: Option<u32>,
    pub(super) size: Option<u64>,
    pub(super) accessed: Option<NewTime>,
    pub(super) modified: Option<NewTime>,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum NewTime {
    Now,
    To(i64, u32),
}

impl<'b> Request<'b> {
    /// `None` for what is no request.
    pub(super) fn read(bytes: &'b [u8]) -> Option<Self> {
        let mut fields = Fields(bytes);
        fields.u32()?;
        let opcode = fields.u32()?;
        let (unique, node) = (fields.u64()?, fields.u64()?);
        let (_, _, thread) = (fields.u32()?, fields.u32()?, fields.u32()?);
        let body = Fields(bytes.get(HEADER..)?);
        let operation = Operation::read(opcode, body)?;
        Some(Self {
            unique,
            node,
            thread,
            operation,
        })
    }
}

impl<'b> Operation<'b> {
    fn read(opcode: u32, mut body: Fields<'b>) -> Option<Self> {
        Some(match opcode {
            1 => Self::Lookup {
                name: body.string()?,
            },
            2 => Self::Forget(vec![(0, body.u64()?)]),
            3 => {
                let (flags, _, handle) = (body.u32()?, body.u32()?, body.u64()?);
                Self::Describe {
                    handle: (flags & 1 != 0).then_some(handle),
                }
            }
            4 => Self::Change(Change::read(body)?),
            14 | 27 => Self::Open {
                flags: body.i32()?,
                directory: opcode == 27,
            },
            15 | 28 => {
                let (handle, offset, size) = (body.u64()?, body.u64()?, body.u32()?);
                match opcode {
                    15 => Self::Read {
                        handle,
                        offset,
                        size,
                    },
                    _ => Self::List {
                        handle,
                        offset,
                        size,
                    },
                }
            }
            16 => {
                let (handle, offset, size) = (body.u64()?, body.u64()?, body.u32()?);
                body.skip(20)?;
                Self::Write {
                    handle,
                    offset,
                    data: body.0.get(..size as usize)?,
                }
            }
            18 | 29 => Self::Release {
                handle: body.u64()?,
            },
            20 | 30 => Self::Sync {
                handle: body.u64()?,
                data_only: body.u32()? & 1 != 0,
            },
            17 => Self::FileSystem,
            43 => Self::Allocate {
                handle: body.u64()?,
                offset: body.u64()?,
                length: body.u64()?,
                mode: body.i32()?,
            },
            46 => Self::Seek {
                handle: body.u64()?,
                offset: body.u64()?,
                whence: body.i32()?,
            },
            21..=24 => Self::read_attribute(opcode, body)?,
            26 => {
                let (_, _, max_readahead, flags) =
                    (body.u32()?, body.u32()?, body.u32()?, body.u32()?);
                let more = body.u32().unwrap_or_default();
                Self::Init {
                    max_readahead,
                    capabilities: u64::from(flags) | u64::from(more) << 32,
                }
            }
            36 => Self::Interrupt {
                unique: body.u64()?,
            },
            42 => {
                let count = body.u32()?;
                body.u32()?;
                let forgotten = (0..count).map(|_| Some((body.u64()?, body.u64()?)));
                Self::Forget(forgotten.collect::<Option<_>>()?)
            }
            other => Self::Other(other),
        })
    }

    fn read_attribute(opcode: u32, mut body: Fields<'b>) -> Option<Self> {
        if opcode == 24 {
            return Some(Self::RemoveAttribute {
                name: body.string()?,
            });
        }
        let (size, flags) = (body.u32()?, body.i32()?);
        Some(match opcode {
            21 => Self::SetAttribute {
                name: body.string()?,
                value: body.0.get(..size as usize)?,
                flags,
            },
            22 => Self::Attribute {
                name: body.string()?,
                size,
            },
            _ => Self::Attributes { size },
        })
    }
}

impl Change {
    fn read(mut body: Fields<'_>) -> Option<Self> {
        let valid = body.u32()?;
        body.u32()?;
        let (handle, size, _) = (body.u64()?, body.u64()?, body.u64()?);
        let (accessed, modified, _) = (body.i64()?, body.i64()?, body.u64()?);
        let (accessed_rest, modified_rest, _) = (body.u32()?, body.u32()?, body.u32()?);
        let (mode, _, user, group) = (body.u32()?, body.u32()?, body.u32()?, body.u32()?);
        let has = |bit: u32| valid & (1 << bit) != 0;
        let time = |set, now, seconds, nanoseconds| match (has(set), has(now)) {
            (_, true) => Some(NewTime::Now),
            (true, false) => Some(NewTime::To(seconds, nanoseconds)),
            (false, false) => None,
        };
        Some(Self {
            handle: has(6).then_some(handle),
            mode: has(0).then_some(mode & 0o7777),
            user: has(1).then_some(user),
            group: has(2).then_some(group),
            size: has(3).then_some(size),
            accessed: time(4, 7, accessed, accessed_rest),
            modified: time(5, 8, modified, modified_rest),
        })
    }
}

/// The answer to `INIT`: what we agree to.
pub(super) fn init(max_readahead: u32, capabilities: u64) -> Vec<u8> {
    let agreed = capabilities & capability::WANTED;
    let low = |value: u64| u32::try_from(value & 0xffff_ffff).unwrap_or_default();
    let mut out = Writer::default();
    out.u32(MAJOR)
        .u32(MINOR)
        .u32(max_readahead.max(LONGEST as u32))
        .u32(low(agreed));
    // Requests in the background, and from when on there is congestion.
    out.u32(64 | 48 << 16);
    // Longest write, granularity of times, pages per request.
    out.u32(LONGEST as u32).u32(1).u32((LONGEST / 4096) as u32);
    out.u32(low(agreed >> 32));
    out.0.resize(64, 0);
    out.0
}

/// The answer to `LOOKUP`. The name stays good: it is ours. Metadata does for `valid`.
pub(super) fn entry(node: u64, valid: Duration, attributes: &Attributes<'_>) -> Vec<u8> {
    const A_DAY: u64 = 24 * 60 * 60;
    let mut out = Writer::default();
    out.u64(node).u64(0).u64(A_DAY).u64(valid.as_secs());
    out.u32(0).u32(valid.subsec_nanos());
    attributes.write(&mut out);
    out.0
}

/// The answer to `GETATTR` and `SETATTR`.
pub(super) fn attributes(valid: Duration, attributes: &Attributes<'_>) -> Vec<u8> {
    let mut out = Writer::default();
    out.u64(valid.as_secs()).u32(valid.subsec_nanos()).u32(0);
    attributes.write(&mut out);
    out.0
}

/// The answer to `OPEN` and `OPENDIR`.
pub(super) fn opened(handle: u64, flags: u32) -> Vec<u8> {
    let mut out = Writer::default();
    out.u64(handle).u32(flags).u32(0);
    out.0
}

/// The answer to `WRITE`, and with the same layout to a `GETXATTR` that asks for a size.
pub(super) fn count(count: u32) -> Vec<u8> {
    let mut out = Writer::default();
    out.u32(count).u32(0);
    out.0
}

pub(super) fn offset(offset: u64) -> Vec<u8> {
    offset.to_ne_bytes().to_vec()
}

/// The answer to `STATFS`.
pub(super) fn file_system(from: &protocol::rpc::StatFilesystemResponse) -> Vec<u8> {
    let small = |value: u64| u32::try_from(value).unwrap_or(u32::MAX);
    let mut out = Writer::default();
    out.u64(from.blocks)
        .u64(from.blocks_free)
        .u64(from.blocks_available)
        .u64(from.files)
        .u64(from.files_free)
        .u32(small(from.block_size))
        .u32(small(from.name_length))
        .u32(small(from.fragment_size));
    out.0.resize(80, 0);
    out.0
}

/// Tells the kernel that it knows nothing any more of a node's metadata. Not an answer.
pub(super) fn forget_metadata(node: u64) -> Vec<u8> {
    let mut out = Writer::default();
    out.u64(node).u64(u64::MAX).u64(0);
    out.0
}

/// The code of [`forget_metadata`].
pub(super) const INVALIDATE_NODE: i32 = 2;

/// Gives the kernel bytes of a file that it has not asked for; they follow. Not an answer.
pub(super) fn store(node: u64, offset: u64, length: u32) -> Vec<u8> {
    let mut out = Writer::default();
    out.u64(node).u64(offset).u32(length).u32(0);
    out.0
}

/// The code of [`store`].
pub(super) const STORE: i32 = 4;

/// The header before an answer of `length` bytes. An error is a negative errno.
pub(super) fn header(unique: u64, error: i32, length: usize) -> [u8; 16] {
    let mut header = [0; 16];
    let length = u32::try_from(length + header.len()).unwrap_or(u32::MAX);
    header[..4].copy_from_slice(&length.to_ne_bytes());
    header[4..8].copy_from_slice(&error.to_ne_bytes());
    header[8..].copy_from_slice(&unique.to_ne_bytes());
    header
}

/// One name of a directory, behind those that are in `listing` already. `false` when there is no room for it.
pub(super) fn add_name(
    listing: &mut Vec<u8>,
    room: usize,
    (name, inode, kind): (&[u8], u64, u32),
    next: u64,
) -> bool {
    let padded = (24 + name.len()).next_multiple_of(8);
    if listing.len() + padded > room {
        return false;
    }
    let end = listing.len() + padded;
    let mut out = Writer(std::mem::take(listing));
    let length = u32::try_from(name.len()).unwrap_or_default();
    out.u64(inode).u64(next).u32(length).u32(kind);
    out.0.extend(name);
    out.0.resize(end, 0);
    *listing = out.0;
    true
}

/// A file's metadata, with the number and owners that it has on this machine.
#[derive(Debug, Clone, Copy)]
pub(super) struct Attributes<'m> {
    pub(super) metadata: &'m Metadata,
    pub(super) inode: u64,
    pub(super) user: u32,
    pub(super) group: u32,
}

impl Attributes<'_> {
    fn write(&self, out: &mut Writer) {
        let from = self.metadata;
        let time = |time: Option<&Time>| time.map_or((0, 0), |t| (t.seconds, t.nanoseconds));
        let accessed = time(from.access_time.as_ref());
        let modified = time(from.modification_time.as_ref());
        let changed = time(from.change_time.as_ref());
        out.u64(self.inode).u64(from.size).u64(from.blocks);
        for (seconds, _) in [accessed, modified, changed] {
            out.u64(seconds.cast_unsigned());
        }
        for (_, nanoseconds) in [accessed, modified, changed] {
            out.u32(nanoseconds);
        }
        out.u32(from.mode).u32(from.links);
        out.u32(self.user).u32(self.group);
        // Only regular files and directories are opened, which are no devices.
        out.u32(0).u32(from.block_size).u32(0);
    }
}

struct Fields<'b>(&'b [u8]);

impl<'b> Fields<'b> {
    fn take<const LENGTH: usize>(&mut self) -> Option<[u8; LENGTH]> {
        let (taken, rest) = self.0.split_first_chunk()?;
        self.0 = rest;
        Some(*taken)
    }

    fn u32(&mut self) -> Option<u32> {
        self.take().map(u32::from_ne_bytes)
    }

    fn i32(&mut self) -> Option<i32> {
        self.take().map(i32::from_ne_bytes)
    }

    fn u64(&mut self) -> Option<u64> {
        self.take().map(u64::from_ne_bytes)
    }

    fn i64(&mut self) -> Option<i64> {
        self.take().map(i64::from_ne_bytes)
    }

    fn skip(&mut self, count: usize) -> Option<()> {
        self.0 = self.0.get(count..)?;
        Some(())
    }

    /// Up to a zero byte, without it.
    fn string(&mut self) -> Option<&'b [u8]> {
        let end = self.0.iter().position(|byte| *byte == 0)?;
        let (string, rest) = self.0.split_at(end);
        self.0 = rest.get(1..)?;
        Some(string)
    }
}

#[derive(Default)]
struct Writer(Vec<u8>);

impl Writer {
    fn u32(&mut self, value: u32) -> &mut Self {
        self.0.extend(value.to_ne_bytes());
        self
    }

    fn u64(&mut self, value: u64) -> &mut Self {
        self.0.extend(value.to_ne_bytes());
        self
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn request(opcode: u32, body: &[u8]) -> Vec<u8> {
        let mut out = Writer::default();
        out.u32(0).u32(opcode).u64(7).u64(9);
        out.u32(0).u32(0).u32(11).u32(0);
        out.0.extend(body);
        out.0
    }

    fn body(words: &[u32]) -> Vec<u8> {
        words.iter().flat_map(|word| word.to_ne_bytes()).collect()
    }

    #[test]
    fn requests_are_read() {
        let check = |opcode: u32, body: &[u8], expected: Operation<'_>| {
            let bytes = request(opcode, body);
            let read = Request::read(&bytes).unwrap();
            assert_eq!(read.operation, expected);
            assert_eq!((read.unique, read.node, read.thread), (7, 9, 11));
        };
        check(1, b"name\0", Operation::Lookup { name: b"name" });
        let handle = Some(5);
        check(3, &body(&[1, 0, 5, 0]), Operation::Describe { handle });
        check(
            3,
            &body(&[0, 0, 5, 0]),
            Operation::Describe { handle: None },
        );
        let mut write = body(&[3, 0, 10, 0, 2, 0, 0, 0, 0, 0]);
        write.extend(b"ab");
        check(
            16,
            &write,
            Operation::Write {
                handle: 3,
                offset: 10,
                data: b"ab",
            },
        );
        check(
            42,
            &body(&[2, 0, 4, 0, 1, 0, 5, 0, 2, 0]),
            Operation::Forget(vec![(4, 1), (5, 2)]),
        );
        let mut attribute = body(&[2, 1]);
        attribute.extend(b"user.x\0vv");
        check(
            21,
            &attribute,
            Operation::SetAttribute {
                name: b"user.x",
                value: b"vv",
                flags: 1,
            },
        );
        check(99, b"", Operation::Other(99));
    }

    #[test]
    fn what_is_cut_short_is_no_request() {
        for (opcode, body) in [
            (1, &b"no end"[..]),
            (3, b"1234"),
            (16, &[0; 40][..39]),
            (42, &body(&[2, 0, 4, 0])),
            (21, &body(&[9, 0])),
        ] {
            assert_eq!(Request::read(&request(opcode, body)), None, "{opcode}");
        }
        assert_eq!(Request::read(b"short"), None);
    }

    #[test]
    fn a_change_has_only_what_is_valid() {
        let words = [
            1 | 1 << 3 | 1 << 5 | 1 << 7,
            0, // valid
            1,
            0, // handle
            100,
            0, // size
            0,
            0, // lock owner
            11,
            0,
            22,
            0,
            33,
            0, // times
            1,
            2,
            3,
            0o100_644,
            0,
            1000,
            1001,
            0,
        ];
        let read = Change::read(Fields(&body(&words))).unwrap();
        let expected = Change {
            mode: Some(0o644),
            size: Some(100),
            accessed: Some(NewTime::Now),
            modified: Some(NewTime::To(22, 2)),
            ..Change::default()
        };
        assert_eq!(read, expected);
    }

    #[test]
    fn answers_have_the_kernels_lengths() {
        let metadata = Metadata::default();
        let attributes_of = Attributes {
            metadata: &metadata,
            inode: 1,
            user: 0,
            group: 0,
        };
        let second = Duration::from_secs(1);
        assert_eq!(entry(2, second, &attributes_of).len(), 128);
        assert_eq!(attributes(second, &attributes_of).len(), 104);
        assert_eq!(opened(1, 0).len(), 16);
        assert_eq!(init(0, u64::MAX).len(), 64);
        assert_eq!(
            file_system(&protocol::rpc::StatFilesystemResponse::default()).len(),
            80
        );
    }

    #[test]
    fn names_fill_the_room_and_no_more() {
        let mut listing = Vec::new();
        assert!(add_name(&mut listing, 64, (b"a", 1, 8), 1));
        assert!(add_name(&mut listing, 64, (b"\xff\xfe", 2, 8), 2));
        assert_eq!(listing.len(), 64);
        assert!(!add_name(&mut listing, 64, (b"c", 3, 8), 3));
        assert_eq!(&listing[24..25], b"a");
        assert_eq!(&listing[56..58], b"\xff\xfe");
    }
}
