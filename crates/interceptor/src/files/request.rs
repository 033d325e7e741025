//! Decodes the many system calls about files into common operations.

use std::os::fd::RawFd;

use crate::Errno;
use crate::host::Intent;
use crate::notification::Notification;
use crate::syscalls::Call;

/// A path argument as passed by the caller.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct PathArgument {
    /// The descriptor of the directory for a relative path, or `AT_FDCWD`.
    pub(super) directory: RawFd,
    pub(super) path: Vec<u8>,
    /// Whether a symbolic link at the end is followed.
    pub(super) follow: bool,
    /// Whether an empty path means the directory itself.
    pub(super) empty: bool,
    /// Flags of `openat2` (`RESOLVE_…`).
    pub(super) resolve: u64,
}

impl PathArgument {
    /// Whether the end of the path allows only a directory.
    pub(super) fn wants_directory(&self) -> bool {
        self.path.ends_with(b"/") || matches!(self.last(), b"." | b"..")
    }

    /// The last component, ignoring trailing slashes.
    pub(super) fn last(&self) -> &[u8] {
        let mut names = self.path.rsplit(|byte| *byte == b'/');
        names.find(|name| !name.is_empty()).unwrap_or_default()
    }
}

fn argument(from: &Notification, directory: RawFd, path: usize) -> Result<PathArgument, Errno> {
    Ok(PathArgument {
        directory,
        path: from.read_string(from.argument(path))?,
        follow: false,
        empty: false,
        resolve: 0,
    })
}

/// An operation, with addresses in the memory of the caller for data that is read or written later.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Operation {
    Open {
        flags: i32,
        mode: u32,
        resolve: u64,
    },
    Stat {
        buffer: u64,
    },
    Statx {
        buffer: u64,
    },
    Access {
        mode: i32,
    },
    ReadLink {
        buffer: u64,
        size: u64,
    },
    FileSystem {
        buffer: u64,
    },
    CreateDirectory {
        mode: u32,
    },
    CreateNode {
        mode: u32,
        device: u64,
    },
    RemoveFile,
    RemoveDirectory,
    Rename {
        flags: u32,
    },
    HardLink,
    SymbolicLink {
        content: u64,
    },
    SetMode {
        mode: u32,
    },
    SetOwner {
        user: u32,
        group: u32,
    },
    SetTimes {
        times: u64,
        format: TimeFormat,
    },
    SetLength {
        length: u64,
    },
    SetAttribute {
        name: u64,
        value: u64,
        size: u64,
        flags: i32,
    },
    Attribute {
        name: u64,
        buffer: u64,
        size: u64,
    },
    Attributes {
        buffer: u64,
        size: u64,
    },
    RemoveAttribute {
        name: u64,
    },
    Watch,
    Chdir,
    Chroot,
    /// An operation that only local file systems support.
    Unsupported,
}

/// The layout of timestamps in the memory of the caller.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum TimeFormat {
    /// Two `timespec`, with special values for "now" and "unchanged".
    Nanoseconds,
    /// Two `timeval`.
    Microseconds,
    /// `utimbuf`.
    Seconds,
}

impl Operation {
    pub(super) fn intent(self) -> Intent {
        match self {
            Self::Open { flags, .. } => {
                let writes = libc::O_CREAT | libc::O_TRUNC | libc::O_TMPFILE & !libc::O_DIRECTORY;
                if flags & libc::O_PATH != 0 {
                    Intent::Stat
                } else if flags & libc::O_ACCMODE == libc::O_RDWR
                    && flags & (libc::O_TRUNC | libc::O_EXCL | libc::O_DIRECTORY) == 0
                {
                    Intent::ReadAndWrite
                } else if flags & libc::O_ACCMODE != libc::O_RDONLY || flags & writes != 0 {
                    Intent::Write
                } else {
                    Intent::Read
                }
            }
            Self::Stat { .. }
            | Self::Statx { .. }
            | Self::Access { .. }
            | Self::ReadLink { .. }
            | Self::FileSystem { .. }
            | Self::Attribute { .. }
            | Self::Attributes { .. }
            | Self::Watch
            | Self::Chdir
            | Self::Chroot
            | Self::Unsupported => Intent::Stat,
            _ => Intent::Write,
        }
    }
}

