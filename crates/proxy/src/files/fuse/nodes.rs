//! What the kernel and we both know: files that are or were open, and their open handles.
//!
//! A file of the target has one node as long as the kernel remembers it, however often and under whatever names it is
//! opened: so its cached pages are shared, and kept from one open to the next.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use interceptor::Errno;
use protocol::rpc::{Metadata, Time};

use super::handle::Handle;
use crate::files::inodes::Identity;

/// For so long may the kernel and we tell what we know of a file without asking the target again.
pub(crate) const FRESH: Duration = Duration::from_secs(1);

#[derive(Debug, Default)]
pub(super) struct Nodes(Mutex<Table>);

#[derive(Debug, Default)]
struct Table {
    nodes: HashMap<u64, Node>,
    /// A new file that got the inode of a removed one is told apart by when it was born.
    by_identity: HashMap<(Identity, Option<Time>), u64>,
    handles: HashMap<u64, Arc<Handle>>,
    last: u64,
}

#[derive(Debug)]
struct Node {
    identity: (Identity, Option<Time>),
    metadata: Metadata,
    /// When the metadata was the target's; `None` when it is no more.
    seen: Option<Instant>,
    /// When we last changed something. What was asked before is not good.
    changed: Option<Instant>,
    /// What the kernel's cached pages are of.
    cached: Option<Version>,
    /// How often the kernel has looked it up.
    lookups: u64,
    /// Opens that are under way.
    pins: usize,
    /// Opened at the target, not yet by the kernel.
    pending: Vec<Arc<Handle>>,
    open: Vec<u64>,
}

/// A file's content is the same as long as this is.
#[derive(Debug, Clone, PartialEq)]
struct Version {
    size: u64,
    modified: Option<Time>,
    changed: Option<Time>,
}

impl Version {
    fn of(metadata: &Metadata) -> Self {
        Self {
            size: metadata.size,
            modified: metadata.modification_time,
            changed: metadata.change_time,
        }
    }
}

/// What an open answers: the handle, and whether what is cached is still good.
#[derive(Debug)]
pub(super) struct Opening {
    pub(super) number: u64,
    pub(super) handle: Arc<Handle>,
    pub(super) cache_is_good: bool,
}

/// What is known of a node, and for how long.
#[derive(Debug)]
pub(super) struct Known {
    pub(super) metadata: Metadata,
    pub(super) valid: Duration,
}

impl Nodes {
    /// The node of a file that was opened at the target, and whether the kernel may know older metadata of it. It
    /// stays until [`entered`](Self::entered). `asked` is when the target was asked to open it.
    pub(super) fn enter(
        &self,
        identity: Identity,
        metadata: &Metadata,
        handle: &Arc<Handle>,
        asked: Instant,
    ) -> (u64, bool) {
        let mut table = self.table();
        let key = (identity, metadata.birth_time);
        let number = match table.by_identity.get(&key) {
            Some(number) => *number,
            None => table.new_number(),
        };
        table.by_identity.insert(key, number);
        let Table { nodes, handles, .. } = &mut *table;
        let node = nodes.entry(number).or_insert_with(|| Node {
            identity: key,
            metadata: *metadata,
            seen: None,
            changed: None,
            cached: None,
            lookups: 0,
            pins: 0,
            pending: Vec::new(),
            open: Vec::new(),
        });
        if node.is_news(asked) {
            node.become_known(metadata, asked, handles);
        } else {
            // Something was written meanwhile, and what came along may be from before.
            handle.reading.forget();
        }
        node.pins += 1;
        node.pending.push(Arc::clone(handle));
        (number, node.lookups > 0)
    }

