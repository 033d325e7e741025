//! Sockets that are bound to another local address than the application requested.
//!
//! The requested port may be in use on this machine, be privileged, or belong to an address that this machine does not
//! have. The application does not care about its local address, so it gets another port and sees the requested one.

use std::collections::{HashMap, HashSet};
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};
use std::os::fd::{AsFd, OwnedFd};

use parking_lot::Mutex;

use crate::Errno;
use crate::outgoing::{Transport, domain_of, encode_internet, internet};
use crate::socket_table::{self, TCP_TABLES};
use crate::sys::socket;

/// How many sockets are recorded.
const MAX_BINDINGS: usize = 1024;

#[derive(Debug, Default)]
struct Table {
    /// The address that the application sees for a socket, by cookie, with a sequence number.
    visible_addresses: HashMap<u64, (u64, SocketAddr)>,
    number: u64,
    /// The actual address for a requested one. Sockets that share a port must have the same actual address.
    moved: HashMap<(Transport, SocketAddr), SocketAddr>,
    /// TCP addresses to which the application has bound sockets as requested.
    bound_as_requested: HashSet<SocketAddr>,
}

#[derive(Debug, Default)]
pub(super) struct PortBindings(Mutex<Table>);

/// How a socket was bound.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum BindOutcome {
    AsRequested,
    /// To another address, for the first time.
    Moved(SocketAddr),
    /// To another address that was chosen before.
    MovedAgain,
}

impl PortBindings {
    /// The address that the application sees for a socket, if it differs from the kernel's.
    pub(super) fn visible_address(&self, cookie: u64) -> Option<SocketAddr> {
        let table = self.0.lock();
        table
            .visible_addresses
            .get(&cookie)
            .map(|(_, address)| *address)
    }

    /// The actual local address for an address that the application uses.
    pub(super) fn actual_address(
        &self,
        transport: Transport,
        requested: SocketAddr,
    ) -> Option<SocketAddr> {
        let table = self.0.lock();
        let same = |bound: &SocketAddr| {
            bound.port() == requested.port()
                && (bound.ip() == requested.ip() || bound.ip().is_unspecified())
        };
        let mut moved = table.moved.iter();
        moved
            .find(|((of, bound), _)| *of == transport && same(bound))
            .map(|(_, actual)| *actual)
    }

    /// Binds the application's socket. `choose_port` returns another port if the host wants one. `is_own` tells whether
    /// the application itself uses an address; it then gets the native error.
    pub(super) fn bind(
        &self,
        theirs: &OwnedFd,
        transport: Transport,
        bytes: &[u8],
        choose_port: impl Fn(SocketAddr) -> Option<u16>,
        is_own: impl Fn(SocketAddr) -> bool,
    ) -> Result<BindOutcome, Errno> {
        let requested = internet(bytes).ok_or(Errno::EAFNOSUPPORT)?;
        let domain = domain_of(theirs.as_fd())?;
        let cookie = socket::cookie(theirs.as_fd())?;
        let key = (transport, requested);
        let chosen_before = self.0.lock().moved.get(&key).copied();
        if let Some(actual) = chosen_before {
            match socket::bind(theirs.as_fd(), &encode_internet(actual, domain)) {
                Ok(()) => {
                    self.record_visible(cookie, requested);
                    return Ok(BindOutcome::MovedAgain);
                }
                // Another program has taken it meanwhile, so a new one is chosen.
                Err(Errno::EADDRINUSE) if !is_own(actual) => {
                    self.0.lock().moved.remove(&key);
                }
                Err(errno) => return Err(errno),
            }
        }
        if let Some(port) = choose_port(requested) {
            let actual = SocketAddr::new(requested.ip(), port);
            socket::bind(theirs.as_fd(), &encode_internet(actual, domain))?;
            self.0.lock().moved.insert(key, actual);
            self.record_visible(cookie, requested);
            return Ok(BindOutcome::MovedAgain);
        }
        let failure = match self.bind_as_requested(theirs, transport, bytes, requested) {
            Ok(()) => return Ok(BindOutcome::AsRequested),
            Err(Errno::EADDRINUSE) if is_own(requested) => return Err(Errno::EADDRINUSE),
            Err(errno @ (Errno::EADDRINUSE | Errno::EACCES | Errno::EADDRNOTAVAIL)) => errno,
            Err(errno) => return Err(errno),
        };
        let ip = match (failure, requested.ip()) {
            (Errno::EADDRNOTAVAIL, IpAddr::V4(_)) => Ipv4Addr::LOCALHOST.into(),
            (Errno::EADDRNOTAVAIL, IpAddr::V6(_)) => Ipv6Addr::LOCALHOST.into(),
            (_, ip) => ip,
        };
        let ports = match failure {
            Errno::EADDRNOTAVAIL => vec![requested.port(), 0],
            _ => vec![0],
        };
        let bind = |port: u16| {
            let address = encode_internet(SocketAddr::new(ip, port), domain);
            socket::bind(theirs.as_fd(), &address)
        };
        if !ports.into_iter().any(|port| bind(port).is_ok()) {
            return Err(failure);
        }
        let actual = socket::local_address(theirs.as_fd())?;
        let actual = internet(&actual).ok_or(Errno::EAFNOSUPPORT)?;
        self.0.lock().moved.insert(key, actual);
        self.record_visible(cookie, requested);
        Ok(BindOutcome::Moved(actual))
    }

