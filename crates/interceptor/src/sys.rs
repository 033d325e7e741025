//! All `unsafe` code of this crate: thin, safe functions around single system calls.
#![expect(
    unsafe_code,
    reason = "system calls without a safe wrapper elsewhere; each block says why it is sound"
)]

pub(crate) mod files;
pub(crate) mod memory;
pub(crate) mod process;
pub(crate) mod seccomp;
pub(crate) mod shared_environment;
pub(crate) mod socket;
pub(crate) mod spawn;
pub(crate) mod trace;
mod watcher;

use nix::errno::Errno;

/// Converts the result of a system call to a `Result`.
fn check(result: libc::c_long) -> Result<libc::c_long, Errno> {
    if result == -1 {
        Err(Errno::last())
    } else {
        Ok(result)
    }
}

/// Like [`check`], for calls that return an `int`.
fn check_int(result: libc::c_int) -> Result<libc::c_int, Errno> {
    Errno::result(result)
}
