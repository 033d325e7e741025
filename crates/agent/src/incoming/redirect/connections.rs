//! Lists the sockets of the target's network, and resets connections (`sock_diag`).

use std::collections::HashSet;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};

use rustix::io::Errno;
use rustix::net::netlink::SOCK_DIAG;

use super::netlink::{ACKNOWLEDGE, DUMP, Message, Netlink, ResponseContent, attributes};
use super::rules::{LISTEN_IPV4, LISTEN_IPV6, PASSTHROUGH_MARK};
use super::{Port, Protocol};
use crate::{Error, Result};

const BY_FAMILY: u16 = 20;
const DESTROY: u16 = 21;
const TCP: u8 = 6;
const UDP: u8 = 17;
const FAMILY_IPV4: u8 = 2;
const FAMILY_IPV6: u8 = 10;
const ATTRIBUTE_MARK: u16 = 15;
/// The states of TCP, as bit numbers.
const TIME_WAIT: u32 = 6;
const CLOSE: u32 = 7;
const LISTEN: u32 = 10;
/// The states of connections that can still be used.
const OPEN_STATES: u32 = !(1 << TIME_WAIT | 1 << CLOSE | 1 << LISTEN);
const LISTEN_STATES: u32 = 1 << LISTEN;
/// The kernel reports this state for UDP sockets that are not connected.
const UNCONNECTED_STATES: u32 = 1 << CLOSE;

/// The length of the identity of a socket: ports, addresses, interface, cookie.
const IDENTITY_LEN: usize = 48;
/// The offset of the cookie in the identity: two numbers of 32 bits, the lower one first.
const COOKIE_OFFSET: usize = 40;
/// The offset of the socket's inode number. It is 0 if no process has accepted the socket.
const INODE_OFFSET: usize = 68;
/// The offset of the attributes in the description of a socket.
const ATTRIBUTES_OFFSET: usize = 72;

#[derive(Debug, Clone, PartialEq, Eq)]
struct Socket {
    family: u8,
    /// As the kernel wrote it, to identify the socket in later requests.
    identity: [u8; IDENTITY_LEN],
    local: SocketAddr,
    peer: SocketAddr,
    mark: u32,
    /// Whether a process has accepted or opened it.
    is_accepted: bool,
}

/// Resets the connections to a port of the target, except those that the agent has accepted or opened itself. Returns how
/// many there were. Must run inside the target's network.
pub(super) fn reset(port: u16) -> Result<usize> {
    let mut netlink = open()?;
    let sockets = list(&mut netlink, TCP, OPEN_STATES).map_err(list_error)?;
    let mut count = 0;
    for socket in foreign_connections(&sockets, port) {
        let mut message = request(DESTROY, ACKNOWLEDGE, TCP, socket.family, OPEN_STATES);
        message.body.truncate(8);
        message.body.extend_from_slice(&socket.identity);
        for response in netlink.request(&[message]).map_err(list_error)? {
            match response.content {
                ResponseContent::Done => count += 1,
                // It has ended meanwhile.
                ResponseContent::Failed(Errno::NOENT) | ResponseContent::Item(_) => {}
                ResponseContent::Failed(errno) => return Err(reset_error(errno)),
            }
        }
    }
    Ok(count)
}

/// Whether the kernel still has connections to one of these ports that were not accepted from our listeners: half-open ones,
/// and those in the backlog. Must run inside the target's network.
pub(super) fn has_unaccepted(ports: &[u16]) -> Result<bool> {
    let sockets = list(&mut open()?, TCP, OPEN_STATES).map_err(list_error)?;
    Ok(sockets.iter().any(|socket| {
        let is_ours = socket.mark == PASSTHROUGH_MARK && ports.contains(&socket.local.port());
        is_ours && !socket.is_accepted
    }))
}

/// The TCP ports on which a process listens. Must run inside the target's network.
pub(super) fn listening_ports() -> Result<HashSet<u16>> {
    let sockets = list(&mut open()?, TCP, LISTEN_STATES).map_err(list_error)?;
    Ok(sockets.iter().map(|socket| socket.local.port()).collect())
}

/// The cookies of the sockets that listen on a port, other than our own. Must run inside the target's network.
pub(super) fn listeners(port: Port) -> Result<Vec<u64>> {
    let (protocol, states) = match port.protocol {
        Protocol::Tcp => (TCP, LISTEN_STATES),
        Protocol::Udp => (UDP, UNCONNECTED_STATES),
    };
    let sockets = list(&mut open()?, protocol, states).map_err(list_error)?;
    let is_ours = |socket: &Socket| {
        let address = socket.local.ip();
        address == IpAddr::from(LISTEN_IPV4) || address == IpAddr::from(LISTEN_IPV6)
    };
    let listeners = sockets
        .iter()
        .filter(|socket| socket.local.port() == port.number && !is_ours(socket));
    Ok(listeners.map(Socket::cookie).collect())
}

/// Connections to a port that are neither the agent's own nor the application's end of them.
fn foreign_connections(sockets: &[Socket], port: u16) -> impl Iterator<Item = &Socket> {
    let is_ours = |socket: &&Socket| socket.mark == PASSTHROUGH_MARK;
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
    Netlink::open(Some(SOCK_DIAG)).map_err(list_error)
}

