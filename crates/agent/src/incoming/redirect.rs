//! Takes the traffic that arrives at chosen ports of the target, before the application does.
//!
//! The kernel gives each new connection and each datagram for a chosen port to a socket of the agent: no address is
//! rewritten and no connection tracked, so the agent sees the real peer and the real destination. What it does not want, it
//! passes on to the original application. The [rules](rules) say how, and why so.
//!
//! What holds at any time:
//!
//! - Connections that are open when a port is added stay with the application; those that are open when it is removed stay
//!   with the agent. No packet finds neither.
//! - When the agent ends, however it ends, the kernel removes the rules. A rule whose listener is gone lets packets through.
//! - The application sees the agent's connections as the pod's own: to answer the client's address, its packets would have
//!   to be routed back to us, which needs more changes to the target's network than we make.
//! - A port belongs to one agent. Another one that wants it is told who has it.

mod addresses;
mod arrivals;
mod check;
mod connections;
mod expressions;
mod holder;
mod netlink;
mod nftables;
mod rules;
mod sockets;
mod sys;

use std::fmt;
use std::net::{IpAddr, SocketAddr};
use std::os::fd::OwnedFd;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use rustix::net::SocketType;
use tokio::net::{TcpListener, TcpSocket, TcpStream, UdpSocket};
use tokio::sync::{Mutex as AsyncMutex, mpsc, watch};
use tokio::task;

use self::arrivals::Seen;
pub use self::arrivals::{Arrived, Datagram, Flow};
pub use self::check::{Checked, Mesh};
pub use self::holder::MeetingPoint;
pub(crate) use self::holder::{Holder, Meeting, PROOF_BYTES, Role};
use self::nftables::{Held, Rules};
use self::sockets::Pair;
use crate::agent::Agent;
use crate::{Error, Result};

/// Connections and datagrams that wait to be taken. The kernel keeps many more.
const WAITING: usize = 256;

/// Between two looks at what is still arriving.
const BETWEEN_LOOKS: Duration = Duration::from_millis(5);

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

/// What is known about the way to a redirected port.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, PartialOrd, Ord)]
pub enum Evidence {
    /// Nothing has arrived. Left by the first probe or the first traffic.
    #[default]
    Nothing,
    /// Something that was sent inside the target's network has arrived. Left by what comes from elsewhere.
    Loopback,
    /// Something from outside has arrived.
    Outside,
}

/// The redirected ports of one target. Dropping it removes all rules.
///
/// Connections that have arrived and were not accepted are reset when it is dropped. [`Redirect::drain`] first, to lose
/// none.
#[derive(Debug)]
pub struct Redirect {
    inside: Arc<Inside>,
    connections: AsyncMutex<mpsc::Receiver<Arrived>>,
    datagrams: AsyncMutex<mpsc::Receiver<Datagram>>,
}

#[derive(Debug)]
struct Inside {
    agent: Agent,
    rules: Mutex<Rules>,
    seen: Arc<Seen>,
    connections: mpsc::WeakSender<Arrived>,
    datagrams: mpsc::Sender<Datagram>,
}

impl Redirect {
    /// Prepares redirecting, and redirects nothing yet. `holder` is what another agent is told that wants one of our ports.
    pub async fn new(agent: &Agent, holder: &str) -> Result<Self> {
        let name = holder.to_owned();
        Self::for_holder(
            agent,
            Holder {
                name,
                meeting_point: None,
            },
        )
        .await
    }

