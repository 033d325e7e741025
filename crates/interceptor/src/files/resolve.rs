//! Resolves the path argument of a call to a file, like the kernel, in a tree of which some parts are on the target.
//!
//! Most paths are local, absolute or below the working directory, and contain no symbolic links. A single `openat2`
//! that follows no links and uses only cached entries confirms this, so a local `open` costs little more than the two
//! context switches. All other paths are walked component by component.

use std::cell::RefCell;
use std::collections::VecDeque;
use std::ffi::{CString, OsStr, OsString};
use std::os::fd::{AsRawFd, RawFd};
use std::os::unix::ffi::OsStrExt;
use std::path::{Component, Path, PathBuf};

use super::path::{ProcessLink, components_of, may_be_process_link, normalized, process_link};
use super::request::{Operation, PathArgument, Request};
use crate::Errno;
use crate::host::{Disposition, Intent, PathChoice};
use crate::hostname::SystemName;
use crate::notification::{Notification, errno_of};
use crate::process::{group_of, join_path};
use crate::supervisor::Supervisor;
use crate::sys::files;

/// Where the file of a path is.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum ResolvedPath {
    /// Where the kernel finds it without help.
    Local,
    /// On this machine, where the kernel would not find it: because the caller has a virtual working directory, or
    /// because the file has another path for the application.
    Machine {
        /// The absolute path as the application sees it.
        app_path: PathBuf,
        /// The path on this machine.
        path: PathBuf,
    },
    Remote {
        /// The absolute path as the application sees it.
        app_path: PathBuf,
        /// The path on the target.
        target: PathBuf,
    },
    /// An open file that may have no path, by process and descriptor.
    Open(libc::pid_t, RawFd),
    /// A link of `/proc` to a descriptor or working directory, whose content only we know.
    Link(PathBuf),
    /// The file of `/proc` with the host name or domain name.
    SystemName(SystemName),
    Refused(Errno),
}

/// Whether resolution may block.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum ResolveMode {
    /// Never waits for a disk or a network.
    NonBlocking,
    Blocking,
}

/// The longest chain of symbolic links that the kernel follows.
const MAX_LINKS: u32 = 40;

/// The path must not leave its directory.
const CONFINED_FLAGS: u64 = libc::RESOLVE_BENEATH | libc::RESOLVE_IN_ROOT;

/// The result of walking a path, before the host is consulted about its end.
struct PathLookup {
    app_path: PathBuf,
    /// The kernel would not find the file.
    detached: bool,
    /// The content, if the path is a link in `/proc`.
    link: Option<PathBuf>,
    /// The error, if the path cannot be walked.
    refused: Option<Errno>,
    /// The host's choice about `app_path`, if it was consulted already.
    choice: Option<PathChoice>,
}

/// Resolves all paths of a request. Returns `None` if that could block and `mode` forbids it.
pub(super) fn resolve_paths(
    supervisor: &Supervisor,
    notification: &Notification,
    request: &Request,
    mode: ResolveMode,
) -> Option<Vec<ResolvedPath>> {
    let resolver = Resolver {
        supervisor,
        thread: notification.thread(),
        intent: request.operation.intent(),
        is_chdir: request.operation == Operation::Chdir,
        mode,
        decisions: RefCell::default(),
    };
    let paths = resolver.resolve_request(request)?;
    // Only now: a resolution that would block starts again on another thread.
    for (path, choice) in resolver.decisions.borrow().iter() {
        supervisor.host.path_decided(path, resolver.intent, choice);
    }
    Some(paths)
}

/// Both paths of a call must be on the same side, or the call fails.
fn check_same_side(
    first: (ResolvedPath, PathBuf),
    second: (ResolvedPath, PathBuf),
) -> Vec<ResolvedPath> {
    let is_remote = |path: &ResolvedPath| matches!(path, ResolvedPath::Remote { .. });
    let is_detached = |path: &ResolvedPath| matches!(path, ResolvedPath::Machine { .. });
    // `/proc` is a file system of its own.
    let is_link = |path: &ResolvedPath| matches!(path, ResolvedPath::Link(_));
    let apart = is_remote(&first.0) != is_remote(&second.0);
    if apart || is_link(&first.0) && is_detached(&second.0) {
        return vec![ResolvedPath::Refused(Errno::EXDEV)];
    }
    if is_detached(&first.0) || is_detached(&second.0) {
        return vec![as_machine_path(first), as_machine_path(second)];
    }
    vec![first.0, second.0]
}

