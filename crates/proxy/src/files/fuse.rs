//! The target's files in a FUSE file system that is not visible to other processes.
//!
//! [`FuseFiles::open`] takes a file that the agent has opened, makes it a node in the root of the file system, opens that
//! node and returns the descriptor. From then on the kernel treats it like any other file: it caches pages, reads ahead,
//! maps them, keeps positions, and reports when the last descriptor is closed.
//!
//! - `open` is one request to the agent. The kernel's own requests during the open are answered from the response, and the
//!   first bytes are in the page cache before the application reads.
//! - Writes are write-through: `write` returns the target's result after the target has written. So nothing is lost if a
//!   writer is killed, there is nothing to write back on close, and appends are atomic at the target.
//! - Metadata is cached for [`CACHE_TTL`]; changes by the session itself are visible at once. The kernel drops cached pages
//!   when the size or the times have changed.
//! - File locks are local: they work among the processes of a session, and the target does not see them.
//! - Requests that need the target are tasks on the runtime, one for each. The threads that read the kernel's requests
//!   never block.
//!
//! | module | what it does |
//! |---|---|
//! | [`mount`] | creates the file system |
//! | [`channel`], [`wire`] | exchange with the kernel; its message format |
//! | [`server`], [`changes`], [`xattr`], [`listing`] | handle the kernel's requests |
//! | [`nodes`], [`handle`] | files that the kernel knows, and their open handles |
//! | [`read_ahead`], [`recent`] | prefetched content; recently opened files |

mod changes;
mod channel;
mod handle;
mod listing;
mod mount;
mod nodes;
mod read_ahead;
mod recent;
mod server;
mod wire;
mod xattr;

use std::os::fd::{AsFd as _, BorrowedFd, OwnedFd};
use std::path::Path;
use std::sync::Arc;
use std::thread;
use std::time::Instant;

use interceptor::{Errno, OpenOptions};
use protocol::rpc;
use rustix::fs::{AtFlags, Mode, OFlags, StatxFlags, openat, statx};

use self::channel::Channel;
use self::handle::Handle;
use self::mount::FuseMount;
use self::nodes::Nodes;
use self::recent::{RecentFile, RecentFiles};
use super::cache::PathCache;
use super::calls::FileCalls;
use super::inodes::{self, Inodes};

pub(crate) use self::nodes::CACHE_TTL;

/// The number of threads that receive requests from the kernel. One can receive while the other copies data.
const SERVER_THREADS: usize = 2;

/// How much of a newly opened file is put into the page cache in advance. Enough for whole configuration files, and for
/// the headers of other files.
const MAX_STORED_BYTES: u64 = 32 * 1024;

/// The file system. It exists until this is dropped and every file in it is closed.
#[derive(Debug)]
pub(crate) struct FuseFiles {
    root: OwnedFd,
    shared: Arc<Shared>,
    device: u64,
}

#[derive(Debug)]
struct Shared {
    calls: FileCalls,
    nodes: Nodes,
    channel: Channel,
    inodes: Arc<Inodes>,
    cache: Arc<PathCache>,
    mapped_owner: Option<(u32, u32)>,
    recent: RecentFiles,
}

impl FuseFiles {
    pub(crate) fn start(
        calls: FileCalls,
        inodes: Arc<Inodes>,
        cache: Arc<PathCache>,
    ) -> Result<Self, Errno> {
        Self::serve(mount::mount()?, calls, inodes, cache)
    }

    fn serve(
        mounted: FuseMount,
        calls: FileCalls,
        inodes: Arc<Inodes>,
        cache: Arc<PathCache>,
    ) -> Result<Self, Errno> {
        let shared = Arc::new(Shared {
            calls,
            nodes: Nodes::default(),
            channel: Channel::new(mounted.device),
            inodes,
            cache,
            mapped_owner: mounted.mapped_owner,
            recent: RecentFiles::default(),
        });
        for _ in 0..SERVER_THREADS {
            let shared = Arc::clone(&shared);
            thread::Builder::new()
                .name("standin-files".to_owned())
                .stack_size(512 * 1024)
                .spawn(move || server::serve(&shared))
                .map_err(|error| errno_of(&error))?;
        }
        let description = statx(
            &mounted.root,
            c"",
            AtFlags::EMPTY_PATH,
            StatxFlags::BASIC_STATS,
        )
        .map_err(|error| Errno::from_raw(error.raw_os_error()))?;
        let device = libc::makedev(description.stx_dev_major, description.stx_dev_minor);
        raise_read_ahead_limit(description.stx_dev_major, description.stx_dev_minor);
        Ok(Self {
            root: mounted.root,
            shared,
            device,
        })
    }

    /// The device number of the file system.
    pub(crate) fn device(&self) -> u64 {
        self.device
    }

