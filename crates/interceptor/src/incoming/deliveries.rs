//! Our ends of connections to the application, by the address that they have on this machine.
//!
//! An address stays known until the kernel says that the application's end is closed: it may be in the application's
//! queue, or in use, long after our end has gone.

use std::collections::{HashMap, HashSet};
use std::net::{IpAddr, Ipv4Addr, SocketAddr};
use std::os::fd::{AsFd, OwnedFd};
use std::sync::{Arc, Mutex};

use crate::Errno;
use crate::outgoing::{Transport, encode_internet, internet};
use crate::socket_table::{self, TCP_TABLES};
use crate::sys::socket;
use crate::workers::lock;

/// Ends that have gone are looked after when there are this many of them.
const MANY: usize = 64;
/// How often another address is tried when one is taken.
const ATTEMPTS: u32 = 16;

/// Who is behind a connection.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Names {
    pub(super) client: SocketAddr,
    pub(super) server: SocketAddr,
}

type Key = (Transport, SocketAddr);

#[derive(Debug)]
struct Entry {
    number: u64,
    /// `None` is nobody: it only wakes the application up.
    names: Option<Names>,
    /// The other end.
    application: SocketAddr,
    /// The other end's cookie, when ours has gone: its address may then be another's.
    cookie: Option<u64>,
}

#[derive(Debug, Default)]
struct Table {
    entries: HashMap<Key, Entry>,
    /// Sockets that stand for a client, by the application's port and the client's address.
    relays: HashMap<(u16, SocketAddr), SocketAddr>,
    /// Ends of ours that have gone while the application's had not.
    gone: Vec<(Key, u64)>,
    look_at: usize,
    number: u64,
}

#[derive(Debug, Default)]
pub(super) struct Deliveries(Mutex<Table>);

/// Keeps a client's address known; dropping it says that our end of the connection has gone.
#[derive(Debug)]
pub struct Registration {
    deliveries: Arc<Deliveries>,
    key: Key,
    number: u64,
}

impl Drop for Registration {
    fn drop(&mut self) {
        self.deliveries.end(self.key, self.number);
    }
}

impl Deliveries {
    /// Opens a socket of ours that is connected to the application's, or being so.
    pub(super) fn open(
        self: &Arc<Self>,
        transport: Transport,
        application: SocketAddr,
        names: Option<Names>,
    ) -> Result<(OwnedFd, Registration), Errno> {
        let mut failure = Errno::EADDRNOTAVAIL;
        for _ in 0..ATTEMPTS {
            let (ours, address) = self.bind(transport, application)?;
            // Known before it is connected: the application may be quicker than we are.
            let registration = self.add((transport, address), application, names);
            let domain = domain_for(application);
            match socket::connect(ours.as_fd(), &encode_internet(application, domain)) {
                Ok(()) | Err(Errno::EINPROGRESS) => return Ok((ours, registration)),
                // Between the same two ends there was a connection a moment ago.
                Err(errno @ (Errno::EADDRNOTAVAIL | Errno::EADDRINUSE)) => failure = errno,
                Err(errno) => return Err(errno),
            }
        }
        Err(failure)
    }

