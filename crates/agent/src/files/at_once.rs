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

impl Promise {
    /// That of a file system, by its number.
    fn of(kind: i64) -> Option<Self> {
        if ON_DISK.contains(&kind) {
            Some(Self::Bytes(Reading::OnlyCached))
        } else if IN_MEMORY.contains(&kind) {
            Some(Self::Bytes(Reading::All))
        } else if kind == OVERLAY {
            Some(Self::Metadata)
        } else {
            None
        }
    }

    /// How a file can be opened and read without waiting. `None` if not even the first.
    fn opening(self, kind: FileType) -> Option<Reading> {
        match (kind, self) {
            (FileType::RegularFile | FileType::Directory, Self::Bytes(reading)) => Some(reading),
            // Opening any other may do anything.
            _ => None,
        }
    }
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
        let Some(promise) = Promise::of(about.f_type) else {
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
        let reading = promise.opening(FileType::from_raw_mode(metadata.mode));
        open::open(tree, request, reading.ok_or(Errno::AGAIN)?)
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_what_never_waits_is_opened_at_once() {
        const NFS: i64 = 0x6969;
        const FUSE: i64 = 0x6573_5546;
        const EXT4: i64 = 0xef53;
        const TMPFS: i64 = 0x0102_1994;
        // Whether metadata is told at once, and how a file is opened and read at once.
        for (file_system, metadata, opening) in [
            (EXT4, true, Some(Reading::OnlyCached)),
            (TMPFS, true, Some(Reading::All)),
            (OVERLAY, true, None),
            (NFS, false, None),
            (FUSE, false, None),
        ] {
            let promise = Promise::of(file_system);
            assert_eq!(promise.is_some(), metadata, "{file_system:x}");
            let opens = |kind| promise.and_then(|promise| promise.opening(kind));
            assert_eq!(opens(FileType::RegularFile), opening, "{file_system:x}");
            assert_eq!(opens(FileType::Directory), opening, "{file_system:x}");
            assert_eq!(opens(FileType::Fifo), None, "{file_system:x}");
        }
    }
}
