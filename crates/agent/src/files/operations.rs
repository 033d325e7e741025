//! The file operations. Each function runs on a thread with the target's credentials.

use bytes::Bytes;
use protocol::rpc::{
    AccessRequest, AllocateRequest, Done, MakeDirectoryRequest, MakeNodeRequest, NewTime,
    ReadLinkResponse, RenameRequest, SeekRequest, SeekResponse, SetTimesRequest,
    StatFilesystemResponse, StatResponse, SymbolicLinkRequest,
};
use rustix::fs::{
    Access, AtFlags, CWD, FallocateFlags, FileType, Gid, Mode, OFlags, RenameFlags, SeekFrom,
    Timespec, Timestamps, UTIME_NOW, UTIME_OMIT, Uid, accessat, chmodat, chownat, fallocate,
    fdatasync, fstatfs, fstatvfs, fsync, ftruncate, linkat, makedev, mkdirat, mknodat, readlinkat,
    renameat_with, seek as lseek, symlinkat, unlinkat, utimensat,
};
use rustix::io::Errno;

use super::handles::OpenFile;
use super::metadata;
use super::nonblocking::LocalDevices;
use super::tree::{FileLocation, ResolvedFile, Tree};
use crate::{Error, Result};

pub(crate) fn stat(
    tree: Tree<'_>,
    location: &FileLocation,
    devices: &LocalDevices,
) -> Result<StatResponse> {
    let describe = || {
        let file = tree.find(location)?;
        let metadata = metadata::of(&file)?;
        devices.learn(&file, &metadata);
        Ok(metadata)
    };
    let metadata: Result<_, Errno> = describe();
    Ok(StatResponse {
        metadata: Some(metadata.map_err(Error::operation("stat this file"))?),
    })
}

pub(crate) fn read_link(tree: Tree<'_>, location: &FileLocation) -> Result<ReadLinkResponse> {
    let target = match location {
        FileLocation::Path { path, .. } => tree
            .find_path(path, false)
            .and_then(|link| readlinkat(&link, c"", Vec::new()))
            // For a descriptor that is not a link, the kernel returns `ENOENT`. For a path it would return `EINVAL`.
            .map_err(|errno| {
                if errno == Errno::NOENT && exists(tree, path) {
                    Errno::INVAL
                } else {
                    errno
                }
            }),
        FileLocation::Open(file) => readlinkat(file, c"", Vec::new()),
    };
    let target = target.map_err(Error::operation("read this symbolic link"))?;
    Ok(ReadLinkResponse {
        target: Bytes::from(target.into_bytes()),
    })
}

fn exists(tree: Tree<'_>, path: &[u8]) -> bool {
    tree.find_path(path, false).is_ok()
}

pub(crate) fn access(
    tree: Tree<'_>,
    location: &FileLocation,
    request: &AccessRequest,
) -> Result<Done> {
    tree.find(location)
        .and_then(|file| may_access(&file, request))
        .map_err(Error::operation("access this file"))
}

pub(super) fn may_access(file: &ResolvedFile<'_>, request: &AccessRequest) -> Result<Done, Errno> {
    let mut access = Access::EXISTS;
    access.set(Access::READ_OK, request.read);
    access.set(Access::WRITE_OK, request.write);
    access.set(Access::EXEC_OK, request.execute);
    // The effective credentials are those that this thread has assumed.
    accessat(CWD, file.as_path(), access, AtFlags::EACCESS).map(done)
}

pub(crate) fn stat_filesystem(
    tree: Tree<'_>,
    location: &FileLocation,
) -> Result<StatFilesystemResponse> {
    let found = tree.find(location);
    let both = found.and_then(|file| Ok((fstatfs(&file)?, fstatvfs(&file)?)));
    let (kind, stats) = both.map_err(Error::operation("stat this file system"))?;
    Ok(StatFilesystemResponse {
        kind: kind.f_type,
        block_size: stats.f_bsize,
        blocks: stats.f_blocks,
        blocks_free: stats.f_bfree,
        blocks_available: stats.f_bavail,
        files: stats.f_files,
        files_free: stats.f_ffree,
        name_length: stats.f_namemax,
        fragment_size: stats.f_frsize,
        flags: stats.f_flag.bits(),
        id: stats.f_fsid,
    })
}

pub(crate) fn make_directory(tree: Tree<'_>, request: &MakeDirectoryRequest) -> Result<Done> {
    let mode = Mode::from_raw_mode(request.mode & 0o7777);
    tree.entry_to_change(&request.path)
        .and_then(|entry| mkdirat(&entry.directory, entry.name, mode))
        .map_err(Error::operation("create this directory"))
        .map(done)
}

pub(crate) fn make_node(tree: Tree<'_>, request: &MakeNodeRequest) -> Result<Done> {
    let kind = match FileType::from_raw_mode(request.mode) {
        // Without a file type, it is a regular file.
        FileType::Unknown if request.mode & 0o170_000 == 0 => FileType::RegularFile,
        kind => kind,
    };
    let mode = Mode::from_raw_mode(request.mode & 0o7777);
    let device = makedev(request.special_major, request.special_minor);
    tree.entry_to_change(&request.path)
        .and_then(|entry| mknodat(&entry.directory, entry.name, kind, mode, device))
        .map_err(Error::operation("create this file"))
        .map(done)
}

pub(crate) fn remove_directory(tree: Tree<'_>, path: &[u8]) -> Result<Done> {
    tree.entry_to_change(path)
        .and_then(|entry| unlinkat(&entry.directory, entry.name, AtFlags::REMOVEDIR))
        .map_err(Error::operation("remove this directory"))
        .map(done)
}

