//! Two forks: the watcher, and below it the application.
//!
//! We may have many threads, and after a fork only one of them is there, with whatever locks the others held. So
//! everything is prepared before, and from the fork on there are only system calls: no allocation, no formatting, no
//! destructor. Both functions that run there never return.

use std::ffi::{CStr, CString};
use std::os::fd::{AsRawFd, BorrowedFd, OwnedFd, RawFd};

use nix::errno::Errno;

use super::shared::Shared;
use super::{check_int, watcher};

/// What the application's process does once it is supervised.
#[derive(Debug)]
pub(crate) enum Body {
    Execute(Executable),
    /// Runs a function of ours instead of a program, to measure and to diagnose. It must only make system calls.
    Run(fn(result: BorrowedFd<'_>), OwnedFd),
}

/// A program with all that `execve` takes.
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

/// What happened between fork and exec. The child sends one of these, with the listener when there is one.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Stage {
    /// The filter is in place; the message carries the listener.
    Supervised = 1,
    /// The filter was refused.
    Filter = 2,
    /// The listener could not be handed over.
    HandOver = 3,
    Directory = 4,
    Execute = 5,
    /// The child itself could not be made.
    Fork = 6,
}

/// The message of the child.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Report {
    pub(crate) stage: Stage,
    pub(crate) errno: i32,
    pub(crate) signals_wait: bool,
    /// Who sends it.
    pub(crate) process: libc::pid_t,
}

impl Report {
    pub(crate) const LENGTH: usize = 10;

    fn encode(self) -> [u8; Self::LENGTH] {
        let [a, b, c, d] = self.errno.to_ne_bytes();
        let [e, f, g, h] = self.process.to_ne_bytes();
        let signals_wait = u8::from(self.signals_wait);
        [self.stage as u8, signals_wait, a, b, c, d, e, f, g, h]
    }

    pub(crate) fn decode(bytes: [u8; Self::LENGTH]) -> Option<Self> {
        let [stage, signals_wait, a, b, c, d, e, f, g, h] = bytes;
        let stage = [
            Stage::Supervised,
            Stage::Filter,
            Stage::HandOver,
            Stage::Directory,
            Stage::Execute,
            Stage::Fork,
        ]
        .into_iter()
        .find(|known| *known as u8 == stage)?;
        Some(Self {
            stage,
            errno: i32::from_ne_bytes([a, b, c, d]),
            signals_wait: signals_wait != 0,
            process: i32::from_ne_bytes([e, f, g, h]),
        })
    }
}

/// The message of the watcher: the wait status of the application's process.
pub(crate) type WatcherMessage = [u8; 4];

/// All that the two processes need, prepared.
#[derive(Debug)]
pub(crate) struct Plan<'a> {
    pub(crate) filter: &'a [libc::sock_filter],
    /// Descriptors from this number on may be caught in `sendmsg`; the hand-over socket must be below.
    pub(crate) hand_over_below: RawFd,
    /// Whether signals wait for answers where the kernel can do that.
    pub(crate) let_signals_wait: bool,
    pub(crate) body: &'a Body,
    /// The environment, if it comes later: then nothing is executed before a message says that it is there.
    pub(crate) environment: Option<&'a Shared>,
    /// The watcher's end of the conversation with the supervisor.
    pub(crate) control: BorrowedFd<'a>,
    /// The child's end of the hand-over.
    pub(crate) hand_over: BorrowedFd<'a>,
    /// A descriptor of the supervisor's process, to see it end.
    pub(crate) supervisor: BorrowedFd<'a>,
}

/// What the application's process needs until `execve`, made before the fork.
pub(super) struct Pointers {
    /// The end of a stack, for the time in which it shares the watcher's memory.
    stack_end: *mut libc::c_void,
    arguments: Vec<*const libc::c_char>,
    shell_arguments: Vec<*const libc::c_char>,
    environment: Vec<*const libc::c_char>,
}

/// A few system calls deep.
const STACK: usize = 64 * 1024;

fn pointers(strings: &[CString]) -> Vec<*const libc::c_char> {
    strings
        .iter()
        .map(|string| string.as_ptr())
        .chain([std::ptr::null()])
        .collect()
}

/// Starts watcher and application. Returns the watcher's process id.
pub(crate) fn spawn(plan: &Plan<'_>) -> Result<libc::pid_t, Errno> {
    // Of sixteen bytes each, because a stack is aligned so.
    let mut stack = vec![0_u128; STACK / size_of::<u128>()];
    let pointers = match plan.body {
        Body::Execute(executable) => Some(Pointers {
            stack_end: stack.last_mut().map_or(std::ptr::null_mut(), |last| {
                (&raw mut *last).wrapping_add(1).cast()
            }),
            arguments: pointers(&executable.arguments),
            shell_arguments: pointers(&executable.shell_arguments),
            environment: pointers(&executable.environment),
        }),
        Body::Run(..) => None,
    };
    let mut everything = signal_set();
    let mut before = signal_set();
    // SAFETY: the sets are initialised sets of signals; the mask is restored below. The fork's child only calls
    // functions that make system calls, see the module's documentation, and never returns.
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

/// Runs a function of ours in a process of its own that is not supervised, and waits for it to end. For comparison; what
/// is said of [`Body::Run`] holds here too.
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

/// Makes the application's process. One that executes a program shares our memory until then, as `vfork` does it, and
/// so costs nothing but its name; we wait meanwhile.
pub(super) unsafe fn start_application(
    plan: &Plan<'_>,
    pointers: Option<&Pointers>,
    signals_before: &libc::sigset_t,
) -> libc::pid_t {
    let beginning = Beginning {
        plan,
        pointers,
        signals_before,
    };
    // SAFETY: the child runs on a stack of its own, and only calls functions that make system calls. What it borrows
    // outlives it, because this thread goes on only when it has executed a program or ended.
    unsafe {
        let Some(pointers) = pointers else {
            let application = libc::fork();
            if application == 0 {
                become_application(plan, None, signals_before);
            }
            return application;
        };
        libc::clone(
            begin,
            pointers.stack_end,
            libc::CLONE_VM | libc::CLONE_VFORK | libc::SIGCHLD,
            (&raw const beginning).cast_mut().cast(),
        )
    }
}

struct Beginning<'a> {
    plan: &'a Plan<'a>,
    pointers: Option<&'a Pointers>,
    signals_before: &'a libc::sigset_t,
}

