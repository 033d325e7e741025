//! Connections that leave from the target.
//!
//! Each is one HTTP/2 stream. Its response comes when the agent has connected, so the application learns the truth.
//! Bytes are copied in both directions, each at the pace of its reader, and each ends by itself.

use std::io;
use std::os::fd::AsFd;
use std::os::unix::ffi::OsStrExt as _;
use std::time::Duration;

use bytes::BytesMut;
use http::{HeaderMap, Request, Response};
use http_body_util::BodyExt as _;
use hyper::body::Incoming;
use interceptor::{Destination, Errno, Names, Outgoing, Transport};
use link::http2::{self, Sender};
use protocol::outgoing::{Connected, TCP, TcpConnect, UnixAddress, UnixConnect, UnixKind};
use protocol::rpc::Failure;
use tokio::io::{AsyncRead, AsyncReadExt as _, AsyncWrite, AsyncWriteExt as _};
use tokio::net::{TcpStream, UnixStream};

use crate::agent::{Agent, errno};

mod datagrams;
mod routes;

pub(crate) use datagrams::until_closed;
pub(crate) use routes::Routes;

/// As much is read from the application at a time.
const PART: usize = 64 * 1024;
/// Parts that may wait for the link.
const PARTS: usize = 4;

/// Connects on the session's runtime; returns at once, or as soon as the application's own half is connected.
pub(crate) fn connect(agent: &Agent, outgoing: Outgoing) {
    let agent = agent.clone();
    let runtime = agent.runtime.clone();
    if let (Transport::Udp, Destination::Internet(peer)) =
        (outgoing.transport(), outgoing.destination())
    {
        let peer = *peer;
        return datagrams::connect(agent, outgoing, peer);
    }
    runtime.spawn(async move {
        if let Err(error) = carry(&agent, outgoing).await {
            tracing::debug!(%error, "a connection ended");
        }
    });
}

async fn carry(agent: &Agent, outgoing: Outgoing) -> io::Result<()> {
    let (path, headers) = match (outgoing.transport(), outgoing.destination()) {
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
    let (socket, _registration) = connection.into_parts();
    let body = response.into_body();
    match transport {
        Transport::Tcp => {
            let stream = std::net::TcpStream::from(socket);
            stream.set_nonblocking(true)?;
            let (mut read, mut write) = TcpStream::from_std(stream)?.into_split();
            if relay(&mut read, &mut write, sender, body).await.is_err() {
                reset(write.as_ref());
                // Dropped, it would end its direction first.
                write.forget();
            }
        }
        Transport::Unix => {
            let stream = std::os::unix::net::UnixStream::from(socket);
            stream.set_nonblocking(true)?;
            let (mut read, mut write) = UnixStream::from_std(stream)?.into_split();
            // The other end of such a socket sees no difference between an end and a loss.
            let _ = relay(&mut read, &mut write, sender, body).await;
        }
        Transport::Udp => {}
    }
    Ok(())
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

/// The target's half of a connection has failed.
struct Lost;

/// Copies a stream in both directions until both have ended, or until the target's half has failed.
async fn relay(
    from_application: &mut (impl AsyncRead + Unpin),
    to_application: &mut (impl AsyncWrite + Unpin),
    mut to_target: Sender,
    mut from_target: Incoming,
) -> Result<(), Lost> {
    let there = async {
        loop {
            let mut part = BytesMut::with_capacity(PART);
            match from_application.read_buf(&mut part).await {
                Ok(0) => return Ok(()),
                Ok(_) => {
                    if to_target.send_data(part.freeze()).await.is_err() {
                        return Ok(());
                    }
                }
                // The application is gone without closing: so shall the connection be.
                Err(error) => {
                    to_target.abort(error.into());
                    return Ok(());
                }
            }
        }
    };
    let back = async {
        while let Some(frame) = from_target.frame().await {
            match frame.map_err(|_| Lost)?.into_data() {
                Ok(bytes) => {
                    if to_application.write_all(&bytes).await.is_err() {
                        return Ok(());
                    }
                }
                // The agent tells with the last frame why there will be no more.
                Err(last) if last.trailers_ref().is_some_and(is_failure) => return Err(Lost),
                Err(_) => {}
            }
        }
        let _ = to_application.shutdown().await;
        Ok(())
    };
    tokio::try_join!(there, back).map(drop)
}

fn is_failure(trailers: &HeaderMap) -> bool {
    Failure::from_headers(trailers).is_some()
}

/// Resets the application's half, so that what was cut off does not look like an end. Its last descriptor is closed by
/// the caller.
fn reset(socket: &impl AsFd) {
    let _ = rustix::net::sockopt::set_socket_linger(socket, Some(Duration::ZERO));
}
