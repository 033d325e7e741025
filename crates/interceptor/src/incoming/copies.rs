//! Our copies of sockets on which calls wait.
//!
//! A socket is open as long as somebody has a copy of it, and for a call that waits that is us. When the caller is killed
//! we let go as soon as we see it. Until then the port is taken, by nobody who is still there: who binds it waits for us.

use std::sync::{Condvar, Mutex, PoisonError};
use std::time::Duration;

use crate::notification::{Notification, Waiting};
use crate::workers::lock;

/// How long we may take to see that a caller is gone.
const LONGEST: Duration = Duration::from_secs(2);

#[derive(Debug, Default)]
pub(crate) struct Copies {
    state: Mutex<State>,
    let_go: Condvar,
}

#[derive(Debug, Default)]
struct State {
    held: Vec<(u64, Waiting)>,
    number: u64,
}

/// There is a copy. To be dropped after it.
#[derive(Debug)]
pub(crate) struct Held<'a> {
    copies: &'a Copies,
    number: u64,
}

impl Copies {
    pub(crate) fn hold(&self, call: &Notification) -> Held<'_> {
        let mut state = lock(&self.state);
        state.number += 1;
        let number = state.number;
        state.held.push((number, call.waiting()));
        Held {
            copies: self,
            number,
        }
    }

    /// Waits until there is no copy for somebody who is gone. False if there was none.
    pub(super) fn wait_for_those_of_the_gone(&self) -> bool {
        let is_gone = |(_, waiting): &(u64, Waiting)| !waiting.is_valid();
        let state = lock(&self.state);
        let any = state.held.iter().any(is_gone);
        if any {
            let waited = self
                .let_go
                .wait_timeout_while(state, LONGEST, |state| state.held.iter().any(is_gone));
            drop(waited.unwrap_or_else(PoisonError::into_inner));
        }
        any
    }
}

impl Drop for Held<'_> {
    fn drop(&mut self) {
        let mut state = lock(&self.copies.state);
        state.held.retain(|(number, _)| *number != self.number);
        drop(state);
        self.copies.let_go.notify_all();
    }
}
