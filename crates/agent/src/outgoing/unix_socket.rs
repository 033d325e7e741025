//! Unix sockets: paths resolve in the target's root, abstract names in its network namespace.

use std::os::fd::OwnedFd;
use std::time::Duration;

use protocol::outgoing::{UnixAddress, UnixConnect, UnixKind};
use rustix::io::{Errno, ioctl_fionbio};
use rustix::net::{
    AddressFamily, SocketAddrUnix, SocketFlags, SocketType, connect, socket_with, sockopt,
};
use tokio::net::{UnixDatagram, UnixStream};

use crate::connection::Connection;
use crate::files::{FileLocation, Tree};
use crate::{Error, Result};

/// The connect timeout, if the listener's queue is full.
const CONNECT_TIMEOUT: Duration = Duration::from_secs(10);

pub(crate) async fn connect_stream(
    connection: &Connection,
    request: UnixConnect,
) -> Result<UnixStream> {
    let socket = connect_socket(connection, request).await?;
    UnixStream::from_std(socket.into()).map_err(Error::io("use a Unix socket"))
}

/// Connects a datagram or sequenced-packet socket. Both are used in the same way.
pub(crate) async fn connect_packets(
    connection: &Connection,
    request: UnixConnect,
) -> Result<UnixDatagram> {
    let socket = connect_socket(connection, request).await?;
    UnixDatagram::from_std(socket.into()).map_err(Error::io("use a Unix socket"))
}

async fn connect_socket(connection: &Connection, request: UnixConnect) -> Result<OwnedFd> {
    let kind = match request.kind {
        UnixKind::Stream => SocketType::STREAM,
        UnixKind::Datagram => SocketType::DGRAM,
        UnixKind::SequencedPacket => SocketType::SEQPACKET,
    };
    let make = move || {
        let socket = socket_with(AddressFamily::UNIX, kind, SocketFlags::CLOEXEC, None);
        socket.map_err(Error::operation("create a socket"))
    };
    let socket = connection.agent.sockets().run(make).await?;
    let connect = move |tree: Tree<'_>| {
        connect_in(tree, &socket, request.address)
            .map_err(Error::operation("connect to this Unix socket"))?;
        Ok(socket)
    };
    // On a thread with the target's credentials, because connecting checks the permissions of the socket's file.
    connection.in_tree(connect).await
}

fn connect_in(tree: Tree<'_>, socket: &OwnedFd, address: UnixAddress) -> Result<(), Errno> {
    sockopt::set_socket_timeout(socket, sockopt::Timeout::Send, Some(CONNECT_TIMEOUT))?;
    match address {
        UnixAddress::Abstract(name) => {
            connect(socket, &SocketAddrUnix::new_abstract_name(&name)?)?;
        }
        UnixAddress::Path(path) => {
            let location = FileLocation::Path {
                path: path.into(),
                follow: true,
            };
            let file = tree.find(&location)?;
            connect(socket, &SocketAddrUnix::new(file.as_path())?)?;
        }
    }
    sockopt::set_socket_timeout(socket, sockopt::Timeout::Send, None)?;
    ioctl_fionbio(socket, true)
}
