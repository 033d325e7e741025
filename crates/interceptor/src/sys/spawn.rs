//! Two forks: the watcher, and below it the application.
//!
//! This process may have many threads. After a fork only one of them exists, and locks that the others held stay
//! locked. So everything is prepared before the fork, and the child only makes system calls: no allocation, no
//! formatting, no destructor. Both functions that run there never return.

use std::ffi::{CStr, CString};
use std::os::fd::{AsRawFd, BorrowedFd, OwnedFd, RawFd};

use nix::errno::Errno;

use super::shared_environment::SharedEnvironment;
use super::{check_int, watcher};

/// What the application's process does once it is supervised.
#[derive(Debug)]
pub(crate) enum ProcessBody {
    Execute(Executable),
    /// Runs a function of ours instead of a program, for measurement and diagnosis. It must only make system calls.
    Run(fn(result: BorrowedFd<'_>), OwnedFd),
}

/// A program with all arguments of `execve`.
#[derive(Debug)]
pub(crate) struct Executable {
    path: CString,
    arguments: Vec<CString>,
    environment: Vec<CString>,
    directory: Option<CString>,
    /// For scripts without an interpreter line: the shell, and its arguments.
    shell_arguments: Vec<CString>,
}

impl Executable {
    pub(crate) fn new(
        path: CString,
        arguments: Vec<CString>,
        environment: Vec<CString>,
        directory: Option<CString>,
    ) -> Self {
        let mut shell_arguments = vec![SHELL.to_owned(), path.clone()];
        shell_arguments.extend(arguments.iter().skip(1).cloned());
        Self {
            path,
            arguments,
            environment,
            directory,
            shell_arguments,
        }
    }
}

const SHELL: &CStr = c"/bin/sh";

/// The progress between fork and exec. The child reports one of these, together with the listener if there is one.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum StartPhase {
    /// The filter is installed; the message carries the listener.
    Supervised = 1,
    /// Installing the filter failed.
    Filter = 2,
    /// The listener could not be handed over.
    HandOver = 3,
    Directory = 4,
    Execute = 5,
    /// The fork of the child failed.
    Fork = 6,
}

/// A message from the child.
#[derive(Debug, Clone, Copy)]
pub(crate) struct StartReport {
    pub(crate) phase: StartPhase,
    pub(crate) errno: i32,
    pub(crate) wait_killable: bool,
    /// The sender.
    pub(crate) process: libc::pid_t,
}

impl StartReport {
    pub(crate) const LENGTH: usize = 10;

    fn encode(self) -> [u8; Self::LENGTH] {
        let [a, b, c, d] = self.errno.to_ne_bytes();
        let [e, f, g, h] = self.process.to_ne_bytes();
        let wait_killable = u8::from(self.wait_killable);
        [self.phase as u8, wait_killable, a, b, c, d, e, f, g, h]
    }

    pub(crate) fn decode(bytes: [u8; Self::LENGTH]) -> Option<Self> {
        let [number, wait_killable, a, b, c, d, e, f, g, h] = bytes;
        let phase = [
            StartPhase::Supervised,
            StartPhase::Filter,
            StartPhase::HandOver,
            StartPhase::Directory,
            StartPhase::Execute,
            StartPhase::Fork,
        ]
        .into_iter()
        .find(|phase| *phase as u8 == number)?;
        Some(Self {
            phase,
            errno: i32::from_ne_bytes([a, b, c, d]),
            wait_killable: wait_killable != 0,
            process: i32::from_ne_bytes([e, f, g, h]),
        })
    }
}

/// A message from the watcher: the wait status of the application's process.
pub(crate) type WatcherMessage = [u8; 4];

/// All prepared data of the two processes.
#[derive(Debug)]
pub(crate) struct SpawnPlan<'a> {
    pub(crate) filter: &'a [libc::sock_filter],
    /// From this descriptor number on, `sendmsg` may be intercepted; the hand-over socket must be below.
    pub(crate) hand_over_below: RawFd,
    /// Whether only fatal signals interrupt intercepted calls, on kernels that support it.
    pub(crate) wait_killable: bool,
    pub(crate) body: &'a ProcessBody,
    /// The environment, if it is provided later: then nothing is executed before a message confirms it.
    pub(crate) environment: Option<&'a SharedEnvironment>,
    /// The watcher's end of the control connection to the supervisor.
    pub(crate) control: BorrowedFd<'a>,
    /// The child's end of the hand-over socket.
    pub(crate) hand_over: BorrowedFd<'a>,
    /// A pidfd of the supervisor, to detect its end.
    pub(crate) supervisor: BorrowedFd<'a>,
}

