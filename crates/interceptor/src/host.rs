//! The [`Host`] trait: decides which calls are remote, and performs them.
//!
//! The `choose_*` methods of [`Host`], [`Host::connect`] and the `start_*` methods of [`RemoteFiles`] run on the thread
//! that receives all system calls of the application, so they must be quick and must never block. All other methods run
//! on worker threads and may block as long as they like: a slow operation of one application thread never delays
//! another thread.

use std::ffi::{OsStr, OsString};
use std::net::SocketAddr;
use std::os::fd::{BorrowedFd, OwnedFd};
use std::path::{Path, PathBuf};

use crate::Errno;
use crate::incoming::PendingListener;
use crate::metadata::{FileSystemStats, Metadata, Times};
use crate::outgoing::{Destination, PendingConnection, Transport};

/// The result of a remote call: a value, or the [`Disposition`] of a call that has none.
pub type CallResult<T> = Result<T, Disposition>;

/// What happens to a call for which the host returns no value.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Disposition {
    /// The call fails with this error.
    Fail(Errno),
    /// The local kernel performs the call after all.
    Local,
}

impl From<Errno> for Disposition {
    fn from(errno: Errno) -> Self {
        Self::Fail(errno)
    }
}

/// Where the file of a path is.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum PathChoice {
    /// On this machine.
    Local,
    /// On this machine, at this other path.
    LocalAs(PathBuf),
    /// On the target, at this path.
    Remote(PathBuf),
    /// Access is refused: the call fails with this error, `ENOENT` for a path that is hidden.
    Refused(Errno),
}

/// How a connection or datagram is routed.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum DestinationChoice {
    /// It leaves from this machine.
    Local,
    /// The host connects it.
    Remote,
    /// It is refused: the call fails with this error.
    Refused(Errno),
}

/// Which traffic a listening socket of the application receives.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ListenerChoice {
    /// Only the traffic of this machine.
    Local,
    /// The traffic of the target as well: [`Host::listen`] is called for it.
    Target,
}

/// What a call does with a path.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Intent {
    /// Inspects it without opening it: `stat`, `access`, `readlink`, `chdir`.
    Stat,
    /// Opens it for reading.
    Read,
    /// Creates, changes or removes it, or opens it for writing.
    Write,
    /// Opens it for reading and writing and keeps its content.
    ReadAndWrite,
}

/// An event that the user should know about and that is not an error.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub enum Notice {
    /// A program of another architecture (32-bit) runs; all its calls are local.
    ForeignArchitecture { process: i32 },
    /// The memory of a process cannot be read; all its calls are local.
    UnreadableMemory { process: i32, errno: Errno },
    /// A remote path cannot be watched for changes; programs that poll instead work.
    WatchRefused { path: PathBuf },
    /// A set-user-ID program runs without its extra privileges: an unprivileged supervisor must set `no_new_privs`.
    NoPrivileges { path: PathBuf },
    /// The application binds an address that is not available on this machine. It sees the requested address; on this
    /// machine it is reachable at the actual one.
    PortMoved {
        transport: Transport,
        requested: SocketAddr,
        actual: SocketAddr,
    },
    /// A Unix socket was bound to a remote path. It is created on this machine and cannot be reached from the target.
    LocalUnixSocket { path: PathBuf },
    /// The application executes a program that exists only on the target. Programs are started from this machine only.
    RemoteProgram { path: PathBuf },
    /// A program that is skipped cannot be executed in the working directory, which is on the target. The kernel cannot
    /// change to the directory with the same path on this machine; `EPERM` if the process is traced by another one.
    NoLocalDirectory {
        program: PathBuf,
        directory: PathBuf,
        errno: Errno,
    },
}

