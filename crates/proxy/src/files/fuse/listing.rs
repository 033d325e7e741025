//! Directory listings. A listing is requested when reading starts at offset zero, and then kept, so that offsets stay
//! valid.

use std::os::unix::ffi::OsStrExt as _;
use std::sync::Arc;

use interceptor::Errno;
use protocol::rpc::{Entry, Metadata};

use super::Shared;
use super::channel::Reply;
use super::handle::Handle;
use super::wire;

pub(super) fn read(
    shared: &Arc<Shared>,
    reply: Reply,
    node: u64,
    handle: Arc<Handle>,
    offset: u64,
    max_bytes: usize,
) {
    let directory = shared.nodes.cached(node).map(|cached| cached.metadata);
    let directory = directory.unwrap_or_default();
    if offset > 0
        && let Some(entries) = handle.listing()
    {
        return reply.send(Ok(encode_entries(
            shared, &directory, &entries, offset, max_bytes,
        )));
    }
    let shared = Arc::clone(shared);
    shared.calls.clone().spawn(async move {
        let listed: Result<_, Errno> = async {
            let entries = Arc::new(shared.calls.list(handle.file_ref()).await?);
            handle.set_listing(Arc::clone(&entries));
            Ok(encode_entries(
                &shared, &directory, &entries, offset, max_bytes,
            ))
        }
        .await;
        reply.send(listed);
    });
}

/// As many entries as fit into `max_bytes`. The offset of an entry is the number of entries up to and including it.
fn encode_entries(
    shared: &Shared,
    directory: &Metadata,
    entries: &[Entry],
    offset: u64,
    max_bytes: usize,
) -> Vec<u8> {
    let number = |inode: u64| {
        let device = (directory.device_major, directory.device_minor);
        shared.inodes.number((device.0, device.1, inode))
    };
    let own_inode = number(directory.inode);
    let dots = [".", ".."].map(|name| {
        (
            std::ffi::OsStr::new(name).as_bytes(),
            own_inode,
            libc::S_IFDIR,
        )
    });
    let entries = entries
        .iter()
        .map(|entry| (&*entry.name, number(entry.inode), entry.kind));
    let mut listing = Vec::with_capacity(max_bytes);
    let skipped = usize::try_from(offset).unwrap_or(usize::MAX);
    for (position, (name, inode, kind)) in dots.into_iter().chain(entries).enumerate().skip(skipped)
    {
        // The kernel expects the file type as in `getdents` (`DT_*`).
        let kind = (kind & libc::S_IFMT) >> 12;
        let next = position as u64 + 1;
        if !wire::push_entry(&mut listing, max_bytes, (name, inode, kind), next) {
            break;
        }
    }
    listing
}