/// What the application's process needs until `execve`, allocated before the fork.
pub(super) struct ExecPointers {
    /// The end of a stack, which it uses while it shares the memory of the watcher.
    stack_end: *mut libc::c_void,
    arguments: Vec<*const libc::c_char>,
    shell_arguments: Vec<*const libc::c_char>,
    environment: Vec<*const libc::c_char>,
}

/// Enough for a few nested system calls.
const STACK: usize = 64 * 1024;

fn pointers(strings: &[CString]) -> Vec<*const libc::c_char> {
    strings
        .iter()
        .map(|string| string.as_ptr())
        .chain([std::ptr::null()])
        .collect()
}

/// Starts watcher and application. Returns the process ID of the watcher.
pub(crate) fn spawn(plan: &SpawnPlan<'_>) -> Result<libc::pid_t, Errno> {
    // In units of sixteen bytes, for the alignment of a stack.
    let mut stack = vec![0_u128; STACK / size_of::<u128>()];
    let pointers = match plan.body {
        ProcessBody::Execute(executable) => Some(ExecPointers {
            stack_end: stack.last_mut().map_or(std::ptr::null_mut(), |last| {
                (&raw mut *last).wrapping_add(1).cast()
            }),
            arguments: pointers(&executable.arguments),
            shell_arguments: pointers(&executable.shell_arguments),
            environment: pointers(&executable.environment),
        }),
        ProcessBody::Run(..) => None,
    };
    let mut everything = signal_set();
    let mut before = signal_set();
    // SAFETY: the sets are initialised signal sets; the mask is restored below. The child of the fork only calls
    // functions that make system calls, see the module documentation, and never returns.
    unsafe {
        libc::sigfillset(&raw mut everything);
        libc::pthread_sigmask(libc::SIG_SETMASK, &raw const everything, &raw mut before);
        let watcher = libc::fork();
        if watcher == 0 {
            watcher::watch(plan, pointers.as_ref(), &before);
        }
        let result = check_int(watcher);
        libc::pthread_sigmask(libc::SIG_SETMASK, &raw const before, std::ptr::null_mut());
        result
    }
}

/// Runs a function of ours in an unsupervised process, and waits for it to exit, for comparison. The rules of
/// [`ProcessBody::Run`] apply here too.
pub(crate) fn run_bare(
    run: fn(result: BorrowedFd<'_>),
    result: BorrowedFd<'_>,
) -> Result<(), Errno> {
    // SAFETY: the child only calls functions that make system calls, and never returns.
    let child = unsafe {
        let child = libc::fork();
        if child == 0 {
            watcher::keep_only([result.as_raw_fd(); 3]);
            run(result);
            libc::_exit(0);
        }
        check_int(child)?
    };
    super::process::reap(child);
    Ok(())
}

pub(super) fn signal_set() -> libc::sigset_t {
    // SAFETY: the structure consists of integers; `sigemptyset` makes it a set.
    unsafe {
        let mut set = std::mem::zeroed();
        libc::sigemptyset(&raw mut set);
        set
    }
}

/// Creates the application's process. One that executes a program shares our memory until then, like `vfork`, so it
/// costs almost nothing; we are suspended meanwhile.
pub(super) unsafe fn start_application(
    plan: &SpawnPlan<'_>,
    pointers: Option<&ExecPointers>,
    signals_before: &libc::sigset_t,
) -> libc::pid_t {
    let context = ChildContext {
        plan,
        pointers,
        signals_before,
    };
    // SAFETY: the child runs on its own stack, and only calls functions that make system calls. What it borrows
    // outlives it, because this thread continues only when the child has executed a program or exited.
    unsafe {
        let Some(pointers) = pointers else {
            let application = libc::fork();
            if application == 0 {
                become_application(plan, None, signals_before);
            }
            return application;
        };
        libc::clone(
            run_child,
            pointers.stack_end,
            libc::CLONE_VM | libc::CLONE_VFORK | libc::SIGCHLD,
            (&raw const context).cast_mut().cast(),
        )
    }
}

struct ChildContext<'a> {
    plan: &'a SpawnPlan<'a>,
    pointers: Option<&'a ExecPointers>,
    signals_before: &'a libc::sigset_t,
}

