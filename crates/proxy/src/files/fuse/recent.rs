//! Recently opened files of the DNS configuration, which can be opened again without a request to the agent.
//!
//! The C library opens the hosts file for every DNS name that it looks up. An `open` of any other file shows the target's
//! current content; an `open` of these shows content that is at most [`CACHE_TTL`] old. Changes by the session itself are
//! visible at once.

use std::collections::HashMap;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Instant;

use interceptor::OpenOptions;
use parking_lot::Mutex;
use protocol::rpc::Metadata;

use super::handle::Handle;
use super::nodes::CACHE_TTL;
use crate::dns::Dns;

/// Flags that do not affect which file is opened, or how.
const IRRELEVANT_FLAGS: i32 =
    libc::O_CLOEXEC | libc::O_LARGEFILE | libc::O_NOCTTY | libc::O_NONBLOCK;

/// A file that was opened for reading. It stays open at the target as long as this exists.
#[derive(Debug)]
pub(crate) struct RecentFile {
    pub(super) handle: Arc<Handle>,
    pub(super) metadata: Metadata,
    /// When the request to open it was sent.
    pub(super) requested_at: Instant,
}

#[derive(Debug, Default)]
pub(super) struct RecentFiles(Mutex<State>);

#[derive(Debug, Default)]
struct State {
    files: HashMap<PathBuf, Arc<RecentFile>>,
    /// The time of the last change. Results of earlier requests are not cached.
    cleared_at: Option<Instant>,
}

impl RecentFiles {
    pub(super) fn insert(&self, path: &Path, recent: RecentFile) {
        let mut state = self.0.lock();
        if Some(recent.requested_at) > state.cleared_at {
            state.files.insert(path.to_path_buf(), Arc::new(recent));
        }
    }

    pub(super) fn find(&self, path: &Path) -> Option<Arc<RecentFile>> {
        let mut state = self.0.lock();
        let recent = state.files.get(path)?;
        if recent.requested_at.elapsed() < CACHE_TTL {
            return Some(Arc::clone(recent));
        }
        state.files.remove(path);
        None
    }

    /// Removes all files, after a change.
    pub(super) fn clear(&self) {
        let mut state = self.0.lock();
        state.files.clear();
        state.cleared_at = Some(Instant::now());
    }
}

/// Whether this is a plain open for reading of such a file.
pub(super) fn is_cacheable(path: &Path, options: &OpenOptions) -> bool {
    let only_reads = options.flags & !IRRELEVANT_FLAGS == libc::O_RDONLY;
    only_reads && options.resolve == 0 && Dns::is_config_file(path)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_plain_reads_of_dns_files_are_cacheable() {
        let is_cacheable_with = |path: &str, flags, resolve| {
            let options = OpenOptions {
                flags,
                mode: 0,
                resolve,
            };
            is_cacheable(Path::new(path), &options)
        };
        let (read, no_links) = (libc::O_RDONLY, libc::RESOLVE_NO_SYMLINKS);
        assert!(is_cacheable_with("/etc/hosts", read | libc::O_CLOEXEC, 0));
        assert!(!is_cacheable_with("/etc/hosts", read, no_links));
        assert!(!is_cacheable_with("/etc/hosts", libc::O_RDWR, 0));
        assert!(!is_cacheable_with("/etc/hosts", read | libc::O_NOFOLLOW, 0));
        assert!(!is_cacheable_with("/etc/hosts", read | libc::O_CREAT, 0));
        assert!(!is_cacheable_with("/etc/passwd", read, 0));
    }
}
