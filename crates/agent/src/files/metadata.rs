//! Converts the result of `statx` to messages.

use std::os::fd::AsFd;

use protocol::rpc::{Metadata, Time};
use rustix::fs::{AtFlags, Statx, StatxFlags, StatxTimestamp, statx};
use rustix::io::Errno;
use rustix::path::Arg;

const FIELDS: StatxFlags = StatxFlags::BASIC_STATS
    .union(StatxFlags::BTIME)
    .union(StatxFlags::MNT_ID);

/// The metadata of an open or resolved file.
pub(crate) fn of(file: impl AsFd) -> Result<Metadata, Errno> {
    statx(file, c"", AtFlags::EMPTY_PATH, FIELDS).map(|statx| message(&statx))
}

/// The cached metadata, without synchronizing it with a file server.
pub(crate) fn of_cached(file: impl AsFd) -> Result<Metadata, Errno> {
    let flags = AtFlags::EMPTY_PATH | AtFlags::STATX_DONT_SYNC;
    statx(file, c"", flags, FIELDS).map(|statx| message(&statx))
}

/// The metadata of a directory entry. A symbolic link is not followed.
pub(crate) fn of_entry(directory: impl AsFd, name: impl Arg) -> Result<Metadata, Errno> {
    statx(directory, name, AtFlags::SYMLINK_NOFOLLOW, FIELDS).map(|statx| message(&statx))
}

fn message(statx: &Statx) -> Metadata {
    let has = |flag: StatxFlags| statx.stx_mask & flag.bits() != 0;
    Metadata {
        mode: statx.stx_mode.into(),
        size: statx.stx_size,
        uid: statx.stx_uid,
        gid: statx.stx_gid,
        inode: statx.stx_ino,
        links: statx.stx_nlink,
        blocks: statx.stx_blocks,
        block_size: statx.stx_blksize,
        access_time: Some(time(&statx.stx_atime)),
        modification_time: Some(time(&statx.stx_mtime)),
        change_time: Some(time(&statx.stx_ctime)),
        birth_time: has(StatxFlags::BTIME).then(|| time(&statx.stx_btime)),
        device_major: statx.stx_dev_major,
        device_minor: statx.stx_dev_minor,
        special_major: statx.stx_rdev_major,
        special_minor: statx.stx_rdev_minor,
        attributes: statx.stx_attributes.bits(),
        attributes_mask: statx.stx_attributes_mask.bits(),
        mount_id: if has(StatxFlags::MNT_ID) {
            statx.stx_mnt_id
        } else {
            0
        },
    }
}

fn time(stamp: &StatxTimestamp) -> Time {
    Time {
        seconds: stamp.tv_sec,
        nanoseconds: stamp.tv_nsec,
    }
}
