//! Memory that is shared with forked processes, to pass them an environment that is only known after the fork.

use std::ffi::CString;

use nix::errno::Errno;

/// More than the kernel accepts for arguments and environment of a program.
const LENGTH: usize = 16 << 20;

/// An environment in the format of `execve`: an array of pointers, followed by the strings. It takes no memory before
/// it is written.
#[derive(Debug)]
pub(crate) struct SharedEnvironment(*mut u8);

// SAFETY: the memory is owned by this value.
unsafe impl Send for SharedEnvironment {}

impl SharedEnvironment {
    pub(crate) fn new() -> Result<Self, Errno> {
        // SAFETY: new memory at an address that the kernel chooses.
        let start = unsafe {
            libc::mmap(
                std::ptr::null_mut(),
                LENGTH,
                libc::PROT_READ | libc::PROT_WRITE,
                libc::MAP_SHARED | libc::MAP_ANONYMOUS | libc::MAP_NORESERVE,
                -1,
                0,
            )
        };
        if start == libc::MAP_FAILED {
            return Err(Errno::last());
        }
        Ok(Self(start.cast()))
    }

    /// `E2BIG` for an environment that the kernel would not accept either.
    pub(crate) fn write(&mut self, variables: &[CString]) -> Result<(), Errno> {
        let pointer = size_of::<*const libc::c_char>();
        let array = (variables.len() + 1) * pointer;
        let strings: usize = variables
            .iter()
            .map(|variable| variable.as_bytes_with_nul().len())
            .sum();
        if array + strings > LENGTH {
            return Err(Errno::E2BIG);
        }
        let mut offset = array;
        for (index, variable) in variables.iter().enumerate() {
            let bytes = variable.as_bytes_with_nul();
            // SAFETY: both writes are within the mapping, as checked above; it is page-aligned.
            unsafe {
                let string = self.0.add(offset);
                std::ptr::copy_nonoverlapping(bytes.as_ptr(), string, bytes.len());
                self.0
                    .add(index * pointer)
                    .cast::<*const libc::c_char>()
                    .write_unaligned(string.cast());
            }
            offset += bytes.len();
        }
        Ok(())
    }

    /// The array, for `execve`. It has the same address in every process that was forked since.
    pub(super) fn pointers(&self) -> *const *const libc::c_char {
        self.0.cast_const().cast()
    }
}

impl Drop for SharedEnvironment {
    fn drop(&mut self) {
        // SAFETY: mapped with this length, and no longer used.
        unsafe { libc::munmap(self.0.cast(), LENGTH) };
    }
}
