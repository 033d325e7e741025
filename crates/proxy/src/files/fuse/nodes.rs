//! The nodes that the kernel knows: files that are or were open, and their open handles.
//!
//! A file of the target has one node as long as the kernel remembers it, however often and under which paths it is
//! opened. So its cached pages are shared, and kept from one open to the next.

use std::collections::HashMap;
use std::sync::Arc;
use std::time::{Duration, Instant};

use interceptor::Errno;
use parking_lot::Mutex;
use protocol::rpc::{Metadata, Time};

use super::handle::Handle;
use crate::files::inodes::FileId;

/// How long metadata and prefetched content of a file are valid without another request to the target.
pub(crate) const CACHE_TTL: Duration = Duration::from_secs(1);

#[derive(Debug, Default)]
pub(super) struct Nodes(Mutex<Table>);

#[derive(Debug, Default)]
struct Table {
    nodes: HashMap<u64, Node>,
    /// The birth time distinguishes a new file from a removed one that had the same inode.
    by_file: HashMap<(FileId, Option<Time>), u64>,
    handles: HashMap<u64, Arc<Handle>>,
    last_number: u64,
}

#[derive(Debug)]
struct Node {
    file_id: (FileId, Option<Time>),
    metadata: Metadata,
    /// When the metadata was requested from the target; `None` if it is no longer valid.
    read_at: Option<Instant>,
    /// When the session last changed the file. Responses to earlier requests are not used.
    changed_at: Option<Instant>,
    /// The version of the file that is in the page cache.
    cached_version: Option<Version>,
    /// The kernel's lookup count.
    lookups: u64,
    /// The number of opens in progress.
    pins: usize,
    /// Handles that are open at the target, but not yet opened by the kernel.
    pending: Vec<Arc<Handle>>,
    open: Vec<u64>,
}

/// Identifies the content of a file: as long as these are equal, the content is.
#[derive(Debug, Clone, PartialEq)]
struct Version {
    size: u64,
    modification_time: Option<Time>,
    change_time: Option<Time>,
}

impl Version {
    fn of(metadata: &Metadata) -> Self {
        Self {
            size: metadata.size,
            modification_time: metadata.modification_time,
            change_time: metadata.change_time,
        }
    }
}

/// The result of an open by the kernel.
#[derive(Debug)]
pub(super) struct OpenedNode {
    pub(super) number: u64,
    pub(super) handle: Arc<Handle>,
    /// The kernel may keep its cached pages.
    pub(super) keeps_cache: bool,
}

/// The cached metadata of a node, and for how long it is still valid.
#[derive(Debug)]
pub(super) struct CachedMetadata {
    pub(super) metadata: Metadata,
    pub(super) valid: Duration,
}

impl Nodes {
    /// The node for a file that was opened at the target, and whether the kernel may have older metadata of it. The node is
    /// pinned until [`end_open`](Self::end_open). `requested_at` is when the request to open it was sent.
    pub(super) fn begin_open(
        &self,
        file_id: FileId,
        metadata: &Metadata,
        handle: &Arc<Handle>,
        requested_at: Instant,
    ) -> (u64, bool) {
        let mut table = self.0.lock();
        let key = (file_id, metadata.birth_time);
        let number = match table.by_file.get(&key) {
            Some(number) => *number,
            None => table.new_number(),
        };
        table.by_file.insert(key, number);
        let Table { nodes, handles, .. } = &mut *table;
        let node = nodes.entry(number).or_insert_with(|| Node {
            file_id: key,
            metadata: *metadata,
            read_at: None,
            changed_at: None,
            cached_version: None,
            lookups: 0,
            pins: 0,
            pending: Vec::new(),
            open: Vec::new(),
        });
        if node.is_older_than(requested_at) {
            node.set_metadata(metadata, requested_at, handles);
        } else {
            // The file was changed meanwhile, so the prefetched bytes may be outdated.
            handle.read_ahead.clear();
        }
        node.pins += 1;
        node.pending.push(Arc::clone(handle));
        (number, node.lookups > 0)
    }

