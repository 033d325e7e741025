//! Packets between the application and a Unix socket of the target (`SOCK_SEQPACKET`): in order, each whole, and each
//! direction with its own end.

use std::io;
use std::net::Shutdown;
use std::os::fd::OwnedFd;

use bytes::{Bytes, BytesMut};
use http_body_util::BodyExt as _;
use hyper::body::Incoming;
use interceptor::{Errno, Outgoing};
use link::http2::{self, Sender};
use protocol::outgoing::{DATAGRAM_BYTES, Datagram, DatagramDecoder, UnixConnect};
use tokio::net::UnixDatagram;

use super::{ask, establish};
use crate::agent::Agent;
use crate::monitor::Attempt;

/// Packets that may wait for the link.
const PARTS: usize = 4;

pub(super) async fn carry(
    agent: &Agent,
    outgoing: Outgoing,
    connect: UnixConnect,
    attempt: Attempt,
) -> io::Result<()> {
    let (sender, body) = http2::body(PARTS);
    let response = match ask(agent, connect.path(), connect.to_headers(), body).await {
        Ok(response) => response,
        Err(errno) => {
            attempt.failed(errno);
            outgoing.refuse(errno);
            return Ok(());
        }
    };
    // Kept to the end: with it goes what the application sees as the names of both ends.
    let (socket, _registration) = establish(outgoing, &response)?.into_parts();
    let _traffic = attempt.connected();
    let socket = asynchronous(socket)?;
    let result = tokio::try_join!(
        to_target(&socket, sender),
        to_application(&socket, response.into_body())
    );
    result.map(drop)
}

/// The kernel does not tell such a socket from one for datagrams, except that it has an end.
fn asynchronous(socket: OwnedFd) -> io::Result<UnixDatagram> {
    let socket = std::os::unix::net::UnixDatagram::from(socket);
    socket.set_nonblocking(true)?;
    UnixDatagram::from_std(socket)
}

async fn to_target(socket: &UnixDatagram, mut sender: Sender) -> io::Result<()> {
    // One byte more than can be carried, to see what cannot.
    let mut buffer = vec![0; DATAGRAM_BYTES + 1];
    loop {
        let payload = match socket.recv(&mut buffer).await? {
            0 => return Ok(()),
            count => buffer.get(..count).unwrap_or_default(),
        };
        if payload.len() > DATAGRAM_BYTES {
            tracing::warn!("a packet to a Unix socket is too long: the connection ends");
            return Err(Errno::EMSGSIZE.into());
        }
        let mut frame = BytesMut::new();
        let payload = Bytes::copy_from_slice(payload);
        let packet = Datagram::Payload {
            address: None,
            payload,
        };
        packet.encode(&mut frame);
        let sent = sender.send_data(frame.freeze()).await;
        sent.map_err(|_| io::Error::from(Errno::EPIPE))?;
    }
}

async fn to_application(socket: &UnixDatagram, mut from_target: Incoming) -> io::Result<()> {
    let mut decoder = DatagramDecoder::default();
    while let Some(frame) = from_target.frame().await {
        let frame = frame.map_err(io::Error::other)?;
        let Ok(bytes) = frame.into_data() else {
            continue;
        };
        decoder.push(&bytes);
        while let Some(packet) = decoder.next_datagram().map_err(io::Error::other)? {
            match packet {
                Datagram::Payload { payload, .. } => {
                    socket.send(&payload).await?;
                }
                Datagram::Failed(number) => {
                    let errno = Errno::from_raw(number);
                    tracing::warn!(%errno, "a connection to a Unix socket of the target has failed");
                    return Err(errno.into());
                }
            }
        }
    }
    socket.shutdown(Shutdown::Write)
}
