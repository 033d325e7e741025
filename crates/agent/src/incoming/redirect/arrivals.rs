//! What arrives: connections and datagrams, taken from the kernel as soon as they are there.

use std::collections::HashMap;
use std::fmt;
use std::future::poll_fn;
use std::io;
use std::net::SocketAddr;
use std::os::fd::OwnedFd;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::task::{Context, Poll, ready};
use std::time::Duration;

use bytes::Bytes;
use tokio::io::Interest;
use tokio::net::{TcpListener, TcpStream, UdpSocket};
use tokio::sync::mpsc::error::TrySendError;
use tokio::sync::{mpsc, oneshot, watch};

use super::nftables::Retired;
use super::rules::{LISTEN_IPV4, LISTEN_IPV6, UdpListening};
use super::sockets::Pair;
use super::{Evidence, Port, sys};
use crate::{Error, Result};

/// The largest datagram of IPv4 and IPv6.
const DATAGRAM_BYTES: usize = 65_535;
/// Before accepting is tried again when the system has no room for another connection.
const NO_ROOM: Duration = Duration::from_millis(20);

/// A connection to a redirected port. The application knows nothing of it.
#[derive(Debug)]
pub struct Arrived {
    pub stream: TcpStream,
    /// Who connected. In a pod with a mesh, the sidecar.
    pub peer: SocketAddr,
    /// Where he wanted to go. The port may have been removed meanwhile.
    pub original_destination: SocketAddr,
}

/// A datagram to a redirected port.
#[derive(Debug)]
pub struct Datagram {
    pub payload: Bytes,
    /// The way back.
    pub flow: Flow,
}

/// The way back to who sent a datagram. It can be kept, also when the port is no longer redirected.
#[derive(Debug, Clone)]
pub struct Flow {
    /// Who sent it.
    pub peer: SocketAddr,
    /// Where it was sent to.
    pub original_destination: SocketAddr,
    socket: Arc<DatagramSocket>,
}

impl Flow {
    /// Sends a datagram to the peer, from where he sent his own to.
    pub async fn reply(&self, payload: &[u8]) -> Result<()> {
        let socket = &self.socket.socket;
        let send = || sys::send(socket, payload, self.original_destination, self.peer);
        let sent = socket.async_io(Interest::WRITABLE, send).await;
        sent.map(drop).map_err(Error::io("answer a datagram"))
    }
}

/// What is known about probes and about the traffic so far.
#[derive(Debug, Default)]
pub(super) struct Seen {
    state: Mutex<State>,
    step: Mutex<()>,
}

#[derive(Debug, Default)]
struct State {
    /// By the probe's own port and where it goes.
    probes: HashMap<(u16, SocketAddr), oneshot::Sender<()>>,
    evidence: HashMap<Port, Evidence>,
}

impl Seen {
    fn state(&self) -> MutexGuard<'_, State> {
        // Every change is whole at any time.
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// While this is held, no connection is on its way from the kernel to who takes it.
    pub(super) fn between_steps(&self) -> MutexGuard<'_, ()> {
        self.step.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Answers when the probe from this port has arrived.
    pub(super) fn expect(&self, own_port: u16, destination: SocketAddr) -> oneshot::Receiver<()> {
        let (arrived, arrival) = oneshot::channel();
        self.state().probes.insert((own_port, destination), arrived);
        arrival
    }

    pub(super) fn expect_no_more(&self, own_port: u16, destination: SocketAddr) {
        self.state().probes.remove(&(own_port, destination));
    }

    pub(super) fn evidence(&self, port: Port) -> Evidence {
        let state = self.state();
        state.evidence.get(&port).copied().unwrap_or_default()
    }

    pub(super) fn note(&self, port: Port, evidence: Evidence) {
        let mut state = self.state();
        let known = state.evidence.entry(port).or_default();
        *known = evidence.max(*known);
    }

    pub(super) fn forget(&self, ports: &[Port]) {
        self.state()
            .evidence
            .retain(|port, _| !ports.contains(port));
    }

    /// Whether this is real traffic and no probe of ours.
    fn is_traffic(&self, port: Port, peer: SocketAddr, destination: SocketAddr) -> bool {
        let probe = self.state().probes.remove(&(peer.port(), destination));
        if let Some(arrived) = probe {
            // Who does not wait any more needs no answer.
            let _ = arrived.send(());
            return false;
        }
        let inside = peer.ip().is_loopback() || peer.ip() == destination.ip();
        self.note(
            port,
            match inside {
                true => Evidence::Loopback,
                false => Evidence::Outside,
            },
        );
        true
    }
}

/// Accepts until the last who could take a connection is gone.
pub(super) async fn accept(
    listener: TcpListener,
    seen: Arc<Seen>,
    connections: mpsc::Sender<Arrived>,
) {
    loop {
        let accepting = poll_fn(|context| accept_one(context, &listener, &seen, &connections));
        let accepted = tokio::select! {
            accepted = accepting => accepted,
            () = connections.closed() => return,
        };
        match accepted {
            Ok(None) => {}
            Ok(Some(arrived)) => {
                if connections.send(arrived).await.is_err() {
                    return;
                }
            }
            Err(error) => wait_for_room(&error).await,
        }
    }
}

