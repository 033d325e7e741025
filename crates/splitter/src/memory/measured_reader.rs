//! Reads a connection whose streams are measured.

use std::io;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll, ready};

use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};

use super::{InFlight, Memory};

/// How often a reader lets other tasks run first.
const MAX_YIELDS: u8 = 32;

/// A connection whose bytes are counted when they are read. While memory is exhausted, those that are evicted end first, so that
/// what is read has room.
pub struct MeasuredReader<S> {
    stream: S,
    memory: Memory,
    /// The measurement of the user of the connection.
    in_flight: Box<dyn Fn() -> Arc<InFlight> + Send + Sync>,
    yields: u8,
}

impl<S> MeasuredReader<S> {
    pub fn new(
        stream: S,
        memory: &Memory,
        in_flight: impl Fn() -> Arc<InFlight> + Send + Sync + 'static,
    ) -> Self {
        Self {
            stream,
            memory: memory.clone(),
            in_flight: Box::new(in_flight),
            yields: 0,
        }
    }
}

impl<S: AsyncRead + Unpin> AsyncRead for MeasuredReader<S> {
    fn poll_read(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        buffer: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        // Not for ever: something that cannot be evicted may be the reason.
        if self.memory.is_exhausted() && self.yields < MAX_YIELDS {
            self.yields += 1;
            context.waker().wake_by_ref();
            return Poll::Pending;
        }
        self.yields = 0;
        let before = buffer.filled().len();
        ready!(Pin::new(&mut self.stream).poll_read(context, buffer))?;
        (self.in_flight)().progressed(buffer.filled().len() - before);
        Poll::Ready(Ok(()))
    }
}

impl<S: AsyncWrite + Unpin> AsyncWrite for MeasuredReader<S> {
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

impl<S> std::fmt::Debug for MeasuredReader<S> {
    fn fmt(&self, formatter: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        formatter.write_str("MeasuredReader")
    }
}
