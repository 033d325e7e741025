//! Open files of one connection. They are closed with it.

use std::collections::HashMap;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use bytes::Bytes;
use rustix::io::Errno;

use crate::{Error, Result};

/// How many files one connection may have open.
pub(crate) const HANDLES: u32 = 65_536;

#[derive(Debug)]
pub(crate) struct OpenFile {
    /// By which it was opened.
    pub(crate) path: Bytes,
    /// Whether it was opened to be changed.
    pub(crate) is_writable: bool,
    pub(crate) descriptor: OwnedFd,
    /// Writes go to the end, whatever offset they name.
    pub(crate) append: bool,
    /// Nothing about it may be changed, whatever its descriptor could.
    pub(crate) is_read_only: bool,
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
    /// Never used again, so a late request cannot meet another file. 0 is none.
    last: u64,
    open: HashMap<u64, Arc<OpenFile>>,
}

/// The first number is a random one: a client whose connection was replaced still has handles of the one before, and
/// they must not meet the files of this one.
impl Default for Table {
    fn default() -> Self {
        Self {
            // Far from the largest number, so that counting never ends.
            last: rand::random::<u64>() >> 1,
            open: HashMap::new(),
        }
    }
}

impl Handles {
    pub(crate) fn insert(&self, file: OpenFile) -> Result<u64> {
        let mut table = self.table();
        if table.open.len() >= HANDLES as usize {
            return Err(Error::operation("keep more files open")(Errno::MFILE));
        }
        table.last += 1;
        let handle = table.last;
        table.open.insert(handle, Arc::new(file));
        Ok(handle)
    }

    pub(crate) fn get(&self, handle: u64) -> Result<Arc<OpenFile>> {
        let found = self.table().open.get(&handle).cloned();
        found.ok_or_else(|| Error::operation("find this handle among the open files")(Errno::BADF))
    }

    /// Forgets handles, and gives back the files, which close when nothing uses them any more.
    pub(crate) fn remove(&self, handles: &[u64]) -> Vec<Arc<OpenFile>> {
        let mut table = self.table();
        handles
            .iter()
            .filter_map(|handle| table.open.remove(handle))
            .collect()
    }

    /// Forgets all others.
    pub(crate) fn retain(&self, mut is_kept: impl FnMut(&OpenFile) -> bool) {
        self.table().open.retain(|_, file| is_kept(file));
    }

    fn table(&self) -> MutexGuard<'_, Table> {
        // Nothing panics while it is locked.
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn open(handles: &Handles) -> u64 {
        let file = OpenFile {
            path: Bytes::new(),
            is_writable: false,
            descriptor: std::fs::File::open("/dev/null").unwrap().into(),
            append: false,
            is_read_only: false,
        };
        handles.insert(file).unwrap()
    }

    #[test]
    fn a_handle_of_one_connection_is_none_of_another() {
        let (before, now) = (Handles::default(), Handles::default());
        let old = open(&before);
        let new = open(&now);
        assert!(now.get(new).is_ok());
        assert!(now.get(old).is_err());
        assert!(now.remove(&[old]).is_empty());
    }
}
