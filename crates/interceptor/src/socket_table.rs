//! What the kernel knows about sockets of this machine: its answers to single questions, and its tables.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};
use std::os::fd::{AsFd, OwnedFd};

use crate::Errno;
use crate::sys::socket;

pub(crate) const TCP_TABLES: [&str; 2] = ["/proc/self/net/tcp", "/proc/self/net/tcp6"];
pub(crate) const UDP_TABLES: [&str; 2] = ["/proc/self/net/udp", "/proc/self/net/udp6"];

/// States of TCP sockets, as the kernel numbers them.
const TIME_WAIT: u8 = 6;
const LISTENS: u8 = 10;

/// A TCP socket, as the kernel tells of it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Found {
    /// Zero for a connection that nobody has accepted yet.
    pub(crate) inode: u64,
    /// What `SO_COOKIE` says to who has it.
    pub(crate) cookie: u64,
    pub(crate) listens: bool,
}

/// The number by which the kernel's tables know a socket.
pub(crate) fn inode_of(socket: &OwnedFd) -> Option<u64> {
    let metadata = nix::sys::stat::fstat(socket).ok()?;
    Some(metadata.st_ino)
}

/// The socket that takes connections to an address of this machine, by the kernel's own judgement (`sock_diag(7)`).
pub(crate) fn listener_behind(address: SocketAddr) -> Result<Option<Found>, Errno> {
    // From port 0 of the same address: no connection comes from there, so the listener is found.
    let nobody = SocketAddr::new(address.ip(), 0);
    ask(address, nobody)
}

/// The socket whose own address is `local` and that is connected to `peer`; none if it was closed.
pub(crate) fn connection_between(
    local: SocketAddr,
    peer: SocketAddr,
) -> Result<Option<Found>, Errno> {
    // Without the connection, the listener is found.
    Ok(ask(local, peer)?.filter(|found| !found.listens))
}

/// Whether such a datagram socket is bound to a port.
pub(crate) fn any_datagram_socket(port: u16, is_it: impl Fn(&Entry) -> bool) -> bool {
    any(Kind::Datagrams, port, is_it)
}

/// Whether such a TCP socket listens on a port.
pub(crate) fn any_listener(port: u16, is_it: impl Fn(&Entry) -> bool) -> bool {
    any(Kind::Listeners, port, is_it)
}

/// Sockets that the kernel can list.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Kind {
    Datagrams,
    Listeners,
}

/// The kernel looks through its table in one go, and so misses none.
fn any(kind: Kind, port: u16, is_it: impl Fn(&Entry) -> bool) -> bool {
    match list(kind, port) {
        Ok(sockets) => sockets.iter().any(is_it),
        // The kernel may be without this kind of question. Its table is read in pieces, and a socket passed over now and
        // then when others are opened and closed meanwhile. So one that is not found is looked for again.
        Err(_) => (0..LOOKS).any(|_| {
            let (tables, listens) = match kind {
                Kind::Datagrams => (UDP_TABLES, false),
                Kind::Listeners => (TCP_TABLES, true),
            };
            let is_meant = |entry: &Entry| entry.local.port() == port && entry.listens == listens;
            let sockets = entries(&tables);
            sockets.iter().any(|entry| is_meant(entry) && is_it(entry))
        }),
    }
}

/// How often a socket is looked for that is not found in a table.
const LOOKS: usize = 4;

/// All sockets of a kind that have a port.
fn list(kind: Kind, port: u16) -> Result<Vec<Entry>, Errno> {
    let mut found = Vec::new();
    for any in [
        IpAddr::from(Ipv4Addr::UNSPECIFIED),
        Ipv6Addr::UNSPECIFIED.into(),
    ] {
        let kernel = diagnosis_socket()?;
        let question = list_question(kind, SocketAddr::new(any, port));
        socket::send(kernel.as_fd(), &question, 0, &[])?;
        let mut answer = vec![0; 32 * 1024];
        loop {
            let length = nix::unistd::read(&kernel, &mut answer)?;
            if add_listed(answer.get(..length).unwrap_or_default(), &mut found)? {
                break;
            }
        }
    }
    Ok(found)
}

