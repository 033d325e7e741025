//! From the path that a call names to the file that it means, as the kernel would find it in a tree of which some
//! parts are the target's.
//!
//! Most paths are local, absolute or below the working directory, and without symbolic links. One `openat2` that
//! follows no link and reads no disk tells so, which is why a local `open` costs little more than the two context
//! switches. All others are walked name by name.

use std::collections::VecDeque;
use std::ffi::{CString, OsStr, OsString};
use std::os::fd::{AsRawFd, RawFd};
use std::os::unix::ffi::{OsStrExt, OsStringExt};
use std::path::{Component, Path, PathBuf};

use super::request::{Operation, PathArgument, Request};
use crate::Errno;
use crate::host::{Intent, PathChoice};
use crate::notification::Notification;
use crate::process::group_of;
use crate::supervisor::Supervisor;
use crate::sys::files;

/// Where the file of a path is.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum Place {
    /// Where the kernel finds it by itself.
    Local,
    /// On this machine at this path, which the kernel would not find from where it believes the caller to be.
    Machine(PathBuf),
    Remote {
        /// The absolute path as the application sees it.
        seen: PathBuf,
        /// Its name at the target.
        target: PathBuf,
    },
    /// The path is a descriptor's or working directory's link in `/proc`, and its content is for us to tell.
    Link(PathBuf),
    Refused(Errno),
}

/// How much may be done to find out.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Effort {
    /// Nothing that may wait for a disk or a network.
    Quick,
    Full,
}

/// The longest chain of symbolic links that the kernel follows.
const MOST_LINKS: u32 = 40;

/// Where a path leads before the host was asked.
struct Resolved {
    seen: PathBuf,
    /// The kernel would not find it.
    detached: bool,
    /// It is a link in `/proc`, and this is its content.
    link: Option<PathBuf>,
}

/// The places of all paths of a request, or `None` if that takes more effort.
pub(super) fn places(
    supervisor: &Supervisor,
    notification: &Notification,
    request: &Request,
    effort: Effort,
) -> Option<Vec<Place>> {
    let resolver = Resolver {
        supervisor,
        thread: notification.thread(),
        intent: request.operation.intent(),
        effort,
    };
    let first = resolver.place(&request.path)?;
    let Some(second) = &request.second else {
        let is_link_read = matches!(request.operation, Operation::ReadLink { .. });
        return Some(vec![match first.0 {
            Place::Link(_) if !is_link_read => Place::Local,
            place => place,
        }]);
    };
    Some(both(first, resolver.place(second)?))
}

/// Two paths of one call are on one side, or the call cannot be done.
fn both(first: (Place, PathBuf), second: (Place, PathBuf)) -> Vec<Place> {
    let is_remote = |place: &Place| matches!(place, Place::Remote { .. });
    let is_detached = |place: &Place| matches!(place, Place::Machine(_));
    if is_remote(&first.0) != is_remote(&second.0) {
        return vec![Place::Refused(Errno::EXDEV)];
    }
    if is_detached(&first.0) || is_detached(&second.0) {
        return vec![Place::Machine(first.1), Place::Machine(second.1)];
    }
    vec![first.0, second.0]
}

struct Resolver<'a> {
    supervisor: &'a Supervisor,
    thread: libc::pid_t,
    intent: Intent,
    effort: Effort,
}

