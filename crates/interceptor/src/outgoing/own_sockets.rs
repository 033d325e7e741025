//! Sockets on which the application itself listens.
//!
//! `localhost` is that of the target, but a program that connects to itself, or to another of its processes, means this
//! machine. Sockets are recorded by inode; the kernel reports by inode whether they still exist, and which addresses
//! they accept.

use std::collections::HashMap;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};
use std::os::fd::{AsFd, OwnedFd};
use std::time::{Duration, Instant};

use parking_lot::Mutex;

use super::Transport;
use super::address::internet;
use crate::socket_table::{
    Entry, TCP_TABLES, TcpSocketInfo, UDP_TABLES, any_datagram_socket, entries, inode_of,
    listener_at,
};
use crate::sys::socket;

/// When this many sockets are recorded, closed ones are removed.
const CLEANUP_THRESHOLD: usize = 4096;
/// How long the list of open datagram ports may be reused.
const PORT_LIST_TTL: Duration = Duration::from_millis(500);

/// Sockets of the application, by inode.
#[derive(Debug, Default)]
pub(super) struct OwnSockets {
    /// With the port, or 0 if it was not known yet.
    listeners: Mutex<HashMap<u64, u16>>,
    /// All datagram sockets, since each can receive, with a sequence number; and the last sequence number.
    datagrams: Mutex<(HashMap<u64, u64>, u64)>,
}

impl OwnSockets {
    /// The application is about to listen on a socket.
    pub(super) fn add_listener(&self, theirs: &OwnedFd) {
        let address = socket::local_address(theirs.as_fd()).ok();
        let port = address.and_then(|address| internet(&address));
        let port = port.map_or(0, |address| address.port());
        if let Some(inode) = inode_of(theirs) {
            let mut listeners = self.listeners.lock();
            if listeners.len() >= CLEANUP_THRESHOLD {
                let open = entries(&TCP_TABLES);
                listeners.retain(|inode, _| open.iter().any(|entry| entry.inode == *inode));
            }
            listeners.insert(inode, port);
        }
    }

    /// A datagram socket was created for the application.
    pub(super) fn add_datagrams(&self, ours: &OwnedFd) {
        if let Some(inode) = inode_of(ours) {
            let mut datagrams = self.datagrams.lock();
            let (datagrams, number) = &mut *datagrams;
            *number += 1;
            if datagrams.len() >= CLEANUP_THRESHOLD {
                // A socket that is not bound yet is not in the table, so the newest are always kept.
                let open = entries(&UDP_TABLES);
                let old = number.saturating_sub(CLEANUP_THRESHOLD as u64 / 2);
                datagrams.retain(|inode, number| {
                    *number > old || open.iter().any(|entry| entry.inode == *inode)
                });
            }
            datagrams.insert(inode, *number);
        }
    }

    /// Whether a socket of the application itself accepts traffic to this loopback address.
    pub(super) fn is_own_loopback(&self, transport: Transport, address: SocketAddr) -> bool {
        let ip = address.ip().to_canonical();
        (ip.is_loopback() || ip.is_unspecified()) && self.accepts(transport, address)
    }

    /// Whether a socket of the application accepts traffic to an address of this machine.
    pub(super) fn accepts(&self, transport: Transport, address: SocketAddr) -> bool {
        let ip = address.ip().to_canonical();
        let matches_address =
            |entry: &Entry| entry.local.port() == address.port() && accepts_address(entry, ip);
        match transport {
            Transport::Unix | Transport::UnixPackets => false,
            Transport::Tcp => {
                let listeners = self.listeners.lock();
                let may_be = |port: &u16| *port == address.port() || *port == 0;
                if !listeners.values().any(may_be) {
                    return false;
                }
                match listener_at(SocketAddr::new(ip, address.port())) {
                    Ok(found) => {
                        let is_known = |found: TcpSocketInfo| listeners.contains_key(&found.inode);
                        found.is_some_and(is_known)
                    }
                    // The kernel may not support this query; its table is slow but always available.
                    Err(_) => entries(&TCP_TABLES).iter().any(|entry| {
                        entry.listens
                            && matches_address(entry)
                            && listeners.contains_key(&entry.inode)
                    }),
                }
            }
            Transport::Udp => {
                let datagrams = &self.datagrams.lock().0;
                let is_own = |entry: &Entry| datagrams.contains_key(&entry.inode);
                !datagrams.is_empty()
                    && any_datagram_socket(address.port(), |entry| {
                        matches_address(entry) && is_own(entry)
                    })
            }
        }
    }
}

/// Whether a socket with this local address accepts traffic to an address of this machine.
fn accepts_address(entry: &Entry, to: IpAddr) -> bool {
    let bound = entry.local.ip();
    let to = match to {
        IpAddr::V4(ip) if ip.is_unspecified() => Ipv4Addr::LOCALHOST.into(),
        IpAddr::V6(ip) if ip.is_unspecified() => Ipv6Addr::LOCALHOST.into(),
        ip => ip,
    };
    // A socket bound to the IPv6 wildcard accepts IPv4 as well, unless it has `IPV6_V6ONLY`, which the table does not
    // show.
    let same_family = bound.is_ipv6() || to.is_ipv4();
    bound.is_unspecified() && same_family || bound.to_canonical() == to
}

