//! Leases: the kernel's word for whether anybody has a file open for writing.

use std::os::fd::{AsFd, AsRawFd as _};

use nix::errno::Errno;

/// Whether a file, which we have open for reading, is open for writing anywhere.
pub(crate) fn has_writers(file: impl AsFd) -> bool {
    let lease = |kind: libc::c_int| {
        let number = file.as_fd().as_raw_fd();
        // SAFETY: plain numbers; the descriptor is open while it is borrowed.
        Errno::result(unsafe { libc::fcntl(number, libc::F_SETLEASE, kind) })
    };
    // It is given only where there are no writers, and given back at once.
    let refused = lease(libc::F_RDLCK).is_err();
    if !refused {
        let _ = lease(libc::F_UNLCK);
    }
    refused
}
