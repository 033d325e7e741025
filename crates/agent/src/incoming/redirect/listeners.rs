//! Accepts redirected connections and receives redirected datagrams on the agent's sockets.

use std::collections::HashMap;
use std::fmt;
use std::future::poll_fn;
use std::io;
use std::net::SocketAddr;
use std::os::fd::OwnedFd;
use std::sync::Arc;
use std::task::{Context, Poll, ready};
use std::time::Duration;

use bytes::Bytes;
use parking_lot::{Mutex, MutexGuard};
use tokio::io::Interest;
use tokio::net::{TcpListener, TcpStream, UdpSocket};
use tokio::sync::mpsc::error::TrySendError;
use tokio::sync::{mpsc, oneshot, watch};

use super::nftables::RetiredSockets;
use super::rules::{LISTEN_IPV4, LISTEN_IPV6, UdpSocketPorts};
use super::sockets::SocketPair;
use super::{Port, RedirectEvidence, sys};
use crate::{Error, Result};

/// The maximum size of a datagram, for IPv4 and IPv6.
const MAX_DATAGRAM_BYTES: usize = 65_535;
/// The delay before the next accept when the process or the system is out of resources.
const ACCEPT_RETRY_DELAY: Duration = Duration::from_millis(20);

/// A connection to a redirected port. The application does not see it.
#[derive(Debug)]
pub struct RedirectedConnection {
    pub stream: TcpStream,
    /// The address of the client. In a pod with a mesh, the address of the sidecar.
    pub peer: SocketAddr,
    /// The address that the client connected to. The port may have been removed meanwhile.
    pub original_destination: SocketAddr,
}

/// A datagram to a redirected port.
#[derive(Debug)]
pub struct Datagram {
    pub payload: Bytes,
    /// The flow that it belongs to, for replies.
    pub flow: Flow,
}

/// The sender and the destination of a datagram, for replies. It works also after the port is removed.
#[derive(Debug, Clone)]
pub struct Flow {
    /// The address of the sender.
    pub peer: SocketAddr,
    /// The address that it was sent to.
    pub original_destination: SocketAddr,
    socket: Arc<DatagramSocket>,
}

impl Flow {
    /// Sends a datagram to the peer, from the address that the peer sent its own to.
    pub async fn reply(&self, payload: &[u8]) -> Result<()> {
        let socket = &self.socket.socket;
        let send = || sys::send(socket, payload, self.original_destination, self.peer);
        let sent = socket.async_io(Interest::WRITABLE, send).await;
        sent.map(drop).map_err(Error::io("reply to a datagram"))
    }
}

/// Tracks pending probes, and the evidence of each port from probes and traffic.
#[derive(Debug, Default)]
pub(super) struct TrafficTracker {
    state: Mutex<TrackerState>,
    accept_lock: Mutex<()>,
}

#[derive(Debug, Default)]
struct TrackerState {
    /// By the local port of the probe and its destination.
    probes: HashMap<(u16, SocketAddr), oneshot::Sender<()>>,
    evidence: HashMap<Port, RedirectEvidence>,
}

impl TrafficTracker {
    /// While the guard is held, every connection is either in the kernel's backlog or in our queue, and never between them.
    pub(super) fn block_accepts(&self) -> MutexGuard<'_, ()> {
        self.accept_lock.lock()
    }

    /// Registers a probe from this local port. The receiver completes when the agent receives the probe.
    pub(super) fn register_probe(
        &self,
        own_port: u16,
        destination: SocketAddr,
    ) -> oneshot::Receiver<()> {
        let (sender, received) = oneshot::channel();
        let key = (own_port, destination);
        self.state.lock().probes.insert(key, sender);
        received
    }

    pub(super) fn unregister_probe(&self, own_port: u16, destination: SocketAddr) {
        self.state.lock().probes.remove(&(own_port, destination));
    }

    pub(super) fn evidence(&self, port: Port) -> RedirectEvidence {
        let state = self.state.lock();
        state.evidence.get(&port).copied().unwrap_or_default()
    }

    pub(super) fn record(&self, port: Port, evidence: RedirectEvidence) {
        let mut state = self.state.lock();
        let current = state.evidence.entry(port).or_default();
        *current = evidence.max(*current);
    }

    pub(super) fn forget(&self, ports: &[Port]) {
        self.state
            .lock()
            .evidence
            .retain(|port, _| !ports.contains(port));
    }

    /// Whether this is real traffic, and not a probe of ours. Completes the probe, or records the evidence.
    fn is_traffic(&self, port: Port, peer: SocketAddr, destination: SocketAddr) -> bool {
        let probe = self.state.lock().probes.remove(&(peer.port(), destination));
        if let Some(probe) = probe {
            // It fails if the probe has timed out.
            let _ = probe.send(());
            return false;
        }
        let inside = peer.ip().is_loopback() || peer.ip() == destination.ip();
        self.record(
            port,
            match inside {
                true => RedirectEvidence::Loopback,
                false => RedirectEvidence::External,
            },
        );
        true
    }
}

/// Accepts connections until the receiver of the connections is dropped.
pub(super) async fn accept(
    listener: TcpListener,
    tracker: Arc<TrafficTracker>,
    connections: mpsc::Sender<RedirectedConnection>,
) {
    loop {
        let accepting = poll_fn(|context| accept_one(context, &listener, &tracker, &connections));
        let accepted = tokio::select! {
            accepted = accepting => accepted,
            () = connections.closed() => return,
        };
        match accepted {
            Ok(None) => {}
            Ok(Some(connection)) => {
                if connections.send(connection).await.is_err() {
                    return;
                }
            }
            Err(error) => wait_after_error(&error).await,
        }
    }
}

