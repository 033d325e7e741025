//! A connection that breaks on one side is broken on the other: a reset is no end.
//!
//! The splitter knows streams, and that they end. Which way one ended is told past it, by what the two sides of a
//! connection have in common: the task that serves it.

use std::io;
use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::task::{Context, Poll};
use std::time::Duration;

use rustix::net::sockopt;
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio::net::TcpStream;

/// So long neither side says anything when nothing is under way.
const REST: Duration = Duration::from_millis(200);

/// What became of the two sides of a connection.
#[derive(Debug, Default)]
pub(super) struct Fate {
    client_broke: AtomicBool,
    /// The last word that the client got was not the server's.
    server_broke: AtomicBool,
    /// The client waits for an answer, as far as can be told.
    client_spoke_last: AtomicBool,
    /// How often either side has said something.
    words: AtomicU64,
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

    /// Waits until nothing seems to be under way: the server has spoken last, and then nobody for a while.
    pub(super) async fn rests(&self) {
        loop {
            let before = self.words.load(Ordering::Relaxed);
            tokio::time::sleep(REST).await;
            let is_silent = before == self.words.load(Ordering::Relaxed);
            if is_silent && !self.client_spoke_last.load(Ordering::Relaxed) {
                return;
            }
        }
    }

    fn note_word(&self, of: Side) {
        self.words.fetch_add(1, Ordering::Relaxed);
        let is_client = of == Side::Client;
        self.client_spoke_last.store(is_client, Ordering::Relaxed);
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
    /// Nothing more is said on it, as the other side wanted it.
    is_shut: bool,
    /// The kernel tells an error once, and whoever reads again would take it for an end.
    broke: Option<io::ErrorKind>,
}

impl FatefulSocket {
    pub(super) fn new(stream: TcpStream, side: Side, fate: Option<Arc<Fate>>) -> Self {
        Self {
            stream,
            side,
            fate,
            is_shut: false,
            broke: None,
        }
    }

    fn note<T>(&mut self, outcome: Poll<io::Result<T>>) -> Poll<io::Result<T>> {
        if let Poll::Ready(Err(error)) = &outcome {
            self.broke = Some(error.kind());
            match (self.side, &self.fate) {
                (Side::Client, Some(fate)) => fate.client_broke.store(true, Ordering::Relaxed),
                (Side::Server, Some(fate)) => fate.break_server(),
                (_, None) => {}
            }
        }
        outcome
    }

    fn other_broke(&self) -> bool {
        self.fate.as_ref().is_some_and(|fate| match self.side {
            Side::Client => fate.server_broke.load(Ordering::Relaxed),
            Side::Server => fate.client_broke(),
        })
    }
}

impl Drop for FatefulSocket {
    fn drop(&mut self) {
        if self.other_broke() && !self.is_shut {
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
        if let Some(kind) = self.broke {
            return Poll::Ready(Err(kind.into()));
        }
        let read = Pin::new(&mut self.stream).poll_read(context, buffer);
        // What the client reads and writes is all that is said, whoever the server is.
        if let (Side::Client, true, Some(fate)) = (self.side, read.is_ready(), &self.fate) {
            fate.note_word(Side::Client);
        }
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
            (Side::Client, Some(fate)) => {
                fate.server_broke.store(false, Ordering::Relaxed);
                fate.note_word(Side::Server);
            }
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
        if self.other_broke() {
            // Closing it will say so.
            return Poll::Ready(Ok(()));
        }
        self.is_shut = true;
        Pin::new(&mut self.stream).poll_shutdown(context)
    }
}
