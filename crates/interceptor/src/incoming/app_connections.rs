//! Our ends of connections to the application, by their local address.
//!
//! An address stays registered until the kernel reports that the application's end is closed: that end may be in the
//! application's accept queue, or in use, long after ours was closed.

use std::collections::{HashMap, HashSet};
use std::net::{IpAddr, Ipv4Addr, SocketAddr};
use std::os::fd::{AsFd, OwnedFd};
use std::sync::Arc;

use parking_lot::Mutex;

use crate::Errno;
use crate::outgoing::{Transport, encode_internet, internet};
use crate::socket_table::{self, TCP_TABLES};
use crate::sys::socket;

/// When this many of our ends are closed, their connections are checked.
const CLEANUP_THRESHOLD: usize = 64;
/// How many addresses are tried when one is in use.
const MAX_ATTEMPTS: u32 = 16;

/// The client and the server address of a connection.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct ConnectionAddresses {
    pub(super) client: SocketAddr,
    pub(super) server: SocketAddr,
}

type Key = (Transport, SocketAddr);

#[derive(Debug)]
struct Entry {
    number: u64,
    /// `None` for an empty connection that only wakes the application.
    addresses: Option<ConnectionAddresses>,
    /// The address of the application's end.
    application: SocketAddr,
    /// The cookie of the application's end, once ours is closed: our address may then be reused.
    cookie: Option<u64>,
}

#[derive(Debug, Default)]
struct Table {
    entries: HashMap<Key, Entry>,
    /// Relay sockets that represent a client, by the application's port and the client's address.
    relays: HashMap<(u16, SocketAddr), SocketAddr>,
    /// Connections whose end on our side is closed, but not the application's.
    closed_here: Vec<(Key, u64)>,
    recheck_at: usize,
    number: u64,
}

#[derive(Debug, Default)]
pub(super) struct AppConnections(Mutex<Table>);

/// Keeps a client's address registered; dropping it means that our end of the connection is closed.
#[derive(Debug)]
pub struct IncomingRegistration {
    app_connections: Arc<AppConnections>,
    key: Key,
    number: u64,
}

impl Drop for IncomingRegistration {
    fn drop(&mut self) {
        self.app_connections.end(self.key, self.number);
    }
}

impl AppConnections {
    /// Opens a socket of ours and connects it to the application's. The connection may still be in progress.
    pub(super) fn open(
        self: &Arc<Self>,
        transport: Transport,
        application: SocketAddr,
        addresses: Option<ConnectionAddresses>,
    ) -> Result<(OwnedFd, IncomingRegistration), Errno> {
        let mut failure = Errno::EADDRNOTAVAIL;
        for _ in 0..MAX_ATTEMPTS {
            let (ours, address) = self.bind(transport, application)?;
            // Registered before it is connected: the application may accept it immediately.
            let registration = self.add((transport, address), application, addresses);
            let domain = domain_for(application);
            match socket::connect(ours.as_fd(), &encode_internet(application, domain)) {
                Ok(()) | Err(Errno::EINPROGRESS) => return Ok((ours, registration)),
                // There was a connection between the same two addresses a moment ago.
                Err(errno @ (Errno::EADDRNOTAVAIL | Errno::EADDRINUSE)) => failure = errno,
                Err(errno) => return Err(errno),
            }
        }
        Err(failure)
    }

    /// Creates a socket of ours, bound to an address from which the application's socket is reachable.
    fn bind(
        &self,
        transport: Transport,
        application: SocketAddr,
    ) -> Result<(OwnedFd, SocketAddr), Errno> {
        let kind = match transport {
            Transport::Udp => libc::SOCK_DGRAM,
            _ => libc::SOCK_STREAM,
        };
        let domain = domain_for(application);
        let ours = socket::create(domain, kind | libc::SOCK_NONBLOCK, 0)?;
        if transport == Transport::Tcp {
            let _ = socket::set_option(ours.as_fd(), libc::IPPROTO_TCP, libc::TCP_NODELAY, 1);
        }
        let number = self.next_number();
        let bind = |ip| {
            let address = encode_internet(SocketAddr::new(ip, 0), domain);
            socket::bind(ours.as_fd(), &address)
        };
        match application.ip() {
            IpAddr::V4(ip) => bind(own_address(number)).or_else(|_| bind(ip.into()))?,
            ip @ IpAddr::V6(_) => bind(ip)?,
        }
        let address = socket::local_address(ours.as_fd())?;
        let address = internet(&address).ok_or(Errno::EAFNOSUPPORT)?;
        Ok((ours, address))
    }

    fn next_number(&self) -> u64 {
        let mut table = self.0.lock();
        table.number += 1;
        table.number
    }

