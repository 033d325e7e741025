//! A file that is open at the target.

use std::sync::Arc;
use std::time::Instant;

use bytes::Bytes;
use parking_lot::Mutex;
use protocol::rpc::{Entry, FileRef};

use super::read_ahead::ReadAhead;
use crate::files::calls::FileCalls;

/// An open file as the kernel sees it. Several may share one handle of the agent.
#[derive(Debug)]
pub(super) struct Handle {
    pub(super) remote: Arc<RemoteHandle>,
    pub(super) read_ahead: ReadAhead,
    /// The entries that `getdents` returns. They are fixed so that offsets stay valid.
    listing: Mutex<Option<Arc<Vec<Entry>>>>,
}

/// A handle of the agent. The file is closed at the target on drop.
#[derive(Debug)]
pub(super) struct RemoteHandle {
    pub(super) number: u64,
    pub(super) opened_at: Instant,
    /// The flags of `open`.
    pub(super) flags: i32,
    /// The rules of the configuration only allow reading, even if the target would allow changes.
    pub(super) read_only: bool,
    /// The file had content when it was opened, even if its size is zero.
    pub(super) has_content: bool,
    calls: FileCalls,
}

impl Drop for RemoteHandle {
    fn drop(&mut self) {
        match self.flags & libc::O_ACCMODE {
            libc::O_RDONLY => self.calls.close_batched(self.number),
            _ => self.calls.close(self.number),
        }
    }
}

impl Handle {
    pub(super) fn new(
        calls: FileCalls,
        number: u64,
        flags: i32,
        read_only: bool,
        first_bytes: Bytes,
        whole: bool,
    ) -> Self {
        Self {
            remote: Arc::new(RemoteHandle {
                number,
                opened_at: Instant::now(),
                flags,
                read_only,
                has_content: !first_bytes.is_empty(),
                calls,
            }),
            read_ahead: ReadAhead::new(first_bytes, whole),
            listing: Mutex::default(),
        }
    }

    /// Another open file for the same handle of the agent.
    pub(super) fn reopened(&self) -> Self {
        Self {
            remote: Arc::clone(&self.remote),
            read_ahead: ReadAhead::default(),
            listing: Mutex::default(),
        }
    }

    /// Whether an open with these flags can use this handle.
    pub(super) fn satisfies(&self, flags: i32) -> bool {
        let own = self.remote.flags;
        let is_read_write = own & libc::O_ACCMODE == libc::O_RDWR;
        self.matches_flags(flags) || is_read_write && own & libc::O_APPEND == flags & libc::O_APPEND
    }

    /// Whether it was opened with the same access mode and append flag.
    pub(super) fn matches_flags(&self, flags: i32) -> bool {
        let relevant = libc::O_ACCMODE | libc::O_APPEND;
        self.remote.flags & relevant == flags & relevant
    }

    pub(super) fn matches(&self, other: &Self) -> bool {
        self.matches_flags(other.remote.flags)
    }

    pub(super) fn is_writable(&self) -> bool {
        self.remote.flags & libc::O_ACCMODE != libc::O_RDONLY
    }

    /// Whether every write goes to the end of the file at the target, which the local kernel does not know.
    pub(super) fn appends(&self) -> bool {
        self.remote.flags & libc::O_APPEND != 0
    }

    pub(super) fn file_ref(&self) -> FileRef {
        FileRef::handle(self.remote.number)
    }

    pub(super) fn listing(&self) -> Option<Arc<Vec<Entry>>> {
        self.listing.lock().clone()
    }

    pub(super) fn set_listing(&self, entries: Arc<Vec<Entry>>) {
        *self.listing.lock() = Some(entries);
    }
}
