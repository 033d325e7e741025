//! Datagrams of one client: a socket here that stands for it.

use std::net::SocketAddr;

use bytes::{Bytes, BytesMut};
use http_body_util::BodyExt as _;
use hyper::body::Incoming as Body;
use link::http2::Sender;
use protocol::incoming::TAKEN;
use protocol::outgoing::{Datagram, DatagramDecoder};
use tokio::net::UdpSocket;

use super::arrival::refuse;
use super::door::Delivered;
use super::doors::Doors;
use crate::monitor::Arriving;

/// Datagrams that may wait for the link.
pub(super) const PARTS: usize = 4;
/// The largest datagram.
const PART: usize = 64 * 1024;

/// Carries datagrams between a client and the application, until the agent forgets the client.
pub(super) async fn carry(
    doors: &Doors,
    client: SocketAddr,
    server: SocketAddr,
    mut to_client: Sender,
    mut from_client: Body,
    arriving: Arriving,
) {
    let Some(Delivered { socket, kept }) = doors.open(client, server) else {
        arriving.refused();
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
    let taken = Bytes::from_static(&[TAKEN]);
    if to_client.send_data(taken).await.is_err() {
        return;
    }
    let traffic = arriving.accepted();
    let mut decoder = DatagramDecoder::default();
    let mut buffer = vec![0; PART];
    loop {
        tokio::select! {
            received = socket.recv(&mut buffer) => {
                // An application that has closed its socket is seen elsewhere; datagrams have no end.
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
                            traffic.application_gets(&payload);
                        }
                        let _ = socket.send(&payload).await;
                    }
                }
            }
        }
    }
    drop(kept);
}
