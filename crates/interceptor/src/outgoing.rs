//! Outgoing connections.
//!
//! The application keeps its own socket. It is connected to one of our sockets instead of the destination, and the host
//! gets our end: a [`PendingConnection`] is a connection that the application requests, an [`OutgoingConnection`] one
//! that is established. Data then flows without interception. We only complete the calls that would reveal the
//! difference: the addresses of both ends, and the error of a connection that fails later. Sockets are identified by
//! their cookie, which is never reused.
//!
//! | call | intercepted |
//! |---|---|
//! | `connect`, `getpeername`, `getsockname`, `bind`, `listen` | always |
//! | `getsockopt` | for `SO_ERROR` |
//! | `sendto`, `recvfrom` | with an address |
//! | `socket` | for internet datagrams |
//! | `sendmsg`, `sendmmsg`, `recvmsg`, `recvmmsg` | on descriptors that may be internet datagram sockets |
//! | `sendto`, `sendmsg`, `sendmmsg` with `MSG_FASTOPEN` | refused with `EOPNOTSUPP`; programs then connect first |
//!
//! The filter cannot see whether a message has an address, but it sees the descriptor number. So internet datagram
//! sockets get high numbers when they are created, and messages on streams, which are performance-critical, are never
//! intercepted. The numbers start at 768, so that 256 sockets work with `select`, and continue above 1024. A datagram
//! socket that is duplicated to a low number, or created under an open-file limit so low that there are no high
//! numbers, has two limits: `recvmsg` shows the address of our end, and `sendmsg` to an address leaves from this
//! machine. `sendto`, `recvfrom` and all calls about connected sockets still work on it.

mod address;
mod attempt;
mod calls;
mod connection;
mod datagrams;
mod own_sockets;
mod relay;
mod unix;

use std::collections::{HashMap, VecDeque};
use std::net::SocketAddr;
use std::os::fd::{AsFd, OwnedFd};
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use parking_lot::Mutex;

pub(crate) use self::address::{encode_internet, internet};
pub use self::attempt::PendingConnection;
pub(crate) use self::calls::{ConnectionEnd, decide, read_address, write_address};
pub use self::connection::{OutgoingConnection, OutgoingRegistration};
pub(crate) use self::own_sockets::is_datagram_socket_open;
pub(crate) use self::relay::domain_of;
pub(crate) use self::unix::report_unix_bind;

use crate::Errno;
use crate::host::DestinationChoice;
use crate::outgoing::attempt::Attempt;
use crate::outgoing::own_sockets::OwnSockets;
use crate::supervisor::Supervisor;
use crate::sys::socket;

/// The transport protocol of a connection.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Transport {
    Tcp,
    Udp,
    /// A stream socket (`SOCK_STREAM`) at a path.
    Unix,
    /// A sequenced-packet socket (`SOCK_SEQPACKET`) at a path.
    UnixPackets,
}

/// The destination of a connection.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub enum Destination {
    Internet(SocketAddr),
    /// An absolute path. Relative paths were resolved against the working directory of the application.
    Unix(PathBuf),
}

/// The addresses that the application sees for a connection.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct SocketAddresses {
    /// The local address; the actual one of this machine if `None`. For datagrams, port 0 stands for the application's
    /// own port.
    pub local: Option<SocketAddr>,
    /// The peer address; the requested destination if `None`.
    pub peer: Option<SocketAddr>,
}

/// The state of a socket of the application that is connected to the target.
#[derive(Debug)]
enum SocketState {
    /// The host is establishing the connection.
    Connecting(Arc<Attempt>),
    Connected {
        /// The number of the attempt that established the connection.
        attempt: u64,
        ends: ConnectionEnds,
        /// Whether success was reported to the application. It is false when the waiting `connect` was interrupted:
        /// then the next `connect` succeeds, and only later ones fail because the socket is already connected. The
        /// kernel behaves the same for a nonblocking socket.
        reported: bool,
    },
    /// The connection failed, and the application has not queried the error yet.
    Failed(Errno, Arc<Attempt>),
    Datagrams(Datagrams),
}

/// The addresses of both ends of a connection.
#[derive(Debug, Clone)]
struct ConnectionEnds {
    local: Option<SocketAddr>,
    peer: Destination,
}

/// An internet datagram socket, and the relay sockets for its peers.
#[derive(Debug, Clone, Default)]
struct Datagrams {
    /// The addresses of the peer to which it is connected.
    connected: Option<ConnectionEnds>,
    peers: Vec<Peer>,
}

