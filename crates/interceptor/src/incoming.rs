//! Incoming connections.
//!
//! The application listens with its own socket, on this machine. What arrives at the target is brought to it by the host,
//! which connects to that socket with a [`Listener`] and says who the client is. The application then sees that client as
//! its peer, wherever it asks: `accept`, `accept4`, `getpeername`, `recvfrom`; and the target's address as its own.
//!
//! | call | caught |
//! |---|---|
//! | `listen`, `getpeername`, `getsockname` | always |
//! | `bind` | to an address as long as an internet address |
//! | `accept`, `accept4` | with room for an address |
//! | datagrams | as told in the `outgoing` module |
//!
//! Who is behind a connection is known by the address that our end has on this machine. It is an address of 127.64.0.0/10
//! that nobody else uses, a new one for each connection: so what the kernel says about a socket is all that we need to
//! know about it, nobody is mistaken for another, and there is nothing to remember about who accepted what. Waiting for
//! connections (`epoll` and its like) and `accept` without an address are the kernel's alone.
//!
//! # Limits
//!
//! - A client with an IPv6 address has no name in a socket of IPv4: there, the address of our end stays.
//! - `getsockname` of a connection that was reset tells this machine's address.
//! - Several threads or processes that accept from one socket that waits, some with and some without room for an address:
//!   one of the former may learn of a signal, and let go of the port when it is killed, only with the next connection.
//! - A datagram socket that is bound to port 0 is a client's and gets nothing from the target. `IP_PKTINFO` tells this
//!   machine's addresses.
//! - A socket that is bound to a network interface (`SO_BINDTODEVICE`) is not reached.
//! - A datagram socket that the host refuses stays bound, although `bind` fails.
//! - Where the port that is asked for is taken on this machine, `/proc` and programs outside see another one.

mod accepting;
mod copies;
mod deliveries;
mod listening;
mod places;

use std::collections::HashMap;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex};

use self::accepting::Turns;
use self::copies::Copies;
pub(crate) use self::copies::Held;
pub use self::deliveries::Registration as DeliveryRegistration;

use self::deliveries::Deliveries;
use self::places::Places;
use crate::Errno;
use crate::notification::Notification;
use crate::outgoing::{Connections, End, Transport, domain_of, encode_internet, internet};
use crate::socket_table::{self, Entry, TCP_TABLES, UDP_TABLES};
use crate::supervisor::{Decision, Supervisor};
use crate::sys::socket;
use crate::syscalls::Call;
use crate::workers::lock;

/// A socket with which the application is about to listen. Its call waits for [`Listening::accept`] or
/// [`Listening::refuse`]; to drop it is to refuse it.
#[derive(Debug)]
pub struct Listening {
    listener: Listener,
    /// The application's call, until it is answered.
    call: Option<Notification>,
    /// Our copy of the application's socket, as long as the call waits.
    theirs: Option<OwnedFd>,
}

impl Listening {
    /// TCP, or UDP.
    #[must_use]
    pub fn transport(&self) -> Transport {
        self.listener.socket.transport
    }

    /// The address as the application knows it. Its port is never 0.
    #[must_use]
    pub fn address(&self) -> SocketAddr {
        self.listener.socket.address
    }

    /// The application's call succeeds.
    pub fn accept(mut self) -> Listener {
        // First our copy goes: from when the call returns, the application alone keeps its socket open.
        drop(self.theirs.take());
        if let Some(call) = self.call.take() {
            call.succeed(0);
        }
        self.listener.clone()
    }

    /// The application's call fails.
    pub fn refuse(mut self, errno: Errno) {
        self.fail(errno);
    }

    fn fail(&mut self, errno: Errno) {
        let Some(call) = self.call.take() else {
            return;
        };
        self.listener.incoming.forget(self.listener.socket.cookie);
        if let Some(theirs) = self.theirs.take()
            && self.listener.socket.transport == Transport::Tcp
        {
            // It no longer listens, and stays bound.
            let _ = socket::shut_reading_down(theirs.as_fd());
        }
        call.fail(errno);
    }
}

impl Drop for Listening {
    fn drop(&mut self) {
        self.fail(Errno::ENETDOWN);
    }
}

/// A socket with which the application listens. Clones are the same.
#[derive(Debug, Clone)]
pub struct Listener {
    socket: Arc<Socket>,
    incoming: Arc<Incoming>,
    connections: Arc<Connections>,
}

impl Listener {
    /// Whether the application still listens. With several sockets for the same port, whether one of them is there.
    #[must_use]
    pub fn is_there(&self) -> bool {
        let socket = &self.socket;
        let is_there = match socket.transport {
            Transport::Udp => {
                crate::outgoing::is_datagram_socket_open(socket.reached.port(), socket.inode)
            }
            _ => self.connections.has_own(socket.transport, socket.reached),
        };
        if socket.turns.any_returned() && !(is_there && socket.is_open()) {
            // As the kernel ends what waits in its own queue, also while others listen on the port.
            socket.turns.clear();
        }
        is_there
    }

