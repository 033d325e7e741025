//! Paths inside the target's root.
//!
//! `openat2` with RESOLVE_IN_ROOT resolves paths as the target's own system calls do: "/" is the target's root, also for
//! symbolic links and for "..". A resolved file is referenced by a descriptor, so it cannot be replaced before its use.
//!
//! With rules for files, the path that is judged is the path that is used: all symbolic links are resolved first, then the
//! result is judged, and then it is opened without following links. An operation on a directory entry uses a descriptor of its
//! directory that was opened in this way.

use std::os::fd::{AsFd, AsRawFd as _, BorrowedFd, OwnedFd};
use std::sync::Arc;

use bytes::Bytes;
use rustix::fs::{AtFlags, CWD, FileType, Mode, OFlags, ResolveFlags, openat2, readlinkat, statat};
use rustix::io::Errno;

use super::canonicalize::canonicalize;
use super::handles::OpenFile;
use super::mounts::MountTable;
use super::process_files::{self, without_deleted};
use crate::agent::Agent;
use crate::grant::{FileAccess, FileRules, Rules};

/// The kernel accepts shorter paths than this in one call.
const PATH_MAX: usize = 4096;
/// The limit of a whole path, which is the directory of the application and the path that it uses there. A process can have
/// a working directory that is deeper than [`PATH_MAX`].
const MAX_PATH: usize = 64 * 1024;
/// How often `EAGAIN` is retried: the kernel returns it if directories are renamed while it resolves "..".
const MAX_ATTEMPTS: usize = 64;

/// The target's file tree, as far as sessions may access it.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Tree<'target> {
    root: &'target OwnedFd,
    pid: u32,
    resolve: ResolveFlags,
    /// Which files are hidden or read-only for sessions.
    rules: Option<&'target FileRules>,
    hides_environments: bool,
}

/// The file of a request: a path, or an open file.
#[derive(Debug)]
pub(crate) enum FileLocation {
    Path { path: Bytes, follow: bool },
    Open(Arc<OpenFile>),
}

/// A resolved file, by its descriptor.
#[derive(Debug)]
pub(crate) enum ResolvedFile<'location> {
    ByPath(OwnedFd),
    Open(&'location OpenFile),
}

/// An entry of a directory, which need not exist.
#[derive(Debug)]
pub(crate) struct DirectoryEntry<'path> {
    pub(crate) directory: OwnedFd,
    /// With trailing slashes, because their meaning depends on the operation.
    pub(crate) name: &'path [u8],
    /// The path without symbolic links, if there are rules.
    real_path: Option<Vec<u8>>,
}

impl<'target> Tree<'target> {
    /// The tree of an agent's target.
    pub(crate) fn of(agent: &'target Agent, rules: &'target Rules) -> Self {
        Self {
            root: &agent.target().root,
            pid: agent.target().pid,
            resolve: ResolveFlags::IN_ROOT,
            rules: rules.files(),
            hides_environments: rules.hides_environments(),
        }
    }

    /// The part of the tree that is in the kernel's cache. Operations outside it fail with `EAGAIN` instead of blocking. Only
    /// files of local disks and of the memory may be used, which the caller checks: [`process_files`] are not refused here.
    pub(crate) fn cached(agent: &'target Agent, rules: &'target Rules) -> Self {
        let all = Self::of(agent, rules);
        Self {
            resolve: all.resolve | ResolveFlags::CACHED,
            ..all
        }
    }

    pub(crate) fn open(self, path: &[u8], flags: OFlags, mode: Mode) -> Result<OwnedFd, Errno> {
        self.open_with_path(path, flags, mode).map(|(file, _)| file)
    }

    /// Like [`open`](Self::open), and returns the path that was judged, if there are rules.
    pub(crate) fn open_with_path(
        self,
        path: &[u8],
        flags: OFlags,
        mode: Mode,
    ) -> Result<(OwnedFd, Option<Vec<u8>>), Errno> {
        check(path)?;
        let opened = match self.rules {
            None => (self.open_unchecked(path, flags, mode)?, None),
            Some(_) => {
                let real = self.real_path(path, follows(flags))?;
                self.allow(&real, file_access(flags))?;
                let opened = self.open_real(&real, path, flags, mode)?;
                (opened, Some(real))
            }
        };
        if !self.resolve.contains(ResolveFlags::CACHED) {
            process_files::allow(&opened.0, flags, self.hides_environments)?;
        }
        Ok(opened)
    }

    /// Opens a judged path, so a symbolic link that was created in between is not followed. Trailing slashes of the requested
    /// path are kept: only a directory may have them.
    fn open_real(
        self,
        real: &[u8],
        requested: &[u8],
        flags: OFlags,
        mode: Mode,
    ) -> Result<OwnedFd, Errno> {
        let slash: &[u8] = if requested.ends_with(b"/") { b"/" } else { b"" };
        let path = [real, slash].concat();
        self.without_links().open_unchecked(&path, flags, mode)
    }

