//! Handles that nobody needs any more: closing them at the target is never waited for.
//!
//! That a file which was only read is closed a moment later, nobody notices. So these are collected, and who reads many files
//! costs a question now and then, and not one for each. One that was written may keep others from using the file, and is
//! closed at once.

use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use protocol::rpc;
use tokio::sync::Notify;
use tokio::task::AbortHandle;

use crate::agent::Agent;

/// How long handles are collected.
const PAUSE: Duration = Duration::from_millis(50);

/// How soon a handle is to be closed.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Urgency {
    AtOnce,
    Soon,
}

/// Ends with its last user; the agent closes what is left with the connection.
#[derive(Debug)]
pub(crate) struct Closer {
    waiting: Arc<Waiting>,
    task: AbortHandle,
}

#[derive(Debug, Default)]
struct Waiting {
    handles: Mutex<Vec<u64>>,
    /// From whoever adds the first handle to the task.
    some: Notify,
    /// From whoever adds an urgent one to the task.
    urgent: Notify,
}

impl Closer {
    pub(crate) fn start(agent: &Agent) -> Self {
        let waiting = Arc::new(Waiting::default());
        let task = agent
            .runtime
            .spawn(run(agent.clone(), Arc::clone(&waiting)));
        Self {
            waiting,
            task: task.abort_handle(),
        }
    }

    pub(crate) fn close(&self, handle: u64, urgency: Urgency) {
        let mut handles = self.waiting.lock();
        handles.push(handle);
        // The task is not woken for each.
        if handles.len() == 1 {
            self.waiting.some.notify_one();
        }
        if urgency == Urgency::AtOnce {
            self.waiting.urgent.notify_one();
        }
    }
}

impl Drop for Closer {
    fn drop(&mut self) {
        self.task.abort();
    }
}

impl Waiting {
    fn lock(&self) -> std::sync::MutexGuard<'_, Vec<u64>> {
        self.handles.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

async fn run(agent: Agent, waiting: Arc<Waiting>) {
    loop {
        waiting.some.notified().await;
        tokio::select! {
            () = waiting.urgent.notified() => {}
            () = tokio::time::sleep(PAUSE) => {}
        }
        let handles = std::mem::take(&mut *waiting.lock());
        // The agent closes what is left with the connection.
        let _ = agent.files().close(rpc::CloseRequest { handles }).await;
    }
}
