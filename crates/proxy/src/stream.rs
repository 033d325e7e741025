//! A byte stream between the application and the agent, both ways, each at the pace of its reader and with its own end.
//!
//! HTTP/2 takes the application's bytes from the socket when it can send them, and only then, so that there is no queue
//! between the two and no task that fills it. A socket without traffic has no buffer at all.

use std::any::Any;
use std::io;
use std::net::Shutdown;
use std::os::fd::{AsFd as _, AsRawFd as _, OwnedFd};
use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::task::{Context, Poll, ready};

use bytes::{Buf as _, Bytes, BytesMut};
use http_body::{Body, Frame};
use http_body_util::BodyExt as _;
use interceptor::Transport;
use link::http2::{BoxError, PIECE};
use protocol::rpc::Failure;
use tokio::io::Interest;
use tokio::net::{TcpStream, UnixStream};
use tokio::sync::oneshot;

use crate::monitor::Traffic;

const FIRST_PIECE: usize = 16 * 1024;

/// Our end of the application's connection.
#[derive(Debug)]
pub(crate) struct LocalStream {
    socket: Socket,
    /// With it goes what the application sees as the names of both ends.
    kept: Kept,
    /// For whoever looks.
    traffic: Option<Traffic>,
    /// Where the socket is one of a pair.
    breaks: Option<Arc<Breaks>>,
    /// The end of the application's bytes is a reset.
    is_given_up: AtomicBool,
    /// Nobody hears what the application says.
    is_unheard: bool,
}

/// Which side of a pair of sockets broke. Such sockets have ends, and no resets.
#[derive(Debug, Default)]
pub(crate) struct Breaks {
    target: AtomicBool,
    application: AtomicBool,
}

impl Breaks {
    /// Whether the target's side broke off.
    pub(crate) fn target_broke(&self) -> bool {
        self.target.load(Ordering::Acquire)
    }

    /// Makes the coming end of the application's bytes a reset.
    pub(crate) fn break_application(&self) {
        self.application.store(true, Ordering::Release);
    }
}

/// Something that has to be there as long as a stream.
pub(crate) type Kept = Box<dyn Any + Send + Sync>;

#[derive(Debug)]
enum Socket {
    Tcp(TcpStream),
    Unix(UnixStream),
}

impl LocalStream {
    pub(crate) fn new(
        transport: Transport,
        socket: OwnedFd,
        kept: impl Any + Send + Sync,
    ) -> io::Result<Self> {
        let socket = if transport == Transport::Unix {
            let stream = std::os::unix::net::UnixStream::from(socket);
            stream.set_nonblocking(true)?;
            Socket::Unix(UnixStream::from_std(stream)?)
        } else {
            let stream = std::net::TcpStream::from(socket);
            stream.set_nonblocking(true)?;
            // What arrives here was sent; waiting for more would only delay it.
            stream.set_nodelay(true)?;
            Socket::Tcp(TcpStream::from_std(stream)?)
        };
        Ok(Self {
            socket,
            kept: Box::new(kept),
            breaks: None,
            is_given_up: AtomicBool::new(false),
            is_unheard: false,
            traffic: None,
        })
    }

    /// The same for a connection that is a copy: what the application says goes nowhere, only its end is told.
    pub(crate) fn unheard(self) -> Self {
        Self {
            is_unheard: true,
            ..self
        }
    }

    /// The same, with a note of what flows.
    pub(crate) fn watched(self, traffic: Option<Traffic>) -> Self {
        Self { traffic, ..self }
    }

    /// One end of a pair, whose other end is told of resets, and tells them.
    pub(crate) fn of_pair(socket: OwnedFd, breaks: Arc<Breaks>) -> io::Result<Self> {
        let breaks = Some(breaks);
        let stream = Self::new(Transport::Unix, socket, ())?;
        Ok(Self { breaks, ..stream })
    }

    /// The socket itself, and what has to be there as long.
    pub(crate) fn into_tcp(self) -> io::Result<(TcpStream, Kept)> {
        match self.socket {
            Socket::Tcp(stream) => Ok((stream, self.kept)),
            Socket::Unix(_) => Err(io::ErrorKind::Unsupported.into()),
        }
    }

