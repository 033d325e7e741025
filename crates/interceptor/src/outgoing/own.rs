//! What the application itself listens on.
//!
//! `localhost` is the target's, but a program that speaks to itself, or to another of its processes, means this
//! machine. Sockets are remembered by their inode, by which the kernel knows them as well: it says whether they are
//! still there, and what they take.

use std::collections::HashMap;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};
use std::os::fd::{AsFd, OwnedFd};
use std::sync::Mutex;
use std::time::{Duration, Instant};

use super::Transport;
use super::address::internet;
use crate::socket_table::{
    Entry, Found, TCP_TABLES, UDP_TABLES, any_datagram_socket, entries, inode_of, listener_behind,
};
use crate::sys::socket;
use crate::workers::lock;

/// Sockets that are remembered before those are forgotten that are no longer there.
const MANY: usize = 4096;
/// How old the list of open datagram sockets may be that tells whether one was closed.
const RECENT: Duration = Duration::from_millis(500);

/// Sockets of the application, by inode.
#[derive(Debug, Default)]
pub(super) struct OwnSockets {
    /// With the port, or 0 if it was not known yet.
    listeners: Mutex<HashMap<u64, u16>>,
    /// All datagram sockets: each can receive. With a number that tells their order, and the last number.
    datagrams: Mutex<(HashMap<u64, u64>, u64)>,
}

impl OwnSockets {
    /// The application is about to listen on a socket.
    pub(super) fn add_listener(&self, theirs: &OwnedFd) {
        let address = socket::local_address(theirs.as_fd()).ok();
        let port = address.and_then(|address| internet(&address));
        let port = port.map_or(0, |address| address.port());
        if let Some(inode) = inode_of(theirs) {
            let mut listeners = lock(&self.listeners);
            if listeners.len() >= MANY {
                let there = entries(&TCP_TABLES);
                listeners.retain(|inode, _| there.iter().any(|entry| entry.inode == *inode));
            }
            listeners.insert(inode, port);
        }
    }

    /// A datagram socket was made for the application.
    pub(super) fn add_datagrams(&self, ours: &OwnedFd) {
        if let Some(inode) = inode_of(ours) {
            let mut datagrams = lock(&self.datagrams);
            let (datagrams, number) = &mut *datagrams;
            *number += 1;
            if datagrams.len() >= MANY {
                // One that is not bound yet is in no table, so the newest are kept anyway.
                let there = entries(&UDP_TABLES);
                let old = number.saturating_sub(MANY as u64 / 2);
                datagrams.retain(|inode, number| {
                    *number > old || there.iter().any(|entry| entry.inode == *inode)
                });
            }
            datagrams.insert(inode, *number);
        }
    }

    /// Whether the application itself is behind an address of localhost.
    pub(super) fn is_behind(&self, transport: Transport, address: SocketAddr) -> bool {
        let ip = address.ip().to_canonical();
        (ip.is_loopback() || ip.is_unspecified()) && self.has(transport, address)
    }

    /// Whether a socket of the application takes what is sent to an address of this machine.
    pub(super) fn has(&self, transport: Transport, address: SocketAddr) -> bool {
        let ip = address.ip().to_canonical();
        let is_there = |entry: &Entry| entry.local.port() == address.port() && takes(entry, ip);
        match transport {
            Transport::Unix | Transport::UnixPackets => false,
            Transport::Tcp => {
                let listeners = lock(&self.listeners);
                let may_be = |port: &u16| *port == address.port() || *port == 0;
                if !listeners.values().any(may_be) {
                    return false;
                }
                match listener_behind(SocketAddr::new(ip, address.port())) {
                    Ok(found) => {
                        let is_known = |found: Found| listeners.contains_key(&found.inode);
                        found.is_some_and(is_known)
                    }
                    // The kernel may be without this kind of question; its table is slow and always there.
                    Err(_) => entries(&TCP_TABLES).iter().any(|entry| {
                        entry.listens && is_there(entry) && listeners.contains_key(&entry.inode)
                    }),
                }
            }
            Transport::Udp => {
                let datagrams = &lock(&self.datagrams).0;
                let is_own = |entry: &Entry| datagrams.contains_key(&entry.inode);
                !datagrams.is_empty()
                    && any_datagram_socket(address.port(), |entry| is_there(entry) && is_own(entry))
            }
        }
    }
}

