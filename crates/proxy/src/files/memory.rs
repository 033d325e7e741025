//! The target's files without FUSE.
//!
//! A file that is read comes whole into memory before `open` returns, up to a size; the descriptor is one of that
//! memory. What is missing then: files that change while they are open, metadata of descriptors, and writing to a file
//! that has content. Each of these is refused or documented, never silently wrong.
//!
//! A file that is new or was emptied can be written: [`writing`] brings it to the target when its last user has closed
//! it. A directory becomes a folder with the same names and kinds: see [`folders`].

mod folders;
mod writing;

use std::fs::{File, OpenOptions as FileOptions};
use std::io::{Seek as _, Write as _};
use std::os::fd::{AsRawFd as _, BorrowedFd, OwnedFd};
use std::path::Path;

use interceptor::Errno;
use nix::sys::memfd::{MFdFlags, memfd_create};
use protocol::files::FIRST_BYTES;
use protocol::rpc::{self, Place};

use self::folders::Folders;
use self::writing::Writing;
use super::calls::{Calls, next_part};
use super::errno_of;
use crate::event::FileProblem;

/// The largest file that is brought into memory.
pub(crate) const LARGEST_FILE: u64 = 64 << 20;

#[derive(Debug)]
pub(crate) struct Memory {
    calls: Calls,
    folders: Folders,
    writing: Writing,
}

impl Memory {
    pub(crate) fn start(calls: Calls) -> Result<Self, Errno> {
        Ok(Self {
            writing: Writing::start(calls.clone())?,
            folders: Folders::default(),
            calls,
        })
    }

    pub(crate) fn open(
        &self,
        path: &Path,
        opened: &rpc::OpenResponse,
        flags: i32,
    ) -> Result<OwnedFd, Errno> {
        let metadata = opened.metadata.as_ref();
        let (mode, size) = metadata.map_or((0, 0), |metadata| (metadata.mode, metadata.size));
        let handle = opened.handle;
        if mode & libc::S_IFMT == libc::S_IFDIR {
            let entries = self.calls.wait(self.calls.list(Place::handle(handle)));
            self.calls.close(handle);
            return self.folders.open(&entries?);
        }
        if flags & libc::O_ACCMODE != libc::O_RDONLY {
            return self.writable(path, handle, flags, size);
        }
        let file = self.filled(path, opened, size);
        self.calls.close(handle);
        // Opened anew: reading only, from the beginning.
        reopen(&file?, FileOptions::new().read(true))
    }

    fn writable(&self, path: &Path, handle: u64, flags: i32, size: u64) -> Result<OwnedFd, Errno> {
        if size > 0 {
            self.calls.close(handle);
            self.calls.say(path, FileProblem::NotEmpty);
            return Err(Errno::EOPNOTSUPP);
        }
        self.writing.open(path, handle, flags)
    }

    fn filled(&self, path: &Path, opened: &rpc::OpenResponse, size: u64) -> Result<File, Errno> {
        let too_large = || {
            self.calls.say(path, FileProblem::TooLarge);
            Errno::EFBIG
        };
        if size > LARGEST_FILE {
            return Err(too_large());
        }
        let mut file = in_memory()?;
        let failed = |error: std::io::Error| errno_of(&error);
        file.write_all(&opened.first_bytes).map_err(failed)?;
        if !opened.whole {
            let offset = opened.first_bytes.len() as u64;
            // One byte more tells whether it has grown too large meanwhile.
            let most = LARGEST_FILE + 1 - offset.min(LARGEST_FILE);
            self.calls.wait(async {
                let mut body = self.calls.read_stream(opened.handle, offset, most).await?;
                while let Some(part) = next_part(&mut body).await? {
                    file.write_all(&part).map_err(failed)?;
                }
                Ok::<_, Errno>(())
            })?;
        }
        match file.stream_position().map_err(failed)? {
            length if length > LARGEST_FILE => Err(too_large()),
            _ => Ok(file),
        }
    }

    /// What the agent calls the file of a descriptor that we gave for writing. Others are only copies.
    pub(crate) fn handle_of(&self, file: BorrowedFd<'_>) -> Result<u64, Errno> {
        self.writing.handle_of(file).ok_or(Errno::EXDEV)
    }

    /// Returns when everything that was written and closed is at the target.
    pub(crate) fn settle(&self) {
        self.writing.settle();
        self.folders.settle();
    }
}

/// A file of memory, which nobody else sees and which goes with its last descriptor.
fn in_memory() -> Result<File, Errno> {
    memfd_create("standin", MFdFlags::MFD_CLOEXEC).map(File::from)
}

/// A descriptor of the same file with a position and rights of its own.
fn reopen(file: &File, options: &FileOptions) -> Result<OwnedFd, Errno> {
    options
        .open(format!("/proc/self/fd/{}", file.as_raw_fd()))
        .map(OwnedFd::from)
        .map_err(|error| errno_of(&error))
}

const _: () = assert!(FIRST_BYTES as u64 <= LARGEST_FILE);