/// Whether any datagram socket of this machine is bound to a port that was bound at the given time. The list is shared
/// by all callers, because each of many sockets is checked occasionally.
pub(crate) fn is_datagram_port_open(port: u16, bound: Instant) -> bool {
    static OPEN: Mutex<Option<(Instant, Vec<u16>)>> = Mutex::new(None);
    let mut open = OPEN.lock();
    let ports = match &*open {
        Some((read, ports)) if *read > bound && read.elapsed() < PORT_LIST_TTL => ports,
        _ => {
            let now = Instant::now();
            let ports = entries(&UDP_TABLES)
                .into_iter()
                .map(|entry| entry.local.port());
            &open.insert((now, ports.collect())).1
        }
    };
    let is_listed = ports.contains(&port);
    drop(open);
    // The list may miss an open socket.
    is_listed || any_datagram_socket(port, |_| true)
}

/// Whether a particular datagram socket is open, even if others share its port.
pub(crate) fn is_datagram_socket_open(port: u16, inode: u64) -> bool {
    any_datagram_socket(port, |entry| entry.inode == inode)
}

#[cfg(test)]
mod tests {
    use std::net::{TcpListener, UdpSocket};
    use std::sync::atomic::{AtomicBool, Ordering};

    use super::*;

    #[test]
    fn accepted_addresses() {
        for (bound, to, expected) in [
            ("0.0.0.0:1", "127.0.0.1", true),
            ("0.0.0.0:1", "::1", false),
            ("[::]:1", "127.0.0.1", true),
            ("[::]:1", "::1", true),
            ("127.0.0.1:1", "127.0.0.1", true),
            ("127.0.0.1:1", "0.0.0.0", true),
            ("127.0.0.1:1", "127.0.0.2", false),
            ("[::1]:1", "127.0.0.1", false),
            ("[::1]:1", "::", true),
            ("[::ffff:127.0.0.1]:1", "127.0.0.1", true),
        ] {
            let entry = Entry {
                local: bound.parse().unwrap(),
                peer: "[::]:0".parse().unwrap(),
                listens: true,
                inode: 1,
            };
            assert_eq!(
                accepts_address(&entry, to.parse().unwrap()),
                expected,
                "{bound} {to}"
            );
        }
    }

    #[test]
    fn listeners_are_found_until_closed() {
        let own = OwnSockets::default();
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let address = listener.local_addr().unwrap();
        assert!(!own.is_own_loopback(Transport::Tcp, address));
        let listener = OwnedFd::from(listener);
        own.add_listener(&listener);
        assert!(own.is_own_loopback(Transport::Tcp, address));
        assert!(!own.is_own_loopback(Transport::Udp, address));
        drop(listener);
        assert!(!own.is_own_loopback(Transport::Tcp, address));

        // A dual-stack listener accepts both families.
        let listener = TcpListener::bind("[::]:0").unwrap();
        let port = listener.local_addr().unwrap().port();
        let listener = OwnedFd::from(listener);
        own.add_listener(&listener);
        for ip in [
            "127.0.0.1",
            "127.0.0.2",
            "0.0.0.0",
            "::1",
            "::",
            "::ffff:127.0.0.1",
        ] {
            let address = SocketAddr::new(ip.parse().unwrap(), port);
            assert!(own.is_own_loopback(Transport::Tcp, address), "{ip}");
            // If the kernel supports the query, its result matches the table.
            let found = listener_at(SocketAddr::new(address.ip().to_canonical(), port));
            let inode = found.map(|found| found.map(|found| found.inode));
            assert!(inode.is_err() || inode.unwrap() == inode_of(&listener));
        }

        let datagrams = UdpSocket::bind("0.0.0.0:0").unwrap();
        let mut address = datagrams.local_addr().unwrap();
        let datagrams = OwnedFd::from(datagrams);
        own.add_datagrams(&datagrams);
        assert!(own.is_own_loopback(Transport::Udp, address));
        address.set_ip(Ipv4Addr::LOCALHOST.into());
        assert!(own.is_own_loopback(Transport::Udp, address));
        address.set_ip(Ipv4Addr::new(192, 0, 2, 1).into());
        assert!(!own.is_own_loopback(Transport::Udp, address));
    }

    #[test]
    fn socket_is_found_while_others_open_and_close() {
        let own = OwnSockets::default();
        let socket = UdpSocket::bind("127.0.0.1:0").unwrap();
        let address = socket.local_addr().unwrap();
        let socket = OwnedFd::from(socket);
        own.add_datagrams(&socket);
        let (port, inode) = (address.port(), inode_of(&socket).unwrap());
        let is_over = AtomicBool::new(false);
        let found = std::thread::scope(|scope| {
            for _ in 0..2 {
                scope.spawn(|| {
                    while !is_over.load(Ordering::Relaxed) {
                        let others = [(); 50].map(|()| UdpSocket::bind("127.0.0.1:0"));
                        drop(others);
                    }
                });
            }
            let is_found = |_: &u32| {
                let is_open = is_datagram_port_open(port, Instant::now());
                is_open
                    && is_datagram_socket_open(port, inode)
                    && own.accepts(Transport::Udp, address)
            };
            let found = (0..500).filter(is_found).count();
            is_over.store(true, Ordering::Relaxed);
            found
        });
        assert_eq!(found, 500);
    }

    #[test]
    fn new_socket_is_not_reported_closed() {
        for _ in 0..50 {
            let socket = UdpSocket::bind("127.0.0.1:0").unwrap();
            let port = socket.local_addr().unwrap().port();
            assert!(is_datagram_port_open(port, Instant::now()));
            let socket = OwnedFd::from(socket);
            let inode = inode_of(&socket).unwrap();
            assert!(is_datagram_socket_open(port, inode));
            // Another socket on the same port is not confused with it.
            drop(socket);
            let _other = UdpSocket::bind(("127.0.0.2", port));
            assert!(!is_datagram_socket_open(port, inode));
        }
    }
}
