//! Redirects the traffic of chosen ports of the target to the agent instead of the application.
//!
//! The kernel delivers each new connection and each datagram for a chosen port to a socket of the agent. No address is
//! rewritten and no connection is tracked, so the agent sees the real client address and the real destination. Traffic that
//! no session claims is forwarded to the application. [`rules`] documents the nftables rules and their reasons.
//!
//! Invariants:
//!
//! - Connections that are open when a port is added stay with the application; those that are open when it is removed stay
//!   with the agent. Every packet is delivered to one of the two.
//! - When the agent ends, in whatever way, the kernel removes the rules. A rule whose listener is closed does not match.
//! - The application sees connections from the agent as connections from the pod itself. To preserve the client's address,
//!   the application's responses would have to be routed back to the agent, which requires further changes to the target's
//!   network.
//! - A port is redirected by one agent. If another agent tries to add it, the error names the holder.

mod addresses;
mod check;
mod connections;
mod expressions;
mod holder;
mod listeners;
mod netlink;
mod nftables;
mod rules;
mod sockets;
mod sys;

use std::fmt;
use std::net::{IpAddr, SocketAddr};
use std::os::fd::OwnedFd;
use std::sync::Arc;
use std::time::Duration;

use parking_lot::Mutex;
use rustix::net::SocketType;
use tokio::net::{TcpListener, TcpSocket, TcpStream, UdpSocket};
use tokio::sync::{Mutex as AsyncMutex, mpsc, watch};
use tokio::task;

pub use self::check::{CheckReport, Mesh};
pub use self::holder::PeerEndpoint;
pub(crate) use self::holder::{Handshake, Holder, PROOF_LEN, Role};
use self::listeners::TrafficTracker;
pub use self::listeners::{Datagram, Flow, RedirectedConnection};
use self::nftables::{RedirectedPort, Rules};
use self::sockets::SocketPair;
use crate::agent::Agent;
use crate::{Error, Result};

/// The capacity of the queues of accepted connections and received datagrams. The kernel queues many more.
const QUEUE_CAPACITY: usize = 256;

/// How often [`Redirect::drain`] checks for connections that are not accepted yet.
const POLL_INTERVAL: Duration = Duration::from_millis(5);

/// The transport of a [`Port`].
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Protocol {
    Tcp,
    Udp,
}

/// A port of the target, at all of its addresses.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Port {
    pub protocol: Protocol,
    pub number: u16,
}

impl Port {
    #[must_use]
    pub fn tcp(number: u16) -> Self {
        Self {
            protocol: Protocol::Tcp,
            number,
        }
    }

    #[must_use]
    pub fn udp(number: u16) -> Self {
        Self {
            protocol: Protocol::Udp,
            number,
        }
    }
}

impl fmt::Display for Port {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        let protocol = match self.protocol {
            Protocol::Tcp => "TCP",
            Protocol::Udp => "UDP",
        };
        write!(formatter, "{protocol} port {}", self.number)
    }
}

/// How far the redirection of a port has been verified.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, PartialOrd, Ord)]
pub enum RedirectEvidence {
    /// No traffic was received yet.
    #[default]
    Unverified,
    /// Traffic or a probe from inside the target's network was received.
    Loopback,
    /// Traffic or a probe from outside the target's network was received.
    External,
}

/// The redirected ports of one target. Dropping it removes all rules.
///
/// Connections that were not accepted yet are reset when it is dropped. Call [`Redirect::drain`] first to avoid that.
#[derive(Debug)]
pub struct Redirect {
    state: Arc<RedirectState>,
    connections: AsyncMutex<mpsc::Receiver<RedirectedConnection>>,
    datagrams: AsyncMutex<mpsc::Receiver<Datagram>>,
}

#[derive(Debug)]
struct RedirectState {
    agent: Agent,
    rules: Mutex<Rules>,
    tracker: Arc<TrafficTracker>,
    connections: mpsc::WeakSender<RedirectedConnection>,
    datagrams: mpsc::Sender<Datagram>,
}

impl Redirect {
    /// Prepares the redirection, without any ports yet. `holder` is the name in the error of another agent that tries to add
    /// one of the ports.
    pub async fn new(agent: &Agent, holder: &str) -> Result<Self> {
        let name = holder.to_owned();
        Self::for_holder(
            agent,
            Holder {
                name,
                peer_endpoint: None,
            },
        )
        .await
    }