    /// An open has ended, well or not. What the kernel did not take goes, unless it took that of somebody else who opens
    /// the same file: then he gets this one.
    pub(super) fn entered(&self, number: u64, handle: &Arc<Handle>) {
        let mut table = self.table();
        if let Some(node) = table.nodes.get_mut(&number) {
            node.pins -= 1;
            if node.pending.len() > node.pins {
                let pending = &node.pending;
                let own = pending.iter().position(|one| Arc::ptr_eq(one, handle));
                let like_it = || pending.iter().position(|one| one.is_like(handle));
                if let Some(index) = own.or_else(like_it) {
                    node.pending.swap_remove(index);
                }
            }
        }
        table.drop_if_unused(number);
    }

    /// Does something with a file that was just opened, if nobody but the opener can have it: whoever opens it next waits.
    pub(super) fn while_alone(
        &self,
        number: u64,
        handle: &Arc<Handle>,
        act: impl FnOnce(&Metadata),
    ) {
        let table = self.table();
        let Some(node) = table.nodes.get(&number) else {
            return;
        };
        let [only] = node.open.as_slice() else {
            return;
        };
        let is_ours = |known: &Arc<Handle>| Arc::ptr_eq(known, handle);
        if node.pins == 1 && node.lookups == 1 && table.handles.get(only).is_some_and(is_ours) {
            act(&node.metadata);
        }
    }

    /// The kernel has looked a node up.
    pub(super) fn look_up(&self, number: u64) -> Option<Known> {
        let mut table = self.table();
        let node = table.nodes.get_mut(&number)?;
        node.lookups += 1;
        Some(node.known())
    }

    pub(super) fn forget(&self, number: u64, lookups: u64) {
        let mut table = self.table();
        if let Some(node) = table.nodes.get_mut(&number) {
            node.lookups = node.lookups.saturating_sub(lookups);
        }
        table.drop_if_unused(number);
    }

    /// The kernel opens a node. Usually the target was asked before; but a descriptor opened again through `/proc`
    /// comes here at once, and shares what is open.
    pub(super) fn open(&self, number: u64, flags: i32) -> Result<Opening, Errno> {
        let mut table = self.table();
        let handle_number = table.new_number();
        let Table { nodes, handles, .. } = &mut *table;
        let node = nodes.get_mut(&number).ok_or(Errno::ESTALE)?;
        let pending = &node.pending;
        let exactly = pending.iter().position(|handle| handle.is_for(flags));
        let enough = || pending.iter().position(|handle| handle.suits(flags));
        let handle = match exactly.or_else(enough) {
            Some(index) => node.pending.swap_remove(index),
            None => {
                let mut open = node.open.iter().filter_map(|number| handles.get(number));
                let shared = open.find(|handle| handle.suits(flags));
                Arc::new(shared.ok_or(Errno::EACCES)?.opened_again())
            }
        };
        let version = Version::of(&node.metadata);
        let cache_is_good = node.cached.as_ref() == Some(&version);
        node.cached = Some(version);
        node.open.push(handle_number);
        handles.insert(handle_number, Arc::clone(&handle));
        Ok(Opening {
            number: handle_number,
            handle,
            cache_is_good,
        })
    }

    pub(super) fn release(&self, number: u64, handle: u64) {
        let mut table = self.table();
        let released = table.handles.remove(&handle);
        if let Some(node) = table.nodes.get_mut(&number) {
            node.open.retain(|open| *open != handle);
        }
        drop(table);
        drop(released);
    }

    pub(super) fn handle(&self, handle: u64) -> Result<Arc<Handle>, Errno> {
        let found = self.table().handles.get(&handle).cloned();
        found.ok_or(Errno::EBADF)
    }

    /// A handle of a node that can be written through if there is one and it is wanted. Of several the one that was
    /// opened last: those that were open at an agent which has been replaced are good for nothing.
    pub(super) fn any_handle(&self, number: u64, writable: bool) -> Result<Arc<Handle>, Errno> {
        let table = self.table();
        let node = table.nodes.get(&number).ok_or(Errno::ESTALE)?;
        let open = node.open.iter().filter_map(|open| table.handles.get(open));
        let best = open.max_by_key(|handle| {
            let suits = !writable || handle.is_writable();
            (suits, handle.remote.opened)
        });
        best.cloned().ok_or(Errno::ESTALE)
    }

