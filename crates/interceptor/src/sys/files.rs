//! File calls that have no safe wrapper elsewhere.

use std::ffi::CStr;
use std::os::fd::{AsRawFd, BorrowedFd, FromRawFd, OwnedFd, RawFd};

use nix::errno::Errno;

use super::memory::zeroed;
use super::{check, check_int};

/// `openat2`. `directory` may be `AT_FDCWD`.
pub(crate) fn open(
    directory: RawFd,
    path: &CStr,
    flags: i32,
    mode: u32,
    resolve: u64,
) -> Result<OwnedFd, Errno> {
    let mut how: libc::open_how = zeroed();
    // The flags are not sign-extended: the kernel refuses bits that it does not know.
    how.flags = u64::from(flags.cast_unsigned());
    how.mode = u64::from(mode);
    how.resolve = resolve;
    // SAFETY: the kernel reads a zero-terminated string and a structure of the given length.
    let number = check(unsafe {
        libc::syscall(
            libc::SYS_openat2,
            directory,
            path.as_ptr(),
            &raw const how,
            size_of::<libc::open_how>(),
        )
    })?;
    let number = RawFd::try_from(number).map_err(|_| Errno::EBADF)?;
    // SAFETY: the kernel just created this descriptor for us.
    Ok(unsafe { OwnedFd::from_raw_fd(number) })
}

/// The metadata of an open file.
pub(crate) fn describe(file: BorrowedFd<'_>) -> Result<libc::statx, Errno> {
    describe_at(file.as_raw_fd(), c"", libc::AT_EMPTY_PATH)
}

/// Like [`describe`], without a request to a remote file system.
pub(crate) fn describe_cached(file: BorrowedFd<'_>) -> Result<libc::statx, Errno> {
    let flags = libc::AT_EMPTY_PATH | libc::AT_STATX_DONT_SYNC;
    describe_at(file.as_raw_fd(), c"", flags)
}

/// `statx` with all basic fields and the birth time.
pub(crate) fn describe_at(directory: RawFd, path: &CStr, flags: i32) -> Result<libc::statx, Errno> {
    let mut description: libc::statx = zeroed();
    let mask = libc::STATX_BASIC_STATS | libc::STATX_BTIME;
    // SAFETY: a zero-terminated string, and a buffer for a `statx`.
    check_int(unsafe { libc::statx(directory, path.as_ptr(), flags, mask, &raw mut description) })?;
    Ok(description)
}

/// Checks access to an open file with our effective user and group.
pub(crate) fn may_access(file: BorrowedFd<'_>, mode: i32) -> Result<(), Errno> {
    // SAFETY: a constant string and plain numbers.
    check(unsafe {
        libc::syscall(
            libc::SYS_faccessat2,
            file.as_raw_fd(),
            c"".as_ptr(),
            mode,
            libc::AT_EMPTY_PATH | libc::AT_EACCESS,
        )
    })
    .map(drop)
}

pub(crate) fn describe_file_system(file: BorrowedFd<'_>) -> Result<libc::statfs, Errno> {
    let mut description: libc::statfs = zeroed();
    // SAFETY: a buffer for a `statfs`.
    check_int(unsafe { libc::fstatfs(file.as_raw_fd(), &raw mut description) })?;
    Ok(description)
}

pub(crate) fn read_attribute(path: &CStr, name: &CStr) -> Result<Vec<u8>, Errno> {
    // SAFETY: zero-terminated strings, and a buffer with its length.
    read_with_max_buffer(|buffer| unsafe {
        libc::getxattr(
            path.as_ptr(),
            name.as_ptr(),
            buffer.as_mut_ptr().cast(),
            buffer.len(),
        )
    })
}

pub(crate) fn list_attributes(path: &CStr) -> Result<Vec<u8>, Errno> {
    // SAFETY: as above.
    read_with_max_buffer(|buffer| unsafe {
        libc::listxattr(path.as_ptr(), buffer.as_mut_ptr().cast(), buffer.len())
    })
}

/// Calls with the largest buffer that an attribute can need.
fn read_with_max_buffer(mut call: impl FnMut(&mut [u8]) -> isize) -> Result<Vec<u8>, Errno> {
    let mut buffer = vec![0; 65536];
    let length = Errno::result(call(&mut buffer))?;
    buffer.truncate(length.unsigned_abs());
    Ok(buffer)
}

pub(crate) fn write_attribute(
    path: &CStr,
    name: &CStr,
    value: &[u8],
    flags: i32,
) -> Result<(), Errno> {
    // SAFETY: zero-terminated strings, and a buffer with its length.
    check_int(unsafe {
        libc::setxattr(
            path.as_ptr(),
            name.as_ptr(),
            value.as_ptr().cast(),
            value.len(),
            flags,
        )
    })
    .map(drop)
}

pub(crate) fn remove_attribute(path: &CStr, name: &CStr) -> Result<(), Errno> {
    // SAFETY: zero-terminated strings.
    check_int(unsafe { libc::removexattr(path.as_ptr(), name.as_ptr()) }).map(drop)
}

/// Gives this thread its own umask and clears it: modes that come from the application already have its umask applied.
pub(crate) fn clear_umask() {
    // SAFETY: plain numbers. The umask is only changed if the thread no longer shares it with the others.
    unsafe {
        if libc::unshare(libc::CLONE_FS) == 0 {
            libc::umask(0);
        }
    }
}

/// `openat` through the C library, and `close`. Only makes system calls.
pub(crate) fn open_and_close(path: &CStr) {
    // SAFETY: a zero-terminated string; we own the descriptor, if there is one.
    unsafe {
        let file = libc::open(path.as_ptr(), libc::O_RDONLY);
        if file != -1 {
            libc::close(file);
        }
    }
}
