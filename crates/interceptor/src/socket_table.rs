//! Queries for the sockets of this machine: `sock_diag` and the tables in `/proc/net`.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};
use std::os::fd::{AsFd, OwnedFd};

use crate::Errno;
use crate::sys::socket;

pub(crate) const TCP_TABLES: [&str; 2] = ["/proc/self/net/tcp", "/proc/self/net/tcp6"];
pub(crate) const UDP_TABLES: [&str; 2] = ["/proc/self/net/udp", "/proc/self/net/udp6"];

/// States of TCP sockets, as numbered by the kernel.
const TCP_TIME_WAIT: u8 = 6;
const TCP_LISTEN: u8 = 10;

/// Information of the kernel about a TCP socket.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct TcpSocketInfo {
    /// Zero for a connection that has not been accepted yet.
    pub(crate) inode: u64,
    /// The value of `SO_COOKIE`.
    pub(crate) cookie: u64,
    pub(crate) listens: bool,
}

/// The inode by which the tables of the kernel identify a socket.
pub(crate) fn inode_of(socket: &OwnedFd) -> Option<u64> {
    let metadata = nix::sys::stat::fstat(socket).ok()?;
    Some(metadata.st_ino)
}

/// The socket that accepts connections to an address of this machine, according to the kernel (`sock_diag(7)`).
pub(crate) fn listener_at(address: SocketAddr) -> Result<Option<TcpSocketInfo>, Errno> {
    // With port 0 as the peer: no connection has it, so the listener is found.
    let no_peer = SocketAddr::new(address.ip(), 0);
    query(address, no_peer)
}

/// The socket with local address `local` that is connected to `peer`; `None` if it was closed.
pub(crate) fn connection_between(
    local: SocketAddr,
    peer: SocketAddr,
) -> Result<Option<TcpSocketInfo>, Errno> {
    // Without the connection, the listener is found.
    Ok(query(local, peer)?.filter(|found| !found.listens))
}

/// Whether a matching datagram socket is bound to a port.
pub(crate) fn any_datagram_socket(port: u16, matches: impl Fn(&Entry) -> bool) -> bool {
    any(SocketKind::Datagrams, port, matches)
}

/// Whether a matching TCP socket listens on a port.
pub(crate) fn any_listener(port: u16, matches: impl Fn(&Entry) -> bool) -> bool {
    any(SocketKind::Listeners, port, matches)
}

/// The kinds of sockets that are listed.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum SocketKind {
    Datagrams,
    Listeners,
}

/// The kernel walks its table in one pass, so the list is complete.
fn any(kind: SocketKind, port: u16, matches: impl Fn(&Entry) -> bool) -> bool {
    match list(kind, port) {
        Ok(sockets) => sockets.iter().any(matches),
        // The kernel may not support this query. Its table is read in pieces, and a socket may be missing when others
        // are opened and closed meanwhile. So a socket that is not found is searched again.
        Err(_) => (0..MAX_TABLE_READS).any(|_| {
            let (tables, listens) = match kind {
                SocketKind::Datagrams => (UDP_TABLES, false),
                SocketKind::Listeners => (TCP_TABLES, true),
            };
            let is_meant = |entry: &Entry| entry.local.port() == port && entry.listens == listens;
            let sockets = entries(&tables);
            sockets
                .iter()
                .any(|entry| is_meant(entry) && matches(entry))
        }),
    }
}

/// How often the table is read for a socket that is not found.
const MAX_TABLE_READS: usize = 4;

/// Lists all sockets of a kind on a port.
fn list(kind: SocketKind, port: u16) -> Result<Vec<Entry>, Errno> {
    let mut found = Vec::new();
    for any in [
        IpAddr::from(Ipv4Addr::UNSPECIFIED),
        Ipv6Addr::UNSPECIFIED.into(),
    ] {
        let kernel = sock_diag_socket()?;
        let request = list_request(kind, SocketAddr::new(any, port));
        socket::send(kernel.as_fd(), &request, 0, &[])?;
        let mut response = vec![0; 32 * 1024];
        loop {
            let length = nix::unistd::read(&kernel, &mut response)?;
            if add_listed(response.get(..length).unwrap_or_default(), &mut found)? {
                break;
            }
        }
    }
    Ok(found)
}