    fn add(
        self: &Arc<Self>,
        key: Key,
        application: SocketAddr,
        addresses: Option<ConnectionAddresses>,
    ) -> IncomingRegistration {
        let mut table = self.0.lock();
        table.number += 1;
        let number = table.number;
        let entry = Entry {
            number,
            addresses,
            application,
            cookie: None,
        };
        table.entries.insert(key, entry);
        if let (Transport::Udp, Some(addresses)) = (key.0, addresses) {
            let of_client = (application.port(), canonical(addresses.client));
            table.relays.insert(of_client, key.1);
        }
        drop(table);
        IncomingRegistration {
            app_connections: Arc::clone(self),
            key,
            number,
        }
    }

    /// The addresses of a connection by the address of our socket. `None` if the socket is not ours, `Some(None)` for
    /// an empty connection. `cookie` identifies the application's socket at the other end.
    pub(super) fn find(
        &self,
        transport: Transport,
        address: SocketAddr,
        cookie: impl FnOnce() -> Option<u64>,
    ) -> Option<Option<ConnectionAddresses>> {
        let table = self.0.lock();
        let entry = table.entries.get(&(transport, address))?;
        let is_other = entry
            .cookie
            .is_some_and(|recorded| cookie() != Some(recorded));
        (!is_other).then_some(entry.addresses)
    }

    pub(super) fn relay(&self, port: u16, client: SocketAddr) -> Option<SocketAddr> {
        let table = self.0.lock();
        table.relays.get(&(port, canonical(client))).copied()
    }

    /// Our end is closed. The kernel is queried without holding the lock.
    fn end(&self, key: Key, number: u64) {
        let application = {
            let mut table = self.0.lock();
            match table.entry(key, number) {
                None => return,
                Some(_) if key.0 == Transport::Udp => return table.remove(key, number),
                Some(entry) => entry.application,
            }
        };
        let found = socket_table::connection_between(application, key.1);
        let mut table = self.0.lock();
        let Some(entry) = table.entry(key, number) else {
            return;
        };
        match found {
            Ok(None) => return table.remove(key, number),
            Ok(Some(found)) => entry.cookie = Some(found.cookie),
            Err(_) => {}
        }
        table.closed_here.push((key, number));
        if table.closed_here.len() >= table.recheck_at.max(CLEANUP_THRESHOLD) {
            let closed_here = table.take_closed();
            drop(table);
            let (open, closed) = split(closed_here);
            self.0.lock().finish_recheck(open, closed);
        }
    }
}

/// Splits into connections that the application still has, and those that it has closed as well.
fn split(closed_here: Vec<ClosedConnection>) -> (Vec<ClosedConnection>, Vec<ClosedConnection>) {
    let mut table: Option<HashSet<(SocketAddr, SocketAddr)>> = None;
    closed_here.into_iter().partition(|closed_here| {
        let (application, ours) = (closed_here.application, closed_here.key.1);
        match socket_table::connection_between(application, ours) {
            Ok(found) => found.is_some(),
            // The kernel may not support this query; its table is slow but always available.
            Err(_) => table
                .get_or_insert_with(connections)
                .contains(&(application, ours)),
        }
    })
}

/// A connection whose end on our side is closed.
struct ClosedConnection {
    key: Key,
    number: u64,
    application: SocketAddr,
}

impl Table {
    fn entry(&mut self, key: Key, number: u64) -> Option<&mut Entry> {
        let entry = self.entries.get_mut(&key)?;
        (entry.number == number).then_some(entry)
    }

    fn remove(&mut self, key: Key, number: u64) {
        let Some(entry) = self.entry(key, number) else {
            return;
        };
        let port = entry.application.port();
        let client = entry.addresses.map(|addresses| canonical(addresses.client));
        self.entries.remove(&key);
        if let Some(client) = client
            && self.relays.get(&(port, client)) == Some(&key.1)
        {
            self.relays.remove(&(port, client));
        }
    }

    fn take_closed(&mut self) -> Vec<ClosedConnection> {
        // No other thread checks meanwhile.
        self.recheck_at = usize::MAX;
        let closed_here = std::mem::take(&mut self.closed_here).into_iter();
        closed_here
            .filter_map(|(key, number)| {
                let application = self.entry(key, number)?.application;
                Some(ClosedConnection {
                    key,
                    number,
                    application,
                })
            })
            .collect()
    }

    fn finish_recheck(&mut self, open: Vec<ClosedConnection>, closed: Vec<ClosedConnection>) {
        for closed_here in closed {
            self.remove(closed_here.key, closed_here.number);
        }
        let open = open
            .into_iter()
            .map(|closed_here| (closed_here.key, closed_here.number));
        self.closed_here.extend(open);
        self.recheck_at = self.closed_here.len() * 2;
    }
}

