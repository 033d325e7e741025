//! The target's files without FUSE.
//!
//! A file that is opened for reading is copied into memory before `open` returns, up to a maximum size; the descriptor is
//! one of that memory. Not supported are files that change while they are open, metadata of descriptors, and writing to
//! a file that has content. Each of these is refused or documented, never silently wrong.
//!
//! A new or truncated file can be written: [`write_back`] sends it to the target when its last writer has closed it. A
//! directory is copied to a local one with the same names and file types: see [`directories`].

mod directories;
mod write_back;

use std::fs::{File, OpenOptions as FileOptions};
use std::io::{Seek as _, Write as _};
use std::os::fd::{AsRawFd as _, BorrowedFd, OwnedFd};
use std::path::Path;

use interceptor::Errno;
use nix::sys::memfd::{MFdFlags, memfd_create};
use protocol::files::MAX_FIRST_BYTES;
use protocol::rpc::{self, FileRef};

use self::directories::DirectoryCopies;
use self::write_back::WriteBack;
use super::calls::{FileCalls, next_chunk};
use super::errno_of;
use crate::event::FileProblem;

/// The maximum size of a file that is copied into memory.
pub(crate) const MAX_FILE_BYTES: u64 = 64 << 20;

#[derive(Debug)]
pub(crate) struct MemoryFiles {
    calls: FileCalls,
    directories: DirectoryCopies,
    write_back: WriteBack,
}

impl MemoryFiles {
    pub(crate) fn start(calls: FileCalls) -> Result<Self, Errno> {
        Ok(Self {
            write_back: WriteBack::start(calls.clone())?,
            directories: DirectoryCopies::default(),
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
            let entries = self
                .calls
                .block_on(self.calls.list(FileRef::handle(handle)));
            self.calls.close(handle);
            return self.directories.open(&entries?);
        }
        if flags & libc::O_ACCMODE != libc::O_RDONLY {
            return self.writable(path, handle, flags, size);
        }
        let file = self.download(path, opened, size);
        self.calls.close(handle);
        // A new descriptor: read-only, with the position at the start.
        reopen(&file?, FileOptions::new().read(true))
    }

    fn writable(&self, path: &Path, handle: u64, flags: i32, size: u64) -> Result<OwnedFd, Errno> {
        if size > 0 {
            self.calls.close(handle);
            self.calls.report_problem(path, FileProblem::NotEmpty);
            return Err(Errno::EOPNOTSUPP);
        }
        self.write_back.open(path, handle, flags)
    }

    fn download(&self, path: &Path, opened: &rpc::OpenResponse, size: u64) -> Result<File, Errno> {
        let too_large = || {
            self.calls.report_problem(path, FileProblem::TooLarge);
            Errno::EFBIG
        };
        if size > MAX_FILE_BYTES {
            return Err(too_large());
        }
        let mut file = create_memory_file()?;
        let failed = |error: std::io::Error| errno_of(&error);
        file.write_all(&opened.first_bytes).map_err(failed)?;
        if !opened.whole {
            let offset = opened.first_bytes.len() as u64;
            // One byte more than the maximum, to detect a file that has grown too large meanwhile.
            let length = MAX_FILE_BYTES + 1 - offset.min(MAX_FILE_BYTES);
            self.calls.block_on(async {
                let mut body = self
                    .calls
                    .read_stream(opened.handle, offset, length)
                    .await?;
                while let Some(chunk) = next_chunk(&mut body).await? {
                    file.write_all(&chunk).map_err(failed)?;
                }
                Ok::<_, Errno>(())
            })?;
        }
        match file.stream_position().map_err(failed)? {
            length if length > MAX_FILE_BYTES => Err(too_large()),
            _ => Ok(file),
        }
    }

    /// The agent's handle for a descriptor that was opened for writing. Other descriptors are only copies.
    pub(crate) fn handle_of(&self, file: BorrowedFd<'_>) -> Result<u64, Errno> {
        self.write_back.handle_of(file).ok_or(Errno::EXDEV)
    }

    /// Blocks until everything that was written and closed is at the target.
    pub(crate) fn flush(&self) {
        self.write_back.flush();
        self.directories.remove_closed();
    }
}

/// An anonymous file in memory, which is freed with its last descriptor.
fn create_memory_file() -> Result<File, Errno> {
    memfd_create("standin", MFdFlags::MFD_CLOEXEC).map(File::from)
}

/// A new descriptor of the same file, with its own position and access mode.
fn reopen(file: &File, options: &FileOptions) -> Result<OwnedFd, Errno> {
    options
        .open(format!("/proc/self/fd/{}", file.as_raw_fd()))
        .map(OwnedFd::from)
        .map_err(|error| errno_of(&error))
}

const _: () = assert!(MAX_FIRST_BYTES as u64 <= MAX_FILE_BYTES);