    /// A socket of ours, bound to an address from which the application's is reached.
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
        let mut table = lock(&self.0);
        table.number += 1;
        table.number
    }

    fn add(
        self: &Arc<Self>,
        key: Key,
        application: SocketAddr,
        names: Option<Names>,
    ) -> Registration {
        let mut table = lock(&self.0);
        table.number += 1;
        let number = table.number;
        let entry = Entry {
            number,
            names,
            application,
            cookie: None,
        };
        table.entries.insert(key, entry);
        if let (Transport::Udp, Some(names)) = (key.0, names) {
            let of_client = (application.port(), canonical(names.client));
            table.relays.insert(of_client, key.1);
        }
        drop(table);
        Registration {
            deliveries: Arc::clone(self),
            key,
            number,
        }
    }

    /// What is known about a socket of ours by its address: who is behind it, if somebody is. `cookie` tells which socket
    /// of the application is at its other end.
    pub(super) fn find(
        &self,
        transport: Transport,
        address: SocketAddr,
        cookie: impl FnOnce() -> Option<u64>,
    ) -> Option<Option<Names>> {
        let table = lock(&self.0);
        let entry = table.entries.get(&(transport, address))?;
        let is_other = entry.cookie.is_some_and(|known| cookie() != Some(known));
        (!is_other).then_some(entry.names)
    }

    pub(super) fn relay(&self, port: u16, client: SocketAddr) -> Option<SocketAddr> {
        let table = lock(&self.0);
        table.relays.get(&(port, canonical(client))).copied()
    }

    /// Our end has gone. The kernel is asked while nobody waits for the table.
    fn end(&self, key: Key, number: u64) {
        let application = {
            let mut table = lock(&self.0);
            match table.known(key, number) {
                None => return,
                Some(_) if key.0 == Transport::Udp => return table.remove(key, number),
                Some(entry) => entry.application,
            }
        };
        let found = socket_table::connection_between(application, key.1);
        let mut table = lock(&self.0);
        let Some(entry) = table.known(key, number) else {
            return;
        };
        match found {
            Ok(None) => return table.remove(key, number),
            Ok(Some(found)) => entry.cookie = Some(found.cookie),
            Err(_) => {}
        }
        table.gone.push((key, number));
        if table.gone.len() >= table.look_at.max(MANY) {
            let gone = table.take_gone();
            drop(table);
            let (there, closed) = split(gone);
            lock(&self.0).looked(there, closed);
        }
    }
}

/// Connections whose other end is still there, and those whose other end the application has closed as well.
fn split(gone: Vec<Gone>) -> (Vec<Gone>, Vec<Gone>) {
    let mut table: Option<HashSet<(SocketAddr, SocketAddr)>> = None;
    gone.into_iter().partition(|gone| {
        let (application, ours) = (gone.application, gone.key.1);
        match socket_table::connection_between(application, ours) {
            Ok(found) => found.is_some(),
            // The kernel may be without this kind of question; its table is slow and always there.
            Err(_) => table
                .get_or_insert_with(connections)
                .contains(&(application, ours)),
        }
    })
}

/// An end of ours that has gone.
struct Gone {
    key: Key,
    number: u64,
    application: SocketAddr,
}

impl Table {
    fn known(&mut self, key: Key, number: u64) -> Option<&mut Entry> {
        let entry = self.entries.get_mut(&key)?;
        (entry.number == number).then_some(entry)
    }

    fn remove(&mut self, key: Key, number: u64) {
        let Some(entry) = self.known(key, number) else {
            return;
        };
        let port = entry.application.port();
        let client = entry.names.map(|names| canonical(names.client));
        self.entries.remove(&key);
        if let Some(client) = client
            && self.relays.get(&(port, client)) == Some(&key.1)
        {
            self.relays.remove(&(port, client));
        }
    }

    fn take_gone(&mut self) -> Vec<Gone> {
        // Meanwhile nobody else looks.
        self.look_at = usize::MAX;
        let gone = std::mem::take(&mut self.gone).into_iter();
        gone.filter_map(|(key, number)| {
            let application = self.known(key, number)?.application;
            Some(Gone {
                key,
                number,
                application,
            })
        })
        .collect()
    }

    fn looked(&mut self, there: Vec<Gone>, closed: Vec<Gone>) {
        for gone in closed {
            self.remove(gone.key, gone.number);
        }
        let there = there.into_iter().map(|gone| (gone.key, gone.number));
        self.gone.extend(there);
        self.look_at = self.gone.len() * 2;
    }
}

