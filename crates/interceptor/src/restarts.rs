//! Calls that are interrupted by a signal and then repeated.
//!
//! Since Linux 5.19 signals do not interrupt intercepted calls (`WAIT_KILLABLE_RECV`), and this module is unused. On
//! older kernels a signal ends the suspension of a call that we are still working on; the kernel then repeats the same
//! call, or the program does so after `EINTR`. The operation must not be performed twice: a second `mkdir` would fail.
//! So the latest call of each thread is tracked until it is completed, and a repetition of the same call by the same
//! thread gets the response of the first.
//!
//! One case cannot be distinguished from a program that makes the call twice: a signal that is delivered in the
//! microsecond in which the response is sent. Those kernels report the response as received, discard it, and repeat the
//! call. This happens to about one in a thousand of the signals that hit a call; responses with a descriptor are not
//! affected.

use std::collections::HashMap;
use std::os::fd::{AsRawFd, BorrowedFd, OwnedFd};
use std::sync::Arc;
use std::time::{Duration, Instant};

use parking_lot::Mutex;

use crate::Errno;
use crate::sys::seccomp;

/// How long a response is kept for a repetition of the call.
const RESPONSE_TTL: Duration = Duration::from_secs(1);

/// When this many threads are tracked, those without a call in progress are removed.
const CLEANUP_THRESHOLD: usize = 4096;

/// The response to a call.
#[derive(Debug)]
pub(crate) enum CallResponse {
    /// The kernel executes the call.
    Pass,
    Value(i64),
    /// An error number.
    Error(i32),
    /// A descriptor for the lowest free number of the caller, and whether it is closed on `execve`.
    Descriptor(OwnedFd, bool),
}

impl CallResponse {
    /// Sends the response. `ENOENT` if the caller is no longer suspended.
    pub(crate) fn send(&self, listener: BorrowedFd<'_>, id: u64) -> Result<(), Errno> {
        match self {
            Self::Pass => seccomp::send_continue(listener, id),
            Self::Value(value) => seccomp::send(listener, id, *value, 0),
            Self::Error(error) => seccomp::send(listener, id, 0, *error),
            Self::Descriptor(descriptor, close_on_exec) => {
                let (raw, slot) = (descriptor.as_raw_fd(), seccomp::DescriptorSlot::Lowest);
                match seccomp::send_descriptor(listener, id, raw, slot, *close_on_exec) {
                    // A signal interrupted the call before the descriptor was installed.
                    Err(Errno::ESRCH) => Err(Errno::ENOENT),
                    // The caller may have no free descriptor number; it gets that error.
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
    call: Arc<RestartableCall>,
}

/// A call that may be repeated while it is being handled.
#[derive(Debug)]
pub(crate) struct RestartableCall(Mutex<State>);

#[derive(Debug)]
struct State {
    /// The notification ID under which the kernel currently expects the response.
    id: u64,
    /// No worker handles the call any more.
    finished: bool,
    /// A response that could not be delivered because the caller was not suspended.
    response: Option<(CallResponse, Instant)>,
}

impl Restarts {
    /// Registers a received call. Returns `None` if it repeats an earlier call, which has been or will be completed.
    pub(crate) fn register(
        &self,
        listener: BorrowedFd<'_>,
        received: &seccomp::ReceivedCall,
    ) -> Option<Arc<RestartableCall>> {
        let mut all = self.0.lock();
        if let Some(latest) = all.remove(&received.thread)
            && (latest.number, latest.arguments) == (received.number, received.arguments)
        {
            let mut state = latest.call.0.lock();
            let is_taken_up = !state.finished || state.send_kept(listener, received.id);
            state.id = received.id;
            drop(state);
            if is_taken_up {
                all.insert(received.thread, latest);
                return None;
            }
        }
        if all.len() >= CLEANUP_THRESHOLD {
            all.retain(|_, latest| !latest.call.0.lock().finished);
        }
        let call = Arc::new(RestartableCall(Mutex::new(State {
            id: received.id,
            finished: false,
            response: None,
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

impl RestartableCall {
    /// Whether the caller is currently suspended. If not, the work on the call is abandoned, and starts over if the
    /// call is repeated.
    pub(crate) fn is_pending(&self, listener: BorrowedFd<'_>) -> bool {
        let mut state = self.0.lock();
        state.finished |= !seccomp::is_valid(listener, state.id);
        !state.finished
    }

    /// Completes the call, or keeps the response until the call is repeated.
    pub(crate) fn complete(&self, listener: BorrowedFd<'_>, response: CallResponse) {
        let mut state = self.0.lock();
        if state.finished {
            return;
        }
        state.finished = true;
        state.response = Some((response, Instant::now()));
        let id = state.id;
        state.send_kept(listener, id);
    }
}

impl State {
    /// Sends the kept response to the caller that is suspended under this ID. If a signal ended that suspension as
    /// well, the response is kept for the next repetition. Returns false if there is no response, or if it has expired.
    fn send_kept(&mut self, listener: BorrowedFd<'_>, id: u64) -> bool {
        let Some((response, at)) = self.response.take() else {
            return false;
        };
        if at.elapsed() >= RESPONSE_TTL {
            return false;
        }
        let delivered = response.send(listener, id);
        if delivered == Err(Errno::ENOENT) && !matches!(response, CallResponse::Pass) {
            self.response = Some((response, Instant::now()));
        }
        true
    }
}