impl Resolver<'_> {
    /// The place, and the absolute path if it is known.
    fn place(&self, argument: &PathArgument) -> Option<(Place, PathBuf)> {
        let local = Some((Place::Local, PathBuf::new()));
        // Empty paths are about a descriptor, or an error that the kernel reports best.
        if argument.path.is_empty() {
            return local;
        }
        let path = Path::new(OsStr::from_bytes(&argument.path));
        let (whole, detached) = if path.is_absolute() {
            (path.to_path_buf(), false)
        } else {
            match self.start(argument.directory) {
                Some((start, detached)) => (start.join(path), detached),
                None => return local,
            }
        };
        let follow = argument.follow || argument.path.ends_with(b"/");
        let resolved = self.resolve(&whole, follow, detached)?;
        if let Some(link) = resolved.link {
            return Some((Place::Link(link), resolved.seen));
        }
        let place = match self
            .supervisor
            .host
            .choose_path(&resolved.seen, self.intent)
        {
            PathChoice::Local if resolved.detached => Place::Machine(resolved.seen.clone()),
            PathChoice::Local => Place::Local,
            PathChoice::Refused(errno) => Place::Refused(errno),
            PathChoice::Remote(target) => Place::Remote {
                seen: resolved.seen.clone(),
                target,
            },
        };
        Some((place, resolved.seen))
    }

    /// Where a relative path starts, and whether the kernel is wrong about it.
    fn start(&self, directory: RawFd) -> Option<(PathBuf, bool)> {
        let link = if directory == libc::AT_FDCWD {
            if let Some(path) = self.supervisor.processes.directory_of(self.thread) {
                return Some((path, true));
            }
            format!("/proc/{}/cwd", self.thread)
        } else {
            if let Some((path, _)) = opened_path(self.supervisor, self.thread, directory) {
                return Some((path, true));
            }
            format!("/proc/{}/fd/{directory}", self.thread)
        };
        let path = std::fs::read_link(link).ok()?;
        path.is_absolute().then_some((path, false))
    }

    fn resolve(&self, whole: &Path, follow: bool, detached: bool) -> Option<Resolved> {
        let normal = normalized(whole);
        let resolved = |seen| {
            Some(Resolved {
                seen,
                detached,
                link: None,
            })
        };
        if normal.starts_with("/proc") || normal.starts_with("/dev") {
            return match names_descriptor(&normal) {
                true => self.walk(whole, follow, detached),
                false => resolved(normal),
            };
        }
        let has_parent = whole.components().any(|part| part == Component::ParentDir);
        if self.supervisor.host.choose_path(&normal, self.intent) != PathChoice::Local {
            return match (has_parent, self.effort) {
                (false, _) => resolved(normal),
                (true, Effort::Quick) => None,
                (true, Effort::Full) => self.walk(whole, follow, detached),
            };
        }
        match self.look(whole, follow, libc::RESOLVE_NO_SYMLINKS) {
            Err(Errno::ELOOP) => match self.look(whole, follow, 0) {
                Ok(file) => {
                    let link = format!("/proc/self/fd/{}", file.as_raw_fd());
                    resolved(std::fs::read_link(link).unwrap_or(normal))
                }
                Err(Errno::EAGAIN) => None,
                Err(_) if self.effort == Effort::Quick => None,
                Err(_) => self.walk(whole, follow, detached),
            },
            Err(Errno::EAGAIN) => None,
            // It exists; or not, or may not be seen, and no link is on the way to where that shows.
            Ok(_) | Err(_) => resolved(normal),
        }
    }

    /// Looks for a file on this machine without touching it.
    fn look(&self, path: &Path, follow: bool, resolve: u64) -> Result<std::os::fd::OwnedFd, Errno> {
        let path = CString::new(path.as_os_str().as_bytes()).map_err(|_| Errno::EINVAL)?;
        let no_follow = if follow { 0 } else { libc::O_NOFOLLOW };
        let cached = match self.effort {
            Effort::Quick => libc::RESOLVE_CACHED,
            Effort::Full => 0,
        };
        let flags = libc::O_PATH | libc::O_CLOEXEC | no_follow;
        files::open(libc::AT_FDCWD, &path, flags, 0, resolve | cached)
    }

    /// Name by name, following the links of this machine.
    fn walk(&self, whole: &Path, follow: bool, mut detached: bool) -> Option<Resolved> {
        let mut names = names_of(whole);
        let mut seen = PathBuf::from("/");
        let mut links = 0;
        while let Some(name) = names.pop_front() {
            if name == ".." {
                seen.pop();
                continue;
            }
            seen.push(name);
            let followed = follow || !names.is_empty();
            let link = match self.link(&seen) {
                // The kernel follows the last one itself, to the very file.
                Link::Special(content) if names.is_empty() => {
                    return Some(Resolved {
                        seen,
                        detached,
                        link: content,
                    });
                }
                Link::None | Link::Special(None) => continue,
                Link::Special(Some(content)) => {
                    detached = true;
                    content
                }
                Link::To(_) if !followed => continue,
                Link::To(content) => content,
            };
            links += 1;
            if links > MOST_LINKS {
                // The kernel says what that is.
                break;
            }
            seen.pop();
            if link.is_absolute() {
                seen = PathBuf::from("/");
            }
            for name in names_of(&link).into_iter().rev() {
                names.push_front(name);
            }
        }
        Some(Resolved {
            seen,
            detached,
            link: None,
        })
    }

    /// What this machine has at an absolute path, as far as it leads elsewhere.
    fn link(&self, path: &Path) -> Link {
        if self.supervisor.host.choose_path(path, Intent::Look) != PathChoice::Local {
            return Link::None;
        }
        // These depend on who asks.
        if path == Path::new("/proc/self") {
            let process = group_of(self.thread).unwrap_or(self.thread);
            return Link::To(PathBuf::from(process.to_string()));
        }
        if path == Path::new("/proc/thread-self") {
            let process = group_of(self.thread).unwrap_or(self.thread);
            return Link::To(PathBuf::from(format!("{process}/task/{}", self.thread)));
        }
        match process_link(path) {
            Some((process, ProcessLink::Directory)) => {
                Link::Special(self.supervisor.processes.directory_of(process))
            }
            Some((process, ProcessLink::Descriptor(number))) => {
                let opened = opened_path(self.supervisor, process, number);
                Link::Special(opened.map(|(path, _)| path))
            }
            None => std::fs::read_link(path).map_or(Link::None, Link::To),
        }
    }
}

