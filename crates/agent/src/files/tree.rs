//! Paths inside the target's root.
//!
//! `openat2` with RESOLVE_IN_ROOT resolves paths as the target's own system calls do: "/" is the target's root, also for
//! symbolic links and for "..". A resolved file is referenced by a descriptor, so it cannot be replaced before its use.

use std::os::fd::{AsFd, AsRawFd as _, BorrowedFd, OwnedFd};
use std::sync::Arc;

use bytes::Bytes;
use rustix::fs::{Mode, OFlags, ResolveFlags, openat2, readlinkat};
use rustix::io::Errno;

use super::canonicalize::canonicalize;
use super::handles::OpenFile;
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
    resolve: ResolveFlags,
    /// Which files are hidden or read-only for sessions.
    rules: Option<&'target FileRules>,
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

impl<'target> Tree<'target> {
    /// The tree of an agent's target.
    pub(crate) fn of(agent: &'target Agent, rules: &'target Rules) -> Self {
        Self {
            root: &agent.target().root,
            resolve: ResolveFlags::IN_ROOT,
            rules: rules.files(),
        }
    }

    /// The part of the tree that is in the kernel's cache. Operations outside it fail with `EAGAIN` instead of blocking.
    pub(crate) fn cached(agent: &'target Agent, rules: &'target Rules) -> Self {
        let all = Self::of(agent, rules);
        Self {
            resolve: all.resolve | ResolveFlags::CACHED,
            ..all
        }
    }

    pub(crate) fn open(self, path: &[u8], flags: OFlags, mode: Mode) -> Result<OwnedFd, Errno> {
        check(path)?;
        let Some(rules) = self.rules else {
            return self.open_unchecked(path, flags, mode);
        };
        // The rules apply to the path without symbolic links, and this path is opened without following links: so a link
        // that is created in between is not followed.
        let real = self.real_path(path, follows(flags))?;
        rules.allow(&real, file_access(flags))?;
        self.without_links().open_unchecked(&real, flags, mode)
    }

    /// The same tree, in which symbolic links are not followed.
    fn without_links(self) -> Self {
        Self {
            resolve: self.resolve | ResolveFlags::NO_SYMLINKS,
            ..self
        }
    }

    /// A path without symbolic links. Its last component need not exist.
    fn real_path(self, path: &[u8], follows: bool) -> Result<Vec<u8>, Errno> {
        let without_rules = Self {
            rules: None,
            ..self
        };
        if follows {
            match canonicalize(without_rules, path) {
                Err(Errno::NOENT) => {}
                found => return found,
            }
        }
        let (directory, name) = split(path);
        let mut real = canonicalize(without_rules, directory)?;
        if name == b"." {
            return Ok(real);
        }
        if name.starts_with(b"..") && name[2..].iter().all(|byte| *byte == b'/') {
            return canonicalize(without_rules, path);
        }
        if real != b"/" {
            real.push(b'/');
        }
        real.extend_from_slice(name);
        if follows && without_rules.is_link(&real) {
            // It leads to nothing.
            return Err(Errno::NOENT);
        }
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
        match (location, self.rules) {
            (FileLocation::Path { path, follow }, Some(rules)) => {
                let real = self.real_path(path, *follow)?;
                rules.allow(&real, FileAccess::Write)?;
            }
            (FileLocation::Open(file), Some(_)) if file.is_read_only => return Err(Errno::ROFS),
            _ => {}
        }
        self.find(location)
    }

    /// Whether the rules forbid changes of a file.
    pub(crate) fn is_read_only(self, path: &[u8]) -> bool {
        self.rules.is_some_and(|rules| {
            let real = self.real_path(path, true);
            real.and_then(|real| rules.allow(&real, FileAccess::Write))
                .is_err()
        })
    }

    /// Whether an open file may stay open. A file that was unlinked or renamed is checked by its former path.
    pub(crate) fn still_allows(self, file: &OpenFile) -> bool {
        let Some(rules) = self.rules else {
            return true;
        };
        let file_access = match file.is_writable {
            true => FileAccess::Write,
            false => FileAccess::Read,
        };
        let real = self.real_path(&file.path, true);
        let real = real.unwrap_or_else(|_| file.path.to_vec());
        rules.allow(&real, file_access).is_ok() && rules.allow(&file.path, file_access).is_ok()
    }

    pub(crate) fn find_path(self, path: &[u8], follow: bool) -> Result<OwnedFd, Errno> {
        let mut flags = OFlags::PATH;
        flags.set(OFlags::NOFOLLOW, !follow);
        self.open(path, flags, Mode::empty())
    }

    /// Like [`find_path`](Self::find_path) without following a link, for a path whose directory has no symbolic links.
    pub(super) fn find_entry(self, path: &[u8]) -> Result<OwnedFd, Errno> {
        if path.len() < PATH_MAX {
            return self.find_path(path, false);
        }
        self.may_take_long()?;
        let flags = OFlags::PATH | OFlags::NOFOLLOW;
        self.without_links()
            .open_in_parts(path, flags, Mode::empty())
    }

    /// The parent directory of a path and its last component, for an operation that changes the directory entry. Trailing
    /// slashes stay in the component, because their meaning depends on the operation.
    pub(crate) fn parent(self, path: &[u8]) -> Result<(OwnedFd, &[u8]), Errno> {
        check(path)?;
        if let Some(rules) = self.rules {
            rules.allow(&self.real_path(path, false)?, FileAccess::Write)?;
        }
        let (directory, name) = split(path);
        let flags = OFlags::PATH | OFlags::DIRECTORY;
        Ok((self.open(directory, flags, Mode::empty())?, name))
    }
}

impl ResolvedFile<'_> {
    /// A path to this file, for calls that take no descriptor. It refers to the file itself, also if that is a symbolic link
    /// or was unlinked.
    pub(crate) fn as_path(&self) -> String {
        format!("/proc/self/fd/{}", self.as_fd().as_raw_fd())
    }
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