extern "C" fn run_child(context: *mut libc::c_void) -> libc::c_int {
    // SAFETY: `start_application` passes a pointer to its own local, which outlives this function.
    unsafe {
        let context = &*context.cast::<ChildContext<'_>>();
        become_application(context.plan, context.pointers, context.signals_before)
    }
}

/// The rest runs in the application's process.
unsafe fn become_application(
    plan: &SpawnPlan<'_>,
    pointers: Option<&ExecPointers>,
    signals_before: &libc::sigset_t,
) -> ! {
    // SAFETY: system calls on plain numbers, and on strings and arrays that were allocated before the fork.
    unsafe {
        libc::prctl(libc::PR_SET_PDEATHSIG, libc::SIGKILL);
        // The Rust runtime ignores it; programs expect the default.
        libc::signal(libc::SIGPIPE, libc::SIG_DFL);
        if let ProcessBody::Execute(Executable {
            directory: Some(directory),
            ..
        }) = plan.body
            && libc::chdir(directory.as_ptr()) == -1
        {
            exit_with_report(plan, StartPhase::Directory);
        }
        supervise(plan);
        libc::pthread_sigmask(libc::SIG_SETMASK, signals_before, std::ptr::null_mut());
        match (plan.body, pointers) {
            (ProcessBody::Execute(executable), Some(pointers)) => {
                let environment = match plan.environment {
                    Some(shared) => {
                        wait_for_environment(plan);
                        shared.pointers()
                    }
                    None => pointers.environment.as_ptr(),
                };
                libc::execve(
                    executable.path.as_ptr(),
                    pointers.arguments.as_ptr(),
                    environment,
                );
                if Errno::last() == Errno::ENOEXEC {
                    libc::execve(
                        SHELL.as_ptr(),
                        pointers.shell_arguments.as_ptr(),
                        environment,
                    );
                }
                exit_with_report(plan, StartPhase::Execute);
            }
            (ProcessBody::Run(run, result), _) => {
                watcher::keep_only([result.as_raw_fd(); 3]);
                run(std::os::fd::AsFd::as_fd(result));
                libc::_exit(0);
            }
            (ProcessBody::Execute(_), None) => libc::_exit(127),
        }
    }
}

/// Waits for the environment. Exits if the supervisor is gone.
unsafe fn wait_for_environment(plan: &SpawnPlan<'_>) {
    let mut byte = 0_u8;
    // SAFETY: receives into a local variable. The call has no address, so it is never intercepted.
    unsafe {
        let hand_over = plan.hand_over.as_raw_fd();
        if libc::recv(hand_over, (&raw mut byte).cast(), 1, 0) != 1 {
            libc::_exit(127);
        }
    }
}

unsafe fn exit_with_report(plan: &SpawnPlan<'_>, phase: StartPhase) -> ! {
    // SAFETY: a descriptor that stays open; then the process exits.
    unsafe {
        send_report(plan.hand_over.as_raw_fd(), phase, Errno::last_raw());
        libc::_exit(127);
    }
}

/// Installs the filter and passes its listener to the supervisor.
unsafe fn supervise(plan: &SpawnPlan<'_>) {
    // SAFETY: system calls on plain numbers; the filter outlives the call, which copies it.
    unsafe {
        // No call may be intercepted between installing the filter and handing over its listener: no one could complete
        // it.
        let channel = low_copy(plan);
        if channel == -1 {
            *libc::__errno_location() = libc::EMFILE;
            exit_with_report(plan, StartPhase::HandOver);
        }
        let (listener, wait_killable) = match install(plan.filter, plan.wait_killable) {
            Ok(installed) => installed,
            Err(errno) => {
                *libc::__errno_location() = errno as i32;
                exit_with_report(plan, StartPhase::Filter);
            }
        };
        let report = StartReport {
            phase: StartPhase::Supervised,
            errno: 0,
            wait_killable,
            process: libc::getpid(),
        };
        if send_with_descriptor(channel, report, listener) == -1 {
            exit_with_report(plan, StartPhase::HandOver);
        }
        libc::close(listener);
        libc::close(channel);
    }
}

