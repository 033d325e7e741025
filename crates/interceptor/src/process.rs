//! The application's processes: what is known of them that the kernel does not know, and the programs that they start.

mod status;
mod table;

use std::ffi::OsStr;
use std::os::fd::{AsFd, OwnedFd, RawFd};
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};

pub(crate) use self::status::{Vigil, creation_mask_of, group_of, has_signal};
pub(crate) use self::table::{Processes, joined};

use crate::Errno;
use crate::host::{Intent, Notice, PathChoice};
use crate::notification::Notification;
use crate::supervisor::{Decision, Supervisor};
use crate::sys::process;
use crate::syscalls::Call;

pub(crate) fn decide(supervisor: &Supervisor, call: Call, notification: &Notification) -> Decision {
    let thread = notification.thread();
    match call {
        Call::ExitGroup => supervisor.processes.ends(thread),
        Call::Execve | Call::ExecveAt => {
            if let Some(program) = Program::read(call, notification) {
                return execute(supervisor, thread, &program);
            }
        }
        _ => {}
    }
    Decision::Pass
}

/// Our own copy of a descriptor of a thread.
pub(crate) fn copy_descriptor_of(thread: libc::pid_t, number: RawFd) -> Result<OwnedFd, Errno> {
    let process = open_thread_or_process(thread)?;
    process::copy_descriptor(process.as_fd(), number)
}

/// A descriptor of a thread, or where the kernel has no such thing of its process.
pub(crate) fn open_thread_or_process(thread: libc::pid_t) -> Result<OwnedFd, Errno> {
    match process::open_thread(thread) {
        Err(Errno::EINVAL) => process::open(group_of(thread)?),
        result => result,
    }
}

/// A program that is about to be executed.
struct Program {
    path: PathBuf,
    /// Whether a relative path starts at the working directory.
    here: bool,
}

impl Program {
    fn read(call: Call, from: &Notification) -> Option<Self> {
        let at = call == Call::ExecveAt;
        let path = from.read_string(from.argument(usize::from(at))).ok()?;
        let directory = if at { from.int(0) } else { libc::AT_FDCWD };
        let path = PathBuf::from(OsStr::from_bytes(&path));
        if directory == libc::AT_FDCWD || path.is_absolute() {
            return Some(Self { path, here: true });
        }
        let link = format!("/proc/{}/fd/{directory}", from.thread());
        let directory = std::fs::read_link(link).ok()?;
        Some(Self {
            path: joined(&directory, &path),
            here: false,
        })
    }
}

/// Programs are always started from this machine's files, whatever the target has at their path.
fn execute(supervisor: &Supervisor, thread: libc::pid_t, program: &Program) -> Decision {
    let left_alone = supervisor.host.leaves_alone(&program.path);
    let here = |path: &Path| std::fs::symlink_metadata(path).is_ok();
    // Many places are tried until one has the program; what is not there changes nothing.
    if !left_alone || program.path.is_relative() || here(&program.path) {
        supervisor.processes.set_left_alone(thread, left_alone);
    }
    if gives_privileges(&program.path) && status::gains_no_privileges(thread) {
        let path = program.path.clone();
        supervisor.host.notice(&Notice::NoPrivileges { path });
    }
    if left_alone || !supervisor.catch.files || supervisor.processes.has_other_root(thread) {
        return Decision::Pass;
    }
    // From a directory of the target the kernel would start what has the same name somewhere else.
    let virtually = (program.here && program.path.is_relative())
        .then(|| supervisor.processes.directory_of(thread))
        .flatten();
    let path = match &virtually {
        Some(directory) => directory.join(&program.path),
        None if program.path.is_absolute() => program.path.clone(),
        None => return Decision::Pass,
    };
    let path = crate::files::normalized(&path);
    let answer = virtually.is_some().then_some(Errno::ENOENT);
    let missing_here = program.here && (virtually.is_some() || !here(&path));
    match supervisor.host.choose_path(&path, Intent::Read) {
        PathChoice::Remote(remote) if missing_here => {
            Decision::later(move |supervisor, notification| {
                say_where_it_is(supervisor, path, &remote);
                match answer {
                    Some(errno) => notification.fail(errno),
                    None => notification.pass(),
                }
            })
        }
        _ => answer.map_or(Decision::Pass, |errno| Decision::Answer(Err(errno))),
    }
}

/// Says that a program that is not on this machine is at the target. Only if it is: whoever looks a program up in
/// `PATH` tries to execute it in every folder there.
fn say_where_it_is(supervisor: &Supervisor, path: PathBuf, remote: &Path) {
    let found = supervisor.host.files().metadata(remote, true);
    if found.is_ok_and(|metadata| metadata.mode & libc::S_IFMT == libc::S_IFREG) {
        supervisor.host.notice(&Notice::ProgramNotHere { path });
    }
}

/// Whether a program runs as its owner or group, whoever starts it.
fn gives_privileges(path: &Path) -> bool {
    use std::os::unix::fs::MetadataExt;
    let special = libc::S_ISUID | libc::S_ISGID;
    path.is_absolute()
        && std::fs::metadata(path)
            .is_ok_and(|metadata| metadata.is_file() && metadata.mode() & special != 0)
}
