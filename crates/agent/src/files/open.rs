//! Opening: the file, its metadata and its first bytes in one go.

use std::io::IoSliceMut;
use std::os::fd::AsFd;

use bytes::Bytes;
use protocol::files::FIRST_BYTES;
use protocol::rpc::{AccessMode, Metadata, OpenRequest, OpenResponse};
use rustix::buffer::spare_capacity;
use rustix::fs::{FileType, Mode, OFlags};
use rustix::io::{Errno, ReadWriteFlags, pread, preadv2};

use super::handles::OpenFile;
use super::metadata;
use super::tree::{Tree, doing};
use crate::grant::Doing;

pub(crate) struct Opened {
    pub(crate) file: OpenFile,
    /// Not, when the first bytes are all there is and then no handle is wanted.
    pub(crate) is_kept: bool,
    /// Without a handle.
    pub(crate) response: OpenResponse,
}

/// Which bytes are read.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Reading {
    All,
    /// Those in memory. If the first are not, opening fails with `EAGAIN`.
    OnlyCached,
}

pub(crate) fn open(
    tree: Tree<'_>,
    request: &OpenRequest,
    reading: Reading,
) -> Result<Opened, Errno> {
    let flags = flags(request);
    let descriptor = tree.open(&request.path, flags, mode(request, flags))?;
    let metadata = metadata::of(&descriptor)?;
    let wanted = request.first_bytes.min(FIRST_BYTES) as usize;
    let readable = matches!(
        request.access_mode(),
        AccessMode::Read | AccessMode::ReadWrite
    );
    let mut first = FirstBytes::default();
    if readable && wanted > 0 && kind(&metadata) == FileType::RegularFile {
        first = match first_bytes(&descriptor, &metadata, wanted, reading) {
            Err(Errno::AGAIN | Errno::OPNOTSUPP) if reading == Reading::OnlyCached => {
                return Err(Errno::AGAIN);
            }
            // A failure is for the read that the caller will make, not for the open.
            first => first.unwrap_or_default(),
        };
    }
    Ok(Opened {
        file: OpenFile {
            path: request.path.clone(),
            is_writable: doing(flags) == Doing::Changing,
            descriptor,
            append: request.append,
            is_read_only: tree.is_read_only(&request.path),
        },
        is_kept: !(first.whole && request.forget_when_whole),
        response: OpenResponse {
            handle: 0,
            metadata: Some(metadata),
            first_bytes: first.bytes,
            whole: first.whole,
        },
    })
}

fn flags(request: &OpenRequest) -> OFlags {
    // A FIFO or a device must not keep the thread: the caller decides about waiting.
    let mut flags = OFlags::NONBLOCK | OFlags::NOCTTY;
    flags |= match request.access_mode() {
        AccessMode::Read => OFlags::RDONLY,
        AccessMode::Write => OFlags::WRONLY,
        AccessMode::ReadWrite => OFlags::RDWR,
        AccessMode::None => {
            // Nothing else has a meaning together with this one.
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

fn mode(request: &OpenRequest, flags: OFlags) -> Mode {
    // The kernel refuses a mode where it has no meaning.
    if flags.contains(OFlags::CREATE) || flags.contains(OFlags::TMPFILE) {
        Mode::from_raw_mode(request.mode & 0o7777)
    } else {
        Mode::empty()
    }
}

fn kind(metadata: &Metadata) -> FileType {
    FileType::from_raw_mode(metadata.mode)
}

/// Reads behind what is in `bytes`, and answers how much.
fn read_some(
    file: impl AsFd,
    bytes: &mut Vec<u8>,
    offset: u64,
    reading: Reading,
) -> Result<usize, Errno> {
    match reading {
        Reading::All => pread(file, spare_capacity(bytes), offset),
        Reading::OnlyCached => {
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
    wanted: usize,
    reading: Reading,
) -> Result<FirstBytes, Errno> {
    // One byte more than the size shows the end at once. Files that the kernel makes up say that they are empty.
    const UNKNOWN: usize = 64 * 1024;
    let size = usize::try_from(metadata.size).unwrap_or(usize::MAX);
    let expected = if size == 0 {
        UNKNOWN
    } else {
        size.saturating_add(1)
    };
    let mut bytes = Vec::with_capacity(expected.min(wanted));
    let mut whole = false;
    while bytes.len() < bytes.capacity().min(wanted) {
        let offset = bytes.len() as u64;
        let count = match read_some(&file, &mut bytes, offset, reading) {
            Err(Errno::INTR) => continue,
            count => count?,
        };
        if count == 0 {
            whole = true;
            break;
        }
    }
    // A file exactly as long as what was wanted: its size is the only witness.
    whole |= size > 0 && bytes.len() == size;
    Ok(FirstBytes {
        bytes: bytes.into(),
        whole,
    })
}