    /// Ends an open, successful or not. If the kernel did not use the pending handle, it is dropped, unless the kernel used
    /// the one of a concurrent open of the same file: that open then gets this handle.
    pub(super) fn end_open(&self, number: u64, handle: &Arc<Handle>) {
        let mut table = self.0.lock();
        if let Some(node) = table.nodes.get_mut(&number) {
            node.pins -= 1;
            if node.pending.len() > node.pins {
                let pending = &node.pending;
                let own = pending.iter().position(|other| Arc::ptr_eq(other, handle));
                let equivalent = || pending.iter().position(|other| other.matches(handle));
                if let Some(index) = own.or_else(equivalent) {
                    node.pending.swap_remove(index);
                }
            }
        }
        table.drop_if_unused(number);
    }

    /// Runs `action` on a file that was just opened, if this is its only open. The table stays locked, so another open of
    /// the file waits.
    pub(super) fn if_exclusive(
        &self,
        number: u64,
        handle: &Arc<Handle>,
        action: impl FnOnce(&Metadata),
    ) {
        let table = self.0.lock();
        let Some(node) = table.nodes.get(&number) else {
            return;
        };
        let [only] = node.open.as_slice() else {
            return;
        };
        let is_own = |open: &Arc<Handle>| Arc::ptr_eq(open, handle);
        if node.pins == 1 && node.lookups == 1 && table.handles.get(only).is_some_and(is_own) {
            action(&node.metadata);
        }
    }

    /// Counts a lookup by the kernel.
    pub(super) fn look_up(&self, number: u64) -> Option<CachedMetadata> {
        let mut table = self.0.lock();
        let node = table.nodes.get_mut(&number)?;
        node.lookups += 1;
        Some(node.cached())
    }

    /// The kernel's `FORGET`: takes lookups back.
    pub(super) fn forget(&self, number: u64, lookups: u64) {
        let mut table = self.0.lock();
        if let Some(node) = table.nodes.get_mut(&number) {
            node.lookups = node.lookups.saturating_sub(lookups);
        }
        table.drop_if_unused(number);
    }

    /// The kernel opens a node. Usually the file was opened at the target before; but a descriptor that is reopened through
    /// `/proc` leads here directly, and shares a handle that is open.
    pub(super) fn open(&self, number: u64, flags: i32) -> Result<OpenedNode, Errno> {
        let mut table = self.0.lock();
        let handle_number = table.new_number();
        let Table { nodes, handles, .. } = &mut *table;
        let node = nodes.get_mut(&number).ok_or(Errno::ESTALE)?;
        let pending = &node.pending;
        let exact = pending
            .iter()
            .position(|handle| handle.matches_flags(flags));
        let compatible = || pending.iter().position(|handle| handle.satisfies(flags));
        let handle = match exact.or_else(compatible) {
            Some(index) => node.pending.swap_remove(index),
            None => {
                let mut open = node.open.iter().filter_map(|number| handles.get(number));
                let shared = open.find(|handle| handle.satisfies(flags));
                Arc::new(shared.ok_or(Errno::EACCES)?.reopened())
            }
        };
        let version = Version::of(&node.metadata);
        let keeps_cache = node.cached_version.as_ref() == Some(&version);
        node.cached_version = Some(version);
        node.open.push(handle_number);
        handles.insert(handle_number, Arc::clone(&handle));
        Ok(OpenedNode {
            number: handle_number,
            handle,
            keeps_cache,
        })
    }

    pub(super) fn release(&self, number: u64, handle: u64) {
        let mut table = self.0.lock();
        let released = table.handles.remove(&handle);
        if let Some(node) = table.nodes.get_mut(&number) {
            node.open.retain(|open| *open != handle);
        }
        drop(table);
        drop(released);
    }

    pub(super) fn handle(&self, handle: u64) -> Result<Arc<Handle>, Errno> {
        let found = self.0.lock().handles.get(&handle).cloned();
        found.ok_or(Errno::EBADF)
    }

    /// Any open handle of a node; if `writable`, preferably a writable one. Of several, the one that was opened last:
    /// handles of an agent that has been replaced are no longer valid.
    pub(super) fn any_handle(&self, number: u64, writable: bool) -> Result<Arc<Handle>, Errno> {
        let table = self.0.lock();
        let node = table.nodes.get(&number).ok_or(Errno::ESTALE)?;
        let open = node.open.iter().filter_map(|open| table.handles.get(open));
        let best = open.max_by_key(|handle| {
            let is_suitable = !writable || handle.is_writable();
            (is_suitable, handle.remote.opened_at)
        });
        best.cloned().ok_or(Errno::ESTALE)
    }

