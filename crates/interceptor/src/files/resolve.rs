//! From the path that a call names to the file that it means, as the kernel would find it in a tree of which some
//! parts are the target's.
//!
//! Most paths are local, absolute or below the working directory, and without symbolic links. One `openat2` that
//! follows no link and reads no disk tells so, which is why a local `open` costs little more than the two context
//! switches. All others are walked name by name.

use std::collections::VecDeque;
use std::ffi::{CString, OsStr, OsString};
use std::os::fd::{AsRawFd, RawFd};
use std::os::unix::ffi::OsStrExt;
use std::path::{Component, Path, PathBuf};

use super::path::{ProcessLink, names_descriptor, names_of, normalized, process_link};
use super::request::{Operation, PathArgument, Request};
use crate::Errno;
use crate::host::{Instead, Intent, PathChoice};
use crate::notification::{Notification, errno_of};
use crate::process::{group_of, joined};
use crate::supervisor::Supervisor;
use crate::sys::files;

/// Where the file of a path is.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum Place {
    /// Where the kernel finds it by itself.
    Local,
    /// On this machine, where the kernel would not find it: from where it believes the caller to be, or under the name
    /// that the caller knows.
    Machine {
        /// The absolute path as the application sees it.
        seen: PathBuf,
        /// Its name on this machine.
        path: PathBuf,
    },
    Remote {
        /// The absolute path as the application sees it.
        seen: PathBuf,
        /// Its name at the target.
        target: PathBuf,
    },
    /// Open, by the descriptor of a process, and perhaps without a name.
    Open(libc::pid_t, RawFd),
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

/// The path may not leave its directory.
const CONFINED: u64 = libc::RESOLVE_BENEATH | libc::RESOLVE_IN_ROOT;

/// Where a path leads before the host was asked.
struct Resolved {
    seen: PathBuf,
    /// The kernel would not find it.
    detached: bool,
    /// It is a link in `/proc`, and this is its content.
    link: Option<PathBuf>,
    /// There is no way there.
    refused: Option<Errno>,
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
        enters: request.operation == Operation::Chdir,
        effort,
    };
    if let (Operation::HardLink, Some(second)) = (request.operation, &request.second)
        && let Some((process, number)) = resolver.descriptor(&request.path)
        && opened_path(supervisor, process, number).is_some()
    {
        return Some(match resolver.place(second)?.0 {
            second @ (Place::Remote { .. } | Place::Machine { .. }) => {
                vec![Place::Open(process, number), second]
            }
            _ => vec![Place::Refused(Errno::EXDEV)],
        });
    }
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
    let is_detached = |place: &Place| matches!(place, Place::Machine { .. });
    // What is in `/proc` is on a file system of its own.
    let is_link = |place: &Place| matches!(place, Place::Link(_));
    let apart = is_remote(&first.0) != is_remote(&second.0);
    if apart || is_link(&first.0) && is_detached(&second.0) {
        return vec![Place::Refused(Errno::EXDEV)];
    }
    if is_detached(&first.0) || is_detached(&second.0) {
        return vec![on_machine(first), on_machine(second)];
    }
    vec![first.0, second.0]
}

/// The same place, for us to find.
fn on_machine((place, seen): (Place, PathBuf)) -> Place {
    match place {
        Place::Local => Place::Machine {
            path: seen.clone(),
            seen,
        },
        place => place,
    }
}

struct Resolver<'a> {
    supervisor: &'a Supervisor,
    thread: libc::pid_t,
    intent: Intent,
    /// Whether what is found becomes the working directory.
    enters: bool,
    effort: Effort,
}