    /// Waits until a connection that was begun is there.
    pub(crate) async fn connected(&self) -> io::Result<()> {
        let error = match &self.socket {
            Socket::Tcp(stream) => {
                stream.writable().await?;
                stream.take_error()?
            }
            Socket::Unix(stream) => {
                stream.writable().await?;
                stream.take_error()?
            }
        };
        error.map_or(Ok(()), Err)
    }

    fn poll_read_ready(&self, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        match &self.socket {
            Socket::Tcp(stream) => stream.poll_read_ready(context),
            Socket::Unix(stream) => stream.poll_read_ready(context),
        }
    }

    fn try_read(&self, buffer: &mut BytesMut) -> io::Result<usize> {
        let count = match &self.socket {
            Socket::Tcp(stream) => try_read(stream, buffer),
            // What carries descriptors is read in parts, so less than there is room for does not mean that it was all.
            Socket::Unix(stream) => stream.try_read_buf(buffer),
        }?;
        let broke = |breaks: &Arc<Breaks>| breaks.application.load(Ordering::Acquire);
        let has_broken = || {
            let is_given_up = self.is_given_up.load(Ordering::Acquire);
            is_given_up || self.breaks.as_ref().is_some_and(broke)
        };
        if count == 0 && has_broken() {
            return Err(io::ErrorKind::ConnectionReset.into());
        }
        Ok(count)
    }

    async fn write_all(&self, mut bytes: Bytes) -> io::Result<()> {
        while !bytes.is_empty() {
            let written = match &self.socket {
                Socket::Tcp(stream) => stream.try_write(&bytes),
                Socket::Unix(stream) => stream.try_write(&bytes),
            };
            match written {
                Ok(count) => bytes.advance(count),
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => match &self.socket {
                    Socket::Tcp(stream) => stream.writable().await?,
                    Socket::Unix(stream) => stream.writable().await?,
                },
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                Err(error) => return Err(error),
            }
        }
        Ok(())
    }

    /// Whether the application itself has the connection, and not only its kernel.
    pub(crate) fn is_accepted(&self) -> bool {
        match &self.socket {
            Socket::Tcp(stream) => interceptor::is_accepted(stream.as_fd()),
            Socket::Unix(_) => true,
        }
    }

    /// Resets the connection, on both sides.
    pub(crate) fn give_up(&self) {
        self.is_given_up.store(true, Ordering::Release);
        self.abort();
    }

    /// Ends the direction to the application.
    fn finish(&self) {
        self.shut_down(Shutdown::Write);
    }

    /// Makes the coming close a reset instead of an end.
    fn abort(&self) {
        if let Some(breaks) = &self.breaks {
            breaks.target.store(true, Ordering::Release);
        }
        if let Socket::Tcp(stream) = &self.socket {
            let _ = stream.set_zero_linger();
        }
        self.shut_down(Shutdown::Read);
    }

    fn shut_down(&self, how: Shutdown) {
        let how = match how {
            Shutdown::Read => nix::sys::socket::Shutdown::Read,
            Shutdown::Write => nix::sys::socket::Shutdown::Write,
            Shutdown::Both => nix::sys::socket::Shutdown::Both,
        };
        let socket = match &self.socket {
            Socket::Tcp(stream) => stream.as_fd(),
            Socket::Unix(stream) => stream.as_fd(),
        };
        // An application that is gone needs no end.
        let _ = nix::sys::socket::shutdown(socket.as_raw_fd(), how);
    }
}

/// Reads once. If less came than there was room for, that was all: the next read waits for the kernel's word instead of
/// asking in vain.
fn try_read(stream: &TcpStream, buffer: &mut BytesMut) -> io::Result<usize> {
    let room = buffer.capacity() - buffer.len();
    let mut count = None;
    let tried = stream.try_io(Interest::READABLE, || {
        let read = stream.try_read_buf(buffer)?;
        count = Some(read);
        if read == 0 || read == room {
            return Ok(read);
        }
        Err(io::ErrorKind::WouldBlock.into())
    });
    count.map_or(tried, Ok)
}

