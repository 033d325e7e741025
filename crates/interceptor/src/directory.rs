//! A local directory as [`RemoteFiles`]: for a target whose files are mounted here, and for tests.

use std::ffi::{CString, OsStr};
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd};
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};

use nix::fcntl::AtFlags;
use nix::sys::stat::{Mode, SFlag, UtimensatFlags};
use nix::sys::time::TimeSpec;
use nix::unistd::{Gid, LinkatFlags, Uid, UnlinkatFlags};
use rustix::fs::{RenameFlags, renameat_with};

use crate::host::{CallResult, OpenOptions, RemoteFiles};
use crate::metadata::{FileSystemStats, Metadata, SetTime, Times};
use crate::notification::PATH_MAX;
use crate::sys::files;
use crate::{Errno, Error};

/// A directory that is the root of all paths: symbolic links and `..` in it never lead out of it.
#[derive(Debug)]
pub struct Directory {
    root: OwnedFd,
    resolve: u64,
}

impl Directory {
    /// # Errors
    /// When the directory does not exist.
    pub fn open(path: &Path) -> Result<Self, Error> {
        let text = c_path(path).map_err(|source| Error::Directory {
            directory: path.to_path_buf(),
            source,
        })?;
        let flags = libc::O_PATH | libc::O_DIRECTORY | libc::O_CLOEXEC;
        let root =
            files::open(libc::AT_FDCWD, &text, flags, 0, 0).map_err(|source| Error::Directory {
                directory: path.to_path_buf(),
                source,
            })?;
        Ok(Self::at(root))
    }

    /// Uses a directory that is already open, for example the root of a private mount.
    #[must_use]
    pub fn at(root: OwnedFd) -> Self {
        Self {
            root,
            resolve: libc::RESOLVE_IN_ROOT,
        }
    }

    /// The file system of this machine, including the special links of `/proc`.
    pub(crate) fn machine() -> Result<Self, Error> {
        let mut machine = Self::open(Path::new("/"))?;
        machine.resolve = 0;
        Ok(machine)
    }

    fn open_at(&self, path: &Path, flags: i32, mode: u32, resolve: u64) -> Result<OwnedFd, Errno> {
        let mut rest = without_leading_slashes(path.as_os_str().as_bytes());
        let mut resolve = self.resolve | resolve;
        let mut parent: Option<OwnedFd> = None;
        // A path below a deep working directory may be longer than the kernel accepts, so it is opened in parts.
        while rest.len() >= PATH_MAX {
            let (part, after) = split_long_path(rest)?;
            let from = parent.as_ref().unwrap_or(&self.root);
            let directory = libc::O_PATH | libc::O_DIRECTORY;
            parent = Some(open_below(from, part, directory, 0, resolve)?);
            rest = without_leading_slashes(after);
            if resolve & libc::RESOLVE_IN_ROOT != 0 {
                // The next part starts at another directory, which must not become the root of absolute links.
                resolve = resolve & !libc::RESOLVE_IN_ROOT | libc::RESOLVE_BENEATH;
            }
        }
        let rest = match rest.is_empty() {
            true => b".".as_slice(),
            false => rest,
        };
        let from = parent.as_ref().unwrap_or(&self.root);
        open_below(from, rest, flags, mode, resolve)
    }

    /// Opens the file as `O_PATH`.
    fn handle(&self, path: &Path, follow: bool) -> Result<OwnedFd, Errno> {
        let no_follow = if follow { 0 } else { libc::O_NOFOLLOW };
        self.open_at(path, libc::O_PATH | no_follow, 0, 0)
    }

    /// The parent directory of a path, and the last component.
    fn parent<'a>(&self, path: &'a Path) -> Result<(OwnedFd, &'a OsStr), Errno> {
        let name = path.file_name().ok_or(Errno::EBUSY)?;
        let parent = path.parent().ok_or(Errno::EBUSY)?;
        let flags = libc::O_PATH | libc::O_DIRECTORY;
        Ok((self.open_at(parent, flags, 0, 0)?, name))
    }
}

fn open_below(
    directory: &OwnedFd,
    path: &[u8],
    flags: i32,
    mode: u32,
    resolve: u64,
) -> Result<OwnedFd, Errno> {
    let path = CString::new(path).map_err(|_| Errno::EINVAL)?;
    let flags = flags | libc::O_CLOEXEC;
    files::open(directory.as_raw_fd(), &path, flags, mode, resolve)
}

fn without_leading_slashes(path: &[u8]) -> &[u8] {
    let start = path.iter().position(|byte| *byte != b'/');
    start.and_then(|start| path.get(start..)).unwrap_or(b"")
}

