//! Responses to the kernel, and notifications.

use std::time::Duration;

use protocol::rpc::{Metadata, Time};

use super::MAX_IO_BYTES;

const MAJOR: u32 = 7;
const MINOR: u32 = 31;

/// Capabilities of the kernel (`FUSE_*` init flags).
mod capability {
    pub(super) const ASYNC_READ: u64 = 1 << 0;
    pub(super) const BIG_WRITES: u64 = 1 << 5;
    /// The kernel drops cached pages when the size or modification time has changed.
    pub(super) const AUTO_INVAL_DATA: u64 = 1 << 12;
    pub(super) const ASYNC_DIO: u64 = 1 << 15;
    pub(super) const PARALLEL_DIROPS: u64 = 1 << 18;
    pub(super) const MAX_PAGES: u64 = 1 << 22;
    /// The target's kernel removes set-user-ID bits when a file is written. Without this capability the local kernel would
    /// send a request before every write.
    pub(super) const HANDLE_KILLPRIV_V2: u64 = 1 << 28;
    /// The second word of capabilities is used.
    pub(super) const INIT_EXT: u64 = 1 << 30;
    pub(super) const DIRECT_IO_ALLOW_MMAP: u64 = 1 << 36;
    pub(super) const REQUESTED: u64 = ASYNC_READ
        | BIG_WRITES
        | AUTO_INVAL_DATA
        | ASYNC_DIO
        | PARALLEL_DIROPS
        | MAX_PAGES
        | HANDLE_KILLPRIV_V2
        | INIT_EXT
        | DIRECT_IO_ALLOW_MMAP;
}

/// The response to `INIT`.
pub(in crate::files::fuse) fn init(max_readahead: u32, capabilities: u64) -> Vec<u8> {
    let agreed = capabilities & capability::REQUESTED;
    let low = |value: u64| u32::try_from(value & 0xffff_ffff).unwrap_or_default();
    let mut out = Writer::default();
    out.u32(MAJOR)
        .u32(MINOR)
        .u32(max_readahead.max(MAX_IO_BYTES as u32))
        .u32(low(agreed));
    // Maximum number of background requests, and the congestion threshold.
    out.u32(64 | 48 << 16);
    // Maximum write, granularity of times, maximum pages per request.
    out.u32(MAX_IO_BYTES as u32)
        .u32(1)
        .u32((MAX_IO_BYTES / 4096) as u32);
    out.u32(low(agreed >> 32));
    out.0.resize(64, 0);
    out.0
}

/// The response to `LOOKUP`. The name never changes, so it is valid for a day; the attributes are valid for `valid`.
pub(in crate::files::fuse) fn entry(
    node: u64,
    valid: Duration,
    attributes: &Attributes<'_>,
) -> Vec<u8> {
    const ONE_DAY_SECONDS: u64 = 24 * 60 * 60;
    let mut out = Writer::default();
    out.u64(node)
        .u64(0)
        .u64(ONE_DAY_SECONDS)
        .u64(valid.as_secs());
    out.u32(0).u32(valid.subsec_nanos());
    attributes.write(&mut out);
    out.0
}

/// The response to `GETATTR` and `SETATTR`.
pub(in crate::files::fuse) fn attributes(valid: Duration, attributes: &Attributes<'_>) -> Vec<u8> {
    let mut out = Writer::default();
    out.u64(valid.as_secs()).u32(valid.subsec_nanos()).u32(0);
    attributes.write(&mut out);
    out.0
}

/// The response to `OPEN` and `OPENDIR`.
pub(in crate::files::fuse) fn opened(handle: u64, flags: u32) -> Vec<u8> {
    let mut out = Writer::default();
    out.u64(handle).u32(flags).u32(0);
    out.0
}

/// The response to `WRITE`, and with the same layout to a `GETXATTR` that requests the size.
pub(in crate::files::fuse) fn count(count: u32) -> Vec<u8> {
    let mut out = Writer::default();
    out.u32(count).u32(0);
    out.0
}