    /// The same, for a holder who can be asked to share his ports.
    pub(crate) async fn for_holder(agent: &Agent, holder: Holder) -> Result<Self> {
        let prepare = move || Ok((Rules::open(holder)?, sockets::listeners()?));
        let (mut rules, listeners) = agent.sockets().run(prepare).await?;
        let listening = listeners.listening;
        let rules = blocking(move || rules.make(listening).map(|()| rules)).await?;

        let seen = Arc::new(Seen::default());
        let (to_connections, connections) = mpsc::channel(WAITING);
        let (to_datagrams, datagrams) = mpsc::channel(WAITING);
        for listener in [Some(listeners.ipv4), listeners.ipv6].into_iter().flatten() {
            let listener = TcpListener::from_std(listener.into())
                .map_err(Error::io("listen for the target's traffic"))?;
            let connections = to_connections.clone();
            tokio::spawn(arrivals::accept(listener, Arc::clone(&seen), connections));
        }
        Ok(Self {
            inside: Arc::new(Inside {
                agent: agent.clone(),
                rules: Mutex::new(rules),
                seen,
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
        self.inside.rules().ports()
    }

    pub async fn add_port(&self, port: Port) -> Result<()> {
        self.change(&[port], &[]).await
    }

    /// New connections go to the application again. Those that have arrived are still delivered.
    pub async fn remove_port(&self, port: Port) -> Result<()> {
        self.change(&[], &[port]).await
    }

    /// Adds and removes ports in one step, or changes nothing. What is there is not added again.
    pub async fn change(&self, add: &[Port], remove: &[Port]) -> Result<()> {
        self.inside.change(add, remove).await
    }

    /// Removes all ports, and waits until every connection that began before has been accepted, while somebody else goes on
    /// to accept. A client that does not finish to connect is waited for as long as the kernel waits for it, a minute or so:
    /// the caller may be less patient.
    pub async fn drain(&self) -> Result<()> {
        let ports = self.ports();
        self.change(&[], &ports).await?;
        while self.inside.are_arriving(&ports).await? {
            tokio::time::sleep(BETWEEN_LOOKS).await;
        }
        Ok(())
    }

    /// The next connection to a redirected TCP port.
    pub async fn accept(&self) -> Result<Arrived> {
        let arrived = self.connections.lock().await.recv().await;
        arrived.ok_or_else(ended)
    }

    /// The next datagram to a redirected UDP port.
    pub async fn receive(&self) -> Result<Datagram> {
        let datagram = self.datagrams.lock().await.recv().await;
        datagram.ok_or_else(ended)
    }

    /// Connects to the original application, past the redirection. It sees the pod's own address.
    pub async fn connect_to_original(&self, destination: SocketAddr) -> Result<TcpStream> {
        connect_to_original(&self.inside.agent, destination).await
    }

    /// A socket that exchanges datagrams with the original application, past the redirection.
    pub async fn open_udp_to_original(&self, destination: SocketAddr) -> Result<UdpSocket> {
        open_udp_to_original(&self.inside.agent, destination).await
    }

    /// Resets the connections to a TCP port that were open before it was redirected, so that their clients connect again.
    /// Answers how many there were.
    pub async fn flush_connections(&self, port: u16) -> Result<usize> {
        let reset = move || connections::reset(port);
        self.inside.agent.sockets().run(reset).await
    }

    /// Proves with a probe that redirected traffic arrives, or fails loudly. Says what was proven.
    pub async fn check(&self, port: Port) -> Result<Checked> {
        self.inside.check(port).await
    }

    /// What is known so far, from checks and from traffic.
    #[must_use]
    pub fn evidence(&self, port: Port) -> Evidence {
        self.inside.seen.evidence(port)
    }

    /// The mesh whose sidecar is in the target's network.
    pub async fn mesh(&self) -> Result<Option<Mesh>> {
        self.inside.find_mesh().await
    }
}

/// The addresses of the target's network.
pub(super) async fn own_addresses(agent: &Agent) -> Result<Vec<IpAddr>> {
    agent.sockets().run(addresses::own).await
}

/// Connects to the original application, past whatever redirection there is. It sees the pod's own address.
pub(super) async fn connect_to_original(
    agent: &Agent,
    destination: SocketAddr,
) -> Result<TcpStream> {
    let socket = passing(agent, destination, SocketType::STREAM).await?;
    let stream = TcpSocket::from_std_stream(socket.into()).connect(destination);
    let stream = stream
        .await
        .map_err(Error::io("connect to the original application"))?;
    // What is passed on was sent by somebody who decided when.
    stream
        .set_nodelay(true)
        .map_err(Error::io("set up a connection"))?;
    Ok(stream)
}

/// A socket that exchanges datagrams with the original application, past whatever redirection there is.
pub(super) async fn open_udp_to_original(
    agent: &Agent,
    destination: SocketAddr,
) -> Result<UdpSocket> {
    let socket = passing(agent, destination, SocketType::DGRAM).await?;
    let socket = arrivals::from_descriptor(socket)?;
    let connected = socket.connect(destination).await;
    connected.map_err(Error::io("connect to the original application"))?;
    Ok(socket)
}

async fn passing(agent: &Agent, destination: SocketAddr, kind: SocketType) -> Result<OwnedFd> {
    let make = move || sockets::passing(destination.ip(), kind);
    agent.sockets().run(make).await
}

impl Inside {
    fn rules(&self) -> MutexGuard<'_, Rules> {
        // The kernel does all of a change or nothing, and what is kept here is written after it has.
        self.rules.lock().unwrap_or_else(PoisonError::into_inner)
    }

    async fn change(self: &Arc<Self>, add: &[Port], remove: &[Port]) -> Result<()> {
        let mut new = Vec::new();
        for port in add.iter().copied() {
            let pair = match port.protocol {
                _ if port.number == 0 => return Err(Error::Missing("port")),
                _ if self.rules().has(port) => continue,
                Protocol::Tcp => None,
                Protocol::Udp => Some(self.agent.sockets().run(sockets::datagrams).await?),
            };
            new.push((port, pair));
        }
        let (inside, keep) = (Arc::clone(self), add.to_vec());
        let remove = remove.iter().copied().filter(|port| !keep.contains(port));
        let remove: Vec<Port> = remove.collect();
        // Goes on to its end also when nobody waits for it any more, so that what the kernel has is what we know.
        blocking(move || inside.commit(new, &remove)).await
    }

    async fn are_arriving(&self, ports: &[Port]) -> Result<bool> {
        let is_tcp = |port: &&Port| port.protocol == Protocol::Tcp;
        let ports: Vec<u16> = ports
            .iter()
            .filter(is_tcp)
            .map(|port| port.number)
            .collect();
        let (seen, connections) = (Arc::clone(&self.seen), self.connections.clone());
        let look = move || {
            let _now = seen.between_steps();
            let waiting = connections.upgrade();
            let are_waiting = waiting.is_some_and(|sender| sender.capacity() < WAITING);
            Ok(are_waiting || connections::are_arriving(&ports)?)
        };
        self.agent.sockets().run(look).await
    }

    fn commit(&self, new: Vec<(Port, Option<Pair>)>, remove: &[Port]) -> Result<()> {
        let mut held = Vec::new();
        let mut to_receive = Vec::new();
        for (port, pair) in new {
            let Some(pair) = pair else {
                held.push((port, Held::Tcp));
                continue;
            };
            let (receiving, removed) = watch::channel(());
            let listening = pair.listening;
            held.push((
                port,
                Held::Udp {
                    listening,
                    _receiving: receiving,
                },
            ));
            to_receive.push((port, pair, removed));
        }
        let mut rules = self.rules();
        let added = rules.change(held, remove)?;
        self.seen.forget(remove);
        for (port, pair, removed) in to_receive {
            // Somebody else may have added it meanwhile.
            if added.contains(&port) {
                let retired = Arc::clone(&rules.retired);
                arrivals::receive_all(port, pair, retired, &self.seen, &self.datagrams, &removed)?;
            }
        }
        Ok(())
    }
}

/// The kernel may take milliseconds for a change of rules.
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
