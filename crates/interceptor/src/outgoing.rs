//! Outgoing connections.
//!
//! The application keeps its own socket. Instead of to the destination it is connected to a socket of ours, and the
//! host gets the other end: [`Outgoing`] is a connection that is asked for, [`Connection`] one that is there. Bytes
//! then flow without us. What the application could see of the difference, the names of both ends and the error of a
//! connection that fails later, we answer. Sockets are known by their cookie, which no other socket ever has.
//!
//! | call | caught |
//! |---|---|
//! | `connect`, `getpeername`, `getsockname`, `bind`, `listen` | always |
//! | `getsockopt` | for `SO_ERROR` |
//! | `sendto`, `recvfrom` | with an address |
//! | `socket` | for internet datagrams |
//! | `sendmsg`, `sendmmsg`, `recvmsg`, `recvmmsg` | on descriptors that may be internet datagram sockets |
//! | `sendto`, `sendmsg`, `sendmmsg` with `MSG_FASTOPEN` | refused with `EOPNOTSUPP`; programs then connect first |
//!
//! The filter cannot see whether a message has an address. What it sees is the descriptor's number, so internet
//! datagram sockets get high ones when they are made, and streams, which are the ones in a hurry, are never caught.
//! They start at 768, so that 256 of them work with `select`, and go on above 1024 after that. Such a socket that is
//! duplicated to a low number, or made under a limit of open files so low that there are no high ones, has two limits:
//! `recvmsg` shows the address of our end, and `sendmsg` to an address leaves from this machine. `sendto`, `recvfrom`
//! and everything about connected sockets work on it too.

mod address;
mod attempt;
mod calls;
mod connection;
mod datagrams;
mod own;
mod relay;
mod unix;

use std::collections::{HashMap, VecDeque};
use std::net::SocketAddr;
use std::os::fd::{AsFd, OwnedFd};
use std::path::PathBuf;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex};

pub(crate) use self::address::{encode_internet, internet};
pub use self::attempt::Outgoing;
pub(crate) use self::calls::{End, decide, read_address, write_address};
pub use self::connection::{Connection, Registration};
pub(crate) use self::own::is_datagram_socket_open;
pub(crate) use self::relay::domain_of;
pub(crate) use self::unix::look_at_bind;

use crate::Errno;
use crate::host::DestinationChoice;
use crate::outgoing::attempt::Attempt;
use crate::outgoing::own::OwnSockets;
use crate::supervisor::Supervisor;
use crate::sys::socket;
use crate::workers::lock;

/// What carries a connection.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Transport {
    Tcp,
    Udp,
    /// A stream to a path.
    Unix,
    /// A sequence of packets (`SOCK_SEQPACKET`) to a path.
    UnixPackets,
}

/// Where a connection goes.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub enum Destination {
    Internet(SocketAddr),
    /// An absolute path: a relative one starts in the application's working directory.
    Unix(PathBuf),
}

/// What the application sees as the ends of a connection.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Names {
    /// The local end; this machine's own if not known. For datagrams, port 0 stands for the application's own port.
    pub local: Option<SocketAddr>,
    /// The other end; the destination that was asked for if not known.
    pub peer: Option<SocketAddr>,
}

/// A socket of the application that leads to the target.
#[derive(Debug)]
enum Socket {
    /// The remote half is being made.
    Connecting(Arc<Attempt>),
    Connected {
        /// The number of the attempt that made it.
        attempt: u64,
        ends: Ends,
        /// False when the `connect` that waited for it was interrupted: then the next one succeeds, and only those after
        /// it are told that there is a connection already. For a socket that does not wait, the kernel does the same.
        told: bool,
    },
    /// The remote half failed, and the application has not asked yet.
    Failed(Errno, Arc<Attempt>),
    Datagrams(Datagrams),
}

/// The names of both ends of a connection.
#[derive(Debug, Clone)]
struct Ends {
    local: Option<SocketAddr>,
    peer: Destination,
}

/// An internet datagram socket: who is behind which of our sockets.
#[derive(Debug, Clone, Default)]
struct Datagrams {
    /// The peer to which it is connected.
    connected: Option<Ends>,
    peers: Vec<Peer>,
}

/// Who a datagram socket talks to.
#[derive(Debug, Clone)]
struct Peer {
    address: SocketAddr,
    /// The address of the socket of ours that stands for it.
    relay: SocketAddr,
    ends: Ends,
}

/// So many failures are kept for applications that have not asked. One that closes its socket never does, and nobody
/// tells us.
const FAILURES: usize = 8192;

/// All sockets of the application that lead to the target.
#[derive(Debug, Default)]
pub(crate) struct Connections {
    sockets: Mutex<HashMap<u64, Socket>>,
    /// The sockets that failed last, and their attempts. Locked while the sockets are.
    failed: Mutex<VecDeque<(u64, u64)>>,
    /// Whether there ever was one, and one for datagrams, so that programs without pay nothing.
    any: AtomicBool,
    any_datagrams: AtomicBool,
    own: OwnSockets,
    /// Held while a number for a datagram socket is chosen.
    placing: Mutex<()>,
}

impl Connections {
    fn set(&self, cookie: u64, socket: Socket) {
        lock(&self.sockets).insert(cookie, socket);
        self.any.store(true, Ordering::Relaxed);
    }