    /// Binds a socket to the requested address, unless another program uses it.
    ///
    /// With `SO_REUSEADDR` the kernel lets two programs bind to the same port, and fails the second `listen`. Then it
    /// is too late to choose another port. So the first socket is bound without the option, unless that fails only
    /// because of remaining connections: a program that is restarted must get its port although connections of its
    /// previous run still use it.
    fn bind_as_requested(
        &self,
        theirs: &OwnedFd,
        transport: Transport,
        bytes: &[u8],
        requested: SocketAddr,
    ) -> Result<(), Errno> {
        let bind = || socket::bind(theirs.as_fd(), bytes);
        let shares = socket::option(theirs.as_fd(), libc::SOL_SOCKET, libc::SO_REUSEADDR);
        let is_first = !self.0.lock().bound_as_requested.contains(&requested);
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
        if bound == Err(Errno::EADDRINUSE) && has_connections(requested.port()) {
            bound = bind();
        }
        bound?;
        let mut table = self.0.lock();
        if table.bound_as_requested.len() >= MAX_BINDINGS {
            table.bound_as_requested.clear();
        }
        table.bound_as_requested.insert(requested);
        Ok(())
    }

    fn record_visible(&self, cookie: u64, address: SocketAddr) {
        let mut table = self.0.lock();
        table.number += 1;
        let number = table.number;
        table.visible_addresses.insert(cookie, (number, address));
        if table.visible_addresses.len() > MAX_BINDINGS {
            let old = number.saturating_sub(MAX_BINDINGS as u64 / 2);
            table
                .visible_addresses
                .retain(|_, (number, _)| *number > old);
        }
    }
}

/// Whether there are connections on a port, including those in `TIME_WAIT`.
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

    /// A socket with `SO_REUSEADDR`, like that of a server.
    fn shared() -> OwnedFd {
        let socket = socket::create(libc::AF_INET, libc::SOCK_STREAM, 0).unwrap();
        socket::set_option(socket.as_fd(), libc::SOL_SOCKET, libc::SO_REUSEADDR, 1).unwrap();
        socket
    }

    /// Binds a new socket like the application. Returns the outcome and the actual address.
    fn bind(bindings: &PortBindings, requested: SocketAddr) -> (BindOutcome, SocketAddr) {
        let theirs = socket::create(libc::AF_INET, libc::SOCK_STREAM, 0).unwrap();
        bind_this(bindings, &theirs, requested)
    }

    fn bind_this(
        bindings: &PortBindings,
        theirs: &OwnedFd,
        requested: SocketAddr,
    ) -> (BindOutcome, SocketAddr) {
        let bytes = encode_internet(requested, libc::AF_INET);
        let bound = bindings.bind(theirs, Transport::Tcp, &bytes, |_| None, |_| false);
        let bound = bound.unwrap();
        let cookie = socket::cookie(theirs.as_fd()).unwrap();
        let is_moved = bound != BindOutcome::AsRequested;
        assert_eq!(
            bindings.visible_address(cookie),
            is_moved.then_some(requested)
        );
        let actual = socket::local_address(theirs.as_fd()).unwrap();
        (bound, internet(&actual).unwrap())
    }

    #[test]
    fn taken_actual_address_is_replaced() {
        let bindings = PortBindings::default();
        let taken = TcpListener::bind("127.0.0.1:0").unwrap();
        let requested = taken.local_addr().unwrap();
        let (first, elsewhere) = bind(&bindings, requested);
        assert_eq!(first, BindOutcome::Moved(elsewhere));
        assert_eq!(
            bind(&bindings, requested),
            (BindOutcome::MovedAgain, elsewhere)
        );
        let also_taken = TcpListener::bind(elsewhere).unwrap();
        let (third, another) = bind(&bindings, requested);
        assert_eq!(third, BindOutcome::Moved(another));
        assert!(another != requested && another != elsewhere);
        assert_eq!(
            bindings.actual_address(Transport::Tcp, requested),
            Some(another)
        );
        drop((taken, also_taken));
        assert!(TcpStream::connect(another).is_err());
    }

    /// Outside the ephemeral port range, because other tests open many connections.
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
    fn two_programs_with_reuseaddr_get_different_ports() {
        let (one, other) = (PortBindings::default(), PortBindings::default());
        let requested = free_address();
        let (first, second, third) = (shared(), shared(), shared());
        assert_eq!(
            bind_this(&one, &first, requested),
            (BindOutcome::AsRequested, requested)
        );
        let (bound, elsewhere) = bind_this(&other, &second, requested);
        assert_eq!(bound, BindOutcome::Moved(elsewhere));
        // A program may use an address twice, and its socket option is preserved.
        assert_eq!(
            bind_this(&one, &third, requested),
            (BindOutcome::AsRequested, requested)
        );
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
    fn restarted_program_gets_its_address() {
        let requested = free_address();
        let listener = shared();
        socket::bind(listener.as_fd(), &encode_internet(requested, libc::AF_INET)).unwrap();
        socket::listen(listener.as_fd(), 1).unwrap();
        let client = TcpStream::connect(requested).unwrap();
        // The side that closes first keeps the connection in `TIME_WAIT`.
        drop(TcpListener::from(listener).accept().unwrap());
        drop(client);
        assert!(has_connections(requested.port()));
        let bound = bind_this(&PortBindings::default(), &shared(), requested);
        assert_eq!(bound, (BindOutcome::AsRequested, requested));
    }
}
