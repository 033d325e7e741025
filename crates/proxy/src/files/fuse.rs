//! The target's files as files of the kernel: a FUSE file system that only we see.
//!
//! [`Fuse::open`] is given what the agent opened, makes it a node in the root of the file system, opens that node and
//! gives the descriptor away. From then on the kernel does what it does for any file: it caches pages, reads ahead,
//! maps them, keeps positions, tells when the last user is gone.
//!
//! - Opening asks the target once; the kernel's questions about it are answered from what came back, and the first bytes are in its
//!   cache before anybody reads.
//! - Writing goes through: `write` returns when the target has written, with its errno. So nothing is lost when a
//!   writer is killed, there is nothing to write back on close, and appends are the target's own and atomic.
//! - Metadata is good for a second ([`nodes::FRESH`]); what we change ourselves shows at once. Cached pages go when size
//!   or times have changed.
//! - File locks are the kernel's: they hold among the processes of a session, and the target does not know of them.
//! - Questions that must wait for the target wait on the runtime, each by itself. The threads that read the kernel's
//!   requests never wait.

mod attributes;
mod changing;
mod channel;
mod handle;
mod listing;
mod mount;
mod nodes;
mod reading;
mod recent;
mod serving;
mod wire;

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
use self::mount::Mounted;
use self::nodes::Nodes;
use self::recent::{Recent, RecentlyOpened};
use super::cache::Cache;
use super::calls::Calls;
use super::inodes::{self, Inodes};

pub(crate) use self::nodes::FRESH;

/// Threads that take requests from the kernel. A second one takes the next while the first copies bytes.
const THREADS: usize = 2;

/// So much of a new file is given to the kernel before it asks: whole configuration files, and the headers of others.
const STORED: u64 = 32 * 1024;

/// The file system. It ends when this is dropped and every file in it is closed.
#[derive(Debug)]
pub(crate) struct Fuse {
    root: OwnedFd,
    shared: Arc<Shared>,
    device: u64,
}

#[derive(Debug)]
struct Shared {
    calls: Calls,
    nodes: Nodes,
    channel: Channel,
    inodes: Arc<Inodes>,
    cache: Arc<Cache>,
    only_owner: Option<(u32, u32)>,
    recent: RecentlyOpened,
}

impl Fuse {
    pub(crate) fn start(
        calls: Calls,
        inodes: Arc<Inodes>,
        cache: Arc<Cache>,
    ) -> Result<Self, Errno> {
        Self::serve(mount::mount()?, calls, inodes, cache)
    }