    /// A descriptor of a file that the agent has opened. `requested_at` is when the request was sent.
    pub(crate) fn open(
        &self,
        (path, options): (&Path, &OpenOptions),
        opened: rpc::OpenResponse,
        read_only: bool,
        requested_at: Instant,
    ) -> Result<OwnedFd, Errno> {
        let flags = options.flags;
        let handle = Handle::new(
            self.shared.calls.clone(),
            opened.handle,
            flags,
            read_only,
            opened.first_bytes,
            opened.whole,
        );
        let handle = Arc::new(handle);
        let metadata = opened.metadata.ok_or(Errno::EIO)?;
        let file_id = inodes::file_id(&metadata);
        let (node, was_looked_up) =
            self.shared
                .nodes
                .begin_open(file_id, &metadata, &handle, requested_at);
        if was_looked_up {
            self.shared.channel.invalidate_metadata(node);
        }
        let result = self.open_node(node, flags);
        if !was_looked_up && result.is_ok() && flags & libc::O_DIRECT == 0 {
            self.store_first_bytes(node, &handle);
        }
        self.shared.nodes.end_open(node, &handle);
        if result.is_ok() && recent::is_cacheable(path, options) {
            let recent = RecentFile {
                handle,
                metadata,
                requested_at,
            };
            self.shared.recent.insert(path, recent);
        }
        result
    }

    /// A recently opened file that can be [reopened](Self::reopen). Does not block.
    pub(crate) fn find_recent(
        &self,
        path: &Path,
        options: &OpenOptions,
    ) -> Option<Arc<RecentFile>> {
        recent::is_cacheable(path, options)
            .then(|| self.shared.recent.find(path))
            .flatten()
    }

    /// Another descriptor of a recently opened file, without a request to the agent. Blocks on the kernel.
    pub(crate) fn reopen(&self, recent: &RecentFile, flags: i32) -> Result<OwnedFd, Errno> {
        let handle = Arc::new(recent.handle.reopened());
        let file_id = inodes::file_id(&recent.metadata);
        let nodes = &self.shared.nodes;
        let (node, _) = nodes.begin_open(file_id, &recent.metadata, &handle, recent.requested_at);
        let result = self.open_node(node, flags);
        nodes.end_open(node, &handle);
        result
    }

    /// Puts the prefetched bytes into the page cache, so that the first read needs no request. Only for a file that is new
    /// here: another file may have been written through another descriptor, and some of it is already cached.
    fn store_first_bytes(&self, node: u64, handle: &Arc<Handle>) {
        let is_file = |mode: u32| mode & libc::S_IFMT == libc::S_IFREG;
        self.shared.nodes.if_exclusive(node, handle, |metadata| {
            if !is_file(metadata.mode) || metadata.size == 0 || handle.appends() {
                return;
            }
            // Every stored page is whole, or the file ends in it.
            let length = u32::try_from(metadata.size.min(MAX_STORED_BYTES)).unwrap_or_default();
            let bytes = handle.read_ahead.prefetched(0, length);
            if let Some(bytes) = bytes.filter(|bytes| bytes.len() == length as usize) {
                self.shared.channel.store(node, &bytes);
            }
        });
    }

    fn open_node(&self, node: u64, flags: i32) -> Result<OwnedFd, Errno> {
        // The flags that create, truncate or resolve were already applied at the target.
        let relevant = libc::O_ACCMODE
            | libc::O_APPEND
            | libc::O_NONBLOCK
            | libc::O_SYNC
            | libc::O_DSYNC
            | libc::O_DIRECT;
        let flags = OFlags::from_bits_retain((flags & relevant).cast_unsigned()) | OFlags::CLOEXEC;
        let name = server::name_of(node);
        loop {
            match openat(self.root.as_fd(), name.as_str(), flags, Mode::empty()) {
                Err(rustix::io::Errno::INTR) => {}
                opened => return opened.map_err(|error| Errno::from_raw(error.raw_os_error())),
            }
        }
    }

    /// The agent's handle for a descriptor of this file system.
    pub(crate) fn handle_of(&self, file: BorrowedFd<'_>) -> Result<u64, Errno> {
        let raw = |error: rustix::io::Errno| Errno::from_raw(error.raw_os_error());
        let description = rustix::fs::fstat(file).map_err(raw)?;
        if description.st_dev != self.device {
            return Err(Errno::EXDEV);
        }
        let matches = |file_id| self.shared.inodes.number(file_id) == description.st_ino;
        self.shared.nodes.find_handle(matches).ok_or(Errno::ESTALE)
    }

    /// Invalidates the kernel's metadata of all open files, after a change by path.
    pub(crate) fn invalidate_metadata(&self) {
        self.shared.recent.clear();
        for node in self.shared.nodes.invalidate_metadata() {
            self.shared.channel.invalidate_metadata(node);
        }
    }
}

/// Raises the kernel's read-ahead limit of the device, if this process has the right to: fewer and larger requests are
/// cheaper.
fn raise_read_ahead_limit(major: u32, minor: u32) {
    let setting = format!("/sys/class/bdi/{major}:{minor}/read_ahead_kb");
    let _ = std::fs::write(setting, "1024");
}

fn errno_of(error: &std::io::Error) -> Errno {
    error.raw_os_error().map_or(Errno::EIO, Errno::from_raw)
}