    /// The same tree, in which symbolic links are not followed.
    fn without_links(self) -> Self {
        Self {
            resolve: self.resolve | ResolveFlags::NO_SYMLINKS,
            ..self
        }
    }

    /// Fails if the rules forbid the access to a path without symbolic links, or to another path of the same file.
    fn allow(self, real_path: &[u8], file_access: FileAccess) -> Result<(), Errno> {
        let Some(rules) = self.rules else {
            return Ok(());
        };
        rules.allow(real_path, file_access)?;
        let mounts = MountTable::of_process(self.pid)?;
        let others = mounts.other_paths(real_path);
        let mut others = others.iter();
        others.try_for_each(|other| rules.allow(other, file_access))
    }

    /// A path without symbolic links and trailing slashes. Its last component need not exist.
    fn real_path(self, path: &[u8], follows: bool) -> Result<Vec<u8>, Errno> {
        // The kernel follows a symbolic link with a trailing slash, because only a directory may have one.
        let follows = follows || path.ends_with(b"/");
        if follows {
            match canonicalize(self, path) {
                Err(Errno::NOENT) => {}
                found => return found,
            }
        }
        let (directory, name) = split(path);
        let real = match without_slashes(name) {
            b"." | b".." => return canonicalize(self, path),
            name => join(&canonicalize(self, directory)?, name),
        };
        if follows && self.is_link(&real) {
            // It leads to nothing.
            return Err(Errno::NOENT);
        }
        Ok(real)
    }

    /// The canonical path of a file that the rules do not hide.
    pub(super) fn visible_path(self, path: &[u8]) -> Result<Vec<u8>, Errno> {
        let real = canonicalize(self, path)?;
        self.allow(&real, FileAccess::Read)?;
        Ok(real)
    }

    /// Whether there is a symbolic link at a path whose directory has none.
    fn is_link(self, path: &[u8]) -> bool {
        let entry = self.find_entry(path);
        entry.is_ok_and(|entry| readlinkat(entry, c"", Vec::new()).is_ok())
    }

    fn open_unchecked(self, path: &[u8], flags: OFlags, mode: Mode) -> Result<OwnedFd, Errno> {
        if path.len() < PATH_MAX {
            return self.open_below(self.root, path, flags, mode);
        }
        self.may_take_long()?;
        if self.resolve.contains(ResolveFlags::NO_SYMLINKS) {
            return self.open_in_parts(path, flags, mode);
        }
        // The target's root is only the root of the first part, so the links are resolved before.
        let real = self.real_path(path, follows(flags))?;
        self.without_links().open_in_parts(&real, flags, mode)
    }

    /// Fails in the tree of cached files, whose users must not be delayed: resolving a long path takes many calls.
    fn may_take_long(self) -> Result<(), Errno> {
        match self.resolve.contains(ResolveFlags::CACHED) {
            true => Err(Errno::AGAIN),
            false => Ok(()),
        }
    }

    /// Opens a path of any length that has no symbolic links and no "..".
    fn open_in_parts(self, path: &[u8], flags: OFlags, mode: Mode) -> Result<OwnedFd, Errno> {
        let mut parent: Option<OwnedFd> = None;
        let mut rest = path;
        while rest.len() >= PATH_MAX {
            let slash = rest[..PATH_MAX].iter().rposition(|byte| *byte == b'/');
            // A component this long does not exist.
            let slash = slash.filter(|slash| *slash > 0).ok_or(Errno::NAMETOOLONG)?;
            let directory = OFlags::PATH | OFlags::DIRECTORY;
            let from = parent.as_ref().unwrap_or(self.root);
            parent = Some(self.open_below(from, &rest[..slash], directory, Mode::empty())?);
            rest = &rest[slash..];
        }
        let from = parent.as_ref().unwrap_or(self.root);
        self.open_below(from, rest, flags, mode)
    }

    /// Opens a path with `directory` as its root.
    fn open_below(
        self,
        directory: &OwnedFd,
        path: &[u8],
        flags: OFlags,
        mode: Mode,
    ) -> Result<OwnedFd, Errno> {
        let attempts = match self.resolve.contains(ResolveFlags::CACHED) {
            true => 1,
            false => MAX_ATTEMPTS,
        };
        for _ in 0..attempts {
            let opened = openat2(directory, path, flags | OFlags::CLOEXEC, mode, self.resolve);
            match opened {
                Err(Errno::AGAIN | Errno::INTR) => {}
                opened => return opened,
            }
        }
        Err(Errno::AGAIN)
    }