    /// The same, for a holder that shares its ports with other agents.
    pub(crate) async fn for_holder(agent: &Agent, holder: Holder) -> Result<Self> {
        let prepare = move || Ok((Rules::open(holder)?, sockets::listeners()?));
        let (mut rules, listeners) = agent.sockets().run(prepare).await?;
        let ports = listeners.ports;
        let rules = blocking(move || rules.create_table(ports).map(|()| rules)).await?;

        let tracker = Arc::new(TrafficTracker::default());
        let (to_connections, connections) = mpsc::channel(QUEUE_CAPACITY);
        let (to_datagrams, datagrams) = mpsc::channel(QUEUE_CAPACITY);
        for listener in [Some(listeners.ipv4), listeners.ipv6].into_iter().flatten() {
            let listener = TcpListener::from_std(listener.into())
                .map_err(Error::io("listen for the target's traffic"))?;
            let connections = to_connections.clone();
            tokio::spawn(listeners::accept(
                listener,
                Arc::clone(&tracker),
                connections,
            ));
        }
        Ok(Self {
            state: Arc::new(RedirectState {
                agent: agent.clone(),
                rules: Mutex::new(rules),
                tracker,
                connections: to_connections.downgrade(),
                datagrams: to_datagrams,
            }),
            connections: AsyncMutex::new(connections),
            datagrams: AsyncMutex::new(datagrams),
        })
    }

    /// The ports that are redirected.
    #[must_use]
    pub fn ports(&self) -> Vec<Port> {
        self.state.rules.lock().ports()
    }

    pub async fn add_port(&self, port: Port) -> Result<()> {
        self.change(&[port], &[]).await
    }

    /// New connections go to the application again. Connections that were already redirected are still delivered.
    pub async fn remove_port(&self, port: Port) -> Result<()> {
        self.change(&[], &[port]).await
    }

    /// Adds and removes ports atomically. Ports that are already redirected are not added again.
    pub async fn change(&self, add: &[Port], remove: &[Port]) -> Result<()> {
        self.state.change(add, remove).await
    }

    /// Removes all ports, and waits until every connection that began before has been accepted. Another task must keep
    /// calling [`Redirect::accept`] meanwhile. A client that does not complete the TCP handshake delays this until the kernel
    /// gives up on it, about a minute, so the caller may want a timeout.
    pub async fn drain(&self) -> Result<()> {
        let ports = self.ports();
        self.change(&[], &ports).await?;
        while self.state.has_unaccepted(&ports).await? {
            tokio::time::sleep(POLL_INTERVAL).await;
        }
        Ok(())
    }

    /// The next connection to a redirected TCP port.
    pub async fn accept(&self) -> Result<RedirectedConnection> {
        let connection = self.connections.lock().await.recv().await;
        connection.ok_or_else(ended)
    }

    /// The next datagram to a redirected UDP port.
    pub async fn receive(&self) -> Result<Datagram> {
        let datagram = self.datagrams.lock().await.recv().await;
        datagram.ok_or_else(ended)
    }

    /// Connects to the application, bypassing the redirection. The application sees the pod's own address.
    pub async fn connect_to_application(&self, destination: SocketAddr) -> Result<TcpStream> {
        connect_to_application(&self.state.agent, destination).await
    }

    /// Opens a UDP socket that is connected to the application, bypassing the redirection.
    pub async fn open_udp_to_application(&self, destination: SocketAddr) -> Result<UdpSocket> {
        open_udp_to_application(&self.state.agent, destination).await
    }

    /// Resets the connections to a TCP port that were open before it was redirected, so that their clients reconnect. Returns
    /// how many there were.
    pub async fn flush_connections(&self, port: u16) -> Result<usize> {
        let reset = move || connections::reset(port);
        self.state.agent.sockets().run(reset).await
    }

    /// Verifies with probes that the agent receives the redirected traffic, and fails otherwise.
    pub async fn check(&self, port: Port) -> Result<CheckReport> {
        self.state.check(port).await
    }

    /// How far the redirection of a port has been verified, by checks and by traffic.
    #[must_use]
    pub fn evidence(&self, port: Port) -> RedirectEvidence {
        self.state.tracker.evidence(port)
    }

    /// The cookies of the sockets that listen on a port in the target's network, other than the agent's own.
    pub async fn listeners(&self, port: Port) -> Result<Vec<u64>> {
        let list = move || connections::listeners(port);
        self.state.agent.sockets().run(list).await
    }

    /// The mesh whose sidecar is in the target's network.
    pub async fn mesh(&self) -> Result<Option<Mesh>> {
        self.state.find_mesh().await
    }
}

/// The addresses of the target's network.
pub(super) async fn own_addresses(agent: &Agent) -> Result<Vec<IpAddr>> {
    agent.sockets().run(addresses::own).await
}

