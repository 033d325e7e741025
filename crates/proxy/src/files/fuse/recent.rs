//! The files that say how names are resolved, as they were opened a moment ago.
//!
//! The C library opens the hosts file for every name that it looks up. Of all other files an `open` shows what the target
//! has at that moment; of these, what it had within the last second, and what the session itself changes at once.

use std::collections::HashMap;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Instant;

use interceptor::OpenOptions;
use protocol::rpc::Metadata;

use super::handle::Handle;
use super::nodes::FRESH;
use crate::dns::Dns;

/// Flags that make no difference to what is opened.
const INDIFFERENT: i32 = libc::O_CLOEXEC | libc::O_LARGEFILE | libc::O_NOCTTY | libc::O_NONBLOCK;

/// What was opened to be read, and is open at the target as long as this is kept.
#[derive(Debug)]
pub(crate) struct Recent {
    pub(super) handle: Arc<Handle>,
    pub(super) metadata: Metadata,
    /// When the target was asked.
    pub(super) asked: Instant,
}

#[derive(Debug, Default)]
pub(super) struct RecentlyOpened(Mutex<Kept>);

#[derive(Debug, Default)]
struct Kept {
    files: HashMap<PathBuf, Arc<Recent>>,
    /// What was asked before is not good any more.
    forgotten: Option<Instant>,
}

impl RecentlyOpened {
    pub(super) fn keep(&self, path: &Path, recent: Recent) {
        let mut kept = self.kept();
        if Some(recent.asked) > kept.forgotten {
            kept.files.insert(path.to_path_buf(), Arc::new(recent));
        }
    }

    pub(super) fn find(&self, path: &Path) -> Option<Arc<Recent>> {
        let mut kept = self.kept();
        let recent = kept.files.get(path)?;
        if recent.asked.elapsed() < FRESH {
            return Some(Arc::clone(recent));
        }
        kept.files.remove(path);
        None
    }

    /// Something was changed.
    pub(super) fn forget(&self) {
        let mut kept = self.kept();
        kept.files.clear();
        kept.forgotten = Some(Instant::now());
    }

    fn kept(&self) -> MutexGuard<'_, Kept> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Whether somebody just wants to read such a file.
pub(super) fn concerns(path: &Path, options: &OpenOptions) -> bool {
    let just_reads = options.flags & !INDIFFERENT == libc::O_RDONLY;
    just_reads && options.resolve == 0 && Dns::is_file(path)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_who_reads_a_file_about_names_is_concerned() {
        let concerns_with = |path: &str, flags, resolve| {
            let options = OpenOptions {
                flags,
                mode: 0,
                resolve,
            };
            concerns(Path::new(path), &options)
        };
        let (read, no_links) = (libc::O_RDONLY, libc::RESOLVE_NO_SYMLINKS);
        assert!(concerns_with("/etc/hosts", read | libc::O_CLOEXEC, 0));
        assert!(!concerns_with("/etc/hosts", read, no_links));
        assert!(!concerns_with("/etc/hosts", libc::O_RDWR, 0));
        assert!(!concerns_with("/etc/hosts", read | libc::O_NOFOLLOW, 0));
        assert!(!concerns_with("/etc/hosts", read | libc::O_CREAT, 0));
        assert!(!concerns_with("/etc/passwd", read, 0));
    }
}
