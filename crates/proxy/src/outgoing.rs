//! Connections that leave from the target.
//!
//! Each is one HTTP/2 stream. Its response comes when the agent has connected, so the application learns the truth.
//! Bytes are copied in both directions, each at the pace of its reader, and each ends by itself.

use std::io;
use std::os::fd::OwnedFd;
use std::os::unix::ffi::OsStrExt as _;
use std::time::Duration;

use bytes::{Bytes, BytesMut};
use http::{HeaderMap, Request, Response};
use http_body_util::BodyExt as _;
use hyper::body::Incoming;
use interceptor::{Destination, Errno, Names, Outgoing, Registration, Transport};
use link::http2;
use protocol::outgoing::{
    Connected, Datagram, DatagramDecoder, TCP, TcpConnect, UDP, UdpOpen, UdpPeer, UnixAddress,
    UnixConnect, UnixKind,
};
use protocol::rpc::Failure;
use tokio::io::{AsyncRead, AsyncReadExt as _, AsyncWrite, AsyncWriteExt as _};
use tokio::net::{TcpStream, UdpSocket, UnixStream};
use tokio::time::sleep;

use crate::agent::{Agent, errno};

/// As much is read from the application at a time.
const PART: usize = 64 * 1024;
/// How often a socket for datagrams is looked at, whether the application still has it.
const LOOK_AFTER: Duration = Duration::from_secs(1);
/// Parts that may wait for the link.
const PARTS: usize = 4;

type Sender = http_body_util::channel::Sender<Bytes, http2::BoxError>;

/// Connects on the session's runtime; returns at once.
pub(crate) fn connect(agent: &Agent, outgoing: Outgoing) {
    let agent = agent.clone();
    let runtime = agent.runtime.clone();
    runtime.spawn(async move {
        if let Err(error) = carry(&agent, outgoing).await {
            tracing::debug!(%error, "a connection ended");
        }
    });
}

async fn carry(agent: &Agent, outgoing: Outgoing) -> io::Result<()> {
    let (path, headers) = match (outgoing.transport(), outgoing.destination()) {
        (Transport::Udp, Destination::Internet(address)) => (
            UDP,
            UdpOpen {
                peer: UdpPeer::Connected(*address),
                bind: None,
            }
            .to_headers(),
        ),
        (_, Destination::Internet(address)) => (
            TCP,
            TcpConnect {
                address: *address,
                bind: None,
            }
            .to_headers(),
        ),
        (_, Destination::Unix(path)) => {
            let address = UnixAddress::Path(path.as_os_str().as_bytes().to_vec());
            let connect = UnixConnect {
                address,
                kind: UnixKind::Stream,
            };
            (connect.path(), connect.to_headers())
        }
    };
    let (sender, response) = match ask(agent, path, headers).await {
        Ok(connected) => connected,
        Err(errno) => {
            outgoing.refuse(errno);
            return Ok(());
        }
    };
    let ends = Connected::from_headers(response.headers()).ok();
    let names = Names {
        local: ends.map(|ends| ends.local),
        peer: ends.and_then(|ends| ends.peer),
    };
    let transport = outgoing.transport();
    let established = tokio::task::spawn_blocking(move || outgoing.establish(names)).await;
    let connection = established
        .map_err(io::Error::other)?
        .map_err(io::Error::from)?;
    // The registration is kept to the end: with it goes what the application sees as the names of both ends.
    let (socket, registration) = connection.into_parts();
    let body = response.into_body();
    match transport {
        Transport::Tcp => {
            let stream = std::net::TcpStream::from(socket);
            stream.set_nonblocking(true)?;
            let (read, write) = TcpStream::from_std(stream)?.into_split();
            relay(read, write, sender, body).await;
        }
        Transport::Unix => {
            let stream = std::os::unix::net::UnixStream::from(socket);
            stream.set_nonblocking(true)?;
            let (read, write) = UnixStream::from_std(stream)?.into_split();
            relay(read, write, sender, body).await;
        }
        Transport::Udp => tokio::select! {
            result = relay_datagrams(socket, &registration, sender, body) => result?,
            () = until_closed(&registration) => {}
        },
    }
    Ok(())
}

