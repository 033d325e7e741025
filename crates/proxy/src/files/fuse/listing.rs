//! Directories. A listing is asked for when reading begins, also when it begins again, and kept: positions in it stay
//! what they were.

use std::os::unix::ffi::OsStrExt as _;
use std::sync::Arc;

use interceptor::Errno;
use protocol::rpc::{Entry, Metadata};

use super::Shared;
use super::channel::Reply;
use super::handle::Handle;
use super::wire;

pub(super) fn answer(
    shared: &Arc<Shared>,
    reply: Reply,
    node: u64,
    handle: Arc<Handle>,
    offset: u64,
    room: usize,
) {
    let directory = shared.nodes.known(node).map(|known| known.metadata);
    let directory = directory.unwrap_or_default();
    if offset > 0
        && let Some(entries) = handle.listing()
    {
        return reply.send(Ok(some(shared, &directory, &entries, offset, room)));
    }
    let shared = Arc::clone(shared);
    shared.calls.clone().spawn(async move {
        let listed: Result<_, Errno> = async {
            let entries = Arc::new(shared.calls.list(handle.place()).await?);
            handle.set_listing(Arc::clone(&entries));
            Ok(some(&shared, &directory, &entries, offset, room))
        }
        .await;
        reply.send(listed);
    });
}

/// As many names as there is room for. The position of a name is the number of those up to it.
fn some(
    shared: &Shared,
    directory: &Metadata,
    entries: &[Entry],
    offset: u64,
    room: usize,
) -> Vec<u8> {
    let number = |inode: u64| {
        let device = (directory.device_major, directory.device_minor);
        shared.inodes.number((device.0, device.1, inode))
    };
    let itself = number(directory.inode);
    let dots =
        [".", ".."].map(|name| (std::ffi::OsStr::new(name).as_bytes(), itself, libc::S_IFDIR));
    let names = entries
        .iter()
        .map(|entry| (&*entry.name, number(entry.inode), entry.kind));
    let mut listing = Vec::with_capacity(room);
    let skipped = usize::try_from(offset).unwrap_or(usize::MAX);
    for (position, (name, inode, kind)) in dots.into_iter().chain(names).enumerate().skip(skipped) {
        // The kernel wants the kind as `getdents` tells it.
        let kind = (kind & libc::S_IFMT) >> 12;
        let next = position as u64 + 1;
        if !wire::add_name(&mut listing, room, (name, inode, kind), next) {
            break;
        }
    }
    listing
}