enum Link {
    None,
    To(PathBuf),
    /// A link of `/proc` that the kernel follows without its text. With content if its text is for us to tell.
    Special(Option<PathBuf>),
}

enum ProcessLink {
    Directory,
    Descriptor(RawFd),
}

/// `/proc/<pid>/cwd`, `/proc/<pid>/fd/<n>`, and the same below `task/<tid>`.
fn process_link(path: &Path) -> Option<(libc::pid_t, ProcessLink)> {
    let rest = path.strip_prefix("/proc").ok()?.to_str()?;
    let parts: Vec<&str> = rest.split('/').collect();
    let (process, what) = match parts.as_slice() {
        [_, "task", thread, what @ ..] => (thread, what),
        [process, what @ ..] => (process, what),
        [] => return None,
    };
    let process = process.parse().ok()?;
    match what {
        ["cwd"] => Some((process, ProcessLink::Directory)),
        ["fd", number] => Some((process, ProcessLink::Descriptor(number.parse().ok()?))),
        _ => None,
    }
}

/// Whether a path in `/proc` or `/dev` may be, or may go through, something that [`process_link`] knows.
fn names_descriptor(path: &Path) -> bool {
    let bytes = path.as_os_str().as_bytes();
    let contains = |part: &[u8]| bytes.windows(part.len()).any(|window| window == part);
    contains(b"/fd/") || contains(b"/cwd") || path.starts_with("/dev/fd")
}

fn names_of(path: &Path) -> VecDeque<OsString> {
    path.components()
        .filter_map(|part| match part {
            Component::Normal(name) => Some(name.to_owned()),
            Component::ParentDir => Some(OsString::from("..")),
            _ => None,
        })
        .collect()
}

/// Without `.`, `..` and doubled slashes, by the text alone.
fn normalized(path: &Path) -> PathBuf {
    let bytes = path.as_os_str().as_bytes();
    let odd = bytes.windows(2).any(|pair| matches!(pair, b"//" | b"/."));
    let ends_with_slash = bytes.len() > 1 && bytes.ends_with(b"/");
    if !odd && !ends_with_slash {
        return path.to_path_buf();
    }
    let mut normal: Vec<u8> = Vec::with_capacity(bytes.len());
    for part in path.components() {
        match part {
            Component::Normal(name) => {
                normal.push(b'/');
                normal.extend(name.as_bytes());
            }
            Component::ParentDir => {
                let end = normal.iter().rposition(|byte| *byte == b'/').unwrap_or(0);
                normal.truncate(end);
            }
            _ => {}
        }
    }
    if normal.is_empty() {
        normal.push(b'/');
    }
    PathBuf::from(OsString::from_vec(normal))
}

/// The path under which a descriptor of the application was opened, if it is of a remote file.
pub(super) fn opened_path(
    supervisor: &Supervisor,
    thread: libc::pid_t,
    descriptor: RawFd,
) -> Option<(PathBuf, libc::statx)> {
    if !supervisor.files.any_opened() {
        return None;
    }
    let description = describe_descriptor(thread, descriptor)?;
    let path = supervisor.files.path_of(&description)?;
    Some((path, description))
}

pub(super) fn is_directory(thread: libc::pid_t, descriptor: RawFd) -> bool {
    describe_descriptor(thread, descriptor)
        .is_some_and(|description| u32::from(description.stx_mode) & libc::S_IFMT == libc::S_IFDIR)
}

fn describe_descriptor(thread: libc::pid_t, descriptor: RawFd) -> Option<libc::statx> {
    let path = CString::new(format!("/proc/{thread}/fd/{descriptor}")).ok()?;
    // Its number and kind never change, and the file may be one that is far away.
    files::describe_at(libc::AT_FDCWD, &path, libc::AT_STATX_DONT_SYNC).ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn paths_are_normalized() {
        let table = [
            ("/", "/"),
            ("/a/b", "/a/b"),
            ("//a//b/", "/a/b"),
            ("/a/./b/.", "/a/b"),
            ("/a/../b", "/b"),
            ("/../..", "/"),
            ("/a/b/../../c/..", "/"),
            ("/.hidden/..x", "/.hidden/..x"),
        ];
        for (path, expected) in table {
            assert_eq!(normalized(Path::new(path)), Path::new(expected), "{path}");
        }
    }

    #[test]
    fn links_of_processes_are_known() {
        let known = |path: &str| process_link(Path::new(path)).map(|(process, _)| process);
        assert_eq!(known("/proc/12/cwd"), Some(12));
        assert_eq!(known("/proc/12/fd/3"), Some(12));
        assert_eq!(known("/proc/12/task/13/fd/3"), Some(13));
        assert_eq!(known("/proc/12/fd"), None);
        assert_eq!(known("/proc/self/fd/3"), None);
        assert_eq!(known("/proc/12/status"), None);
        assert_eq!(known("/srv/12/cwd"), None);
    }
}
