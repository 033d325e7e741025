//! A bidirectional byte stream between the application and the agent, with backpressure and half-close in each direction.
//!
//! HTTP/2 reads the application's bytes from the socket only when it can send them, so there is no queue between the two
//! and no task that fills it. An idle socket has no buffer.

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
use link::http2::{BoxError, PREFERRED_CHUNK_SIZE};
use protocol::rpc::Failure;
use tokio::io::Interest;
use tokio::net::{TcpStream, UnixStream};
use tokio::sync::oneshot;

use crate::monitor::Traffic;

/// The smallest read buffer.
const MIN_READ_BYTES: usize = 16 * 1024;

/// The proxy's end of a connection to the application.
#[derive(Debug)]
pub(crate) struct LocalStream {
    socket: Socket,
    /// Keeps the registration of the addresses that the application sees as the two ends.
    guard: StreamGuard,
    /// Records the traffic for the monitor.
    traffic: Option<Traffic>,
    /// Set if the socket is one of a pair.
    reset_flags: Option<Arc<ResetFlags>>,
    /// The end of the application's bytes is reported as a reset.
    is_reset: AtomicBool,
    /// The application's bytes are discarded instead of sent.
    discards_input: bool,
}

/// Which side of a socket pair was reset. A socket pair itself can only report an end of stream, not a reset.
#[derive(Debug, Default)]
pub(crate) struct ResetFlags {
    target: AtomicBool,
    application: AtomicBool,
}

impl ResetFlags {
    /// Whether the target's side was reset.
    pub(crate) fn target_was_reset(&self) -> bool {
        self.target.load(Ordering::Acquire)
    }

    /// Makes the end of the application's bytes a reset. To be called before the socket is closed.
    pub(crate) fn reset_application(&self) {
        self.application.store(true, Ordering::Release);
    }
}

/// A value that must live as long as a stream.
pub(crate) type StreamGuard = Box<dyn Any + Send + Sync>;

#[derive(Debug)]
enum Socket {
    Tcp(TcpStream),
    Unix(UnixStream),
}

impl LocalStream {
    pub(crate) fn new(
        transport: Transport,
        socket: OwnedFd,
        guard: impl Any + Send + Sync,
    ) -> io::Result<Self> {
        let socket = if transport == Transport::Unix {
            let stream = std::os::unix::net::UnixStream::from(socket);
            stream.set_nonblocking(true)?;
            Socket::Unix(UnixStream::from_std(stream)?)
        } else {
            let stream = std::net::TcpStream::from(socket);
            stream.set_nonblocking(true)?;
            // The sender has already decided to send these bytes; Nagle's algorithm would only delay them.
            stream.set_nodelay(true)?;
            Socket::Tcp(TcpStream::from_std(stream)?)
        };
        Ok(Self {
            socket,
            guard: Box::new(guard),
            reset_flags: None,
            is_reset: AtomicBool::new(false),
            discards_input: false,
            traffic: None,
        })
    }

    /// For a mirrored connection: the application's bytes are discarded, and only their end is sent.
    pub(crate) fn discarding_input(self) -> Self {
        Self {
            discards_input: true,
            ..self
        }
    }

    /// Records the traffic for the monitor.
    pub(crate) fn with_traffic(self, traffic: Option<Traffic>) -> Self {
        Self { traffic, ..self }
    }

    /// One end of a socket pair. Both ends signal resets through `reset_flags`.
    pub(crate) fn from_pair(socket: OwnedFd, reset_flags: Arc<ResetFlags>) -> io::Result<Self> {
        let reset_flags = Some(reset_flags);
        let stream = Self::new(Transport::Unix, socket, ())?;
        Ok(Self {
            reset_flags,
            ..stream
        })
    }

    /// The socket, and the guard that must live as long.
    pub(crate) fn into_tcp(self) -> io::Result<(TcpStream, StreamGuard)> {
        match self.socket {
            Socket::Tcp(stream) => Ok((stream, self.guard)),
            Socket::Unix(_) => Err(io::ErrorKind::Unsupported.into()),
        }
    }

