//! The target's files, with a note of everything that is done with them.

use std::ffi::OsStr;
use std::os::fd::{BorrowedFd, OwnedFd};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Instant;

use interceptor::{
    Answer, Errno, FileSystem, Instead, Metadata, OpenOptions, RemoteFiles, Then, Times,
};

use super::Monitor;

/// What is done with a file. At most 32, because of each it is known whether it was told.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Operation {
    Look,
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
            Self::Look => "look",
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

    /// Errors that are answers: what is no link leads nowhere, and an attribute need not be there.
    fn is_answered_by(self, errno: Errno) -> bool {
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

/// Passes everything on to the files, and takes note of how it went.
#[derive(Debug)]
pub(crate) struct WatchedFiles<F> {
    pub(crate) files: Arc<F>,
    pub(crate) monitor: Monitor,
}

fn errno<T>(answer: &Answer<T>) -> Option<Errno> {
    match answer {
        Err(Instead::Fail(errno)) => Some(*errno),
        _ => None,
    }
}

impl<F> WatchedFiles<F> {
    fn note<T>(
        &self,
        path: &Path,
        operation: Operation,
        perform: impl FnOnce(&F) -> Answer<T>,
    ) -> Answer<T> {
        let since = Instant::now();
        let answer = perform(&self.files);
        let errno = errno(&answer).filter(|errno| !operation.is_answered_by(*errno));
        self.monitor.file(path, operation, errno, since);
        answer
    }

    /// A note that is taken when the answer comes. If nothing could be started, there will be another call.
    fn start<T: 'static>(
        &self,
        path: &Path,
        operation: Operation,
        then: Then<T>,
        start: impl FnOnce(&F, Then<T>) -> Result<(), Then<T>>,
    ) -> Result<(), Then<T>> {
        let since = Instant::now();
        let (monitor, noted) = (self.monitor.clone(), path.to_path_buf());
        // Comes back when nothing is started.
        let slot = Arc::new(std::sync::Mutex::new(Some(then)));
        let inner = Arc::clone(&slot);
        let take = |slot: &std::sync::Mutex<Option<Then<T>>>| {
            slot.lock()
                .unwrap_or_else(std::sync::PoisonError::into_inner)
                .take()
        };
        let watched: Then<T> = Box::new(move |answer| {
            monitor.file(&noted, operation, errno(&answer), since);
            if let Some(then) = take(&inner) {
                then(answer);
            }
        });
        match start(&self.files, watched) {
            Ok(()) => Ok(()),
            Err(watched) => match take(&slot) {
                Some(then) => Err(then),
                None => Err(watched),
            },
        }
    }
}

impl<F: RemoteFiles> RemoteFiles for WatchedFiles<F> {
    fn open(&self, path: &Path, options: &OpenOptions) -> Answer<OwnedFd> {
        self.note(path, Operation::of_open(options.flags), |files| {
            files.open(path, options)
        })
    }

    fn metadata(&self, path: &Path, follow: bool) -> Answer<Metadata> {
        self.note(path, Operation::Stat, |files| files.metadata(path, follow))
    }

    fn start_open(
        &self,
        path: &Path,
        options: &OpenOptions,
        then: Then<OwnedFd>,
    ) -> Result<(), Then<OwnedFd>> {
        let operation = Operation::of_open(options.flags);
        self.start(path, operation, then, |files, then| {
            files.start_open(path, options, then)
        })
    }

    fn start_metadata(
        &self,
        path: &Path,
        follow: bool,
        then: Then<Metadata>,
    ) -> Result<(), Then<Metadata>> {
        self.start(path, Operation::Stat, then, |files, then| {
            files.start_metadata(path, follow, then)
        })
    }

    fn start_access(
        &self,
        path: &Path,
        mode: i32,
        follow: bool,
        then: Then<()>,
    ) -> Result<(), Then<()>> {
        self.start(path, Operation::Access, then, |files, then| {
            files.start_access(path, mode, follow, then)
        })
    }

