//! File metadata, and conversions to and from the structures of the kernel.

use crate::sys::memory::zeroed;

/// Seconds and nanoseconds since 1970.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Timestamp {
    pub seconds: i64,
    pub nanoseconds: u32,
}

/// The result of `stat`.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Metadata {
    /// The device number that the application sees.
    pub device: u64,
    pub inode: u64,
    /// Type and permissions, as in `st_mode`.
    pub mode: u32,
    pub links: u32,
    pub user: u32,
    pub group: u32,
    /// The device of a device file.
    pub special_device: u64,
    pub size: u64,
    pub block_size: u32,
    /// In units of 512 bytes.
    pub blocks: u64,
    pub accessed: Timestamp,
    pub modified: Timestamp,
    pub changed: Timestamp,
    pub born: Option<Timestamp>,
}

/// The result of `statfs`.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct FileSystemStats {
    /// The type of the file system, as numbered by the kernel.
    pub kind: i64,
    pub block_size: i64,
    pub blocks: u64,
    pub blocks_free: u64,
    pub blocks_available: u64,
    pub files: u64,
    pub files_free: u64,
    pub name_length: i64,
}

/// A change of a timestamp.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum SetTime {
    Now,
    To(Timestamp),
    Keep,
}

/// The timestamps that `utimensat` sets.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Times {
    pub accessed: SetTime,
    pub modified: SetTime,
}

impl From<libc::statx> for Metadata {
    fn from(from: libc::statx) -> Self {
        let timestamp = |time: libc::statx_timestamp| Timestamp {
            seconds: time.tv_sec,
            nanoseconds: time.tv_nsec,
        };
        Self {
            device: libc::makedev(from.stx_dev_major, from.stx_dev_minor),
            inode: from.stx_ino,
            mode: u32::from(from.stx_mode),
            links: from.stx_nlink,
            user: from.stx_uid,
            group: from.stx_gid,
            special_device: libc::makedev(from.stx_rdev_major, from.stx_rdev_minor),
            size: from.stx_size,
            block_size: from.stx_blksize,
            blocks: from.stx_blocks,
            accessed: timestamp(from.stx_atime),
            modified: timestamp(from.stx_mtime),
            changed: timestamp(from.stx_ctime),
            born: (from.stx_mask & libc::STATX_BTIME != 0).then(|| timestamp(from.stx_btime)),
        }
    }
}

#[expect(
    clippy::cast_possible_wrap,
    reason = "the kernel's structure has signed fields for what it counts without sign"
)]
impl From<&Metadata> for libc::stat {
    fn from(from: &Metadata) -> Self {
        let mut to: Self = zeroed();
        to.st_dev = from.device;
        to.st_ino = from.inode;
        to.st_mode = from.mode;
        to.st_nlink = from.links.into();
        to.st_uid = from.user;
        to.st_gid = from.group;
        to.st_rdev = from.special_device;
        to.st_size = from.size as i64;
        to.st_blksize = from.block_size as _;
        to.st_blocks = from.blocks as i64;
        to.st_atime = from.accessed.seconds;
        to.st_atime_nsec = from.accessed.nanoseconds.into();
        to.st_mtime = from.modified.seconds;
        to.st_mtime_nsec = from.modified.nanoseconds.into();
        to.st_ctime = from.changed.seconds;
        to.st_ctime_nsec = from.changed.nanoseconds.into();
        to
    }
}

impl From<&Metadata> for libc::statx {
    fn from(from: &Metadata) -> Self {
        let timestamp = |time: Timestamp| {
            // The structure has private padding, so it is copied from a zeroed one.
            let mut stamp = zeroed::<libc::statx>().stx_atime;
            stamp.tv_sec = time.seconds;
            stamp.tv_nsec = time.nanoseconds;
            stamp
        };
        let mut to: Self = zeroed();
        to.stx_mask = libc::STATX_BASIC_STATS;
        to.stx_blksize = from.block_size;
        to.stx_nlink = from.links;
        to.stx_uid = from.user;
        to.stx_gid = from.group;
        to.stx_mode = u16::try_from(from.mode & 0xffff).unwrap_or_default();
        to.stx_ino = from.inode;
        to.stx_size = from.size;
        to.stx_blocks = from.blocks;
        to.stx_atime = timestamp(from.accessed);
        to.stx_mtime = timestamp(from.modified);
        to.stx_ctime = timestamp(from.changed);
        if let Some(born) = from.born {
            to.stx_mask |= libc::STATX_BTIME;
            to.stx_btime = timestamp(born);
        }
        to.stx_dev_major = libc::major(from.device);
        to.stx_dev_minor = libc::minor(from.device);
        to.stx_rdev_major = libc::major(from.special_device);
        to.stx_rdev_minor = libc::minor(from.special_device);
        to
    }
}

impl From<libc::statfs> for FileSystemStats {
    fn from(from: libc::statfs) -> Self {
        Self {
            kind: from.f_type as _,
            block_size: from.f_bsize as _,
            blocks: from.f_blocks,
            blocks_free: from.f_bfree,
            blocks_available: from.f_bavail,
            files: from.f_files,
            files_free: from.f_ffree,
            name_length: from.f_namelen as _,
        }
    }
}

impl From<&FileSystemStats> for libc::statfs {
    fn from(from: &FileSystemStats) -> Self {
        let mut to: Self = zeroed();
        to.f_type = from.kind as _;
        to.f_bsize = from.block_size as _;
        to.f_frsize = from.block_size as _;
        to.f_blocks = from.blocks;
        to.f_bfree = from.blocks_free;
        to.f_bavail = from.blocks_available;
        to.f_files = from.files;
        to.f_ffree = from.files_free;
        to.f_namelen = from.name_length as _;
        to
    }
}
