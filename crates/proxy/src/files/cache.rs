//! Short-lived cache of what the target reported about paths: metadata, access, links, and missing files.
//!
//! Programs repeat the same calls: for each component of a path, for each directory in which a module may be. An entry is
//! valid for [`CACHE_TTL`](super::fuse::CACHE_TTL). Changes by the session itself are visible at once: a change by path
//! invalidates the whole cache, because it may affect any number of paths; a change through a descriptor invalidates the
//! paths of that file.

use std::collections::{HashMap, HashSet};
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use interceptor::Errno;
use parking_lot::Mutex;
use protocol::rpc::Metadata;

use super::inodes::{FileId, file_id};

/// The maximum number of entries. When it is reached, expired entries are removed, and if there are none, all entries.
const MAX_ENTRIES: usize = 16 * 1024;

#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub(crate) enum PathQuery {
    Metadata { follow: bool },
    Access { mode: i32, follow: bool },
    Link,
    Canonical,
}

#[derive(Debug, Clone, PartialEq)]
pub(crate) enum PathInfo {
    Metadata(Metadata),
    Accessible,
    Link(PathBuf),
    Failed(Errno),
}

#[derive(Debug)]
pub(crate) struct PathCache {
    ttl: Duration,
    state: Mutex<State>,
}

#[derive(Debug, Default)]
struct State {
    entries: HashMap<PathBuf, HashMap<PathQuery, (PathInfo, Instant)>>,
    count: usize,
    /// The paths under which files are cached. Entries for some of them may already be removed.
    paths: HashMap<FileId, HashSet<PathBuf>>,
    /// The number of changes so far. A response to a request from before the last change is not cached.
    changes: u64,
}

/// A query that was not cached, with the time of the request that is sent instead.
#[derive(Debug, Clone, Copy)]
pub(crate) struct CacheMiss {
    changes: u64,
    at: Instant,
}

impl PathCache {
    pub(crate) fn new(ttl: Duration) -> Self {
        Self {
            ttl,
            state: Mutex::default(),
        }
    }

    /// A valid entry, or the miss to pass to [`put`](Self::put) with the target's response.
    pub(crate) fn get(&self, path: &Path, query: &PathQuery) -> Result<PathInfo, CacheMiss> {
        let state = self.state.lock();
        let found = state
            .entries
            .get(path)
            .and_then(|entries| entries.get(query));
        match found {
            Some((info, since)) if since.elapsed() < self.ttl => Ok(info.clone()),
            _ => Err(CacheMiss {
                changes: state.changes,
                at: Instant::now(),
            }),
        }
    }

    pub(crate) fn put(&self, path: &Path, query: PathQuery, info: PathInfo, miss: CacheMiss) {
        let mut state = self.state.lock();
        if state.changes != miss.changes {
            return;
        }
        if state.count >= MAX_ENTRIES {
            state.make_room(self.ttl);
        }
        if let PathInfo::Metadata(metadata) = &info {
            let paths = state.paths.entry(file_id(metadata)).or_default();
            paths.insert(path.to_path_buf());
        }
        let entries = state.entries.entry(path.to_path_buf()).or_default();
        if entries.insert(query, (info, miss.at)).is_none() {
            state.count += 1;
        }
    }

    /// Invalidates everything, after a change by path.
    pub(crate) fn invalidate(&self) {
        let mut state = self.state.lock();
        state.changes += 1;
        state.clear();
    }

    /// Invalidates all paths of a file, after a change through a descriptor.
    pub(crate) fn invalidate_file(&self, file: FileId) {
        let mut state = self.state.lock();
        state.changes += 1;
        for path in state.paths.remove(&file).unwrap_or_default() {
            let removed = state.entries.remove(&path);
            state.count -= removed.map_or(0, |entries| entries.len());
        }
    }
}

impl State {
    fn clear(&mut self) {
        self.entries.clear();
        self.paths.clear();
        self.count = 0;
    }

    fn make_room(&mut self, ttl: Duration) {
        let mut count = 0;
        self.entries.retain(|_, entries| {
            entries.retain(|_, (_, since)| since.elapsed() < ttl);
            count += entries.len();
            !entries.is_empty()
        });
        self.count = count;
        let Self { entries, paths, .. } = self;
        paths.retain(|_, paths| {
            paths.retain(|path| entries.contains_key(path));
            !paths.is_empty()
        });
        if self.count >= MAX_ENTRIES {
            self.clear();
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const METADATA: PathQuery = PathQuery::Metadata { follow: true };

    fn metadata(inode: u64) -> PathInfo {
        PathInfo::Metadata(Metadata {
            inode,
            ..Metadata::default()
        })
    }

    fn put(cache: &PathCache, path: &str, info: PathInfo) {
        let miss = cache.get(Path::new(path), &METADATA).unwrap_err();
        cache.put(Path::new(path), METADATA, info, miss);
    }

    fn is_cached(cache: &PathCache, path: &str) -> bool {
        cache.get(Path::new(path), &METADATA).is_ok()
    }

    #[test]
    fn entries_are_returned_until_they_expire() {
        let cache = PathCache::new(Duration::from_secs(3600));
        put(&cache, "/a", PathInfo::Failed(Errno::ENOENT));
        let info = cache.get(Path::new("/a"), &METADATA).unwrap();
        assert_eq!(info, PathInfo::Failed(Errno::ENOENT));
        let other = PathQuery::Metadata { follow: false };
        assert!(cache.get(Path::new("/a"), &other).is_err());
        let expiring = PathCache::new(Duration::ZERO);
        put(&expiring, "/a", metadata(1));
        assert!(!is_cached(&expiring, "/a"));
    }

    #[test]
    fn changes_invalidate_entries() {
        let cache = PathCache::new(Duration::from_secs(3600));
        put(&cache, "/a", metadata(1));
        put(&cache, "/b", metadata(2));
        cache.invalidate_file((0, 0, 1));
        assert!(!is_cached(&cache, "/a"));
        assert!(is_cached(&cache, "/b"));
        cache.invalidate();
        assert!(!is_cached(&cache, "/b"));
    }

    #[test]
    fn responses_from_before_a_change_are_not_cached() {
        let cache = PathCache::new(Duration::from_secs(3600));
        let miss = cache.get(Path::new("/a"), &METADATA).unwrap_err();
        cache.invalidate_file((0, 0, 7));
        cache.put(Path::new("/a"), METADATA, metadata(1), miss);
        assert!(!is_cached(&cache, "/a"));
    }

    #[test]
    fn the_number_of_entries_is_limited() {
        let cache = PathCache::new(Duration::from_secs(3600));
        for number in 0..MAX_ENTRIES as u64 + 1 {
            put(&cache, &format!("/{number}"), metadata(number));
        }
        assert_eq!(cache.state.lock().count, 1);
        assert!(is_cached(&cache, &format!("/{MAX_ENTRIES}")));
    }
}
