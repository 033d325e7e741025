//! Streams of bytes, and where they come from.

use std::future::Future;
use std::io;
use std::net::SocketAddr;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll, ready};
use std::time::Duration;

use bytes::{Buf, BytesMut};
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};

use crate::scratch::with_scratch;

/// A connection, whatever carries it.
pub trait Stream: AsyncRead + AsyncWrite + Send + Unpin + 'static {}

impl<T: AsyncRead + AsyncWrite + Send + Unpin + 'static> Stream for T {}

/// A connection whose kind does not matter.
pub type BoxStream = Box<dyn Stream>;

/// A future whose kind does not matter.
pub type BoxFuture<'a, T> = Pin<Box<dyn Future<Output = T> + Send + 'a>>;

/// The two ends of a connection as its client sees them.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Arrival {
    pub client: SocketAddr,
    pub server: SocketAddr,
    /// What the client said when it asked for TLS, if it did and if the bytes are not those of TLS any more.
    pub tls: Option<Arc<TlsFacts>>,
}

/// What a client said when it asked for TLS.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct TlsFacts {
    /// The server's name, if the client named one.
    pub server_name: Option<String>,
    /// The application protocol that was agreed on, such as `h2`.
    pub application_protocol: Option<Vec<u8>>,
}

/// Where a connection, or some requests of it, can go to: the original application, or a session.
///
/// What is opened is a plain stream of bytes, as if the client had connected there itself. So a destination has nothing
/// to know about HTTP, and the same way serves whole ports, single requests, HTTP/2 and copies.
pub trait Destination: Send + Sync {
    /// Opens a stream for the client that arrived.
    fn open<'a>(&'a self, arrival: &'a Arrival) -> BoxFuture<'a, io::Result<BoxStream>>;

    /// The same for a copy: nobody hears what is answered, so the destination may keep it to itself. It still tells when
    /// the answers end.
    fn open_copy<'a>(&'a self, arrival: &'a Arrival) -> BoxFuture<'a, io::Result<BoxStream>> {
        self.open(arrival)
    }

    /// Whether nobody is there at the moment, who may come back.
    fn away(&self) -> Option<Away> {
        None
    }
}

/// Somebody who cannot be reached, and may be again.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Away {
    /// The longest time that he may still stay away before he is gone for good.
    pub keeps_for: Duration,
}

/// What became of a read.
pub(crate) enum Read<T> {
    Bytes(T),
    End,
}

/// Reads once, into memory that is shared by all connections of the thread, and calls with what came.
pub(crate) fn poll_read<T>(
    stream: &mut (impl AsyncRead + Unpin + ?Sized),
    context: &mut Context<'_>,
    then: impl FnOnce(&[u8], &mut Context<'_>) -> T,
) -> Poll<io::Result<Read<T>>> {
    with_scratch(|scratch| {
        let mut buffer = ReadBuf::new(scratch);
        ready!(Pin::new(stream).poll_read(context, &mut buffer))?;
        let bytes = buffer.filled();
        Poll::Ready(Ok(if bytes.is_empty() {
            Read::End
        } else {
            Read::Bytes(then(bytes, context))
        }))
    })
}

/// Bytes on their way into a stream. It is empty as long as the stream takes them.
#[derive(Debug, Default)]
pub(crate) struct Outbox {
    waiting: BytesMut,
    needs_flush: bool,
}

impl Outbox {
    pub(crate) fn is_empty(&self) -> bool {
        self.waiting.is_empty() && !self.needs_flush
    }

    pub(crate) fn push(&mut self, bytes: &[u8]) {
        self.waiting.extend_from_slice(bytes);
    }

    /// Writes what the stream takes now, and keeps the rest.
    pub(crate) fn write(
        &mut self,
        stream: &mut (impl AsyncWrite + Unpin + ?Sized),
        context: &mut Context<'_>,
        mut bytes: &[u8],
    ) -> io::Result<()> {
        if self.waiting.is_empty() {
            while !bytes.is_empty() {
                match Pin::new(&mut *stream).poll_write(context, bytes)? {
                    Poll::Ready(0) => return Err(io::ErrorKind::WriteZero.into()),
                    Poll::Ready(written) => bytes = &bytes[written..],
                    Poll::Pending => break,
                }
            }
            self.needs_flush = true;
        }
        self.waiting.extend_from_slice(bytes);
        Ok(())
    }

    /// Writes what waits. Ready when nothing does.
    pub(crate) fn poll_empty(
        &mut self,
        stream: &mut (impl AsyncWrite + Unpin + ?Sized),
        context: &mut Context<'_>,
    ) -> Poll<io::Result<()>> {
        while !self.waiting.is_empty() {
            match ready!(Pin::new(&mut *stream).poll_write(context, &self.waiting))? {
                0 => return Poll::Ready(Err(io::ErrorKind::WriteZero.into())),
                written => self.waiting.advance(written),
            }
            self.needs_flush = true;
        }
        if self.waiting.capacity() > 0 {
            self.waiting = BytesMut::new();
        }
        if self.needs_flush {
            ready!(Pin::new(stream).poll_flush(context))?;
            self.needs_flush = false;
        }
        Poll::Ready(Ok(()))
    }
}

/// A stream of which the first bytes have been read, and are read again.
pub(crate) struct Rewound {
    first: BytesMut,
    stream: BoxStream,
}

impl Rewound {
    pub(crate) fn new(first: BytesMut, stream: BoxStream) -> Self {
        Self { first, stream }
    }
}

impl AsyncRead for Rewound {
    fn poll_read(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        buffer: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        if self.first.is_empty() {
            return Pin::new(&mut self.stream).poll_read(context, buffer);
        }
        let length = self.first.len().min(buffer.remaining());
        buffer.put_slice(&self.first.split_to(length));
        if self.first.is_empty() {
            self.first = BytesMut::new();
        }
        Poll::Ready(Ok(()))
    }
}

impl AsyncWrite for Rewound {
    fn poll_write(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        bytes: &[u8],
    ) -> Poll<io::Result<usize>> {
        Pin::new(&mut self.stream).poll_write(context, bytes)
    }

    fn poll_flush(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_flush(context)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_shutdown(context)
    }
}

/// Whether a stream that nobody is using is open and silent.
pub(crate) fn is_open_and_silent(stream: &mut BoxStream) -> bool {
    let mut byte = [0];
    let mut buffer = ReadBuf::new(&mut byte);
    let mut context = Context::from_waker(std::task::Waker::noop());
    Pin::new(stream)
        .poll_read(&mut context, &mut buffer)
        .is_pending()
}
