//! Calls about files.
//!
//! A call names files by path. [`resolve`] finds out, like the kernel, which file is meant; the host decides where it
//! is. A local file is left to the kernel. For a remote file, [`perform`] calls the host and writes the result into the
//! memory of the caller, or installs the descriptor that the host opened.
//!
//! Most calls only read something: for these, [`host_query`] starts a request to the host on the thread that received
//! the call, and the host completes the call later.
//!
//! The kernel cannot resolve a path that leads from a remote directory back to this machine (`../…`), because it does
//! not know the virtual working directory of the caller. We perform such calls ourselves, with the same code and the
//! root directory of this machine as the "remote" files. The same applies to local files that have another path for the
//! application.
//!
//! Symbolic links of this machine that lead into the target's files are followed. Links of the target are followed on
//! the target, as the service itself would.

mod host_query;
mod path;
mod perform;
mod request;
mod resolve;

use std::collections::{HashMap, VecDeque};
use std::os::fd::AsFd;
use std::path::{Path, PathBuf};
use std::sync::OnceLock;

use parking_lot::Mutex;

pub(crate) use self::path::normalized;
pub(crate) use self::resolve::working_directory;

use crate::Errno;
use crate::directory::Directory;
use crate::files::host_query::HostQuery;
use crate::files::request::{Operation, Request};
use crate::files::resolve::{ResolveMode, ResolvedPath};
use crate::notification::{Notification, PATH_MAX};
use crate::process::join_path;
use crate::supervisor::{Decision, Supervisor};
use crate::sys::files::describe_cached;
use crate::sys::memory::bytes_of;
use crate::syscalls::Call;

/// How many opened remote files are tracked by identity. When more are open, the paths of the oldest are dropped.
const MAX_OPENED_FILES: usize = 65_536;

/// The remote files that the application has opened.
#[derive(Debug, Default)]
pub(crate) struct Files {
    opened: Mutex<OpenedPaths>,
    machine: OnceLock<Option<Directory>>,
}

/// The device, the inode, and the birth time. The birth time is needed because inode numbers are reused: the directory
/// that represented one of the target may be gone, and a local directory may have its inode.
type FileIdentity = (u32, u32, u64, (i64, u32));

#[derive(Debug, Default)]
struct OpenedPaths {
    /// The path under which the application opened the file.
    paths: HashMap<FileIdentity, PathBuf>,
    /// Oldest first.
    order: VecDeque<FileIdentity>,
}

impl Files {
    /// The file system of this machine, for paths that lead back to it.
    fn machine(&self) -> Result<&Directory, Errno> {
        let machine = self.machine.get_or_init(|| Directory::machine().ok());
        machine.as_ref().ok_or(Errno::EIO)
    }

    /// Records the path of a descriptor that the application gets.
    fn record_opened(&self, file: impl AsFd, path: &Path) {
        let Ok(description) = describe_cached(file.as_fd()) else {
            return;
        };
        let identity = identity(&description);
        let mut opened = self.opened.lock();
        if opened.paths.insert(identity, path.to_path_buf()).is_none() {
            opened.order.push_back(identity);
        }
        if opened.order.len() > MAX_OPENED_FILES
            && let Some(oldest) = opened.order.pop_front()
        {
            opened.paths.remove(&oldest);
        }
    }

    /// Updates the recorded paths after a file or directory of the target was renamed.
    fn rename(&self, from: &Path, to: &Path) {
        for path in self.opened.lock().paths.values_mut() {
            if let Ok(rest) = path.strip_prefix(from) {
                *path = join_path(to, rest);
            }
        }
    }

    fn any_opened(&self) -> bool {
        !self.opened.lock().paths.is_empty()
    }

    fn path_of(&self, description: &libc::statx) -> Option<PathBuf> {
        self.opened
            .lock()
            .paths
            .get(&identity(description))
            .cloned()
    }
}

fn identity(description: &libc::statx) -> FileIdentity {
    (
        description.stx_dev_major,
        description.stx_dev_minor,
        description.stx_ino,
        (description.stx_btime.tv_sec, description.stx_btime.tv_nsec),
    )
}