    /// Resolves a file without opening it, which needs no permissions on the file itself.
    pub(crate) fn find<'location>(
        self,
        location: &'location FileLocation,
    ) -> Result<ResolvedFile<'location>, Errno> {
        match location {
            FileLocation::Path { path, follow } => {
                self.find_path(path, *follow).map(ResolvedFile::ByPath)
            }
            FileLocation::Open(file) => Ok(ResolvedFile::Open(file)),
        }
    }

    /// Like [`find`](Self::find), for an operation that changes the file other than by writing to it.
    pub(crate) fn find_to_change<'location>(
        self,
        location: &'location FileLocation,
    ) -> Result<ResolvedFile<'location>, Errno> {
        if self.rules.is_none() {
            return self.find(location);
        }
        match location {
            FileLocation::Path { path, follow } => {
                check(path)?;
                let real = self.real_path(path, *follow)?;
                self.allow(&real, FileAccess::Write)?;
                let flags = OFlags::PATH | OFlags::NOFOLLOW;
                let found = self.open_real(&real, path, flags, Mode::empty());
                found.map(ResolvedFile::ByPath)
            }
            FileLocation::Open(file) => {
                self.allow_open_file(file, FileAccess::Write)?;
                Ok(ResolvedFile::Open(file))
            }
        }
    }

    /// Whether an open file may stay open.
    pub(crate) fn still_allows(self, file: &OpenFile) -> bool {
        let file_access = match file.is_writable {
            true => FileAccess::Write,
            false => FileAccess::Read,
        };
        let flags = match file.is_path_only {
            true => OFlags::PATH,
            false => OFlags::RDONLY,
        };
        self.allow_open_file(file, file_access).is_ok()
            && process_files::allow(file, flags, self.hides_environments).is_ok()
    }

    /// Judges an open file by the path by which it was opened, and by all paths that it has now: links may have changed, and it
    /// may have been renamed or unlinked.
    fn allow_open_file(self, file: &OpenFile, file_access: FileAccess) -> Result<(), Errno> {
        if self.rules.is_none() {
            return Ok(());
        }
        self.allow(&file.path, file_access)?;
        if let Ok(real) = self.real_path(&file.path, true) {
            self.allow(&real, file_access)?;
        }
        match self.current_path(file) {
            Some(path) => self.allow(&path, file_access),
            None => Ok(()),
        }
    }

    /// The path of a descriptor, if it is below the target's root.
    fn current_path(self, file: &OpenFile) -> Option<Vec<u8>> {
        let path = |file: BorrowedFd<'_>| readlinkat(CWD, link_of(file), Vec::new());
        let path_of_file = path(file.as_fd()).ok()?.into_bytes();
        let path_of_file = without_deleted(&path_of_file);
        let root = path(self.root.as_fd()).ok()?.into_bytes();
        let root = root.strip_suffix(b"/").unwrap_or(&root);
        let below_root = path_of_file.strip_prefix(root)?;
        below_root.starts_with(b"/").then(|| below_root.to_vec())
    }

    pub(crate) fn find_path(self, path: &[u8], follow: bool) -> Result<OwnedFd, Errno> {
        let mut flags = OFlags::PATH;
        flags.set(OFlags::NOFOLLOW, !follow);
        self.open(path, flags, Mode::empty())
    }

    /// Finds a file without following a link and without judging it, for a path whose directory has no symbolic links.
    pub(super) fn find_entry(self, path: &[u8]) -> Result<OwnedFd, Errno> {
        check(path)?;
        let flags = OFlags::PATH | OFlags::NOFOLLOW;
        if path.len() < PATH_MAX {
            return self.open_unchecked(path, flags, Mode::empty());
        }
        self.may_take_long()?;
        self.without_links()
            .open_in_parts(path, flags, Mode::empty())
    }

    /// A directory entry, for an operation that changes it.
    pub(crate) fn entry_to_change<'path>(
        self,
        path: &'path [u8],
    ) -> Result<DirectoryEntry<'path>, Errno> {
        check(path)?;
        let (directory, name) = split(path);
        let flags = OFlags::PATH | OFlags::DIRECTORY;
        if self.rules.is_none() {
            return Ok(DirectoryEntry {
                directory: self.open_unchecked(directory, flags, Mode::empty())?,
                name,
                real_path: None,
            });
        }
        let real_directory = canonicalize(self, directory)?;
        let real_path = match without_slashes(name) {
            // No operation on an entry accepts these names.
            b"." | b".." => real_directory.clone(),
            name => join(&real_directory, name),
        };
        self.allow(&real_path, FileAccess::Write)?;
        let tree = self.without_links();
        Ok(DirectoryEntry {
            directory: tree.open_unchecked(&real_directory, flags, Mode::empty())?,
            name,
            real_path: Some(real_path),
        })
    }

    /// Fails if renaming the directory at `entry` to or from `other` could give files below it other paths than those for which
    /// there are rules.
    pub(crate) fn allow_move(
        self,
        entry: &DirectoryEntry<'_>,
        other: &DirectoryEntry<'_>,
    ) -> Result<(), Errno> {
        let (Some(rules), Some(path), Some(other)) =
            (self.rules, &entry.real_path, &other.real_path)
        else {
            return Ok(());
        };
        let name = without_slashes(entry.name);
        let is_directory = statat(&entry.directory, name, AtFlags::SYMLINK_NOFOLLOW)
            .is_ok_and(|found| FileType::from_raw_mode(found.st_mode) == FileType::Directory);
        if !is_directory {
            return Ok(());
        }
        let mounts = MountTable::of_process(self.pid)?;
        let mut places = vec![path.clone(), other.clone()];
        for path in [path, other] {
            places.extend(mounts.other_paths(path));
            places.extend(mounts.mounted_parts(path));
        }
        match places.iter().any(|place| rules.could_match_below(place)) {
            true => Err(Errno::ROFS),
            false => Ok(()),
        }
    }
}

