//! The open files of one connection, which are closed with it.

use std::collections::HashMap;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use bytes::Bytes;
use parking_lot::Mutex;
use rustix::io::Errno;

use crate::{Error, Result};

/// The maximum number of open files per connection.
pub(crate) const MAX_HANDLES: u32 = 65_536;

#[derive(Debug)]
pub(crate) struct OpenFile {
    /// The path by which it was opened. Without symbolic links, if there were rules.
    pub(crate) path: Bytes,
    /// Whether it was opened for writing.
    pub(crate) is_writable: bool,
    /// Whether it was opened only to refer to the file, without any access.
    pub(crate) is_path_only: bool,
    pub(crate) descriptor: OwnedFd,
    /// Writes append to the file and ignore their offset.
    pub(crate) append: bool,
    /// Set when the rules have forbidden the file, for operations that began before.
    pub(crate) is_forbidden: AtomicBool,
}

impl OpenFile {
    /// Fails if the rules have forbidden the file since it was opened.
    pub(crate) fn require_allowed(&self) -> Result<(), Errno> {
        match self.is_forbidden.load(Ordering::Acquire) {
            true => Err(Errno::BADF),
            false => Ok(()),
        }
    }
}

impl AsFd for OpenFile {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.descriptor.as_fd()
    }
}

#[derive(Debug, Default)]
pub(crate) struct Handles(Mutex<Table>);

#[derive(Debug)]
struct Table {
    /// The last handle. Handles are not reused, so a late request cannot access another file. 0 means no handle.
    last: u64,
    open: HashMap<u64, Arc<OpenFile>>,
}

/// The first handle is random: a client that reconnected still has handles of its former connection, and they must not refer
/// to files of this one.
impl Default for Table {
    fn default() -> Self {
        Self {
            // Far from the maximum, so that it never overflows.
            last: rand::random::<u64>() >> 1,
            open: HashMap::new(),
        }
    }
}

impl Handles {
    pub(crate) fn insert(&self, file: OpenFile) -> Result<u64> {
        let mut table = self.0.lock();
        if table.open.len() >= MAX_HANDLES as usize {
            return Err(Error::operation("keep more files open")(Errno::MFILE));
        }
        table.last += 1;
        let handle = table.last;
        table.open.insert(handle, Arc::new(file));
        Ok(handle)
    }

    pub(crate) fn get(&self, handle: u64) -> Result<Arc<OpenFile>> {
        let found = self.0.lock().open.get(&handle).cloned();
        found.ok_or_else(|| Error::operation("find this handle among the open files")(Errno::BADF))
    }

    /// Removes handles and returns their files, which are closed when the last operation on them has ended.
    pub(crate) fn remove(&self, handles: &[u64]) -> Vec<Arc<OpenFile>> {
        let mut table = self.0.lock();
        handles
            .iter()
            .filter_map(|handle| table.open.remove(handle))
            .collect()
    }

    /// Removes the handles of files for which `is_allowed` returns false. Operations on them that still run fail.
    pub(crate) fn retain(&self, mut is_allowed: impl FnMut(&OpenFile) -> bool) {
        self.0.lock().open.retain(|_, file| {
            let is_allowed = is_allowed(file);
            file.is_forbidden.store(!is_allowed, Ordering::Release);
            is_allowed
        });
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn open(handles: &Handles) -> u64 {
        let file = OpenFile {
            path: Bytes::new(),
            is_writable: false,
            is_path_only: false,
            descriptor: std::fs::File::open("/dev/null").unwrap().into(),
            append: false,
            is_forbidden: AtomicBool::new(false),
        };
        handles.insert(file).unwrap()
    }

    #[test]
    fn handles_of_another_connection_are_invalid() {
        let (before, now) = (Handles::default(), Handles::default());
        let old = open(&before);
        let new = open(&now);
        assert!(now.get(new).is_ok());
        assert!(now.get(old).is_err());
        assert!(now.remove(&[old]).is_empty());
    }
}