    /// The agent's handle for a file that matches; of several, the one that was opened last.
    pub(super) fn find_handle(&self, matches: impl Fn(FileId) -> bool) -> Option<u64> {
        let table = self.0.lock();
        let nodes = table.nodes.values().filter(|node| matches(node.file_id.0));
        let open = nodes.flat_map(|node| &node.open);
        let open = open.filter_map(|open| table.handles.get(open));
        open.max_by_key(|handle| handle.remote.opened_at)
            .map(|handle| handle.remote.number)
    }

    /// The cached metadata of a node, which may be invalid.
    pub(super) fn cached(&self, number: u64) -> Option<CachedMetadata> {
        self.0.lock().nodes.get(&number).map(Node::cached)
    }

    /// Stores metadata from the target. `requested_at` is when the request was sent.
    pub(super) fn update_metadata(&self, number: u64, metadata: &Metadata, requested_at: Instant) {
        let mut table = self.0.lock();
        let Table { nodes, handles, .. } = &mut *table;
        if let Some(node) = nodes.get_mut(&number)
            && node.is_older_than(requested_at)
        {
            node.set_metadata(metadata, requested_at, handles);
        }
    }

    /// Invalidates metadata and prefetched content, after a change through the node.
    pub(super) fn invalidate(&self, number: u64) -> Option<FileId> {
        let mut table = self.0.lock();
        let Table { nodes, handles, .. } = &mut *table;
        let node = nodes.get_mut(&number)?;
        node.read_at = None;
        node.changed_at = Some(Instant::now());
        node.discard_read_data(handles);
        Some(node.file_id.0)
    }

    /// Invalidates the metadata of all open nodes, after a change by path, which may affect any of them. Returns these
    /// nodes.
    pub(super) fn invalidate_metadata(&self) -> Vec<u64> {
        let mut table = self.0.lock();
        let open = table.nodes.iter_mut();
        let open = open.filter(|(_, node)| !node.open.is_empty());
        open.map(|(number, node)| {
            node.read_at = None;
            node.changed_at = Some(Instant::now());
            *number
        })
        .collect()
    }
}

impl Table {
    fn new_number(&mut self) -> u64 {
        self.last_number += 1;
        // The number of the root is reserved.
        self.last_number + super::wire::ROOT
    }

    fn drop_if_unused(&mut self, number: u64) {
        let used = |node: &Node| node.lookups > 0 || node.pins > 0 || !node.open.is_empty();
        if self.nodes.get(&number).is_some_and(|node| !used(node))
            && let Some(node) = self.nodes.remove(&number)
        {
            self.by_file.remove(&node.file_id);
        }
    }
}

impl Node {
    /// Whether a response is newer than the cached metadata: it was requested after that, and after the last change.
    fn is_older_than(&self, requested_at: Instant) -> bool {
        self.read_at < Some(requested_at) && self.changed_at < Some(requested_at)
    }

    /// Discards content that was prefetched or read ahead.
    fn discard_read_data(&self, handles: &HashMap<u64, Arc<Handle>>) {
        let open = self.open.iter().filter_map(|open| handles.get(open));
        for handle in open.chain(&self.pending) {
            handle.read_ahead.clear();
        }
    }

    /// Content that was read ahead from an older version must not reach the kernel after the metadata of the newer one: the
    /// kernel would cache it as the new content.
    fn set_metadata(
        &mut self,
        metadata: &Metadata,
        at: Instant,
        handles: &HashMap<u64, Arc<Handle>>,
    ) {
        if Version::of(metadata) != Version::of(&self.metadata) {
            self.discard_read_data(handles);
        }
        self.metadata = *metadata;
        self.read_at = Some(at);
    }

    fn cached(&self) -> CachedMetadata {
        CachedMetadata {
            metadata: self.metadata,
            valid: self.read_at.map_or(Duration::ZERO, |read_at| {
                CACHE_TTL.saturating_sub(read_at.elapsed())
            }),
        }
    }
}

#[cfg(test)]
mod tests {
    use bytes::Bytes;
    use link::http2::{Client, Windows};
    use protocol::rpc::HelloResponse;