    /// Waits until a nonblocking `connect` has finished.
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
            // A read from a Unix socket stops at bytes that carry descriptors, so a short read does not mean that the
            // socket is empty.
            Socket::Unix(stream) => stream.try_read_buf(buffer),
        }?;
        let is_flagged = |flags: &Arc<ResetFlags>| flags.application.load(Ordering::Acquire);
        let was_reset = || {
            let is_reset = self.is_reset.load(Ordering::Acquire);
            is_reset || self.reset_flags.as_ref().is_some_and(is_flagged)
        };
        if count == 0 && was_reset() {
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

    /// Whether the application has accepted the connection, and it is not only in the backlog of the kernel.
    pub(crate) fn is_accepted(&self) -> bool {
        match &self.socket {
            Socket::Tcp(stream) => interceptor::is_accepted(stream.as_fd()),
            Socket::Unix(_) => true,
        }
    }

    /// Resets the connection in both directions.
    pub(crate) fn reset(&self) {
        self.is_reset.store(true, Ordering::Release);
        self.abort();
    }

    /// Closes the direction to the application.
    fn finish(&self) {
        self.shut_down(Shutdown::Write);
    }

    /// Makes the next close a reset.
    fn abort(&self) {
        if let Some(reset_flags) = &self.reset_flags {
            reset_flags.target.store(true, Ordering::Release);
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
        // It fails only if the application has already closed the connection.
        let _ = nix::sys::socket::shutdown(socket.as_raw_fd(), how);
    }
}

/// Reads once. After a short read the socket is empty, so its readiness is cleared: the next read waits for the reactor
/// instead of failing with `EAGAIN` first.
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

/// Copies the agent's bytes to the application until they end.
pub(crate) async fn copy_to_application<B>(stream: Arc<LocalStream>, mut from_target: B)
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
                        traffic.application_received(&bytes);
                    }
                    // The application has closed its side; dropping the body resets the stream to the agent.
                    if stream.write_all(bytes).await.is_err() {
                        return;
                    }
                }
                // The connection failed at the target, so it is reset here as well.
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

/// The application's bytes as an HTTP body. The body is part of the request that opens the connection, so it waits for
/// the stream that it reads.
#[derive(Debug)]
pub(crate) struct ApplicationBody {
    state: State,
    /// The size of the next read. It grows while the application fills it.
    read_bytes: usize,
    /// Sent before the application's bytes, as soon as the connection is open.
    prefix: Bytes,
}

#[derive(Debug)]
enum State {
    /// Until the connection is open or refused.
    Connecting(oneshot::Receiver<Arc<LocalStream>>),
    /// Until the application closes its direction, or the socket fails.
    Open(Arc<LocalStream>),
    Ended,
}

impl ApplicationBody {
    /// The body, and the sender for the stream that it reads.
    pub(crate) fn new() -> (oneshot::Sender<Arc<LocalStream>>, Self) {
        Self::with_prefix(Bytes::new())
    }

    /// Like [`new`](Self::new), with some bytes before those of the stream.
    pub(crate) fn with_prefix(prefix: Bytes) -> (oneshot::Sender<Arc<LocalStream>>, Self) {
        let (sender, stream) = oneshot::channel();
        let body = Self {
            state: State::Connecting(stream),
            read_bytes: MIN_READ_BYTES,
            prefix,
        };
        (sender, body)
    }
}

impl Body for ApplicationBody {
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
                State::Connecting(stream) => {
                    this.state = match ready!(Pin::new(stream).poll(context)) {
                        Ok(stream) => State::Open(stream),
                        Err(_) => State::Ended,
                    };
                }
                State::Open(_) if !this.prefix.is_empty() => {
                    let prefix = std::mem::take(&mut this.prefix);
                    return Poll::Ready(Some(Ok(Frame::data(prefix))));
                }
                State::Open(stream) => {
                    let read = ready!(poll_read(stream, &mut this.read_bytes, context));
                    return Poll::Ready(match read {
                        Ok(bytes) if bytes.is_empty() => {
                            this.state = State::Ended;
                            None
                        }
                        Ok(_) if stream.discards_input => continue,
                        Ok(bytes) => Some(Ok(Frame::data(bytes))),
                        // The application's side was reset; the error resets the connection at the target.
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
    read_bytes: &mut usize,
    context: &mut Context<'_>,
) -> Poll<io::Result<Bytes>> {
    loop {
        ready!(stream.poll_read_ready(context))?;
        // The buffer is allocated only now that there is something to read.
        let mut buffer = BytesMut::with_capacity(*read_bytes);
        match stream.try_read(&mut buffer) {
            Ok(count) => {
                if count == *read_bytes {
                    *read_bytes = (*read_bytes * 2).min(PREFERRED_CHUNK_SIZE);
                } else if count < *read_bytes / 4 {
                    *read_bytes = (*read_bytes / 2).max(MIN_READ_BYTES);
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
