//! File leases: the kernel grants a read lease only on a file that no process has open for writing.

use std::os::fd::{AsFd, AsRawFd as _};

use nix::errno::Errno;

/// Whether a file, which this process has open for reading, is open for writing anywhere.
pub(crate) fn has_writers(file: impl AsFd) -> bool {
    let lease = |kind: libc::c_int| {
        let number = file.as_fd().as_raw_fd();
        // SAFETY: all arguments are integers; the descriptor is open while it is borrowed.
        Errno::result(unsafe { libc::fcntl(number, libc::F_SETLEASE, kind) })
    };
    // The kernel grants the lease only if there are no writers. It is released at once.
    let refused = lease(libc::F_RDLCK).is_err();
    if !refused {
        let _ = lease(libc::F_UNLCK);
    }
    refused
}