/// Decides which calls are remote, and performs them.
pub trait Host: Send + Sync + 'static {
    /// Chooses where the file of an absolute path is. The path has no `.`, `..` or doubled slashes. Must not block; see
    /// the module documentation.
    fn choose_path(&self, path: &Path, intent: Intent) -> PathChoice {
        let _ = (path, intent);
        PathChoice::Local
    }

    /// Called once for each path of an intercepted call, with the choice that takes effect. Resolving a path may consult
    /// [`choose_path`](Host::choose_path) for other paths too, such as those of symbolic links.
    fn path_decided(&self, path: &Path, intent: Intent, choice: &PathChoice) {
        let _ = (path, intent, choice);
    }

    /// Called when a process executes a program, before the kernel does so. A search through `PATH` calls it for each
    /// path that is tried. Must not block; see the module documentation.
    fn process_executes(&self, process: u32, program: &Path) {
        let _ = (process, program);
    }

    /// Called when a process exits by itself, before it has ended. It is not called for a process that is killed, and it
    /// may be the first call for a process that never executed a program. Must not block; see the module documentation.
    fn process_exits(&self, process: u32) {
        let _ = process;
    }

    /// Chooses how a connection or datagram is routed. Must not block; see the module documentation. Traffic to a
    /// localhost port on which the application itself listens is local regardless of the result.
    fn choose_destination(
        &self,
        transport: Transport,
        destination: &Destination,
    ) -> DestinationChoice {
        let _ = (transport, destination);
        DestinationChoice::Local
    }

    /// The files for which [`choose_path`](Host::choose_path) returns [`PathChoice::Remote`].
    fn files(&self) -> &dyn RemoteFiles {
        &NoFiles
    }

    /// Establishes a connection for which [`choose_destination`](Host::choose_destination) returned
    /// [`DestinationChoice::Remote`]. Must not block: `outgoing` may be completed from any thread at any time.
    fn connect(&self, outgoing: PendingConnection) {
        outgoing.refuse(Errno::ENETUNREACH);
    }

    /// Chooses which traffic a socket receives on which the application starts to listen (TCP), or which it binds to a
    /// port (UDP). Must not block; see the module documentation.
    fn choose_listener(&self, transport: Transport, address: SocketAddr) -> ListenerChoice {
        let _ = (transport, address);
        ListenerChoice::Local
    }

    /// Chooses another local port for a socket that the application binds; `None` keeps the requested port. The
    /// application sees the requested port. Must not block; see the module documentation.
    fn choose_port(&self, transport: Transport, address: SocketAddr) -> Option<u16> {
        let _ = (transport, address);
        None
    }

    /// The application listens on an address for which [`choose_listener`](Host::choose_listener) returned
    /// [`ListenerChoice::Target`]. Its call returns when `listening` is completed, from any thread at any time.
    fn listen(&self, listening: PendingListener) {
        listening.refuse(Errno::EOPNOTSUPP);
    }

    /// The host name that the application sees until it sets another one. `None` leaves host name and domain name to
    /// the kernel.
    fn hostname(&self) -> Option<OsString> {
        None
    }

    /// Whether the program at this path, which is about to be executed, is skipped: all its calls are local. The method
    /// is called again for each program that it starts. If its working directory is on the target, it is executed in the
    /// directory with the same path on this machine; if there is none, it is not executed.
    fn skips_program(&self, program: &Path) -> bool {
        let _ = program;
        false
    }

    /// Reports an event to the user.
    fn notice(&self, notice: &Notice) {
        tracing::warn!(?notice, "interceptor notice");
    }
}

/// Completes a call with its result, exactly once. It writes into the application's memory or installs a descriptor
/// there, which may block for a moment. Call it within the `start_*` method or on a thread that may block, but not on a
/// thread of an async runtime: the kernel may need that runtime to serve the memory or the descriptor.
pub type Completion<T> = Box<dyn FnOnce(CallResult<T>) + Send>;