/// Splits a path that is too long for the kernel at the last slash that leaves the first part short enough.
fn split_long_path(path: &[u8]) -> Result<(&[u8], &[u8]), Errno> {
    let longest = path.get(..PATH_MAX).unwrap_or(path);
    let slash = longest.iter().rposition(|byte| *byte == b'/');
    slash
        .and_then(|slash| path.split_at_checked(slash))
        .ok_or(Errno::ENAMETOOLONG)
}

/// A path to the file of a handle, for calls that take no descriptor.
fn by_handle(handle: &OwnedFd) -> CString {
    let path = format!("/proc/self/fd/{}", handle.as_raw_fd());
    CString::new(path).unwrap_or_default()
}

fn c_path(path: &Path) -> Result<CString, Errno> {
    c_name(path.as_os_str())
}

fn c_name(name: &OsStr) -> Result<CString, Errno> {
    CString::new(name.as_bytes()).map_err(|_| Errno::EINVAL)
}

fn time(time: SetTime) -> TimeSpec {
    match time {
        SetTime::Now => TimeSpec::UTIME_NOW,
        SetTime::Keep => TimeSpec::UTIME_OMIT,
        SetTime::To(time) => TimeSpec::new(time.seconds, time.nanoseconds.into()),
    }
}

impl RemoteFiles for Directory {
    fn open(&self, path: &Path, options: &OpenOptions) -> CallResult<OwnedFd> {
        // Without one of these flags the kernel refuses a mode.
        let creates = options.flags & (libc::O_CREAT | libc::O_TMPFILE & !libc::O_DIRECTORY) != 0;
        let mode = if creates { options.mode & 0o7777 } else { 0 };
        Ok(self.open_at(path, options.flags, mode, options.resolve)?)
    }

    fn metadata(&self, path: &Path, follow: bool) -> CallResult<Metadata> {
        let handle = self.handle(path, follow)?;
        Ok(files::describe(handle.as_fd())?.into())
    }

    fn read_link(&self, path: &Path) -> CallResult<PathBuf> {
        let handle = self.handle(path, false)?;
        let link = nix::fcntl::readlinkat(&handle, c"").map_err(|errno| match errno {
            // The error of the kernel for a handle that is not a symbolic link.
            Errno::ENOENT => Errno::EINVAL,
            other => other,
        })?;
        Ok(PathBuf::from(link))
    }

    fn access(&self, path: &Path, mode: i32, follow: bool) -> CallResult<()> {
        let handle = self.handle(path, follow)?;
        Ok(files::may_access(handle.as_fd(), mode)?)
    }

    fn file_system(&self, path: &Path) -> CallResult<FileSystemStats> {
        let handle = self.handle(path, true)?;
        Ok(files::describe_file_system(handle.as_fd())?.into())
    }

    fn create_directory(&self, path: &Path, mode: u32) -> CallResult<()> {
        let (parent, name) = self.parent(path)?;
        let mode = Mode::from_bits_truncate(mode);
        Ok(nix::sys::stat::mkdirat(&parent, name, mode)?)
    }

    fn create_node(&self, path: &Path, mode: u32, device: u64) -> CallResult<()> {
        let (parent, name) = self.parent(path)?;
        let kind = SFlag::from_bits_truncate(mode & libc::S_IFMT);
        let permissions = Mode::from_bits_truncate(mode & !libc::S_IFMT);
        Ok(nix::sys::stat::mknodat(
            &parent,
            name,
            kind,
            permissions,
            device,
        )?)
    }

    fn remove_file(&self, path: &Path) -> CallResult<()> {
        let (parent, name) = self.parent(path)?;
        Ok(nix::unistd::unlinkat(
            &parent,
            name,
            UnlinkatFlags::NoRemoveDir,
        )?)
    }

    fn remove_directory(&self, path: &Path) -> CallResult<()> {
        let (parent, name) = self.parent(path)?;
        Ok(nix::unistd::unlinkat(
            &parent,
            name,
            UnlinkatFlags::RemoveDir,
        )?)
    }

    fn rename(&self, from: &Path, to: &Path, flags: u32) -> CallResult<()> {
        let (from, from_name) = self.parent(from)?;
        let (to, to_name) = self.parent(to)?;
        let flags = RenameFlags::from_bits(flags).ok_or(Errno::EINVAL)?;
        renameat_with(&from, from_name, &to, to_name, flags)
            .map_err(|error| Errno::from_raw(error.raw_os_error()).into())
    }