/// Moves a connection from the kernel to who takes it, in one step for who looks at both. Answers the one for which there
/// is no room yet.
fn accept_one(
    context: &mut Context<'_>,
    listener: &TcpListener,
    seen: &Seen,
    connections: &mpsc::Sender<Arrived>,
) -> Poll<io::Result<Option<Arrived>>> {
    let _step = seen.between_steps();
    let accepted = ready!(listener.poll_accept(context));
    Poll::Ready(accepted.map(|(stream, peer)| {
        let arrived = judge(seen, stream, peer)?;
        match connections.try_send(arrived) {
            Err(TrySendError::Full(arrived)) => Some(arrived),
            Ok(()) | Err(TrySendError::Closed(_)) => None,
        }
    }))
}

/// None: it has ended already, or is nobody's.
fn judge(seen: &Seen, stream: TcpStream, peer: SocketAddr) -> Option<Arrived> {
    let original_destination = stream.local_addr().ok()?;
    let ip = original_destination.ip();
    if ip == LISTEN_IPV4 || ip == LISTEN_IPV6 {
        // Somebody has made our address his own and connected to it. Passing it on would lead here again.
        return None;
    }
    let port = Port::tcp(original_destination.port());
    let is_traffic = seen.is_traffic(port, peer, original_destination);
    is_traffic.then_some(Arrived {
        stream,
        peer,
        original_destination,
    })
}

/// A connection that was reset before it was accepted is no reason to wait.
async fn wait_for_room(error: &io::Error) {
    if matches!(
        error.raw_os_error(),
        Some(libc::EMFILE | libc::ENFILE | libc::ENOBUFS | libc::ENOMEM)
    ) {
        tracing::warn!(%error, "the agent has no room for another connection: raise its limit of descriptors");
        tokio::time::sleep(NO_ROOM).await;
    }
}

/// One of the sockets of a redirected UDP port.
#[derive(Debug)]
struct DatagramSocket {
    socket: UdpSocket,
    _pair: Arc<RetiresWhenDropped>,
}

/// Both sockets of a UDP port are closed when this is dropped.
struct RetiresWhenDropped(UdpListening, Retired);

impl Drop for RetiresWhenDropped {
    fn drop(&mut self) {
        let mut retired = self.1.lock().unwrap_or_else(PoisonError::into_inner);
        retired.push(self.0);
    }
}

impl fmt::Debug for RetiresWhenDropped {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(formatter)
    }
}

/// Receives the datagrams of one port until the port is removed.
pub(super) fn receive_all(
    port: Port,
    pair: Pair,
    retired: Retired,
    seen: &Arc<Seen>,
    datagrams: &mpsc::Sender<Datagram>,
    removed: &watch::Receiver<()>,
) -> Result<()> {
    let both = Arc::new(RetiresWhenDropped(pair.listening, retired));
    for socket in [Some(pair.ipv4), pair.ipv6].into_iter().flatten() {
        let socket = Arc::new(DatagramSocket {
            socket: from_descriptor(socket)?,
            _pair: Arc::clone(&both),
        });
        let (seen, datagrams) = (Arc::clone(seen), datagrams.clone());
        tokio::spawn(receive(port, socket, seen, datagrams, removed.clone()));
    }
    Ok(())
}

async fn receive(
    port: Port,
    socket: Arc<DatagramSocket>,
    seen: Arc<Seen>,
    datagrams: mpsc::Sender<Datagram>,
    mut removed: watch::Receiver<()>,
) {
    let mut buffer = vec![0; DATAGRAM_BYTES];
    loop {
        let is_removed = tokio::select! {
            ready = socket.socket.readable() => ready.is_err(),
            changed = removed.changed() => changed.is_err(),
            () = datagrams.closed() => true,
        };
        // What has arrived before is delivered also when the port is gone.
        while let Some(datagram) = take(port, &socket, &seen, &mut buffer) {
            if datagrams.send(datagram).await.is_err() {
                return;
            }
        }
        if is_removed {
            return;
        }
    }
}

/// The next datagram that has arrived and is not a probe.
fn take(
    port: Port,
    socket: &Arc<DatagramSocket>,
    seen: &Seen,
    buffer: &mut [u8],
) -> Option<Datagram> {
    loop {
        let attempt = || sys::receive(&socket.socket, buffer);
        let received = match socket.socket.try_io(Interest::READABLE, attempt) {
            Ok(received) => received,
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => return None,
            // An answer that nobody wanted is reported here, and concerns no other datagram.
            Err(error) => {
                tracing::debug!(%error, %port, "a datagram could not be delivered");
                continue;
            }
        };
        let (peer, original_destination) = (received.peer, received.original_destination);
        if seen.is_traffic(port, peer, original_destination) {
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
