//! Probes which features the kernel and the environment support.

use std::os::fd::{AsFd, AsRawFd, BorrowedFd};
use std::os::unix::net::UnixStream;
use std::sync::Arc;

use crate::filter::InterceptSettings;
use crate::launch::{first_datagram_descriptor, start};
use crate::supervisor::Supervisor;
use crate::sys::spawn::ProcessBody;
use crate::sys::{memory, process, seccomp};
use crate::{Errno, Error, Host};

/// Supported features of the kernel and the environment.
#[derive(Debug)]
#[non_exhaustive]
pub struct Diagnosis {
    /// Whether calls can be intercepted at all; the error tells why not.
    pub user_notification: Result<(), Error>,
    /// A call can be completed with a descriptor in one step (Linux 5.14). Without it a signal may interrupt the call
    /// between the two steps.
    pub reply_with_descriptor: bool,
    /// Only fatal signals interrupt intercepted calls (Linux 5.19). Without it interrupted calls are recognized when
    /// they are repeated; if the signal handler has no `SA_RESTART`, calls may fail with `EINTR` that natively never
    /// do.
    pub wait_killable: bool,
    /// Supervisor and application wake each other on the same CPU (Linux 6.6). Without it each call takes longer.
    pub same_processor_wake_up: bool,
    /// Descriptors of the application can be duplicated (Linux 5.6 and ptrace permission). Connections require it.
    pub copy_descriptors: bool,
    /// The memory of the application can be read (ptrace permission). Everything requires it.
    pub read_memory: bool,
}

/// Whether a program can be supervised in this environment, as far as a quick check can tell. It is meant for the start
/// of a session, before anything is created that would have to be removed again. If this process has no seccomp filter,
/// which is the usual case, the check starts no process.
///
/// # Errors
/// The missing feature; [`Error::Nested`] when this process is itself supervised.
pub fn check() -> Result<(), Error> {
    check_kernel()?;
    if !has_filter() {
        return Ok(());
    }
    // There is a filter; only a probe can tell whether it is one of ours, or one that forbids ours.
    probe(&mut Diagnosis::unsupported())
}

/// Checks that need no process.
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

/// Checks that the memory of a child can be read. The child is a fork, so it has the same data at the same address.
pub(crate) fn check_memory_access(child: libc::pid_t) -> Result<(), Errno> {
    let here = std::ptr::from_ref(&PROBE).addr() as u64;
    match memory::read_plain::<u32>(child, here)? {
        PROBE_VALUE => Ok(()),
        _ => Err(Errno::EFAULT),
    }
}

/// Probes all features with a test process.
#[must_use]
pub fn diagnose() -> Diagnosis {
    let mut diagnosis = Diagnosis::unsupported();
    match probe(&mut diagnosis) {
        Ok(()) => {}
        Err(error) => diagnosis.user_notification = Err(error),
    }
    diagnosis
}

impl Diagnosis {
    fn unsupported() -> Self {
        Self {
            user_notification: Ok(()),
            reply_with_descriptor: false,
            wait_killable: false,
            same_processor_wake_up: false,
            copy_descriptors: false,
            read_memory: false,
        }
    }
}

/// A host that is never called.
#[derive(Debug)]
struct NoHost;

impl Host for NoHost {}

fn probe(diagnosis: &mut Diagnosis) -> Result<(), Error> {
    let (ours, theirs) = UnixStream::pair().map_err(|error| Error::System {
        what: "make a pair of sockets",
        source: crate::notification::errno_of(&error),
    })?;
    let settings = InterceptSettings {
        files: false,
        outgoing: false,
        incoming: false,
        hostname: false,
        refuse_io_uring: true,
        first_datagram_descriptor: first_datagram_descriptor(),
        wait_killable: true,
    };
    let supervisor = Supervisor::new(Arc::new(NoHost), settings);
    let number = theirs.as_raw_fd();
    let supervised = start(&ProcessBody::Run(wait_for_end, theirs.into()), supervisor)?;
    diagnosis.wait_killable = supervised.wait_killable();
    diagnosis.reply_with_descriptor = supervised.features.reply_with_descriptor;
    diagnosis.same_processor_wake_up = supervised.features.same_processor_wake_up;
    let child = supervised.process();
    diagnosis.copy_descriptors = process::open(child)
        .and_then(|child| process::copy_descriptor(child.as_fd(), number))
        .is_ok();
    diagnosis.read_memory = check_memory_access(child).is_ok();
    drop(ours);
    Ok(())
}

const PROBE_VALUE: u32 = 0x5741_4e44;
static PROBE: u32 = PROBE_VALUE;

/// The body of the test process.
fn wait_for_end(socket: BorrowedFd<'_>) {
    let _ = nix::unistd::read(socket, &mut [0]);
}

/// Features of a seccomp listener.
#[derive(Debug, Clone, Copy, Default)]
pub(crate) struct ListenerFeatures {
    pub(crate) reply_with_descriptor: bool,
    pub(crate) same_processor_wake_up: bool,
}

pub(crate) fn listener_features(listener: BorrowedFd<'_>) -> ListenerFeatures {
    ListenerFeatures {
        reply_with_descriptor: seccomp::supports_descriptor_reply(listener),
        same_processor_wake_up: seccomp::enable_sync_wake_up(listener),
    }
}