/// All TCP connections of this machine, by both addresses.
fn connections() -> HashSet<(SocketAddr, SocketAddr)> {
    let entries = socket_table::entries(&TCP_TABLES).into_iter();
    entries
        .filter(|entry| entry.inode != 0)
        .map(|entry| (canonical(entry.local), canonical(entry.peer)))
        .collect()
}

/// A loopback address that no other program uses.
fn own_address(number: u64) -> IpAddr {
    let [.., high, middle, low] = number.to_be_bytes();
    Ipv4Addr::new(127, 64 | high & 63, middle, low).into()
}

/// Normalizes IPv4-mapped addresses.
fn canonical(address: SocketAddr) -> SocketAddr {
    SocketAddr::new(address.ip().to_canonical(), address.port())
}

fn domain_for(address: SocketAddr) -> i32 {
    match address {
        SocketAddr::V4(_) => libc::AF_INET,
        SocketAddr::V6(_) => libc::AF_INET6,
    }
}

#[cfg(test)]
mod tests {
    use std::net::{TcpListener, TcpStream, UdpSocket};

    use super::*;

    fn addresses(port: u16) -> ConnectionAddresses {
        ConnectionAddresses {
            client: SocketAddr::from(([203, 0, 113, 9], port)),
            server: SocketAddr::from(([10, 1, 2, 3], 80)),
        }
    }

    fn sizes(app_connections: &AppConnections) -> (usize, usize, usize) {
        let table = app_connections.0.lock();
        (
            table.entries.len(),
            table.relays.len(),
            table.closed_here.len(),
        )
    }

    /// The registered addresses of an accepted connection.
    fn behind(
        app_connections: &AppConnections,
        accepted: &TcpStream,
    ) -> Option<Option<ConnectionAddresses>> {
        let peer = accepted.peer_addr().unwrap();
        app_connections.find(Transport::Tcp, peer, || {
            socket::cookie(accepted.as_fd()).ok()
        })
    }

    #[test]
    fn ten_thousand_connections_are_cleaned_up() {
        let app_connections = Arc::new(AppConnections::default());
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let application = listener.local_addr().unwrap();
        let open = |port| app_connections.open(Transport::Tcp, application, Some(addresses(port)));
        for _ in 0..100 {
            let ours: Vec<_> = (0..100).map(|port| open(port).unwrap()).collect();
            let theirs: Vec<_> = ours.iter().map(|_| listener.accept().unwrap().0).collect();
            // Half of them are closed on our side first, the others on the application's.
            let mut both: Vec<_> = ours.into_iter().zip(theirs).collect();
            for (ours, theirs) in both.split_off(50) {
                drop(theirs);
                drop(ours);
            }
            for (ours, theirs) in both {
                drop(ours);
                assert!(matches!(behind(&app_connections, &theirs), Some(Some(_))));
            }
        }
        let (entries, relays, closed_here) = sizes(&app_connections);
        assert!(
            entries <= CLEANUP_THRESHOLD && closed_here <= CLEANUP_THRESHOLD,
            "{entries} {closed_here}"
        );
        assert_eq!(relays, 0);
    }

    #[test]
    fn used_connections_stay_registered() {
        let app_connections = Arc::new(AppConnections::default());
        let listener = TcpListener::bind("[::1]:0").unwrap();
        let application = listener.local_addr().unwrap();
        let theirs: Vec<_> = (0..300)
            .map(|port| {
                let ours = app_connections.open(Transport::Tcp, application, Some(addresses(port)));
                let accepted = listener.accept().unwrap().0;
                drop(ours);
                accepted
            })
            .collect();
        for (port, theirs) in theirs.iter().enumerate() {
            let expected = addresses(u16::try_from(port).unwrap());
            assert_eq!(behind(&app_connections, theirs), Some(Some(expected)));
        }
        // Another connection from the same address is not confused with it.
        let peer = theirs[0].peer_addr().unwrap();
        assert_eq!(app_connections.find(Transport::Tcp, peer, || Some(1)), None);
    }

    #[test]
    fn datagram_clients_are_registered_until_closed() {
        let app_connections = Arc::new(AppConnections::default());
        let socket = UdpSocket::bind("127.0.0.1:0").unwrap();
        let application = socket.local_addr().unwrap();
        let port = application.port();
        let open = || app_connections.open(Transport::Udp, application, Some(addresses(1)));
        let (first, second) = (open().unwrap(), open().unwrap());
        let relay = app_connections.relay(port, addresses(1).client).unwrap();
        // Closing the first does not affect the second.
        drop(first);
        assert_eq!(
            app_connections.relay(port, addresses(1).client),
            Some(relay)
        );
        drop(second);
        assert_eq!(app_connections.relay(port, addresses(1).client), None);
        assert_eq!(sizes(&app_connections), (0, 0, 0));
    }
}
