//! Subscriptions to the events of a session.

use std::sync::Arc;
use std::sync::atomic::Ordering;

use monitor::Entry;

use super::Hub;

/// The maximum number of events in a batch.
const MAX_BATCH: usize = 256;

/// Reads a session's events from the ring buffer, at its own pace.
#[derive(Debug)]
pub struct EventSubscription {
    hub: Arc<Hub>,
    /// The number of the last event that was read.
    last: u64,
}

/// New events.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct EventBatch {
    /// The number of events before these that were overwritten.
    pub missed: u64,
    pub entries: Vec<Arc<Entry>>,
}

impl EventSubscription {
    pub(super) fn new(hub: Arc<Hub>, after: Option<u64>) -> Self {
        hub.subscribers.fetch_add(1, Ordering::Relaxed);
        let last = match after {
            // A number in the future is from another session.
            Some(after) => after.min(hub.recorder.lock().counters.events),
            None => {
                let recorder = hub.recorder.lock();
                let (missed, _) = recorder.after(0, 0);
                missed
            }
        };
        Self { hub, last }
    }

    /// Waits for new events. Cancel-safe.
    pub async fn next(&mut self) -> EventBatch {
        loop {
            let hub = Arc::clone(&self.hub);
            let mut notified = std::pin::pin!(hub.new_events.notified());
            // Registers before the check below, so that no event is missed between the two.
            notified.as_mut().enable();
            if let Some(batch) = self.take() {
                return batch;
            }
            notified.await;
        }
    }

    /// Returns new events without waiting, if there are any.
    pub fn take(&mut self) -> Option<EventBatch> {
        let (missed, entries) = self.hub.recorder.lock().after(self.last, MAX_BATCH);
        self.last = entries.last()?.seq;
        Some(EventBatch { missed, entries })
    }
}

impl Drop for EventSubscription {
    fn drop(&mut self) {
        self.hub.subscribers.fetch_sub(1, Ordering::Relaxed);
    }
}
