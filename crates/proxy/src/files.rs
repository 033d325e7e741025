//! The target's files, as descriptors of this machine.
//!
//! | module | what it does |
//! |---|---|
//! | [`paths`] | calls by path: `stat`, `mkdir`, `rename`, … |
//! | [`nonblocking`] | the most frequent calls without a blocked thread |
//! | [`cache`] | short-lived cache of what is known about paths |
//! | [`fuse`] | descriptors of a FUSE file system: lazy, cached, writable |
//! | [`memory`] | descriptors without FUSE: whole files in memory, with limits |
//! | [`served`] | files with content of our own |
//! | [`calls`], [`closer`] | calls to the agent; closing of its handles |
//! | [`convert`], [`inodes`] | conversion of types and inode numbers |

mod cache;
mod calls;
mod closer;
mod convert;
mod fuse;
mod inodes;
mod memory;
mod nonblocking;
mod paths;
mod served;

use std::collections::HashSet;
use std::os::fd::OwnedFd;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Weak};
use std::time::Instant;

use config::FileRules;
use interceptor::{CallResult, Errno, OpenOptions};
use parking_lot::Mutex;
use protocol::rpc;

use self::cache::{PathCache, PathInfo, PathQuery};
use self::calls::FileCalls;
use self::fuse::FuseFiles;
use self::inodes::Inodes;
use self::memory::MemoryFiles;
use self::served::ServedFiles;
use crate::agent::SessionContext;
use crate::error::Error;
use crate::event::FileProblem;

pub(crate) use self::served::is_served;

/// How many bytes the agent sends with the response to `open`, so that reading a small file needs no further request.
const FIRST_BYTES: u32 = 128 * 1024;

/// How descriptors of the target's files are provided.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub enum FileBackend {
    /// FUSE if this machine supports it, otherwise memory.
    #[default]
    Auto,
    /// A FUSE file system: files are transferred as they are read and written.
    Fuse,
    /// Whole files are copied into memory when they are opened. Only new or truncated files can be written.
    Memory,
}

#[derive(Debug)]
pub(crate) struct TargetFiles {
    calls: FileCalls,
    rules: FileRules,
    cache: Arc<PathCache>,
    inodes: Arc<Inodes>,
    served: ServedFiles,
    backend: Backend,
    /// For tasks that outlive the call.
    weak_self: Weak<Self>,
    reported: CheckedPaths,
}

/// The paths that were already checked at the target. Limited in number.
#[derive(Debug, Default)]
struct CheckedPaths(Mutex<HashSet<PathBuf>>);

impl CheckedPaths {
    /// `false` if the path was added before, or if the set is full.
    fn insert(&self, path: &Path) -> bool {
        const MAX_PATHS: usize = 4096;
        let mut paths = self.0.lock();
        !paths.contains(path) && paths.len() < MAX_PATHS && paths.insert(path.to_path_buf())
    }
}

#[derive(Debug)]
enum Backend {
    Fuse(FuseFiles),
    Memory(Box<MemoryFiles>),
}

impl TargetFiles {
    pub(crate) fn new(
        context: SessionContext,
        rules: FileRules,
        backend: FileBackend,
    ) -> Result<Arc<Self>, Error> {
        let calls = FileCalls::new(context);
        let cache = Arc::new(PathCache::new(fuse::CACHE_TTL));
        let inodes = Arc::new(Inodes::default());
        let memory =
            || MemoryFiles::start(calls.clone()).map(|memory| Backend::Memory(Box::new(memory)));
        let fuse =
            || FuseFiles::start(calls.clone(), inodes.clone(), cache.clone()).map(Backend::Fuse);
        let backend = match backend {
            FileBackend::Fuse => fuse(),
            FileBackend::Memory => memory(),
            FileBackend::Auto => fuse().or_else(|errno| {
                tracing::warn!(%errno, "fuse not available, using memory for files");
                memory()
            }),
        };
        let backend = backend.map_err(Error::Files)?;
        let served = ServedFiles::new().map_err(|error| Error::Files(errno_of(&error)))?;
        Ok(Arc::new_cyclic(|weak_self| Self {
            calls,
            rules,
            cache,
            inodes,
            served,
            backend,
            reported: CheckedPaths::default(),
            weak_self: Weak::clone(weak_self),
        }))
    }

