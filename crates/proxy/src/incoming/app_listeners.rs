//! The application's listeners of one port.

use std::io;
use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use interceptor::Transport;
use parking_lot::Mutex;
use tokio::time::sleep;

use super::app_listener::{AppListener, AppSocket};
use crate::stream::LocalStream;

/// Connecting is retried, because an application whose `listen` was just let through has not executed it yet.
const CONNECT_ATTEMPTS: u32 = 40;
const RETRY_DELAY: Duration = Duration::from_millis(5);

/// Several processes may listen on one port, and a process may have one listener for each address family.
#[derive(Debug, Default)]
pub(super) struct AppListeners {
    listeners: Mutex<Vec<(SocketAddr, Arc<dyn AppListener>)>>,
    next: AtomicUsize,
}

impl AppListeners {
    pub(super) fn add(&self, address: SocketAddr, listener: Arc<dyn AppListener>) {
        self.listeners.lock().push((address, listener));
    }

    /// Removes closed listeners. Returns whether any are left.
    pub(super) fn remove_closed(&self) -> bool {
        let mut listeners = self.listeners.lock();
        listeners.retain(|(_, listener)| listener.is_listening());
        !listeners.is_empty()
    }

    /// Connects to a listener of the application, round robin.
    pub(super) async fn connect(
        &self,
        client: SocketAddr,
        server: SocketAddr,
    ) -> Option<LocalStream> {
        for _ in 0..CONNECT_ATTEMPTS {
            let mut is_listening = false;
            for listener in self.round_robin(client) {
                match connect(&*listener, client, server).await {
                    Ok(stream) => return Some(stream),
                    Err(error) => {
                        tracing::debug!(%error, "application listener refused connection");
                    }
                }
                is_listening |= listener.is_listening();
            }
            if !is_listening {
                return None;
            }
            sleep(RETRY_DELAY).await;
        }
        None
    }

    /// Opens a socket that exchanges datagrams with the application.
    pub(super) fn open_datagrams(
        &self,
        client: SocketAddr,
        server: SocketAddr,
    ) -> Option<AppSocket> {
        let mut listeners = self.round_robin(client).into_iter();
        listeners.find_map(|listener| listener.connect(client, server).ok())
    }

    /// The listeners in round-robin order, those of the client's address family first.
    fn round_robin(&self, client: SocketAddr) -> Vec<Arc<dyn AppListener>> {
        let listeners = self.listeners.lock();
        let next = self.next.fetch_add(1, Ordering::Relaxed);
        let start = next.checked_rem(listeners.len()).unwrap_or(0);
        let (after, before) = listeners.split_at(start);
        let mut ordered: Vec<&(SocketAddr, Arc<dyn AppListener>)> =
            before.iter().chain(after).collect();
        ordered
            .sort_by_key(|(address, _)| address.is_ipv4() != client.ip().to_canonical().is_ipv4());
        ordered
            .into_iter()
            .map(|(_, listener)| Arc::clone(listener))
            .collect()
    }
}

/// An established connection to the application.
async fn connect(
    listener: &dyn AppListener,
    client: SocketAddr,
    server: SocketAddr,
) -> io::Result<LocalStream> {
    let AppSocket { socket, guard } = listener.connect(client, server)?;
    let stream = LocalStream::new(Transport::Tcp, socket, guard)?;
    stream.connected().await?;
    Ok(stream)
}
