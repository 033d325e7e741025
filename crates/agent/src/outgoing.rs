//! Outgoing: connections from where the target is.
//!
//! A socket belongs for good to the network namespace in which it was made. So a thread inside the target's namespace
//! only makes sockets; connecting and moving bytes is the runtime's work, however many there are.

use std::net::{IpAddr, SocketAddr};
use std::os::fd::OwnedFd;
use std::sync::Arc;

use http::{Request, Response};
use hyper::body::Incoming;
use protocol::outgoing::{Connected, TcpConnect, UdpOpen, UdpPeer, UnixConnect};
use protocol::rpc::outgoing_server::Outgoing;
use protocol::rpc::{RouteRequest, RouteResponse};
use rustix::io::Errno;
use rustix::net::{
    AddressFamily, SocketFlags, SocketType, bind, connect, connect_unspec, getsockname,
    socket_with, sockopt,
};
use tokio::net::{TcpSocket, TcpStream, UdpSocket};
use tonic::body::Body;
use tonic::{Request as Call, Response as Answer, Status};

use crate::agent::Agent;
use crate::connection::{Connection, succeeded};
use crate::grant::Transport;
use crate::{Error, Result};

mod datagrams;
mod open;
mod relay;
mod spare;
mod unix_socket;

pub(crate) use datagrams::receive_one;
pub(crate) use open::OpenConnections;
pub(crate) use spare::Spare;

/// A TCP connection. The response's headers are sent when it is up.
pub(crate) async fn tcp(
    connection: &Arc<Connection>,
    request: Request<Incoming>,
) -> Result<Response<Body>> {
    let connect = TcpConnect::from_headers(request.headers())?;
    let rules = connection.agent.rules();
    rules.allow_address(Transport::Tcp, connect.address)?;
    let stream = connect_tcp(&connection.agent, connect.address, connect.bind).await?;
    let ends = Connected {
        local: stream
            .local_addr()
            .map_err(Error::io("ask for the own address"))?,
        peer: Some(connect.address),
    };
    let stream = Arc::new(stream);
    let open = connection.agent.open_connections();
    open.add(connect.address, &stream, &connection.agent.rules());
    let body = relay::relay(stream, request.into_body());
    Ok(succeeded(ends.to_headers(), body))
}

/// A UDP socket.
pub(crate) async fn udp(
    connection: &Arc<Connection>,
    request: Request<Incoming>,
) -> Result<Response<Body>> {
    let open = UdpOpen::from_headers(request.headers())?;
    let (ipv4, peer) = match open.peer {
        UdpPeer::Connected(address) => (address.is_ipv4(), Some(address)),
        UdpPeer::AnyIpv4 => (true, None),
        UdpPeer::AnyIpv6 => (false, None),
    };
    let rules = connection.agent.rules();
    if let Some(peer) = peer {
        rules.allow_address(Transport::Udp, peer)?;
    }
    let socket = open_udp(&connection.agent, ipv4, open.bind, peer).await?;
    let local = socket.local_addr();
    let ends = Connected {
        local: local.map_err(Error::io("ask for the own address"))?,
        peer,
    };
    let socket = datagrams::RuledSocket {
        socket,
        peer,
        agent: connection.agent.clone(),
    };
    let body = datagrams::relay(Arc::new(socket), request.into_body());
    Ok(succeeded(ends.to_headers(), body))
}

/// A connection to a Unix socket that carries a stream.
pub(crate) async fn unix(
    connection: &Arc<Connection>,
    request: Request<Incoming>,
) -> Result<Response<Body>> {
    let connect = UnixConnect::from_headers(request.uri().path(), request.headers())?;
    let stream = unix_socket::connect_stream(connection, connect).await?;
    let body = relay::relay(Arc::new(stream), request.into_body());
    Ok(succeeded(http::HeaderMap::new(), body))
}

/// A connection to a Unix socket that carries datagrams or packets.
pub(crate) async fn unix_datagram(
    connection: &Arc<Connection>,
    request: Request<Incoming>,
) -> Result<Response<Body>> {
    let connect = UnixConnect::from_headers(request.uri().path(), request.headers())?;
    let socket = unix_socket::connect_packets(connection, connect).await?;
    let body = datagrams::relay(Arc::new(socket), request.into_body());
    Ok(succeeded(http::HeaderMap::new(), body))
}

#[tonic::async_trait]
impl Outgoing for Connection {
    async fn route(&self, request: Call<RouteRequest>) -> Result<Answer<RouteResponse>, Status> {
        self.admit().await?;
        let address = request.into_inner().address;
        let address: SocketAddr = address.parse().map_err(|_| Error::Missing("address"))?;
        let local = source(&self.agent, address).await?;
        Ok(Answer::new(RouteResponse {
            local_address: local.to_string(),
        }))
    }
}

/// Connects from inside the target's network, and waits as long as the kernel does.
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
    // The application's own socket decides when to send; what arrives here was sent.
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
    // Unbound sockets have an address only after they have sent: a client wants to know it before.
    let any: SocketAddr = match ipv4 {
        true => (std::net::Ipv4Addr::UNSPECIFIED, 0).into(),
        false => (std::net::Ipv6Addr::UNSPECIFIED, 0).into(),
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

/// From where the target reaches an address. Connecting a UDP socket sends nothing, and asks the routing table. The socket
/// is as new afterwards, and serves the next who asks.
pub(crate) async fn source(agent: &Agent, address: SocketAddr) -> Result<SocketAddr> {
    let family = family(address.ip());
    let socket = socket(agent, family, SocketType::DGRAM, None).await?;
    let find = || {
        connect(&socket, &address)?;
        SocketAddr::try_from(getsockname(&socket)?)
    };
    let mut source = find().map_err(Error::operation("find a way to this address"))?;
    source.set_port(0);
    if connect_unspec(&socket).is_ok() {
        let spare = agent.spare_sockets();
        spare.put(family, SocketType::DGRAM, socket);
    }
    Ok(source)
}

/// A socket inside the target's network: a spare one, if that will do.
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
        None => make_socket(agent, family, kind, bind_to).await,
    }
}

fn prepare(agent: &Agent, family: AddressFamily, kind: SocketType) {
    let spare = agent.spare_sockets();
    spare.prepare(agent.sockets(), family, kind);
}

async fn make_socket(
    agent: &Agent,
    family: AddressFamily,
    kind: SocketType,
    bind_to: Option<SocketAddr>,
) -> Result<OwnedFd> {
    let make = move || {
        let socket = new_socket(family, kind).map_err(Error::operation("make a socket"))?;
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
        // Whether an address is a broadcast address is known only where it is used.
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
