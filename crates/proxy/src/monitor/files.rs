//! The target's files, with monitoring of all operations.

use std::ffi::OsStr;
use std::os::fd::{BorrowedFd, OwnedFd};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Instant;

use interceptor::{
    CallResult, Completion, Disposition, Errno, FileSystemStats, Metadata, OpenOptions,
    RemoteFiles, Times,
};
use parking_lot::Mutex;

use super::Monitor;

/// An operation on a file.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Operation {
    Lookup,
    Read,
    Write,
    Stat,
    Access,
    ReadLink,
    Resolve,
    StatFileSystem,
    MakeDirectory,
    MakeNode,
    Unlink,
    RemoveDirectory,
    Rename,
    Link,
    SymbolicLink,
    ChangeMode,
    ChangeOwner,
    SetTimes,
    Truncate,
    GetAttribute,
    SetAttribute,
    List,
}

impl Operation {
    pub(super) fn name(self) -> &'static str {
        match self {
            Self::Lookup => "lookup",
            Self::Read => "read",
            Self::Write => "write",
            Self::Stat => "stat",
            Self::Access => "access",
            Self::ReadLink => "readlink",
            Self::Resolve => "realpath",
            Self::StatFileSystem => "statfs",
            Self::MakeDirectory => "mkdir",
            Self::MakeNode => "mknod",
            Self::Unlink => "unlink",
            Self::RemoveDirectory => "rmdir",
            Self::Rename => "rename",
            Self::Link => "link",
            Self::SymbolicLink => "symlink",
            Self::ChangeMode => "chmod",
            Self::ChangeOwner => "chown",
            Self::SetTimes => "utime",
            Self::Truncate => "truncate",
            Self::GetAttribute => "getxattr",
            Self::SetAttribute => "setxattr",
            Self::List => "list",
        }
    }

    /// Whether an error is a normal result: a path is often not a link, and an attribute often not set.
    fn is_normal_result(self, errno: Errno) -> bool {
        matches!(
            (self, errno),
            (Self::ReadLink, Errno::EINVAL) | (Self::GetAttribute, Errno::ENODATA)
        )
    }

    fn of_open(flags: i32) -> Self {
        if flags & libc::O_DIRECTORY != 0 {
            Self::List
        } else if flags & libc::O_ACCMODE == libc::O_RDONLY {
            Self::Read
        } else {
            Self::Write
        }
    }
}

/// Forwards all operations to the files, and records their results.
#[derive(Debug)]
pub(crate) struct MonitoredFiles<F> {
    pub(crate) files: Arc<F>,
    pub(crate) monitor: Monitor,
}

fn errno<T>(result: &CallResult<T>) -> Option<Errno> {
    match result {
        Err(Disposition::Fail(errno)) => Some(*errno),
        _ => None,
    }
}

impl<F> MonitoredFiles<F> {
    fn record<T>(
        &self,
        path: &Path,
        operation: Operation,
        perform: impl FnOnce(&F) -> CallResult<T>,
    ) -> CallResult<T> {
        let since = Instant::now();
        let result = perform(&self.files);
        let errno = errno(&result).filter(|errno| !operation.is_normal_result(*errno));
        self.monitor.file(path, operation, errno, since);
        result
    }

    /// Records an asynchronous operation when it completes. If it cannot be started, the caller performs it synchronously.
    fn start<T: 'static>(
        &self,
        path: &Path,
        operation: Operation,
        completion: Completion<T>,
        start: impl FnOnce(&F, Completion<T>) -> Result<(), Completion<T>>,
    ) -> Result<(), Completion<T>> {
        let since = Instant::now();
        let (monitor, recorded_path) = (self.monitor.clone(), path.to_path_buf());
        // The completion is returned when nothing is started.
        let slot = Arc::new(Mutex::new(Some(completion)));
        let inner = Arc::clone(&slot);
        let take = |slot: &Mutex<Option<Completion<T>>>| slot.lock().take();
        let recording: Completion<T> = Box::new(move |result| {
            monitor.file(&recorded_path, operation, errno(&result), since);
            if let Some(completion) = take(&inner) {
                completion(result);
            }
        });
        match start(&self.files, recording) {
            Ok(()) => Ok(()),
            Err(recording) => match take(&slot) {
                Some(completion) => Err(completion),
                None => Err(recording),
            },
        }
    }
}

impl<F: RemoteFiles> RemoteFiles for MonitoredFiles<F> {
    fn open(&self, path: &Path, options: &OpenOptions) -> CallResult<OwnedFd> {
        self.record(path, Operation::of_open(options.flags), |files| {
            files.open(path, options)
        })
    }

    fn metadata(&self, path: &Path, follow: bool) -> CallResult<Metadata> {
        self.record(path, Operation::Stat, |files| files.metadata(path, follow))
    }

