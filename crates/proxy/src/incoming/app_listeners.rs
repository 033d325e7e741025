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
    listeners: Mutex<Vec<Entry>>,
    next: AtomicUsize,
}

#[derive(Debug)]
struct Entry {
    address: SocketAddr,
    /// The cookie of the socket.
    cookie: u64,
    listener: Arc<dyn AppListener>,
}

impl AppListeners {
    pub(super) fn add(&self, address: SocketAddr, cookie: u64, listener: Arc<dyn AppListener>) {
        self.listeners.lock().push(Entry {
            address,
            cookie,
            listener,
        });
    }

    /// Whether the socket with this cookie is one of them.
    pub(super) fn has(&self, cookie: u64) -> bool {
        let listeners = self.listeners.lock();
        listeners.iter().any(|entry| entry.cookie == cookie)
    }

    /// Removes closed listeners. Returns whether any are left.
    pub(super) fn remove_closed(&self) -> bool {
        let mut listeners = self.listeners.lock();
        listeners.retain(|entry| entry.listener.is_listening());
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
        let mut ordered: Vec<&Entry> = before.iter().chain(after).collect();
        let is_ipv4 = client.ip().to_canonical().is_ipv4();
        ordered.sort_by_key(|entry| entry.address.is_ipv4() != is_ipv4);
        ordered
            .into_iter()
            .map(|entry| Arc::clone(&entry.listener))
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
