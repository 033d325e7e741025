//! System calls that need `unsafe`. All of them affect only the calling thread.

#![expect(
    unsafe_code,
    reason = "the only module with unsafe code here; each call says why it is sound"
)]

use rustix::io::{Errno, Result};
use rustix::thread::{UnshareFlags, unshare_unsafe};

/// Gives the thread its own umask, root and working directory.
pub(crate) fn own_filesystem_settings() -> Result<()> {
    // SAFETY: unsharing is unsound only for the table of descriptors, which stays shared.
    unsafe { unshare_unsafe(UnshareFlags::FS) }
}

/// Sets the user for the thread's file access. The raw call is used because it affects only one thread.
pub(crate) fn set_filesystem_user(uid: u32) -> Result<()> {
    set_and_check(libc::SYS_setfsuid, uid)
}

/// Sets the group for the thread's file access.
pub(crate) fn set_filesystem_group(gid: u32) -> Result<()> {
    set_and_check(libc::SYS_setfsgid, gid)
}

/// The user for the thread's file access.
pub(crate) fn filesystem_user() -> u32 {
    current(libc::SYS_setfsuid)
}

/// The group for the thread's file access.
pub(crate) fn filesystem_group() -> u32 {
    current(libc::SYS_setfsgid)
}

fn current(call: libc::c_long) -> u32 {
    // SAFETY: both calls take a number and touch no memory of ours; -1 is no valid id, so nothing is changed.
    let now = unsafe { libc::syscall(call, libc::c_ulong::from(u32::MAX)) };
    // The kernel's numbers have 32 bits.
    u32::try_from(now).unwrap_or(u32::MAX)
}

/// These calls return the previous id and never an error, so success is checked by reading the id back.
fn set_and_check(call: libc::c_long, id: u32) -> Result<()> {
    // SAFETY: both calls take a number, touch no memory of ours and change only this thread's credentials.
    unsafe { libc::syscall(call, libc::c_ulong::from(id)) };
    if current(call) == id {
        Ok(())
    } else {
        Err(Errno::PERM)
    }
}