    async fn open_at_target(
        &self,
        path: &Path,
        options: &OpenOptions,
    ) -> Result<OpenedAtTarget, Errno> {
        let flags = options.flags;
        let creates = flags & libc::O_CREAT != 0 || flags & libc::O_TMPFILE == libc::O_TMPFILE;
        let changes = creates || flags & libc::O_TRUNC != 0;
        let may_write = self.rules.may_write(convert::bytes(path).as_ref());
        if !may_write && (changes || flags & libc::O_ACCMODE != libc::O_RDONLY) {
            return Err(Errno::EROFS);
        }
        // These flags restrict how the path is resolved, which the agent does not support.
        if options.resolve & (libc::RESOLVE_NO_SYMLINKS | libc::RESOLVE_NO_XDEV) != 0 {
            return Err(Errno::ENOSYS);
        }
        let query = PathQuery::Metadata {
            follow: flags & libc::O_NOFOLLOW == 0,
        };
        let miss = match self.cache.get(path, &query) {
            Ok(PathInfo::Failed(errno)) if !creates => return Err(errno),
            Ok(_) => None,
            Err(miss) => Some(miss),
        };
        let request = convert::open(path, options, FIRST_BYTES);
        let requested_at = Instant::now();
        let opened = self
            .calls
            .call(|mut files| async move { files.open(request).await })
            .await;
        if let Ok(opened) = &opened {
            self.calls.record_prefetch(path, opened.first_bytes.len());
        }
        if changes {
            self.invalidate();
        }
        if let (Some(miss), Ok(opened)) = (miss, &opened)
            && let Some(metadata) = opened.metadata
            && flags & libc::O_TMPFILE != libc::O_TMPFILE
        {
            let info = PathInfo::Metadata(metadata);
            self.cache.put(path, query, info, miss);
        }
        Ok(OpenedAtTarget {
            response: opened?,
            read_only: !may_write,
            requested_at,
        })
    }

    /// Blocks on the kernel, and with the memory backend on the target.
    fn create_descriptor(
        &self,
        path: &Path,
        opened: OpenedAtTarget,
        options: &OpenOptions,
    ) -> Result<OwnedFd, Errno> {
        let OpenedAtTarget {
            response: opened,
            read_only,
            requested_at,
        } = opened;
        let mode = opened.metadata.as_ref().map_or(0, |metadata| metadata.mode);
        if !matches!(mode & libc::S_IFMT, libc::S_IFREG | libc::S_IFDIR) {
            self.calls.close(opened.handle);
            self.calls.report_problem(path, FileProblem::Special);
            return Err(Errno::EOPNOTSUPP);
        }
        match &self.backend {
            Backend::Fuse(fuse) => fuse.open((path, options), opened, read_only, requested_at),
            Backend::Memory(memory) => memory.open(path, &opened, options.flags),
        }
    }

    /// Reports, once per path, that a program opens a local file although the target has a file at `target`. Does not
    /// block.
    pub(crate) fn report_if_at_target(&self, path: &Path, target: &Path) {
        if !self.reported.insert(path) {
            return;
        }
        let (calls, path) = (self.calls.clone(), path.to_path_buf());
        let file_ref = convert::file_ref(target, true);
        self.calls.spawn(async move {
            let metadata = calls.stat(file_ref).await;
            if metadata.is_ok_and(|metadata| metadata.mode & libc::S_IFMT == libc::S_IFREG) {
                calls.report_problem(&path, FileProblem::OtherContent);
            }
        });
    }

    /// Invalidates the caches, after a change by path.
    fn invalidate(&self) {
        self.cache.invalidate();
        if let Backend::Fuse(fuse) = &self.backend {
            fuse.invalidate_metadata();
        }
    }

    /// Blocks until everything that was written and closed is at the target.
    pub(crate) fn flush(&self) {
        if let Backend::Memory(memory) = &self.backend {
            memory.flush();
        }
    }

    /// Whether the file was opened recently, so that no request is needed. Does not block.
    fn has_recent(&self, path: &Path, options: &OpenOptions) -> bool {
        match &self.backend {
            Backend::Fuse(fuse) => fuse.find_recent(path, options).is_some(),
            Backend::Memory(_) => false,
        }
    }

    /// Blocks on the kernel.
    fn reopen_recent(&self, path: &Path, options: &OpenOptions) -> Option<OwnedFd> {
        let Backend::Fuse(fuse) = &self.backend else {
            return None;
        };
        let recent = fuse.find_recent(path, options)?;
        // On any failure the caller opens the file at the target.
        fuse.reopen(&recent, options.flags).ok()
    }

    fn open(&self, path: &Path, options: &OpenOptions) -> CallResult<OwnedFd> {
        if let Some(served) = self.served.find(path) {
            return served.open(options.flags);
        }
        if let Some(descriptor) = self.reopen_recent(path, options) {
            return Ok(descriptor);
        }
        self.flush();
        let opened = self.calls.block_on(self.open_at_target(path, options))?;
        Ok(self.create_descriptor(path, opened, options)?)
    }
}

/// A file that the agent has opened, for which there is no descriptor on this machine yet.
struct OpenedAtTarget {
    response: rpc::OpenResponse,
    read_only: bool,
    /// When the request was sent.
    requested_at: Instant,
}

fn errno_of(error: &std::io::Error) -> Errno {
    error.raw_os_error().map_or(Errno::EIO, Errno::from_raw)
}
