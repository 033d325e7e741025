//! Outgoing: connections from the target's network.
//!
//! A socket permanently belongs to the network namespace in which it was created. So a thread in the target's namespace only
//! creates sockets. The runtime connects them and transfers the bytes, so many connections need no further threads.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};
use std::os::fd::OwnedFd;
use std::sync::Arc;

use http::{Request, Response};
use protocol::outgoing::{Connected, TcpConnect, UdpOpen, UdpPeer, UnixConnect};
use protocol::rpc::outgoing_server::Outgoing;
use protocol::rpc::{RouteRequest, RouteResponse};
use rustix::io::Errno;
use rustix::net::{
    AddressFamily, SocketFlags, SocketType, bind, connect, connect_unspec, getsockname,
    socket_with, sockopt,
};
use tokio::net::{TcpSocket, TcpStream, UdpSocket};
use tonic::Status;
use tonic::body::Body;

use crate::agent::Agent;
use crate::connection::{Connection, RequestBody, succeeded};
use crate::grant::Transport;
use crate::{Error, Result};

mod datagrams;
mod open_connections;
mod relay;
mod spare_sockets;
mod unix_socket;

pub(crate) use datagrams::receive_one;
pub(crate) use open_connections::OpenConnections;
pub(crate) use spare_sockets::SpareSockets;

/// Opens a TCP connection. The response headers are sent when it is established.
pub(crate) async fn tcp(
    connection: &Arc<Connection>,
    request: Request<RequestBody>,
) -> Result<Response<Body>> {
    let connect = TcpConnect::from_headers(request.headers())?;
    let address = destination(connect.address, connect.bind);
    let rules = connection.agent.rules();
    rules.allow_address(Transport::Tcp, address)?;
    let stream = connect_tcp(&connection.agent, address, connect.bind).await?;
    let addresses = Connected {
        local: stream
            .local_addr()
            .map_err(Error::io("read the local address"))?,
        peer: Some(connect.address),
    };
    let stream = Arc::new(stream);
    let open = connection.agent.open_connections();
    open.add(address, &stream, &connection.agent.rules());
    let body = relay::relay(stream, request.into_body());
    Ok(succeeded(addresses.to_headers(), body))
}

/// Opens a UDP socket.
pub(crate) async fn udp(
    connection: &Arc<Connection>,
    request: Request<RequestBody>,
) -> Result<Response<Body>> {
    let open = UdpOpen::from_headers(request.headers())?;
    let (ipv4, peer) = match open.peer {
        UdpPeer::Connected(address) => (address.is_ipv4(), Some(address)),
        UdpPeer::AnyIpv4 => (true, None),
        UdpPeer::AnyIpv6 => (false, None),
    };
    let peer_address = peer.map(|peer| destination(peer, open.bind));
    let rules = connection.agent.rules();
    if let Some(peer) = peer_address {
        rules.allow_address(Transport::Udp, peer)?;
    }
    let socket = open_udp(&connection.agent, ipv4, open.bind, peer_address).await?;
    let local = socket.local_addr();
    let addresses = Connected {
        local: local.map_err(Error::io("read the local address"))?,
        peer,
    };
    let socket = datagrams::RestrictedSocket {
        socket,
        peer: peer_address,
        agent: connection.agent.clone(),
    };
    let body = datagrams::relay(Arc::new(socket), request.into_body());
    Ok(succeeded(addresses.to_headers(), body))
}

/// Connects to a Unix stream socket.
pub(crate) async fn unix(
    connection: &Arc<Connection>,
    request: Request<RequestBody>,
) -> Result<Response<Body>> {
    let connect = UnixConnect::from_headers(request.uri().path(), request.headers())?;
    let stream = unix_socket::connect_stream(connection, connect).await?;
    let body = relay::relay(Arc::new(stream), request.into_body());
    Ok(succeeded(http::HeaderMap::new(), body))
}

/// Connects to a Unix datagram or sequenced-packet socket.
pub(crate) async fn unix_datagram(
    connection: &Arc<Connection>,
    request: Request<RequestBody>,
) -> Result<Response<Body>> {
    let connect = UnixConnect::from_headers(request.uri().path(), request.headers())?;
    let socket = unix_socket::connect_packets(connection, connect).await?;
    let body = datagrams::relay(Arc::new(socket), request.into_body());
    Ok(succeeded(http::HeaderMap::new(), body))
}

#[tonic::async_trait]
impl Outgoing for Connection {
    async fn route(
        &self,
        request: tonic::Request<RouteRequest>,
    ) -> Result<tonic::Response<RouteResponse>, Status> {
        self.admit().await?;
        let address = request.into_inner().address;
        let address: SocketAddr = address.parse().map_err(|_| Error::Missing("address"))?;
        let local = source(&self.agent, address).await?;
        Ok(tonic::Response::new(RouteResponse {
            local_address: local.to_string(),
        }))
    }
}

/// Where the kernel connects to: it replaces the unspecified address with the socket's own address or loopback. The rules apply
/// to the result.
fn destination(address: SocketAddr, bound_to: Option<SocketAddr>) -> SocketAddr {
    if !address.ip().to_canonical().is_unspecified() {
        return address;
    }
    let own = bound_to.map(|bound| bound.ip());
    let own = own.filter(|own| own.is_ipv4() && !own.is_unspecified());
    let loopback: IpAddr = match address.ip().to_canonical() {
        IpAddr::V4(_) => own.unwrap_or(Ipv4Addr::LOCALHOST.into()),
        IpAddr::V6(_) => Ipv6Addr::LOCALHOST.into(),
    };
    // An IPv4 address of an IPv6 socket stays one.
    let ip = match (address.ip(), loopback) {
        (IpAddr::V6(_), IpAddr::V4(ip)) => ip.to_ipv6_mapped().into(),
        (_, ip) => ip,
    };
    SocketAddr::new(ip, address.port())
}

