//! The application's sockets that speak to a nameserver: each message is a question for the resolver.

use std::io;
use std::os::fd::OwnedFd;
use std::sync::Arc;

use interceptor::{Connection, Transport};
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::tcp::{OwnedReadHalf, OwnedWriteHalf};
use tokio::net::{TcpStream, UdpSocket};
use tokio::sync::{Semaphore, mpsc};

use super::answer::Carrier;
use super::resolver::Resolver;
use crate::outgoing::until_closed;

/// Questions of one socket that are being answered at the same time.
const AT_ONCE: usize = 256;
const LARGEST: usize = 65_535;

/// Answers a socket of the application until the application closes it.
pub(crate) async fn serve(
    resolver: Arc<Resolver>,
    transport: Transport,
    connection: Connection,
) -> io::Result<()> {
    // Kept to the end: with it goes what the application sees as the names of both ends.
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
    let at_once = Arc::new(Semaphore::new(AT_ONCE));
    let mut buffer = vec![0; LARGEST];
    loop {
        // The application may have closed its end before an answer came, which the next call tells.
        let Ok(length) = socket.recv(&mut buffer).await else {
            continue;
        };
        let Ok(permit) = Arc::clone(&at_once).acquire_owned().await else {
            return Ok(());
        };
        let message = buffer.get(..length).unwrap_or_default().to_vec();
        let (resolver, socket) = (Arc::clone(&resolver), Arc::clone(&socket));
        tokio::spawn(async move {
            if let Some(answer) = resolver.answer(&message, Carrier::Datagram).await {
                let _ = socket.send(&answer).await;
            }
            drop(permit);
        });
    }
}

/// Questions may follow each other without waiting; each is answered when its answer is there.
async fn serve_stream(resolver: Arc<Resolver>, socket: OwnedFd) -> io::Result<()> {
    let stream = std::net::TcpStream::from(socket);
    stream.set_nonblocking(true)?;
    let stream = TcpStream::from_std(stream)?;
    stream.set_nodelay(true)?;
    let (from_application, to_application) = stream.into_split();
    let (answers_to_writer, answers) = mpsc::channel(AT_ONCE);
    let writing = write_answers(to_application, answers);
    let reading = read_questions(resolver, from_application, answers_to_writer);
    let (written, _end) = tokio::join!(writing, reading);
    written
}

async fn read_questions(
    resolver: Arc<Resolver>,
    mut from_application: OwnedReadHalf,
    answers_to_writer: mpsc::Sender<Vec<u8>>,
) -> io::Result<()> {
    loop {
        let length = from_application.read_u16().await?;
        let mut message = vec![0; length.into()];
        from_application.read_exact(&mut message).await?;
        let Ok(place) = answers_to_writer.clone().reserve_owned().await else {
            return Ok(());
        };
        let resolver = Arc::clone(&resolver);
        tokio::spawn(async move {
            if let Some(answer) = resolver.answer(&message, Carrier::Stream).await {
                place.send(answer);
            }
        });
    }
}

async fn write_answers(
    mut to_application: OwnedWriteHalf,
    mut answers: mpsc::Receiver<Vec<u8>>,
) -> io::Result<()> {
    while let Some(answer) = answers.recv().await {
        let Ok(length) = u16::try_from(answer.len()) else {
            continue;
        };
        let mut framed = length.to_be_bytes().to_vec();
        framed.extend_from_slice(&answer);
        to_application.write_all(&framed).await?;
    }
    to_application.shutdown().await
}
