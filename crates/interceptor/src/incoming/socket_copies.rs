//! Our copies of sockets on which calls are suspended.
//!
//! A socket stays open as long as any process has a copy of it, and we have one for a suspended call. When the caller
//! is killed, we close the copy as soon as we notice. Until then the port is in use by a process that no longer exists,
//! so a `bind` to it waits for us.

use std::time::Duration;

use parking_lot::{Condvar, Mutex};

use crate::notification::{Notification, PendingCall};

/// How long we may take to notice that a caller has ended.
const RELEASE_TIMEOUT: Duration = Duration::from_secs(2);

#[derive(Debug, Default)]
pub(crate) struct SocketCopies {
    state: Mutex<State>,
    released: Condvar,
}

#[derive(Debug, Default)]
struct State {
    copies: Vec<(u64, PendingCall)>,
    number: u64,
}

/// Represents a copy. Must be dropped after the copy is closed.
#[derive(Debug)]
pub(crate) struct CopyGuard<'a> {
    all: &'a SocketCopies,
    number: u64,
}

impl SocketCopies {
    pub(crate) fn register(&self, call: &Notification) -> CopyGuard<'_> {
        let mut state = self.state.lock();
        state.number += 1;
        let number = state.number;
        state.copies.push((number, call.pending_call()));
        CopyGuard { all: self, number }
    }

    /// Waits until all copies for ended callers are closed. Returns false if there were none.
    pub(super) fn wait_for_stale_copies(&self) -> bool {
        let is_gone = |(_, call): &(u64, PendingCall)| !call.is_valid();
        let mut state = self.state.lock();
        let any = state.copies.iter().any(is_gone);
        if any {
            let any_gone = |state: &mut State| state.copies.iter().any(is_gone);
            self.released
                .wait_while_for(&mut state, any_gone, RELEASE_TIMEOUT);
        }
        any
    }
}

impl Drop for CopyGuard<'_> {
    fn drop(&mut self) {
        let mut state = self.all.state.lock();
        state.copies.retain(|(number, _)| *number != self.number);
        drop(state);
        self.all.released.notify_all();
    }
}
