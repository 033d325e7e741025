//! The files that say how names are resolved, as they were opened a moment ago.
//!
//! The C library opens the hosts file for every name that it looks up. Of all other files an `open` shows what the target
//! has at that moment; of these, what it had within the last second.

use std::collections::HashMap;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use super::fuse::Recent;
use crate::dns::Dns;

/// Flags that make no difference to what is opened.
const INDIFFERENT: i32 = libc::O_CLOEXEC | libc::O_LARGEFILE | libc::O_NOCTTY | libc::O_NONBLOCK;

#[derive(Debug, Default)]
pub(super) struct RecentlyOpened(Mutex<HashMap<PathBuf, Arc<Recent>>>);

impl RecentlyOpened {
    pub(super) fn keep(&self, path: &Path, flags: i32, recent: Recent) {
        if concerns(path, flags) {
            self.files().insert(path.to_path_buf(), Arc::new(recent));
        }
    }

    pub(super) fn find(&self, path: &Path, flags: i32) -> Option<Arc<Recent>> {
        if !concerns(path, flags) {
            return None;
        }
        let found = self.files().get(path).cloned();
        found.filter(|recent| recent.is_fresh())
    }

    /// Something was changed by name.
    pub(super) fn forget(&self) {
        self.files().clear();
    }

    fn files(&self) -> MutexGuard<'_, HashMap<PathBuf, Arc<Recent>>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Whether somebody just wants to read such a file.
fn concerns(path: &Path, flags: i32) -> bool {
    flags & !INDIFFERENT == libc::O_RDONLY && Dns::is_file(path)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_who_reads_a_file_about_names_is_concerned() {
        let hosts = Path::new("/etc/hosts");
        assert!(concerns(hosts, libc::O_RDONLY | libc::O_CLOEXEC));
        assert!(!concerns(hosts, libc::O_RDWR));
        assert!(!concerns(hosts, libc::O_RDONLY | libc::O_NOFOLLOW));
        assert!(!concerns(hosts, libc::O_RDONLY | libc::O_CREAT));
        assert!(!concerns(Path::new("/etc/passwd"), libc::O_RDONLY));
    }
}