impl Resolver<'_> {
    /// The place, and the absolute path if it is known.
    fn place(&self, argument: &PathArgument) -> Option<(Place, PathBuf)> {
        let local = Some((Place::Local, PathBuf::new()));
        // Empty paths are about a descriptor, or an error that the kernel reports best.
        if argument.path.is_empty() && !(argument.empty && argument.directory == libc::AT_FDCWD) {
            return local;
        }
        let path = Path::new(OsStr::from_bytes(&argument.path));
        if argument.resolve & CONFINED != 0 {
            return Some(self.confined(argument, path));
        }
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
        if let Some(errno) = resolved.refused {
            return Some((Place::Refused(errno), resolved.seen));
        }
        if let Some(link) = resolved.link {
            return Some((Place::Link(link), resolved.seen));
        }
        Some((
            self.choose(&resolved.seen, resolved.detached),
            resolved.seen,
        ))
    }

    /// The descriptor that a path stands for: it is empty, or a link in `/proc` that is followed.
    fn descriptor(&self, argument: &PathArgument) -> Option<(libc::pid_t, RawFd)> {
        if argument.path.is_empty() {
            return argument.empty.then_some((self.thread, argument.directory));
        }
        let path = normalized(Path::new(OsStr::from_bytes(&argument.path)));
        if !argument.follow || !path.is_absolute() || !names_descriptor(&path) {
            return None;
        }
        let own = ["/proc/self/fd", "/proc/thread-self/fd", "/dev/fd"];
        if let Some(number) = own.iter().find_map(|own| path.strip_prefix(own).ok()) {
            return Some((self.thread, number.to_str()?.parse().ok()?));
        }
        match process_link(&path)? {
            (process, ProcessLink::Descriptor(number)) => Some((process, number)),
            (_, ProcessLink::Directory) => None,
        }
    }

    fn choose(&self, seen: &Path, detached: bool) -> Place {
        match self.supervisor.host.choose_path(seen, self.intent) {
            PathChoice::Local if detached => Place::Machine {
                seen: seen.to_path_buf(),
                path: seen.to_path_buf(),
            },
            PathChoice::LocalAs(path) => Place::Machine {
                seen: seen.to_path_buf(),
                path,
            },
            PathChoice::Local => Place::Local,
            PathChoice::Refused(errno) => Place::Refused(errno),
            PathChoice::Remote(target) => Place::Remote {
                seen: seen.to_path_buf(),
                target,
            },
        }
    }

    /// A path of `openat2` that may not leave its directory, or for which that is the root. No link leads out of it,
    /// so the links of this machine need no look.
    fn confined(&self, argument: &PathArgument, path: &Path) -> (Place, PathBuf) {
        let local = (Place::Local, PathBuf::new());
        let Some((start, detached)) = self.start(argument.directory) else {
            return local;
        };
        let as_root = argument.resolve & libc::RESOLVE_IN_ROOT != 0;
        let whole = if as_root {
            let below = normalized(&Path::new("/").join(path));
            joined(&start, below.strip_prefix("/").unwrap_or(&below))
        } else if path.is_absolute() {
            // The kernel refuses it.
            return local;
        } else {
            normalized(&start.join(path))
        };
        if !whole.starts_with(&start) {
            return match detached {
                true => (Place::Refused(Errno::EXDEV), whole),
                false => local,
            };
        }
        (self.choose(&whole, detached), whole)
    }

    /// Where a relative path starts, and whether the kernel is wrong about it.
    fn start(&self, directory: RawFd) -> Option<(PathBuf, bool)> {
        if directory == libc::AT_FDCWD {
            return working_directory(self.supervisor, self.thread);
        }
        if let Some((path, _)) = opened_path(self.supervisor, self.thread, directory) {
            return Some((path, true));
        }
        linked(&format!("/proc/{}/fd/{directory}", self.thread))
    }

    fn resolve(&self, whole: &Path, follow: bool, detached: bool) -> Option<Resolved> {
        let normal = normalized(whole);
        let resolved = |seen| {
            Some(Resolved {
                seen,
                detached,
                link: None,
                refused: None,
            })
        };
        // These have no links to elsewhere but those that are known, and some of them are never in the kernel's cache.
        if ["/proc", "/dev", "/sys"]
            .iter()
            .any(|tree| normal.starts_with(tree))
        {
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
                match self.above(&seen) {
                    Above::Parent => drop(seen.pop()),
                    Above::Unknown => return None,
                    Above::Refused(errno) => {
                        return Some(Resolved {
                            seen,
                            detached,
                            link: None,
                            refused: Some(errno),
                        });
                    }
                    Above::OfLink(content) => {
                        links += 1;
                        if links > MOST_LINKS {
                            break;
                        }
                        names.push_front(name);
                        go_through(&content, &mut seen, &mut names);
                    }
                }
                continue;
            }
            seen.push(name);
            let followed = follow || !names.is_empty();
            let link = match self.link(&seen) {
                // The kernel follows the last one itself, to the very file.
                Link::Special(content) if names.is_empty() && !self.follows(&content, follow) => {
                    return Some(Resolved {
                        seen,
                        detached,
                        link: content.map(|special| special.content),
                        refused: None,
                    });
                }
                Link::None | Link::Special(None) => continue,
                Link::Special(Some(special)) => {
                    detached = true;
                    special.content
                }
                Link::To(_) if !followed => continue,
                Link::To(content) => content,
            };
            links += 1;
            if links > MOST_LINKS {
                // The kernel says what that is.
                break;
            }
            go_through(&link, &mut seen, &mut names);
        }
        Some(Resolved {
            seen,
            detached,
            link: None,
            refused: None,
        })
    }

    /// What `..` of a path is. The links of this machine on the way there have been followed; those of the target have
    /// not, and the parent of what a link leads to is not that of the link.
    fn above(&self, seen: &Path) -> Above {
        let host = &self.supervisor.host;
        let target = match host.choose_path(seen, Intent::Look) {
            PathChoice::Remote(target) => target,
            PathChoice::Refused(errno) => return Above::Refused(errno),
            PathChoice::Local => return above_on_machine(seen),
            PathChoice::LocalAs(path) => return above_on_machine(&path),
        };
        if self.effort == Effort::Quick {
            return Above::Unknown;
        }
        let files = host.files();
        match files.metadata(&target, false) {
            Err(Instead::Fail(errno)) => Above::Refused(errno),
            Err(Instead::Local) => Above::Parent,
            Ok(found) => match found.mode & libc::S_IFMT {
                libc::S_IFDIR => Above::Parent,
                libc::S_IFLNK => match files.read_link(&target) {
                    Ok(content) if self.stays_remote(seen, &content) => Above::OfLink(content),
                    _ => Above::Parent,
                },
                _ => Above::Refused(Errno::ENOTDIR),
            },
        }
    }

    /// Whether the content of a link of the target, at this path, leads to where the target's files are.
    fn stays_remote(&self, seen: &Path, content: &Path) -> bool {
        let from = seen.parent().unwrap_or(seen);
        let to = normalized(&from.join(content));
        let choice = self.supervisor.host.choose_path(&to, Intent::Look);
        matches!(choice, PathChoice::Remote(target) if target == to)
    }

    /// Whether a link of `/proc` at the end of a path is for us to follow: a working directory that the kernel does not
    /// know, and one that becomes the working directory.
    fn follows(&self, content: &Option<Special>, follow: bool) -> bool {
        let Some(special) = content else {
            return false;
        };
        follow && (self.enters || special.link == ProcessLink::Directory)
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
            Some((process, link)) => {
                let content = match link {
                    ProcessLink::Directory => self.supervisor.processes.directory_of(process),
                    ProcessLink::Descriptor(number) => {
                        opened_path(self.supervisor, process, number).map(|(path, _)| path)
                    }
                };
                Link::Special(content.map(|content| Special { link, content }))
            }
            None => std::fs::read_link(path).map_or(Link::None, Link::To),
        }
    }
}

