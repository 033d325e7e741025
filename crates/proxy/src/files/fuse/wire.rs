//! The part of the kernel's FUSE protocol that is used here: decodes requests and encodes responses.
//!
//! The numbers and layouts are those of `linux/fuse.h`, version 7.31 and newer, which are a stable kernel interface. The
//! usual FUSE library is not used because it makes the inode number of a file equal to the number of its node; here files
//! have the inode numbers of the target.

mod request;
mod response;

pub(super) use self::request::{AttrChanges, NewTime, Operation, Request};
pub(super) use self::response::{
    Attributes, NOTIFY_INVALIDATE_INODE, NOTIFY_STORE, attributes, count, entry, header, init,
    invalidate_inode, offset, opened, push_entry, stat_fs, store,
};

/// The node of the root directory, in which all files are opened.
pub(super) const ROOT: u64 = 1;

/// The maximum size of a single read or write request.
pub(super) const MAX_IO_BYTES: usize = 1024 * 1024;
/// The size of the buffer for one request with all its fields.
pub(super) const REQUEST_BUFFER_BYTES: usize = MAX_IO_BYTES + 8192;

/// Flags in the response to `OPEN`.
pub(super) const DIRECT_IO: u32 = 1 << 0;
pub(super) const KEEP_CACHE: u32 = 1 << 1;