pub(crate) fn unlink(tree: Tree<'_>, path: &[u8]) -> Result<Done> {
    tree.entry_to_change(path)
        .and_then(|entry| unlinkat(&entry.directory, entry.name, AtFlags::empty()))
        .map_err(Error::operation("unlink this file"))
        .map(done)
}

pub(crate) fn rename(tree: Tree<'_>, request: &RenameRequest) -> Result<Done> {
    let mut flags = RenameFlags::empty();
    flags.set(RenameFlags::NOREPLACE, request.no_replace);
    flags.set(RenameFlags::EXCHANGE, request.exchange);
    let rename = || {
        let from = tree.entry_to_change(&request.from)?;
        let to = tree.entry_to_change(&request.to)?;
        tree.allow_move(&from, &to)?;
        if request.exchange {
            tree.allow_move(&to, &from)?;
        }
        renameat_with(&from.directory, from.name, &to.directory, to.name, flags)
    };
    rename()
        .map_err(Error::operation("rename this file"))
        .map(done)
}

pub(crate) fn link(tree: Tree<'_>, from: &FileLocation, to: &[u8]) -> Result<Done> {
    let link = || {
        // Treated as a change, because a second name would bypass the rules for the first.
        let from = tree.find_to_change(from)?;
        let to = tree.entry_to_change(to)?;
        linkat(
            CWD,
            from.as_path(),
            &to.directory,
            to.name,
            AtFlags::SYMLINK_FOLLOW,
        )
    };
    link().map_err(Error::operation("link this file")).map(done)
}

pub(crate) fn symbolic_link(tree: Tree<'_>, request: &SymbolicLinkRequest) -> Result<Done> {
    tree.entry_to_change(&request.path)
        .and_then(|entry| symlinkat(&*request.target, &entry.directory, entry.name))
        .map_err(Error::operation("create this symbolic link"))
        .map(done)
}

pub(crate) fn set_mode(tree: Tree<'_>, location: &FileLocation, mode: u32) -> Result<Done> {
    let mode = Mode::from_raw_mode(mode & 0o7777);
    tree.find_to_change(location)
        .and_then(|file| chmodat(CWD, file.as_path(), mode, AtFlags::empty()))
        .map_err(Error::operation("change the mode of this file"))
        .map(done)
}

pub(crate) fn set_owner(
    tree: Tree<'_>,
    location: &FileLocation,
    uid: Option<u32>,
    gid: Option<u32>,
) -> Result<Done> {
    // The maximum number means "unchanged" and is not a valid id.
    let uid = uid.filter(|uid| *uid != u32::MAX).map(Uid::from_raw);
    let gid = gid.filter(|gid| *gid != u32::MAX).map(Gid::from_raw);
    tree.find_to_change(location)
        .and_then(|file| chownat(CWD, file.as_path(), uid, gid, AtFlags::empty()))
        .map_err(Error::operation("change the owner of this file"))
        .map(done)
}

pub(crate) fn set_times(
    tree: Tree<'_>,
    location: &FileLocation,
    request: &SetTimesRequest,
) -> Result<Done> {
    let times = Timestamps {
        last_access: new_time(request.access_time.as_ref()),
        last_modification: new_time(request.modification_time.as_ref()),
    };
    tree.find_to_change(location)
        .and_then(|file| utimensat(CWD, file.as_path(), &times, AtFlags::empty()))
        .map_err(Error::operation("change the times of this file"))
        .map(done)
}

fn new_time(new: Option<&NewTime>) -> Timespec {
    let special = |tv_nsec| Timespec { tv_sec: 0, tv_nsec };
    match new {
        Some(NewTime { now: true, .. }) => special(UTIME_NOW),
        Some(NewTime {
            time: Some(time), ..
        }) => Timespec {
            tv_sec: time.seconds,
            // Larger numbers have special meanings and must not be passed as a time.
            tv_nsec: time.nanoseconds.min(999_999_999).into(),
        },
        _ => special(UTIME_OMIT),
    }
}

pub(crate) fn truncate(tree: Tree<'_>, location: &FileLocation, size: u64) -> Result<Done> {
    let truncated = match location {
        FileLocation::Path { path, .. } => tree
            .open(path, OFlags::WRONLY | OFlags::NONBLOCK, Mode::empty())
            .and_then(|file| ftruncate(file, size)),
        FileLocation::Open(file) => file.require_allowed().and_then(|()| ftruncate(file, size)),
    };
    truncated
        .map_err(Error::operation("truncate this file"))
        .map(done)
}

pub(crate) fn allocate(file: &OpenFile, request: &AllocateRequest) -> Result<Done> {
    let mut flags = FallocateFlags::empty();
    flags.set(FallocateFlags::KEEP_SIZE, request.keep_size);
    flags.set(FallocateFlags::PUNCH_HOLE, request.punch_hole);
    flags.set(FallocateFlags::ZERO_RANGE, request.zero_range);
    file.require_allowed()
        .and_then(|()| fallocate(file, flags, request.offset, request.length))
        .map_err(Error::operation("allocate space for this file"))
        .map(done)
}

pub(crate) fn sync(file: &OpenFile, data_only: bool) -> Result<Done> {
    let synced = if data_only {
        fdatasync(file)
    } else {
        fsync(file)
    };
    synced.map_err(Error::operation("sync this file")).map(done)
}

pub(crate) fn seek(file: &OpenFile, request: &SeekRequest) -> Result<SeekResponse> {
    let to = if request.hole {
        SeekFrom::Hole(request.offset)
    } else {
        SeekFrom::Data(request.offset)
    };
    let offset = lseek(file, to).map_err(Error::operation("seek in this file"))?;
    Ok(SeekResponse { offset })
}

pub(crate) fn done((): ()) -> Done {
    Done {}
}
