//! The sockets of the target's network, as the kernel lists them, and ending them.

use std::collections::HashSet;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};

use rustix::io::Errno;
use rustix::net::netlink::SOCK_DIAG;

use super::netlink::{ACKNOWLEDGE, Content, DUMP, Message, Netlink, attributes};
use super::rules::PASSING;
use crate::{Error, Result};

const BY_FAMILY: u16 = 20;
const DESTROY: u16 = 21;
const TCP: u8 = 6;
const FAMILY_IPV4: u8 = 2;
const FAMILY_IPV6: u8 = 10;
const ATTRIBUTE_MARK: u16 = 15;
/// The states of TCP, as numbers of bits.
const TIME_WAIT: u32 = 6;
const CLOSE: u32 = 7;
const LISTEN: u32 = 10;
/// What there is of a connection that somebody could still use.
const OPEN_STATES: u32 = !(1 << TIME_WAIT | 1 << CLOSE | 1 << LISTEN);

/// The length of what names a socket: ports, addresses, interface, cookie.
const IDENTITY: usize = 48;
/// Where the number of the file is by which a program has the socket.
const INODE: usize = 68;
/// Where the attributes begin in the description of a socket.
const DESCRIPTION: usize = 72;

#[derive(Debug, Clone, PartialEq, Eq)]
struct Socket {
    family: u8,
    /// As the kernel wrote it, to name the socket to it again.
    identity: [u8; IDENTITY],
    local: SocketAddr,
    peer: SocketAddr,
    mark: u32,
    /// Whether a program has it.
    is_held: bool,
}

/// Resets the connections to a port of the target, but not those that the agent has accepted or made itself. Answers how
/// many there were. Must run inside the target's network.
pub(super) fn reset(port: u16) -> Result<usize> {
    let mut netlink = open()?;
    let sockets = list(&mut netlink, OPEN_STATES).map_err(unknown)?;
    let mut count = 0;
    for socket in foreign_connections(&sockets, port) {
        let mut message = question(DESTROY, ACKNOWLEDGE, socket.family, OPEN_STATES);
        message.body.truncate(8);
        message.body.extend_from_slice(&socket.identity);
        for answer in netlink.request(&[message]).map_err(unknown)? {
            match answer.content {
                Content::Done => count += 1,
                // It ended by itself.
                Content::Failed(Errno::NOENT) | Content::Item(_) => {}
                Content::Failed(errno) => return Err(cannot_reset(errno)),
            }
        }
    }
    Ok(count)
}

/// Whether the kernel still has connections to one of these ports that nobody has accepted on our listeners: half open ones,
/// and those that wait. Must run inside the target's network.
pub(super) fn are_arriving(ports: &[u16]) -> Result<bool> {
    let sockets = list(&mut open()?, OPEN_STATES).map_err(unknown)?;
    Ok(sockets.iter().any(|socket| {
        let is_ours = socket.mark == PASSING && ports.contains(&socket.local.port());
        is_ours && !socket.is_held
    }))
}

/// The ports at which somebody listens. Must run inside the target's network.
pub(super) fn listening_ports() -> Result<HashSet<u16>> {
    let sockets = list(&mut open()?, 1 << LISTEN).map_err(unknown)?;
    Ok(sockets.iter().map(|socket| socket.local.port()).collect())
}

/// Connections at a port that are neither ours nor the application's end of ours.
fn foreign_connections(sockets: &[Socket], port: u16) -> impl Iterator<Item = &Socket> {
    let is_ours = |socket: &&Socket| socket.mark == PASSING;
    let ours: HashSet<_> = sockets
        .iter()
        .filter(is_ours)
        .map(|socket| (socket.peer, socket.local))
        .collect();
    sockets.iter().filter(move |socket| {
        socket.local.port() == port
            && !is_ours(socket)
            && !ours.contains(&(socket.local, socket.peer))
    })
}

fn open() -> Result<Netlink> {
    Netlink::open(Some(SOCK_DIAG)).map_err(unknown)
}

