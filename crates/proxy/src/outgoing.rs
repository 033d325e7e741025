//! Connections that leave from the target.
//!
//! Each is one HTTP/2 stream. Its response comes when the agent has connected, so the application learns the truth.

mod stream;

use std::io;
use std::os::fd::OwnedFd;
use std::os::unix::ffi::OsStrExt as _;
use std::sync::Arc;

use bytes::{Bytes, BytesMut};
use http::{HeaderMap, Request, Response};
use http_body_util::BodyExt as _;
use hyper::body::Incoming;
use interceptor::{Connection, Destination, Errno, Names, Outgoing, Transport};
use link::http2;
use protocol::outgoing::{
    Connected, Datagram, DatagramDecoder, TCP, TcpConnect, UDP, UdpOpen, UdpPeer, UnixAddress,
    UnixConnect, UnixKind,
};
use protocol::rpc::Failure;
use tokio::net::UdpSocket;

use self::stream::{FromApplication, LocalStream};
use crate::agent::{Agent, errno};

/// The largest datagram.
const PART: usize = 64 * 1024;
/// Datagrams that may wait for the link.
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
    let destination = outgoing.destination();
    match (outgoing.transport(), destination) {
        (Transport::Udp, Destination::Internet(address)) => {
            let open = UdpOpen {
                peer: UdpPeer::Connected(*address),
                bind: None,
            };
            carry_datagrams(agent, open, outgoing).await
        }
        (_, Destination::Internet(address)) => {
            let connect = TcpConnect {
                address: *address,
                bind: None,
            };
            carry_stream(agent, TCP, connect.to_headers(), outgoing).await
        }
        (_, Destination::Unix(path)) => {
            let connect = UnixConnect {
                address: UnixAddress::Path(path.as_os_str().as_bytes().to_vec()),
                kind: UnixKind::Stream,
            };
            carry_stream(agent, connect.path(), connect.to_headers(), outgoing).await
        }
    }
}

async fn carry_stream(
    agent: &Agent,
    path: &str,
    headers: HeaderMap,
    outgoing: Outgoing,
) -> io::Result<()> {
    let (application, body) = FromApplication::new();
    let response = match ask(agent, path, headers, body).await {
        Ok(response) => response,
        Err(errno) => {
            outgoing.refuse(errno);
            return Ok(());
        }
    };
    let transport = outgoing.transport();
    let connection = establish(outgoing, &response)?;
    let (socket, registration) = connection.into_parts();
    let stream = LocalStream::new(transport, socket, Some(registration))?;
    let stream = Arc::new(stream);
    // HTTP/2 has given the body up when the agent is lost meanwhile; the response's body then says so.
    let _ = application.send(Arc::clone(&stream));
    stream::to_application(stream, response.into_body()).await;
    Ok(())
}

async fn carry_datagrams(agent: &Agent, open: UdpOpen, outgoing: Outgoing) -> io::Result<()> {
    let (sender, body) = http2::body(PARTS);
    let response = match ask(agent, UDP, open.to_headers(), body).await {
        Ok(response) => response,
        Err(errno) => {
            outgoing.refuse(errno);
            return Ok(());
        }
    };
    // The registration is kept to the end, as for streams.
    let (socket, _registration) = establish(outgoing, &response)?.into_parts();
    relay_datagrams(socket, sender, response.into_body()).await
}

/// Connects the application's socket to us. All of it happens within this machine and takes no longer than handing it
/// to another thread would.
fn establish(outgoing: Outgoing, response: &Response<Incoming>) -> io::Result<Connection> {
    let ends = Connected::from_headers(response.headers()).ok();
    let names = Names {
        local: ends.map(|ends| ends.local),
        peer: ends.and_then(|ends| ends.peer),
    };
    outgoing.establish(names).map_err(io::Error::from)
}

/// Asks the agent for a connection. The error is what its own `connect` said.
async fn ask<B>(
    agent: &Agent,
    path: &str,
    headers: HeaderMap,
    body: B,
) -> Result<Response<Incoming>, Errno>
where
    B: http_body::Body<Data = Bytes> + Send + 'static,
    B::Error: Into<http2::BoxError>,
{
    let mut request = Request::post(path).body(body).map_err(|_| Errno::EIO)?;
    request.headers_mut().extend(headers);
    let response = agent.client.clone().send(request).await.map_err(|error| {
        tracing::warn!(%error, "the agent cannot be reached");
        Errno::ENETUNREACH
    })?;
    if response.status().is_success() {
        return Ok(response);
    }
    Err(errno(Failure::from_headers(response.headers()).as_ref()))
}

/// Copies datagrams in both directions until the agent's socket ends.
async fn relay_datagrams(
    socket: OwnedFd,
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
                    if let Datagram::Payload { payload, .. } = datagram {
                        let _ = socket.send(&payload).await;
                    }
                }
            }
        }
    }
}