/// A peer of a datagram socket.
#[derive(Debug, Clone)]
struct Peer {
    address: SocketAddr,
    /// The address of the relay socket for this peer.
    relay: SocketAddr,
    ends: ConnectionEnds,
}

/// How many failures are kept for applications that have not queried them. An application that closes its socket never
/// does, and there is no event for that.
const MAX_FAILURES: usize = 8192;

/// All sockets of the application that are connected to the target.
#[derive(Debug, Default)]
pub(crate) struct Connections {
    sockets: Mutex<HashMap<u64, SocketState>>,
    /// The most recently failed sockets and their attempts. Locked only while `sockets` is locked.
    failed: Mutex<VecDeque<(u64, u64)>>,
    /// Whether there ever was a connection, and a datagram socket, so that programs without them pay nothing.
    any: AtomicBool,
    any_datagrams: AtomicBool,
    own: OwnSockets,
    /// Held while a descriptor number for a datagram socket is chosen.
    descriptor_lock: Mutex<()>,
}

impl Connections {
    fn set(&self, cookie: u64, socket: SocketState) {
        self.sockets.lock().insert(cookie, socket);
        self.any.store(true, Ordering::Relaxed);
    }

    /// Records the result of an attempt. Returns false if the application has abandoned it and uses its socket for
    /// something else.
    fn complete(&self, cookie: u64, attempt: u64, result: Option<SocketState>) -> bool {
        let mut sockets = self.sockets.lock();
        let current = matches!(sockets.get(&cookie), Some(SocketState::Connecting(known)) if known.number() == attempt);
        if current {
            let is_failure = matches!(result, Some(SocketState::Failed(..)));
            match result {
                Some(socket) => sockets.insert(cookie, socket),
                None => sockets.remove(&cookie),
            };
            if is_failure {
                self.forget_old_failure(&mut sockets, (cookie, attempt));
            }
        }
        current
    }

    fn forget_old_failure(&self, sockets: &mut HashMap<u64, SocketState>, newest: (u64, u64)) {
        let mut failed = self.failed.lock();
        failed.push_back(newest);
        if failed.len() > MAX_FAILURES
            && let Some((cookie, attempt)) = failed.pop_front()
            && matches!(sockets.get(&cookie), Some(SocketState::Failed(_, known)) if known.number() == attempt)
        {
            sockets.remove(&cookie);
        }
    }

    /// The connection of an attempt has ended.
    fn end(&self, cookie: u64, attempt: u64) {
        let mut sockets = self.sockets.lock();
        if matches!(sockets.get(&cookie), Some(SocketState::Connected { attempt: known, .. }) if *known == attempt)
        {
            sockets.remove(&cookie);
        }
    }

    /// The application is about to listen on a socket.
    pub(crate) fn add_own_listener(&self, theirs: &OwnedFd) {
        self.own.add_listener(theirs);
    }

    /// The application has a datagram socket.
    pub(crate) fn add_own_datagrams(&self, theirs: &OwnedFd) {
        self.own.add_datagrams(theirs);
    }

    /// Whether a socket of the application receives traffic to an address of this machine.
    pub(crate) fn has_own(&self, transport: Transport, address: SocketAddr) -> bool {
        self.own.accepts(transport, address)
    }

    fn forget(&self, cookie: u64) {
        if self.any.load(Ordering::Relaxed) {
            self.sockets.lock().remove(&cookie);
        }
    }

    /// The application dissolves the association of a socket, or connects it to a local destination. Returns the
    /// attempt that was in progress.
    fn disconnect(&self, cookie: u64) -> Option<Arc<Attempt>> {
        if !self.any.load(Ordering::Relaxed) {
            return None;
        }
        let mut sockets = self.sockets.lock();
        if let Some(SocketState::Datagrams(datagrams)) = sockets.get_mut(&cookie) {
            datagrams.connected = None;
            return None;
        }
        match sockets.remove(&cookie) {
            Some(SocketState::Connecting(attempt)) => Some(attempt),
            _ => None,
        }
    }

    /// Accesses the state of a socket, if there is one.
    fn with<T>(&self, cookie: u64, access: impl FnOnce(&mut SocketState) -> T) -> Option<T> {
        self.sockets.lock().get_mut(&cookie).map(access)
    }

    fn add_peer(&self, cookie: u64, peer: Peer, connected: bool) {
        let mut sockets = self.sockets.lock();
        let socket = sockets
            .entry(cookie)
            .or_insert_with(|| SocketState::Datagrams(Datagrams::default()));
        if !matches!(socket, SocketState::Datagrams(_)) {
            *socket = SocketState::Datagrams(Datagrams::default());
        }
        if let SocketState::Datagrams(datagrams) = socket {
            if connected {
                datagrams.connected = Some(peer.ends.clone());
            }
            datagrams
                .peers
                .retain(|known| known.address != peer.address);
            datagrams.peers.push(peer);
        }
        self.any.store(true, Ordering::Relaxed);
        self.any_datagrams.store(true, Ordering::Relaxed);
    }

