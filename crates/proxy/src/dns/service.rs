//! Serves the application's sockets to a nameserver: each message is a query for the resolver.

use std::io;
use std::os::fd::OwnedFd;
use std::sync::Arc;

use interceptor::{OutgoingConnection, Transport};
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::tcp::{OwnedReadHalf, OwnedWriteHalf};
use tokio::net::{TcpStream, UdpSocket};
use tokio::sync::{Semaphore, mpsc};

use super::resolver::Resolver;
use super::response::DnsTransport;
use crate::outgoing::until_closed;

/// The maximum number of concurrent queries of one socket.
const MAX_IN_FLIGHT: usize = 256;
const MAX_MESSAGE_BYTES: usize = 65_535;

/// Serves a socket of the application until the application closes it.
pub(crate) async fn serve(
    resolver: Arc<Resolver>,
    transport: Transport,
    connection: OutgoingConnection,
) -> io::Result<()> {
    // The registration holds the addresses that the application sees, so it lives as long as the socket.
    let (socket, registration) = connection.into_parts();
    match transport {
        Transport::Udp => tokio::select! {
            result = serve_datagrams(resolver, socket) => result,
            () = until_closed(&registration) => Ok(()),
        },
        _ => serve_stream(resolver, socket).await,
    }
}

async fn serve_datagrams(resolver: Arc<Resolver>, socket: OwnedFd) -> io::Result<()> {
    let socket = std::net::UdpSocket::from(socket);
    socket.set_nonblocking(true)?;
    let socket = Arc::new(UdpSocket::from_std(socket)?);
    let permits = Arc::new(Semaphore::new(MAX_IN_FLIGHT));
    let mut buffer = vec![0; MAX_MESSAGE_BYTES];
    loop {
        // An error means that the application had closed its end before an earlier response was sent.
        let Ok(length) = socket.recv(&mut buffer).await else {
            continue;
        };
        let Ok(permit) = Arc::clone(&permits).acquire_owned().await else {
            return Ok(());
        };
        let message = buffer.get(..length).unwrap_or_default().to_vec();
        let (resolver, socket) = (Arc::clone(&resolver), Arc::clone(&socket));
        tokio::spawn(async move {
            if let Some(response) = resolver.resolve(&message, DnsTransport::Udp).await {
                let _ = socket.send(&response).await;
            }
            drop(permit);
        });
    }
}

/// Queries may be pipelined; each response is sent as soon as it is ready.
async fn serve_stream(resolver: Arc<Resolver>, socket: OwnedFd) -> io::Result<()> {
    let stream = std::net::TcpStream::from(socket);
    stream.set_nonblocking(true)?;
    let stream = TcpStream::from_std(stream)?;
    stream.set_nodelay(true)?;
    let (from_application, to_application) = stream.into_split();
    let (responses_to_writer, responses) = mpsc::channel(MAX_IN_FLIGHT);
    let writing = write_responses(to_application, responses);
    let reading = read_queries(resolver, from_application, responses_to_writer);
    let (written, _end) = tokio::join!(writing, reading);
    written
}

async fn read_queries(
    resolver: Arc<Resolver>,
    mut from_application: OwnedReadHalf,
    responses_to_writer: mpsc::Sender<Vec<u8>>,
) -> io::Result<()> {
    loop {
        let length = from_application.read_u16().await?;
        let mut message = vec![0; length.into()];
        from_application.read_exact(&mut message).await?;
        let Ok(slot) = responses_to_writer.clone().reserve_owned().await else {
            return Ok(());
        };
        let resolver = Arc::clone(&resolver);
        tokio::spawn(async move {
            if let Some(response) = resolver.resolve(&message, DnsTransport::Tcp).await {
                slot.send(response);
            }
        });
    }
}

async fn write_responses(
    mut to_application: OwnedWriteHalf,
    mut responses: mpsc::Receiver<Vec<u8>>,
) -> io::Result<()> {
    while let Some(response) = responses.recv().await {
        let Ok(length) = u16::try_from(response.len()) else {
            continue;
        };
        let mut framed = length.to_be_bytes().to_vec();
        framed.extend_from_slice(&response);
        to_application.write_all(&framed).await?;
    }
    to_application.shutdown().await
}