/// Brings the agent's bytes to the application, until they end.
pub(crate) async fn to_application<B>(stream: Arc<LocalStream>, mut from_target: B)
where
    B: Body<Data = Bytes> + Unpin,
{
    loop {
        match from_target.frame().await {
            None => return stream.finish(),
            Some(Err(_)) => return stream.abort(),
            Some(Ok(frame)) => match frame.into_data() {
                Ok(bytes) => {
                    if let Some(traffic) = &stream.traffic {
                        traffic.application_gets(&bytes);
                    }
                    // The application does not want any more; dropping the body tells the agent.
                    if stream.write_all(bytes).await.is_err() {
                        return;
                    }
                }
                // The connection has failed at the target, and so it fails here.
                Err(trailers) => {
                    let headers = trailers.into_trailers().unwrap_or_default();
                    if Failure::from_headers(&headers).is_some() {
                        return stream.abort();
                    }
                }
            },
        }
    }
}

/// The application's bytes as a body. It waits for the connection, which is asked for with it.
#[derive(Debug)]
pub(crate) struct FromApplication {
    state: State,
    /// How much is read at once: grows while the application fills it.
    piece: usize,
    /// What comes before the application's bytes, once the connection is there.
    first: Bytes,
}

#[derive(Debug)]
enum State {
    /// Until the connection is there, or refused.
    Awaited(oneshot::Receiver<Arc<LocalStream>>),
    /// Until the application ends its direction, or fails.
    Open(Arc<LocalStream>),
    Ended,
}

impl FromApplication {
    /// The body, and where to put the stream that it reads.
    pub(crate) fn new() -> (oneshot::Sender<Arc<LocalStream>>, Self) {
        Self::after(Bytes::new())
    }

    /// The same, with some bytes before those of the stream.
    pub(crate) fn after(first: Bytes) -> (oneshot::Sender<Arc<LocalStream>>, Self) {
        let (stream, awaited) = oneshot::channel();
        let body = Self {
            state: State::Awaited(awaited),
            piece: FIRST_PIECE,
            first,
        };
        (stream, body)
    }
}

impl Body for FromApplication {
    type Data = Bytes;
    type Error = BoxError;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, BoxError>>> {
        let this = &mut *self;
        loop {
            match &mut this.state {
                State::Ended => return Poll::Ready(None),
                State::Awaited(awaited) => {
                    this.state = match ready!(Pin::new(awaited).poll(context)) {
                        Ok(stream) => State::Open(stream),
                        Err(_) => State::Ended,
                    };
                }
                State::Open(_) if !this.first.is_empty() => {
                    let first = std::mem::take(&mut this.first);
                    return Poll::Ready(Some(Ok(Frame::data(first))));
                }
                State::Open(stream) => {
                    let read = ready!(poll_read(stream, &mut this.piece, context));
                    return Poll::Ready(match read {
                        Ok(bytes) if bytes.is_empty() => {
                            this.state = State::Ended;
                            None
                        }
                        Ok(_) if stream.is_unheard => continue,
                        Ok(bytes) => Some(Ok(Frame::data(bytes))),
                        // The application is gone without closing: so shall the connection be.
                        Err(error) => {
                            this.state = State::Ended;
                            Some(Err(error.into()))
                        }
                    });
                }
            }
        }
    }
}

fn poll_read(
    stream: &LocalStream,
    piece: &mut usize,
    context: &mut Context<'_>,
) -> Poll<io::Result<Bytes>> {
    loop {
        ready!(stream.poll_read_ready(context))?;
        // Only now that there is something to read is there a buffer.
        let mut buffer = BytesMut::with_capacity(*piece);
        match stream.try_read(&mut buffer) {
            Ok(count) => {
                if count == *piece {
                    *piece = (*piece * 2).min(PIECE);
                } else if count < *piece / 4 {
                    *piece = (*piece / 2).max(FIRST_PIECE);
                }
                if let Some(traffic) = &stream.traffic {
                    traffic.application_sent(&buffer);
                }
                return Poll::Ready(Ok(buffer.freeze()));
            }
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => {}
            Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
            Err(error) => return Poll::Ready(Err(error)),
        }
    }
}

#[cfg(test)]
mod tests;