    fn create_hard_link(&self, from: &Path, to: &Path, follow: bool) -> CallResult<()> {
        let (to, to_name) = self.parent(to)?;
        if follow {
            let handle = self.handle(from, true)?;
            let by_handle = by_handle(&handle);
            let flags = AtFlags::AT_SYMLINK_FOLLOW;
            let here = nix::fcntl::AT_FDCWD;
            Ok(nix::unistd::linkat(
                here,
                by_handle.as_c_str(),
                &to,
                to_name,
                flags,
            )?)
        } else {
            let (from, from_name) = self.parent(from)?;
            let flags = LinkatFlags::empty();
            Ok(nix::unistd::linkat(&from, from_name, &to, to_name, flags)?)
        }
    }

    fn name_open_file(&self, file: BorrowedFd<'_>, to: &Path) -> CallResult<()> {
        let (to, to_name) = self.parent(to)?;
        let from = CString::new(format!("/proc/self/fd/{}", file.as_raw_fd()));
        let from = from.map_err(|_| Errno::EINVAL)?;
        let flags = AtFlags::AT_SYMLINK_FOLLOW;
        let here = nix::fcntl::AT_FDCWD;
        Ok(nix::unistd::linkat(
            here,
            from.as_c_str(),
            &to,
            to_name,
            flags,
        )?)
    }

    fn create_symbolic_link(&self, content: &Path, path: &Path) -> CallResult<()> {
        let (parent, name) = self.parent(path)?;
        Ok(nix::unistd::symlinkat(content, &parent, name)?)
    }

    fn set_mode(&self, path: &Path, mode: u32, follow: bool) -> CallResult<()> {
        let handle = self.handle(path, follow)?;
        let kind = u32::from(files::describe(handle.as_fd())?.stx_mode) & libc::S_IFMT;
        if kind == libc::S_IFLNK {
            return Err(Errno::EOPNOTSUPP.into());
        }
        let mode = Mode::from_bits_truncate(mode);
        let flags = nix::sys::stat::FchmodatFlags::FollowSymlink;
        let here = nix::fcntl::AT_FDCWD;
        Ok(nix::sys::stat::fchmodat(
            here,
            by_handle(&handle).as_c_str(),
            mode,
            flags,
        )?)
    }

    fn set_owner(
        &self,
        path: &Path,
        user: Option<u32>,
        group: Option<u32>,
        follow: bool,
    ) -> CallResult<()> {
        let handle = self.handle(path, follow)?;
        let (user, group) = (user.map(Uid::from_raw), group.map(Gid::from_raw));
        let flags = AtFlags::AT_EMPTY_PATH;
        Ok(nix::unistd::fchownat(&handle, c"", user, group, flags)?)
    }

    fn set_times(&self, path: &Path, times: &Times, follow: bool) -> CallResult<()> {
        let (accessed, modified) = (time(times.accessed), time(times.modified));
        if follow {
            let handle = self.handle(path, true)?;
            let flags = UtimensatFlags::FollowSymlink;
            let here = nix::fcntl::AT_FDCWD;
            let by_handle = by_handle(&handle);
            Ok(nix::sys::stat::utimensat(
                here,
                by_handle.as_c_str(),
                &accessed,
                &modified,
                flags,
            )?)
        } else {
            let (parent, name) = self.parent(path)?;
            let flags = UtimensatFlags::NoFollowSymlink;
            Ok(nix::sys::stat::utimensat(
                &parent, name, &accessed, &modified, flags,
            )?)
        }
    }

    fn set_length(&self, path: &Path, length: u64) -> CallResult<()> {
        let handle = self.handle(path, true)?;
        let length = i64::try_from(length).map_err(|_| Errno::EINVAL)?;
        Ok(nix::unistd::truncate(
            by_handle(&handle).as_c_str(),
            length,
        )?)
    }

    fn attribute(&self, path: &Path, name: &OsStr, follow: bool) -> CallResult<Vec<u8>> {
        let handle = self.handle(path, follow)?;
        Ok(files::read_attribute(&by_handle(&handle), &c_name(name)?)?)
    }

    fn attributes(&self, path: &Path, follow: bool) -> CallResult<Vec<u8>> {
        let handle = self.handle(path, follow)?;
        Ok(files::list_attributes(&by_handle(&handle))?)
    }

    fn set_attribute(
        &self,
        path: &Path,
        name: &OsStr,
        value: &[u8],
        flags: i32,
        follow: bool,
    ) -> CallResult<()> {
        let handle = self.handle(path, follow)?;
        let name = c_name(name)?;
        Ok(files::write_attribute(
            &by_handle(&handle),
            &name,
            value,
            flags,
        )?)
    }

    fn remove_attribute(&self, path: &Path, name: &OsStr, follow: bool) -> CallResult<()> {
        let handle = self.handle(path, follow)?;
        Ok(files::remove_attribute(
            &by_handle(&handle),
            &c_name(name)?,
        )?)
    }
}
