//! Writing without FUSE: a file in memory, which is sent to the target when a writer has closed it.
//!
//! inotify reports every close: of the last duplicate of a descriptor and of the last mapping, also if the process was
//! killed. The event is queued before `close` returns, so any later call of the application waits until the content is
//! at the target ([`WriteBack::flush`]). A file lease shows whether there are other writers: the kernel grants it only if
//! there are none.
//!
//! A failure to write back is too late to be returned to the application; it is reported as an event.

use std::collections::{HashMap, HashSet};
use std::fs::{File, Metadata, OpenOptions as FileOptions};
use std::os::fd::{AsFd as _, AsRawFd as _, BorrowedFd, OwnedFd, RawFd};
use std::os::unix::fs::{FileExt as _, MetadataExt as _, OpenOptionsExt as _};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::thread::{self, JoinHandle};
use std::time::{Duration, Instant};

use bytes::Bytes;
use interceptor::Errno;
use parking_lot::Mutex;
use protocol::rpc::{self, FileRef};
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::fs::inotify::{self, CreateFlags, WatchFlags};
use rustix::pipe::{PipeFlags, pipe_with};

use super::{create_memory_file, reopen};
use crate::event::FileProblem;
use crate::files::calls::FileCalls;
use crate::files::errno_of;
use crate::sys::lease::has_writers;

/// How many bytes are sent per request.
const CHUNK_BYTES: usize = 1 << 20;
/// How often other writers are checked for after a close. Together with the poll interval, this is much longer than the
/// kernel needs to stop counting the writer that closed the file.
const WRITER_CHECKS: u32 = 50;

#[derive(Debug)]
pub(super) struct WriteBack {
    shared: Arc<Shared>,
    /// Closing this pipe ends the thread.
    stop: Option<OwnedFd>,
    thread: Option<JoinHandle<()>>,
}

#[derive(Debug)]
struct Shared {
    calls: FileCalls,
    inotify_fd: OwnedFd,
    files: Mutex<HashMap<i32, SpooledFile>>,
}

/// A file that is open for writing.
#[derive(Debug)]
struct SpooledFile {
    path: PathBuf,
    /// Read-only, so that this descriptor itself does not count as a writer.
    memory: File,
    handle: u64,
    append: bool,
    /// After a writer has closed the file: how many checks for other writers are left.
    writer_checks: u32,
    /// The descriptor in this process that is passed to the application, until it is known to be closed here.
    descriptor_copy: Option<RawFd>,
    /// How many bytes are already at the target.
    written: u64,
}

impl WriteBack {
    pub(super) fn start(calls: FileCalls) -> Result<Self, Errno> {
        let raw = |error: rustix::io::Errno| Errno::from_raw(error.raw_os_error());
        let shared = Arc::new(Shared {
            calls,
            inotify_fd: inotify::init(CreateFlags::CLOEXEC | CreateFlags::NONBLOCK).map_err(raw)?,
            files: Mutex::default(),
        });
        let (stopped, stop) = pipe_with(PipeFlags::CLOEXEC).map_err(raw)?;
        let thread_shared = Arc::clone(&shared);
        let thread = thread::Builder::new()
            .name("standin-closes".to_owned())
            .stack_size(512 * 1024)
            .spawn(move || thread_shared.run(&stopped))
            .map_err(|error| errno_of(&error))?;
        Ok(Self {
            shared,
            stop: Some(stop),
            thread: Some(thread),
        })
    }

    /// A descriptor for writing. `handle` is the agent's, of an empty file.
    pub(super) fn open(&self, path: &Path, handle: u64, flags: i32) -> Result<OwnedFd, Errno> {
        let opened = self.open_spooled(path, handle, flags);
        if opened.is_err() {
            self.shared.calls.close(handle);
        }
        opened
    }

    fn open_spooled(&self, path: &Path, handle: u64, flags: i32) -> Result<OwnedFd, Errno> {
        let new = create_memory_file()?;
        let mut options = FileOptions::new();
        options
            .read(flags & libc::O_ACCMODE == libc::O_RDWR)
            .write(true)
            .custom_flags(flags & libc::O_APPEND);
        let opened = reopen(&new, &options)?;
        let memory = File::from(reopen(&new, FileOptions::new().read(true))?);
        // From here on the application is the only writer.
        drop(new);
        let name = format!("/proc/self/fd/{}", memory.as_raw_fd());
        let mut files = self.shared.files.lock();
        let watch = inotify::add_watch(&self.shared.inotify_fd, name, WatchFlags::CLOSE_WRITE)
            .map_err(|error| Errno::from_raw(error.raw_os_error()))?;
        files.insert(
            watch,
            SpooledFile {
                path: path.to_path_buf(),
                memory,
                handle,
                append: flags & libc::O_APPEND != 0,
                writer_checks: 0,
                descriptor_copy: Some(opened.as_raw_fd()),
                written: 0,
            },
        );
        Ok(opened)
    }