    fn start_open(
        &self,
        path: &Path,
        options: &OpenOptions,
        completion: Completion<OwnedFd>,
    ) -> Result<(), Completion<OwnedFd>> {
        let operation = Operation::of_open(options.flags);
        self.start(path, operation, completion, |files, completion| {
            files.start_open(path, options, completion)
        })
    }

    fn start_metadata(
        &self,
        path: &Path,
        follow: bool,
        completion: Completion<Metadata>,
    ) -> Result<(), Completion<Metadata>> {
        self.start(path, Operation::Stat, completion, |files, completion| {
            files.start_metadata(path, follow, completion)
        })
    }

    fn start_access(
        &self,
        path: &Path,
        mode: i32,
        follow: bool,
        completion: Completion<()>,
    ) -> Result<(), Completion<()>> {
        self.start(path, Operation::Access, completion, |files, completion| {
            files.start_access(path, mode, follow, completion)
        })
    }

    fn read_link(&self, path: &Path) -> CallResult<PathBuf> {
        self.record(path, Operation::ReadLink, |files| files.read_link(path))
    }

    fn canonical(&self, path: &Path) -> CallResult<PathBuf> {
        self.record(path, Operation::Resolve, |files| files.canonical(path))
    }

    fn access(&self, path: &Path, mode: i32, follow: bool) -> CallResult<()> {
        self.record(path, Operation::Access, |files| {
            files.access(path, mode, follow)
        })
    }

    fn file_system(&self, path: &Path) -> CallResult<FileSystemStats> {
        self.record(path, Operation::StatFileSystem, |files| {
            files.file_system(path)
        })
    }

    fn create_directory(&self, path: &Path, mode: u32) -> CallResult<()> {
        self.record(path, Operation::MakeDirectory, |files| {
            files.create_directory(path, mode)
        })
    }

    fn create_node(&self, path: &Path, mode: u32, device: u64) -> CallResult<()> {
        self.record(path, Operation::MakeNode, |files| {
            files.create_node(path, mode, device)
        })
    }

    fn remove_file(&self, path: &Path) -> CallResult<()> {
        self.record(path, Operation::Unlink, |files| files.remove_file(path))
    }

    fn remove_directory(&self, path: &Path) -> CallResult<()> {
        self.record(path, Operation::RemoveDirectory, |files| {
            files.remove_directory(path)
        })
    }

    fn rename(&self, from: &Path, to: &Path, flags: u32) -> CallResult<()> {
        self.record(from, Operation::Rename, |files| {
            files.rename(from, to, flags)
        })
    }

    fn create_hard_link(&self, from: &Path, to: &Path, follow: bool) -> CallResult<()> {
        self.record(to, Operation::Link, |files| {
            files.create_hard_link(from, to, follow)
        })
    }

    fn name_open_file(&self, file: BorrowedFd<'_>, to: &Path) -> CallResult<()> {
        self.record(to, Operation::Link, |files| files.name_open_file(file, to))
    }

    fn create_symbolic_link(&self, content: &Path, path: &Path) -> CallResult<()> {
        self.record(path, Operation::SymbolicLink, |files| {
            files.create_symbolic_link(content, path)
        })
    }

    fn set_mode(&self, path: &Path, mode: u32, follow: bool) -> CallResult<()> {
        self.record(path, Operation::ChangeMode, |files| {
            files.set_mode(path, mode, follow)
        })
    }

    fn set_owner(
        &self,
        path: &Path,
        user: Option<u32>,
        group: Option<u32>,
        follow: bool,
    ) -> CallResult<()> {
        self.record(path, Operation::ChangeOwner, |files| {
            files.set_owner(path, user, group, follow)
        })
    }

    fn set_times(&self, path: &Path, times: &Times, follow: bool) -> CallResult<()> {
        self.record(path, Operation::SetTimes, |files| {
            files.set_times(path, times, follow)
        })
    }

    fn set_length(&self, path: &Path, length: u64) -> CallResult<()> {
        self.record(path, Operation::Truncate, |files| {
            files.set_length(path, length)
        })
    }

    fn attribute(&self, path: &Path, name: &OsStr, follow: bool) -> CallResult<Vec<u8>> {
        self.record(path, Operation::GetAttribute, |files| {
            files.attribute(path, name, follow)
        })
    }

    fn attributes(&self, path: &Path, follow: bool) -> CallResult<Vec<u8>> {
        self.record(path, Operation::GetAttribute, |files| {
            files.attributes(path, follow)
        })
    }

    fn set_attribute(
        &self,
        path: &Path,
        name: &OsStr,
        value: &[u8],
        flags: i32,
        follow: bool,
    ) -> CallResult<()> {
        self.record(path, Operation::SetAttribute, |files| {
            files.set_attribute(path, name, value, flags, follow)
        })
    }

    fn remove_attribute(&self, path: &Path, name: &OsStr, follow: bool) -> CallResult<()> {
        self.record(path, Operation::SetAttribute, |files| {
            files.remove_attribute(path, name, follow)
        })
    }
}
