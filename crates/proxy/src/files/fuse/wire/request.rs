//! Requests of the kernel.

/// The length of the header, which all requests have.
const HEADER_BYTES: usize = 40;

#[derive(Debug, PartialEq, Eq)]
pub(in crate::files::fuse) struct Request<'b> {
    pub(in crate::files::fuse) unique: u64,
    pub(in crate::files::fuse) node: u64,
    /// The thread that waits for the reply; 0 if it is the kernel itself.
    pub(in crate::files::fuse) thread: u32,
    pub(in crate::files::fuse) operation: Operation<'b>,
}

#[derive(Debug, PartialEq, Eq)]
pub(in crate::files::fuse) enum Operation<'b> {
    Init {
        max_readahead: u32,
        capabilities: u64,
    },
    Lookup {
        name: &'b [u8],
    },
    /// Nodes, with how many of their lookups are taken back. This request has no reply.
    Forget(Vec<(u64, u64)>),
    GetAttr {
        handle: Option<u64>,
    },
    SetAttr(AttrChanges),
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
    ReadDir {
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
    StatFs,
    GetXattr {
        name: &'b [u8],
        size: u32,
    },
    ListXattr {
        size: u32,
    },
    SetXattr {
        name: &'b [u8],
        value: &'b [u8],
        flags: i32,
    },
    RemoveXattr {
        name: &'b [u8],
    },
    /// The thread that waits for the reply to the request `unique` got a signal.
    Interrupt {
        unique: u64,
    },
    /// Not supported; it fails with `ENOSYS`.
    Other(u32),
}

/// The changes of `SETATTR`.
#[derive(Debug, Default, PartialEq, Eq)]
pub(in crate::files::fuse) struct AttrChanges {
    pub(in crate::files::fuse) handle: Option<u64>,
    pub(in crate::files::fuse) mode: Option<u32>,
    pub(in crate::files::fuse) user: Option<u32>,
    pub(in crate::files::fuse) group: Option<u32>,
    pub(in crate::files::fuse) size: Option<u64>,
    pub(in crate::files::fuse) accessed: Option<NewTime>,
    pub(in crate::files::fuse) modified: Option<NewTime>,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(in crate::files::fuse) enum NewTime {
    Now,
    To(i64, u32),
}

impl<'b> Request<'b> {
    /// `None` for a malformed request.
    pub(in crate::files::fuse) fn decode(bytes: &'b [u8]) -> Option<Self> {
        let mut fields = Fields(bytes);
        fields.u32()?;
        let opcode = fields.u32()?;
        let (unique, node) = (fields.u64()?, fields.u64()?);
        let (_, _, thread) = (fields.u32()?, fields.u32()?, fields.u32()?);
        let body = Fields(bytes.get(HEADER_BYTES..)?);
        let operation = Operation::decode(opcode, body)?;
        Some(Self {
            unique,
            node,
            thread,
            operation,
        })
    }
}

impl<'b> Operation<'b> {
    fn decode(opcode: u32, mut body: Fields<'b>) -> Option<Self> {
        Some(match opcode {
            1 => Self::Lookup {
                name: body.string()?,
            },
            2 => Self::Forget(vec![(0, body.u64()?)]),
            3 => {
                let (flags, _, handle) = (body.u32()?, body.u32()?, body.u64()?);
                Self::GetAttr {
                    handle: (flags & 1 != 0).then_some(handle),
                }
            }
            4 => Self::SetAttr(AttrChanges::decode(body)?),
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
                    _ => Self::ReadDir {
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
            17 => Self::StatFs,
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
            21..=24 => Self::decode_xattr(opcode, body)?,
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

    fn decode_xattr(opcode: u32, mut body: Fields<'b>) -> Option<Self> {
        if opcode == 24 {
            return Some(Self::RemoveXattr {
                name: body.string()?,
            });
        }
        let (size, flags) = (body.u32()?, body.i32()?);
        Some(match opcode {
            21 => Self::SetXattr {
                name: body.string()?,
                value: body.0.get(..size as usize)?,
                flags,
            },
            22 => Self::GetXattr {
                name: body.string()?,
                size,
            },
            _ => Self::ListXattr { size },
        })
    }
}

impl AttrChanges {
    fn decode(mut body: Fields<'_>) -> Option<Self> {
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

#[cfg(test)]
mod tests {
    use super::*;

    fn request(opcode: u32, body: &[u8]) -> Vec<u8> {
        let mut out = self::body(&[0, opcode, 7, 0, 9, 0, 0, 0, 11, 0]);
        out.extend(body);
        out
    }

    fn body(words: &[u32]) -> Vec<u8> {
        words.iter().flat_map(|word| word.to_ne_bytes()).collect()
    }

    #[test]
    fn requests_are_decoded() {
        let check = |opcode: u32, body: &[u8], expected: Operation<'_>| {
            let bytes = request(opcode, body);
            let decode = Request::decode(&bytes).unwrap();
            assert_eq!(decode.operation, expected);
            assert_eq!((decode.unique, decode.node, decode.thread), (7, 9, 11));
        };
        check(1, b"name\0", Operation::Lookup { name: b"name" });
        let handle = Some(5);
        check(3, &body(&[1, 0, 5, 0]), Operation::GetAttr { handle });
        check(3, &body(&[0, 0, 5, 0]), Operation::GetAttr { handle: None });
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
            Operation::SetXattr {
                name: b"user.x",
                value: b"vv",
                flags: 1,
            },
        );
        check(99, b"", Operation::Other(99));
    }

    #[test]
    fn truncated_requests_are_rejected() {
        for (opcode, body) in [
            (1, &b"no end"[..]),
            (3, b"1234"),
            (16, &[0; 40][..39]),
            (42, &body(&[2, 0, 4, 0])),
            (21, &body(&[9, 0])),
        ] {
            assert_eq!(Request::decode(&request(opcode, body)), None, "{opcode}");
        }
        assert_eq!(Request::decode(b"short"), None);
    }

    #[test]
    fn attribute_changes_include_only_valid_fields() {
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
        let decode = AttrChanges::decode(Fields(&body(&words))).unwrap();
        let expected = AttrChanges {
            mode: Some(0o644),
            size: Some(100),
            accessed: Some(NewTime::Now),
            modified: Some(NewTime::To(22, 2)),
            ..AttrChanges::default()
        };
        assert_eq!(decode, expected);
    }
}
