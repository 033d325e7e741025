//! Whether the agent has a tunnel, and otherwise why not.

use parking_lot::Mutex;

/// The state that probes show.
#[derive(Debug)]
pub(crate) struct Condition(Mutex<Option<String>>);

impl Default for Condition {
    fn default() -> Self {
        Self(Mutex::new(Some("starting".to_owned())))
    }
}

impl Condition {
    /// Why there is no tunnel, if there is none.
    pub(crate) fn problem(&self) -> Option<String> {
        self.0.lock().clone()
    }

    pub(crate) fn set_problem(&self, problem: impl Into<String>) {
        *self.0.lock() = Some(problem.into());
    }

    pub(crate) fn set_connected(&self) {
        *self.0.lock() = None;
    }
}