    /// What the agent calls the file that was opened last, of those with this identity.
    pub(super) fn find_handle(&self, is_it: impl Fn(Identity) -> bool) -> Option<u64> {
        let table = self.table();
        let nodes = table.nodes.values().filter(|node| is_it(node.identity.0));
        let open = nodes.flat_map(|node| &node.open);
        let open = open.filter_map(|open| table.handles.get(open));
        open.max_by_key(|handle| handle.remote.opened)
            .map(|handle| handle.remote.number)
    }

    /// What is known without asking.
    pub(super) fn known(&self, number: u64) -> Option<Known> {
        self.table().nodes.get(&number).map(Node::known)
    }

    /// The target told what is there now; `asked` is when it was asked.
    pub(super) fn learn(&self, number: u64, metadata: &Metadata, asked: Instant) {
        let mut table = self.table();
        let Table { nodes, handles, .. } = &mut *table;
        if let Some(node) = nodes.get_mut(&number)
            && node.is_news(asked)
        {
            node.become_known(metadata, asked, handles);
        }
    }

    /// Something was changed through the node: nothing that is known or was read ahead is good any more.
    pub(super) fn changed(&self, number: u64) -> Option<Identity> {
        let mut table = self.table();
        let Table { nodes, handles, .. } = &mut *table;
        let node = nodes.get_mut(&number)?;
        node.seen = None;
        node.changed = Some(Instant::now());
        node.forget_read(handles);
        Some(node.identity.0)
    }

    /// Something was changed by name, and we do not know which nodes that concerns. Gives those that are open.
    pub(super) fn forget_metadata(&self) -> Vec<u64> {
        let mut table = self.table();
        let open = table.nodes.iter_mut();
        let open = open.filter(|(_, node)| !node.open.is_empty());
        open.map(|(number, node)| {
            node.seen = None;
            node.changed = Some(Instant::now());
            *number
        })
        .collect()
    }

    fn table(&self) -> MutexGuard<'_, Table> {
        // Nothing panics while it is locked.
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Table {
    fn new_number(&mut self) -> u64 {
        self.last += 1;
        // The root's number is not given away.
        self.last + super::wire::ROOT
    }

    fn drop_if_unused(&mut self, number: u64) {
        let used = |node: &Node| node.lookups > 0 || node.pins > 0 || !node.open.is_empty();
        if self.nodes.get(&number).is_some_and(|node| !used(node))
            && let Some(node) = self.nodes.remove(&number)
        {
            self.by_identity.remove(&node.identity);
        }
    }
}

impl Node {
    /// Whether an answer tells more than is known: it was asked for after the last one, and after the last change.
    fn is_news(&self, asked: Instant) -> bool {
        self.seen < Some(asked) && self.changed < Some(asked)
    }

    /// What was read ahead, or came with an open, is not good any more.
    fn forget_read(&self, handles: &HashMap<u64, Arc<Handle>>) {
        let open = self.open.iter().filter_map(|open| handles.get(open));
        for handle in open.chain(&self.pending) {
            handle.reading.forget();
        }
    }

    /// What was read ahead of another content must never reach the kernel after the metadata of this one: it would be
    /// cached as if it were new.
    fn become_known(
        &mut self,
        metadata: &Metadata,
        at: Instant,
        handles: &HashMap<u64, Arc<Handle>>,
    ) {
        if Version::of(metadata) != Version::of(&self.metadata) {
            self.forget_read(handles);
        }
        self.metadata = *metadata;
        self.seen = Some(at);
    }

    fn known(&self) -> Known {
        Known {
            metadata: self.metadata,
            valid: self
                .seen
                .map_or(Duration::ZERO, |seen| FRESH.saturating_sub(seen.elapsed())),
        }
    }
}

#[cfg(test)]
mod tests {
    use bytes::Bytes;
    use link::http2::{Client, Windows};
    use protocol::rpc::HelloResponse;

