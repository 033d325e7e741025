//! Operations that cannot block run on the runtime's threads. Switching to a thread with the target's credentials and back
//! would take longer than the operation itself.
//!
//! Three rules ensure that nothing blocks, because an unresponsive file system must not delay other streams:
//!
//! - Paths are resolved only in the kernel's cache (`RESOLVE_CACHED`).
//! - The file is on a local file system. The threads that may block find out which file systems are local.
//! - Bytes are read only from memory (`RWF_NOWAIT`).
//!
//! Otherwise a thread that may block does the whole operation. Nothing is created or changed here.

use std::collections::HashMap;
use std::os::fd::AsFd;
use std::time::{Duration, Instant};

use parking_lot::Mutex;
use protocol::rpc::{AccessRequest, Done, Metadata, OpenRequest, StatResponse};
use rustix::fs::{FileType, fstatfs};
use rustix::io::Errno;

use super::open::{self, OpenedFile, ReadMode};
use super::tree::{FileLocation, ResolvedFile, Tree};
use super::{metadata, operations};
use crate::agent::Agent;
use crate::{Error, Result};

/// How long the properties of a device are cached. Its number may be reused for another device.
const DEVICE_CACHE_TTL: Duration = Duration::from_secs(60);

/// Local disk file systems, by their magic number in `statfs`: ext4, XFS, Btrfs, squashfs, EROFS, F2FS.
const ON_DISK: [i64; 6] = [
    0xef53,
    0x5846_5342,
    0x9123_683e,
    0x7371_7368,
    0xe0f5_e1e2,
    0xf2f5_2010,
];
/// Its lower layers may be of any kind, and opening a file accesses them.
const OVERLAY: i64 = 0x794c_7630;
/// tmpfs and ramfs.
const IN_MEMORY: [i64; 2] = [0x0102_1994, 0x8584_58f6];

/// A cache of devices whose file systems are local.
#[derive(Debug, Default)]
pub(crate) struct LocalDevices(Mutex<HashMap<Device, (NonblockingAccess, Instant)>>);

/// Which operations on a file cannot block.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum NonblockingAccess {
    /// Only reading its metadata.
    Metadata,
    /// Also opening and reading it.
    Bytes(ReadMode),
}

impl NonblockingAccess {
    /// For a file system, by its magic number.
    fn of(kind: i64) -> Option<Self> {
        if ON_DISK.contains(&kind) {
            Some(Self::Bytes(ReadMode::CachedOnly))
        } else if IN_MEMORY.contains(&kind) {
            Some(Self::Bytes(ReadMode::All))
        } else if kind == OVERLAY {
            Some(Self::Metadata)
        } else {
            None
        }
    }

    /// How a file can be opened and read without blocking. `None` if opening may block.
    fn read_mode(self, kind: FileType) -> Option<ReadMode> {
        match (kind, self) {
            (FileType::RegularFile | FileType::Directory, Self::Bytes(reading)) => Some(reading),
            // Opening other types, such as FIFOs and devices, may block or have side effects.
            _ => None,
        }
    }
}

type Device = (u32, u32);

impl LocalDevices {
    /// The cached result. `None` if even reading the metadata may block, or if the device is not cached.
    fn nonblocking_access(&self, metadata: &Metadata) -> Option<NonblockingAccess> {
        let devices = self.0.lock();
        let (access, since) = devices.get(&device(metadata))?;
        (since.elapsed() < DEVICE_CACHE_TTL).then_some(*access)
    }

    /// Adds the file system of a file to the cache. Called on a thread that may block.
    pub(super) fn learn(&self, file: impl AsFd, metadata: &Metadata) {
        if self.nonblocking_access(metadata).is_some() {
            return;
        }
        let Ok(file_system) = fstatfs(file) else {
            return;
        };
        let Some(access) = NonblockingAccess::of(file_system.f_type) else {
            return;
        };
        let mut devices = self.0.lock();
        devices.retain(|_, (_, since)| since.elapsed() < DEVICE_CACHE_TTL);
        devices.insert(device(metadata), (access, Instant::now()));
    }
}