/// Parses a part of a list. Returns whether it was the last.
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
            // An error, including an unsupported query.
            _ => parse_response(message).map(drop)?,
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
        listens: message.get(STATE) == Some(&TCP_LISTEN),
        inode: u32::from_ne_bytes(*inode).into(),
    })
}

/// A socket filter that accepts only messages about sockets without a peer.
pub(crate) fn without_peer_filter() -> [libc::sock_filter; 4] {
    const PEER_PORT: u32 = 22;
    const LOAD_HALF_WORD: u16 = 0x28;
    const JUMP_IF_EQUAL: u16 = 0x15;
    const RETURN: u16 = 0x06;
    let instruction = |code, k, jt, jf| libc::sock_filter { code, jt, jf, k };
    [
        instruction(LOAD_HALF_WORD, PEER_PORT, 0, 0),
        instruction(JUMP_IF_EQUAL, 0, 0, 1),
        instruction(RETURN, u32::MAX, 0, 0),
        instruction(RETURN, 0, 0, 0),
    ]
}

/// The cookie of the socket that a message is about.
pub(crate) fn cookie_of(message: &[u8]) -> Option<u64> {
    parse_response(message)
        .ok()
        .flatten()
        .map(|socket| socket.cookie)
}

fn sock_diag_socket() -> Result<OwnedFd, Errno> {
    let kind = libc::SOCK_RAW | libc::SOCK_CLOEXEC;
    socket::create(libc::AF_NETLINK, kind, libc::NETLINK_SOCK_DIAG)
}

fn query(local: SocketAddr, peer: SocketAddr) -> Result<Option<TcpSocketInfo>, Errno> {
    let request = socket_request(local, peer);
    let kernel = sock_diag_socket()?;
    socket::send(kernel.as_fd(), &request, 0, &[])?;
    let mut response = [0; 4096];
    let length = nix::unistd::read(&kernel, &mut response)?;
    parse_response(response.get(..length).unwrap_or_default())
}

const NETLINK_HEADER: usize = 16;
/// Offsets of the state and inode of a socket in a response.
const STATE: usize = NETLINK_HEADER + 1;
const INODE: usize = NETLINK_HEADER + 68;
const SOCK_DIAG_BY_FAMILY: u16 = 20;

/// A query for one TCP socket.
fn socket_request(local: SocketAddr, peer: SocketAddr) -> Vec<u8> {
    const REQUEST: u16 = 1;
    // In any state; the states only matter for lists.
    request(REQUEST, libc::IPPROTO_TCP, u32::MAX, local, peer)
}

/// A query for all sockets of a kind and family on a port.
fn list_request(kind: SocketKind, local: SocketAddr) -> Vec<u8> {
    const REQUEST_DUMP: u16 = 0x301;
    let any_peer = SocketAddr::new(local.ip(), 0);
    let (protocol, states) = match kind {
        SocketKind::Datagrams => (libc::IPPROTO_UDP, u32::MAX),
        SocketKind::Listeners => (libc::IPPROTO_TCP, 1 << TCP_LISTEN),
    };
    request(REQUEST_DUMP, protocol, states, local, any_peer)
}

/// A `nlmsghdr` and an `inet_diag_req_v2`.
fn request(flags: u16, protocol: i32, states: u32, local: SocketAddr, peer: SocketAddr) -> Vec<u8> {
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
    let mut request = Vec::with_capacity(LENGTH as usize);
    request.extend(LENGTH.to_ne_bytes());
    request.extend(SOCK_DIAG_BY_FAMILY.to_ne_bytes());
    request.extend(flags.to_ne_bytes());
    // Sequence number and sender: there is one request, and the kernel knows its socket.
    request.extend([0; 8]);
    request.extend([byte(family), byte(protocol), 0, 0]);
    request.extend(states.to_ne_bytes());
    request.extend(local.port().to_be_bytes());
    request.extend(peer.port().to_be_bytes());
    request.extend(octets(local.ip()));
    request.extend(octets(peer.ip()));
    // No interface, and no cookie.
    request.extend([0; 4]);
    request.extend([0xff; 8]);
    request
}

