//! A byte stream between an HTTP/2 stream and a socket, both ways, each with its own end.
//!
//! The response body reads the socket when HTTP/2 can send, and only then; a task writes the request body to the socket.
//! Neither holds more than one piece. A socket without traffic has no buffer at all.

use std::io;
use std::pin::Pin;
use std::sync::{Arc, Mutex, PoisonError};
use std::task::{Context, Poll, ready};
use std::time::Duration;

use bytes::{Buf as _, Bytes, BytesMut};
use http_body::Frame;
use http_body_util::BodyExt as _;
use hyper::body::Incoming;
use link::http2::PIECE;
use rustix::io::Errno;
use rustix::net::{Shutdown, shutdown, sockopt};
use tokio::net::{TcpStream, UnixStream};
use tonic::Status;
use tonic::body::Body;

use crate::Error;
use crate::error::errno_of;

const FIRST_PIECE: usize = 16 * 1024;

/// What the relay needs of a socket. All of it works on a shared one.
pub(crate) trait ByteSocket: Send + Sync + 'static {
    fn poll_read_ready(&self, context: &mut Context<'_>) -> Poll<io::Result<()>>;
    fn try_read(&self, buffer: &mut BytesMut) -> io::Result<usize>;
    fn writable(&self) -> impl Future<Output = io::Result<()>> + Send;
    fn try_write(&self, bytes: &[u8]) -> io::Result<usize>;
    /// Ends the direction to the peer.
    fn finish(&self);
    /// Makes the coming close a reset instead of an end.
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
                // A peer that is gone needs no end.
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

/// Starts moving bytes, and answers the body that brings those of the peer.
pub(crate) fn relay<S: ByteSocket>(socket: Arc<S>, to_peer: Incoming) -> Body {
    let failure = Arc::new(Failure::default());
    tokio::spawn(write_all(
        Arc::clone(&socket),
        to_peer,
        Arc::clone(&failure),
    ));
    Body::new(FromPeer {
        socket,
        failure,
        piece: FIRST_PIECE,
        state: State::Open,
    })
}

/// The first error of either direction. The kernel tells an error once, to whoever comes first.
#[derive(Debug, Default)]
struct Failure(Mutex<Option<Errno>>);

impl Failure {
    fn set(&self, errno: Errno) {
        self.0
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
            .get_or_insert(errno);
    }

    fn get(&self) -> Option<Errno> {
        *self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

async fn write_all<S: ByteSocket>(socket: Arc<S>, mut to_peer: Incoming, failure: Arc<Failure>) {
    loop {
        match to_peer.frame().await {
            None => return socket.finish(),
            // The client has reset the stream or is gone.
            Some(Err(_)) => return socket.abort(),
            Some(Ok(frame)) => {
                let Ok(bytes) = frame.into_data() else {
                    continue;
                };
                if let Err(error) = write_piece(&*socket, bytes).await {
                    // What the peer has sent before is still delivered; then the failure is told.
                    return failure.set(errno_of(&error));
                }
            }
        }
    }
}

async fn write_piece<S: ByteSocket>(socket: &S, mut bytes: Bytes) -> io::Result<()> {
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

/// The peer's bytes as a body.
struct FromPeer<S: ByteSocket> {
    socket: Arc<S>,
    failure: Arc<Failure>,
    /// How much is read at once: grows while the peer fills it.
    piece: usize,
    state: State,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum State {
    /// Until the peer ends its direction, or fails.
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
            // Only now that there is something to read is there a buffer.
            let mut buffer = BytesMut::with_capacity(this.piece);
            match this.socket.try_read(&mut buffer) {
                Ok(0) => return Poll::Ready(this.end(None)),
                Ok(count) => {
                    if count == this.piece {
                        this.piece = (this.piece * 2).min(PIECE);
                    } else if count < this.piece / 4 {
                        this.piece = (this.piece / 2).max(FIRST_PIECE);
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
        // The client has reset the stream: so is the connection.
        if self.state == State::Open {
            self.socket.abort();
        }
    }
}
