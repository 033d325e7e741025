//! Conversion between the types of the interceptor and those of the protocol.

use std::os::unix::ffi::OsStrExt as _;
use std::path::Path;

use bytes::Bytes;
use interceptor::{FileSystemStats, Metadata, OpenOptions, SetTime, Timestamp};
use protocol::rpc::{self, AccessMode, FileRef};

pub(crate) fn bytes(path: &Path) -> Bytes {
    Bytes::copy_from_slice(path.as_os_str().as_bytes())
}

pub(crate) fn file_ref(path: &Path, follow: bool) -> FileRef {
    if follow {
        FileRef::path(bytes(path))
    } else {
        FileRef::path_no_follow(bytes(path))
    }
}

/// `first_bytes` is how much of the content the agent sends with the response.
pub(crate) fn open(path: &Path, options: &OpenOptions, first_bytes: u32) -> rpc::OpenRequest {
    let has = |flag: i32| options.flags & flag == flag;
    let access_mode = match options.flags & libc::O_ACCMODE {
        libc::O_WRONLY => AccessMode::Write,
        libc::O_RDWR => AccessMode::ReadWrite,
        _ => AccessMode::Read,
    };
    let temporary = has(libc::O_TMPFILE);
    rpc::OpenRequest {
        path: bytes(path),
        access_mode: access_mode.into(),
        create: has(libc::O_CREAT),
        exclusive: has(libc::O_EXCL),
        truncate: has(libc::O_TRUNC),
        append: has(libc::O_APPEND),
        // O_TMPFILE includes the bit of O_DIRECTORY.
        directory: has(libc::O_DIRECTORY) && !temporary,
        no_follow: has(libc::O_NOFOLLOW),
        temporary,
        no_access_time: has(libc::O_NOATIME),
        data_sync: has(libc::O_DSYNC),
        sync: has(libc::O_SYNC),
        mode: options.mode,
        first_bytes,
        close_if_whole: false,
    }
}

pub(crate) fn metadata(from: &rpc::Metadata) -> Metadata {
    let timestamp = |time: Option<&rpc::Time>| {
        time.map(|time| Timestamp {
            seconds: time.seconds,
            nanoseconds: time.nanoseconds,
        })
    };
    Metadata {
        device: libc::makedev(from.device_major, from.device_minor),
        inode: from.inode,
        mode: from.mode,
        links: from.links,
        user: from.uid,
        group: from.gid,
        special_device: libc::makedev(from.special_major, from.special_minor),
        size: from.size,
        block_size: from.block_size,
        blocks: from.blocks,
        accessed: timestamp(from.access_time.as_ref()).unwrap_or_default(),
        modified: timestamp(from.modification_time.as_ref()).unwrap_or_default(),
        changed: timestamp(from.change_time.as_ref()).unwrap_or_default(),
        born: timestamp(from.birth_time.as_ref()),
    }
}

pub(crate) fn file_system(from: &rpc::StatFilesystemResponse) -> FileSystemStats {
    let signed = |value: u64| i64::try_from(value).unwrap_or(i64::MAX);
    FileSystemStats {
        kind: from.kind,
        block_size: signed(from.block_size),
        blocks: from.blocks,
        blocks_free: from.blocks_free,
        blocks_available: from.blocks_available,
        files: from.files,
        files_free: from.files_free,
        name_length: signed(from.name_length),
    }
}

pub(crate) fn new_time(time: SetTime) -> Option<rpc::NewTime> {
    match time {
        SetTime::Keep => None,
        SetTime::Now => Some(rpc::NewTime {
            now: true,
            time: None,
        }),
        SetTime::To(timestamp) => Some(rpc::NewTime {
            now: false,
            time: Some(rpc::Time {
                seconds: timestamp.seconds,
                nanoseconds: timestamp.nanoseconds,
            }),
        }),
    }
}

/// Names in the format of `listxattr`: each is terminated by a zero byte.
pub(crate) fn nul_terminated(names: &[Bytes]) -> Vec<u8> {
    let mut text = Vec::new();
    for name in names {
        text.extend_from_slice(name);
        text.push(0);
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn open_flags_are_converted() {
        let request = |flags: i32| {
            let options = OpenOptions {
                flags,
                mode: 0o640,
                resolve: 0,
            };
            open(Path::new("/a"), &options, 0)
        };
        let create = request(libc::O_WRONLY | libc::O_CREAT | libc::O_EXCL | libc::O_APPEND);
        assert!(create.create && create.exclusive && create.append && !create.truncate);
        assert_eq!(create.access_mode(), AccessMode::Write);
        assert_eq!(create.mode, 0o640);
        let unnamed = request(libc::O_RDWR | libc::O_TMPFILE);
        assert!(unnamed.temporary && !unnamed.directory);
        let directory = request(libc::O_DIRECTORY);
        assert!(directory.directory && !directory.temporary);
        // O_SYNC includes the bit of O_DSYNC.
        assert!(request(libc::O_SYNC).sync && !request(libc::O_DSYNC).sync);
    }

    #[test]
    fn xattr_names_are_nul_terminated() {
        let names = [Bytes::from_static(b"user.a"), Bytes::from_static(b"b")];
        assert_eq!(nul_terminated(&names), b"user.a\0b\0");
        assert_eq!(nul_terminated(&[]), b"");
    }
}
