//! The other side: whoever knows what is remote and how to get it.
//!
//! [`Host::choose_path`] and [`Host::choose_destination`] are asked for each call, on the thread that receives all
//! calls of the application, and so must be quick and never wait. So are [`Host::connect`] and the questions of
//! [`RemoteFiles`] that are only started. Everything else is asked on threads that may wait as long as they like: a slow
//! operation of one thread of the application never delays another's.

use std::ffi::{OsStr, OsString};
use std::net::SocketAddr;
use std::os::fd::{BorrowedFd, OwnedFd};
use std::path::{Path, PathBuf};

use crate::Errno;
use crate::incoming::Listening;
use crate::metadata::{FileSystem, Metadata, Times};
use crate::outgoing::{Destination, Outgoing, Transport};

/// What a call is answered with: a value, or what happens [`Instead`].
pub type Answer<T> = Result<T, Instead>;

/// What happens to a call that the host does not answer with a value.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Instead {
    /// It fails with this error.
    Fail(Errno),
    /// It is done on this machine after all.
    Local,
}

impl From<Errno> for Instead {
    fn from(errno: Errno) -> Self {
        Self::Fail(errno)
    }
}

/// Where a path leads.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum PathChoice {
    /// To this machine.
    Local,
    /// To this machine, where it has this other name.
    LocalAs(PathBuf),
    /// To the target, where it has this name.
    Remote(PathBuf),
    /// Nowhere: the call fails, with `ENOENT` for a path that shall not be found.
    Refused(Errno),
}

/// Where a connection or datagram goes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum DestinationChoice {
    /// It leaves from this machine.
    Local,
    /// Through the host.
    Remote,
    /// Nowhere: the call fails.
    Refused(Errno),
}

/// Whose traffic comes to a socket with which the application listens.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ListenerChoice {
    /// This machine's alone.
    Local,
    /// The target's as well: [`Host::listen`] is asked for it.
    Target,
}

/// What a call wants with a path.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Intent {
    /// To know of it: `stat`, `access`, `readlink`, `chdir`.
    Look,
    /// To open it for reading.
    Read,
    /// To create, change or remove it, or to open it for writing.
    Write,
    /// To open it for reading and writing, with the content that it has.
    ReadAndWrite,
}

/// Something that a user should know and that is no error.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub enum Notice {
    /// A program of another architecture (32-bit) runs, and everything that it does is local.
    ForeignArchitecture { process: i32 },
    /// The memory of a process cannot be read, so everything that it does is local.
    Unreadable { process: i32, errno: Errno },
    /// A remote path cannot be watched for changes; programs that poll instead work.
    WatchRefused { path: PathBuf },
    /// A program that would run as somebody else (set-user-ID) does not: who may not supervise such programs gives up
    /// gaining privileges.
    NoPrivileges { path: PathBuf },
    /// The application listens where this machine's port or address cannot be had. It sees the address that it asked for;
    /// on this machine it is reached at another.
    PortMoved {
        transport: Transport,
        asked: SocketAddr,
        used: SocketAddr,
    },
    /// A Unix socket was bound to a remote path. It is made on this machine, where nobody at the target reaches it.
    SocketHere { path: PathBuf },
    /// A program at a remote path was to be started. Programs are started from this machine, which does not have it.
    ProgramNotHere { path: PathBuf },
}