/// How a file is opened.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct OpenOptions {
    /// Flags of `open` (`O_RDONLY`, `O_CREAT`, …). `O_CLOEXEC` may be ignored: it is handled separately.
    pub flags: i32,
    /// The mode of a created file, with the umask of the process already applied.
    pub mode: u32,
    /// Flags of `openat2` (`RESOLVE_…`).
    pub resolve: u64,
}

/// The files of the target. Paths are absolute, as returned in [`PathChoice::Remote`]. `follow` tells whether a
/// symbolic link at the end of the path is followed; links before the end are always followed, on the target.
///
/// The default implementations fail with `EOPNOTSUPP`.
pub trait RemoteFiles: Send + Sync {
    /// Opens a file or directory. The application gets this very descriptor, so it should support everything that a
    /// native one does: reading, seeking, and listing of directories.
    fn open(&self, path: &Path, options: &OpenOptions) -> CallResult<OwnedFd>;

    fn metadata(&self, path: &Path, follow: bool) -> CallResult<Metadata>;

    /// Like [`open`](Self::open), but does not wait for the result: the host calls `then` with it, immediately or later
    /// (see [`Completion`] for the thread). This method and the two below run on the thread that receives all calls of
    /// the application. A host that would have to block returns `then` in `Err`; the blocking method is then called on
    /// a worker thread.
    fn start_open(
        &self,
        path: &Path,
        options: &OpenOptions,
        then: Completion<OwnedFd>,
    ) -> Result<(), Completion<OwnedFd>> {
        let _ = (path, options);
        Err(then)
    }

    /// Like [`metadata`](Self::metadata), but does not wait; see [`start_open`](Self::start_open).
    fn start_metadata(
        &self,
        path: &Path,
        follow: bool,
        then: Completion<Metadata>,
    ) -> Result<(), Completion<Metadata>> {
        let _ = (path, follow);
        Err(then)
    }

    /// Like [`access`](Self::access), but does not wait; see [`start_open`](Self::start_open).
    fn start_access(
        &self,
        path: &Path,
        mode: i32,
        follow: bool,
        then: Completion<()>,
    ) -> Result<(), Completion<()>> {
        let _ = (path, mode, follow);
        Err(then)
    }

    fn read_link(&self, path: &Path) -> CallResult<PathBuf>;

    /// The path without symbolic links, as `getcwd` returns it. The default implementation reads one link per path
    /// component; a host that can resolve the path in one request should override it.
    fn canonical(&self, path: &Path) -> CallResult<PathBuf> {
        canonical(self, path)
    }

    /// `mode` as in `access` (`R_OK`, …).
    fn access(&self, path: &Path, mode: i32, follow: bool) -> CallResult<()>;

    fn file_system(&self, path: &Path) -> CallResult<FileSystemStats> {
        let _ = path;
        unsupported()
    }

    fn create_directory(&self, path: &Path, mode: u32) -> CallResult<()> {
        let _ = (path, mode);
        unsupported()
    }

    /// `mode` includes the file type, as in `mknod`.
    fn create_node(&self, path: &Path, mode: u32, device: u64) -> CallResult<()> {
        let _ = (path, mode, device);
        unsupported()
    }

    fn remove_file(&self, path: &Path) -> CallResult<()> {
        let _ = path;
        unsupported()
    }

    fn remove_directory(&self, path: &Path) -> CallResult<()> {
        let _ = path;
        unsupported()
    }

    /// `flags` as in `renameat2`.
    fn rename(&self, from: &Path, to: &Path, flags: u32) -> CallResult<()> {
        let _ = (from, to, flags);
        unsupported()
    }

    fn create_hard_link(&self, from: &Path, to: &Path, follow: bool) -> CallResult<()> {
        let _ = (from, to, follow);
        unsupported()
    }

    /// Links an open file, which may have no name (`O_TMPFILE`), to a path. `file` is a descriptor that
    /// [`open`](Self::open) returned.
    fn name_open_file(&self, file: BorrowedFd<'_>, to: &Path) -> CallResult<()> {
        let _ = (file, to);
        unsupported()
    }