/// Reads a piece of a list. Says whether it was the last.
fn add_listed(mut piece: &[u8], found: &mut Vec<Entry>) -> Result<bool, Errno> {
    const DONE: u16 = 3;
    while let Some(length) = piece.first_chunk::<4>() {
        let length = u32::from_ne_bytes(*length) as usize;
        let message = piece.get(..length).ok_or(Errno::EPROTO)?;
        let kind = message
            .get(4..6)
            .and_then(<[u8]>::first_chunk::<2>)
            .ok_or(Errno::EPROTO)?;
        match u16::from_ne_bytes(*kind) {
            DONE => return Ok(true),
            SOCK_DIAG_BY_FAMILY => found.push(listed(message).ok_or(Errno::EPROTO)?),
            // An error, also that there is no such question.
            _ => diagnosis_answer(message).map(drop)?,
        }
        piece = piece.get(length.next_multiple_of(4)..).unwrap_or_default();
    }
    Ok(false)
}

/// A `nlmsghdr` and an `inet_diag_msg`.
fn listed(message: &[u8]) -> Option<Entry> {
    const PORTS: usize = NETLINK_HEADER + 4;
    const ADDRESSES: usize = PORTS + 4;
    let is_version6 = i32::from(*message.get(NETLINK_HEADER)?) == libc::AF_INET6;
    let end = |index: usize| {
        let port = message.get(PORTS + 2 * index..)?.first_chunk::<2>()?;
        let address = message.get(ADDRESSES + 16 * index..)?;
        let ip = match is_version6 {
            true => IpAddr::from(*address.first_chunk::<16>()?),
            false => IpAddr::from(*address.first_chunk::<4>()?),
        };
        Some(SocketAddr::new(ip, u16::from_be_bytes(*port)))
    };
    let inode = message.get(INODE..)?.first_chunk::<4>()?;
    Some(Entry {
        local: end(0)?,
        peer: end(1)?,
        listens: message.get(STATE) == Some(&LISTENS),
        inode: u32::from_ne_bytes(*inode).into(),
    })
}

fn diagnosis_socket() -> Result<OwnedFd, Errno> {
    let kind = libc::SOCK_RAW | libc::SOCK_CLOEXEC;
    socket::create(libc::AF_NETLINK, kind, libc::NETLINK_SOCK_DIAG)
}

fn ask(local: SocketAddr, peer: SocketAddr) -> Result<Option<Found>, Errno> {
    let question = diagnosis_question(local, peer);
    let kernel = diagnosis_socket()?;
    socket::send(kernel.as_fd(), &question, 0, &[])?;
    let mut answer = [0; 4096];
    let length = nix::unistd::read(&kernel, &mut answer)?;
    diagnosis_answer(answer.get(..length).unwrap_or_default())
}

const NETLINK_HEADER: usize = 16;
/// Where a socket's state and inode are in what is told about it.
const STATE: usize = NETLINK_HEADER + 1;
const INODE: usize = NETLINK_HEADER + 68;
const SOCK_DIAG_BY_FAMILY: u16 = 20;

/// About one TCP socket.
fn diagnosis_question(local: SocketAddr, peer: SocketAddr) -> Vec<u8> {
    const REQUEST: u16 = 1;
    // In any state; the states only matter for lists.
    question(REQUEST, libc::IPPROTO_TCP, u32::MAX, local, peer)
}

/// About all sockets of a kind and of a family that have a port.
fn list_question(kind: Kind, local: SocketAddr) -> Vec<u8> {
    const REQUEST_FOR_ALL: u16 = 0x301;
    let anybody = SocketAddr::new(local.ip(), 0);
    let (protocol, states) = match kind {
        Kind::Datagrams => (libc::IPPROTO_UDP, u32::MAX),
        Kind::Listeners => (libc::IPPROTO_TCP, 1 << LISTENS),
    };
    question(REQUEST_FOR_ALL, protocol, states, local, anybody)
}

