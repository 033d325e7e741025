//! Where a socket is bound on this machine when it cannot be where the application wants it.
//!
//! The target's port may be taken here, be one that only root may use, or belong to an address that this machine does not
//! have. The application does not care where on this machine it is reached, so it gets another port and sees the one that
//! it asked for.

use std::collections::{HashMap, HashSet};
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};
use std::os::fd::{AsFd, OwnedFd};
use std::sync::Mutex;

use crate::Errno;
use crate::outgoing::{Transport, domain_of, encode_internet, internet};
use crate::socket_table::{self, TCP_TABLES};
use crate::sys::socket;
use crate::workers::lock;

/// Sockets that are remembered.
const MANY: usize = 1024;

#[derive(Debug, Default)]
struct Table {
    /// What the application takes for a socket's address, by cookie, and in the order of binding.
    known_as: HashMap<u64, (u64, SocketAddr)>,
    number: u64,
    /// Where an address was found to be on this machine. Sockets that share a port must be at the same.
    moved: HashMap<(Transport, SocketAddr), SocketAddr>,
    /// Addresses of TCP to which the application has bound sockets, where it asked for it.
    used: HashSet<SocketAddr>,
}

#[derive(Debug, Default)]
pub(super) struct Places(Mutex<Table>);

/// How a socket was bound.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Bound {
    AsAsked,
    /// To another address, here for the first time.
    Moved(SocketAddr),
    /// To another address, as before.
    MovedAgain,
}

impl Places {
    /// What the application takes for the address of a socket, if it is another than the kernel says.
    pub(super) fn known_as(&self, cookie: u64) -> Option<SocketAddr> {
        let table = lock(&self.0);
        table.known_as.get(&cookie).map(|(_, address)| *address)
    }

    /// Where on this machine an address is that the application takes for its own.
    pub(super) fn moved(&self, transport: Transport, asked: SocketAddr) -> Option<SocketAddr> {
        let table = lock(&self.0);
        let same = |known: &SocketAddr| {
            known.port() == asked.port()
                && (known.ip() == asked.ip() || known.ip().is_unspecified())
        };
        let mut moved = table.moved.iter();
        moved
            .find(|((of, known), _)| *of == transport && same(known))
            .map(|(_, real)| *real)
    }

    /// Binds the application's socket. `instead` says whether another port is wanted for it, `is_own` whether a port is taken by the application itself, which then gets
    /// the error that it would get.
    pub(super) fn bind(
        &self,
        theirs: &OwnedFd,
        transport: Transport,
        bytes: &[u8],
        instead: impl Fn(SocketAddr) -> Option<u16>,
        is_own: impl Fn(SocketAddr) -> bool,
    ) -> Result<Bound, Errno> {
        let asked = internet(bytes).ok_or(Errno::EAFNOSUPPORT)?;
        let domain = domain_of(theirs.as_fd())?;
        let cookie = socket::cookie(theirs.as_fd())?;
        let key = (transport, asked);
        let known = lock(&self.0).moved.get(&key).copied();
        if let Some(real) = known {
            match socket::bind(theirs.as_fd(), &encode_internet(real, domain)) {
                Ok(()) => {
                    self.remember(cookie, asked);
                    return Ok(Bound::MovedAgain);
                }
                // Somebody else has taken it meanwhile, so another one is looked for.
                Err(Errno::EADDRINUSE) if !is_own(real) => {
                    lock(&self.0).moved.remove(&key);
                }
                Err(errno) => return Err(errno),
            }
        }
        if let Some(port) = instead(asked) {
            let real = SocketAddr::new(asked.ip(), port);
            socket::bind(theirs.as_fd(), &encode_internet(real, domain))?;
            lock(&self.0).moved.insert(key, real);
            self.remember(cookie, asked);
            return Ok(Bound::MovedAgain);
        }
        let failure = match self.bind_as_asked(theirs, transport, bytes, asked) {
            Ok(()) => return Ok(Bound::AsAsked),
            Err(Errno::EADDRINUSE) if is_own(asked) => return Err(Errno::EADDRINUSE),
            Err(errno @ (Errno::EADDRINUSE | Errno::EACCES | Errno::EADDRNOTAVAIL)) => errno,
            Err(errno) => return Err(errno),
        };
        let ip = match (failure, asked.ip()) {
            (Errno::EADDRNOTAVAIL, IpAddr::V4(_)) => Ipv4Addr::LOCALHOST.into(),
            (Errno::EADDRNOTAVAIL, IpAddr::V6(_)) => Ipv6Addr::LOCALHOST.into(),
            (_, ip) => ip,
        };
        let ports = match failure {
            Errno::EADDRNOTAVAIL => vec![asked.port(), 0],
            _ => vec![0],
        };
        let bind = |port: u16| {
            let address = encode_internet(SocketAddr::new(ip, port), domain);
            socket::bind(theirs.as_fd(), &address)
        };
        if !ports.into_iter().any(|port| bind(port).is_ok()) {
            return Err(failure);
        }
        let real = socket::local_address(theirs.as_fd())?;
        let real = internet(&real).ok_or(Errno::EAFNOSUPPORT)?;
        lock(&self.0).moved.insert(key, real);
        self.remember(cookie, asked);
        Ok(Bound::Moved(real))
    }

