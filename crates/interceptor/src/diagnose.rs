//! What this machine can do, found out by trying.

use std::os::fd::{AsFd, AsRawFd, BorrowedFd};
use std::os::unix::net::UnixStream;
use std::sync::Arc;

use crate::filter::Catch;
use crate::launch::{first_datagram_descriptor, start};
use crate::supervisor::Supervisor;
use crate::sys::spawn::Body;
use crate::sys::{memory, process, seccomp};
use crate::{Errno, Error, Host};

/// Features of the kernel and of the environment, each with what it is good for.
#[derive(Debug)]
#[non_exhaustive]
pub struct Diagnosis {
    /// Calls can be caught at all. `Err` says why not.
    pub user_notification: Result<(), Error>,
    /// A call is answered with a descriptor in one step (Linux 5.14). Without it a signal may come between.
    pub answer_with_descriptor: bool,
    /// Signals wait for answers (Linux 5.19). Without it calls that a signal interrupts are recognised when they are made
    /// again, and where a handler does not want that, some fail with `EINTR` that natively never do.
    pub signals_wait: bool,
    /// Supervisor and application hand the processor to one another (Linux 6.6). Without it each call takes longer.
    pub same_processor_wake_up: bool,
    /// Sockets of the application can be copied (Linux 5.6, and the right to trace it). Connections need it.
    pub copy_descriptors: bool,
    /// The application's memory can be read (the right to trace it). Everything needs it.
    pub read_memory: bool,
}

/// Whether a program can be supervised from here, as far as that can be said at once: for the very first step of a
/// session, before anything is started that would have to be ended again. Without a filter on this process, which is
/// the usual case, it starts nothing.
///
/// # Errors
/// What is missing; [`Error::Nested`] when this process is itself supervised.
pub fn check() -> Result<(), Error> {
    check_kernel()?;
    if !has_filter() {
        return Ok(());
    }
    // There is a filter; only trying tells whether it is one of ours, or one that forbids ours.
    probe(&mut Diagnosis::nothing())
}

/// What can be seen without starting anything.
pub(crate) fn check_kernel() -> Result<(), Error> {
    match seccomp::notification_sizes_match() {
        Ok(true) => {}
        Ok(false) | Err(Errno::ENOSYS | Errno::EINVAL | Errno::EOPNOTSUPP) => {
            return Err(Error::NoUserNotification);
        }
        Err(source) => return Err(Error::Forbidden { source }),
    }
    match std::fs::metadata("/proc/self/status") {
        Ok(_) => Ok(()),
        Err(error) => Err(Error::NoProc {
            source: crate::notification::errno_of(&error),
        }),
    }
}

fn has_filter() -> bool {
    let status = std::fs::read_to_string("/proc/self/status").unwrap_or_default();
    !status.lines().any(|line| line == "Seccomp:\t0")
}

/// Whether a child that is a copy of us can be read: what is at an address here is there too.
pub(crate) fn read_copy(child: libc::pid_t) -> Result<(), Errno> {
    let here = std::ptr::from_ref(&PROBE).addr() as u64;
    match memory::read_plain::<u32>(child, here)? {
        PROBE_VALUE => Ok(()),
        _ => Err(Errno::EFAULT),
    }
}

/// Tries everything out on a process of its own.
#[must_use]
pub fn diagnose() -> Diagnosis {
    let mut diagnosis = Diagnosis::nothing();
    match probe(&mut diagnosis) {
        Ok(()) => {}
        Err(error) => diagnosis.user_notification = Err(error),
    }
    diagnosis
}

impl Diagnosis {
    fn nothing() -> Self {
        Self {
            user_notification: Ok(()),
            answer_with_descriptor: false,
            signals_wait: false,
            same_processor_wake_up: false,
            copy_descriptors: false,
            read_memory: false,
        }
    }
}

/// A host that is never asked.
#[derive(Debug)]
struct Nobody;

impl Host for Nobody {}

fn probe(diagnosis: &mut Diagnosis) -> Result<(), Error> {
    let (ours, theirs) = UnixStream::pair().map_err(|error| Error::System {
        what: "make a pair of sockets",
        source: crate::notification::errno_of(&error),
    })?;
    let catch = Catch {
        files: false,
        outgoing: false,
        incoming: false,
        hostname: false,
        refuse_io_uring: true,
        first_datagram_descriptor: first_datagram_descriptor(),
        let_signals_wait: true,
    };
    let supervisor = Supervisor::new(Arc::new(Nobody), catch);
    let number = theirs.as_raw_fd();
    let supervised = start(&Body::Run(wait_for_end, theirs.into()), supervisor)?;
    diagnosis.signals_wait = supervised.signals_wait();
    diagnosis.answer_with_descriptor = supervised.features.answer_with_descriptor;
    diagnosis.same_processor_wake_up = supervised.features.same_processor_wake_up;
    let child = supervised.process();
    diagnosis.copy_descriptors = process::open(child)
        .and_then(|child| process::copy_descriptor(child.as_fd(), number))
        .is_ok();
    diagnosis.read_memory = read_copy(child).is_ok();
    drop(ours);
    Ok(())
}

const PROBE_VALUE: u32 = 0x5741_4e44;
static PROBE: u32 = PROBE_VALUE;

/// The body of the process that is tried on.
fn wait_for_end(socket: BorrowedFd<'_>) {
    let _ = nix::unistd::read(socket, &mut [0]);
}

/// What a listener can do.
#[derive(Debug, Clone, Copy, Default)]
pub(crate) struct ListenerFeatures {
    pub(crate) answer_with_descriptor: bool,
    pub(crate) same_processor_wake_up: bool,
}

pub(crate) fn listener_features(listener: BorrowedFd<'_>) -> ListenerFeatures {
    ListenerFeatures {
        answer_with_descriptor: seccomp::knows_send_descriptor(listener),
        same_processor_wake_up: seccomp::wake_up_on_same_processor(listener),
    }
}
