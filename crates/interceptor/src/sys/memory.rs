//! Access to the memory of another process. All addresses belong to the other process and are only numbers here.

use std::io::IoSliceMut;
use std::mem::{MaybeUninit, size_of};

use nix::errno::Errno;

/// A plain structure of the kernel's interface: only integers, every bit pattern is valid, no significant padding.
///
/// # Safety
/// Implementors must be such structures.
pub(crate) unsafe trait Plain: Copy {}

// SAFETY: C structures of integers.
unsafe impl Plain for libc::stat {}
// SAFETY: as above.
unsafe impl Plain for libc::statx {}
// SAFETY: as above.
unsafe impl Plain for libc::statfs {}
// SAFETY: as above.
unsafe impl Plain for libc::utsname {}
// SAFETY: as above.
unsafe impl Plain for libc::open_how {}
// SAFETY: as above; its pointers are never dereferenced here.
unsafe impl Plain for libc::msghdr {}
// SAFETY: as above.
unsafe impl Plain for libc::mmsghdr {}
// SAFETY: as above.
unsafe impl Plain for libc::iovec {}
// SAFETY: as above.
unsafe impl Plain for libc::timespec {}
// SAFETY: as above.
unsafe impl Plain for libc::timeval {}
// SAFETY: as above.
unsafe impl Plain for libc::utimbuf {}
// SAFETY: as above.
unsafe impl Plain for libc::sockaddr_in {}
// SAFETY: an integer.
unsafe impl Plain for u32 {}
// SAFETY: an integer.
unsafe impl Plain for i32 {}

/// The bytes of a plain structure, for writing to another process.
pub(crate) fn bytes_of<T: Plain>(value: &T) -> &[u8] {
    // SAFETY: a `Plain` structure is readable as bytes; kernel structures are zeroed before they are filled.
    unsafe { std::slice::from_raw_parts(std::ptr::from_ref(value).cast(), size_of::<T>()) }
}

/// A zeroed plain structure.
pub(crate) fn zeroed<T: Plain>() -> T {
    // SAFETY: zeros are a valid value of a `Plain` structure.
    unsafe { MaybeUninit::zeroed().assume_init() }
}

/// Reads a structure from the memory of `process`.
pub(crate) fn read_plain<T: Plain>(process: libc::pid_t, address: u64) -> Result<T, Errno> {
    let mut value: T = zeroed();
    // SAFETY: a `Plain` structure may be written as bytes, and any bytes are a valid value.
    let bytes = unsafe {
        std::slice::from_raw_parts_mut(std::ptr::from_mut(&mut value).cast::<u8>(), size_of::<T>())
    };
    read_exactly(process, address, bytes)?;
    Ok(value)
}

pub(crate) fn read_exactly(
    process: libc::pid_t,
    address: u64,
    into: &mut [u8],
) -> Result<(), Errno> {
    let expected = into.len();
    if read_some(process, address, into)? == expected {
        Ok(())
    } else {
        Err(Errno::EFAULT)
    }
}

/// Reads up to the length of `into`; fewer bytes where the mapped memory ends.
pub(crate) fn read_some(
    process: libc::pid_t,
    address: u64,
    into: &mut [u8],
) -> Result<usize, Errno> {
    let remote = [remote_vector(address, into.len())?];
    nix::sys::uio::process_vm_readv(
        nix::unistd::Pid::from_raw(process),
        &mut [IoSliceMut::new(into)],
        &remote,
    )
}

fn remote_vector(address: u64, length: usize) -> Result<nix::sys::uio::RemoteIoVec, Errno> {
    Ok(nix::sys::uio::RemoteIoVec {
        base: usize::try_from(address).map_err(|_| Errno::EFAULT)?,
        len: length,
    })
}
