//! Writing without FUSE: a file of memory, brought to the target when a user has closed it.
//!
//! The kernel tells of every close: of the last descriptor that shares an open and of the last mapping of it, also when
//! its process was killed. It does so before `close` returns, so whoever asks us anything afterwards is made to wait
//! until the content is at the target ([`Writing::settle`]). Whether there are other writers, it says when we ask for a
//! lease, which it gives on a file that nobody writes.
//!
//! A failure to write back comes too late to be told to the application; it is logged.

use std::collections::{HashMap, HashSet};
use std::fs::{File, Metadata, OpenOptions as FileOptions};
use std::os::fd::{AsFd as _, AsRawFd as _, BorrowedFd, OwnedFd, RawFd};
use std::os::unix::fs::{FileExt as _, MetadataExt as _, OpenOptionsExt as _};
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::thread::{self, JoinHandle};
use std::time::{Duration, Instant};

use bytes::Bytes;
use interceptor::Errno;
use protocol::rpc::{self, Place};
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::fs::inotify::{self, CreateFlags, WatchFlags};
use rustix::pipe::{PipeFlags, pipe_with};

use super::{in_memory, reopen};
use crate::event::FileProblem;
use crate::files::calls::Calls;
use crate::files::errno_of;
use crate::sys::lease::has_writers;

/// What is written back at once.
const PART: usize = 1 << 20;
/// Looks for other writers after a close, with pauses: far longer than the kernel takes to stop counting the one.
const CHECKS: u32 = 50;

#[derive(Debug)]
pub(super) struct Writing {
    shared: Arc<Shared>,
    /// Closing it ends the thread.
    end: Option<OwnedFd>,
    thread: Option<JoinHandle<()>>,
}

#[derive(Debug)]
struct Shared {
    calls: Calls,
    closes: OwnedFd,
    files: Mutex<HashMap<i32, Spooled>>,
}

/// A file that is being written.
#[derive(Debug)]
struct Spooled {
    path: PathBuf,
    /// For reading only: we must not be the writer whom we wait for.
    memory: File,
    handle: u64,
    append: bool,
    /// A writer has closed it; so often is it still looked whether there are others.
    checks: u32,
    /// Our own copy of the descriptor, until it is known to be closed.
    given: Option<RawFd>,
    /// How much is at the target already.
    written: u64,
}

impl Writing {
    pub(super) fn start(calls: Calls) -> Result<Self, Errno> {
        let raw = |error: rustix::io::Errno| Errno::from_raw(error.raw_os_error());
        let shared = Arc::new(Shared {
            calls,
            closes: inotify::init(CreateFlags::CLOEXEC | CreateFlags::NONBLOCK).map_err(raw)?,
            files: Mutex::default(),
        });
        let (ended, end) = pipe_with(PipeFlags::CLOEXEC).map_err(raw)?;
        let watched = Arc::clone(&shared);
        let thread = thread::Builder::new()
            .name("standin-closes".to_owned())
            .stack_size(512 * 1024)
            .spawn(move || watched.watch(&ended))
            .map_err(|error| errno_of(&error))?;
        Ok(Self {
            shared,
            end: Some(end),
            thread: Some(thread),
        })
    }

    /// A descriptor to write to. `handle` is of a file without content.
    pub(super) fn open(&self, path: &Path, handle: u64, flags: i32) -> Result<OwnedFd, Errno> {
        let opened = self.spool(path, handle, flags);
        if opened.is_err() {
            self.shared.calls.close(handle);
        }
        opened
    }

    fn spool(&self, path: &Path, handle: u64, flags: i32) -> Result<OwnedFd, Errno> {
        let new = in_memory()?;
        let mut options = FileOptions::new();
        options
            .read(flags & libc::O_ACCMODE == libc::O_RDWR)
            .write(true)
            .custom_flags(flags & libc::O_APPEND);
        let opened = reopen(&new, &options)?;
        let memory = File::from(reopen(&new, FileOptions::new().read(true))?);
        // From here on, the only writer is the application.
        drop(new);
        let name = format!("/proc/self/fd/{}", memory.as_raw_fd());
        let mut files = self.shared.files();
        let watch = inotify::add_watch(&self.shared.closes, name, WatchFlags::CLOSE_WRITE)
            .map_err(|error| Errno::from_raw(error.raw_os_error()))?;
        files.insert(
            watch,
            Spooled {
                path: path.to_path_buf(),
                memory,
                handle,
                append: flags & libc::O_APPEND != 0,
                checks: 0,
                given: Some(opened.as_raw_fd()),
                written: 0,
            },
        );
        Ok(opened)
    }

