//! Paths inside the target's root.
//!
//! `openat2` with RESOLVE_IN_ROOT does what the target's own kernel calls do: "/" is the target's root, also for symbolic
//! links and for "..". What is found is held by a descriptor, so it cannot be exchanged between finding and using it.

use std::os::fd::{AsFd, AsRawFd as _, BorrowedFd, OwnedFd};
use std::sync::Arc;

use bytes::Bytes;
use rustix::fs::{Mode, OFlags, ResolveFlags, openat2};
use rustix::io::Errno;

use super::canonical::walked;
use super::handles::OpenFile;
use crate::agent::Agent;
use crate::grant::{Doing, FileRules, Rules};

const LONGEST_PATH: usize = 4096;
/// The kernel gives up when directories are renamed while it resolves "..", and asks to be called again.
const TRIES: usize = 64;

#[derive(Debug, Clone, Copy)]
pub(crate) struct Tree<'target> {
    root: &'target OwnedFd,
    resolve: ResolveFlags,
    /// What sessions may not see or change.
    rules: Option<&'target FileRules>,
}

/// What a request is about.
#[derive(Debug)]
pub(crate) enum Located {
    Path { path: Bytes, follow: bool },
    Open(Arc<OpenFile>),
}

/// A file that has been found.
#[derive(Debug)]
pub(crate) enum Found<'place> {
    ByPath(OwnedFd),
    Open(&'place OpenFile),
}

impl<'target> Tree<'target> {
    /// The files of an agent's target, as far as sessions may have them.
    pub(crate) fn of(agent: &'target Agent, rules: &'target Rules) -> Self {
        Self {
            root: &agent.target().root,
            resolve: ResolveFlags::IN_ROOT,
            rules: rules.files(),
        }
    }

    /// The part of the tree that the kernel has in its cache. Whatever is not fails with `EAGAIN`, and nothing waits.
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
            return self.open_as_it_is(path, flags, mode);
        };
        // What is judged is a path without symbolic links, and what is opened must have none either: so nobody can put
        // one there in between.
        let is_exclusive = flags.contains(OFlags::CREATE | OFlags::EXCL);
        let follows = !flags.contains(OFlags::NOFOLLOW) && !is_exclusive;
        let real = self.real(path, follows)?;
        rules.allow(&real, doing(flags))?;
        let without_links = Self {
            resolve: self.resolve | ResolveFlags::NO_SYMLINKS,
            ..self
        };
        without_links.open_as_it_is(&real, flags, mode)
    }

    /// A path without symbolic links. Its last name may be of something that is not there yet.
    fn real(self, path: &[u8], follows: bool) -> Result<Vec<u8>, Errno> {
        let unruled = Self {
            rules: None,
            ..self
        };
        if follows {
            match walked(unruled, path) {
                Err(Errno::NOENT) => {}
                found => return found,
            }
        }
        let (directory, name) = split(path);
        let mut real = walked(unruled, directory)?;
        if name == b"." {
            return Ok(real);
        }
        if name.starts_with(b"..") && name[2..].iter().all(|byte| *byte == b'/') {
            return walked(unruled, path);
        }
        if real != b"/" {
            real.push(b'/');
        }
        real.extend_from_slice(name);
        Ok(real)
    }

    fn open_as_it_is(self, path: &[u8], flags: OFlags, mode: Mode) -> Result<OwnedFd, Errno> {
        let tries = match self.resolve.contains(ResolveFlags::CACHED) {
            true => 1,
            false => TRIES,
        };
        for _ in 0..tries {
            let opened = openat2(self.root, path, flags | OFlags::CLOEXEC, mode, self.resolve);
            match opened {
                Err(Errno::AGAIN | Errno::INTR) => {}
                opened => return opened,
            }
        }
        Err(Errno::AGAIN)
    }

    /// Finds a file without opening it: needs no rights on the file itself.
    pub(crate) fn find<'place>(self, place: &'place Located) -> Result<Found<'place>, Errno> {
        match place {
            Located::Path { path, follow } => self.find_path(path, *follow).map(Found::ByPath),
            Located::Open(file) => Ok(Found::Open(file)),
        }
    }

    /// The same for a file that is about to be changed, other than in its bytes.
    pub(crate) fn find_to_change<'place>(
        self,
        place: &'place Located,
    ) -> Result<Found<'place>, Errno> {
        match (place, self.rules) {
            (Located::Path { path, follow }, Some(rules)) => {
                let real = self.real(path, *follow)?;
                rules.allow(&real, Doing::Changing)?;
            }
            (Located::Open(file), Some(_)) if file.is_read_only => return Err(Errno::ROFS),
            _ => {}
        }
        self.find(place)
    }

    /// Whether a file may be changed, where there are rules.
    pub(crate) fn is_read_only(self, path: &[u8]) -> bool {
        self.rules.is_some_and(|rules| {
            let real = self.real(path, true);
            real.and_then(|real| rules.allow(&real, Doing::Changing))
                .is_err()
        })
    }

    /// Whether an open file may stay so. One that has lost its name is judged by the name that it had.
    pub(crate) fn still_allows(self, file: &OpenFile) -> bool {
        let Some(rules) = self.rules else {
            return true;
        };
        let doing = match file.is_writable {
            true => Doing::Changing,
            false => Doing::Reading,
        };
        let real = self.real(&file.path, true);
        let real = real.unwrap_or_else(|_| file.path.to_vec());
        rules.allow(&real, doing).is_ok() && rules.allow(&file.path, doing).is_ok()
    }

    pub(crate) fn find_path(self, path: &[u8], follow: bool) -> Result<OwnedFd, Errno> {
        let mut flags = OFlags::PATH;
        flags.set(OFlags::NOFOLLOW, !follow);
        self.open(path, flags, Mode::empty())
    }

    /// Finds the directory in which the last name of a path is, and that name, for an operation that changes it. Slashes at the end stay with the name: what
    /// they mean is the operation's business.
    pub(crate) fn parent(self, path: &[u8]) -> Result<(OwnedFd, &[u8]), Errno> {
        check(path)?;
        if let Some(rules) = self.rules {
            rules.allow(&self.real(path, false)?, Doing::Changing)?;
        }
        let (directory, name) = split(path);
        let flags = OFlags::PATH | OFlags::DIRECTORY;
        Ok((self.open(directory, flags, Mode::empty())?, name))
    }
}

