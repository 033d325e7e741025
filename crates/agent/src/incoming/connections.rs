//! The connections that the agent serves. They are drained when the agent shuts down, so that no active transfer is lost.

use std::collections::HashMap;
use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use futures_util::future::{AbortHandle, Abortable};
use parking_lot::Mutex;

use super::reset::ResetState;

/// How often draining checks whether all connections have ended.
const POLL_INTERVAL: Duration = Duration::from_millis(5);

/// The connections that are being served.
#[derive(Default)]
pub(super) struct OpenConnections(Mutex<ConnectionTable>);

#[derive(Default)]
struct ConnectionTable {
    last_id: u64,
    connections: HashMap<u64, (Arc<ResetState>, AbortHandle)>,
}

impl OpenConnections {
    /// Serves a connection until it has ended, or until it is idle while [`OpenConnections::drain`] runs.
    pub(super) async fn serve(
        &self,
        reset_state: Arc<ResetState>,
        serving: impl Future<Output = ()>,
    ) {
        let (handle, registration) = AbortHandle::new_pair();
        let id = {
            let mut table = self.0.lock();
            table.last_id += 1;
            let id = table.last_id;
            table
                .connections
                .insert(id, (Arc::clone(&reset_state), handle));
            id
        };
        let _entry = TableEntry(self, id);
        let _ = Abortable::new(reset_state.scope(serving), registration).await;
    }

    /// Ends every connection as soon as it is idle, and waits until all have ended.
    pub(super) async fn drain(&self) {
        for (reset_state, handle) in self.0.lock().connections.values() {
            let (reset_state, handle) = (Arc::clone(reset_state), handle.clone());
            tokio::spawn(async move {
                reset_state.wait_until_idle().await;
                handle.abort();
            });
        }
        while !self.0.lock().connections.is_empty() {
            tokio::time::sleep(POLL_INTERVAL).await;
        }
    }
}

/// Removes a connection from the table when it is dropped.
struct TableEntry<'a>(&'a OpenConnections, u64);

impl Drop for TableEntry<'_> {
    fn drop(&mut self) {
        self.0.0.lock().connections.remove(&self.1);
    }
}

impl fmt::Debug for OpenConnections {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        let count = self.0.lock().connections.len();
        formatter
            .debug_tuple("OpenConnections")
            .field(&count)
            .finish()
    }
}