/// A call about one or two paths.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Request {
    pub(super) operation: Operation,
    pub(super) path: PathArgument,
    /// The new path of `rename` and `link`.
    pub(super) second: Option<PathArgument>,
}

const HERE: RawFd = libc::AT_FDCWD;

impl Request {
    /// Decodes a call. Returns `None` for a call that is not about a path, which is left to the kernel.
    pub(super) fn read(call: Call, from: &Notification) -> Result<Option<Self>, Errno> {
        let at_path = |directory: RawFd, path: usize, follow: bool| {
            argument(from, directory, path).map(|path| PathArgument { follow, ..path })
        };
        let here = |path: usize, follow: bool| at_path(HERE, path, follow);
        let at = |follow: bool| at_path(from.int(0), 1, follow);
        let by_flags = |flags: usize| with_flags(from, flags);
        let (path, operation) = match call {
            Call::Open => {
                let operation = open(from.int(1), from.uint(2), 0);
                (here(0, follows(from.int(1)))?, operation)
            }
            Call::Creat => {
                let flags = libc::O_CREAT | libc::O_WRONLY | libc::O_TRUNC;
                (here(0, true)?, open(flags, from.uint(1), 0))
            }
            Call::OpenAt => {
                let operation = open(from.int(2), from.uint(3), 0);
                (at(follows(from.int(2)))?, operation)
            }
            Call::OpenAt2 => {
                let how: libc::open_how = from.read_plain(from.argument(2))?;
                let flags = i32::try_from(how.flags & 0x7fff_ffff).unwrap_or_default();
                let mode = u32::try_from(how.mode).unwrap_or_default();
                let path = PathArgument {
                    resolve: how.resolve,
                    ..at(follows(flags))?
                };
                (path, open(flags, mode, how.resolve))
            }
            Call::Stat => (
                here(0, true)?,
                Operation::Stat {
                    buffer: from.argument(1),
                },
            ),
            Call::Lstat => (
                here(0, false)?,
                Operation::Stat {
                    buffer: from.argument(1),
                },
            ),
            Call::NewFstatAt => {
                let buffer = from.argument(2);
                (by_flags(3)?, Operation::Stat { buffer })
            }
            Call::Statx => {
                let buffer = from.argument(4);
                (by_flags(2)?, Operation::Statx { buffer })
            }
            Call::Access => (here(0, true)?, Operation::Access { mode: from.int(1) }),
            Call::FaccessAt => (at(true)?, Operation::Access { mode: from.int(2) }),
            Call::FaccessAt2 => {
                let mode = from.int(2);
                (by_flags(3)?, Operation::Access { mode })
            }
            Call::Readlink => (here(0, false)?, read_link(from, 1)),
            Call::ReadlinkAt => (at(false)?, read_link(from, 2)),
            Call::Statfs => {
                let buffer = from.argument(1);
                (here(0, true)?, Operation::FileSystem { buffer })
            }
            _ => return Self::read_change(call, from),
        };
        Ok(Some(Self {
            operation,
            path,
            second: None,
        }))
    }

