//! Incoming connections.
//!
//! The application listens with its own socket, on this machine. The host delivers the incoming connections of the
//! target: it connects to that socket through a [`Listener`] and provides the address of the client. The application
//! then sees that client as its peer in `accept`, `accept4`, `getpeername` and `recvfrom`, and the address of the
//! target as its own.
//!
//! | call | intercepted |
//! |---|---|
//! | `listen`, `getpeername`, `getsockname` | always |
//! | `bind` | to an address as long as an internet address |
//! | `accept`, `accept4` | with a buffer for an address |
//! | datagrams | see the `outgoing` module |
//!
//! A connection is identified by the local address of our end. Each connection gets its own address in 127.64.0.0/10,
//! which no other program uses. So the peer address that the kernel reports identifies the client of a socket without
//! ambiguity, and we need not track which process accepted which connection. The kernel alone handles waiting for
//! connections (`epoll`, `poll`, `select`) and `accept` without an address.
//!
//! # Limits
//!
//! - An IPv4 socket cannot represent a client with an IPv6 address: it shows the address of our end.
//! - `getsockname` of a connection that was reset returns the address of this machine.
//! - If several threads or processes accept from one blocking socket, some with and some without a buffer for an
//!   address, one with a buffer may notice a signal, and release the port after it is killed, only with the next
//!   connection.
//! - A datagram socket that is bound to port 0 is a client and receives nothing from the target. `IP_PKTINFO` returns
//!   addresses of this machine.
//! - A socket that is bound to a network interface (`SO_BINDTODEVICE`) cannot be reached.
//! - A datagram socket that the host refuses stays bound, although `bind` fails.
//! - If the requested port is in use on this machine, `/proc` and other programs see another port.

mod accept;
mod app_connections;
mod close_events;
mod listen;
mod port_bindings;
mod socket_copies;

use std::collections::HashMap;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use parking_lot::Mutex;

use self::accept::AcceptQueue;
pub use self::app_connections::IncomingRegistration;
pub use self::close_events::CloseEvents;
pub(crate) use self::socket_copies::CopyGuard;
use self::socket_copies::SocketCopies;

use self::app_connections::AppConnections;
use self::port_bindings::PortBindings;
use crate::Errno;
use crate::notification::Notification;
use crate::outgoing::{
    ConnectionEnd, Connections, Transport, domain_of, encode_internet, internet,
};
use crate::socket_table::{self, Entry, TCP_TABLES, UDP_TABLES};
use crate::supervisor::{Decision, Supervisor};
use crate::sys::socket;
use crate::syscalls::Call;

/// A socket on which the application is about to listen. The application's call is suspended until
/// [`PendingListener::accept`] or [`PendingListener::refuse`]; dropping it refuses it.
#[derive(Debug)]
pub struct PendingListener {
    listener: Listener,
    /// The application's call, until it is completed.
    call: Option<Notification>,
    /// Our copy of the application's socket while the call is suspended.
    theirs: Option<OwnedFd>,
}

impl PendingListener {
    /// TCP or UDP.
    #[must_use]
    pub fn transport(&self) -> Transport {
        self.listener.socket.transport
    }

    /// The address that the application uses. Its port is never 0.
    #[must_use]
    pub fn address(&self) -> SocketAddr {
        self.listener.socket.address
    }

    /// The cookie of the socket, which identifies it on this machine and in [`CloseEvents`].
    #[must_use]
    pub fn cookie(&self) -> u64 {
        self.listener.socket.cookie
    }

    /// Lets the application's call succeed.
    pub fn accept(mut self) -> Listener {
        // Our copy is closed first: when the call returns, only the application keeps its socket open.
        drop(self.theirs.take());
        if let Some(call) = self.call.take() {
            call.succeed(0);
        }
        self.listener.clone()
    }

    /// Lets the application's call fail.
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
            // The socket no longer listens, but stays bound.
            let _ = socket::shutdown_read(theirs.as_fd());
        }
        call.fail(errno);
    }
}

impl Drop for PendingListener {
    fn drop(&mut self) {
        self.fail(Errno::ENETDOWN);
    }
}

/// A socket on which the application listens. Clones refer to the same socket.
#[derive(Debug, Clone)]
pub struct Listener {
    socket: Arc<ListenerSocket>,
    incoming: Arc<Incoming>,
    connections: Arc<Connections>,
}

