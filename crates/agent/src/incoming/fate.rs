//! A connection that breaks on one side is broken on the other: a reset is no end.
//!
//! The splitter knows streams, and that they end. Which way one ended is told past it, by what the two sides of a
//! connection have in common: the task that serves it.

use std::io;
use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::task::{Context, Poll};
use std::time::Duration;

use rustix::net::sockopt;
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio::net::TcpStream;

/// What became of the two sides of a connection.
#[derive(Debug, Default)]
pub(super) struct Fate {
    client_broke: AtomicBool,
    /// The last word that the client got was not the server's.
    server_broke: AtomicBool,
}

tokio::task_local! {
    static FATE: Arc<Fate>;
}

impl Fate {
    /// Serves a connection whose sides know of each other.
    pub(super) async fn shared_by<T>(self: Arc<Self>, serving: impl Future<Output = T>) -> T {
        FATE.scope(self, serving).await
    }

    /// That of the connection for which this is called. One that is shared by many has none.
    pub(super) fn current() -> Option<Arc<Self>> {
        FATE.try_with(Arc::clone).ok()
    }

    pub(super) fn client_broke(&self) -> bool {
        self.client_broke.load(Ordering::Relaxed)
    }

    pub(super) fn break_server(&self) {
        self.server_broke.store(true, Ordering::Relaxed);
    }
}

/// Which side of a connection a socket is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Side {
    Client,
    Server,
}

/// A socket that is reset when the other side was.
#[derive(Debug)]
pub(super) struct FatefulSocket {
    stream: TcpStream,
    side: Side,
    fate: Option<Arc<Fate>>,
    is_shut: bool,
}

impl FatefulSocket {
    pub(super) fn new(stream: TcpStream, side: Side, fate: Option<Arc<Fate>>) -> Self {
        Self {
            stream,
            side,
            fate,
            is_shut: false,
        }
    }

    fn note<T>(&self, outcome: Poll<io::Result<T>>) -> Poll<io::Result<T>> {
        if let (Poll::Ready(Err(_)), Some(fate)) = (&outcome, &self.fate) {
            match self.side {
                Side::Client => fate.client_broke.store(true, Ordering::Relaxed),
                Side::Server => fate.break_server(),
            }
        }
        outcome
    }
}

impl Drop for FatefulSocket {
    fn drop(&mut self) {
        let Some(fate) = &self.fate else { return };
        let other_broke = match self.side {
            Side::Client => fate.server_broke.load(Ordering::Relaxed),
            Side::Server => fate.client_broke(),
        };
        if other_broke && !self.is_shut {
            let _ = sockopt::set_socket_linger(&self.stream, Some(Duration::ZERO));
        }
    }
}

impl AsyncRead for FatefulSocket {
    fn poll_read(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        buffer: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        let read = Pin::new(&mut self.stream).poll_read(context, buffer);
        self.note(read)
    }
}

impl AsyncWrite for FatefulSocket {
    fn poll_write(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        bytes: &[u8],
    ) -> Poll<io::Result<usize>> {
        match (self.side, &self.fate) {
            // Somebody else has answered.
            (Side::Client, Some(fate)) => fate.server_broke.store(false, Ordering::Relaxed),
            // A connection to the application may have another client than before.
            (Side::Server, _) => self.fate = Fate::current(),
            (Side::Client, None) => {}
        }
        let written = Pin::new(&mut self.stream).poll_write(context, bytes);
        self.note(written)
    }

    fn poll_flush(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_flush(context)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        self.is_shut = true;
        Pin::new(&mut self.stream).poll_shutdown(context)
    }
}