    /// Decodes a call that creates, renames or removes a file.
    fn read_change(call: Call, from: &Notification) -> Result<Option<Self>, Errno> {
        let path = |directory: RawFd, path: usize| argument(from, directory, path);
        let here = || path(HERE, 0);
        let at = || path(from.int(0), 1);
        let mut second = None;
        let (mut path, operation) = match call {
            Call::Mkdir => (here()?, create_directory(from, 1)),
            Call::MkdirAt => (at()?, create_directory(from, 2)),
            Call::Mknod => (here()?, create_node(from, 1)),
            Call::MknodAt => (at()?, create_node(from, 2)),
            Call::Rmdir => (here()?, Operation::RemoveDirectory),
            Call::Unlink => (here()?, Operation::RemoveFile),
            Call::UnlinkAt if from.int(2) & libc::AT_REMOVEDIR != 0 => {
                (at()?, Operation::RemoveDirectory)
            }
            Call::UnlinkAt => (at()?, Operation::RemoveFile),
            Call::Rename => {
                second = Some(path(HERE, 1)?);
                (here()?, Operation::Rename { flags: 0 })
            }
            Call::RenameAt | Call::RenameAt2 => {
                second = Some(path(from.int(2), 3)?);
                let has_flags = call == Call::RenameAt2;
                let flags = if has_flags { from.uint(4) } else { 0 };
                (at()?, Operation::Rename { flags })
            }
            Call::Link => {
                second = Some(path(HERE, 1)?);
                (here()?, Operation::HardLink)
            }
            Call::LinkAt => {
                second = Some(path(from.int(2), 3)?);
                (at()?, Operation::HardLink)
            }
            Call::Symlink => (path(HERE, 1)?, symbolic_link(from)),
            Call::SymlinkAt => (path(from.int(1), 2)?, symbolic_link(from)),
            _ => return Self::read_property(call, from),
        };
        path.follow = call == Call::LinkAt && from.int(4) & libc::AT_SYMLINK_FOLLOW != 0;
        path.empty = call == Call::LinkAt && from.int(4) & libc::AT_EMPTY_PATH != 0;
        Ok(Some(Self {
            operation,
            path,
            second,
        }))
    }

    /// Decodes a call that changes properties of a file, or the working directory.
    fn read_property(call: Call, from: &Notification) -> Result<Option<Self>, Errno> {
        let path = |directory: RawFd, path: usize, follow: bool| {
            argument(from, directory, path).map(|path| PathArgument { follow, ..path })
        };
        let here = |follow: bool| path(HERE, 0, follow);
        let at = |follow: bool| path(from.int(0), 1, follow);
        let by_flags = |flags: usize| with_flags(from, flags);
        let mode = |mode| Operation::SetMode {
            mode: from.uint(mode),
        };
        let owner = |user, group| Operation::SetOwner {
            user: from.uint(user),
            group: from.uint(group),
        };
        let times = |times, format| Operation::SetTimes {
            times: from.argument(times),
            format,
        };
        let (path, operation) = match call {
            Call::Chmod => (here(true)?, mode(1)),
            Call::FchmodAt => (at(true)?, mode(2)),
            Call::FchmodAt2 => (by_flags(3)?, mode(2)),
            Call::Chown => (here(true)?, owner(1, 2)),
            Call::Lchown => (here(false)?, owner(1, 2)),
            Call::FchownAt => (by_flags(4)?, owner(2, 3)),
            Call::Utime => (here(true)?, times(1, TimeFormat::Seconds)),
            Call::Utimes => (here(true)?, times(1, TimeFormat::Microseconds)),
            Call::FutimesAt => (at(true)?, times(2, TimeFormat::Microseconds)),
            Call::UtimensAt => (by_flags(3)?, times(2, TimeFormat::Nanoseconds)),
            Call::Truncate => {
                let length = from.argument(1);
                (here(true)?, Operation::SetLength { length })
            }
            Call::InotifyAddWatch => (path(HERE, 1, true)?, Operation::Watch),
            Call::FanotifyMark => (path(from.int(3), 4, true)?, Operation::Watch),
            Call::Chroot => (here(true)?, Operation::Chroot),
            Call::NameToHandleAt => (
                at(from.int(4) & libc::AT_SYMLINK_FOLLOW != 0)?,
                Operation::Unsupported,
            ),
            Call::FileGetAttributes | Call::FileSetAttributes => {
                (by_flags(4)?, Operation::Unsupported)
            }
            Call::Chdir => (here(true)?, Operation::Chdir),
            _ => return Self::read_attribute(call, from),
        };
        Ok(Some(Self {
            operation,
            path,
            second: None,
        }))
    }

