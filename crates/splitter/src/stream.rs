//! Byte streams, destinations that open them, and buffered writes.

use std::future::Future;
use std::io;
use std::net::SocketAddr;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll, ready};
use std::time::Duration;

use bytes::{Buf, BytesMut};
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};

use crate::read_buffer::with_read_buffer;

/// A connection over any transport.
pub trait Stream: AsyncRead + AsyncWrite + Send + Unpin + 'static {}

impl<T: AsyncRead + AsyncWrite + Send + Unpin + 'static> Stream for T {}

/// A connection of any type.
pub type BoxStream = Box<dyn Stream>;

/// A boxed future.
pub type BoxFuture<'a, T> = Pin<Box<dyn Future<Output = T> + Send + 'a>>;

/// Addresses and TLS facts of a connection, as its client sees them.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ConnectionMeta {
    pub client: SocketAddr,
    pub server: SocketAddr,
    /// Set if the client's TLS was terminated here: the stream carries plain text.
    pub tls: Option<Arc<ClientTls>>,
}

/// What a client negotiated in its TLS handshake.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct ClientTls {
    /// The server name (SNI), if the client sent one.
    pub server_name: Option<String>,
    /// The application protocol that was negotiated with ALPN, such as `h2`.
    pub application_protocol: Option<Vec<u8>>,
}

/// An upstream of a connection or of some of its requests: the original application, or a session.
///
/// It opens plain byte streams, as if the client had connected to it directly. A destination therefore needs no knowledge
/// of HTTP, and serves whole ports, single requests, HTTP/2 and mirrors alike.
pub trait Destination: Send + Sync {
    /// Opens a stream for a client's connection.
    fn open<'a>(&'a self, meta: &'a ConnectionMeta) -> BoxFuture<'a, io::Result<BoxStream>>;

    /// Opens a stream for a mirror. Responses are discarded, so the destination need not send them. It must still signal
    /// their end.
    fn open_mirror<'a>(&'a self, meta: &'a ConnectionMeta) -> BoxFuture<'a, io::Result<BoxStream>> {
        self.open(meta)
    }

    /// Set if the destination is temporarily unreachable.
    fn unreachable(&self) -> Option<Unreachable> {
        None
    }
}

/// A peer that is temporarily unreachable.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Unreachable {
    /// The time that is left for the peer to reconnect. After that its session ends.
    pub expires_in: Duration,
}

/// The result of a read.
pub(crate) enum Read<T> {
    Bytes(T),
    End,
}

/// Reads once into the thread's shared read buffer, at most `limit` bytes, and calls `then` with them.
pub(crate) fn poll_read<T>(
    stream: &mut (impl AsyncRead + Unpin + ?Sized),
    limit: usize,
    context: &mut Context<'_>,
    then: impl FnOnce(&[u8], &mut Context<'_>) -> T,
) -> Poll<io::Result<Read<T>>> {
    with_read_buffer(|buffer| {
        let limit = limit.min(buffer.len());
        let mut buffer = ReadBuf::new(&mut buffer[..limit]);
        ready!(Pin::new(stream).poll_read(context, &mut buffer))?;
        let bytes = buffer.filled();
        Poll::Ready(Ok(if bytes.is_empty() {
            Read::End
        } else {
            Read::Bytes(then(bytes, context))
        }))
    })
}

/// Bytes that wait to be written to a stream. It is empty as long as the stream accepts all writes.
#[derive(Debug, Default)]
pub(crate) struct WriteBuffer {
    pending: BytesMut,
    needs_flush: bool,
}

impl WriteBuffer {
    pub(crate) fn is_empty(&self) -> bool {
        self.pending.is_empty() && !self.needs_flush
    }

    /// The size of the buffer.
    pub(crate) fn capacity(&self) -> usize {
        self.pending.capacity()
    }

    pub(crate) fn push(&mut self, bytes: &[u8]) {
        self.pending.extend_from_slice(bytes);
    }

    /// Writes as many bytes as the stream accepts now, and buffers the rest.
    pub(crate) fn write(
        &mut self,
        stream: &mut (impl AsyncWrite + Unpin + ?Sized),
        context: &mut Context<'_>,
        mut bytes: &[u8],
    ) -> io::Result<()> {
        if self.pending.is_empty() {
            while !bytes.is_empty() {
                match Pin::new(&mut *stream).poll_write(context, bytes)? {
                    Poll::Ready(0) => return Err(io::ErrorKind::WriteZero.into()),
                    Poll::Ready(written) => bytes = &bytes[written..],
                    Poll::Pending => break,
                }
            }
            self.needs_flush = true;
        }
        self.pending.extend_from_slice(bytes);
        Ok(())
    }

    /// Writes the buffered bytes. Ready when the buffer is empty and flushed.
    pub(crate) fn poll_empty(
        &mut self,
        stream: &mut (impl AsyncWrite + Unpin + ?Sized),
        context: &mut Context<'_>,
    ) -> Poll<io::Result<()>> {
        while !self.pending.is_empty() {
            match ready!(Pin::new(&mut *stream).poll_write(context, &self.pending))? {
                0 => return Poll::Ready(Err(io::ErrorKind::WriteZero.into())),
                written => self.pending.advance(written),
            }
            self.needs_flush = true;
        }
        if self.pending.capacity() > 0 {
            self.pending = BytesMut::new();
        }
        if self.needs_flush {
            ready!(Pin::new(stream).poll_flush(context))?;
            self.needs_flush = false;
        }
        Poll::Ready(Ok(()))
    }
}

/// A stream whose first bytes have already been read and are returned again.
pub(crate) struct Rewind {
    first: BytesMut,
    stream: BoxStream,
}

impl Rewind {
    pub(crate) fn new(first: BytesMut, stream: BoxStream) -> Self {
        Self { first, stream }
    }
}

impl AsyncRead for Rewind {
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

impl AsyncWrite for Rewind {
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

/// Whether an unused stream is open and has no unread bytes.
pub(crate) fn is_idle_and_open(stream: &mut BoxStream) -> bool {
    let mut byte = [0];
    let mut buffer = ReadBuf::new(&mut byte);
    let mut context = Context::from_waker(std::task::Waker::noop());
    Pin::new(stream)
        .poll_read(&mut context, &mut buffer)
        .is_pending()
}