    /// What came of an attempt. False if the application has given it up and does something else with its socket.
    fn complete(&self, cookie: u64, attempt: u64, result: Option<Socket>) -> bool {
        let mut sockets = lock(&self.sockets);
        let current = matches!(sockets.get(&cookie), Some(Socket::Connecting(known)) if known.number() == attempt);
        if current {
            let is_failure = matches!(result, Some(Socket::Failed(..)));
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

    fn forget_old_failure(&self, sockets: &mut HashMap<u64, Socket>, newest: (u64, u64)) {
        let mut failed = lock(&self.failed);
        failed.push_back(newest);
        if failed.len() > FAILURES
            && let Some((cookie, attempt)) = failed.pop_front()
            && matches!(sockets.get(&cookie), Some(Socket::Failed(_, known)) if known.number() == attempt)
        {
            sockets.remove(&cookie);
        }
    }

    /// The connection that an attempt made has ended.
    fn end(&self, cookie: u64, attempt: u64) {
        let mut sockets = lock(&self.sockets);
        if matches!(sockets.get(&cookie), Some(Socket::Connected { attempt: known, .. }) if *known == attempt)
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

    /// Whether a socket of the application takes what is sent to an address of this machine.
    pub(crate) fn has_own(&self, transport: Transport, address: SocketAddr) -> bool {
        self.own.has(transport, address)
    }

    fn forget(&self, cookie: u64) {
        if self.any.load(Ordering::Relaxed) {
            lock(&self.sockets).remove(&cookie);
        }
    }

    /// The application ends the association of a socket, or connects it to something local. Returns the attempt that
    /// was under way.
    fn disconnect(&self, cookie: u64) -> Option<Arc<Attempt>> {
        if !self.any.load(Ordering::Relaxed) {
            return None;
        }
        let mut sockets = lock(&self.sockets);
        if let Some(Socket::Datagrams(datagrams)) = sockets.get_mut(&cookie) {
            datagrams.connected = None;
            return None;
        }
        match sockets.remove(&cookie) {
            Some(Socket::Connecting(attempt)) => Some(attempt),
            _ => None,
        }
    }

    /// Looks at a socket, if it is known.
    fn with<T>(&self, cookie: u64, look: impl FnOnce(&mut Socket) -> T) -> Option<T> {
        lock(&self.sockets).get_mut(&cookie).map(look)
    }

    fn add_peer(&self, cookie: u64, peer: Peer, connected: bool) {
        let mut sockets = lock(&self.sockets);
        let socket = sockets
            .entry(cookie)
            .or_insert_with(|| Socket::Datagrams(Datagrams::default()));
        if !matches!(socket, Socket::Datagrams(_)) {
            *socket = Socket::Datagrams(Datagrams::default());
        }
        if let Socket::Datagrams(datagrams) = socket {
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

    /// What the application sees as its own end of a connected datagram socket.
    fn set_local(&self, cookie: u64, local: SocketAddr) {
        self.with(cookie, |socket| {
            if let Socket::Datagrams(datagrams) = socket
                && let Some(ends) = &mut datagrams.connected
            {
                ends.local = Some(local);
            }
        });
    }

    /// The host has let go of a peer.
    fn remove_peer(&self, cookie: u64, relay: SocketAddr) {
        let mut sockets = lock(&self.sockets);
        if let Some(Socket::Datagrams(datagrams)) = sockets.get_mut(&cookie) {
            datagrams.peers.retain(|known| known.relay != relay);
            if datagrams.peers.is_empty() {
                sockets.remove(&cookie);
            }
        }
    }

    fn datagrams(&self, cookie: u64) -> Option<Datagrams> {
        self.with(cookie, |socket| match socket {
            Socket::Datagrams(datagrams) => Some(datagrams.clone()),
            _ => None,
        })
        .flatten()
    }
}

/// Where a connection or datagram goes.
fn choose(
    supervisor: &Supervisor,
    transport: Transport,
    destination: &Destination,
) -> DestinationChoice {
    if !supervisor.catch.outgoing {
        return DestinationChoice::Local;
    }
    let choice = supervisor.host.choose_destination(transport, destination);
    match destination {
        Destination::Internet(address)
            if choice != DestinationChoice::Local
                && (supervisor.connections.own.is_behind(transport, *address)
                    || supervisor.incoming.is_ours(transport, *address)) =>
        {
            DestinationChoice::Local
        }
        _ => choice,
    }
}

/// What a socket is, if it is one that can lead to the target.
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
    fn failures_that_nobody_asks_for_are_forgotten() {
        let connections = Arc::new(Connections::default());
        let caller = Caller {
            thread: 0,
            number: 0,
        };
        let destination: SocketAddr = "198.51.100.7:7".parse().unwrap();
        let attempt = |cookie: u64| {
            let socket = socket::create(libc::AF_INET, libc::SOCK_STREAM, 0).unwrap();
            let destination = Destination::Internet(destination);
            let wanted = (Transport::Tcp, destination, Purpose::Connect);
            let attempt = Attempt::new(&connections, wanted, socket, caller).unwrap();
            connections.set(cookie, Socket::Connecting(Arc::clone(&attempt)));
            attempt
        };
        let fail = |cookie: u64| {
            let attempt = attempt(cookie);
            // So that it does not keep the socket.
            attempt.cancel();
            let number = attempt.number();
            let failed = Socket::Failed(Errno::ECONNREFUSED, attempt);
            assert!(connections.complete(cookie, number, Some(failed)));
        };
        let count = FAILURES as u64;
        (0..count).for_each(fail);
        // This one is used again, and is no failure any more.
        let _again = attempt(0);
        (count..count + 2).for_each(fail);
        assert_eq!(lock(&connections.sockets).len(), FAILURES + 1);
        let is_known = |cookie| connections.with(cookie, |_| ()).is_some();
        assert_eq!([0, 1, 2].map(is_known), [true, false, true]);
    }
}
