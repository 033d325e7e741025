//! Transparent sockets in the target's network, for addresses that are not their own. Must be created by a thread inside
//! that network.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};
use std::os::fd::OwnedFd;

use rustix::io::Errno;
use rustix::net::{
    AddressFamily, SocketFlags, SocketType, bind, getsockname, listen, socket_with, sockopt,
};

use super::rules::{LISTEN_IPV4, LISTEN_IPV6, ListenerPorts, PASSTHROUGH_MARK, REPLY_MARK};
use super::sys;
use crate::{Error, Result};

/// The kernel limits it to the maximum of the namespace.
const BACKLOG: i32 = 65_535;

/// One socket for each address family that the kernel supports.
#[derive(Debug)]
pub(super) struct SocketPair {
    pub(super) ipv4: OwnedFd,
    pub(super) ipv6: Option<OwnedFd>,
    pub(super) ports: ListenerPorts,
}

/// The listeners for the connections of all redirected ports.
pub(super) fn listeners() -> Result<SocketPair> {
    let pair = pair(SocketType::STREAM, PASSTHROUGH_MARK)?;
    for socket in [Some(&pair.ipv4), pair.ipv6.as_ref()].into_iter().flatten() {
        listen(socket, BACKLOG).map_err(to_error)?;
    }
    Ok(pair)
}

/// The sockets for the datagrams and replies of one redirected port.
pub(super) fn datagrams() -> Result<SocketPair> {
    pair(SocketType::DGRAM, REPLY_MARK)
}

/// A socket for a connection to the application, or for datagrams to it. Its mark exempts it from the redirection.
pub(super) fn passthrough(address: IpAddr, kind: SocketType) -> Result<OwnedFd> {
    let socket = make(address.is_ipv6(), kind).map_err(Error::operation("make a socket"))?;
    sys::set_mark(&socket, PASSTHROUGH_MARK).map_err(to_error)?;
    Ok(socket)
}

/// An ordinary socket for a probe, and its port.
pub(super) fn probe(address: IpAddr, kind: SocketType) -> Result<(OwnedFd, u16), Errno> {
    let socket = make(address.is_ipv6(), kind)?;
    let any: IpAddr = match address {
        IpAddr::V4(_) => Ipv4Addr::UNSPECIFIED.into(),
        IpAddr::V6(_) => Ipv6Addr::UNSPECIFIED.into(),
    };
    bind(&socket, &SocketAddr::new(any, 0))?;
    let port = own_port(&socket)?;
    Ok((socket, port))
}

fn pair(kind: SocketType, mark: u32) -> Result<SocketPair> {
    let bound = |address: IpAddr| {
        let ipv6 = address.is_ipv6();
        let socket = make(ipv6, kind)?;
        sys::set_transparent(&socket, ipv6)?;
        // Lets a restarted application bind to its port while connections that we accepted on that port are open.
        sockopt::set_socket_reuseaddr(&socket, kind == SocketType::STREAM)?;
        sys::set_mark(&socket, mark)?;
        if kind == SocketType::DGRAM {
            sys::set_receive_destination(&socket, ipv6)?;
        }
        bind(&socket, &SocketAddr::new(address, 0))?;
        let port = own_port(&socket)?;
        Ok((socket, port))
    };
    let (ipv4, ipv4_port) = bound(LISTEN_IPV4.into()).map_err(to_error)?;
    let (ipv6, ipv6_port) = match bound(LISTEN_IPV6.into()) {
        Ok((socket, port)) => (Some(socket), Some(port)),
        // The kernel has no IPv6.
        Err(Errno::AFNOSUPPORT) => (None, None),
        Err(errno) => return Err(to_error(errno)),
    };
    Ok(SocketPair {
        ipv4,
        ipv6,
        ports: ListenerPorts {
            ipv4: ipv4_port,
            ipv6: ipv6_port,
        },
    })
}

fn make(ipv6: bool, kind: SocketType) -> Result<OwnedFd, Errno> {
    let family = match ipv6 {
        true => AddressFamily::INET6,
        false => AddressFamily::INET,
    };
    let flags = SocketFlags::CLOEXEC | SocketFlags::NONBLOCK;
    let socket = socket_with(family, kind, flags, None)?;
    if ipv6 {
        sockopt::set_ipv6_v6only(&socket, true)?;
    }
    Ok(socket)
}

fn own_port(socket: &OwnedFd) -> Result<u16, Errno> {
    Ok(SocketAddr::try_from(getsockname(socket)?)?.port())
}

fn to_error(source: Errno) -> Error {
    let hint = match source {
        Errno::PERM | Errno::ACCESS => {
            "it needs the capability NET_ADMIN in the target's network: give it to the agent"
        }
        Errno::MFILE | Errno::NFILE => "raise its limit of descriptors (`ulimit -n`)",
        _ => "run it on a kernel with transparent sockets (IP_TRANSPARENT)",
    };
    Error::Agent {
        action: "listen for the target's traffic",
        hint,
        source,
    }
}