    fn serve(
        mounted: Mounted,
        calls: Calls,
        inodes: Arc<Inodes>,
        cache: Arc<Cache>,
    ) -> Result<Self, Errno> {
        let shared = Arc::new(Shared {
            calls,
            nodes: Nodes::default(),
            channel: Channel::new(mounted.device),
            inodes,
            cache,
            only_owner: mounted.only_owner,
            recent: RecentlyOpened::default(),
        });
        for _ in 0..THREADS {
            let shared = Arc::clone(&shared);
            thread::Builder::new()
                .name("standin-files".to_owned())
                .stack_size(512 * 1024)
                .spawn(move || serving::serve(&shared))
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
        read_ahead_far(description.stx_dev_major, description.stx_dev_minor);
        Ok(Self {
            root: mounted.root,
            shared,
            device,
        })
    }

    /// The number of the device on which its files are.
    pub(crate) fn device(&self) -> u64 {
        self.device
    }

    /// A descriptor of what the agent opened at a path, when it was asked to at `asked`.
    pub(crate) fn open(
        &self,
        (path, options): (&Path, &OpenOptions),
        opened: rpc::OpenResponse,
        read_only: bool,
        asked: Instant,
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
        let identity = inodes::identity(&metadata);
        let (node, is_known) = self.shared.nodes.enter(identity, &metadata, &handle, asked);
        if is_known {
            self.shared.channel.forget_metadata(node);
        }
        let result = self.open_node(node, flags);
        if !is_known && result.is_ok() && flags & libc::O_DIRECT == 0 {
            self.store_first_bytes(node, &handle);
        }
        self.shared.nodes.entered(node, &handle);
        if result.is_ok() && recent::concerns(path, options) {
            let recent = Recent {
                handle,
                metadata,
                asked,
            };
            self.shared.recent.keep(path, recent);
        }
        result
    }

    /// What was opened a moment ago and can be [opened again](Self::open_again). Does not wait.
    pub(crate) fn find_recent(&self, path: &Path, options: &OpenOptions) -> Option<Arc<Recent>> {
        recent::concerns(path, options)
            .then(|| self.shared.recent.find(path))
            .flatten()
    }

    /// Another descriptor of what was opened a moment ago, without a question to the target. Waits for the kernel.
    pub(crate) fn open_again(&self, recent: &Recent, flags: i32) -> Result<OwnedFd, Errno> {
        let handle = Arc::new(recent.handle.opened_again());
        let identity = inodes::identity(&recent.metadata);
        let nodes = &self.shared.nodes;
        let (node, _) = nodes.enter(identity, &recent.metadata, &handle, recent.asked);
        let result = self.open_node(node, flags);
        nodes.entered(node, &handle);
        result
    }

    /// Puts what came with the open into the kernel's cache, so that the first read needs nobody. Only for a file that is new
    /// here: others may have written to one that is not, and the kernel has what was read of it before.
    fn store_first_bytes(&self, node: u64, handle: &Arc<Handle>) {
        let is_file = |mode: u32| mode & libc::S_IFMT == libc::S_IFREG;
        self.shared.nodes.while_alone(node, handle, |metadata| {
            if !is_file(metadata.mode) || metadata.size == 0 || handle.appends() {
                return;
            }
            // A page is whole, or the file ends in it.
            let length = u32::try_from(metadata.size.min(STORED)).unwrap_or_default();
            let bytes = handle.reading.at_hand(0, length);
            if let Some(bytes) = bytes.filter(|bytes| bytes.len() == length as usize) {
                self.shared.channel.store(node, &bytes);
            }
        });
    }

    fn open_node(&self, node: u64, flags: i32) -> Result<OwnedFd, Errno> {
        // What creates, truncates or finds a file was done at the target.
        let kept = libc::O_ACCMODE
            | libc::O_APPEND
            | libc::O_NONBLOCK
            | libc::O_SYNC
            | libc::O_DSYNC
            | libc::O_DIRECT;
        let flags = OFlags::from_bits_retain((flags & kept).cast_unsigned()) | OFlags::CLOEXEC;
        let name = serving::name_of(node);
        loop {
            match openat(self.root.as_fd(), name.as_str(), flags, Mode::empty()) {
                Err(rustix::io::Errno::INTR) => {}
                opened => return opened.map_err(|error| Errno::from_raw(error.raw_os_error())),
            }
        }
    }

    /// What the agent calls the file of a descriptor that we gave.
    pub(crate) fn handle_of(&self, file: BorrowedFd<'_>) -> Result<u64, Errno> {
        let raw = |error: rustix::io::Errno| Errno::from_raw(error.raw_os_error());
        let description = rustix::fs::fstat(file).map_err(raw)?;
        if description.st_dev != self.device {
            return Err(Errno::EXDEV);
        }
        let is_it = |identity| self.shared.inodes.number(identity) == description.st_ino;
        self.shared.nodes.find_handle(is_it).ok_or(Errno::ESTALE)
    }

    /// Something was changed by its name: what the kernel knows of open files may not be true any more.
    pub(crate) fn forget_metadata(&self) {
        self.shared.recent.forget();
        for node in self.shared.nodes.forget_metadata() {
            self.shared.channel.forget_metadata(node);
        }
    }
}

/// The kernel's own reading ahead is bounded by a setting of the device. Those who may, make it larger; fewer and larger
/// requests are cheaper.
fn read_ahead_far(major: u32, minor: u32) {
    let setting = format!("/sys/class/bdi/{major}:{minor}/read_ahead_kb");
    let _ = std::fs::write(setting, "1024");
}

fn errno_of(error: &std::io::Error) -> Errno {
    error.raw_os_error().map_or(Errno::EIO, Errno::from_raw)
}
