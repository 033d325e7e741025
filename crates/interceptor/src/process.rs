//! The application's processes: state that only we track, and the programs that they execute.

mod status;
mod table;

use std::ffi::{CString, OsStr};
use std::os::fd::{AsFd, OwnedFd, RawFd};
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};

pub(crate) use self::status::{PollInterval, group_of, has_capability, has_signal, umask_of};
pub(crate) use self::table::{Processes, join_path};

use crate::Errno;
use crate::host::{Intent, Notice, PathChoice};
use crate::notification::Notification;
use crate::supervisor::{Decision, Supervisor};
use crate::sys::process;
use crate::sys::trace::SeizedThread;
use crate::syscalls::Call;
use crate::workers::Workers;

pub(crate) fn decide(supervisor: &Supervisor, call: Call, notification: &Notification) -> Decision {
    let thread = notification.thread();
    match call {
        Call::ExitGroup => {
            supervisor.host.process_exits(id_of(thread));
            supervisor.processes.process_ended(thread);
        }
        Call::Execve | Call::ExecveAt => {
            if let Some(program) = Program::read(call, notification) {
                let process = id_of(thread);
                supervisor.host.process_executes(process, &program.path);
                return execute(supervisor, thread, &program);
            }
        }
        _ => {}
    }
    Decision::Pass
}

/// The process of a thread, for the host.
fn id_of(thread: libc::pid_t) -> u32 {
    group_of(thread).unwrap_or(thread).cast_unsigned()
}

/// Duplicates a descriptor of a thread into this process.
pub(crate) fn copy_descriptor_of(thread: libc::pid_t, number: RawFd) -> Result<OwnedFd, Errno> {
    let process = open_thread_or_process(thread)?;
    process::copy_descriptor(process.as_fd(), number)
}

/// Opens a pidfd of a thread, or of its process if the kernel does not support thread pidfds.
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
    from_working_directory: bool,
}

impl Program {
    fn read(call: Call, from: &Notification) -> Option<Self> {
        let at = call == Call::ExecveAt;
        let path = from.read_string(from.argument(usize::from(at))).ok()?;
        let directory = if at { from.int(0) } else { libc::AT_FDCWD };
        let path = PathBuf::from(OsStr::from_bytes(&path));
        if directory == libc::AT_FDCWD || path.is_absolute() {
            return Some(Self {
                path,
                from_working_directory: true,
            });
        }
        let link = format!("/proc/{}/fd/{directory}", from.thread());
        let directory = std::fs::read_link(link).ok()?;
        Some(Self {
            path: join_path(&directory, &path),
            from_working_directory: false,
        })
    }
}

/// Programs are always executed from the files of this machine, regardless of what the target has at their path.
fn execute(supervisor: &Supervisor, thread: libc::pid_t, program: &Program) -> Decision {
    let skipped = supervisor.host.skips_program(&program.path);
    if skipped
        && supervisor.settings.files
        && !supervisor.processes.has_other_root(thread)
        && let Some(directory) = supervisor.processes.directory_of(thread)
    {
        return execute_skipped(supervisor, program, directory);
    }
    let exists_here = |path: &Path| std::fs::symlink_metadata(path).is_ok();
    // A search through `PATH` tries many paths; those that do not exist change nothing.
    if !skipped || program.path.is_relative() || exists_here(&program.path) {
        supervisor.processes.set_skipped(thread, skipped);
    }
    if is_setuid(&program.path) && status::has_no_new_privileges(thread) {
        let path = program.path.clone();
        supervisor.host.notice(&Notice::NoPrivileges { path });
    }
    if skipped || !supervisor.settings.files || supervisor.processes.has_other_root(thread) {
        return Decision::Pass;
    }
    // In a working directory on the target, the kernel would execute a program of the same name from another directory.
    let virtual_directory = (program.from_working_directory && program.path.is_relative())
        .then(|| supervisor.processes.directory_of(thread))
        .flatten();
    let path = match &virtual_directory {
        Some(directory) => directory.join(&program.path),
        None if program.path.is_absolute() => program.path.clone(),
        None => return Decision::Pass,
    };
    let path = crate::files::normalized(&path);
    let error = virtual_directory.is_some().then_some(Errno::ENOENT);
    let missing_here =
        program.from_working_directory && (virtual_directory.is_some() || !exists_here(&path));
    match supervisor.host.choose_path(&path, Intent::Read) {
        PathChoice::Remote(remote) if missing_here => {
            Decision::defer(move |supervisor, notification| {
                report_remote_program(supervisor, path, &remote);
                match error {
                    Some(errno) => notification.fail(errno),
                    None => notification.pass(),
                }
            })
        }
        _ => error.map_or(Decision::Pass, |errno| Decision::Complete(Err(errno))),
    }
}