/// Whether a socket that is bound like this takes what is sent to an address of this machine.
fn takes(entry: &Entry, to: IpAddr) -> bool {
    let bound = entry.local.ip();
    let to = match to {
        IpAddr::V4(ip) if ip.is_unspecified() => Ipv4Addr::LOCALHOST.into(),
        IpAddr::V6(ip) if ip.is_unspecified() => Ipv6Addr::LOCALHOST.into(),
        ip => ip,
    };
    // A socket for any IPv6 address takes IPv4 as well, unless it says otherwise, which the table does not tell.
    let same_family = bound.is_ipv6() || to.is_ipv4();
    bound.is_unspecified() && same_family || bound.to_canonical() == to
}

/// Whether some datagram socket of this machine is bound to a port that was bound at a moment. The list is shared by all
/// who ask, because each of many sockets is asked for now and then.
pub(crate) fn is_datagram_port_open(port: u16, bound: Instant) -> bool {
    static OPEN: Mutex<Option<(Instant, Vec<u16>)>> = Mutex::new(None);
    let mut open = lock(&OPEN);
    let ports = match &*open {
        Some((read, ports)) if *read > bound && read.elapsed() < RECENT => ports,
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
    // A list may lack one that is there.
    is_listed || any_datagram_socket(port, |_| true)
}

/// Whether a datagram socket is there, whoever else has its port.
pub(crate) fn is_datagram_socket_open(port: u16, inode: u64) -> bool {
    any_datagram_socket(port, |entry| entry.inode == inode)
}

#[cfg(test)]
mod tests {
    use std::net::{TcpListener, UdpSocket};
    use std::sync::atomic::{AtomicBool, Ordering};

    use super::*;

    #[test]
    fn who_takes_what() {
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
            assert_eq!(takes(&entry, to.parse().unwrap()), expected, "{bound} {to}");
        }
    }

    #[test]
    fn listeners_are_known_until_they_are_closed() {
        let own = OwnSockets::default();
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let address = listener.local_addr().unwrap();
        assert!(!own.is_behind(Transport::Tcp, address));
        let listener = OwnedFd::from(listener);
        own.add_listener(&listener);
        assert!(own.is_behind(Transport::Tcp, address));
        assert!(!own.is_behind(Transport::Udp, address));
        drop(listener);
        assert!(!own.is_behind(Transport::Tcp, address));

        // One for both families takes connections of both.
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
            assert!(own.is_behind(Transport::Tcp, address), "{ip}");
            // Where the kernel answers the question, it finds the same as in its table.
            let found = listener_behind(SocketAddr::new(address.ip().to_canonical(), port));
            let inode = found.map(|found| found.map(|found| found.inode));
            assert!(inode.is_err() || inode.unwrap() == inode_of(&listener));
        }

        let datagrams = UdpSocket::bind("0.0.0.0:0").unwrap();
        let mut address = datagrams.local_addr().unwrap();
        let datagrams = OwnedFd::from(datagrams);
        own.add_datagrams(&datagrams);
        assert!(own.is_behind(Transport::Udp, address));
        address.set_ip(Ipv4Addr::LOCALHOST.into());
        assert!(own.is_behind(Transport::Udp, address));
        address.set_ip(Ipv4Addr::new(192, 0, 2, 1).into());
        assert!(!own.is_behind(Transport::Udp, address));
    }

    #[test]
    fn a_socket_is_found_while_others_come_and_go() {
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
                is_open && is_datagram_socket_open(port, inode) && own.has(Transport::Udp, address)
            };
            let found = (0..500).filter(is_found).count();
            is_over.store(true, Ordering::Relaxed);
            found
        });
        assert_eq!(found, 500);
    }

    #[test]
    fn a_new_socket_is_never_taken_for_a_closed_one() {
        for _ in 0..50 {
            let socket = UdpSocket::bind("127.0.0.1:0").unwrap();
            let port = socket.local_addr().unwrap().port();
            assert!(is_datagram_port_open(port, Instant::now()));
            let socket = OwnedFd::from(socket);
            let inode = inode_of(&socket).unwrap();
            assert!(is_datagram_socket_open(port, inode));
            // Another socket of the same port is not taken for it.
            drop(socket);
            let _other = UdpSocket::bind(("127.0.0.2", port));
            assert!(!is_datagram_socket_open(port, inode));
        }
    }
}