    /// Sets the local address that the application sees for a connected datagram socket.
    fn set_local(&self, cookie: u64, local: SocketAddr) {
        self.with(cookie, |socket| {
            if let SocketState::Datagrams(datagrams) = socket
                && let Some(ends) = &mut datagrams.connected
            {
                ends.local = Some(local);
            }
        });
    }

    /// The host has released a peer.
    fn remove_peer(&self, cookie: u64, relay: SocketAddr) {
        let mut sockets = self.sockets.lock();
        if let Some(SocketState::Datagrams(datagrams)) = sockets.get_mut(&cookie) {
            datagrams.peers.retain(|known| known.relay != relay);
            if datagrams.peers.is_empty() {
                sockets.remove(&cookie);
            }
        }
    }

    fn datagrams(&self, cookie: u64) -> Option<Datagrams> {
        self.with(cookie, |socket| match socket {
            SocketState::Datagrams(datagrams) => Some(datagrams.clone()),
            _ => None,
        })
        .flatten()
    }
}

/// Chooses how a connection or datagram is routed.
fn choose(
    supervisor: &Supervisor,
    transport: Transport,
    destination: &Destination,
) -> DestinationChoice {
    if !supervisor.settings.outgoing {
        return DestinationChoice::Local;
    }
    let choice = supervisor.host.choose_destination(transport, destination);
    match destination {
        Destination::Internet(address)
            if choice != DestinationChoice::Local
                && (supervisor
                    .connections
                    .own
                    .is_own_loopback(transport, *address)
                    || supervisor.incoming.is_ours(transport, *address)) =>
        {
            DestinationChoice::Local
        }
        _ => choice,
    }
}

/// The transport of a socket, if it is one that can be connected to the target.
pub(crate) fn transport_of(socket: &OwnedFd) -> Option<Transport> {
    let option = |name| socket::option(socket.as_fd(), libc::SOL_SOCKET, name).ok();
    let protocol = option(libc::SO_PROTOCOL)?;
    match (option(libc::SO_DOMAIN)?, option(libc::SO_TYPE)?) {
        (libc::AF_INET | libc::AF_INET6, libc::SOCK_STREAM)
            if [libc::IPPROTO_TCP, libc::IPPROTO_MPTCP].contains(&protocol) =>
        {
            Some(Transport::Tcp)
        }
        (libc::AF_INET | libc::AF_INET6, libc::SOCK_DGRAM) if protocol == libc::IPPROTO_UDP => {
            Some(Transport::Udp)
        }
        (libc::AF_UNIX, libc::SOCK_STREAM) => Some(Transport::Unix),
        (libc::AF_UNIX, libc::SOCK_SEQPACKET) => Some(Transport::UnixPackets),
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::outgoing::attempt::Purpose;
    use crate::outgoing::connection::Caller;

    #[test]
    fn unqueried_failures_are_evicted() {
        let connections = Arc::new(Connections::default());
        let caller = Caller {
            thread: 0,
            number: 0,
        };
        let destination: SocketAddr = "198.51.100.7:7".parse().unwrap();
        let attempt = |cookie: u64| {
            let socket = socket::create(libc::AF_INET, libc::SOCK_STREAM, 0).unwrap();
            let destination = Destination::Internet(destination);
            let request = (Transport::Tcp, destination, Purpose::Connect);
            let attempt = Attempt::new(&connections, request, socket, caller).unwrap();
            connections.set(cookie, SocketState::Connecting(Arc::clone(&attempt)));
            attempt
        };
        let fail = |cookie: u64| {
            let attempt = attempt(cookie);
            // Releases the socket.
            attempt.cancel();
            let number = attempt.number();
            let failed = SocketState::Failed(Errno::ECONNREFUSED, attempt);
            assert!(connections.complete(cookie, number, Some(failed)));
        };
        let count = MAX_FAILURES as u64;
        (0..count).for_each(fail);
        // This socket is used again, and no longer failed.
        let _again = attempt(0);
        (count..count + 2).for_each(fail);
        assert_eq!(connections.sockets.lock().len(), MAX_FAILURES + 1);
        let is_known = |cookie| connections.with(cookie, |_| ()).is_some();
        assert_eq!([0, 1, 2].map(is_known), [true, false, true]);
    }
}