/// Connects from the target's network. The only timeout is the kernel's.
pub(crate) async fn connect_tcp(
    agent: &Agent,
    address: SocketAddr,
    bind_to: Option<SocketAddr>,
) -> Result<TcpStream> {
    let family = family(address.ip());
    let socket = socket(agent, family, SocketType::STREAM, bind_to).await?;
    let socket = TcpSocket::from_std_stream(socket.into());
    let stream = socket.connect(address).await;
    let stream = stream.map_err(Error::io("connect to this address"))?;
    // The application's own socket has decided when to send, so bytes are sent on immediately.
    stream
        .set_nodelay(true)
        .map_err(Error::io("set up a connection"))?;
    prepare(agent, family, SocketType::STREAM);
    Ok(stream)
}

pub(crate) async fn open_udp(
    agent: &Agent,
    ipv4: bool,
    bind_to: Option<SocketAddr>,
    peer: Option<SocketAddr>,
) -> Result<UdpSocket> {
    let family = match ipv4 {
        true => AddressFamily::INET,
        false => AddressFamily::INET6,
    };
    // The client needs the local address now, and an unbound socket has one only after the first send.
    let any: SocketAddr = match ipv4 {
        true => (Ipv4Addr::UNSPECIFIED, 0).into(),
        false => (Ipv6Addr::UNSPECIFIED, 0).into(),
    };
    let bind_to = bind_to.or(peer.is_none().then_some(any));
    let socket = socket(agent, family, SocketType::DGRAM, bind_to).await?;
    let socket = UdpSocket::from_std(socket.into()).map_err(Error::io("open a UDP socket"))?;
    if let Some(peer) = peer {
        let connected = socket.connect(peer).await;
        connected.map_err(Error::io("connect to this address"))?;
        prepare(agent, family, SocketType::DGRAM);
    }
    Ok(socket)
}

/// The local address from which the target would connect to an address. Connecting a UDP socket sends nothing, but looks up
/// the route. The socket is disconnected afterwards and can be reused.
pub(crate) async fn source(agent: &Agent, address: SocketAddr) -> Result<SocketAddr> {
    let family = family(address.ip());
    let socket = socket(agent, family, SocketType::DGRAM, None).await?;
    let find = || {
        connect(&socket, &address)?;
        SocketAddr::try_from(getsockname(&socket)?)
    };
    let mut source = find().map_err(Error::operation("find a route to this address"))?;
    source.set_port(0);
    if connect_unspec(&socket).is_ok() {
        let spare = agent.spare_sockets();
        spare.put(family, SocketType::DGRAM, socket);
    }
    Ok(source)
}

/// A socket in the target's network: a spare one if possible.
async fn socket(
    agent: &Agent,
    family: AddressFamily,
    kind: SocketType,
    bind_to: Option<SocketAddr>,
) -> Result<OwnedFd> {
    let spare = match bind_to {
        None => agent.spare_sockets().take(family, kind),
        Some(_) => None,
    };
    match spare {
        Some(socket) => Ok(socket),
        None => create_socket(agent, family, kind, bind_to).await,
    }
}

fn prepare(agent: &Agent, family: AddressFamily, kind: SocketType) {
    let spare = agent.spare_sockets();
    spare.prepare(agent.sockets(), family, kind);
}

async fn create_socket(
    agent: &Agent,
    family: AddressFamily,
    kind: SocketType,
    bind_to: Option<SocketAddr>,
) -> Result<OwnedFd> {
    let make = move || {
        let socket = new_socket(family, kind).map_err(Error::operation("create a socket"))?;
        if let Some(address) = bind_to {
            bind(&socket, &address).map_err(Error::operation("bind to this address"))?;
        }
        Ok(socket)
    };
    agent.sockets().run(make).await
}

fn new_socket(family: AddressFamily, kind: SocketType) -> Result<OwnedFd, Errno> {
    let flags = SocketFlags::CLOEXEC | SocketFlags::NONBLOCK;
    let socket = socket_with(family, kind, flags, None)?;
    if kind == SocketType::DGRAM {
        // The client cannot know which addresses are broadcast addresses in the target's network.
        let _ = sockopt::set_socket_broadcast(&socket, true);
    }
    Ok(socket)
}

fn family(address: IpAddr) -> AddressFamily {
    match address {
        IpAddr::V4(_) => AddressFamily::INET,
        IpAddr::V6(_) => AddressFamily::INET6,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_unspecified_address_is_that_of_the_machine() {
        let check = |address: &str, bound_to: Option<&str>, expected: &str| {
            let bound_to = bound_to.map(|bound| bound.parse().unwrap());
            let found = destination(address.parse().unwrap(), bound_to);
            assert_eq!(found.to_string(), expected, "{address} {bound_to:?}");
        };
        check("10.0.0.1:80", None, "10.0.0.1:80");
        check("10.0.0.1:80", Some("10.0.0.2:0"), "10.0.0.1:80");
        check("0.0.0.0:80", None, "127.0.0.1:80");
        check("0.0.0.0:80", Some("0.0.0.0:7"), "127.0.0.1:80");
        check("0.0.0.0:80", Some("10.0.0.2:0"), "10.0.0.2:80");
        check("[::]:80", None, "[::1]:80");
        check("[::]:80", Some("[fd00::2]:0"), "[::1]:80");
        check("[::ffff:0.0.0.0]:80", None, "[::ffff:127.0.0.1]:80");
    }
}