/// Decides what is remote, and does it.
pub trait Host: Send + Sync + 'static {
    /// Where an absolute path leads, without `.`, `..` and doubled slashes. Quick; see the module's documentation.
    fn choose_path(&self, path: &Path, intent: Intent) -> PathChoice {
        let _ = (path, intent);
        PathChoice::Local
    }

    /// Where a connection or datagram goes. Quick; see the module's documentation. What goes to a port of localhost on which
    /// the application itself listens is local whatever this says.
    fn choose_destination(
        &self,
        transport: Transport,
        destination: &Destination,
    ) -> DestinationChoice {
        let _ = (transport, destination);
        DestinationChoice::Local
    }

    /// The files for which [`choose_path`](Host::choose_path) says [`PathChoice::Remote`].
    fn files(&self) -> &dyn RemoteFiles {
        &NoFiles
    }

    /// Connects what [`choose_destination`](Host::choose_destination) says is [`DestinationChoice::Remote`]. Returns without waiting for
    /// anybody else: `outgoing` is completed from any thread at any time.
    fn connect(&self, outgoing: Outgoing) {
        outgoing.refuse(Errno::ENETUNREACH);
    }

    /// Whose traffic comes to a socket with which the application begins to listen (TCP), or which it binds to a port
    /// (UDP). Quick; see the module's documentation.
    fn choose_listener(&self, transport: Transport, address: SocketAddr) -> ListenerChoice {
        let _ = (transport, address);
        ListenerChoice::Local
    }

    /// The port of this machine for a socket that the application binds, where it shall be another one than it asks for. It
    /// sees the one that it asked for. Quick; see the module's documentation.
    fn choose_port(&self, transport: Transport, address: SocketAddr) -> Option<u16> {
        let _ = (transport, address);
        None
    }

    /// The application listens where [`choose_listener`](Host::choose_listener) says [`ListenerChoice::Target`]. Its call
    /// returns when `listening` is completed, from any thread at any time.
    fn listen(&self, listening: Listening) {
        listening.refuse(Errno::EOPNOTSUPP);
    }

    /// The name of the host as the application sees it.
    fn hostname(&self) -> Option<OsString> {
        None
    }

    /// Whether a program, given by the path that is executed, is left alone: everything that it does is local. The
    /// programs that it starts are asked for again.
    fn leaves_alone(&self, program: &Path) -> bool {
        let _ = program;
        false
    }

    /// Something happened that the user should know.
    fn notice(&self, notice: &Notice) {
        tracing::warn!(?notice, "interceptor");
    }
}

/// What is done with an answer, once. It belongs on a thread that may wait a moment for the application: it writes into its
/// memory, or gives it a descriptor.
pub type Then<T> = Box<dyn FnOnce(Answer<T>) + Send>;

/// How a file is opened.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct OpenOptions {
    /// As `open` takes them (`O_RDONLY`, `O_CREAT`, …). `O_CLOEXEC` may be ignored: it is kept apart.
    pub flags: i32,
    /// The mode of a file that is created; the process's mask is applied already.
    pub mode: u32,
    /// As `openat2` takes them (`RESOLVE_…`).
    pub resolve: u64,
}

/// The target's files. Paths are absolute, as [`PathChoice::Remote`] named them. `follow` says whether a symbolic link
/// at the end of the path is followed; those before are always followed, at the target.
///
/// What is not written answers `EOPNOTSUPP`.
pub trait RemoteFiles: Send + Sync {
    /// Opens a file or directory. The descriptor is given to the application as it is, so it should be all that the
    /// application could want of it: readable, seekable, and for directories listable.
    fn open(&self, path: &Path, options: &OpenOptions) -> Answer<OwnedFd>;

    fn metadata(&self, path: &Path, follow: bool) -> Answer<Metadata>;

    /// As [`open`](Self::open), but never waits: whoever has the answer calls `then` with it, at once or later. This and the
    /// two below are asked on the thread that receives all calls of the application. A host that would have to wait gives `then`
    /// back, and is asked again on a thread that may.
    fn start_open(
        &self,
        path: &Path,
        options: &OpenOptions,
        then: Then<OwnedFd>,
    ) -> Result<(), Then<OwnedFd>> {
        let _ = (path, options);
        Err(then)
    }

    /// As [`metadata`](Self::metadata), but never waits; see [`start_open`](Self::start_open).
    fn start_metadata(
        &self,
        path: &Path,
        follow: bool,
        then: Then<Metadata>,
    ) -> Result<(), Then<Metadata>> {
        let _ = (path, follow);
        Err(then)
    }

    /// As [`access`](Self::access), but never waits; see [`start_open`](Self::start_open).
    fn start_access(
        &self,
        path: &Path,
        mode: i32,
        follow: bool,
        then: Then<()>,
    ) -> Result<(), Then<()>> {
        let _ = (path, mode, follow);
        Err(then)
    }

    fn read_link(&self, path: &Path) -> Answer<PathBuf>;

    /// The path without symbolic links, by which the file is known to `getcwd`. This asks for each name; a host that
    /// can ask once should.
    fn canonical(&self, path: &Path) -> Answer<PathBuf> {
        canonical(self, path)
    }

    /// `mode` as `access` takes it (`R_OK`, …).
    fn access(&self, path: &Path, mode: i32, follow: bool) -> Answer<()>;

    fn file_system(&self, path: &Path) -> Answer<FileSystem> {
        let _ = path;
        unsupported()
    }

    fn create_directory(&self, path: &Path, mode: u32) -> Answer<()> {
        let _ = (path, mode);
        unsupported()
    }