    fn read_link(&self, path: &Path) -> Answer<PathBuf> {
        self.note(path, Operation::ReadLink, |files| files.read_link(path))
    }

    fn canonical(&self, path: &Path) -> Answer<PathBuf> {
        self.note(path, Operation::Resolve, |files| files.canonical(path))
    }

    fn access(&self, path: &Path, mode: i32, follow: bool) -> Answer<()> {
        self.note(path, Operation::Access, |files| {
            files.access(path, mode, follow)
        })
    }

    fn file_system(&self, path: &Path) -> Answer<FileSystem> {
        self.note(path, Operation::StatFileSystem, |files| {
            files.file_system(path)
        })
    }

    fn create_directory(&self, path: &Path, mode: u32) -> Answer<()> {
        self.note(path, Operation::MakeDirectory, |files| {
            files.create_directory(path, mode)
        })
    }

    fn create_node(&self, path: &Path, mode: u32, device: u64) -> Answer<()> {
        self.note(path, Operation::MakeNode, |files| {
            files.create_node(path, mode, device)
        })
    }

    fn remove_file(&self, path: &Path) -> Answer<()> {
        self.note(path, Operation::Unlink, |files| files.remove_file(path))
    }

    fn remove_directory(&self, path: &Path) -> Answer<()> {
        self.note(path, Operation::RemoveDirectory, |files| {
            files.remove_directory(path)
        })
    }

    fn rename(&self, from: &Path, to: &Path, flags: u32) -> Answer<()> {
        self.note(from, Operation::Rename, |files| {
            files.rename(from, to, flags)
        })
    }

    fn create_hard_link(&self, from: &Path, to: &Path, follow: bool) -> Answer<()> {
        self.note(to, Operation::Link, |files| {
            files.create_hard_link(from, to, follow)
        })
    }

    fn name_open_file(&self, file: BorrowedFd<'_>, to: &Path) -> Answer<()> {
        self.note(to, Operation::Link, |files| files.name_open_file(file, to))
    }

    fn create_symbolic_link(&self, content: &Path, path: &Path) -> Answer<()> {
        self.note(path, Operation::SymbolicLink, |files| {
            files.create_symbolic_link(content, path)
        })
    }

    fn set_mode(&self, path: &Path, mode: u32, follow: bool) -> Answer<()> {
        self.note(path, Operation::ChangeMode, |files| {
            files.set_mode(path, mode, follow)
        })
    }

    fn set_owner(
        &self,
        path: &Path,
        user: Option<u32>,
        group: Option<u32>,
        follow: bool,
    ) -> Answer<()> {
        self.note(path, Operation::ChangeOwner, |files| {
            files.set_owner(path, user, group, follow)
        })
    }

    fn set_times(&self, path: &Path, times: &Times, follow: bool) -> Answer<()> {
        self.note(path, Operation::SetTimes, |files| {
            files.set_times(path, times, follow)
        })
    }

    fn set_length(&self, path: &Path, length: u64) -> Answer<()> {
        self.note(path, Operation::Truncate, |files| {
            files.set_length(path, length)
        })
    }

    fn attribute(&self, path: &Path, name: &OsStr, follow: bool) -> Answer<Vec<u8>> {
        self.note(path, Operation::GetAttribute, |files| {
            files.attribute(path, name, follow)
        })
    }

    fn attributes(&self, path: &Path, follow: bool) -> Answer<Vec<u8>> {
        self.note(path, Operation::GetAttribute, |files| {
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
    ) -> Answer<()> {
        self.note(path, Operation::SetAttribute, |files| {
            files.set_attribute(path, name, value, flags, follow)
        })
    }

    fn remove_attribute(&self, path: &Path, name: &OsStr, follow: bool) -> Answer<()> {
        self.note(path, Operation::SetAttribute, |files| {
            files.remove_attribute(path, name, follow)
        })
    }
}
