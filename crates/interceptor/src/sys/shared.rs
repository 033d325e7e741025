//! Memory that a process shares with those that it forks, for what they need and only it knows, later.

use std::ffi::CString;

use nix::errno::Errno;

/// More than the kernel takes as arguments and environment of a program.
const LENGTH: usize = 16 << 20;

/// An environment as `execve` takes it: an array of pointers, and the strings behind it. Nothing of it takes up memory
/// before it is written.
#[derive(Debug)]
pub(crate) struct Shared(*mut u8);

// SAFETY: the memory belongs to whoever has this.
unsafe impl Send for Shared {}

impl Shared {
    pub(crate) fn new() -> Result<Self, Errno> {
        // SAFETY: new memory at a place that the kernel chooses.
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

    /// `E2BIG` if the kernel would not take it either.
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
            // SAFETY: both writes are within the mapping, as was checked; it is aligned to a page.
            unsafe {
                let place = self.0.add(offset);
                std::ptr::copy_nonoverlapping(bytes.as_ptr(), place, bytes.len());
                self.0
                    .add(index * pointer)
                    .cast::<*const libc::c_char>()
                    .write_unaligned(place.cast());
            }
            offset += bytes.len();
        }
        Ok(())
    }

    /// The array, for `execve`. The same in every process that was forked since.
    pub(super) fn pointers(&self) -> *const *const libc::c_char {
        self.0.cast_const().cast()
    }
}

impl Drop for Shared {
    fn drop(&mut self) {
        // SAFETY: made with this length, and nobody uses it any more.
        unsafe { libc::munmap(self.0.cast(), LENGTH) };
    }
}