    /// `mode` with the file's type, as `mknod` takes it.
    fn create_node(&self, path: &Path, mode: u32, device: u64) -> Answer<()> {
        let _ = (path, mode, device);
        unsupported()
    }

    fn remove_file(&self, path: &Path) -> Answer<()> {
        let _ = path;
        unsupported()
    }

    fn remove_directory(&self, path: &Path) -> Answer<()> {
        let _ = path;
        unsupported()
    }

    /// `flags` as `renameat2` takes them.
    fn rename(&self, from: &Path, to: &Path, flags: u32) -> Answer<()> {
        let _ = (from, to, flags);
        unsupported()
    }

    fn create_hard_link(&self, from: &Path, to: &Path, follow: bool) -> Answer<()> {
        let _ = (from, to, follow);
        unsupported()
    }

    /// Gives a name to a file that is open and may have none. `file` is what [`open`](Self::open) gave.
    fn name_open_file(&self, file: BorrowedFd<'_>, to: &Path) -> Answer<()> {
        let _ = (file, to);
        unsupported()
    }

    fn create_symbolic_link(&self, content: &Path, path: &Path) -> Answer<()> {
        let _ = (content, path);
        unsupported()
    }

    fn set_mode(&self, path: &Path, mode: u32, follow: bool) -> Answer<()> {
        let _ = (path, mode, follow);
        unsupported()
    }

    /// `None` leaves as it is.
    fn set_owner(
        &self,
        path: &Path,
        user: Option<u32>,
        group: Option<u32>,
        follow: bool,
    ) -> Answer<()> {
        let _ = (path, user, group, follow);
        unsupported()
    }

    fn set_times(&self, path: &Path, times: &Times, follow: bool) -> Answer<()> {
        let _ = (path, times, follow);
        unsupported()
    }

    fn set_length(&self, path: &Path, length: u64) -> Answer<()> {
        let _ = (path, length);
        unsupported()
    }

    fn attribute(&self, path: &Path, name: &OsStr, follow: bool) -> Answer<Vec<u8>> {
        let _ = (path, name, follow);
        unsupported()
    }

    /// The names, each ended by a zero byte.
    fn attributes(&self, path: &Path, follow: bool) -> Answer<Vec<u8>> {
        let _ = (path, follow);
        unsupported()
    }

    /// `flags` as `setxattr` takes them.
    fn set_attribute(
        &self,
        path: &Path,
        name: &OsStr,
        value: &[u8],
        flags: i32,
        follow: bool,
    ) -> Answer<()> {
        let _ = (path, name, value, flags, follow);
        unsupported()
    }

    fn remove_attribute(&self, path: &Path, name: &OsStr, follow: bool) -> Answer<()> {
        let _ = (path, name, follow);
        unsupported()
    }
}

fn canonical<Files: RemoteFiles + ?Sized>(files: &Files, path: &Path) -> Answer<PathBuf> {
    /// The longest chain of symbolic links that the kernel follows.
    const MOST_LINKS: u32 = 40;
    let names = |path: &Path| -> Vec<OsString> {
        let names = path.components().rev().filter(|part| {
            matches!(
                part,
                std::path::Component::Normal(_) | std::path::Component::ParentDir
            )
        });
        names.map(|part| part.as_os_str().to_owned()).collect()
    };
    let mut rest = names(path);
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
                if links > MOST_LINKS {
                    return Err(Errno::ELOOP.into());
                }
                done.pop();
                if content.is_absolute() {
                    done = PathBuf::from("/");
                }
                rest.extend(names(&content));
            }
            // It is no link.
            Err(Instead::Fail(Errno::EINVAL)) => {}
            Err(instead) => return Err(instead),
        }
    }
    Ok(done)
}

fn unsupported<T>() -> Answer<T> {
    Err(Instead::Fail(Errno::EOPNOTSUPP))
}

/// A target without files.
#[derive(Debug)]
struct NoFiles;

impl RemoteFiles for NoFiles {
    fn open(&self, _: &Path, _: &OpenOptions) -> Answer<OwnedFd> {
        Err(Errno::ENOENT.into())
    }

    fn metadata(&self, _: &Path, _: bool) -> Answer<Metadata> {
        Err(Errno::ENOENT.into())
    }

    fn read_link(&self, _: &Path) -> Answer<PathBuf> {
        Err(Errno::ENOENT.into())
    }

    fn access(&self, _: &Path, _: i32, _: bool) -> Answer<()> {
        Err(Errno::ENOENT.into())
    }
}