/// Waits until the application has closed a socket for datagrams. Nobody is told of that, so it is asked for.
pub(crate) async fn until_closed(registration: &Registration) {
    while registration.is_open() {
        sleep(LOOK_AFTER).await;
    }
}

/// Asks the agent for a connection. The error is what its own `connect` said.
async fn ask(
    agent: &Agent,
    path: &str,
    headers: HeaderMap,
) -> Result<(Sender, Response<Incoming>), Errno> {
    let (sender, body) = http2::body(PARTS);
    let mut request = Request::post(path).body(body).map_err(|_| Errno::EIO)?;
    request.headers_mut().extend(headers);
    let response = agent.client.clone().send(request).await.map_err(|error| {
        tracing::warn!(%error, "the agent cannot be reached");
        Errno::ENETUNREACH
    })?;
    if response.status().is_success() {
        return Ok((sender, response));
    }
    Err(errno(Failure::from_headers(response.headers()).as_ref()))
}

/// Copies a stream in both directions until both have ended.
async fn relay(
    mut from_application: impl AsyncRead + Unpin,
    mut to_application: impl AsyncWrite + Unpin,
    mut to_target: Sender,
    mut from_target: Incoming,
) {
    let there = async {
        loop {
            let mut part = BytesMut::with_capacity(PART);
            match from_application.read_buf(&mut part).await {
                Ok(0) => return,
                Ok(_) => {
                    if to_target.send_data(part.freeze()).await.is_err() {
                        return;
                    }
                }
                // The application is gone without closing: so shall the connection be.
                Err(error) => return to_target.abort(error.into()),
            }
        }
    };
    let back = async {
        while let Some(Ok(frame)) = from_target.frame().await {
            if let Ok(bytes) = frame.into_data()
                && to_application.write_all(&bytes).await.is_err()
            {
                return;
            }
        }
        let _ = to_application.shutdown().await;
    };
    tokio::join!(there, back);
}

/// Copies datagrams in both directions until the agent's socket ends.
async fn relay_datagrams(
    socket: OwnedFd,
    registration: &Registration,
    mut to_target: Sender,
    mut from_target: Incoming,
) -> io::Result<()> {
    let socket = std::net::UdpSocket::from(socket);
    socket.set_nonblocking(true)?;
    let socket = UdpSocket::from_std(socket)?;
    let mut decoder = DatagramDecoder::default();
    let mut buffer = vec![0; PART];
    loop {
        tokio::select! {
            received = socket.recv(&mut buffer) => {
                // A peer that nobody listens at is reported by the next call; datagrams have no end.
                let Ok(count) = received else { continue };
                let mut frame = BytesMut::new();
                Datagram::Payload { address: None, payload: Bytes::copy_from_slice(&buffer[..count]) }.encode(&mut frame);
                if to_target.send_data(frame.freeze()).await.is_err() {
                    return Ok(());
                }
            }
            frame = from_target.frame() => {
                let Some(Ok(frame)) = frame else { return Ok(()) };
                let Ok(bytes) = frame.into_data() else { continue };
                decoder.push(&bytes);
                while let Ok(Some(datagram)) = decoder.next_datagram() {
                    match datagram {
                        Datagram::Payload { payload, .. } => {
                            let _ = socket.send(&payload).await;
                        }
                        // The kernel can be made to tell this one. Others are as datagrams that are lost on the way.
                        Datagram::Failed(libc::ECONNREFUSED) => {
                            if let Err(errno) = registration.report_refusal(&socket) {
                                tracing::debug!(%errno, "the application was not told of a refused datagram");
                            }
                        }
                        Datagram::Failed(number) => {
                            let errno = Errno::from_raw(number);
                            tracing::debug!(%errno, "a datagram could not be sent from the target");
                        }
                    }
                }
            }
        }
    }
}