impl Listener {
    /// Whether the application still listens. If several sockets share the port, whether one of them still listens.
    #[must_use]
    pub fn is_listening(&self) -> bool {
        let socket = &self.socket;
        let is_listening = match socket.transport {
            Transport::Udp => {
                crate::outgoing::is_datagram_socket_open(socket.actual.port(), socket.inode)
            }
            _ => self.connections.has_own(socket.transport, socket.actual),
        };
        if socket.accept_queue.has_requeued() && !(is_listening && socket.is_open()) {
            // The kernel likewise resets the connections in its own queue, even if other sockets listen on the port.
            socket.accept_queue.clear();
        }
        is_listening
    }

    /// Starts a connection to the application (TCP), or opens a socket that exchanges datagrams with it (UDP). The
    /// application sees `client` as the peer address and `server` as its own. Never blocks: the socket is nonblocking,
    /// and becomes writable when the connection is established or has failed.
    ///
    /// # Errors
    /// `ECONNREFUSED` when the application no longer listens, and the errors of creating a socket.
    pub fn connect(&self, client: SocketAddr, server: SocketAddr) -> Result<AppConnection, Errno> {
        let (transport, actual) = (self.socket.transport, self.socket.actual);
        // Another program may have the port by now.
        if !self.connections.has_own(transport, actual) {
            return Err(Errno::ECONNREFUSED);
        }
        let addresses = Some(app_connections::ConnectionAddresses { client, server });
        let (socket, registration) = self
            .incoming
            .app_connections
            .open(transport, actual, addresses)?;
        Ok(AppConnection {
            socket,
            registration,
        })
    }
}

/// Our end of a connection to the application. The application sees the client's address at least until this is
/// dropped.
#[derive(Debug)]
pub struct AppConnection {
    pub socket: OwnedFd,
    /// Keeps the client's address registered. It may be stored separately from the socket, but should live as long.
    pub registration: IncomingRegistration,
}

/// Whether the application has accepted the connection with this end of ours. Before that, only the kernel has. Also
/// true if the kernel does not provide this information.
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

/// A socket on which the application listens.
#[derive(Debug)]
struct ListenerSocket {
    transport: Transport,
    cookie: u64,
    inode: u64,
    /// The address that the application uses.
    address: SocketAddr,
    /// The address at which we reach it.
    actual: SocketAddr,
    accept_queue: AcceptQueue,
}

impl ListenerSocket {
    fn new(theirs: &OwnedFd, transport: Transport, visible: SocketAddr) -> Result<Self, Errno> {
        let bound = socket::local_address(theirs.as_fd())?;
        let mut actual = internet(&bound).ok_or(Errno::EAFNOSUPPORT)?;
        if actual.ip().is_unspecified() {
            actual.set_ip(loopback_for(theirs, actual.ip()));
        }
        let mut address = visible;
        if address.port() == 0 {
            address.set_port(actual.port());
        }
        Ok(Self {
            transport,
            cookie: socket::cookie(theirs.as_fd())?,
            inode: socket_table::inode_of(theirs).ok_or(Errno::EBADF)?,
            address,
            actual,
            accept_queue: AcceptQueue::default(),
        })
    }
}

impl ListenerSocket {
    /// Whether this very socket listens, and not only another one that shares its port.
    fn is_open(&self) -> bool {
        let matches = |entry: &Entry| entry.inode == self.inode;
        socket_table::any_listener(self.actual.port(), matches)
    }
}

/// The address at which a wildcard socket is reached. A dual-stack socket is reached by IPv4, which has more loopback
/// addresses.
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

/// When this many listeners are recorded, closed ones are removed.
const CLEANUP_THRESHOLD: usize = 256;

/// All sockets on which the application listens for the target, and the connections to them.
#[derive(Debug, Default)]
pub(crate) struct Incoming {
    /// Whether there ever was one, so that programs without listeners pay nothing.
    any: AtomicBool,
    any_datagrams: AtomicBool,
    /// By cookie.
    listeners: Mutex<HashMap<u64, Arc<ListenerSocket>>>,
    app_connections: Arc<AppConnections>,
    bindings: PortBindings,
    socket_copies: SocketCopies,
}

impl Incoming {
    pub(crate) fn any(&self) -> bool {
        self.any.load(Ordering::Relaxed)
    }

    pub(crate) fn any_datagrams(&self) -> bool {
        self.any_datagrams.load(Ordering::Relaxed)
    }

    /// The copies of sockets that we hold for suspended calls.
    pub(crate) fn socket_copies(&self) -> &SocketCopies {
        &self.socket_copies
    }

