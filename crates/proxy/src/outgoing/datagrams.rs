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
use http_body_util::BodyExt as _;
use hyper::body::Incoming;
use interceptor::{Connection, Errno, Names, Outgoing, Registration};
use protocol::outgoing::{Connected, Datagram, DatagramDecoder, UDP, UdpOpen, UdpPeer};
use tokio::net::UdpSocket;
use tokio::time::{sleep, timeout};

use super::{PART, Sender, ask};
use crate::agent::Agent;

/// How often a socket is looked at, whether the application still has it.
const LOOK_AFTER: Duration = Duration::from_secs(1);
/// A socket that the application keeps longer was not made only to be asked for its address.
const MOMENT: Duration = Duration::from_millis(20);

pub(super) async fn carry(agent: &Agent, outgoing: Outgoing, peer: SocketAddr) -> io::Result<()> {
    let open = UdpOpen {
        peer: UdpPeer::Connected(peer),
        bind: None,
    };
    match agent.routes.get(peer.ip()) {
        Some(Err(errno)) => outgoing.refuse(errno),
        Some(Ok(from)) => {
            let names = Names {
                local: Some(SocketAddr::new(from, 0)),
                peer: None,
            };
            let (socket, registration) = establish(outgoing, names).await?.into_parts();
            let socket = asynchronous(socket)?;
            let _ = timeout(MOMENT, socket.readable()).await;
            if !registration.is_open() {
                return Ok(());
            }
            let opened = ask(agent, UDP, open.to_headers()).await;
            let (sender, response) = opened.map_err(io::Error::from)?;
            if let Ok(ends) = Connected::from_headers(response.headers()) {
                registration.set_local(ends.local);
            }
            relay(&socket, &registration, sender, response.into_body()).await;
        }
        None => match ask(agent, UDP, open.to_headers()).await {
            Err(errno) => outgoing.refuse(errno),
            Ok((sender, response)) => {
                let ends = Connected::from_headers(response.headers()).ok();
                let names = Names {
                    local: ends.map(|ends| ends.local),
                    peer: ends.and_then(|ends| ends.peer),
                };
                let (socket, registration) = establish(outgoing, names).await?.into_parts();
                let socket = asynchronous(socket)?;
                relay(&socket, &registration, sender, response.into_body()).await;
            }
        },
    }
    Ok(())
}

async fn establish(outgoing: Outgoing, names: Names) -> io::Result<Connection> {
    let established = tokio::task::spawn_blocking(move || outgoing.establish(names)).await;
    established
        .map_err(io::Error::other)?
        .map_err(io::Error::from)
}

fn asynchronous(socket: OwnedFd) -> io::Result<UdpSocket> {
    let socket = std::net::UdpSocket::from(socket);
    socket.set_nonblocking(true)?;
    UdpSocket::from_std(socket)
}

/// Copies until the application closes its socket or the agent's ends.
async fn relay(socket: &UdpSocket, registration: &Registration, sender: Sender, body: Incoming) {
    tokio::select! {
        () = relay_datagrams(socket, registration, sender, body) => {}
        () = until_closed(registration) => {}
    }
}

/// Waits until the application has closed a socket for datagrams. Nobody is told of that, so it is asked for.
pub(crate) async fn until_closed(registration: &Registration) {
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
) {
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