/// Turns a local path into one that we resolve ourselves.
fn as_machine_path((path, app_path): (ResolvedPath, PathBuf)) -> ResolvedPath {
    match path {
        ResolvedPath::Local => ResolvedPath::Machine {
            path: app_path.clone(),
            app_path,
        },
        path => path,
    }
}

struct Resolver<'a> {
    supervisor: &'a Supervisor,
    thread: libc::pid_t,
    intent: Intent,
    /// Whether the file becomes the working directory.
    is_chdir: bool,
    mode: ResolveMode,
    /// The host's choices about the paths of the call.
    decisions: RefCell<Vec<(PathBuf, PathChoice)>>,
}

impl Resolver<'_> {
    fn resolve_request(&self, request: &Request) -> Option<Vec<ResolvedPath>> {
        if let (Operation::HardLink, Some(second)) = (request.operation, &request.second)
            && let Some((process, number)) = self.descriptor(&request.path)
            && opened_path(self.supervisor, process, number).is_some()
        {
            return Some(match self.resolve_argument(second)?.0 {
                second @ (ResolvedPath::Remote { .. } | ResolvedPath::Machine { .. }) => {
                    vec![ResolvedPath::Open(process, number), second]
                }
                _ => vec![ResolvedPath::Refused(Errno::EXDEV)],
            });
        }
        let first = self.resolve_argument(&request.path)?;
        let Some(second) = &request.second else {
            let is_link_read = matches!(request.operation, Operation::ReadLink { .. });
            return Some(vec![match first.0 {
                ResolvedPath::Link(_) if !is_link_read => ResolvedPath::Local,
                path => path,
            }]);
        };
        Some(check_same_side(first, self.resolve_argument(second)?))
    }

    /// The resolved path, and the absolute path if it is known.
    fn resolve_argument(&self, argument: &PathArgument) -> Option<(ResolvedPath, PathBuf)> {
        let local = Some((ResolvedPath::Local, PathBuf::new()));
        // An empty path refers to a descriptor, or is an error that the kernel reports.
        if argument.path.is_empty() && !(argument.empty && argument.directory == libc::AT_FDCWD) {
            return local;
        }
        let path = Path::new(OsStr::from_bytes(&argument.path));
        if argument.resolve & CONFINED_FLAGS != 0 {
            return Some(self.confined(argument, path));
        }
        let (full_path, detached) = if path.is_absolute() {
            (path.to_path_buf(), false)
        } else {
            match self.base_directory(argument.directory) {
                Some((start, detached)) => (start.join(path), detached),
                None => return local,
            }
        };
        let follow = argument.follow || argument.path.ends_with(b"/");
        let resolved = self.resolve(&full_path, follow, detached)?;
        if let Some(errno) = resolved.refused {
            return Some((ResolvedPath::Refused(errno), resolved.app_path));
        }
        if let Some(link) = resolved.link {
            return Some((ResolvedPath::Link(link), resolved.app_path));
        }
        Some((
            self.locate(&resolved.app_path, resolved.detached, resolved.choice),
            resolved.app_path,
        ))
    }

    /// The descriptor that a path refers to: the path is empty, or a link in `/proc` that is followed.
    fn descriptor(&self, argument: &PathArgument) -> Option<(libc::pid_t, RawFd)> {
        if argument.path.is_empty() {
            return argument.empty.then_some((self.thread, argument.directory));
        }
        let path = normalized(Path::new(OsStr::from_bytes(&argument.path)));
        if !argument.follow || !path.is_absolute() || !may_be_process_link(&path) {
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

    fn locate(&self, app_path: &Path, detached: bool, choice: Option<PathChoice>) -> ResolvedPath {
        let host = &self.supervisor.host;
        if self.supervisor.settings.hostname
            && self.intent != Intent::Stat
            && let Some(name) = SystemName::of_file(app_path)
            && host.hostname().is_some()
        {
            return ResolvedPath::SystemName(name);
        }
        let choice = choice.unwrap_or_else(|| host.choose_path(app_path, self.intent));
        self.decisions
            .borrow_mut()
            .push((app_path.to_path_buf(), choice.clone()));
        match choice {
            PathChoice::Local if detached => ResolvedPath::Machine {
                app_path: app_path.to_path_buf(),
                path: app_path.to_path_buf(),
            },
            PathChoice::LocalAs(path) => ResolvedPath::Machine {
                app_path: app_path.to_path_buf(),
                path,
            },
            PathChoice::Local => ResolvedPath::Local,
            PathChoice::Refused(errno) => ResolvedPath::Refused(errno),
            PathChoice::Remote(target) => ResolvedPath::Remote {
                app_path: app_path.to_path_buf(),
                target,
            },
        }
    }

    /// Resolves a path of `openat2` that must not leave its directory, or that has it as its root. No link leads out of
    /// it, so the links of this machine are not followed.
    fn confined(&self, argument: &PathArgument, path: &Path) -> (ResolvedPath, PathBuf) {
        let local = (ResolvedPath::Local, PathBuf::new());
        let Some((start, detached)) = self.base_directory(argument.directory) else {
            return local;
        };
        let as_root = argument.resolve & libc::RESOLVE_IN_ROOT != 0;
        let full_path = if as_root {
            let below = normalized(&Path::new("/").join(path));
            join_path(&start, below.strip_prefix("/").unwrap_or(&below))
        } else if path.is_absolute() {
            // The kernel refuses an absolute path.
            return local;
        } else {
            normalized(&start.join(path))
        };
        if !full_path.starts_with(&start) {
            return match detached {
                true => (ResolvedPath::Refused(Errno::EXDEV), full_path),
                false => local,
            };
        }
        (self.locate(&full_path, detached, None), full_path)
    }

    /// The base directory of a relative path, and whether it differs from the one that the kernel would use.
    fn base_directory(&self, directory: RawFd) -> Option<(PathBuf, bool)> {
        if directory == libc::AT_FDCWD {
            return working_directory(self.supervisor, self.thread);
        }
        if let Some((path, _)) = opened_path(self.supervisor, self.thread, directory) {
            return Some((path, true));
        }
        read_proc_link(&format!("/proc/{}/fd/{directory}", self.thread))
    }

    fn resolve(&self, full_path: &Path, follow: bool, detached: bool) -> Option<PathLookup> {
        let normal = normalized(full_path);
        let resolved = |app_path, choice| {
            Some(PathLookup {
                app_path,
                detached,
                link: None,
                refused: None,
                choice,
            })
        };
        // These trees only have links that we recognize, and some of their entries are never in the kernel's cache.
        if ["/proc", "/dev", "/sys"]
            .iter()
            .any(|tree| normal.starts_with(tree))
        {
            return match may_be_process_link(&normal) {
                true => self.walk(full_path, follow, detached),
                false => resolved(normal, None),
            };
        }
        let has_parent = full_path
            .components()
            .any(|part| part == Component::ParentDir);
        let choice = self.supervisor.host.choose_path(&normal, self.intent);
        if choice != PathChoice::Local {
            return match (has_parent, self.mode) {
                (false, _) => resolved(normal, Some(choice)),
                (true, ResolveMode::NonBlocking) => None,
                (true, ResolveMode::Blocking) => self.walk(full_path, follow, detached),
            };
        }
        match self.probe(full_path, follow, libc::RESOLVE_NO_SYMLINKS) {
            Err(Errno::ELOOP) => match self.probe(full_path, follow, 0) {
                Ok(file) => {
                    let link = format!("/proc/self/fd/{}", file.as_raw_fd());
                    resolved(std::fs::read_link(link).unwrap_or(normal), None)
                }
                Err(Errno::EAGAIN) => None,
                Err(_) if self.mode == ResolveMode::NonBlocking => None,
                Err(_) => self.walk(full_path, follow, detached),
            },
            Err(Errno::EAGAIN) => None,
            // The file exists; or it does not, or is not accessible, and there is no link on the path up to that point.
            Ok(_) | Err(_) => resolved(normal, Some(choice)),
        }
    }

    /// Opens a file of this machine as `O_PATH`, without touching it.
    fn probe(
        &self,
        path: &Path,
        follow: bool,
        resolve: u64,
    ) -> Result<std::os::fd::OwnedFd, Errno> {
        let path = CString::new(path.as_os_str().as_bytes()).map_err(|_| Errno::EINVAL)?;
        let no_follow = if follow { 0 } else { libc::O_NOFOLLOW };
        let cached = match self.mode {
            ResolveMode::NonBlocking => libc::RESOLVE_CACHED,
            ResolveMode::Blocking => 0,
        };
        let flags = libc::O_PATH | libc::O_CLOEXEC | no_follow;
        files::open(libc::AT_FDCWD, &path, flags, 0, resolve | cached)
    }

    /// Walks the path component by component, following the links of this machine.
    fn walk(&self, full_path: &Path, follow: bool, mut detached: bool) -> Option<PathLookup> {
        let mut components = components_of(full_path);
        let mut app_path = PathBuf::from("/");
        let mut links = 0;
        while let Some(name) = components.pop_front() {
            if name == ".." {
                match self.parent_of(&app_path) {
                    Parent::Lexical => drop(app_path.pop()),
                    Parent::Unknown => return None,
                    Parent::Refused(errno) => {
                        return Some(PathLookup {
                            app_path,
                            detached,
                            link: None,
                            refused: Some(errno),
                            choice: None,
                        });
                    }
                    Parent::OfLink(content) => {
                        links += 1;
                        if links > MAX_LINKS {
                            break;
                        }
                        components.push_front(name);
                        follow_link(&content, &mut app_path, &mut components);
                    }
                }
                continue;
            }
            app_path.push(name);
            let followed = follow || !components.is_empty();
            let link = match self.link(&app_path) {
                // The kernel follows a link at the end of the path itself, directly to the file.
                SymbolicLink::Special(content)
                    if components.is_empty() && !self.follows(&content, follow) =>
                {
                    return Some(PathLookup {
                        app_path,
                        detached,
                        link: content.map(|special| special.content),
                        refused: None,
                        choice: None,
                    });
                }
                SymbolicLink::None | SymbolicLink::Special(None) => continue,
                SymbolicLink::Special(Some(special)) => {
                    detached = true;
                    special.content
                }
                SymbolicLink::To(_) if !followed => continue,
                SymbolicLink::To(content) => content,
            };
            links += 1;
            if links > MAX_LINKS {
                // The kernel reports the error.
                break;
            }
            follow_link(&link, &mut app_path, &mut components);
        }
        Some(PathLookup {
            app_path,
            detached,
            link: None,
            refused: None,
            choice: None,
        })
    }

    /// Resolves `..` of a path. The links of this machine on the path have been followed, those of the target have not:
    /// the parent directory of a link's destination differs from that of the link.
    fn parent_of(&self, app_path: &Path) -> Parent {
        let host = &self.supervisor.host;
        let target = match host.choose_path(app_path, Intent::Stat) {
            PathChoice::Remote(target) => target,
            PathChoice::Refused(errno) => return Parent::Refused(errno),
            PathChoice::Local => return local_parent(app_path),
            PathChoice::LocalAs(path) => return local_parent(&path),
        };
        if self.mode == ResolveMode::NonBlocking {
            return Parent::Unknown;
        }
        let files = host.files();
        match files.metadata(&target, false) {
            Err(Disposition::Fail(errno)) => Parent::Refused(errno),
            Err(Disposition::Local) => Parent::Lexical,
            Ok(found) => match found.mode & libc::S_IFMT {
                libc::S_IFDIR => Parent::Lexical,
                libc::S_IFLNK => match files.read_link(&target) {
                    Ok(content) if self.stays_remote(app_path, &content) => Parent::OfLink(content),
                    _ => Parent::Lexical,
                },
                _ => Parent::Refused(Errno::ENOTDIR),
            },
        }
    }

    /// Whether a symbolic link of the target at this path leads to files that are on the target.
    fn stays_remote(&self, app_path: &Path, content: &Path) -> bool {
        let from = app_path.parent().unwrap_or(app_path);
        let to = normalized(&from.join(content));
        let choice = self.supervisor.host.choose_path(&to, Intent::Stat);
        matches!(choice, PathChoice::Remote(target) if target == to)
    }

    /// Whether we follow a link of `/proc` at the end of a path: if it is a working directory that the kernel does not
    /// know, or if it becomes the working directory.
    fn follows(&self, content: &Option<ProcLink>, follow: bool) -> bool {
        let Some(special) = content else {
            return false;
        };
        follow && (self.is_chdir || special.link == ProcessLink::Directory)
    }

    /// The symbolic link at an absolute path of this machine, if there is one.
    fn link(&self, path: &Path) -> SymbolicLink {
        if self.supervisor.host.choose_path(path, Intent::Stat) != PathChoice::Local {
            return SymbolicLink::None;
        }
        // These depend on the calling process.
        if path == Path::new("/proc/self") {
            let process = group_of(self.thread).unwrap_or(self.thread);
            return SymbolicLink::To(PathBuf::from(process.to_string()));
        }
        if path == Path::new("/proc/thread-self") {
            let process = group_of(self.thread).unwrap_or(self.thread);
            return SymbolicLink::To(PathBuf::from(format!("{process}/task/{}", self.thread)));
        }
        match process_link(path) {
            Some((process, link)) => {
                let content = match link {
                    ProcessLink::Directory => self.supervisor.processes.directory_of(process),
                    ProcessLink::Descriptor(number) => {
                        opened_path(self.supervisor, process, number).map(|(path, _)| path)
                    }
                };
                SymbolicLink::Special(content.map(|content| ProcLink { link, content }))
            }
            None => std::fs::read_link(path).map_or(SymbolicLink::None, SymbolicLink::To),
        }
    }
}

enum Parent {
    /// The path without its last component.
    Lexical,
    /// The parent of the destination of this link.
    OfLink(PathBuf),
    /// Resolution could block.
    Unknown,
    Refused(Errno),
}

fn local_parent(path: &Path) -> Parent {
    match std::fs::symlink_metadata(path) {
        Ok(found) if found.is_dir() => Parent::Lexical,
        Ok(_) => Parent::Refused(Errno::ENOTDIR),
        Err(error) => Parent::Refused(errno_of(&error)),
    }
}

/// Replaces a link, the last component of `app_path`, with its content.
fn follow_link(link: &Path, app_path: &mut PathBuf, components: &mut VecDeque<OsString>) {
    app_path.pop();
    if link.is_absolute() {
        *app_path = PathBuf::from("/");
    }
    for name in components_of(link).into_iter().rev() {
        components.push_front(name);
    }
}

enum SymbolicLink {
    None,
    To(PathBuf),
    /// A link of `/proc` that the kernel follows without using its text. It has content if only we know its text.
    Special(Option<ProcLink>),
}

struct ProcLink {
    link: ProcessLink,
    content: PathBuf,
}

/// The working directory of a thread, and whether it differs from the one that the kernel has.
pub(crate) fn working_directory(
    supervisor: &Supervisor,
    thread: libc::pid_t,
) -> Option<(PathBuf, bool)> {
    match supervisor.processes.directory_of(thread) {
        Some(path) => Some((path, true)),
        None => read_proc_link(&format!("/proc/{thread}/cwd")),
    }
}

fn read_proc_link(link: &str) -> Option<(PathBuf, bool)> {
    let path = std::fs::read_link(link).ok()?;
    path.is_absolute().then_some((path, false))
}

/// The path under which the application opened a remote file, by descriptor.
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
    // Inode and type never change, so a remote file system need not be queried.
    files::describe_at(libc::AT_FDCWD, &path, libc::AT_STATX_DONT_SYNC).ok()
}
