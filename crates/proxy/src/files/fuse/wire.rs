//! The kernel's FUSE protocol, as far as we speak it: requests to what they mean, answers to bytes.
//!
//! The numbers and layouts are those of `linux/fuse.h`, version 7.31 and newer, which the kernel promises to keep. We
//! speak it ourselves because the library of this field gives a file the number of its node; our files have the numbers
//! that they have at the target.

mod answer;
mod request;

pub(super) use self::answer::{
    Attributes, INVALIDATE_NODE, STORE, add_name, attributes, count, entry, file_system,
    forget_metadata, header, init, offset, opened, store,
};
pub(super) use self::request::{Change, NewTime, Operation, Request};

/// The node of the directory in which we look up files to open.
pub(super) const ROOT: u64 = 1;

/// The longest write that the kernel sends at once, and the longest read that it asks for.
pub(super) const LONGEST: usize = 1024 * 1024;
/// Room for a request with all its fields.
pub(super) const REQUEST_ROOM: usize = LONGEST + 8192;

/// How an opened file is treated by the kernel.
pub(super) const DIRECT_IO: u32 = 1 << 0;
pub(super) const KEEP_CACHE: u32 = 1 << 1;
