//! What can be told without waiting is told by the thread of the runtime that was asked. A change to a thread with the target's
//! identity and back would take longer than the operation itself.
//!
//! Three things make sure that nothing waits, because a file system that does not answer must hold up nobody else:
//!
//! - Paths are resolved only in the kernel's cache (`RESOLVE_CACHED`).
//! - The file is on a file system of this machine. Which those are is found out by the threads that may wait.
//! - Bytes are read only from memory (`RWF_NOWAIT`).
//!
//! Whatever is not so is done by such a thread, as if nobody had tried. Nothing is created or changed here.

use std::collections::HashMap;
use std::os::fd::AsFd;
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use protocol::rpc::{AccessRequest, Done, Metadata, OpenRequest, StatResponse};
use rustix::fs::{FileType, fstatfs};
use rustix::io::Errno;

use super::open::{self, Opened, Reading};
use super::tree::{Found, Located, Tree};
use super::{metadata, operations};
use crate::agent::Agent;
use crate::{Error, Result};

/// For so long is a device taken for what it was: its number may come to mean another one.
const KNOWN: Duration = Duration::from_secs(60);

/// File systems that are no more than their disk, by the number that `statfs` tells: ext4, XFS, Btrfs, squashfs, EROFS, F2FS.
const ON_DISK: [i64; 6] = [
    0xef53,
    0x5846_5342,
    0x9123_683e,
    0x7371_7368,
    0xe0f5_e1e2,
    0xf2f5_2010,
];
/// What lies below it may be anything, and is asked when a file is opened.
const OVERLAY: i64 = 0x794c_7630;
/// tmpfs and ramfs.
const IN_MEMORY: [i64; 2] = [0x0102_1994, 0x8584_58f6];

/// Devices whose file systems never wait for anybody else.
#[derive(Debug, Default)]
pub(crate) struct LocalDevices(Mutex<HashMap<Device, (Promise, Instant)>>);

/// What can be had of a file without waiting.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Promise {
    /// Its metadata alone.
    Metadata,
    /// Its bytes, too.
    Bytes(Reading),
}

type Device = (u32, u32);

impl LocalDevices {
    /// None if even its metadata may be long in coming.
    fn promise(&self, metadata: &Metadata) -> Option<Promise> {
        let known = self.lock();
        let (promise, since) = known.get(&device(metadata))?;
        (since.elapsed() < KNOWN).then_some(*promise)
    }

    /// Looks at the file system of a file, on a thread that may wait.
    pub(super) fn learn(&self, file: impl AsFd, metadata: &Metadata) {
        if self.promise(metadata).is_some() {
            return;
        }
        let Ok(about) = fstatfs(file) else { return };
        let kind = about.f_type;
        let promise = if ON_DISK.contains(&kind) {
            Promise::Bytes(Reading::OnlyCached)
        } else if IN_MEMORY.contains(&kind) {
            Promise::Bytes(Reading::All)
        } else if kind == OVERLAY {
            Promise::Metadata
        } else {
            return;
        };
        let mut known = self.lock();
        known.retain(|_, (_, since)| since.elapsed() < KNOWN);
        known.insert(device(metadata), (promise, Instant::now()));
    }

    fn lock(&self) -> MutexGuard<'_, HashMap<Device, (Promise, Instant)>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

fn device(metadata: &Metadata) -> Device {
    (metadata.device_major, metadata.device_minor)
}

/// `None`: ask a thread that may wait.
pub(super) fn stat(agent: &Agent, place: &Located) -> Option<Result<StatResponse>> {
    in_cached_tree(agent, |tree| {
        let (_, metadata, _) = find(agent, tree, place)?;
        Ok(StatResponse {
            metadata: Some(metadata),
        })
    })
    .map(|result| result.map_err(Error::operation("stat this file")))
}

/// `None`: ask a thread that may wait.
pub(super) fn access(
    agent: &Agent,
    place: &Located,
    wanted: &AccessRequest,
) -> Option<Result<Done>> {
    in_cached_tree(agent, |tree| {
        let (file, _, _) = find(agent, tree, place)?;
        operations::may_access(&file, wanted)
    })
    .map(|result| result.map_err(Error::operation("access this file")))
}

/// `None`: ask a thread that may wait.
pub(super) fn open(agent: &Agent, request: &OpenRequest) -> Option<Result<Opened>> {
    let changes = request.create || request.truncate || request.temporary;
    if changes || request.access_mode() == protocol::rpc::AccessMode::None {
        return None;
    }
    let place = Located::Path {
        path: request.path.clone(),
        follow: !request.no_follow,
    };
    in_cached_tree(agent, |tree| {
        let (_, metadata, promise) = find(agent, tree, &place)?;
        match (FileType::from_raw_mode(metadata.mode), promise) {
            (FileType::RegularFile | FileType::Directory, Promise::Bytes(reading)) => {
                open::open(tree, request, reading)
            }
            // Opening any other may do anything.
            _ => Err(Errno::AGAIN),
        }
    })
    .map(|result| result.map_err(Error::operation("open this path")))
}

/// A file of which the metadata is known here.
fn find<'place>(
    agent: &Agent,
    tree: Tree<'_>,
    place: &'place Located,
) -> Result<(Found<'place>, Metadata, Promise), Errno> {
    let file = tree.find(place)?;
    let metadata = metadata::as_known(&file)?;
    match agent.local_devices().promise(&metadata) {
        Some(promise) => Ok((file, metadata, promise)),
        None => Err(Errno::AGAIN),
    }
}

/// Does something as the target, here and now. `None` if that would mean to wait.
fn in_cached_tree<T>(
    agent: &Agent,
    operation: impl FnOnce(Tree<'_>) -> Result<T, Errno>,
) -> Option<Result<T, Errno>> {
    let target = agent.target();
    let rules = agent.rules();
    let tree = Tree::cached(agent, &rules);
    match target
        .identity
        .act(agent.own_identity(), || operation(tree))?
    {
        // The second is what a kernel says that cannot look into its cache only.
        Err(Errno::AGAIN | Errno::INVAL) => None,
        result => Some(result),
    }
}