    /// The handle of the file of which this is a descriptor, while it is being written.
    pub(super) fn handle_of(&self, file: BorrowedFd<'_>) -> Option<u64> {
        let number = file.as_raw_fd();
        let files = self.shared.files();
        let found = files.values().find(|file| file.is_open_as(number));
        found.map(|file| file.handle)
    }

    /// Returns when everything that was closed before is at the target.
    pub(super) fn settle(&self) {
        self.shared.wait_for_copies();
        self.shared.settle();
    }
}

impl Drop for Writing {
    fn drop(&mut self) {
        drop(self.end.take());
        if let Some(thread) = self.thread.take() {
            let _ = thread.join();
        }
    }
}

impl Shared {
    /// Writes back what is closed, until the end.
    fn watch(&self, ended: &OwnedFd) {
        loop {
            let mut ready = [
                PollFd::new(&self.closes, PollFlags::IN),
                PollFd::new(ended, PollFlags::IN),
            ];
            // The kernel tells of a close a moment before it stops counting the writer.
            let soon = Timespec {
                tv_sec: 0,
                tv_nsec: 20_000_000,
            };
            let polled = poll(&mut ready, self.any_closed().then_some(&soon));
            let is_over = polled.is_ok() && !ready[1].revents().is_empty();
            self.settle();
            if is_over {
                return;
            }
        }
    }

    /// The application may have written and closed a file before the thread that gave it the descriptor has closed our
    /// copy, which the kernel then still counts. That is a matter of microseconds; who keeps a copy on purpose is not
    /// waited for.
    fn wait_for_copies(&self) {
        const MOST: Duration = Duration::from_millis(500);
        let start = Instant::now();
        loop {
            let mut files = self.files();
            for file in files.values_mut() {
                file.given = file.given.filter(|copy| file.is_open_as(*copy));
            }
            if files.values().all(|file| file.given.is_none()) {
                return;
            }
            if start.elapsed() > MOST {
                files.values_mut().for_each(|file| file.given = None);
                return;
            }
            drop(files);
            thread::sleep(Duration::from_micros(50));
        }
    }

    fn files(&self) -> MutexGuard<'_, HashMap<i32, Spooled>> {
        self.files.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn any_closed(&self) -> bool {
        self.files().values().any(|file| file.checks > 0)
    }

    fn settle(&self) {
        let mut files = self.files();
        let mut room = [std::mem::MaybeUninit::uninit(); 4096];
        let mut events = inotify::Reader::new(self.closes.as_fd(), &mut room);
        let mut told = HashSet::new();
        while let Ok(event) = events.next() {
            told.insert(event.wd());
        }
        files.retain(|watch, file| {
            let told = told.contains(watch);
            file.checks = if told { CHECKS } else { file.checks };
            // Asked before the content is read: who writes later also closes later.
            let is_last = file.checks > 0 && !has_writers(&file.memory);
            file.checks = file.checks.saturating_sub(1);
            if is_last || told {
                file.write_back(&self.calls);
            }
            if is_last {
                let _ = inotify::remove_watch(&self.closes, *watch);
                self.calls.close(file.handle);
            }
            !is_last
        });
    }
}

impl Spooled {
    fn is_open_as(&self, copy: RawFd) -> bool {
        let same =
            |copy: &Metadata, own: &Metadata| (copy.dev(), copy.ino()) == (own.dev(), own.ino());
        let copy = std::fs::metadata(format!("/proc/self/fd/{copy}"));
        let own = self.memory.metadata();
        copy.is_ok_and(|copy| own.is_ok_and(|own| same(&copy, &own)))
    }

    fn write_back(&mut self, calls: &Calls) {
        if let Err(errno) = calls.wait(self.bring(calls)) {
            calls.say(&self.path, FileProblem::NotWritten(errno));
        }
    }

    async fn bring(&mut self, calls: &Calls) -> Result<(), Errno> {
        let failed = |error: std::io::Error| errno_of(&error);
        let length = self.memory.metadata().map_err(failed)?.len();
        // What is appended is brought once; anything else may have been changed anywhere.
        let mut offset = if self.append { self.written } else { 0 };
        while offset < length {
            let rest = usize::try_from(length - offset).unwrap_or(PART);
            let mut part = vec![0; rest.min(PART)];
            self.memory
                .read_exact_at(&mut part, offset)
                .map_err(failed)?;
            let (written, outcome) = calls.write(self.handle, offset, Bytes::from(part)).await;
            offset += written;
            self.written = offset;
            outcome?;
        }
        if !self.append {
            let request = rpc::TruncateRequest {
                place: Some(Place::handle(self.handle)),
                size: length,
            };
            calls
                .answer(|mut files| async move { files.truncate(request).await })
                .await?;
        }
        Ok(())
    }
}
