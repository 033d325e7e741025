//! The connections that pass through the agent, so that its end does not break what is under way on them.

use std::collections::HashMap;
use std::fmt;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use futures_util::future::{AbortHandle, Abortable};

use super::fate::Fate;

/// Between two looks at whether all have ended.
const BETWEEN_LOOKS: Duration = Duration::from_millis(5);

/// The connections that are being served.
#[derive(Default)]
pub(super) struct OpenConnections(Mutex<Open>);

#[derive(Default)]
struct Open {
    last: u64,
    connections: HashMap<u64, (Arc<Fate>, AbortHandle)>,
}

impl OpenConnections {
    fn open(&self) -> MutexGuard<'_, Open> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Serves a connection until it has ended, or until it rests and is to end.
    pub(super) async fn serve(&self, fate: Arc<Fate>, serving: impl Future<Output = ()>) {
        let (handle, registration) = AbortHandle::new_pair();
        let number = {
            let mut open = self.open();
            open.last += 1;
            let number = open.last;
            open.connections.insert(number, (Arc::clone(&fate), handle));
            number
        };
        let _removed_at_the_end = Entry(self, number);
        let _ = Abortable::new(fate.shared_by(serving), registration).await;
    }

    /// Ends every connection when nothing seems to be under way on it, and waits for the last.
    pub(super) async fn end(&self) {
        for (fate, handle) in self.open().connections.values() {
            let (fate, handle) = (Arc::clone(fate), handle.clone());
            tokio::spawn(async move {
                fate.rests().await;
                handle.abort();
            });
        }
        while !self.open().connections.is_empty() {
            tokio::time::sleep(BETWEEN_LOOKS).await;
        }
    }
}

struct Entry<'a>(&'a OpenConnections, u64);

impl Drop for Entry<'_> {
    fn drop(&mut self) {
        self.0.open().connections.remove(&self.1);
    }
}

impl fmt::Debug for OpenConnections {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        let count = self.open().connections.len();
        formatter
            .debug_tuple("OpenConnections")
            .field(&count)
            .finish()
    }
}
