//! What this machine can do, found out by trying.

use std::os::fd::{AsFd, AsRawFd, BorrowedFd};
use std::os::unix::net::UnixStream;
use std::sync::Arc;

use crate::filter::Catch;
use crate::launch::{first_datagram_descriptor, start};
use crate::supervisor::Supervisor;
use crate::sys::spawn::Body;
use crate::sys::{memory, process, seccomp};
use crate::{Error, Host};

/// Features of the kernel and of the environment, each with what it is good for.
#[derive(Debug)]
#[non_exhaustive]
pub struct Diagnosis {
    /// Calls can be caught at all. `Err` says why not.
    pub user_notification: Result<(), Error>,
    /// A call is answered with a descriptor in one step (Linux 5.14). Without it a signal may come between.
    pub answer_with_descriptor: bool,
    /// Signals wait for answers (Linux 5.19). Without it some calls fail with `EINTR` that natively never do.
    pub signals_wait: bool,
    /// Supervisor and application hand the processor to one another (Linux 6.6). Without it each call takes longer.
    pub same_processor_wake_up: bool,
    /// Sockets of the application can be copied (Linux 5.6, and the right to trace it). Connections need it.
    pub copy_descriptors: bool,
    /// The application's memory can be read (the right to trace it). Everything needs it.
    pub read_memory: bool,
}

/// Tries everything out on a process of its own.
#[must_use]
pub fn diagnose() -> Diagnosis {
    let mut diagnosis = Diagnosis {
        user_notification: Ok(()),
        answer_with_descriptor: false,
        signals_wait: false,
        same_processor_wake_up: false,
        copy_descriptors: false,
        read_memory: false,
    };
    match probe(&mut diagnosis) {
        Ok(()) => {}
        Err(error) => diagnosis.user_notification = Err(error),
    }
    diagnosis
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
    // The child is a copy of us, so what is at an address here is there too.
    let here = std::ptr::from_ref(&PROBE).addr() as u64;
    diagnosis.read_memory = memory::read_plain::<u32>(child, here) == Ok(PROBE);
    drop(ours);
    Ok(())
}

static PROBE: u32 = 0x5741_4e44;

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
