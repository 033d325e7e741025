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
use crate::Errno;
use crate::sys::socket;
use crate::workers::lock;

/// Sockets that are remembered before those are forgotten that are no longer there.
const MANY: usize = 4096;
/// How old the list of open datagram sockets may be that tells whether one was closed.
const RECENT: Duration = Duration::from_millis(500);
/// The state of a socket that listens, in the kernel's table.
const LISTENS: &str = "0A";

const TCP_TABLES: [&str; 2] = ["/proc/self/net/tcp", "/proc/self/net/tcp6"];
const UDP_TABLES: [&str; 2] = ["/proc/self/net/udp", "/proc/self/net/udp6"];

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
        if !(ip.is_loopback() || ip.is_unspecified()) {
            return false;
        }
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
                    Ok(listener) => {
                        listener.is_some_and(|inode| listeners.contains_key(&u64::from(inode)))
                    }
                    // The kernel may be without this kind of question; its table is slow and always there.
                    Err(_) => entries(&TCP_TABLES).iter().any(|entry| {
                        entry.listens && is_there(entry) && listeners.contains_key(&entry.inode)
                    }),
                }
            }
            Transport::Udp => {
                let datagrams = &lock(&self.datagrams).0;
                entries(&UDP_TABLES)
                    .iter()
                    .any(|entry| is_there(entry) && datagrams.contains_key(&entry.inode))
            }
        }
    }
}

fn inode_of(socket: &OwnedFd) -> Option<u64> {
    let metadata = nix::sys::stat::fstat(socket).ok()?;
    Some(metadata.st_ino)
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

/// The inode of the socket that takes connections to an address of this machine, by the kernel's own judgement
/// (`sock_diag(7)`).
fn listener_behind(address: SocketAddr) -> Result<Option<u32>, Errno> {
    let question = diagnosis_question(address);
    let kind = libc::SOCK_RAW | libc::SOCK_CLOEXEC;
    let kernel = socket::create(libc::AF_NETLINK, kind, libc::NETLINK_SOCK_DIAG)?;
    socket::send(kernel.as_fd(), &question, 0, &[])?;
    let mut answer = [0; 4096];
    let length = nix::unistd::read(&kernel, &mut answer)?;
    diagnosis_answer(answer.get(..length).unwrap_or_default())
}

const NETLINK_HEADER: usize = 16;
const SOCK_DIAG_BY_FAMILY: u16 = 20;

/// A `nlmsghdr` and an `inet_diag_req_v2`.
fn diagnosis_question(address: SocketAddr) -> Vec<u8> {
    const LENGTH: u32 = 72;
    const REQUEST: u16 = 1;
    let (family, local) = match address.ip() {
        IpAddr::V4(ip) if ip.is_unspecified() => {
            (libc::AF_INET, Ipv4Addr::LOCALHOST.octets().to_vec())
        }
        IpAddr::V4(ip) => (libc::AF_INET, ip.octets().to_vec()),
        IpAddr::V6(ip) if ip.is_unspecified() => {
            (libc::AF_INET6, Ipv6Addr::LOCALHOST.octets().to_vec())
        }
        IpAddr::V6(ip) => (libc::AF_INET6, ip.octets().to_vec()),
    };
    let byte = |number: i32| u8::try_from(number).unwrap_or_default();
    let mut question = Vec::with_capacity(LENGTH as usize);
    question.extend(LENGTH.to_ne_bytes());
    question.extend(SOCK_DIAG_BY_FAMILY.to_ne_bytes());
    question.extend(REQUEST.to_ne_bytes());
    // Number and sender: there is one question, and the kernel knows whose it is.
    question.extend([0; 8]);
    question.extend([byte(family), byte(libc::IPPROTO_TCP), 0, 0]);
    // In any state; the states only matter for lists.
    question.extend(u32::MAX.to_ne_bytes());
    question.extend(address.port().to_be_bytes());
    // From port 0 of the same address: no connection comes from there, so the listener is found.
    question.extend([0; 2]);
    let padded: Vec<u8> = local.iter().copied().chain([0; 16]).take(16).collect();
    question.extend(&padded);
    question.extend(&padded);
    // No interface, and no cookie.
    question.extend([0; 4]);
    question.extend([0xff; 8]);
    question
}

/// A `nlmsghdr` and an `inet_diag_msg` or an error.
fn diagnosis_answer(answer: &[u8]) -> Result<Option<u32>, Errno> {
    const ERROR: u16 = 2;
    const INODE: usize = NETLINK_HEADER + 68;
    const NOT_THERE: i32 = -libc::ENOENT;
    let word = |at: usize| {
        let bytes = answer.get(at..at + 4)?;
        bytes.first_chunk::<4>().copied().map(u32::from_ne_bytes)
    };
    let kind = answer.get(4..6).and_then(|bytes| bytes.first_chunk::<2>());
    match kind.copied().map(u16::from_ne_bytes) {
        Some(SOCK_DIAG_BY_FAMILY) => word(INODE).map(Some).ok_or(Errno::EPROTO),
        Some(ERROR) => match word(NETLINK_HEADER).map(u32::cast_signed) {
            Some(NOT_THERE) => Ok(None),
            Some(number) => Err(Errno::from_raw(-number)),
            None => Err(Errno::EPROTO),
        },
        _ => Err(Errno::EPROTO),
    }
}

/// A line of the kernel's table of sockets.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Entry {
    local: SocketAddr,
    listens: bool,
    inode: u64,
}