/// Moves a connection from the kernel's backlog to the queue, atomically with respect to [`TrafficTracker::block_accepts`].
/// Returns a connection for which the queue has no room.
fn accept_one(
    context: &mut Context<'_>,
    listener: &TcpListener,
    tracker: &TrafficTracker,
    connections: &mpsc::Sender<RedirectedConnection>,
) -> Poll<io::Result<Option<RedirectedConnection>>> {
    let _accept_guard = tracker.block_accepts();
    let accepted = ready!(listener.poll_accept(context));
    Poll::Ready(accepted.map(|(stream, peer)| {
        let connection = inspect(tracker, stream, peer)?;
        match connections.try_send(connection) {
            Err(TrySendError::Full(connection)) => Some(connection),
            Ok(()) | Err(TrySendError::Closed(_)) => None,
        }
    }))
}

/// None if the connection has already ended, is a probe, or was not redirected.
fn inspect(
    tracker: &TrafficTracker,
    stream: TcpStream,
    peer: SocketAddr,
) -> Option<RedirectedConnection> {
    let original_destination = stream.local_addr().ok()?;
    let ip = original_destination.ip();
    if ip == LISTEN_IPV4 || ip == LISTEN_IPV6 {
        // A process has configured our listen address as its own and connected to it. Forwarding it would loop.
        return None;
    }
    let port = Port::tcp(original_destination.port());
    let is_traffic = tracker.is_traffic(port, peer, original_destination);
    is_traffic.then_some(RedirectedConnection {
        stream,
        peer,
        original_destination,
    })
}

/// Waits after an accept error if resources are exhausted. Other errors, as a reset before the accept, need no delay.
async fn wait_after_error(error: &io::Error) {
    if matches!(
        error.raw_os_error(),
        Some(libc::EMFILE | libc::ENFILE | libc::ENOBUFS | libc::ENOMEM)
    ) {
        tracing::warn!(%error, "accept failed");
        tokio::time::sleep(ACCEPT_RETRY_DELAY).await;
    }
}

/// One of the sockets of a redirected UDP port.
#[derive(Debug)]
struct DatagramSocket {
    socket: UdpSocket,
    _pair: Arc<RetireOnDrop>,
}

/// Marks the sockets of a UDP port as retired when both are closed.
struct RetireOnDrop(UdpSocketPorts, RetiredSockets);

impl Drop for RetireOnDrop {
    fn drop(&mut self) {
        self.1.lock().push(self.0);
    }
}

impl fmt::Debug for RetireOnDrop {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(formatter)
    }
}

/// Receives the datagrams of one port until the port is removed.
pub(super) fn receive_all(
    port: Port,
    pair: SocketPair,
    retired: RetiredSockets,
    tracker: &Arc<TrafficTracker>,
    datagrams: &mpsc::Sender<Datagram>,
    removed: &watch::Receiver<()>,
) -> Result<()> {
    let both = Arc::new(RetireOnDrop(pair.ports, retired));
    for socket in [Some(pair.ipv4), pair.ipv6].into_iter().flatten() {
        let socket = Arc::new(DatagramSocket {
            socket: from_descriptor(socket)?,
            _pair: Arc::clone(&both),
        });
        let (tracker, datagrams) = (Arc::clone(tracker), datagrams.clone());
        tokio::spawn(receive(port, socket, tracker, datagrams, removed.clone()));
    }
    Ok(())
}

async fn receive(
    port: Port,
    socket: Arc<DatagramSocket>,
    tracker: Arc<TrafficTracker>,
    datagrams: mpsc::Sender<Datagram>,
    mut removed: watch::Receiver<()>,
) {
    let mut buffer = vec![0; MAX_DATAGRAM_BYTES];
    loop {
        let is_removed = tokio::select! {
            ready = socket.socket.readable() => ready.is_err(),
            changed = removed.changed() => changed.is_err(),
            () = datagrams.closed() => true,
        };
        // Datagrams that were received before the port was removed are still delivered.
        while let Some(datagram) = next_datagram(port, &socket, &tracker, &mut buffer) {
            if datagrams.send(datagram).await.is_err() {
                return;
            }
        }
        if is_removed {
            return;
        }
    }
}

/// The next datagram in the socket that is not a probe.
fn next_datagram(
    port: Port,
    socket: &Arc<DatagramSocket>,
    tracker: &TrafficTracker,
    buffer: &mut [u8],
) -> Option<Datagram> {
    loop {
        let attempt = || sys::receive(&socket.socket, buffer);
        let received = match socket.socket.try_io(Interest::READABLE, attempt) {
            Ok(received) => received,
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => return None,
            // An ICMP error for an earlier reply is reported here, and does not affect other datagrams.
            Err(error) => {
                tracing::debug!(%error, %port, "UDP receive error");
                continue;
            }
        };
        let (peer, original_destination) = (received.peer, received.original_destination);
        if tracker.is_traffic(port, peer, original_destination) {
            return Some(Datagram {
                payload: Bytes::copy_from_slice(&buffer[..received.length]),
                flow: Flow {
                    peer,
                    original_destination,
                    socket: Arc::clone(socket),
                },
            });
        }
    }
}

pub(super) fn from_descriptor(socket: OwnedFd) -> Result<UdpSocket> {
    UdpSocket::from_std(socket.into()).map_err(Error::io("open a UDP socket"))
}
