//! A pipe that can be cut from outside. HTTP/2 owns the link, and would wait for an agent that is known to be gone.

use std::future::Future as _;
use std::io::{self, IoSlice};
use std::pin::Pin;
use std::task::{Context, Poll};

use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio::sync::oneshot;

/// Cuts the pipe when it is dropped.
#[derive(Debug)]
pub(super) struct Scissors(#[expect(dead_code, reason = "held to be dropped")] oneshot::Sender<()>);

#[derive(Debug)]
pub(super) struct Cuttable<P> {
    pipe: P,
    /// From the holder of the scissors to the pipe. None: it is cut.
    scissors_held: Option<oneshot::Receiver<()>>,
}

impl<P> Cuttable<P> {
    pub(super) fn new(pipe: P) -> (Self, Scissors) {
        let (sender, receiver) = oneshot::channel();
        let pipe = Self {
            pipe,
            scissors_held: Some(receiver),
        };
        (pipe, Scissors(sender))
    }

    fn check(&mut self, context: &mut Context<'_>) -> io::Result<()> {
        if let Some(held) = &mut self.scissors_held {
            if Pin::new(held).poll(context).is_pending() {
                return Ok(());
            }
            self.scissors_held = None;
        }
        Err(io::Error::from(io::ErrorKind::ConnectionReset))
    }
}

impl<P: AsyncRead + Unpin> AsyncRead for Cuttable<P> {
    fn poll_read(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        buffer: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        self.check(context)?;
        Pin::new(&mut self.pipe).poll_read(context, buffer)
    }
}

/// Whoever writes reads as well, so it is enough to look when reading.
impl<P: AsyncWrite + Unpin> AsyncWrite for Cuttable<P> {
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
    async fn a_reader_that_waits_ends_when_the_pipe_is_cut() {
        let (ours, mut theirs) = tokio::io::duplex(64);
        let (mut pipe, scissors) = Cuttable::new(ours);
        theirs.write_all(b"word").await.unwrap();
        let mut word = [0; 4];
        pipe.read_exact(&mut word).await.unwrap();
        assert_eq!(&word, b"word");
        let waiting = tokio::spawn(async move {
            let first = pipe.read_u8().await.unwrap_err().kind();
            (first, pipe.read_u8().await.unwrap_err().kind())
        });
        drop(scissors);
        let reset = io::ErrorKind::ConnectionReset;
        assert_eq!(waiting.await.unwrap(), (reset, reset));
        drop(theirs);
    }
}
