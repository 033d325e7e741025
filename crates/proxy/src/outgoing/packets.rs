//! Unix sockets of the target of type `SOCK_SEQPACKET`: packets arrive in order and whole, and each direction has its own
//! end.

use std::io;
use std::net::Shutdown;
use std::os::fd::OwnedFd;

use bytes::{Bytes, BytesMut};
use http_body_util::BodyExt as _;
use hyper::body::Incoming;
use interceptor::{Errno, PendingConnection};
use link::http2::{self, BodySender};
use protocol::outgoing::{Datagram, DatagramDecoder, MAX_DATAGRAM_BYTES, UnixConnect};
use tokio::net::UnixDatagram;

use super::{establish, request_connection};
use crate::agent::SessionContext;
use crate::monitor::OutgoingAttempt;

/// The maximum number of packets that wait for the link.
const MAX_QUEUED_PACKETS: usize = 4;

pub(super) async fn run_connection(
    context: &SessionContext,
    outgoing: PendingConnection,
    connect: UnixConnect,
    attempt: OutgoingAttempt,
) -> io::Result<()> {
    let (sender, body) = http2::body(MAX_QUEUED_PACKETS);
    let response =
        match request_connection(context, connect.path(), connect.to_headers(), body).await {
            Ok(response) => response,
            Err(errno) => {
                attempt.failed(errno);
                outgoing.refuse(errno);
                return Ok(());
            }
        };
    // The registration holds the addresses that the application sees, so it lives as long as the connection.
    let (socket, _registration) = establish(outgoing, &response)?.into_parts();
    let _traffic = attempt.connected();
    let socket = into_async(socket)?;
    let result = tokio::try_join!(
        to_target(&socket, sender),
        to_application(&socket, response.into_body())
    );
    result.map(drop)
}

/// Tokio has no type for `SOCK_SEQPACKET`. A datagram socket has the same calls; a packet socket also reports an end, as
/// a read of zero bytes.
fn into_async(socket: OwnedFd) -> io::Result<UnixDatagram> {
    let socket = std::os::unix::net::UnixDatagram::from(socket);
    socket.set_nonblocking(true)?;
    UnixDatagram::from_std(socket)
}

async fn to_target(socket: &UnixDatagram, mut sender: BodySender) -> io::Result<()> {
    // One byte larger than the maximum, to detect packets that are too long.
    let mut buffer = vec![0; MAX_DATAGRAM_BYTES + 1];
    loop {
        let payload = match socket.recv(&mut buffer).await? {
            0 => return Ok(()),
            count => buffer.get(..count).unwrap_or_default(),
        };
        if payload.len() > MAX_DATAGRAM_BYTES {
            tracing::warn!(
                max_bytes = MAX_DATAGRAM_BYTES,
                "unix socket packet too long, closing connection"
            );
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
                    tracing::warn!(%errno, "target unix socket failed");
                    return Err(errno.into());
                }
            }
        }
    }
    socket.shutdown(Shutdown::Write)
}