    fn create_symbolic_link(&self, content: &Path, path: &Path) -> CallResult<()> {
        let _ = (content, path);
        unsupported()
    }

    fn set_mode(&self, path: &Path, mode: u32, follow: bool) -> CallResult<()> {
        let _ = (path, mode, follow);
        unsupported()
    }

    /// `None` leaves the value unchanged.
    fn set_owner(
        &self,
        path: &Path,
        user: Option<u32>,
        group: Option<u32>,
        follow: bool,
    ) -> CallResult<()> {
        let _ = (path, user, group, follow);
        unsupported()
    }

    fn set_times(&self, path: &Path, times: &Times, follow: bool) -> CallResult<()> {
        let _ = (path, times, follow);
        unsupported()
    }

    fn set_length(&self, path: &Path, length: u64) -> CallResult<()> {
        let _ = (path, length);
        unsupported()
    }

    fn attribute(&self, path: &Path, name: &OsStr, follow: bool) -> CallResult<Vec<u8>> {
        let _ = (path, name, follow);
        unsupported()
    }

    /// The names of all extended attributes, each terminated by a zero byte.
    fn attributes(&self, path: &Path, follow: bool) -> CallResult<Vec<u8>> {
        let _ = (path, follow);
        unsupported()
    }

    /// `flags` as in `setxattr`.
    fn set_attribute(
        &self,
        path: &Path,
        name: &OsStr,
        value: &[u8],
        flags: i32,
        follow: bool,
    ) -> CallResult<()> {
        let _ = (path, name, value, flags, follow);
        unsupported()
    }

    fn remove_attribute(&self, path: &Path, name: &OsStr, follow: bool) -> CallResult<()> {
        let _ = (path, name, follow);
        unsupported()
    }
}

fn canonical<Files: RemoteFiles + ?Sized>(files: &Files, path: &Path) -> CallResult<PathBuf> {
    /// The longest chain of symbolic links that the kernel follows.
    const MAX_LINKS: u32 = 40;
    let components = |path: &Path| -> Vec<OsString> {
        let parts = path.components().rev().filter(|part| {
            matches!(
                part,
                std::path::Component::Normal(_) | std::path::Component::ParentDir
            )
        });
        parts.map(|part| part.as_os_str().to_owned()).collect()
    };
    let mut rest = components(path);
    let mut done = PathBuf::from("/");
    let mut links = 0;
    while let Some(name) = rest.pop() {
        if name == ".." {
            done.pop();
            continue;
        }
        done.push(name);
        match files.read_link(&done) {
            Ok(content) => {
                links += 1;
                if links > MAX_LINKS {
                    return Err(Errno::ELOOP.into());
                }
                done.pop();
                if content.is_absolute() {
                    done = PathBuf::from("/");
                }
                rest.extend(components(&content));
            }
            // It is not a symbolic link.
            Err(Disposition::Fail(Errno::EINVAL)) => {}
            Err(disposition) => return Err(disposition),
        }
    }
    Ok(done)
}

fn unsupported<T>() -> CallResult<T> {
    Err(Disposition::Fail(Errno::EOPNOTSUPP))
}

/// A target without files.
#[derive(Debug)]
struct NoFiles;

impl RemoteFiles for NoFiles {
    fn open(&self, _: &Path, _: &OpenOptions) -> CallResult<OwnedFd> {
        Err(Errno::ENOENT.into())
    }

    fn metadata(&self, _: &Path, _: bool) -> CallResult<Metadata> {
        Err(Errno::ENOENT.into())
    }

    fn read_link(&self, _: &Path) -> CallResult<PathBuf> {
        Err(Errno::ENOENT.into())
    }

    fn access(&self, _: &Path, _: i32, _: bool) -> CallResult<()> {
        Err(Errno::ENOENT.into())
    }
}