fn device(metadata: &Metadata) -> Device {
    (metadata.device_major, metadata.device_minor)
}

/// `None`: use a thread that may block.
pub(super) fn stat(agent: &Agent, location: &FileLocation) -> Option<Result<StatResponse>> {
    in_cached_tree(agent, |tree| {
        let (_, metadata, _) = find(agent, tree, location)?;
        Ok(StatResponse {
            metadata: Some(metadata),
        })
    })
    .map(|result| result.map_err(Error::operation("stat this file")))
}

/// `None`: use a thread that may block.
pub(super) fn access(
    agent: &Agent,
    location: &FileLocation,
    request: &AccessRequest,
) -> Option<Result<Done>> {
    in_cached_tree(agent, |tree| {
        let (file, _, _) = find(agent, tree, location)?;
        operations::may_access(&file, request)
    })
    .map(|result| result.map_err(Error::operation("access this file")))
}

/// `None`: use a thread that may block.
pub(super) fn open(agent: &Agent, request: &OpenRequest) -> Option<Result<OpenedFile>> {
    let changes = request.create || request.truncate || request.temporary;
    if changes || request.access_mode() == protocol::rpc::AccessMode::None {
        return None;
    }
    let location = FileLocation::Path {
        path: request.path.clone(),
        follow: !request.no_follow,
    };
    in_cached_tree(agent, |tree| {
        let (_, metadata, access) = find(agent, tree, &location)?;
        let mode = access.read_mode(FileType::from_raw_mode(metadata.mode));
        let opened = open::open(tree, request, mode.ok_or(Errno::AGAIN)?)?;
        // The path may lead to another file system since it was found.
        let is_there = opened.response.metadata.as_ref().map(device) == Some(device(&metadata));
        is_there.then_some(opened).ok_or(Errno::AGAIN)
    })
    .map(|result| result.map_err(Error::operation("open this path")))
}

/// A file on a local file system, with its metadata.
fn find<'location>(
    agent: &Agent,
    tree: Tree<'_>,
    location: &'location FileLocation,
) -> Result<(ResolvedFile<'location>, Metadata, NonblockingAccess), Errno> {
    let file = tree.find(location)?;
    let metadata = metadata::of_cached(&file)?;
    match agent.local_devices().nonblocking_access(&metadata) {
        Some(access) => Ok((file, metadata, access)),
        None => Err(Errno::AGAIN),
    }
}

/// Runs `operation` with the target's credentials on this thread. `None` if it would block.
fn in_cached_tree<T>(
    agent: &Agent,
    operation: impl FnOnce(Tree<'_>) -> Result<T, Errno>,
) -> Option<Result<T, Errno>> {
    let target = agent.target();
    let rules = agent.rules();
    let tree = Tree::cached(agent, &rules);
    match target
        .identity
        .run_as(agent.own_identity(), || operation(tree))?
    {
        // `EINVAL` is the error of a kernel without `RESOLVE_CACHED`.
        Err(Errno::AGAIN | Errno::INVAL) => None,
        result => Some(result),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_local_file_systems_are_nonblocking() {
        const NFS: i64 = 0x6969;
        const FUSE: i64 = 0x6573_5546;
        const EXT4: i64 = 0xef53;
        const TMPFS: i64 = 0x0102_1994;
        // Whether reading metadata is nonblocking, and the mode of nonblocking reads.
        for (file_system, metadata, mode) in [
            (EXT4, true, Some(ReadMode::CachedOnly)),
            (TMPFS, true, Some(ReadMode::All)),
            (OVERLAY, true, None),
            (NFS, false, None),
            (FUSE, false, None),
        ] {
            let access = NonblockingAccess::of(file_system);
            assert_eq!(access.is_some(), metadata, "{file_system:x}");
            let opens = |kind| access.and_then(|access| access.read_mode(kind));
            assert_eq!(opens(FileType::RegularFile), mode, "{file_system:x}");
            assert_eq!(opens(FileType::Directory), mode, "{file_system:x}");
            assert_eq!(opens(FileType::Fifo), None, "{file_system:x}");
        }
    }
}