/// A `nlmsghdr` and an `inet_diag_req_v2`.
fn question(
    flags: u16,
    protocol: i32,
    states: u32,
    local: SocketAddr,
    peer: SocketAddr,
) -> Vec<u8> {
    const LENGTH: u32 = 72;
    let octets = |ip: IpAddr| -> Vec<u8> {
        let octets = match ip {
            IpAddr::V4(ip) if ip.is_unspecified() => Ipv4Addr::LOCALHOST.octets().to_vec(),
            IpAddr::V4(ip) => ip.octets().to_vec(),
            IpAddr::V6(ip) if ip.is_unspecified() => Ipv6Addr::LOCALHOST.octets().to_vec(),
            IpAddr::V6(ip) => ip.octets().to_vec(),
        };
        octets.into_iter().chain([0; 16]).take(16).collect()
    };
    let family = match local {
        SocketAddr::V4(_) => libc::AF_INET,
        SocketAddr::V6(_) => libc::AF_INET6,
    };
    let byte = |number: i32| u8::try_from(number).unwrap_or_default();
    let mut question = Vec::with_capacity(LENGTH as usize);
    question.extend(LENGTH.to_ne_bytes());
    question.extend(SOCK_DIAG_BY_FAMILY.to_ne_bytes());
    question.extend(flags.to_ne_bytes());
    // Number and sender: there is one question, and the kernel knows whose it is.
    question.extend([0; 8]);
    question.extend([byte(family), byte(protocol), 0, 0]);
    question.extend(states.to_ne_bytes());
    question.extend(local.port().to_be_bytes());
    question.extend(peer.port().to_be_bytes());
    question.extend(octets(local.ip()));
    question.extend(octets(peer.ip()));
    // No interface, and no cookie.
    question.extend([0; 4]);
    question.extend([0xff; 8]);
    question
}