/// All connections of this machine, by both ends.
fn connections() -> HashSet<(SocketAddr, SocketAddr)> {
    let entries = socket_table::entries(&TCP_TABLES).into_iter();
    entries
        .filter(|entry| entry.inode != 0)
        .map(|entry| (canonical(entry.local), canonical(entry.peer)))
        .collect()
}

/// An address of this machine that nobody else uses.
fn own_address(number: u64) -> IpAddr {
    let [.., high, middle, low] = number.to_be_bytes();
    Ipv4Addr::new(127, 64 | high & 63, middle, low).into()
}

/// The same client, however it is written.
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

    fn names(port: u16) -> Names {
        Names {
            client: SocketAddr::from(([203, 0, 113, 9], port)),
            server: SocketAddr::from(([10, 1, 2, 3], 80)),
        }
    }

    fn known(deliveries: &Deliveries) -> (usize, usize, usize) {
        let table = lock(&deliveries.0);
        (table.entries.len(), table.relays.len(), table.gone.len())
    }

    /// What `find` says about an accepted connection.
    fn behind(deliveries: &Deliveries, accepted: &TcpStream) -> Option<Option<Names>> {
        let peer = accepted.peer_addr().unwrap();
        deliveries.find(Transport::Tcp, peer, || {
            socket::cookie(accepted.as_fd()).ok()
        })
    }

    #[test]
    fn ten_thousand_connections_leave_little_behind() {
        let deliveries = Arc::new(Deliveries::default());
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let application = listener.local_addr().unwrap();
        let open = |port| deliveries.open(Transport::Tcp, application, Some(names(port)));
        for _ in 0..100 {
            let ours: Vec<_> = (0..100).map(|port| open(port).unwrap()).collect();
            let theirs: Vec<_> = ours.iter().map(|_| listener.accept().unwrap().0).collect();
            // Half of them end here first, the others there.
            let mut both: Vec<_> = ours.into_iter().zip(theirs).collect();
            for (ours, theirs) in both.split_off(50) {
                drop(theirs);
                drop(ours);
            }
            for (ours, theirs) in both {
                drop(ours);
                assert!(matches!(behind(&deliveries, &theirs), Some(Some(_))));
            }
        }
        let (entries, relays, gone) = known(&deliveries);
        assert!(entries <= MANY && gone <= MANY, "{entries} {gone}");
        assert_eq!(relays, 0);
    }

    #[test]
    fn connections_that_are_used_stay_known() {
        let deliveries = Arc::new(Deliveries::default());
        let listener = TcpListener::bind("[::1]:0").unwrap();
        let application = listener.local_addr().unwrap();
        let theirs: Vec<_> = (0..300)
            .map(|port| {
                let ours = deliveries.open(Transport::Tcp, application, Some(names(port)));
                let accepted = listener.accept().unwrap().0;
                drop(ours);
                accepted
            })
            .collect();
        for (port, theirs) in theirs.iter().enumerate() {
            let expected = names(u16::try_from(port).unwrap());
            assert_eq!(behind(&deliveries, theirs), Some(Some(expected)));
        }
        // Another connection from the same address is not taken for it.
        let peer = theirs[0].peer_addr().unwrap();
        assert_eq!(deliveries.find(Transport::Tcp, peer, || Some(1)), None);
    }

    #[test]
    fn clients_of_datagrams_are_known_until_their_end() {
        let deliveries = Arc::new(Deliveries::default());
        let socket = UdpSocket::bind("127.0.0.1:0").unwrap();
        let application = socket.local_addr().unwrap();
        let port = application.port();
        let open = || deliveries.open(Transport::Udp, application, Some(names(1)));
        let (first, second) = (open().unwrap(), open().unwrap());
        let relay = deliveries.relay(port, names(1).client).unwrap();
        // The first one's end does not end the second.
        drop(first);
        assert_eq!(deliveries.relay(port, names(1).client), Some(relay));
        drop(second);
        assert_eq!(deliveries.relay(port, names(1).client), None);
        assert_eq!(known(&deliveries), (0, 0, 0));
    }
}
