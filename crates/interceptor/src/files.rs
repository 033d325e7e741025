//! Calls about files.
//!
//! A call names files by path. [`resolve`] finds out, as the kernel would, which file that is; the host says where it
//! is. A local file is left to the kernel. For a remote one, [`perform`] asks the host and writes the answer into the
//! caller's memory, or gives it the descriptor that the host opened.
//!
//! Most calls only ask for something: [`begin`] has the host asked by the thread that received the call, and whoever
//! gets the host's answer gives it to the caller.
//!
//! A path that leads from a remote directory back to this machine (`../…`) is one that the kernel cannot follow for
//! the caller, who is not where it believes to be. Those calls we do ourselves, with the same code and this machine's
//! root as the "remote" files; and so those about files of this machine that have another name for the application.
//!
//! Symbolic links of this machine that lead into the target's files are followed. Those of the target are followed
//! at the target, as the service itself would.

mod begin;
mod path;
mod perform;
mod request;
mod resolve;

use std::collections::{HashMap, VecDeque};
use std::os::fd::AsFd;
use std::path::{Path, PathBuf};
use std::sync::{Mutex, OnceLock};

pub(crate) use self::path::normalized;
pub(crate) use self::resolve::working_directory;

use crate::Errno;
use crate::directory::Directory;
use crate::files::begin::Question;
use crate::files::request::{Operation, Request};
use crate::files::resolve::{Effort, Place};
use crate::notification::Notification;
use crate::process::joined;
use crate::supervisor::{Decision, Supervisor};
use crate::sys::files::describe_as_known;
use crate::sys::memory::bytes_of;
use crate::syscalls::Call;
use crate::workers::lock;

/// How many remote files are remembered by identity. More may be open; then the oldest lose their names.
const REMEMBERED: usize = 65_536;

/// What is known of remote files that the application has opened.
#[derive(Debug, Default)]
pub(crate) struct Files {
    opened: Mutex<Opened>,
    machine: OnceLock<Option<Directory>>,
}

/// A file system, a file's number in it, and when the file was born, because numbers are used again: a folder that stood
/// for a directory of the target may be gone, and a directory of this machine have its number.
type Identity = (u32, u32, u64, (i64, u32));

#[derive(Debug, Default)]
struct Opened {
    /// The path under which the application opened the file.
    paths: HashMap<Identity, PathBuf>,
    /// Oldest first.
    order: VecDeque<Identity>,
}

impl Files {
    /// This machine's file system, for paths that lead back to it.
    fn machine(&self) -> Result<&Directory, Errno> {
        let machine = self.machine.get_or_init(|| Directory::machine().ok());
        machine.as_ref().ok_or(Errno::EIO)
    }

    /// Remembers that a descriptor that was given to the application is of this path.
    fn remember(&self, file: impl AsFd, path: &Path) {
        let Ok(description) = describe_as_known(file.as_fd()) else {
            return;
        };
        let identity = identity(&description);
        let mut opened = lock(&self.opened);
        if opened.paths.insert(identity, path.to_path_buf()).is_none() {
            opened.order.push_back(identity);
        }
        if opened.order.len() > REMEMBERED
            && let Some(oldest) = opened.order.pop_front()
        {
            opened.paths.remove(&oldest);
        }
    }

    /// A file or directory of the target has another name now.
    fn rename(&self, from: &Path, to: &Path) {
        for path in lock(&self.opened).paths.values_mut() {
            if let Ok(rest) = path.strip_prefix(from) {
                *path = joined(to, rest);
            }
        }
    }

    fn any_opened(&self) -> bool {
        !lock(&self.opened).paths.is_empty()
    }

    fn path_of(&self, description: &libc::statx) -> Option<PathBuf> {
        lock(&self.opened)
            .paths
            .get(&identity(description))
            .cloned()
    }
}

fn identity(description: &libc::statx) -> Identity {
    (
        description.stx_dev_major,
        description.stx_dev_minor,
        description.stx_ino,
        (description.stx_btime.tv_sec, description.stx_btime.tv_nsec),
    )
}

/// Decides what can be decided without waiting.
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
    match resolve::places(supervisor, notification, &request, Effort::Quick) {
        Some(places) => Ok(act(supervisor, request, places)),
        None => Ok(Decision::later(|supervisor, notification| {
            let places = resolve::places(supervisor, &notification, &request, Effort::Full);
            match act(supervisor, request, places.unwrap_or_default()) {
                Decision::Pass => notification.pass(),
                Decision::Answer(result) => notification.finish(result),
                Decision::Begin(job) | Decision::Later(job) => job(supervisor, notification),
            }
        })),
    }
}

/// The places of the one or two paths of a request, to what is done about it.
fn act(supervisor: &Supervisor, request: Request, places: Vec<Place>) -> Decision {
    let refused = places.iter().find_map(|place| match place {
        Place::Refused(errno) => Some(*errno),
        _ => None,
    });
    if let Some(errno) = refused {
        return Decision::Answer(Err(errno));
    }
    // The kernel cannot tell us whether a change of directory succeeded, so one that ends a virtual one is checked.
    if request.operation == Operation::Chroot {
        supervisor.processes.expect_other_roots();
    }
    let leaves = request.operation == Operation::Chdir && supervisor.processes.any_directory();
    if places.iter().all(|place| *place == Place::Local) && !leaves {
        return Decision::Pass;
    }
    if let Some(question) = Question::of(&request, &places) {
        return Decision::begin(move |supervisor, notification| {
            question.ask(supervisor, notification);
        });
    }
    Decision::later(move |supervisor, notification| {
        perform::perform(supervisor, notification, &request, &places);
    })
}

fn decide_getcwd(supervisor: &Supervisor, notification: &Notification) -> Decision {
    use std::os::unix::ffi::OsStrExt;
    let Some(directory) = supervisor.processes.directory_of(notification.thread()) else {
        return Decision::Pass;
    };
    let mut text = directory.as_os_str().as_bytes().to_vec();
    text.push(0);
    if notification.argument(1) < text.len() as u64 {
        return Decision::Answer(Err(Errno::ERANGE));
    }
    let written = notification
        .memory()
        .and_then(|memory| memory.write(notification.argument(0), &text));
    Decision::Answer(written.map(|()| i64::try_from(text.len()).unwrap_or_default()))
}

fn decide_fchdir(supervisor: &Supervisor, notification: &Notification) -> Decision {
    let thread = notification.thread();
    let remote = resolve::opened_path(supervisor, thread, notification.int(0));
    if let Some((path, description)) = remote {
        if u32::from(description.stx_mode) & libc::S_IFMT != libc::S_IFDIR {
            return Decision::Answer(Err(Errno::ENOTDIR));
        }
        supervisor.processes.set_directory(thread, Some(path));
        return Decision::Answer(Ok(0));
    }
    // A descriptor that is no directory leaves everything as it is.
    if resolve::is_directory(thread, notification.int(0)) {
        supervisor.processes.set_directory(thread, None);
    }
    Decision::Pass
}

/// Writes a structure to where the caller wants it.
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
    fn a_file_that_got_the_number_of_another_is_not_taken_for_it() {
        let files = Files::default();
        let opened = std::fs::File::open("/").unwrap();
        files.remember(&opened, Path::new("/remote"));
        let mut description = describe_as_known(opened.as_fd()).unwrap();
        assert_eq!(files.path_of(&description), Some("/remote".into()));
        description.stx_btime.tv_nsec ^= 1;
        assert_eq!(files.path_of(&description), None);
    }
}