fn entries(tables: &[&str]) -> Vec<Entry> {
    let text = |table: &&str| std::fs::read_to_string(table).unwrap_or_default();
    let texts: Vec<String> = tables.iter().map(text).collect();
    let lines = texts.iter().flat_map(|text| text.lines().skip(1));
    lines.filter_map(parse).collect()
}

/// `sl local_address rem_address st tx:rx tr:when retransmit uid timeout inode …`
fn parse(line: &str) -> Option<Entry> {
    let mut words = line.split_ascii_whitespace().skip(1);
    let (address, port) = words.next()?.split_once(':')?;
    let port = u16::from_str_radix(port, 16).ok()?;
    let listens = words.nth(1)? == LISTENS;
    let inode = words.nth(5)?.parse().ok()?;
    // Each word of four bytes is printed as a number of this machine.
    let word = |index: usize| {
        let digits = address.get(index * 8..index * 8 + 8)?;
        u32::from_str_radix(digits, 16).ok().map(u32::to_ne_bytes)
    };
    let ip: IpAddr = match address.len() {
        8 => word(0)?.into(),
        32 => {
            let words = [word(0)?, word(1)?, word(2)?, word(3)?];
            <[u8; 16]>::try_from(words.concat()).ok()?.into()
        }
        _ => return None,
    };
    Some(Entry {
        local: SocketAddr::new(ip, port),
        listens,
        inode,
    })
}

/// Whether some datagram socket of this machine is bound to a port that was bound at a moment. The list is shared by all
/// who ask, because each of many sockets is asked for now and then.
pub(super) fn is_datagram_port_open(port: u16, bound: Instant) -> bool {
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
    ports.contains(&port)
}

#[cfg(test)]
mod tests {
    use std::net::{TcpListener, UdpSocket};

    use super::*;

    #[test]
    fn lines_of_the_kernel_s_table() {
        let table = [
            (
                "   0: 0100007F:1F90 00000000:0000 0A 00000000:00000000 00:00000000 00000000  1000        0 4711 1 0 100 0 0 10 0",
                Some(("127.0.0.1:8080", true, 4711)),
            ),
            (
                " 123: 00000000000000000000000001000000:0035 00000000000000000000000000000000:0000 07 00000000:00000000 00:00000000 00000000     0        0 99 2 0 0",
                Some(("[::1]:53", false, 99)),
            ),
            ("  sl  local_address rem_address   st", None),
            ("", None),
        ];
        for (line, expected) in table {
            let expected = expected.map(|(local, listens, inode)| Entry {
                local: local.parse().unwrap(),
                listens,
                inode,
            });
            assert_eq!(parse(line), expected, "{line}");
        }
    }

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
            assert!(found.is_err() || found.unwrap().map(u64::from) == inode_of(&listener));
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
    fn a_new_socket_is_never_taken_for_a_closed_one() {
        for _ in 0..50 {
            let socket = UdpSocket::bind("127.0.0.1:0").unwrap();
            let port = socket.local_addr().unwrap().port();
            assert!(is_datagram_port_open(port, Instant::now()));
        }
    }
}