enum Above {
    Parent,
    /// That of what this link leads to.
    OfLink(PathBuf),
    /// Finding out takes more effort.
    Unknown,
    Refused(Errno),
}

fn above_on_machine(path: &Path) -> Above {
    match std::fs::symlink_metadata(path) {
        Ok(found) if found.is_dir() => Above::Parent,
        Ok(_) => Above::Refused(Errno::ENOTDIR),
        Err(error) => Above::Refused(errno_of(&error)),
    }
}

/// Replaces a link, the last name of `seen`, by its content.
fn go_through(link: &Path, seen: &mut PathBuf, names: &mut VecDeque<OsString>) {
    seen.pop();
    if link.is_absolute() {
        *seen = PathBuf::from("/");
    }
    for name in names_of(link).into_iter().rev() {
        names.push_front(name);
    }
}

enum Link {
    None,
    To(PathBuf),
    /// A link of `/proc` that the kernel follows without its text. With content if its text is for us to tell.
    Special(Option<Special>),
}

struct Special {
    link: ProcessLink,
    content: PathBuf,
}

/// The directory in which a thread is, and whether the kernel is wrong about it.
pub(crate) fn working_directory(
    supervisor: &Supervisor,
    thread: libc::pid_t,
) -> Option<(PathBuf, bool)> {
    match supervisor.processes.directory_of(thread) {
        Some(path) => Some((path, true)),
        None => linked(&format!("/proc/{thread}/cwd")),
    }
}

fn linked(link: &str) -> Option<(PathBuf, bool)> {
    let path = std::fs::read_link(link).ok()?;
    path.is_absolute().then_some((path, false))
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
