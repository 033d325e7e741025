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

fn ask(local: SocketAddr, peer: SocketAddr) -> Result<Option<Found>, Errno> {
    let question = diagnosis_question(local, peer);
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
fn diagnosis_question(local: SocketAddr, peer: SocketAddr) -> Vec<u8> {
    const LENGTH: u32 = 72;
    const REQUEST: u16 = 1;
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
    question.extend(REQUEST.to_ne_bytes());
    // Number and sender: there is one question, and the kernel knows whose it is.
    question.extend([0; 8]);
    question.extend([byte(family), byte(libc::IPPROTO_TCP), 0, 0]);
    // In any state; the states only matter for lists.
    question.extend(u32::MAX.to_ne_bytes());
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
    const STATE: usize = NETLINK_HEADER + 1;
    const COOKIE: usize = NETLINK_HEADER + 44;
    const INODE: usize = NETLINK_HEADER + 68;
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
    use std::net::{TcpListener, TcpStream};

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