    /// Begins a connection to the application (TCP), or opens a socket that exchanges datagrams with it (UDP). To the
    /// application, the other end is `client`, and its own end `server`. Never waits: the socket does not block, and
    /// becomes writable when the connection is there or has failed.
    ///
    /// # Errors
    /// `ECONNREFUSED` when the application no longer listens, and what making a socket fails with.
    pub fn deliver(&self, client: SocketAddr, server: SocketAddr) -> Result<Delivery, Errno> {
        let (transport, reached) = (self.socket.transport, self.socket.reached);
        // Somebody else may have the port by now.
        if !self.connections.has_own(transport, reached) {
            return Err(Errno::ECONNREFUSED);
        }
        let names = Some(deliveries::Names { client, server });
        let (socket, registration) = self.incoming.deliveries.open(transport, reached, names)?;
        Ok(Delivery {
            socket,
            registration,
        })
    }
}

/// Our end of a connection to the application. The application sees the client's address at least as long as this lives.
#[derive(Debug)]
pub struct Delivery {
    pub socket: OwnedFd,
    /// Keeps the client's address known. It may be kept apart from the socket, and should live as long.
    pub registration: DeliveryRegistration,
}

/// Whether the application has accepted a connection of which this is our end. Until then the kernel alone has taken it.
/// True as well where the kernel does not say.
#[must_use]
pub fn is_accepted(ours: BorrowedFd<'_>) -> bool {
    let address = |address: Result<Vec<u8>, Errno>| internet(&address.ok()?);
    let application = address(socket::peer_address(ours));
    let Some((application, ours)) = application.zip(address(socket::local_address(ours))) else {
        return true;
    };
    let found = socket_table::connection_between(application, ours);
    !matches!(found, Ok(Some(found)) if found.inode == 0)
}

/// A socket with which the application listens.
#[derive(Debug)]
struct Socket {
    transport: Transport,
    cookie: u64,
    inode: u64,
    /// As the application knows it.
    address: SocketAddr,
    /// Where we reach it.
    reached: SocketAddr,
    turns: Turns,
}

impl Socket {
    fn new(theirs: &OwnedFd, transport: Transport, known: SocketAddr) -> Result<Self, Errno> {
        let bound = socket::local_address(theirs.as_fd())?;
        let mut reached = internet(&bound).ok_or(Errno::EAFNOSUPPORT)?;
        if reached.ip().is_unspecified() {
            reached.set_ip(loopback_for(theirs, reached.ip()));
        }
        let mut address = known;
        if address.port() == 0 {
            address.set_port(reached.port());
        }
        Ok(Self {
            transport,
            cookie: socket::cookie(theirs.as_fd())?,
            inode: socket_table::inode_of(theirs).ok_or(Errno::EBADF)?,
            address,
            reached,
            turns: Turns::default(),
        })
    }
}

impl Socket {
    /// Whether this very socket listens, and not only one that shares its port.
    fn is_open(&self) -> bool {
        let is_it = |entry: &Entry| entry.inode == self.inode;
        socket_table::any_listener(self.reached.port(), is_it)
    }
}

/// Where a socket is reached that takes connections to any address. One for both families is reached by IPv4, of which
/// there are more addresses.
fn loopback_for(theirs: &OwnedFd, any: IpAddr) -> IpAddr {
    let only_version6 = || {
        let option = socket::option(theirs.as_fd(), libc::IPPROTO_IPV6, libc::IPV6_V6ONLY);
        option.is_ok_and(|only| only != 0)
    };
    if any.is_ipv6() && only_version6() {
        Ipv6Addr::LOCALHOST.into()
    } else {
        Ipv4Addr::LOCALHOST.into()
    }
}

/// Listeners that are remembered before those are forgotten that are no longer there.
const MANY: usize = 256;

/// All sockets with which the application listens for the target, and what was brought to them.
#[derive(Debug, Default)]
pub(crate) struct Incoming {
    /// Whether there ever was one, so that programs without pay nothing.
    any: AtomicBool,
    any_datagrams: AtomicBool,
    /// By cookie.
    listeners: Mutex<HashMap<u64, Arc<Socket>>>,
    deliveries: Arc<Deliveries>,
    places: Places,
    copies: Copies,
}

impl Incoming {
    pub(crate) fn any(&self) -> bool {
        self.any.load(Ordering::Relaxed)
    }

    pub(crate) fn any_datagrams(&self) -> bool {
        self.any_datagrams.load(Ordering::Relaxed)
    }

    /// What is known of our copies of sockets on which calls wait.
    pub(crate) fn copies(&self) -> &Copies {
        &self.copies
    }