    use super::*;
    use crate::agent::{Agent, Agents, Member};
    use crate::files::calls::Calls;

    const FILE: Identity = (8, 1, 5);

    /// To an agent that never answers.
    async fn calls() -> Calls {
        let (near, _far) = tokio::io::duplex(1024);
        let client = Client::start(near, Windows::default()).await.unwrap();
        let agents = Agents::only(Member::new(client, &HelloResponse::default()));
        Calls::new(Agent::new(agents, Arc::new(|_| {})))
    }

    fn handle(calls: &Calls) -> Arc<Handle> {
        handle_for(calls, 1, libc::O_RDWR)
    }

    fn handle_for(calls: &Calls, number: u64, flags: i32) -> Arc<Handle> {
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
    async fn what_was_asked_before_a_change_is_not_believed_after_it() {
        let (nodes, calls) = (Nodes::default(), calls().await);
        let writer = handle(&calls);
        let (node, _) = nodes.enter(FILE, &metadata(), &writer, Instant::now());
        nodes.open(node, libc::O_RDWR).unwrap();
        assert!(!nodes.known(node).unwrap().valid.is_zero());

        let asked = Instant::now();
        nodes.changed(node);
        let reader = handle(&calls);
        nodes.enter(FILE, &metadata(), &reader, asked);
        assert!(nodes.known(node).unwrap().valid.is_zero());
        assert_eq!(reader.reading.at_hand(0, 3), None);
    }

    #[tokio::test]
    async fn a_change_concerns_what_is_about_to_be_open() {
        let (nodes, calls) = (Nodes::default(), calls().await);
        let reader = handle(&calls);
        let (node, _) = nodes.enter(FILE, &metadata(), &reader, Instant::now());
        assert_eq!(
            reader.reading.at_hand(0, 3),
            Some(Bytes::from_static(b"old"))
        );
        nodes.changed(node);
        assert_eq!(reader.reading.at_hand(0, 3), None);
    }

    #[tokio::test]
    async fn what_was_opened_last_is_asked() {
        let (nodes, calls) = (Nodes::default(), calls().await);
        let open = |number, flags| {
            let handle = handle_for(&calls, number, flags);
            let (node, _) = nodes.enter(FILE, &metadata(), &handle, Instant::now());
            nodes.open(node, flags).unwrap();
            node
        };
        let node = open(1, libc::O_RDWR);
        open(2, libc::O_RDONLY);
        let asked = |writable| nodes.any_handle(node, writable).unwrap().remote.number;
        assert_eq!((asked(false), asked(true)), (2, 1));
        open(3, libc::O_RDWR);
        open(4, libc::O_RDONLY);
        // Opened again through `/proc`, it is as old as it was.
        nodes.open(node, libc::O_RDWR).unwrap();
        assert_eq!((asked(false), asked(true)), (4, 3));
    }

    #[tokio::test]
    async fn who_opens_at_the_same_time_gets_what_another_left() {
        let (nodes, calls) = (Nodes::default(), calls().await);
        let [first, second, writer] = [(1, libc::O_RDONLY), (2, libc::O_RDONLY), (3, libc::O_RDWR)]
            .map(|(number, flags)| handle_for(&calls, number, flags));
        let enter = |handle| nodes.enter(FILE, &metadata(), handle, Instant::now()).0;
        let node = enter(&first);
        for handle in [&writer, &second] {
            assert_eq!(enter(handle), node);
        }
        nodes.look_up(node);
        // The second comes first, takes what is there, and is gone before the others come.
        let opening = nodes.open(node, libc::O_RDONLY).unwrap();
        nodes.entered(node, &second);
        nodes.release(node, opening.number);
        assert!(nodes.open(node, libc::O_RDONLY).is_ok());
        nodes.entered(node, &first);
        assert!(nodes.open(node, libc::O_RDWR).is_ok());
        nodes.entered(node, &writer);
    }
}