impl Socket {
    fn cookie(&self) -> u64 {
        let half = |at: usize| {
            let bytes = self.identity.get(at..at + 4);
            let bytes = bytes.and_then(|four| four.try_into().ok());
            u64::from(u32::from_ne_bytes(bytes.unwrap_or_default()))
        };
        half(COOKIE_OFFSET) | half(COOKIE_OFFSET + 4) << 32
    }
}

fn list(netlink: &mut Netlink, protocol: u8, states: u32) -> Result<Vec<Socket>, Errno> {
    let mut sockets = Vec::new();
    for family in [FAMILY_IPV4, FAMILY_IPV6] {
        let items = match netlink.items(request(BY_FAMILY, DUMP, protocol, family, states)) {
            // The kernel has no IPv6.
            Err(Errno::NOENT) if family == FAMILY_IPV6 => continue,
            items => items?,
        };
        sockets.extend(items.iter().filter_map(|item| parse(item)));
    }
    Ok(sockets)
}

fn request(kind: u16, flags: u16, protocol: u8, family: u8, states: u32) -> Message {
    let mut body = vec![family, protocol, 0, 0];
    body.extend_from_slice(&states.to_ne_bytes());
    body.resize(8 + IDENTITY_LEN, 0);
    Message { kind, flags, body }
}

fn parse(item: &[u8]) -> Option<Socket> {
    let family = *item.first()?;
    let identity: [u8; IDENTITY_LEN] = item.get(4..4 + IDENTITY_LEN)?.try_into().ok()?;
    let end = |port: usize, address: usize| {
        let port = u16::from_be_bytes([identity[port], identity[port + 1]]);
        let bytes: [u8; 16] = identity[address..address + 16].try_into().ok()?;
        let address = match family {
            FAMILY_IPV4 => Ipv4Addr::new(bytes[0], bytes[1], bytes[2], bytes[3]).into(),
            // A dual-stack socket has IPv4-mapped IPv6 addresses.
            _ => IpAddr::V6(Ipv6Addr::from(bytes)).to_canonical(),
        };
        Some(SocketAddr::new(address, port))
    };
    let mark = attributes(item.get(ATTRIBUTES_OFFSET..)?)
        .find(|(kind, _)| *kind == ATTRIBUTE_MARK)
        .and_then(|(_, value)| Some(u32::from_ne_bytes(value.try_into().ok()?)));
    Some(Socket {
        family,
        identity,
        local: end(0, 4)?,
        peer: end(2, 20)?,
        mark: mark.unwrap_or_default(),
        is_accepted: item.get(INODE_OFFSET..ATTRIBUTES_OFFSET)? != [0; 4],
    })
}

fn list_error(source: Errno) -> Error {
    Error::Agent {
        action: "list the target's connections",
        hint: "run it on a kernel with CONFIG_INET_DIAG (module tcp_diag)",
        source,
    }
}

fn reset_error(source: Errno) -> Error {
    let hint = match source {
        Errno::PERM | Errno::ACCESS => {
            "it needs the capability NET_ADMIN in the target's network: give it to the agent"
        }
        _ => {
            "this kernel is built without CONFIG_INET_DIAG_DESTROY: continue without flush_connections, and restart clients \
             that keep connections open"
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
            identity: [0; IDENTITY_LEN],
            local: local.parse().unwrap(),
            peer: peer.parse().unwrap(),
            mark,
            is_accepted: true,
        }
    }

    #[test]
    fn only_foreign_connections_are_reset() {
        let foreign = socket("10.0.0.1:80", "10.0.0.2:5000", 0);
        let sockets = [
            foreign.clone(),
            socket("10.0.0.1:81", "10.0.0.2:5000", 0),
            // Accepted by the agent.
            socket("10.0.0.1:80", "10.0.0.2:5001", PASSTHROUGH_MARK),
            // The agent's connection to the application, and its other end.
            socket("10.0.0.1:6000", "10.0.0.1:80", PASSTHROUGH_MARK),
            socket("10.0.0.1:80", "10.0.0.1:6000", 0),
        ];
        let found: Vec<_> = foreign_connections(&sockets, 80).collect();
        assert_eq!(found, [&foreign]);
    }

    #[test]
    fn a_cookie_has_its_lower_half_first() {
        let mut socket = socket("10.0.0.1:80", "0.0.0.0:0", 0);
        socket.identity[COOKIE_OFFSET..COOKIE_OFFSET + 4].copy_from_slice(&7_u32.to_ne_bytes());
        socket.identity[COOKIE_OFFSET + 4..].copy_from_slice(&1_u32.to_ne_bytes());
        assert_eq!(socket.cookie(), 7 + (1 << 32));
    }

    #[test]
    fn a_truncated_description_is_rejected() {
        let whole = [&[FAMILY_IPV6][..], &[0; ATTRIBUTES_OFFSET - 1]].concat();
        assert!(parse(&whole).is_some());
        for length in 0..whole.len() {
            assert_eq!(parse(&whole[..length]), None);
        }
    }
}