    /// Decodes a call about extended attributes.
    fn read_attribute(call: Call, from: &Notification) -> Result<Option<Self>, Errno> {
        // The calls of Linux 6.13 have a directory and flags before the name, and pass the value in a structure.
        let at = matches!(
            call,
            Call::SetXattrAt | Call::GetXattrAt | Call::ListXattrAt | Call::RemoveXattrAt
        );
        let name = from.argument(if at { 3 } else { 1 });
        let value = |call: Call| match call {
            Call::SetXattrAt | Call::GetXattrAt => Value::read_structure(from),
            _ => Ok(Value {
                address: from.argument(2),
                size: from.argument(3),
                flags: from.int(4),
            }),
        };
        let operation = match call {
            Call::SetXattr | Call::LsetXattr | Call::SetXattrAt => {
                let value = value(call)?;
                Operation::SetAttribute {
                    name,
                    value: value.address,
                    size: value.size,
                    flags: value.flags,
                }
            }
            Call::GetXattr | Call::LgetXattr | Call::GetXattrAt => {
                let value = value(call)?;
                Operation::Attribute {
                    name,
                    buffer: value.address,
                    size: value.size,
                }
            }
            Call::ListXattr | Call::LlistXattr | Call::ListXattrAt => Operation::Attributes {
                buffer: name,
                size: from.argument(if at { 4 } else { 2 }),
            },
            Call::RemoveXattr | Call::LremoveXattr | Call::RemoveXattrAt => {
                Operation::RemoveAttribute { name }
            }
            _ => return Ok(None),
        };
        let path = if at {
            with_flags(from, 2)?
        } else {
            let follow = matches!(
                call,
                Call::SetXattr | Call::GetXattr | Call::ListXattr | Call::RemoveXattr
            );
            PathArgument {
                follow,
                ..argument(from, HERE, 0)?
            }
        };
        Ok(Some(Self {
            operation,
            path,
            second: None,
        }))
    }
}

/// The value of an attribute in the memory of the caller.
struct Value {
    address: u64,
    size: u64,
    flags: i32,
}

impl Value {
    /// `struct xattr_args`: an address, then size and flags of four bytes each.
    fn read_structure(from: &Notification) -> Result<Self, Errno> {
        let at = from.argument(4);
        let word = |offset: u64| from.read_plain::<u32>(at + offset);
        Ok(Self {
            address: u64::from(word(0)?) | u64::from(word(4)?) << 32,
            size: u64::from(word(8)?),
            flags: word(12)?.cast_signed(),
        })
    }
}

/// Reads a directory, a path, and `AT_…` flags.
fn with_flags(from: &Notification, flags: usize) -> Result<PathArgument, Errno> {
    let flags = from.int(flags);
    Ok(PathArgument {
        follow: flags & libc::AT_SYMLINK_NOFOLLOW == 0,
        empty: flags & libc::AT_EMPTY_PATH != 0,
        ..argument(from, from.int(0), 1)?
    })
}

fn follows(flags: i32) -> bool {
    let exclusive = libc::O_CREAT | libc::O_EXCL;
    flags & libc::O_NOFOLLOW == 0 && flags & exclusive != exclusive
}

fn open(flags: i32, mode: u32, resolve: u64) -> Operation {
    Operation::Open {
        flags,
        mode,
        resolve,
    }
}

fn read_link(from: &Notification, buffer: usize) -> Operation {
    Operation::ReadLink {
        buffer: from.argument(buffer),
        size: from.argument(buffer + 1),
    }
}

fn create_node(from: &Notification, mode: usize) -> Operation {
    Operation::CreateNode {
        mode: from.uint(mode),
        device: from.argument(mode + 1),
    }
}

fn create_directory(from: &Notification, mode: usize) -> Operation {
    Operation::CreateDirectory {
        mode: from.uint(mode),
    }
}

fn symbolic_link(from: &Notification) -> Operation {
    Operation::SymbolicLink {
        content: from.argument(0),
    }
}
