//! Outgoing datagrams, which the agent sends from the target's network.
//!
//! Each peer of a socket is one HTTP/2 stream. If the target's route to the peer is cached, because a DNS name was just
//! resolved to it, the application does not wait for the agent's socket: resolvers connect one datagram socket per
//! address of a name, only to learn the source address, and never send. So the agent's socket is opened when the
//! application sends something, or when it keeps its socket longer than [`LAZY_OPEN_DELAY`].

use std::io;
use std::net::SocketAddr;
use std::os::fd::OwnedFd;
use std::time::Duration;

use bytes::{Bytes, BytesMut};
use http::HeaderMap;
use http_body_util::BodyExt as _;
use hyper::body::Incoming;
use interceptor::{
    Errno, OutgoingConnection, OutgoingRegistration, PendingConnection, SocketAddresses,
};
use link::http2::{self, BodySender};
use protocol::outgoing::{Connected, Datagram, DatagramDecoder, UDP, UdpOpen, UdpPeer};
use tokio::net::UdpSocket;
use tokio::sync::OwnedSemaphorePermit;
use tokio::time::{sleep, timeout};

use super::{establish, request_connection};
use crate::agent::SessionContext;
use crate::monitor::{OutgoingAttempt, Traffic};

/// The size of the receive buffer: no datagram is larger.
const RECEIVE_BUFFER_BYTES: usize = 64 * 1024;
/// The maximum number of datagrams that wait for the link.
const MAX_QUEUED_DATAGRAMS: usize = 4;

/// How often to check whether the application still has a socket open.
const POLL_INTERVAL: Duration = Duration::from_secs(1);
/// A socket that the application keeps longer than this was not opened only to learn its source address.
const LAZY_OPEN_DELAY: Duration = Duration::from_millis(20);

/// Connects a datagram socket of the application to a peer of the target.
pub(super) fn connect(
    context: SessionContext,
    outgoing: PendingConnection,
    peer: SocketAddr,
    permit: OwnedSemaphorePermit,
    attempt: OutgoingAttempt,
) {
    let runtime = context.runtime.clone();
    let log_failure = |result: io::Result<()>| {
        if let Err(error) = result {
            tracing::debug!(%error, "datagram relay failed");
        }
    };
    match context.routes.get(peer.ip()) {
        Some(Err(errno)) => {
            attempt.failed(errno);
            outgoing.refuse(errno);
        }
        Some(Ok(source)) => {
            let addresses = SocketAddresses {
                local: Some(SocketAddr::new(source, 0)),
                peer: None,
            };
            match outgoing.establish(addresses) {
                Ok(connection) => {
                    let traffic = attempt.connected();
                    runtime.spawn(async move {
                        log_failure(open_lazily(&context, connection, peer, traffic).await);
                        drop(permit);
                    });
                }
                Err(errno) => log_failure(Err(errno.into())),
            }
        }
        None => {
            runtime.spawn(async move {
                log_failure(open_first(&context, outgoing, peer, attempt).await);
                drop(permit);
            });
        }
    }
}

fn open_headers(peer: SocketAddr) -> HeaderMap {
    let peer = UdpPeer::Connected(peer);
    UdpOpen { peer, bind: None }.to_headers()
}

/// Opens the agent's socket first, then connects the application's, so the application sees the real outcome.
async fn open_first(
    context: &SessionContext,
    outgoing: PendingConnection,
    peer: SocketAddr,
    attempt: OutgoingAttempt,
) -> io::Result<()> {
    let (sender, body) = http2::body(MAX_QUEUED_DATAGRAMS);
    let response = match request_connection(context, UDP, open_headers(peer), body).await {
        Ok(response) => response,
        Err(errno) => {
            attempt.failed(errno);
            outgoing.refuse(errno);
            return Ok(());
        }
    };
    let (socket, registration) = establish(outgoing, &response)?.into_parts();
    let socket = into_async(socket)?;
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

/// The application's socket is already connected; opens the agent's when it is needed.
async fn open_lazily(
    context: &SessionContext,
    connection: OutgoingConnection,
    peer: SocketAddr,
    traffic: Option<Traffic>,
) -> io::Result<()> {
    let (socket, registration) = connection.into_parts();
    let socket = into_async(socket)?;
    let _ = timeout(LAZY_OPEN_DELAY, socket.readable()).await;
    if !registration.is_open() {
        return Ok(());
    }
    let (sender, body) = http2::body(MAX_QUEUED_DATAGRAMS);
    let response = request_connection(context, UDP, open_headers(peer), body)
        .await
        .map_err(io::Error::from)?;
    if let Ok(connected) = Connected::from_headers(response.headers()) {
        registration.set_local(connected.local);
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

fn into_async(socket: OwnedFd) -> io::Result<UdpSocket> {
    let socket = std::net::UdpSocket::from(socket);
    socket.set_nonblocking(true)?;
    UdpSocket::from_std(socket)
}

/// Relays until the application closes its socket or the agent's stream ends.
async fn relay(
    socket: &UdpSocket,
    registration: &OutgoingRegistration,
    sender: BodySender,
    body: Incoming,
    traffic: Option<Traffic>,
) {
    tokio::select! {
        () = relay_datagrams(socket, registration, sender, body, traffic.as_ref()) => {}
        () = until_closed(registration) => {}
    }
}

/// Waits until the application has closed a datagram socket. The kernel does not report that to the peer, so it is
/// polled.
pub(crate) async fn until_closed(registration: &OutgoingRegistration) {
    sleep(POLL_INTERVAL).await;
    while registration.is_open() {
        sleep(POLL_INTERVAL).await;
    }
}

/// Relays datagrams in both directions until the agent's stream ends.
async fn relay_datagrams(
    socket: &UdpSocket,
    registration: &OutgoingRegistration,
    mut to_target: BodySender,
    mut from_target: Incoming,
    traffic: Option<&Traffic>,
) {
    let mut decoder = DatagramDecoder::default();
    let mut buffer = vec![0; RECEIVE_BUFFER_BYTES];
    loop {
        tokio::select! {
            received = socket.recv(&mut buffer) => {
                // The error of an earlier send (ECONNREFUSED) is reported here. The socket stays usable.
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
                                traffic.application_received(&payload);
                            }
                            let _ = socket.send(&payload).await;
                        }
                        // The kernel can be made to report this error to the application. Other failures are treated as
                        // lost datagrams.
                        Datagram::Failed(libc::ECONNREFUSED) => {
                            if let Err(errno) = registration.report_refusal(socket) {
                                tracing::debug!(%errno, "refused datagram not reported to the application");
                            }
                        }
                        Datagram::Failed(number) => {
                            let errno = Errno::from_raw(number);
                            tracing::debug!(%errno, "sending a datagram failed at the target");
                        }
                    }
                }
            }
        }
    }
}