    /// Binds a socket where the application wants it, unless somebody else is there.
    ///
    /// With `SO_REUSEADDR` the kernel lets two programs bind to the same port, and refuses the one that is second to listen.
    /// Then it is too late to be anywhere else. So the first socket is bound without, as long as that is not in the way of a
    /// program that is started again: what is left of its connections has the port, too.
    fn bind_as_asked(
        &self,
        theirs: &OwnedFd,
        transport: Transport,
        bytes: &[u8],
        asked: SocketAddr,
    ) -> Result<(), Errno> {
        let bind = || socket::bind(theirs.as_fd(), bytes);
        let shares = socket::option(theirs.as_fd(), libc::SOL_SOCKET, libc::SO_REUSEADDR);
        let is_first = !lock(&self.0).used.contains(&asked);
        if transport != Transport::Tcp || shares != Ok(1) || !is_first {
            return bind();
        }
        let set_shared = |shared| {
            let option = libc::SO_REUSEADDR;
            socket::set_option(theirs.as_fd(), libc::SOL_SOCKET, option, shared)
        };
        set_shared(0)?;
        let mut bound = bind();
        set_shared(1)?;
        if bound == Err(Errno::EADDRINUSE) && has_connections(asked.port()) {
            bound = bind();
        }
        bound?;
        let mut table = lock(&self.0);
        if table.used.len() >= MANY {
            table.used.clear();
        }
        table.used.insert(asked);
        Ok(())
    }

    fn remember(&self, cookie: u64, address: SocketAddr) {
        let mut table = lock(&self.0);
        table.number += 1;
        let number = table.number;
        table.known_as.insert(cookie, (number, address));
        if table.known_as.len() > MANY {
            let old = number.saturating_sub(MANY as u64 / 2);
            table.known_as.retain(|_, (number, _)| *number > old);
        }
    }
}

/// Whether there are connections of a port, or what is left of them.
fn has_connections(port: u16) -> bool {
    let sockets = socket_table::entries(&TCP_TABLES);
    let mut connections = sockets.iter().filter(|entry| !entry.listens);
    connections.any(|entry| entry.local.port() == port)
}

#[cfg(test)]
mod tests {
    use std::net::{TcpListener, TcpStream};
    use std::sync::atomic::{AtomicU16, Ordering};

    use super::*;

    /// A socket with `SO_REUSEADDR`, as servers have it.
    fn shared() -> OwnedFd {
        let socket = socket::create(libc::AF_INET, libc::SOCK_STREAM, 0).unwrap();
        socket::set_option(socket.as_fd(), libc::SOL_SOCKET, libc::SO_REUSEADDR, 1).unwrap();
        socket
    }