fn list(netlink: &mut Netlink, states: u32) -> Result<Vec<Socket>, Errno> {
    let mut sockets = Vec::new();
    for family in [FAMILY_IPV4, FAMILY_IPV6] {
        let items = match netlink.items(question(BY_FAMILY, DUMP, family, states)) {
            // The kernel has no IPv6.
            Err(Errno::NOENT) if family == FAMILY_IPV6 => continue,
            items => items?,
        };
        sockets.extend(items.iter().filter_map(|item| parse(item)));
    }
    Ok(sockets)
}

fn question(kind: u16, flags: u16, family: u8, states: u32) -> Message {
    let mut body = vec![family, TCP, 0, 0];
    body.extend_from_slice(&states.to_ne_bytes());
    body.resize(8 + IDENTITY, 0);
    Message { kind, flags, body }
}

fn parse(item: &[u8]) -> Option<Socket> {
    let family = *item.first()?;
    let identity: [u8; IDENTITY] = item.get(4..4 + IDENTITY)?.try_into().ok()?;
    let end = |port: usize, address: usize| {
        let port = u16::from_be_bytes([identity[port], identity[port + 1]]);
        let bytes: [u8; 16] = identity[address..address + 16].try_into().ok()?;
        let address = match family {
            FAMILY_IPV4 => Ipv4Addr::new(bytes[0], bytes[1], bytes[2], bytes[3]).into(),
            // A socket for both families has the addresses of IPv4 inside those of IPv6.
            _ => IpAddr::V6(Ipv6Addr::from(bytes)).to_canonical(),
        };
        Some(SocketAddr::new(address, port))
    };
    let mark = attributes(item.get(DESCRIPTION..)?)
        .find(|(kind, _)| *kind == ATTRIBUTE_MARK)
        .and_then(|(_, value)| Some(u32::from_ne_bytes(value.try_into().ok()?)));
    Some(Socket {
        family,
        identity,
        local: end(0, 4)?,
        peer: end(2, 20)?,
        mark: mark.unwrap_or_default(),
        is_held: item.get(INODE..DESCRIPTION)? != [0; 4],
    })
}

fn unknown(source: Errno) -> Error {
    Error::Agent {
        action: "list the target's connections",
        hint: "run it on a kernel with CONFIG_INET_DIAG (module tcp_diag)",
        source,
    }
}

fn cannot_reset(source: Errno) -> Error {
    let hint = match source {
        Errno::PERM | Errno::ACCESS => {
            "it needs the capability NET_ADMIN in the target's network: give it to the agent"
        }
        _ => {
            "this kernel is built without CONFIG_INET_DIAG_DESTROY: go on without flush_connections, and restart clients that \
             keep connections open"
        }
    };
    Error::Agent {
        action: "reset the target's open connections",
        hint,
        source,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn socket(local: &str, peer: &str, mark: u32) -> Socket {
        Socket {
            family: FAMILY_IPV4,
            identity: [0; IDENTITY],
            local: local.parse().unwrap(),
            peer: peer.parse().unwrap(),
            mark,
            is_held: true,
        }
    }

    #[test]
    fn only_foreign_connections_are_reset() {
        let foreign = socket("10.0.0.1:80", "10.0.0.2:5000", 0);
        let sockets = [
            foreign.clone(),
            socket("10.0.0.1:81", "10.0.0.2:5000", 0),
            // Accepted by us.
            socket("10.0.0.1:80", "10.0.0.2:5001", PASSING),
            // Ours to the application, and its other end.
            socket("10.0.0.1:6000", "10.0.0.1:80", PASSING),
            socket("10.0.0.1:80", "10.0.0.1:6000", 0),
        ];
        let found: Vec<_> = foreign_connections(&sockets, 80).collect();
        assert_eq!(found, [&foreign]);
    }

    #[test]
    fn a_description_that_is_cut_short_is_no_socket() {
        let whole = [&[FAMILY_IPV6][..], &[0; DESCRIPTION - 1]].concat();
        assert!(parse(&whole).is_some());
        for length in 0..whole.len() {
            assert_eq!(parse(&whole[..length]), None);
        }
    }
}
