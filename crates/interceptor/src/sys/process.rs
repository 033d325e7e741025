//! Processes by pidfd, so that a reused process ID is not confused with the original process.

use std::os::fd::{AsRawFd, BorrowedFd, FromRawFd, OwnedFd, RawFd};

use nix::errno::Errno;

use super::check;

/// `PIDFD_THREAD`, since Linux 6.9: the descriptor refers to a thread, not to its process.
const PIDFD_THREAD: libc::c_int = libc::O_EXCL;

fn owned(result: libc::c_long) -> Result<OwnedFd, Errno> {
    let number = RawFd::try_from(check(result)?).map_err(|_| Errno::EBADF)?;
    // SAFETY: the kernel just created this descriptor for us, so it has no other owner.
    Ok(unsafe { OwnedFd::from_raw_fd(number) })
}

/// A pidfd of the process whose first thread is `process`.
pub(crate) fn open(process: libc::pid_t) -> Result<OwnedFd, Errno> {
    // SAFETY: plain numbers.
    owned(unsafe { libc::syscall(libc::SYS_pidfd_open, process, 0) })
}

/// A pidfd of a thread. `EINVAL` before Linux 6.9.
pub(crate) fn open_thread(thread: libc::pid_t) -> Result<OwnedFd, Errno> {
    // SAFETY: plain numbers.
    owned(unsafe { libc::syscall(libc::SYS_pidfd_open, thread, PIDFD_THREAD) })
}

/// Duplicates descriptor `number` of another process.
pub(crate) fn copy_descriptor(process: BorrowedFd<'_>, number: RawFd) -> Result<OwnedFd, Errno> {
    // SAFETY: plain numbers.
    owned(unsafe { libc::syscall(libc::SYS_pidfd_getfd, process.as_raw_fd(), number, 0) })
}

pub(crate) fn send_signal(process: BorrowedFd<'_>, signal: libc::c_int) -> Result<(), Errno> {
    // SAFETY: plain numbers, and no siginfo.
    check(unsafe {
        libc::syscall(
            libc::SYS_pidfd_send_signal,
            process.as_raw_fd(),
            signal,
            std::ptr::null::<libc::siginfo_t>(),
            0,
        )
    })
    .map(drop)
}

/// The user namespace that owns a namespace. `EPERM` if it is above our own.
pub(crate) fn owner_of_namespace(namespace: BorrowedFd<'_>) -> Result<OwnedFd, Errno> {
    const NS_GET_USERNS: libc::c_ulong = 0xb701;
    related_namespace(namespace, NS_GET_USERNS)
}

/// The parent of a user namespace. `EPERM` if it has none, or if it is above our own.
pub(crate) fn parent_of_namespace(namespace: BorrowedFd<'_>) -> Result<OwnedFd, Errno> {
    const NS_GET_PARENT: libc::c_ulong = 0xb702;
    related_namespace(namespace, NS_GET_PARENT)
}

fn related_namespace(namespace: BorrowedFd<'_>, relation: libc::c_ulong) -> Result<OwnedFd, Errno> {
    // SAFETY: plain numbers.
    owned(unsafe { libc::syscall(libc::SYS_ioctl, namespace.as_raw_fd(), relation, 0) })
}

/// Whether `thread` is one of the threads of `process`.
pub(crate) fn is_thread_of(process: libc::pid_t, thread: libc::pid_t) -> bool {
    // SAFETY: plain numbers. Signal zero is never delivered; it only checks for existence.
    let result = unsafe { libc::syscall(libc::SYS_tgkill, process, thread, 0) };
    // The thread exists even if we may not send signals to it.
    check(result).is_ok() || Errno::last() == Errno::EPERM
}

pub(crate) fn own_id() -> libc::pid_t {
    // SAFETY: cannot fail.
    unsafe { libc::getpid() }
}

/// Waits for a child to exit, with any status.
pub(crate) fn reap(child: libc::pid_t) {
    loop {
        // SAFETY: no status is returned.
        let result = unsafe { libc::waitpid(child, std::ptr::null_mut(), 0) };
        if result != -1 || Errno::last() != Errno::EINTR {
            return;
        }
    }
}

/// The host name and the version of the kernel, as returned by `uname`.
pub(crate) fn system_names() -> libc::utsname {
    let mut names: libc::utsname = super::memory::zeroed();
    // SAFETY: the kernel writes a `utsname` to a buffer of that type. With a valid buffer it cannot fail.
    unsafe { libc::uname(&raw mut names) };
    names
}