    /// Binds a new socket as the application would, and says how and where.
    fn bind(places: &Places, asked: SocketAddr) -> (Bound, SocketAddr) {
        let theirs = socket::create(libc::AF_INET, libc::SOCK_STREAM, 0).unwrap();
        bind_this(places, &theirs, asked)
    }

    fn bind_this(places: &Places, theirs: &OwnedFd, asked: SocketAddr) -> (Bound, SocketAddr) {
        let bytes = encode_internet(asked, libc::AF_INET);
        let bound = places.bind(theirs, Transport::Tcp, &bytes, |_| None, |_| false);
        let bound = bound.unwrap();
        let cookie = socket::cookie(theirs.as_fd()).unwrap();
        let is_moved = bound != Bound::AsAsked;
        assert_eq!(places.known_as(cookie), is_moved.then_some(asked));
        let real = socket::local_address(theirs.as_fd()).unwrap();
        (bound, internet(&real).unwrap())
    }

    #[test]
    fn a_place_that_somebody_else_has_taken_is_looked_for_anew() {
        let places = Places::default();
        let taken = TcpListener::bind("127.0.0.1:0").unwrap();
        let asked = taken.local_addr().unwrap();
        let (first, elsewhere) = bind(&places, asked);
        assert_eq!(first, Bound::Moved(elsewhere));
        assert_eq!(bind(&places, asked), (Bound::MovedAgain, elsewhere));
        let also_taken = TcpListener::bind(elsewhere).unwrap();
        let (third, another) = bind(&places, asked);
        assert_eq!(third, Bound::Moved(another));
        assert!(another != asked && another != elsewhere);
        assert_eq!(places.moved(Transport::Tcp, asked), Some(another));
        drop((taken, also_taken));
        assert!(TcpStream::connect(another).is_err());
    }

    /// Not one of those that connections get, as other tests make many of these.
    fn free_address() -> SocketAddr {
        static NEXT: AtomicU16 = AtomicU16::new(0);
        let first = 20_000 + (std::process::id() % 5_000) as u16;
        loop {
            let port = first + NEXT.fetch_add(1, Ordering::Relaxed);
            let address = SocketAddr::new(Ipv4Addr::LOCALHOST.into(), port);
            if TcpListener::bind(address).is_ok() {
                return address;
            }
        }
    }

    #[test]
    fn two_programs_that_share_addresses_do_not_get_the_same() {
        let (one, other) = (Places::default(), Places::default());
        let asked = free_address();
        let (first, second, third) = (shared(), shared(), shared());
        assert_eq!(bind_this(&one, &first, asked), (Bound::AsAsked, asked));
        let (bound, elsewhere) = bind_this(&other, &second, asked);
        assert_eq!(bound, Bound::Moved(elsewhere));
        // A program may use an address twice, and what it asked for stays set.
        assert_eq!(bind_this(&one, &third, asked), (Bound::AsAsked, asked));
        for socket in [&first, &second, &third] {
            let shares = socket::option(socket.as_fd(), libc::SOL_SOCKET, libc::SO_REUSEADDR);
            assert_eq!(shares, Ok(1));
        }
        drop(third);
        for socket in [&first, &second] {
            socket::listen(socket.as_fd(), 1).unwrap();
        }
    }

    #[test]
    fn a_program_that_is_started_again_gets_its_address() {
        let asked = free_address();
        let listener = shared();
        socket::bind(listener.as_fd(), &encode_internet(asked, libc::AF_INET)).unwrap();
        socket::listen(listener.as_fd(), 1).unwrap();
        let client = TcpStream::connect(asked).unwrap();
        // Who closes first has something left of the connection.
        drop(TcpListener::from(listener).accept().unwrap());
        drop(client);
        assert!(has_connections(asked.port()));
        let bound = bind_this(&Places::default(), &shared(), asked);
        assert_eq!(bound, (Bound::AsAsked, asked));
    }
}