    fn add(&self, socket: &Arc<Socket>) {
        let mut listeners = lock(&self.listeners);
        if listeners.len() >= MANY {
            let mut there = socket_table::entries(&TCP_TABLES);
            there.extend(socket_table::entries(&UDP_TABLES));
            listeners.retain(|_, known| there.iter().any(|entry| entry.inode == known.inode));
        }
        listeners.insert(socket.cookie, Arc::clone(socket));
        drop(listeners);
        if socket.transport == Transport::Udp {
            self.any_datagrams.store(true, Ordering::Relaxed);
        }
        self.any.store(true, Ordering::Relaxed);
    }

    fn get(&self, cookie: u64) -> Option<Arc<Socket>> {
        lock(&self.listeners).get(&cookie).map(Arc::clone)
    }

    fn forget(&self, cookie: u64) {
        lock(&self.listeners).remove(&cookie);
    }

    /// Whether datagrams for this socket may come from the target.
    pub(crate) fn takes_datagrams(&self, cookie: u64) -> bool {
        let listeners = lock(&self.listeners);
        let socket = listeners.get(&cookie);
        socket.is_some_and(|socket| socket.transport == Transport::Udp)
    }

    /// The client that a socket of ours stands for, by the socket's address.
    pub(crate) fn sender(&self, relay: SocketAddr) -> Option<SocketAddr> {
        let found = self.deliveries.find(Transport::Udp, relay, || None)?;
        found.map(|names| names.client)
    }

    /// The address of the socket of ours that stands for a client, to a datagram socket of the application.
    pub(crate) fn relay(&self, theirs: &OwnedFd, client: SocketAddr) -> Option<SocketAddr> {
        if !self.any_datagrams() {
            return None;
        }
        let bound = socket::local_address(theirs.as_fd()).ok()?;
        self.deliveries.relay(internet(&bound)?.port(), client)
    }

    /// Where the application's own listener is that it takes to be at an address of localhost, if it is elsewhere.
    pub(crate) fn moved(&self, transport: Transport, address: SocketAddr) -> Option<SocketAddr> {
        let ip = address.ip().to_canonical();
        if !self.any() || !ip.is_loopback() {
            return None;
        }
        let mut real = self
            .places
            .moved(transport, SocketAddr::new(ip, address.port()))?;
        if real.ip().is_unspecified() {
            real.set_ip(ip);
        }
        Some(real)
    }

    /// Whether an address is that of a socket of ours, which is on this machine.
    pub(crate) fn is_ours(&self, transport: Transport, address: SocketAddr) -> bool {
        self.any() && self.deliveries.find(transport, address, || None).is_some()
    }

    /// What a name of a socket is to the application, as bytes; `None` if it is what the kernel says.
    pub(crate) fn name(&self, theirs: &OwnedFd, cookie: u64, end: End) -> Option<Vec<u8>> {
        if !self.any() {
            return None;
        }
        if end == End::Local
            && let Some(address) = self.places.known_as(cookie)
        {
            return encode_shown(address, domain_of(theirs.as_fd()).ok()?);
        }
        let peer = socket::peer_address(theirs.as_fd()).ok()?;
        let kind = socket::option(theirs.as_fd(), libc::SOL_SOCKET, libc::SO_TYPE);
        let transport = match kind {
            Ok(libc::SOCK_STREAM) => Transport::Tcp,
            _ => Transport::Udp,
        };
        let names = self
            .deliveries
            .find(transport, internet(&peer)?, || Some(cookie))
            .flatten()?;
        let domain = family_of(&peer);
        match end {
            End::Peer => encode_shown(names.client, domain),
            End::Local if transport == Transport::Tcp => encode_shown(names.server, domain),
            End::Local => None,
        }
    }
}

/// The family of an address.
fn family_of(address: &[u8]) -> i32 {
    let family = address.first_chunk::<2>().copied();
    family.map_or(libc::AF_UNSPEC, |family| {
        i32::from(u16::from_ne_bytes(family))
    })
}

/// The bytes of an address, if a socket of this family can show it.
pub(crate) fn encode_shown(address: SocketAddr, domain: i32) -> Option<Vec<u8>> {
    let hidden = address.ip().to_canonical().is_ipv6() && domain == libc::AF_INET;
    (!hidden).then(|| encode_internet(address, domain))
}

/// Decides what can be decided without waiting.
pub(crate) fn decide(
    supervisor: &Supervisor,
    call: Call,
    notification: &Notification,
) -> Result<Decision, Errno> {
    match call {
        Call::Bind => listening::decide_bind(supervisor, notification),
        Call::Listen => listening::decide_listen(supervisor, notification),
        Call::Accept | Call::Accept4 if supervisor.incoming.any() => {
            accepting::decide(supervisor, call, notification)
        }
        _ => Ok(Decision::Pass),
    }
}
