//! Datagrams that leave from the target.
//!
//! Each peer of a socket is one HTTP/2 stream. Where the target's route to the peer is known, because a name was just
//! resolved to it, the application does not wait for the agent's socket: programs connect datagram sockets only to learn
//! from where they would leave, one for each address of a name, and never send. So the agent's socket is made when
//! something is sent, or when the application keeps its own for more than a moment.

use std::io;
use std::net::SocketAddr;
use std::os::fd::OwnedFd;
use std::time::Duration;

use bytes::{Bytes, BytesMut};
use http::HeaderMap;
use http_body_util::BodyExt as _;
use hyper::body::Incoming;
use interceptor::{Connection, Errno, Names, Outgoing, Registration};
use link::http2::{self, Sender};
use protocol::outgoing::{Connected, Datagram, DatagramDecoder, UDP, UdpOpen, UdpPeer};
use tokio::net::UdpSocket;
use tokio::sync::OwnedSemaphorePermit;
use tokio::time::{sleep, timeout};

use super::{ask, establish};
use crate::agent::Agent;
use crate::monitor::{Attempt, Traffic};

/// The largest datagram.
const PART: usize = 64 * 1024;
/// Datagrams that may wait for the link.
const PARTS: usize = 4;

/// How often a socket is looked at, whether the application still has it.
const LOOK_AFTER: Duration = Duration::from_secs(1);
/// A socket that the application keeps longer was not made only to be asked for its address.
const MOMENT: Duration = Duration::from_millis(20);

/// Gives a socket of the application a peer at the target.
pub(super) fn connect(
    agent: Agent,
    outgoing: Outgoing,
    peer: SocketAddr,
    permit: OwnedSemaphorePermit,
    attempt: Attempt,
) {
    let runtime = agent.runtime.clone();
    let ended = |result: io::Result<()>| {
        if let Err(error) = result {
            tracing::debug!(%error, "datagrams ended");
        }
    };
    match agent.routes.get(peer.ip()) {
        Some(Err(errno)) => {
            attempt.failed(errno);
            outgoing.refuse(errno);
        }
        Some(Ok(from)) => {
            let names = Names {
                local: Some(SocketAddr::new(from, 0)),
                peer: None,
            };
            match outgoing.establish(names) {
                Ok(connection) => {
                    let traffic = attempt.connected();
                    runtime.spawn(async move {
                        ended(follow(&agent, connection, peer, traffic).await);
                        drop(permit);
                    });
                }
                Err(errno) => ended(Err(errno.into())),
            }
        }
        None => {
            runtime.spawn(async move {
                ended(lead(&agent, outgoing, peer, attempt).await);
                drop(permit);
            });
        }
    }
}

fn open(peer: SocketAddr) -> HeaderMap {
    let peer = UdpPeer::Connected(peer);
    UdpOpen { peer, bind: None }.to_headers()
}

/// First the agent's socket, then the application's: it is told the truth of the target's.
async fn lead(
    agent: &Agent,
    outgoing: Outgoing,
    peer: SocketAddr,
    attempt: Attempt,
) -> io::Result<()> {
    let (sender, body) = http2::body(PARTS);
    let response = match ask(agent, UDP, open(peer), body).await {
        Ok(response) => response,
        Err(errno) => {
            attempt.failed(errno);
            outgoing.refuse(errno);
            return Ok(());
        }
    };
    let (socket, registration) = establish(outgoing, &response)?.into_parts();
    let socket = asynchronous(socket)?;
    let traffic = attempt.connected();
    relay(
        &socket,
        &registration,
        sender,
        response.into_body(),
        traffic,
    )
    .await;
    Ok(())
}

/// The application's socket is connected, and the agent's follows when it is of use.
async fn follow(
    agent: &Agent,
    connection: Connection,
    peer: SocketAddr,
    traffic: Option<Traffic>,
) -> io::Result<()> {
    let (socket, registration) = connection.into_parts();
    let socket = asynchronous(socket)?;
    let _ = timeout(MOMENT, socket.readable()).await;
    if !registration.is_open() {
        return Ok(());
    }
    let (sender, body) = http2::body(PARTS);
    let response = ask(agent, UDP, open(peer), body)
        .await
        .map_err(io::Error::from)?;
    if let Ok(ends) = Connected::from_headers(response.headers()) {
        registration.set_local(ends.local);
    }
    relay(
        &socket,
        &registration,
        sender,
        response.into_body(),
        traffic,
    )
    .await;
    Ok(())
}

fn asynchronous(socket: OwnedFd) -> io::Result<UdpSocket> {
    let socket = std::net::UdpSocket::from(socket);
    socket.set_nonblocking(true)?;
    UdpSocket::from_std(socket)
}

/// Copies until the application closes its socket or the agent's ends.
async fn relay(
    socket: &UdpSocket,
    registration: &Registration,
    sender: Sender,
    body: Incoming,
    traffic: Option<Traffic>,
) {
    tokio::select! {
        () = relay_datagrams(socket, registration, sender, body, traffic.as_ref()) => {}
        () = until_closed(registration) => {}
    }
}

/// Waits until the application has closed a socket for datagrams. Nobody is told of that, so it is asked for.
pub(crate) async fn until_closed(registration: &Registration) {
    sleep(LOOK_AFTER).await;
    while registration.is_open() {
        sleep(LOOK_AFTER).await;
    }
}

/// Copies datagrams in both directions until the agent's socket ends.
async fn relay_datagrams(
    socket: &UdpSocket,
    registration: &Registration,
    mut to_target: Sender,
    mut from_target: Incoming,
    traffic: Option<&Traffic>,
) {
    let mut decoder = DatagramDecoder::default();
    let mut buffer = vec![0; PART];
    loop {
        tokio::select! {
            received = socket.recv(&mut buffer) => {
                // A peer that nobody listens at is reported by the next call; datagrams have no end.
                let Ok(count) = received else { continue };
                if let Some(traffic) = traffic {
                    traffic.application_sent(&buffer[..count]);
                }
                let mut frame = BytesMut::new();
                Datagram::Payload { address: None, payload: Bytes::copy_from_slice(&buffer[..count]) }.encode(&mut frame);
                if to_target.send_data(frame.freeze()).await.is_err() {
                    return;
                }
            }
            frame = from_target.frame() => {
                let Some(Ok(frame)) = frame else { return };
                let Ok(bytes) = frame.into_data() else { continue };
                decoder.push(&bytes);
                while let Ok(Some(datagram)) = decoder.next_datagram() {
                    match datagram {
                        Datagram::Payload { payload, .. } => {
                            if let Some(traffic) = traffic {
                                traffic.application_gets(&payload);
                            }
                            let _ = socket.send(&payload).await;
                        }
                        // The kernel can be made to tell this one. Others are as datagrams that are lost on the way.
                        Datagram::Failed(libc::ECONNREFUSED) => {
                            if let Err(errno) = registration.report_refusal(socket) {
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
