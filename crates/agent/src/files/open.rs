//! Opens a file and returns its metadata and first bytes in one operation.

use std::io::IoSliceMut;
use std::os::fd::AsFd;
use std::sync::atomic::AtomicBool;

use bytes::Bytes;
use protocol::files::MAX_FIRST_BYTES;
use protocol::rpc::{AccessMode, Metadata, OpenRequest, OpenResponse};
use rustix::buffer::spare_capacity;
use rustix::fs::{FileType, Mode, OFlags};
use rustix::io::{Errno, ReadWriteFlags, pread, preadv2};

use super::handles::OpenFile;
use super::metadata;
use super::tree::{Tree, file_access};
use crate::grant::FileAccess;

pub(crate) struct OpenedFile {
    pub(crate) file: OpenFile,
    /// Whether the client gets a handle. It does not if the first bytes are the whole file and the request needs no handle.
    pub(crate) is_kept: bool,
    /// Without a handle.
    pub(crate) response: OpenResponse,
}

/// Which bytes may be read.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum ReadMode {
    All,
    /// Only bytes in the page cache. If the first bytes are not cached, opening fails with `EAGAIN`.
    CachedOnly,
}

pub(crate) fn open(
    tree: Tree<'_>,
    request: &OpenRequest,
    mode: ReadMode,
) -> Result<OpenedFile, Errno> {
    let flags = flags(request);
    let mode_of_new = permissions(request, flags);
    let (descriptor, real_path) = tree.open_with_path(&request.path, flags, mode_of_new)?;
    let metadata = metadata::of(&descriptor)?;
    let limit = request.first_bytes.min(MAX_FIRST_BYTES) as usize;
    let readable = matches!(
        request.access_mode(),
        AccessMode::Read | AccessMode::ReadWrite
    );
    let mut first = FirstBytes::default();
    if readable && limit > 0 && kind(&metadata) == FileType::RegularFile {
        first = match first_bytes(&descriptor, &metadata, limit, mode) {
            Err(Errno::AGAIN | Errno::OPNOTSUPP) if mode == ReadMode::CachedOnly => {
                return Err(Errno::AGAIN);
            }
            // A failure is reported by the client's next read, not by the open.
            first => first.unwrap_or_default(),
        };
    }
    Ok(OpenedFile {
        file: OpenFile {
            path: real_path.map_or_else(|| request.path.clone(), Bytes::from),
            is_writable: file_access(flags) == FileAccess::Write,
            is_path_only: flags.contains(OFlags::PATH),
            descriptor,
            append: request.append,
            is_forbidden: AtomicBool::new(false),
        },
        is_kept: !(first.whole && request.close_if_whole),
        response: OpenResponse {
            handle: 0,
            metadata: Some(metadata),
            first_bytes: first.bytes,
            whole: first.whole,
        },
    })
}

fn flags(request: &OpenRequest) -> OFlags {
    // Opening a FIFO or a device must not block the thread: the client decides whether to wait.
    let mut flags = OFlags::NONBLOCK | OFlags::NOCTTY;
    flags |= match request.access_mode() {
        AccessMode::Read => OFlags::RDONLY,
        AccessMode::Write => OFlags::WRONLY,
        AccessMode::ReadWrite => OFlags::RDWR,
        AccessMode::None => {
            // Other flags are invalid together with this one.
            let mut flags = OFlags::PATH;
            flags.set(OFlags::DIRECTORY, request.directory);
            flags.set(OFlags::NOFOLLOW, request.no_follow);
            return flags;
        }
    };
    flags.set(OFlags::CREATE, request.create);
    flags.set(OFlags::EXCL, request.exclusive);
    flags.set(OFlags::TRUNC, request.truncate);
    flags.set(OFlags::APPEND, request.append);
    flags.set(OFlags::DIRECTORY, request.directory);
    flags.set(OFlags::NOFOLLOW, request.no_follow);
    flags.set(OFlags::NOATIME, request.no_access_time);
    flags.set(OFlags::DSYNC, request.data_sync);
    if request.sync {
        flags |= OFlags::SYNC;
    }
    if request.temporary {
        flags |= OFlags::TMPFILE;
    }
    flags
}

fn permissions(request: &OpenRequest, flags: OFlags) -> Mode {
    // The kernel rejects a mode without these flags.
    if flags.contains(OFlags::CREATE) || flags.contains(OFlags::TMPFILE) {
        Mode::from_raw_mode(request.mode & 0o7777)
    } else {
        Mode::empty()
    }
}

fn kind(metadata: &Metadata) -> FileType {
    FileType::from_raw_mode(metadata.mode)
}

/// Appends to `bytes` and returns the number of bytes read.
fn read_some(
    file: impl AsFd,
    bytes: &mut Vec<u8>,
    offset: u64,
    mode: ReadMode,
) -> Result<usize, Errno> {
    match mode {
        ReadMode::All => pread(file, spare_capacity(bytes), offset),
        ReadMode::CachedOnly => {
            let start = bytes.len();
            bytes.resize(bytes.capacity(), 0);
            let room = bytes.get_mut(start..).unwrap_or_default();
            let flags = ReadWriteFlags::NOWAIT;
            let result = preadv2(file, &mut [IoSliceMut::new(room)], offset, flags);
            bytes.truncate(start + result.unwrap_or_default());
            result
        }
    }
}

#[derive(Default)]
struct FirstBytes {
    bytes: Bytes,
    whole: bool,
}

fn first_bytes(
    file: impl AsFd,
    metadata: &Metadata,
    limit: usize,
    mode: ReadMode,
) -> Result<FirstBytes, Errno> {
    // One byte more than the size detects the end without another read. Virtual files, as in /proc, have the size 0.
    const UNKNOWN_SIZE: usize = 64 * 1024;
    let size = usize::try_from(metadata.size).unwrap_or(usize::MAX);
    let expected = if size == 0 {
        UNKNOWN_SIZE
    } else {
        size.saturating_add(1)
    };
    let mut bytes = Vec::with_capacity(expected.min(limit));
    let mut whole = false;
    while bytes.len() < bytes.capacity().min(limit) {
        let offset = bytes.len() as u64;
        let count = match read_some(&file, &mut bytes, offset, mode) {
            Err(Errno::INTR) => continue,
            count => count?,
        };
        if count == 0 {
            whole = true;
            break;
        }
    }
    // If the file is exactly as long as `limit`, only its size shows that it is complete.
    whole |= size > 0 && bytes.len() == size;
    Ok(FirstBytes {
        bytes: bytes.into(),
        whole,
    })
}
