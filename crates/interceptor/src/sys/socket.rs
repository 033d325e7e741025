//! Sockets: options and addresses that have no safe wrapper elsewhere.

use std::os::fd::{FromRawFd, OwnedFd, RawFd};

/// Takes over a descriptor that the kernel just put into this process, for example with a message.
pub(crate) fn own(number: RawFd) -> OwnedFd {
    // SAFETY: the kernel made it for us and nobody else knows its number.
    unsafe { OwnedFd::from_raw_fd(number) }
}