impl ResolvedFile<'_> {
    /// A path to this file, for calls that take no descriptor. It refers to the file itself, also if that is a symbolic link
    /// or was unlinked.
    pub(crate) fn as_path(&self) -> String {
        link_of(self.as_fd())
    }
}

fn link_of(file: BorrowedFd<'_>) -> String {
    format!("/proc/self/fd/{}", file.as_raw_fd())
}

impl AsFd for ResolvedFile<'_> {
    fn as_fd(&self) -> BorrowedFd<'_> {
        match self {
            Self::ByPath(descriptor) => descriptor.as_fd(),
            Self::Open(file) => file.as_fd(),
        }
    }
}

/// Whether opening with these flags follows a symbolic link at the end of the path.
fn follows(flags: OFlags) -> bool {
    !flags.contains(OFlags::NOFOLLOW) && !flags.contains(OFlags::CREATE | OFlags::EXCL)
}

/// The access that opening with these flags needs.
pub(super) fn file_access(flags: OFlags) -> FileAccess {
    let changes = OFlags::WRONLY | OFlags::RDWR | OFlags::CREATE | OFlags::TRUNC;
    let is_temporary = flags.contains(OFlags::TMPFILE);
    match !flags.contains(OFlags::PATH) && (flags.intersects(changes) || is_temporary) {
        true => FileAccess::Write,
        false => FileAccess::Read,
    }
}

fn check(path: &[u8]) -> Result<(), Errno> {
    match path.first() {
        None => Err(Errno::NOENT),
        Some(_) if path.len() >= MAX_PATH => Err(Errno::NAMETOOLONG),
        Some(b'/') if !path.contains(&0) => Ok(()),
        // A relative path: there is no directory that it could be relative to.
        Some(_) => Err(Errno::INVAL),
    }
}

/// Splits before the last component. The path begins with a slash.
fn split(path: &[u8]) -> (&[u8], &[u8]) {
    let end = path
        .iter()
        .rposition(|byte| *byte != b'/')
        .map_or(0, |last| last + 1);
    if end == 0 {
        return (b"/", b".");
    }
    let start = path[..end]
        .iter()
        .rposition(|byte| *byte == b'/')
        .map_or(0, |slash| slash + 1);
    (&path[..start], &path[start..])
}

fn join(directory: &[u8], name: &[u8]) -> Vec<u8> {
    let separator: &[u8] = if directory == b"/" { b"" } else { b"/" };
    [directory, separator, name].concat()
}

/// A name without trailing slashes.
fn without_slashes(name: &[u8]) -> &[u8] {
    let end = name.iter().rposition(|byte| *byte != b'/');
    end.map_or(name, |last| &name[..=last])
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn paths_are_split_before_the_last_component() {
        let check = |path: &str, directory: &str, name: &str| {
            let (found_directory, found_name) = split(path.as_bytes());
            assert_eq!(
                (found_directory, found_name),
                (directory.as_bytes(), name.as_bytes()),
                "{path}"
            );
        };
        check("/a", "/", "a");
        check("/a/b", "/a/", "b");
        check("/a/b//", "/a/", "b//");
        check("//a", "//", "a");
        check("/a/..", "/a/", "..");
        check("/", "/", ".");
        check("///", "/", ".");
    }

    #[test]
    fn invalid_paths_are_rejected() {
        let check_path = |path: &[u8], expected| assert_eq!(check(path), expected);
        check_path(b"", Err(Errno::NOENT));
        check_path(b"relative", Err(Errno::INVAL));
        check_path(b"/zero\0", Err(Errno::INVAL));
        check_path(&[b'/'; MAX_PATH], Err(Errno::NAMETOOLONG));
        check_path(&[b'/'; MAX_PATH - 1], Ok(()));
    }
}