/// Connects to the application, bypassing any redirection. The application sees the pod's own address.
pub(super) async fn connect_to_application(
    agent: &Agent,
    destination: SocketAddr,
) -> Result<TcpStream> {
    let socket = passthrough_socket(agent, destination, SocketType::STREAM).await?;
    let stream = TcpSocket::from_std_stream(socket.into()).connect(destination);
    let stream = stream
        .await
        .map_err(Error::io("connect to the application"))?;
    // The original sender has already decided when to send: delaying again would only add latency.
    stream
        .set_nodelay(true)
        .map_err(Error::io("set up a connection"))?;
    Ok(stream)
}

/// Opens a UDP socket that is connected to the application, bypassing any redirection.
pub(super) async fn open_udp_to_application(
    agent: &Agent,
    destination: SocketAddr,
) -> Result<UdpSocket> {
    let socket = passthrough_socket(agent, destination, SocketType::DGRAM).await?;
    let socket = listeners::from_descriptor(socket)?;
    let connected = socket.connect(destination).await;
    connected.map_err(Error::io("connect to the application"))?;
    Ok(socket)
}

async fn passthrough_socket(
    agent: &Agent,
    destination: SocketAddr,
    kind: SocketType,
) -> Result<OwnedFd> {
    let make = move || sockets::passthrough(destination.ip(), kind);
    agent.sockets().run(make).await
}

impl RedirectState {
    async fn change(self: &Arc<Self>, add: &[Port], remove: &[Port]) -> Result<()> {
        let mut new = Vec::new();
        for port in add.iter().copied() {
            let pair = match port.protocol {
                _ if port.number == 0 => return Err(Error::Missing("port")),
                _ if self.rules.lock().has(port) => continue,
                Protocol::Tcp => None,
                Protocol::Udp => Some(self.agent.sockets().run(sockets::datagrams).await?),
            };
            new.push((port, pair));
        }
        let (state, keep) = (Arc::clone(self), add.to_vec());
        let remove = remove.iter().copied().filter(|port| !keep.contains(port));
        let remove: Vec<Port> = remove.collect();
        // The blocking task completes also if this future is dropped, so that our state always matches the kernel's.
        blocking(move || state.commit(new, &remove)).await
    }

    /// Whether there are connections to these ports that [`Redirect::accept`] has not returned yet.
    async fn has_unaccepted(&self, ports: &[Port]) -> Result<bool> {
        let is_tcp = |port: &&Port| port.protocol == Protocol::Tcp;
        let ports: Vec<u16> = ports
            .iter()
            .filter(is_tcp)
            .map(|port| port.number)
            .collect();
        let (tracker, connections) = (Arc::clone(&self.tracker), self.connections.clone());
        let check = move || {
            let _accept_guard = tracker.block_accepts();
            let queue = connections.upgrade();
            let are_queued = queue.is_some_and(|sender| sender.capacity() < QUEUE_CAPACITY);
            Ok(are_queued || connections::has_unaccepted(&ports)?)
        };
        self.agent.sockets().run(check).await
    }

    fn commit(&self, new: Vec<(Port, Option<SocketPair>)>, remove: &[Port]) -> Result<()> {
        let mut redirected = Vec::new();
        let mut to_receive = Vec::new();
        for (port, pair) in new {
            let Some(pair) = pair else {
                redirected.push((port, RedirectedPort::Tcp));
                continue;
            };
            let (receiving, removed) = watch::channel(());
            let sockets = pair.ports;
            redirected.push((
                port,
                RedirectedPort::Udp {
                    sockets,
                    _receiving: receiving,
                },
            ));
            to_receive.push((port, pair, removed));
        }
        let mut rules = self.rules.lock();
        let added = rules.change(redirected, remove)?;
        self.tracker.forget(remove);
        for (port, pair, removed) in to_receive {
            // A concurrent change may have added it first.
            if added.contains(&port) {
                let retired = Arc::clone(&rules.retired);
                listeners::receive_all(
                    port,
                    pair,
                    retired,
                    &self.tracker,
                    &self.datagrams,
                    &removed,
                )?;
            }
        }
        Ok(())
    }
}

/// Runs a change of rules on a blocking thread, because the kernel may take milliseconds for it.
async fn blocking<T: Send + 'static>(
    work: impl FnOnce() -> Result<T> + Send + 'static,
) -> Result<T> {
    task::spawn_blocking(work)
        .await
        .unwrap_or_else(|_| Err(ended()))
}

fn ended() -> Error {
    Error::Agent {
        action: "redirect the target's traffic any longer",
        hint: "start the session again",
        source: rustix::io::Errno::CANCELED,
    }
}
