//! Relays the datagrams of one client through a socket of its own on this machine.

use std::net::SocketAddr;

use bytes::{Bytes, BytesMut};
use http_body_util::BodyExt as _;
use hyper::body::Incoming as Body;
use link::http2::BodySender;
use protocol::incoming::ACCEPTED;
use protocol::outgoing::{Datagram, DatagramDecoder};
use tokio::net::UdpSocket;

use super::accept_pool::refuse;
use super::app_listener::AppSocket;
use super::app_listeners::AppListeners;
use crate::monitor::IncomingAttempt;

/// The maximum number of datagrams that are queued for the link.
pub(super) const MAX_QUEUED: usize = 4;
/// The largest datagram.
const MAX_DATAGRAM_BYTES: usize = 64 * 1024;

/// Relays datagrams between a client and the application, until the agent ends the stream of the client.
pub(super) async fn relay(
    listeners: &AppListeners,
    client: SocketAddr,
    server: SocketAddr,
    mut to_client: BodySender,
    mut from_client: Body,
    attempt: IncomingAttempt,
) {
    let Some(AppSocket { socket, guard }) = listeners.open_datagrams(client, server) else {
        attempt.refused();
        drop(to_client);
        return refuse(from_client).await;
    };
    let socket = std::net::UdpSocket::from(socket);
    let Ok(socket) = socket
        .set_nonblocking(true)
        .and_then(|()| UdpSocket::from_std(socket))
    else {
        return;
    };
    let accepted = Bytes::from_static(&[ACCEPTED]);
    if to_client.send_data(accepted).await.is_err() {
        return;
    }
    let traffic = attempt.accepted();
    let mut decoder = DatagramDecoder::default();
    let mut buffer = vec![0; MAX_DATAGRAM_BYTES];
    loop {
        tokio::select! {
            received = socket.recv(&mut buffer) => {
                // The port task notices an application that has closed its socket; datagrams have no end of stream.
                let Ok(count) = received else { continue };
                if let Some(traffic) = &traffic {
                    traffic.application_sent(&buffer[..count]);
                }
                let mut frame = BytesMut::new();
                let payload = Bytes::copy_from_slice(&buffer[..count]);
                Datagram::Payload { address: None, payload }.encode(&mut frame);
                if to_client.send_data(frame.freeze()).await.is_err() {
                    break;
                }
            }
            frame = from_client.frame() => {
                let Some(Ok(frame)) = frame else { break };
                let Ok(bytes) = frame.into_data() else { continue };
                decoder.push(&bytes);
                while let Ok(Some(datagram)) = decoder.next_datagram() {
                    if let Datagram::Payload { payload, .. } = datagram {
                        if let Some(traffic) = &traffic {
                            traffic.application_received(&payload);
                        }
                        let _ = socket.send(&payload).await;
                    }
                }
            }
        }
    }
    drop(guard);
}
