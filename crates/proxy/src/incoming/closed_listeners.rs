//! Detects from the kernel's events that the application has closed a listener.

use std::collections::HashMap;
use std::sync::{Arc, OnceLock, Weak};

use interceptor::{CloseEvents, Errno};
use parking_lot::Mutex;
use tokio::io::unix::AsyncFd;

use super::{PortKey, Shared};
use crate::sys::readiness;

/// The sockets on which the application listens, by cookie. Where the kernel has no events, it stays empty, and the tasks
/// of the ports notice closed listeners by polling.
#[derive(Debug, Default)]
pub(super) struct ClosedListeners {
    ports: Mutex<HashMap<u64, PortKey>>,
    has_events: OnceLock<bool>,
}

impl ClosedListeners {
    /// Lets the task of the port check its listeners when this socket is closed.
    pub(super) fn watch(&self, shared: &Arc<Shared>, cookie: u64, port: PortKey) {
        if *self.has_events.get_or_init(|| start(shared)) {
            self.ports.lock().insert(cookie, port);
        }
    }
}

impl ClosedListeners {
    /// Forgets the sockets of a port whose task ends. Not every one of them has caused an event.
    pub(super) fn forget(&self, port: PortKey) {
        self.ports.lock().retain(|_, watched| *watched != port);
    }
}

/// Starts the task that receives the events. Returns whether there are events.
fn start(shared: &Arc<Shared>) -> bool {
    let _runtime = shared.context.runtime.enter();
    let events = CloseEvents::open().map_err(std::io::Error::from);
    match events.and_then(readiness::register) {
        Ok(events) => {
            tokio::spawn(receive(events, Arc::downgrade(shared)));
            true
        }
        Err(error) => {
            tracing::debug!(%error, "no events about closed sockets, polling instead");
            false
        }
    }
}

async fn receive(events: AsyncFd<CloseEvents>, shared: Weak<Shared>) {
    while let Ok(mut ready) = events.readable().await {
        let Some(shared) = shared.upgrade() else {
            return;
        };
        match events.get_ref().next() {
            Ok(cookie) => {
                let port = shared.closed_listeners.ports.lock().remove(&cookie);
                if let Some(port) = port {
                    shared.check_ports(|key| *key == port);
                }
            }
            Err(Errno::EAGAIN) => ready.clear_ready(),
            // Events were lost, so any of them may be closed.
            Err(Errno::ENOBUFS) => shared.check_ports(|_| true),
            Err(errno) => {
                tracing::warn!(%errno, "receiving events about closed sockets failed");
                return;
            }
        }
    }
}