/// Decides how to handle a call, as far as that is possible without blocking.
pub(crate) fn decide(
    supervisor: &Supervisor,
    call: Call,
    notification: &Notification,
) -> Result<Decision, Errno> {
    match call {
        Call::Getcwd => return Ok(decide_getcwd(supervisor, notification)),
        Call::Fchdir => return Ok(decide_fchdir(supervisor, notification)),
        _ => {}
    }
    let Some(request) = Request::read(call, notification)? else {
        return Ok(Decision::Pass);
    };
    match resolve::resolve_paths(supervisor, notification, &request, ResolveMode::NonBlocking) {
        Some(paths) => Ok(decide_resolved(supervisor, request, paths)),
        None => Ok(Decision::defer(|supervisor, notification| {
            let paths =
                resolve::resolve_paths(supervisor, &notification, &request, ResolveMode::Blocking);
            match decide_resolved(supervisor, request, paths.unwrap_or_default()) {
                Decision::Pass => notification.pass(),
                Decision::Complete(result) => notification.finish(result),
                Decision::Start(job) | Decision::Defer(job) => job(supervisor, notification),
            }
        })),
    }
}

/// Decides how to handle a request whose paths are resolved.
fn decide_resolved(
    supervisor: &Supervisor,
    request: Request,
    paths: Vec<ResolvedPath>,
) -> Decision {
    let refused = paths.iter().find_map(|path| match path {
        ResolvedPath::Refused(errno) => Some(*errno),
        _ => None,
    });
    if let Some(errno) = refused {
        return Decision::Complete(Err(errno));
    }
    // The kernel cannot tell us whether a change of directory succeeded, so a `chdir` out of a virtual directory is
    // checked.
    if request.operation == Operation::Chroot {
        supervisor.processes.expect_other_roots();
    }
    let leaves_virtual_directory =
        request.operation == Operation::Chdir && supervisor.processes.any_directory();
    if paths.iter().all(|path| *path == ResolvedPath::Local) && !leaves_virtual_directory {
        return Decision::Pass;
    }
    if let Some(query) = HostQuery::from_request(&request, &paths) {
        return Decision::start(move |supervisor, notification| {
            query.start(supervisor, notification);
        });
    }
    Decision::defer(move |supervisor, notification| {
        perform::perform(supervisor, notification, &request, &paths);
    })
}

fn decide_getcwd(supervisor: &Supervisor, notification: &Notification) -> Decision {
    use std::os::unix::ffi::OsStrExt;
    let Some(directory) = supervisor.processes.directory_of(notification.thread()) else {
        return Decision::Pass;
    };
    let mut text = directory.as_os_str().as_bytes().to_vec();
    text.push(0);
    // The kernel has no name for a directory this deep, however large the buffer is.
    if text.len() > PATH_MAX {
        return Decision::Complete(Err(Errno::ENAMETOOLONG));
    }
    if notification.argument(1) < text.len() as u64 {
        return Decision::Complete(Err(Errno::ERANGE));
    }
    let written = notification
        .memory()
        .and_then(|memory| memory.write(notification.argument(0), &text));
    Decision::Complete(written.map(|()| i64::try_from(text.len()).unwrap_or_default()))
}

fn decide_fchdir(supervisor: &Supervisor, notification: &Notification) -> Decision {
    let thread = notification.thread();
    let remote = resolve::opened_path(supervisor, thread, notification.int(0));
    if let Some((path, description)) = remote {
        if u32::from(description.stx_mode) & libc::S_IFMT != libc::S_IFDIR {
            return Decision::Complete(Err(Errno::ENOTDIR));
        }
        supervisor.processes.set_directory(thread, Some(path));
        return Decision::Complete(Ok(0));
    }
    // A descriptor that is not a directory changes nothing.
    if resolve::is_directory(thread, notification.int(0)) {
        supervisor.processes.set_directory(thread, None);
    }
    Decision::Pass
}

/// Writes a structure to an address of the caller.
fn write_structure<T: crate::sys::memory::Plain>(
    notification: &Notification,
    address: u64,
    value: &T,
) -> Result<i64, Errno> {
    notification.memory()?.write(address, bytes_of(value))?;
    Ok(0)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn file_with_reused_inode_is_not_confused() {
        let files = Files::default();
        let opened = std::fs::File::open("/").unwrap();
        files.record_opened(&opened, Path::new("/remote"));
        let mut description = describe_cached(opened.as_fd()).unwrap();
        assert_eq!(files.path_of(&description), Some("/remote".into()));
        description.stx_btime.tv_nsec ^= 1;
        assert_eq!(files.path_of(&description), None);
    }
}
