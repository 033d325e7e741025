//! A pipe that can be aborted from outside. The HTTP/2 client owns the link, and would keep waiting for an agent that is
//! known to have ended.

use std::future::Future as _;
use std::io::{self, IoSlice};
use std::pin::Pin;
use std::task::{Context, Poll};

use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio::sync::oneshot;

/// Aborts the pipe when it is dropped.
#[derive(Debug)]
pub(super) struct AbortOnDrop(
    #[expect(dead_code, reason = "held to be dropped")] oneshot::Sender<()>,
);

/// A pipe whose reads fail with `ConnectionReset` after the [`AbortOnDrop`] was dropped.
#[derive(Debug)]
pub(super) struct AbortablePipe<P> {
    pipe: P,
    /// Completes when the guard is dropped. `None`: the pipe is aborted.
    guard_dropped: Option<oneshot::Receiver<()>>,
}

impl<P> AbortablePipe<P> {
    pub(super) fn new(pipe: P) -> (Self, AbortOnDrop) {
        let (sender, receiver) = oneshot::channel();
        let pipe = Self {
            pipe,
            guard_dropped: Some(receiver),
        };
        (pipe, AbortOnDrop(sender))
    }

    fn check(&mut self, context: &mut Context<'_>) -> io::Result<()> {
        if let Some(dropped) = &mut self.guard_dropped {
            if Pin::new(dropped).poll(context).is_pending() {
                return Ok(());
            }
            self.guard_dropped = None;
        }
        Err(io::Error::from(io::ErrorKind::ConnectionReset))
    }
}

impl<P: AsyncRead + Unpin> AsyncRead for AbortablePipe<P> {
    fn poll_read(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        buffer: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        self.check(context)?;
        Pin::new(&mut self.pipe).poll_read(context, buffer)
    }
}

/// Only reads are checked: every writer of the pipe reads as well.
impl<P: AsyncWrite + Unpin> AsyncWrite for AbortablePipe<P> {
    fn poll_write(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        bytes: &[u8],
    ) -> Poll<io::Result<usize>> {
        Pin::new(&mut self.pipe).poll_write(context, bytes)
    }

    fn poll_write_vectored(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        slices: &[IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        Pin::new(&mut self.pipe).poll_write_vectored(context, slices)
    }

    fn is_write_vectored(&self) -> bool {
        self.pipe.is_write_vectored()
    }

    fn poll_flush(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.pipe).poll_flush(context)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.pipe).poll_shutdown(context)
    }
}

#[cfg(test)]
mod tests {
    use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};

    use super::*;

    #[tokio::test]
    async fn a_pending_read_fails_when_the_guard_is_dropped() {
        let (ours, mut theirs) = tokio::io::duplex(64);
        let (mut pipe, guard) = AbortablePipe::new(ours);
        theirs.write_all(b"data").await.unwrap();
        let mut data = [0; 4];
        pipe.read_exact(&mut data).await.unwrap();
        assert_eq!(&data, b"data");
        let reading = tokio::spawn(async move {
            let first = pipe.read_u8().await.unwrap_err().kind();
            (first, pipe.read_u8().await.unwrap_err().kind())
        });
        drop(guard);
        let reset = io::ErrorKind::ConnectionReset;
        assert_eq!(reading.await.unwrap(), (reset, reset));
        drop(theirs);
    }
}