extern "C" fn begin(beginning: *mut libc::c_void) -> libc::c_int {
    // SAFETY: `start_application` gives a pointer to its own, which outlives this.
    unsafe {
        let beginning = &*beginning.cast::<Beginning<'_>>();
        become_application(beginning.plan, beginning.pointers, beginning.signals_before)
    }
}

/// From here on this is the application's process.
unsafe fn become_application(
    plan: &Plan<'_>,
    pointers: Option<&Pointers>,
    signals_before: &libc::sigset_t,
) -> ! {
    // SAFETY: system calls on plain numbers, and on strings and arrays that were made before the fork.
    unsafe {
        libc::prctl(libc::PR_SET_PDEATHSIG, libc::SIGKILL);
        // Rust's runtime ignores it; a program expects the default.
        libc::signal(libc::SIGPIPE, libc::SIG_DFL);
        if let Body::Execute(Executable {
            directory: Some(directory),
            ..
        }) = plan.body
            && libc::chdir(directory.as_ptr()) == -1
        {
            give_up(plan, Stage::Directory);
        }
        supervise(plan);
        libc::pthread_sigmask(libc::SIG_SETMASK, signals_before, std::ptr::null_mut());
        match (plan.body, pointers) {
            (Body::Execute(executable), Some(pointers)) => {
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
                give_up(plan, Stage::Execute);
            }
            (Body::Run(run, result), _) => {
                watcher::keep_only([result.as_raw_fd(); 3]);
                run(std::os::fd::AsFd::as_fd(result));
                libc::_exit(0);
            }
            (Body::Execute(_), None) => libc::_exit(127),
        }
    }
}

/// Ends the process if nobody is there any more who could tell.
unsafe fn wait_for_environment(plan: &Plan<'_>) {
    let mut byte = 0_u8;
    // SAFETY: receives into a place of this stack frame. Without an address, so it is never caught.
    unsafe {
        let hand_over = plan.hand_over.as_raw_fd();
        if libc::recv(hand_over, (&raw mut byte).cast(), 1, 0) != 1 {
            libc::_exit(127);
        }
    }
}

unsafe fn give_up(plan: &Plan<'_>, stage: Stage) -> ! {
    // SAFETY: a descriptor that stays open; then the end.
    unsafe {
        send_report(plan.hand_over.as_raw_fd(), stage, Errno::last_raw());
        libc::_exit(127);
    }
}

/// Installs the filter and hands the listener over.
unsafe fn supervise(plan: &Plan<'_>) {
    // SAFETY: system calls on plain numbers; the filter outlives the call, which copies it.
    unsafe {
        // Nothing may be caught between installing the filter and handing over its listener: nobody would answer.
        let channel = low_copy(plan);
        if channel == -1 {
            *libc::__errno_location() = libc::EMFILE;
            give_up(plan, Stage::HandOver);
        }
        let (listener, signals_wait) = match install(plan.filter, plan.let_signals_wait) {
            Ok(installed) => installed,
            Err(errno) => {
                *libc::__errno_location() = errno as i32;
                give_up(plan, Stage::Filter);
            }
        };
        let report = Report {
            stage: Stage::Supervised,
            errno: 0,
            signals_wait,
            process: libc::getpid(),
        };
        if send_with_descriptor(channel, report, listener) == -1 {
            give_up(plan, Stage::HandOver);
        }
        libc::close(listener);
        libc::close(channel);
    }
}

/// A copy of the hand-over socket whose number is too low to be caught. If the supervisor has so much open that none is
/// free, it takes the place of something that `execve` closes anyway.
unsafe fn low_copy(plan: &Plan<'_>) -> RawFd {
    let original = plan.hand_over.as_raw_fd();
    let kept = match plan.body {
        Body::Run(_, result) => result.as_raw_fd(),
        Body::Execute(_) => original,
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

/// Tries the best variant first. Only one who may not install filters freely gives up the right to gain privileges.
unsafe fn install(
    filter: &[libc::sock_filter],
    let_signals_wait: bool,
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
    let either = || match let_signals_wait {
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
unsafe fn send_with_descriptor(channel: RawFd, report: Report, descriptor: RawFd) -> isize {
    let mut bytes = report.encode();
    let mut vector = libc::iovec {
        iov_base: bytes.as_mut_ptr().cast(),
        iov_len: bytes.len(),
    };
    /// Aligned as the kernel expects control messages.
    #[repr(align(8))]
    struct Control([u8; 32]);
    let mut control = Control([0; 32]);
    // SAFETY: the message points to places of this stack frame with their lengths. There is room for one control
    // message with one descriptor, so the first header exists.
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

pub(super) unsafe fn send_report(channel: RawFd, stage: Stage, errno: i32) {
    let bytes = Report {
        stage,
        errno,
        signals_wait: false,
        process: 0,
    }
    .encode();
    // SAFETY: sends a buffer of this stack frame. Without an address, so it is never caught.
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
