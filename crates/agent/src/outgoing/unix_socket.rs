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
use crate::files::{Located, Tree};
use crate::{Error, Result};

/// How long a full queue of the listener is waited for.
const FULL_QUEUE: Duration = Duration::from_secs(10);

pub(crate) async fn connect_stream(
    connection: &Connection,
    wanted: UnixConnect,
) -> Result<UnixStream> {
    let socket = connect_socket(connection, wanted).await?;
    UnixStream::from_std(socket.into()).map_err(Error::io("use a Unix socket"))
}

/// Datagrams and sequenced packets are used alike.
pub(crate) async fn connect_packets(
    connection: &Connection,
    wanted: UnixConnect,
) -> Result<UnixDatagram> {
    let socket = connect_socket(connection, wanted).await?;
    UnixDatagram::from_std(socket.into()).map_err(Error::io("use a Unix socket"))
}

async fn connect_socket(connection: &Connection, wanted: UnixConnect) -> Result<OwnedFd> {
    let kind = match wanted.kind {
        UnixKind::Stream => SocketType::STREAM,
        UnixKind::Datagram => SocketType::DGRAM,
        UnixKind::SequencedPacket => SocketType::SEQPACKET,
    };
    let make = move || {
        let socket = socket_with(AddressFamily::UNIX, kind, SocketFlags::CLOEXEC, None);
        socket.map_err(Error::operation("make a socket"))
    };
    let socket = connection.agent.sockets().run(make).await?;
    let connect = move |tree: Tree<'_>| {
        connect_in(tree, &socket, wanted.address)
            .map_err(Error::operation("connect to this Unix socket"))?;
        Ok(socket)
    };
    // By a thread that has the target's user: whether it may write to the socket's file is judged here.
    connection.in_tree(connect).await
}

fn connect_in(tree: Tree<'_>, socket: &OwnedFd, address: UnixAddress) -> Result<(), Errno> {
    sockopt::set_socket_timeout(socket, sockopt::Timeout::Send, Some(FULL_QUEUE))?;
    match address {
        UnixAddress::Abstract(name) => {
            connect(socket, &SocketAddrUnix::new_abstract_name(&name)?)?;
        }
        UnixAddress::Path(path) => {
            let place = Located::Path {
                path: path.into(),
                follow: true,
            };
            let file = tree.find(&place)?;
            connect(socket, &SocketAddrUnix::new(file.as_path())?)?;
        }
    }
    sockopt::set_socket_timeout(socket, sockopt::Timeout::Send, None)?;
    ioctl_fionbio(socket, true)
}
