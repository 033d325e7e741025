//! Somebody who listens to a session.

use std::sync::Arc;
use std::sync::atomic::Ordering;

use monitor::Entry;

use super::Hub;

/// Events that are handed over at once.
const MOST: usize = 256;

/// Reads a session's events from the ring, at its own pace.
#[derive(Debug)]
pub struct Subscription {
    hub: Arc<Hub>,
    /// The number of the last event that was read.
    last: u64,
}

/// What is new.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Batch {
    /// Events before these that are not kept any more.
    pub missed: u64,
    pub entries: Vec<Arc<Entry>>,
}

impl Subscription {
    pub(super) fn new(hub: Arc<Hub>, after: Option<u64>) -> Self {
        hub.subscribers.fetch_add(1, Ordering::Relaxed);
        let last = match after {
            // A number that is still to come is of another session.
            Some(after) => after.min(hub.lock().counters.events),
            None => {
                let recorder = hub.lock();
                let (missed, _) = recorder.after(0, 0);
                missed
            }
        };
        Self { hub, last }
    }

    /// Waits until there is something new. Safe to be given up and called again.
    pub async fn next(&mut self) -> Batch {
        loop {
            let hub = Arc::clone(&self.hub);
            let mut news = std::pin::pin!(hub.news.notified());
            // From here on nothing is overlooked that comes after the look below.
            news.as_mut().enable();
            if let Some(batch) = self.take() {
                return batch;
            }
            news.await;
        }
    }

    /// What is new, if anything is.
    pub fn take(&mut self) -> Option<Batch> {
        let (missed, entries) = self.hub.lock().after(self.last, MOST);
        self.last = entries.last()?.seq;
        Some(Batch { missed, entries })
    }
}

impl Drop for Subscription {
    fn drop(&mut self) {
        self.hub.subscribers.fetch_sub(1, Ordering::Relaxed);
    }
}