    use super::*;
    use crate::agent::{AgentConnection, Agents, SessionContext};
    use crate::files::calls::FileCalls;

    const FILE: FileId = (8, 1, 5);

    /// Calls to an agent that never responds.
    async fn calls() -> FileCalls {
        let (near, _far) = tokio::io::duplex(1024);
        let client = Client::start(near, Windows::default()).await.unwrap();
        let agents = Agents::only(AgentConnection::new(client, &HelloResponse::default()));
        FileCalls::new(SessionContext::new(agents, Arc::new(|_| {})))
    }

    fn handle(calls: &FileCalls) -> Arc<Handle> {
        handle_for(calls, 1, libc::O_RDWR)
    }

    fn handle_for(calls: &FileCalls, number: u64, flags: i32) -> Arc<Handle> {
        let content = Bytes::from_static(b"old");
        let handle = Handle::new(calls.clone(), number, flags, false, content, true);
        Arc::new(handle)
    }

    fn metadata() -> Metadata {
        Metadata {
            size: 3,
            ..Metadata::default()
        }
    }

    #[tokio::test]
    async fn responses_from_before_a_change_are_not_used() {
        let (nodes, calls) = (Nodes::default(), calls().await);
        let writer = handle(&calls);
        let (node, _) = nodes.begin_open(FILE, &metadata(), &writer, Instant::now());
        nodes.open(node, libc::O_RDWR).unwrap();
        assert!(!nodes.cached(node).unwrap().valid.is_zero());

        let requested_at = Instant::now();
        nodes.invalidate(node);
        let reader = handle(&calls);
        nodes.begin_open(FILE, &metadata(), &reader, requested_at);
        assert!(nodes.cached(node).unwrap().valid.is_zero());
        assert_eq!(reader.read_ahead.prefetched(0, 3), None);
    }

    #[tokio::test]
    async fn a_change_invalidates_pending_opens() {
        let (nodes, calls) = (Nodes::default(), calls().await);
        let reader = handle(&calls);
        let (node, _) = nodes.begin_open(FILE, &metadata(), &reader, Instant::now());
        assert_eq!(
            reader.read_ahead.prefetched(0, 3),
            Some(Bytes::from_static(b"old"))
        );
        nodes.invalidate(node);
        assert_eq!(reader.read_ahead.prefetched(0, 3), None);
    }

    #[tokio::test]
    async fn the_handle_that_was_opened_last_is_used() {
        let (nodes, calls) = (Nodes::default(), calls().await);
        let open = |number, flags| {
            let handle = handle_for(&calls, number, flags);
            let (node, _) = nodes.begin_open(FILE, &metadata(), &handle, Instant::now());
            nodes.open(node, flags).unwrap();
            node
        };
        let node = open(1, libc::O_RDWR);
        open(2, libc::O_RDONLY);
        let any_handle = |writable| nodes.any_handle(node, writable).unwrap().remote.number;
        assert_eq!((any_handle(false), any_handle(true)), (2, 1));
        open(3, libc::O_RDWR);
        open(4, libc::O_RDONLY);
        // A handle that is reopened through `/proc` keeps its age.
        nodes.open(node, libc::O_RDWR).unwrap();
        assert_eq!((any_handle(false), any_handle(true)), (4, 3));
    }

    #[tokio::test]
    async fn concurrent_opens_can_swap_their_handles() {
        let (nodes, calls) = (Nodes::default(), calls().await);
        let [first, second, writer] = [(1, libc::O_RDONLY), (2, libc::O_RDONLY), (3, libc::O_RDWR)]
            .map(|(number, flags)| handle_for(&calls, number, flags));
        let begin_open = |handle| {
            nodes
                .begin_open(FILE, &metadata(), handle, Instant::now())
                .0
        };
        let node = begin_open(&first);
        for handle in [&writer, &second] {
            assert_eq!(begin_open(handle), node);
        }
        nodes.look_up(node);
        // The second open gets the first handle, and ends before the others.
        let opening = nodes.open(node, libc::O_RDONLY).unwrap();
        nodes.end_open(node, &second);
        nodes.release(node, opening.number);
        assert!(nodes.open(node, libc::O_RDONLY).is_ok());
        nodes.end_open(node, &first);
        assert!(nodes.open(node, libc::O_RDWR).is_ok());
        nodes.end_open(node, &writer);
    }
}