/// The calls of a skipped program are local, so the kernel must have its working directory.
fn execute_skipped(supervisor: &Supervisor, program: &Program, directory: PathBuf) -> Decision {
    let local = match supervisor.host.choose_path(&directory, Intent::Stat) {
        PathChoice::LocalAs(local) => local,
        _ => directory.clone(),
    };
    let path = local.join(&program.path);
    // A search through `PATH` tries many paths; those that cannot be executed change nothing.
    if !is_executable(&path) {
        return match program.path.is_relative() {
            true => Decision::Complete(Err(Errno::ENOENT)),
            false => Decision::Pass,
        };
    }
    Decision::defer(move |supervisor, notification| {
        let report = |errno| {
            supervisor.host.notice(&Notice::NoLocalDirectory {
                program: path,
                directory,
                errno,
            });
        };
        enter_local_directory(supervisor, notification, &local, report);
    })
}

/// Lets the caller of `execve` change to a directory of this machine and then repeat the call, which now finds no
/// virtual directory. If that fails, the call fails with an error that ends a search through `PATH`.
fn enter_local_directory(
    supervisor: &Supervisor,
    notification: Notification,
    local: &Path,
    report: impl FnOnce(Errno),
) {
    let (thread, number) = (notification.thread(), notification.number());
    let local = CString::new(local.as_os_str().as_bytes()).unwrap_or_default();
    if !Workers::is_worker_thread() {
        // The receiving thread must not wait for a call that only it can receive. No thread could be started, which is
        // also the error of a kernel without room for a process.
        return notification.fail(Errno::EAGAIN);
    }
    let seized = match SeizedThread::new(thread) {
        Ok(seized) => seized,
        Err(errno) => {
            // A caller that was killed cannot be traced either.
            if notification.is_valid() {
                report(errno);
            }
            return notification.fail(Errno::EREMOTE);
        }
    };
    notification.restart();
    let Ok(stopped) = seized.wait(number) else {
        return;
    };
    // From now on its calls are local, including the one that changes the directory.
    supervisor.processes.set_skipped(thread, true);
    match stopped.change_directory(&local) {
        Ok(()) => supervisor.processes.set_directory(thread, None),
        // The caller was killed, or another thread of its process has executed a program.
        Err(Errno::ESRCH | Errno::ECHILD) => {}
        Err(errno) => {
            supervisor.processes.set_skipped(thread, false);
            report(errno);
            stopped.fail_call(Errno::EREMOTE);
        }
    }
}

/// Reports a program that exists on the target but not on this machine. The check is needed because a search through
/// `PATH` tries to execute the program in every directory.
fn report_remote_program(supervisor: &Supervisor, path: PathBuf, remote: &Path) {
    let found = supervisor.host.files().metadata(remote, true);
    if found.is_ok_and(|metadata| metadata.mode & libc::S_IFMT == libc::S_IFREG) {
        supervisor.host.notice(&Notice::RemoteProgram { path });
    }
}

fn is_executable(path: &Path) -> bool {
    use std::os::unix::fs::MetadataExt;
    std::fs::metadata(path).is_ok_and(|metadata| metadata.is_file() && metadata.mode() & 0o111 != 0)
}

/// Whether a program runs with the privileges of its owner or group.
fn is_setuid(path: &Path) -> bool {
    use std::os::unix::fs::MetadataExt;
    let special = libc::S_ISUID | libc::S_ISGID;
    path.is_absolute()
        && std::fs::metadata(path)
            .is_ok_and(|metadata| metadata.is_file() && metadata.mode() & special != 0)
}