    /// The agent's handle for a descriptor that is open for writing.
    pub(super) fn handle_of(&self, file: BorrowedFd<'_>) -> Option<u64> {
        let number = file.as_raw_fd();
        let files = self.shared.files.lock();
        let found = files.values().find(|file| file.is_same_file(number));
        found.map(|file| file.handle)
    }

    /// Returns when everything that was closed before is at the target.
    pub(super) fn flush(&self) {
        self.shared.wait_for_descriptor_copies();
        self.shared.flush();
    }
}

impl Drop for WriteBack {
    fn drop(&mut self) {
        drop(self.stop.take());
        if let Some(thread) = self.thread.take() {
            let _ = thread.join();
        }
    }
}

impl Shared {
    /// Writes closed files back until the pipe is closed.
    fn run(&self, stopped: &OwnedFd) {
        loop {
            let mut ready = [
                PollFd::new(&self.inotify_fd, PollFlags::IN),
                PollFd::new(stopped, PollFlags::IN),
            ];
            // The kernel reports a close shortly before it stops counting the writer, so writers are checked again.
            let poll_interval = Timespec {
                tv_sec: 0,
                tv_nsec: 20_000_000,
            };
            let polled = poll(
                &mut ready,
                self.has_closed_files().then_some(&poll_interval),
            );
            let is_stopped = polled.is_ok() && !ready[1].revents().is_empty();
            self.flush();
            if is_stopped {
                return;
            }
        }
    }

    /// The application may have written and closed a file before the thread that passed it the descriptor has closed the
    /// copy in this process, which the kernel then still counts as a writer. That takes microseconds; a copy that is kept
    /// on purpose is not waited for.
    fn wait_for_descriptor_copies(&self) {
        const TIMEOUT: Duration = Duration::from_millis(500);
        let start = Instant::now();
        loop {
            let mut files = self.files.lock();
            for file in files.values_mut() {
                file.descriptor_copy = file.descriptor_copy.filter(|copy| file.is_same_file(*copy));
            }
            if files.values().all(|file| file.descriptor_copy.is_none()) {
                return;
            }
            if start.elapsed() > TIMEOUT {
                files
                    .values_mut()
                    .for_each(|file| file.descriptor_copy = None);
                return;
            }
            drop(files);
            thread::sleep(Duration::from_micros(50));
        }
    }

    fn has_closed_files(&self) -> bool {
        self.files
            .lock()
            .values()
            .any(|file| file.writer_checks > 0)
    }

    fn flush(&self) {
        let mut files = self.files.lock();
        let mut buffer = [std::mem::MaybeUninit::uninit(); 4096];
        let mut events = inotify::Reader::new(self.inotify_fd.as_fd(), &mut buffer);
        let mut closed = HashSet::new();
        while let Ok(event) = events.next() {
            closed.insert(event.wd());
        }
        files.retain(|watch, file| {
            let closed = closed.contains(watch);
            file.writer_checks = if closed {
                WRITER_CHECKS
            } else {
                file.writer_checks
            };
            // Checked before the content is read: a later write is followed by a later close.
            let is_last = file.writer_checks > 0 && !has_writers(&file.memory);
            file.writer_checks = file.writer_checks.saturating_sub(1);
            if is_last || closed {
                file.write_back(&self.calls);
            }
            if is_last {
                let _ = inotify::remove_watch(&self.inotify_fd, *watch);
                self.calls.close(file.handle);
            }
            !is_last
        });
    }
}

impl SpooledFile {
    fn is_same_file(&self, copy: RawFd) -> bool {
        let same =
            |copy: &Metadata, own: &Metadata| (copy.dev(), copy.ino()) == (own.dev(), own.ino());
        let copy = std::fs::metadata(format!("/proc/self/fd/{copy}"));
        let own = self.memory.metadata();
        copy.is_ok_and(|copy| own.is_ok_and(|own| same(&copy, &own)))
    }

    fn write_back(&mut self, calls: &FileCalls) {
        if let Err(errno) = calls.block_on(self.upload(calls)) {
            calls.report_problem(&self.path, FileProblem::NotWritten(errno));
        }
    }

    async fn upload(&mut self, calls: &FileCalls) -> Result<(), Errno> {
        let failed = |error: std::io::Error| errno_of(&error);
        let length = self.memory.metadata().map_err(failed)?.len();
        // Appended bytes are sent once. In any other file, each byte may have changed.
        let mut offset = if self.append { self.written } else { 0 };
        while offset < length {
            let rest = usize::try_from(length - offset).unwrap_or(CHUNK_BYTES);
            let mut chunk = vec![0; rest.min(CHUNK_BYTES)];
            self.memory
                .read_exact_at(&mut chunk, offset)
                .map_err(failed)?;
            let (written, result) = calls.write(self.handle, offset, Bytes::from(chunk)).await;
            offset += written;
            self.written = offset;
            result?;
        }
        if !self.append {
            let request = rpc::TruncateRequest {
                file: Some(FileRef::handle(self.handle)),
                size: length,
            };
            calls
                .call(|mut files| async move { files.truncate(request).await })
                .await?;
        }
        Ok(())
    }
}