/// A `nlmsghdr` and an `inet_diag_msg` or an error.
fn diagnosis_answer(answer: &[u8]) -> Result<Option<Found>, Errno> {
    const ERROR: u16 = 2;
    const COOKIE: usize = NETLINK_HEADER + 44;
    const NOT_THERE: i32 = -libc::ENOENT;
    let word = |at: usize| {
        let bytes = answer.get(at..at + 4)?;
        bytes.first_chunk::<4>().copied().map(u32::from_ne_bytes)
    };
    let found = || {
        let (lower, upper) = (u64::from(word(COOKIE)?), u64::from(word(COOKIE + 4)?));
        Some(Found {
            inode: u64::from(word(INODE)?),
            cookie: upper << 32 | lower,
            listens: answer.get(STATE) == Some(&LISTENS),
        })
    };
    let kind = answer.get(4..6).and_then(|bytes| bytes.first_chunk::<2>());
    match kind.copied().map(u16::from_ne_bytes) {
        // What is left of a connection that nobody has any more.
        Some(SOCK_DIAG_BY_FAMILY) if answer.get(STATE) == Some(&TIME_WAIT) => Ok(None),
        Some(SOCK_DIAG_BY_FAMILY) => found().map(Some).ok_or(Errno::EPROTO),
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
pub(crate) struct Entry {
    pub(crate) local: SocketAddr,
    pub(crate) peer: SocketAddr,
    pub(crate) listens: bool,
    pub(crate) inode: u64,
}

pub(crate) fn entries(tables: &[&str]) -> Vec<Entry> {
    let text = |table: &&str| std::fs::read_to_string(table).unwrap_or_default();
    let texts: Vec<String> = tables.iter().map(text).collect();
    let lines = texts.iter().flat_map(|text| text.lines().skip(1));
    lines.filter_map(parse).collect()
}

/// `sl local_address rem_address st tx:rx tr:when retransmit uid timeout inode …`
fn parse(line: &str) -> Option<Entry> {
    let mut words = line.split_ascii_whitespace().skip(1);
    let local = parse_address(words.next()?)?;
    let peer = parse_address(words.next()?)?;
    let listens = u8::from_str_radix(words.next()?, 16).ok()? == LISTENS;
    let inode = words.nth(5)?.parse().ok()?;
    Some(Entry {
        local,
        peer,
        listens,
        inode,
    })
}

fn parse_address(text: &str) -> Option<SocketAddr> {
    let (address, port) = text.split_once(':')?;
    let port = u16::from_str_radix(port, 16).ok()?;
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
    Some(SocketAddr::new(ip, port))
}

#[cfg(test)]
mod tests {
    use std::net::{TcpListener, TcpStream, UdpSocket};

    use super::*;

    #[test]
    fn lines_of_the_kernel_s_table() {
        let table = [
            (
                "   0: 0100007F:1F90 00000000:0000 0A 00000000:00000000 00:00000000 00000000  1000        0 4711 1 0 100 0 0 10 0",
                Some(("127.0.0.1:8080", "0.0.0.0:0", true, 4711)),
            ),
            (
                " 123: 00000000000000000000000001000000:0035 00000000000000000000000000000000:0000 07 00000000:00000000 00:00000000 00000000     0        0 99 2 0 0",
                Some(("[::1]:53", "[::]:0", false, 99)),
            ),
            ("  sl  local_address rem_address   st", None),
            ("", None),
        ];
        for (line, expected) in table {
            let expected = expected.map(|(local, peer, listens, inode)| Entry {
                local: local.parse().unwrap(),
                peer: peer.parse().unwrap(),
                listens,
                inode,
            });
            assert_eq!(parse(line), expected, "{line}");
        }
    }

    #[test]
    fn sockets_are_listed_by_their_port() {
        for address in ["127.0.0.1:0", "[::1]:0", "[::]:0"] {
            let listener = TcpListener::bind(address).unwrap();
            let there = listener.local_addr().unwrap();
            let accepted = TcpStream::connect(there).map(|ours| (ours, listener.accept()));
            let listener = OwnedFd::from(listener);
            let inode = inode_of(&listener).unwrap();
            let expected = Entry {
                local: there,
                peer: SocketAddr::new(unspecified(there), 0),
                listens: true,
                inode,
            };
            let Ok(listed) = list(Kind::Listeners, there.port()) else {
                println!("skipped: this kernel does not answer such questions");
                return;
            };
            assert!(listed.contains(&expected), "{listed:?}");
            // Connections are none.
            assert!(listed.iter().all(|entry| entry.listens), "{listed:?}");
            drop((listener, accepted));
            assert!(!any_listener(there.port(), |entry| entry.inode == inode));

            let datagrams = UdpSocket::bind(address).unwrap();
            let there = datagrams.local_addr().unwrap();
            datagrams.connect((there.ip(), 9)).unwrap();
            let datagrams = OwnedFd::from(datagrams);
            let inode = inode_of(&datagrams).unwrap();
            let is_it = |entry: &Entry| entry.inode == inode && entry.peer.port() == 9;
            assert!(any_datagram_socket(there.port(), is_it));
            drop(datagrams);
            assert!(!any_datagram_socket(there.port(), is_it));
        }
    }

    fn unspecified(like: SocketAddr) -> IpAddr {
        match like {
            SocketAddr::V4(_) => Ipv4Addr::UNSPECIFIED.into(),
            SocketAddr::V6(_) => Ipv6Addr::UNSPECIFIED.into(),
        }
    }

    #[test]
    fn a_connection_is_there_until_it_is_closed() {
        for ip in ["127.0.0.1", "::1"] {
            let listener = TcpListener::bind((ip, 0)).unwrap();
            let there = listener.local_addr().unwrap();
            let ours = TcpStream::connect(there).unwrap();
            let here = ours.local_addr().unwrap();
            let Ok(waiting) = connection_between(there, here) else {
                println!("skipped: this kernel does not answer such questions");
                return;
            };
            let waiting = waiting.unwrap();
            assert_eq!(waiting.inode, 0);
            let theirs = OwnedFd::from(listener.accept().unwrap().0);
            let accepted = connection_between(there, here).unwrap().unwrap();
            assert_eq!(Some(accepted.inode), inode_of(&theirs));
            assert_eq!(accepted.cookie, waiting.cookie);
            assert_eq!(socket::cookie(theirs.as_fd()), Ok(accepted.cookie));
            drop(ours);
            assert!(connection_between(there, here).unwrap().is_some());
            drop(theirs);
            assert_eq!(connection_between(there, here), Ok(None));
        }
    }
}