    fn add(&self, socket: &Arc<ListenerSocket>) {
        let mut listeners = self.listeners.lock();
        if listeners.len() >= CLEANUP_THRESHOLD {
            let mut open = socket_table::entries(&TCP_TABLES);
            open.extend(socket_table::entries(&UDP_TABLES));
            listeners.retain(|_, listener| open.iter().any(|entry| entry.inode == listener.inode));
        }
        listeners.insert(socket.cookie, Arc::clone(socket));
        drop(listeners);
        if socket.transport == Transport::Udp {
            self.any_datagrams.store(true, Ordering::Relaxed);
        }
        self.any.store(true, Ordering::Relaxed);
    }

    fn get(&self, cookie: u64) -> Option<Arc<ListenerSocket>> {
        self.listeners.lock().get(&cookie).map(Arc::clone)
    }

    fn forget(&self, cookie: u64) {
        self.listeners.lock().remove(&cookie);
    }

    /// Whether this socket may receive datagrams from the target.
    pub(crate) fn receives_datagrams(&self, cookie: u64) -> bool {
        let listeners = self.listeners.lock();
        let socket = listeners.get(&cookie);
        socket.is_some_and(|socket| socket.transport == Transport::Udp)
    }

    /// The client that a relay socket represents, by the address of the relay socket.
    pub(crate) fn client_behind(&self, relay: SocketAddr) -> Option<SocketAddr> {
        let found = self.app_connections.find(Transport::Udp, relay, || None)?;
        found.map(|addresses| addresses.client)
    }

    /// The address of the relay socket that represents a client to a datagram socket of the application.
    pub(crate) fn relay_for_client(
        &self,
        theirs: &OwnedFd,
        client: SocketAddr,
    ) -> Option<SocketAddr> {
        if !self.any_datagrams() {
            return None;
        }
        let bound = socket::local_address(theirs.as_fd()).ok()?;
        self.app_connections.relay(internet(&bound)?.port(), client)
    }

    /// The actual address of the application's own listener for a loopback address that the application uses, if it
    /// differs.
    pub(crate) fn actual_address(
        &self,
        transport: Transport,
        address: SocketAddr,
    ) -> Option<SocketAddr> {
        let ip = address.ip().to_canonical();
        if !self.any() || !ip.is_loopback() {
            return None;
        }
        let mut real = self
            .bindings
            .actual_address(transport, SocketAddr::new(ip, address.port()))?;
        if real.ip().is_unspecified() {
            real.set_ip(ip);
        }
        Some(real)
    }

    /// Whether an address belongs to one of our sockets, which are on this machine.
    pub(crate) fn is_ours(&self, transport: Transport, address: SocketAddr) -> bool {
        self.any()
            && self
                .app_connections
                .find(transport, address, || None)
                .is_some()
    }

    /// The encoded address of a socket that the application sees; `None` if it is the one that the kernel reports.
    pub(crate) fn visible_address(
        &self,
        theirs: &OwnedFd,
        cookie: u64,
        end: ConnectionEnd,
    ) -> Option<Vec<u8>> {
        if !self.any() {
            return None;
        }
        if end == ConnectionEnd::Local
            && let Some(address) = self.bindings.visible_address(cookie)
        {
            return encode_visible(address, domain_of(theirs.as_fd()).ok()?);
        }
        let peer = socket::peer_address(theirs.as_fd()).ok()?;
        let kind = socket::option(theirs.as_fd(), libc::SOL_SOCKET, libc::SO_TYPE);
        let transport = match kind {
            Ok(libc::SOCK_STREAM) => Transport::Tcp,
            _ => Transport::Udp,
        };
        let addresses = self
            .app_connections
            .find(transport, internet(&peer)?, || Some(cookie))
            .flatten()?;
        let domain = family_of(&peer);
        match end {
            ConnectionEnd::Peer => encode_visible(addresses.client, domain),
            ConnectionEnd::Local if transport == Transport::Tcp => {
                encode_visible(addresses.server, domain)
            }
            ConnectionEnd::Local => None,
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

/// Encodes an address, if a socket of this family can represent it.
pub(crate) fn encode_visible(address: SocketAddr, domain: i32) -> Option<Vec<u8>> {
    let hidden = address.ip().to_canonical().is_ipv6() && domain == libc::AF_INET;
    (!hidden).then(|| encode_internet(address, domain))
}

/// Decides how to handle a call, as far as that is possible without blocking.
pub(crate) fn decide(
    supervisor: &Supervisor,
    call: Call,
    notification: &Notification,
) -> Result<Decision, Errno> {
    match call {
        Call::Bind => listen::decide_bind(supervisor, notification),
        Call::Listen => listen::decide_listen(supervisor, notification),
        Call::Accept | Call::Accept4 if supervisor.incoming.any() => {
            accept::decide(supervisor, call, notification)
        }
        _ => Ok(Decision::Pass),
    }
}