/// A `nlmsghdr` and an `inet_diag_msg` or an error.
fn parse_response(response: &[u8]) -> Result<Option<TcpSocketInfo>, Errno> {
    const ERROR: u16 = 2;
    const COOKIE: usize = NETLINK_HEADER + 44;
    const NOT_FOUND: i32 = -libc::ENOENT;
    let word = |at: usize| {
        let bytes = response.get(at..at + 4)?;
        bytes.first_chunk::<4>().copied().map(u32::from_ne_bytes)
    };
    let found = || {
        let (lower, upper) = (u64::from(word(COOKIE)?), u64::from(word(COOKIE + 4)?));
        Some(TcpSocketInfo {
            inode: u64::from(word(INODE)?),
            cookie: upper << 32 | lower,
            listens: response.get(STATE) == Some(&TCP_LISTEN),
        })
    };
    let kind = response
        .get(4..6)
        .and_then(|bytes| bytes.first_chunk::<2>());
    match kind.copied().map(u16::from_ne_bytes) {
        // The remains of a connection that is closed on both sides.
        Some(SOCK_DIAG_BY_FAMILY) if response.get(STATE) == Some(&TCP_TIME_WAIT) => Ok(None),
        Some(SOCK_DIAG_BY_FAMILY) => found().map(Some).ok_or(Errno::EPROTO),
        Some(ERROR) => match word(NETLINK_HEADER).map(u32::cast_signed) {
            Some(NOT_FOUND) => Ok(None),
            Some(number) => Err(Errno::from_raw(-number)),
            None => Err(Errno::EPROTO),
        },
        _ => Err(Errno::EPROTO),
    }
}

/// An entry of the kernel's socket table.
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
    let listens = u8::from_str_radix(words.next()?, 16).ok()? == TCP_LISTEN;
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
    // Each group of four bytes is printed as a number in native byte order.
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
    fn kernel_table_lines() {
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
    fn sockets_are_listed_by_port() {
        for any_port in ["127.0.0.1:0", "[::1]:0", "[::]:0"] {
            let listener = TcpListener::bind(any_port).unwrap();
            let address = listener.local_addr().unwrap();
            let accepted = TcpStream::connect(address).map(|ours| (ours, listener.accept()));
            let listener = OwnedFd::from(listener);
            let inode = inode_of(&listener).unwrap();
            let expected = Entry {
                local: address,
                peer: SocketAddr::new(unspecified(address), 0),
                listens: true,
                inode,
            };
            let Ok(listed) = list(SocketKind::Listeners, address.port()) else {
                println!("skipped: this kernel does not support sock_diag");
                return;
            };
            assert!(listed.contains(&expected), "{listed:?}");
            // Connections are not listed.
            assert!(listed.iter().all(|entry| entry.listens), "{listed:?}");
            drop((listener, accepted));
            assert!(!any_listener(address.port(), |entry| entry.inode == inode));

            let datagrams = UdpSocket::bind(any_port).unwrap();
            let address = datagrams.local_addr().unwrap();
            datagrams.connect((address.ip(), 9)).unwrap();
            let datagrams = OwnedFd::from(datagrams);
            let inode = inode_of(&datagrams).unwrap();
            let matches = |entry: &Entry| entry.inode == inode && entry.peer.port() == 9;
            assert!(any_datagram_socket(address.port(), matches));
            drop(datagrams);
            assert!(!any_datagram_socket(address.port(), matches));
        }
    }

    fn unspecified(like: SocketAddr) -> IpAddr {
        match like {
            SocketAddr::V4(_) => Ipv4Addr::UNSPECIFIED.into(),
            SocketAddr::V6(_) => Ipv6Addr::UNSPECIFIED.into(),
        }
    }

    #[test]
    fn connection_is_found_until_closed() {
        for ip in ["127.0.0.1", "::1"] {
            let listener = TcpListener::bind((ip, 0)).unwrap();
            let address = listener.local_addr().unwrap();
            let ours = TcpStream::connect(address).unwrap();
            let peer = ours.local_addr().unwrap();
            let Ok(waiting) = connection_between(address, peer) else {
                println!("skipped: this kernel does not support sock_diag");
                return;
            };
            let waiting = waiting.unwrap();
            assert_eq!(waiting.inode, 0);
            let theirs = OwnedFd::from(listener.accept().unwrap().0);
            let accepted = connection_between(address, peer).unwrap().unwrap();
            assert_eq!(Some(accepted.inode), inode_of(&theirs));
            assert_eq!(accepted.cookie, waiting.cookie);
            assert_eq!(socket::cookie(theirs.as_fd()), Ok(accepted.cookie));
            drop(ours);
            assert!(connection_between(address, peer).unwrap().is_some());
            drop(theirs);
            assert_eq!(connection_between(address, peer), Ok(None));
        }
    }
}
