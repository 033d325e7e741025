//! Closes handles at the agent that are no longer needed. No caller waits for it.
//!
//! It does not matter whether a file that was only read is closed a few milliseconds later. So these handles are closed in
//! batches, and a program that reads many files does not cost one request per file. A handle that was open for writing
//! may block other users of the file, and is closed immediately.

use std::sync::Arc;
use std::time::Duration;

use parking_lot::Mutex;
use protocol::rpc;
use tokio::sync::Notify;
use tokio::task::AbortHandle;

use crate::agent::SessionContext;

/// How long handles are collected before a batch is closed.
const BATCH_DELAY: Duration = Duration::from_millis(50);

/// How soon a handle is closed.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum CloseMode {
    Immediate,
    Batched,
}

/// The task ends on drop. The agent closes the remaining handles together with the connection.
#[derive(Debug)]
pub(crate) struct HandleCloser {
    pending: Arc<PendingCloses>,
    task: AbortHandle,
}

#[derive(Debug, Default)]
struct PendingCloses {
    handles: Mutex<Vec<u64>>,
    /// Wakes the task when the first handle is added.
    not_empty: Notify,
    /// Wakes the task when an urgent handle is added.
    urgent: Notify,
}

impl HandleCloser {
    pub(crate) fn start(context: &SessionContext) -> Self {
        let pending = Arc::new(PendingCloses::default());
        let task = context
            .runtime
            .spawn(run(context.clone(), Arc::clone(&pending)));
        Self {
            pending,
            task: task.abort_handle(),
        }
    }

    pub(crate) fn close(&self, handle: u64, mode: CloseMode) {
        let mut handles = self.pending.handles.lock();
        handles.push(handle);
        // The task is woken once per batch, not for each handle.
        if handles.len() == 1 {
            self.pending.not_empty.notify_one();
        }
        if mode == CloseMode::Immediate {
            self.pending.urgent.notify_one();
        }
    }
}

impl Drop for HandleCloser {
    fn drop(&mut self) {
        self.task.abort();
    }
}

async fn run(context: SessionContext, pending: Arc<PendingCloses>) {
    loop {
        pending.not_empty.notified().await;
        tokio::select! {
            () = pending.urgent.notified() => {}
            () = tokio::time::sleep(BATCH_DELAY) => {}
        }
        let handles = std::mem::take(&mut *pending.handles.lock());
        // If it fails, the connection is lost, and the agent closes the handles with it.
        let _ = context.files().close(rpc::CloseRequest { handles }).await;
    }
}