pub(in crate::files::fuse) fn offset(offset: u64) -> Vec<u8> {
    offset.to_ne_bytes().to_vec()
}

/// The response to `STATFS`.
pub(in crate::files::fuse) fn stat_fs(from: &protocol::rpc::StatFilesystemResponse) -> Vec<u8> {
    let saturated = |value: u64| u32::try_from(value).unwrap_or(u32::MAX);
    let mut out = Writer::default();
    out.u64(from.blocks)
        .u64(from.blocks_free)
        .u64(from.blocks_available)
        .u64(from.files)
        .u64(from.files_free)
        .u32(saturated(from.block_size))
        .u32(saturated(from.name_length))
        .u32(saturated(from.fragment_size));
    out.0.resize(80, 0);
    out.0
}

/// A notification: the kernel drops its cached metadata of a node.
pub(in crate::files::fuse) fn invalidate_inode(node: u64) -> Vec<u8> {
    let mut out = Writer::default();
    out.u64(node).u64(u64::MAX).u64(0);
    out.0
}

/// The notification code of [`invalidate_inode`].
pub(in crate::files::fuse) const NOTIFY_INVALIDATE_INODE: i32 = 2;

/// A notification: the kernel puts the bytes that follow into the page cache.
pub(in crate::files::fuse) fn store(node: u64, offset: u64, length: u32) -> Vec<u8> {
    let mut out = Writer::default();
    out.u64(node).u64(offset).u32(length).u32(0);
    out.0
}

/// The notification code of [`store`].
pub(in crate::files::fuse) const NOTIFY_STORE: i32 = 4;

/// The header of a response with `length` bytes. An error is a negative errno.
pub(in crate::files::fuse) fn header(unique: u64, error: i32, length: usize) -> [u8; 16] {
    let mut header = [0; 16];
    let length = u32::try_from(length + header.len()).unwrap_or(u32::MAX);
    header[..4].copy_from_slice(&length.to_ne_bytes());
    header[4..8].copy_from_slice(&error.to_ne_bytes());
    header[8..].copy_from_slice(&unique.to_ne_bytes());
    header
}

/// Appends a directory entry to `listing`. `false` if it does not fit into `max_bytes`.
pub(in crate::files::fuse) fn push_entry(
    listing: &mut Vec<u8>,
    max_bytes: usize,
    (name, inode, kind): (&[u8], u64, u32),
    next: u64,
) -> bool {
    let padded = (24 + name.len()).next_multiple_of(8);
    if listing.len() + padded > max_bytes {
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

/// A file's metadata, with its inode number and owner on this machine.
#[derive(Debug, Clone, Copy)]
pub(in crate::files::fuse) struct Attributes<'m> {
    pub(in crate::files::fuse) metadata: &'m Metadata,
    pub(in crate::files::fuse) inode: u64,
    pub(in crate::files::fuse) user: u32,
    pub(in crate::files::fuse) group: u32,
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
        // The device number is always zero: only regular files and directories are opened.
        out.u32(0).u32(from.block_size).u32(0);
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

    #[test]
    fn responses_have_the_lengths_of_the_kernel() {
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
            stat_fs(&protocol::rpc::StatFilesystemResponse::default()).len(),
            80
        );
    }

    #[test]
    fn directory_entries_are_limited_in_size() {
        let mut listing = Vec::new();
        assert!(push_entry(&mut listing, 64, (b"a", 1, 8), 1));
        assert!(push_entry(&mut listing, 64, (b"\xff\xfe", 2, 8), 2));
        assert_eq!(listing.len(), 64);
        assert!(!push_entry(&mut listing, 64, (b"c", 3, 8), 3));
        assert_eq!(&listing[24..25], b"a");
        assert_eq!(&listing[56..58], b"\xff\xfe");
    }
}