impl Found<'_> {
    /// A path to this very file, for calls that take no descriptor. It leads to the file and no further, also when that is
    /// a symbolic link or has lost its name.
    pub(crate) fn as_path(&self) -> String {
        format!("/proc/self/fd/{}", self.as_fd().as_raw_fd())
    }
}

impl AsFd for Found<'_> {
    fn as_fd(&self) -> BorrowedFd<'_> {
        match self {
            Self::ByPath(descriptor) => descriptor.as_fd(),
            Self::Open(file) => file.as_fd(),
        }
    }
}

/// What opening with these flags is about to do.
pub(super) fn doing(flags: OFlags) -> Doing {
    let changes = OFlags::WRONLY | OFlags::RDWR | OFlags::CREATE | OFlags::TRUNC;
    let is_temporary = flags.contains(OFlags::TMPFILE);
    match !flags.contains(OFlags::PATH) && (flags.intersects(changes) || is_temporary) {
        true => Doing::Changing,
        false => Doing::Reading,
    }
}

fn check(path: &[u8]) -> Result<(), Errno> {
    match path.first() {
        None => Err(Errno::NOENT),
        Some(_) if path.len() >= LONGEST_PATH => Err(Errno::NAMETOOLONG),
        Some(b'/') if !path.contains(&0) => Ok(()),
        // Relative to nothing.
        Some(_) => Err(Errno::INVAL),
    }
}

/// Splits before the last name. The path begins with a slash.
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
    fn paths_split_before_the_last_name() {
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
    fn paths_that_cannot_be() {
        let check_path = |path: &[u8], expected| assert_eq!(check(path), expected);
        check_path(b"", Err(Errno::NOENT));
        check_path(b"relative", Err(Errno::INVAL));
        check_path(b"/zero\0", Err(Errno::INVAL));
        check_path(&[b'/'; 4096], Err(Errno::NAMETOOLONG));
        check_path(&[b'/'; 4095], Ok(()));
    }
}