/// Duplicates the hand-over socket to a number too low to be intercepted. If the supervisor has so many open
/// descriptors that none is free, it replaces one that `execve` closes anyway.
unsafe fn low_copy(plan: &SpawnPlan<'_>) -> RawFd {
    let original = plan.hand_over.as_raw_fd();
    let kept = match plan.body {
        ProcessBody::Run(_, result) => result.as_raw_fd(),
        ProcessBody::Execute(_) => original,
    };
    // SAFETY: system calls on plain numbers; nothing in this process uses the descriptors that are replaced.
    unsafe {
        let copy = libc::fcntl(original, libc::F_DUPFD_CLOEXEC, 0);
        if copy != -1 && copy < plan.hand_over_below {
            return copy;
        }
        for number in 3..plan.hand_over_below {
            let closes = libc::fcntl(number, libc::F_GETFD) == libc::FD_CLOEXEC;
            if closes && number != original && number != kept {
                return libc::dup3(original, number, libc::O_CLOEXEC);
            }
        }
        -1
    }
}

/// Tries the best variant first. Sets `no_new_privs` only if we are not privileged to install filters without it.
unsafe fn install(
    filter: &[libc::sock_filter],
    wait_killable: bool,
) -> Result<(RawFd, bool), Errno> {
    let program = libc::sock_fprog {
        len: u16::try_from(filter.len()).map_err(|_| Errno::E2BIG)?,
        filter: filter.as_ptr().cast_mut(),
    };
    let attempt = |flags: libc::c_ulong| {
        // SAFETY: the kernel reads the program, which outlives the call.
        let result = unsafe {
            libc::syscall(
                libc::SYS_seccomp,
                libc::SECCOMP_SET_MODE_FILTER,
                flags,
                &raw const program,
            )
        };
        super::check(result).and_then(|fd| RawFd::try_from(fd).map_err(|_| Errno::EBADF))
    };
    let simple = libc::SECCOMP_FILTER_FLAG_NEW_LISTENER;
    let best = simple | libc::SECCOMP_FILTER_FLAG_WAIT_KILLABLE_RECV;
    let either = || match wait_killable {
        true => match attempt(best) {
            Err(Errno::EINVAL) => attempt(simple).map(|fd| (fd, false)),
            result => result.map(|fd| (fd, true)),
        },
        false => attempt(simple).map(|fd| (fd, false)),
    };
    match either() {
        Err(Errno::EACCES) => {
            // SAFETY: plain numbers.
            unsafe { libc::prctl(libc::PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) };
            either()
        }
        result => result,
    }
}

/// Sends the report together with a descriptor.
unsafe fn send_with_descriptor(channel: RawFd, report: StartReport, descriptor: RawFd) -> isize {
    let mut bytes = report.encode();
    let mut vector = libc::iovec {
        iov_base: bytes.as_mut_ptr().cast(),
        iov_len: bytes.len(),
    };
    /// Aligned as the kernel expects control messages.
    #[repr(align(8))]
    struct Control([u8; 32]);
    let mut control = Control([0; 32]);
    // SAFETY: the message points to local variables with their lengths. There is room for one control message with one
    // descriptor, so the first header exists.
    unsafe {
        let mut message: libc::msghdr = std::mem::zeroed();
        message.msg_iov = &raw mut vector;
        message.msg_iovlen = 1;
        message.msg_control = control.0.as_mut_ptr().cast();
        message.msg_controllen = libc::CMSG_SPACE(4) as _;
        let header = libc::CMSG_FIRSTHDR(&raw const message);
        (*header).cmsg_level = libc::SOL_SOCKET;
        (*header).cmsg_type = libc::SCM_RIGHTS;
        (*header).cmsg_len = libc::CMSG_LEN(4) as _;
        std::ptr::write_unaligned(libc::CMSG_DATA(header).cast::<RawFd>(), descriptor);
        libc::sendmsg(channel, &raw const message, libc::MSG_NOSIGNAL)
    }
}

pub(super) unsafe fn send_report(channel: RawFd, phase: StartPhase, errno: i32) {
    let bytes = StartReport {
        phase,
        errno,
        wait_killable: false,
        process: 0,
    }
    .encode();
    // SAFETY: sends a local buffer. The call has no address, so it is never intercepted.
    unsafe {
        libc::send(
            channel,
            bytes.as_ptr().cast(),
            bytes.len(),
            libc::MSG_NOSIGNAL,
        )
    };
}

pub(super) unsafe fn send_message(control: RawFd, value: i32) {
    let bytes: WatcherMessage = value.to_ne_bytes();
    // SAFETY: as above.
    unsafe {
        libc::send(
            control,
            bytes.as_ptr().cast(),
            bytes.len(),
            libc::MSG_NOSIGNAL,
        )
    };
}
