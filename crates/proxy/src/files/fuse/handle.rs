//! A file that is open at the target.

use std::sync::{Arc, Mutex, PoisonError};
use std::time::Instant;

use bytes::Bytes;
use protocol::rpc::{Entry, Place};

use super::reading::Reading;
use crate::files::calls::Calls;

/// Open as the kernel sees it. Several may share what is open at the target.
#[derive(Debug)]
pub(super) struct Handle {
    pub(super) remote: Arc<Remote>,
    pub(super) reading: Reading,
    /// What `getdents` was told, so that positions in it mean something.
    listing: Mutex<Option<Arc<Vec<Entry>>>>,
}

/// Open at the target, until this is dropped.
#[derive(Debug)]
pub(super) struct Remote {
    pub(super) number: u64,
    pub(super) opened: Instant,
    /// As `open` had them.
    pub(super) flags: i32,
    /// The rules allow to read the file and no more, whatever the target would.
    pub(super) read_only: bool,
    /// There was something to read when it was opened, whatever its size says.
    pub(super) has_content: bool,
    calls: Calls,
}

impl Drop for Remote {
    fn drop(&mut self) {
        match self.flags & libc::O_ACCMODE {
            libc::O_RDONLY => self.calls.close_soon(self.number),
            _ => self.calls.close(self.number),
        }
    }
}

impl Handle {
    pub(super) fn new(
        calls: Calls,
        number: u64,
        flags: i32,
        read_only: bool,
        first_bytes: Bytes,
        whole: bool,
    ) -> Self {
        Self {
            remote: Arc::new(Remote {
                number,
                opened: Instant::now(),
                flags,
                read_only,
                has_content: !first_bytes.is_empty(),
                calls,
            }),
            reading: Reading::new(first_bytes, whole),
            listing: Mutex::default(),
        }
    }

    pub(super) fn opened_again(&self) -> Self {
        Self {
            remote: Arc::clone(&self.remote),
            reading: Reading::default(),
            listing: Mutex::default(),
        }
    }

    /// Whether it does what an open with these flags is for.
    pub(super) fn suits(&self, flags: i32) -> bool {
        let mine = self.remote.flags;
        let can_both = mine & libc::O_ACCMODE == libc::O_RDWR;
        self.is_for(flags) || can_both && mine & libc::O_APPEND == flags & libc::O_APPEND
    }

    /// Whether it was opened with these flags, as far as they matter later.
    pub(super) fn is_for(&self, flags: i32) -> bool {
        let matter = libc::O_ACCMODE | libc::O_APPEND;
        self.remote.flags & matter == flags & matter
    }

    pub(super) fn is_like(&self, other: &Self) -> bool {
        self.is_for(other.remote.flags)
    }

    pub(super) fn is_writable(&self) -> bool {
        self.remote.flags & libc::O_ACCMODE != libc::O_RDONLY
    }

    /// Every write goes to the end at the target, which the kernel here cannot know.
    pub(super) fn appends(&self) -> bool {
        self.remote.flags & libc::O_APPEND != 0
    }

    pub(super) fn place(&self) -> Place {
        Place::handle(self.remote.number)
    }

    pub(super) fn listing(&self) -> Option<Arc<Vec<Entry>>> {
        let listing = self.listing.lock();
        listing.unwrap_or_else(PoisonError::into_inner).clone()
    }

    pub(super) fn set_listing(&self, entries: Arc<Vec<Entry>>) {
        let listing = self.listing.lock();
        *listing.unwrap_or_else(PoisonError::into_inner) = Some(entries);
    }
}
