//! Calls that a signal interrupts and that are then made again.
//!
//! Since Linux 5.19 signals wait for our answers, and nothing of this is needed. Before, a signal ends the waiting of a
//! call that we are still working on; the kernel then makes the same call again, or the program does after `EINTR`.
//! What was done must not be done twice: a second `mkdir` would fail. So the latest call of each thread is remembered
//! until it is answered, and the same call of the same thread gets the answer of the first.
//!
//! One case cannot be told from a program that asks twice: a signal that arrives in the microsecond in which the answer
//! is given. Those kernels say that it was received, forget it, and have the call made again. About one in a thousand of
//! the signals that hit a call do so; answers that are descriptors are safe from it.

use std::collections::HashMap;
use std::os::fd::{AsRawFd, BorrowedFd, OwnedFd};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use crate::Errno;
use crate::sys::seccomp;
use crate::workers::lock;

/// How long an answer waits to be asked for again.
const KEPT: Duration = Duration::from_secs(1);

/// From this many threads on, those that wait for nothing are forgotten.
const MANY: usize = 4096;

/// What a call is answered with.
#[derive(Debug)]
pub(crate) enum Outcome {
    /// The kernel does it.
    Pass,
    Value(i64),
    /// The number of an error.
    Error(i32),
    /// In the caller's lowest free number; closed on `execve` or not.
    Descriptor(OwnedFd, bool),
}

impl Outcome {
    /// `ENOENT` if the caller no longer waits.
    pub(crate) fn deliver(&self, listener: BorrowedFd<'_>, id: u64) -> Result<(), Errno> {
        match self {
            Self::Pass => seccomp::send_continue(listener, id),
            Self::Value(value) => seccomp::send(listener, id, *value, 0),
            Self::Error(error) => seccomp::send(listener, id, 0, *error),
            Self::Descriptor(descriptor, close_on_exec) => {
                let (raw, place) = (descriptor.as_raw_fd(), seccomp::Place::Lowest);
                match seccomp::send_descriptor(listener, id, raw, place, *close_on_exec) {
                    // Interrupted before it was in place.
                    Err(Errno::ESRCH) => Err(Errno::ENOENT),
                    // The caller may have no number left; that is its error to see.
                    Err(errno) if errno != Errno::ENOENT => {
                        seccomp::send(listener, id, 0, errno as i32)
                    }
                    result => result,
                }
            }
        }
    }
}

/// The latest call of each thread.
#[derive(Debug, Default)]
pub(crate) struct Restarts(Mutex<HashMap<libc::pid_t, Latest>>);

#[derive(Debug)]
struct Latest {
    number: libc::c_int,
    arguments: [u64; 6],
    call: Arc<Call>,
}

/// A call that may be made again while it is worked on.
#[derive(Debug)]
pub(crate) struct Call(Mutex<State>);

#[derive(Debug)]
struct State {
    /// Under which the kernel waits for the answer now.
    id: u64,
    /// Nobody works on it any more.
    finished: bool,
    /// Nobody waited when it was there.
    outcome: Option<(Outcome, Instant)>,
}

impl Restarts {
    /// A call arrives. `None` if it is one that was made before: it is answered, or will be.
    pub(crate) fn arrive(
        &self,
        listener: BorrowedFd<'_>,
        received: &seccomp::Received,
    ) -> Option<Arc<Call>> {
        let mut all = lock(&self.0);
        if let Some(latest) = all.remove(&received.thread)
            && (latest.number, latest.arguments) == (received.number, received.arguments)
        {
            let mut state = lock(&latest.call.0);
            let is_taken_up = !state.finished || state.deliver_kept(listener, received.id);
            state.id = received.id;
            drop(state);
            if is_taken_up {
                all.insert(received.thread, latest);
                return None;
            }
        }
        if all.len() >= MANY {
            all.retain(|_, latest| !lock(&latest.call.0).finished);
        }
        let call = Arc::new(Call(Mutex::new(State {
            id: received.id,
            finished: false,
            outcome: None,
        })));
        let latest = Latest {
            number: received.number,
            arguments: received.arguments,
            call: Arc::clone(&call),
        };
        all.insert(received.thread, latest);
        Some(call)
    }
}

impl Call {
    /// Whether the caller waits now. If not, the work on it is given up, and begins anew should it be made again.
    pub(crate) fn is_wanted(&self, listener: BorrowedFd<'_>) -> bool {
        let mut state = lock(&self.0);
        state.finished |= !seccomp::is_valid(listener, state.id);
        !state.finished
    }

    /// Answers the call, or keeps the answer until it is made again.
    pub(crate) fn answer(&self, listener: BorrowedFd<'_>, outcome: Outcome) {
        let mut state = lock(&self.0);
        if state.finished {
            return;
        }
        state.finished = true;
        state.outcome = Some((outcome, Instant::now()));
        let id = state.id;
        state.deliver_kept(listener, id);
    }
}

impl State {
    /// Gives the answer to whoever waits under this number. A signal may have ended that waiting too: the answer is then
    /// kept for the next time. False if there is none, or none that is still meant for this call.
    fn deliver_kept(&mut self, listener: BorrowedFd<'_>, id: u64) -> bool {
        let Some((outcome, at)) = self.outcome.take() else {
            return false;
        };
        if at.elapsed() >= KEPT {
            return false;
        }
        let delivered = outcome.deliver(listener, id);
        if delivered == Err(Errno::ENOENT) && !matches!(outcome, Outcome::Pass) {
            self.outcome = Some((outcome, Instant::now()));
        }
        true
    }
}
