//! Relays bytes between an HTTP/2 stream and a socket. Each direction is closed separately.
//!
//! The response body reads the socket only when HTTP/2 can send; a task writes the request body to the socket. Each buffers
//! at most one chunk. An idle socket has no buffer.

use std::io;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll, ready};
use std::time::Duration;

use bytes::{Buf as _, Bytes, BytesMut};
use http_body::Frame;
use http_body_util::BodyExt as _;
use link::http2::PREFERRED_CHUNK_SIZE;
use parking_lot::Mutex;
use rustix::io::Errno;
use rustix::net::{Shutdown, shutdown, sockopt};
use splitter::Memory;
use tokio::net::{TcpStream, UnixStream};
use tonic::Status;
use tonic::body::Body;

use crate::Error;
use crate::connection::RequestBody;
use crate::error::errno_of;

const MIN_CHUNK: usize = 16 * 1024;

/// The operations that the relay needs. All of them work on a shared socket.
pub(crate) trait ByteSocket: Send + Sync + 'static {
    fn poll_read_ready(&self, context: &mut Context<'_>) -> Poll<io::Result<()>>;
    fn try_read(&self, buffer: &mut BytesMut) -> io::Result<usize>;
    fn writable(&self) -> impl Future<Output = io::Result<()>> + Send;
    fn try_write(&self, bytes: &[u8]) -> io::Result<usize>;
    /// Closes the direction to the peer.
    fn finish(&self);
    /// Makes closing the socket reset the connection.
    fn abort(&self);
}

macro_rules! byte_socket {
    ($socket:ty) => {
        impl ByteSocket for $socket {
            fn poll_read_ready(&self, context: &mut Context<'_>) -> Poll<io::Result<()>> {
                <$socket>::poll_read_ready(self, context)
            }

            fn try_read(&self, buffer: &mut BytesMut) -> io::Result<usize> {
                self.try_read_buf(buffer)
            }

            async fn writable(&self) -> io::Result<()> {
                <$socket>::writable(self).await
            }

            fn try_write(&self, bytes: &[u8]) -> io::Result<usize> {
                <$socket>::try_write(self, bytes)
            }

            fn finish(&self) {
                // It fails if the peer has closed the connection already.
                let _ = shutdown(self, Shutdown::Write);
            }

            fn abort(&self) {
                let _ = sockopt::set_socket_linger(self, Some(Duration::ZERO));
                let _ = shutdown(self, Shutdown::Read);
            }
        }
    };
}

byte_socket!(TcpStream);
byte_socket!(UnixStream);

/// Starts to relay bytes. Returns the response body with the bytes from the peer.
pub(crate) fn relay<S: ByteSocket>(socket: Arc<S>, to_peer: RequestBody) -> Body {
    let failure = Arc::new(FirstError::default());
    let memory = to_peer.holder().memory().clone();
    tokio::spawn(write_all(
        Arc::clone(&socket),
        to_peer,
        Arc::clone(&failure),
    ));
    Body::new(FromPeer {
        memory,
        socket,
        failure,
        chunk: MIN_CHUNK,
        state: State::Open,
    })
}

/// The first error of either direction. The kernel reports an error only once, in one of the directions.
#[derive(Debug, Default)]
struct FirstError(Mutex<Option<Errno>>);

impl FirstError {
    fn set(&self, errno: Errno) {
        self.0.lock().get_or_insert(errno);
    }

    fn get(&self) -> Option<Errno> {
        *self.0.lock()
    }
}

async fn write_all<S: ByteSocket>(
    socket: Arc<S>,
    mut to_peer: RequestBody,
    failure: Arc<FirstError>,
) {
    let holder = to_peer.holder().clone();
    loop {
        match to_peer.frame().await {
            None => return socket.finish(),
            // The client has reset the stream or disconnected.
            Some(Err(_)) => return socket.abort(),
            Some(Ok(frame)) => {
                let Ok(bytes) = frame.into_data() else {
                    continue;
                };
                let written = tokio::select! {
                    biased;
                    written = write_chunk(&*socket, bytes) => written,
                    // The peer does not read, and this stream holds the most memory.
                    () = holder.evicted() => return socket.abort(),
                };
                if let Err(error) = written {
                    // The client still receives what the peer sent before, and then the error.
                    return failure.set(errno_of(&error));
                }
            }
        }
    }
}

async fn write_chunk<S: ByteSocket>(socket: &S, mut bytes: Bytes) -> io::Result<()> {
    while !bytes.is_empty() {
        match socket.try_write(&bytes) {
            Ok(count) => bytes.advance(count),
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => socket.writable().await?,
            Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
            Err(error) => return Err(error),
        }
    }
    Ok(())
}

/// The response body with the bytes from the peer.
struct FromPeer<S: ByteSocket> {
    memory: Memory,
    socket: Arc<S>,
    failure: Arc<FirstError>,
    /// The size of the next read. It grows while the peer fills it.
    chunk: usize,
    state: State,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum State {
    /// Until the peer closes its direction, or an error occurs.
    Open,
    Ended,
}

impl<S: ByteSocket> FromPeer<S> {
    fn end(&mut self, errno: Option<Errno>) -> Option<Result<Frame<Bytes>, Status>> {
        self.state = State::Ended;
        let errno = errno.or_else(|| self.failure.get())?;
        let failure = Error::operation("use this connection any longer")(errno).to_failure();
        Some(Ok(Frame::trailers(failure.to_headers())))
    }
}

impl<S: ByteSocket> http_body::Body for FromPeer<S> {
    type Data = Bytes;
    type Error = Status;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, Status>>> {
        let this = &mut *self;
        if this.state == State::Ended {
            return Poll::Ready(None);
        }
        loop {
            if let Err(error) = ready!(this.socket.poll_read_ready(context)) {
                return Poll::Ready(this.end(Some(errno_of(&error))));
            }
            // The buffer is allocated only when the socket is readable.
            let chunk = this.chunk.min(2 * this.memory.read_size());
            let mut buffer = BytesMut::with_capacity(chunk);
            match this.socket.try_read(&mut buffer) {
                Ok(0) => return Poll::Ready(this.end(None)),
                Ok(count) => {
                    if count == chunk {
                        this.chunk = (this.chunk * 2).min(PREFERRED_CHUNK_SIZE);
                    } else if count < this.chunk / 4 {
                        this.chunk = (this.chunk / 2).max(MIN_CHUNK);
                    }
                    return Poll::Ready(Some(Ok(Frame::data(buffer.freeze()))));
                }
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => {}
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                Err(error) => return Poll::Ready(this.end(Some(errno_of(&error)))),
            }
        }
    }
}

impl<S: ByteSocket> Drop for FromPeer<S> {
    fn drop(&mut self) {
        // The client has reset the stream, so the connection is reset, too.
        if self.state == State::Open {
            self.socket.abort();
        }
    }
}
