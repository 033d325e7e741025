//! Propagates TCP resets: when one side of a connection is reset, the other side is reset, too, instead of closed.
//!
//! The splitter only knows that a stream has ended, not whether it was closed or reset. So both sides of a connection share
//! a [`ResetState`] through a task-local of the task that serves the connection.

use std::io;
use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::task::{Context, Poll};
use std::time::Duration;

use rustix::net::sockopt;
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio::net::TcpStream;

/// A connection is idle if nothing was transferred for this time.
const IDLE_PERIOD: Duration = Duration::from_millis(200);

/// Which side of a connection was reset, and whether the connection is idle.
#[derive(Debug, Default)]
pub(super) struct ResetState {
    client_reset: AtomicBool,
    /// The server was reset, and no other server has sent anything to the client since then.
    server_reset: AtomicBool,
    /// The client sent the last bytes, so it probably waits for a response.
    client_sent_last: AtomicBool,
    /// The number of reads and writes on the client's side.
    transfers: AtomicU64,
}

tokio::task_local! {
    static RESET_STATE: Arc<ResetState>;
}

impl ResetState {
    /// Runs the future that serves a connection, with this as its [`ResetState::current`].
    pub(super) async fn scope<T>(self: Arc<Self>, serving: impl Future<Output = T>) -> T {
        RESET_STATE.scope(self, serving).await
    }

    /// The state of the connection that the current task serves. None in tasks that serve several connections.
    pub(super) fn current() -> Option<Arc<Self>> {
        RESET_STATE.try_with(Arc::clone).ok()
    }

    pub(super) fn client_was_reset(&self) -> bool {
        self.client_reset.load(Ordering::Relaxed)
    }

    /// Waits until the connection seems to be idle: the server sent the last bytes, and nothing was transferred since then
    /// for [`IDLE_PERIOD`].
    pub(super) async fn wait_until_idle(&self) {
        loop {
            let before = self.transfers.load(Ordering::Relaxed);
            tokio::time::sleep(IDLE_PERIOD).await;
            let is_silent = before == self.transfers.load(Ordering::Relaxed);
            if is_silent && !self.client_sent_last.load(Ordering::Relaxed) {
                return;
            }
        }
    }

    fn record_transfer(&self, sender: Side) {
        self.transfers.fetch_add(1, Ordering::Relaxed);
        let is_client = sender == Side::Client;
        self.client_sent_last.store(is_client, Ordering::Relaxed);
    }

    pub(super) fn mark_server_reset(&self) {
        self.server_reset.store(true, Ordering::Relaxed);
    }
}

/// The side of a connection that a socket belongs to.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Side {
    Client,
    Server,
}

/// A socket that is reset, instead of closed, if the other side of the connection was reset.
#[derive(Debug)]
pub(super) struct ResetSocket {
    stream: TcpStream,
    side: Side,
    reset_state: Option<Arc<ResetState>>,
    /// The write direction was shut down, because the other side had ended normally.
    is_shut: bool,
    /// The kernel reports an error only once, and a second read would look like the end of the stream.
    error: Option<io::ErrorKind>,
}

impl ResetSocket {
    pub(super) fn new(stream: TcpStream, side: Side, reset_state: Option<Arc<ResetState>>) -> Self {
        Self {
            stream,
            side,
            reset_state,
            is_shut: false,
            error: None,
        }
    }

    fn record_error<T>(&mut self, outcome: Poll<io::Result<T>>) -> Poll<io::Result<T>> {
        if let Poll::Ready(Err(error)) = &outcome {
            self.error = Some(error.kind());
            match (self.side, &self.reset_state) {
                (Side::Client, Some(reset_state)) => {
                    reset_state.client_reset.store(true, Ordering::Relaxed);
                }
                (Side::Server, Some(reset_state)) => reset_state.mark_server_reset(),
                (_, None) => {}
            }
        }
        outcome
    }

    fn other_side_reset(&self) -> bool {
        self.reset_state
            .as_ref()
            .is_some_and(|reset_state| match self.side {
                Side::Client => reset_state.server_reset.load(Ordering::Relaxed),
                Side::Server => reset_state.client_was_reset(),
            })
    }
}

impl Drop for ResetSocket {
    fn drop(&mut self) {
        if self.other_side_reset() && !self.is_shut {
            let _ = sockopt::set_socket_linger(&self.stream, Some(Duration::ZERO));
        }
    }
}

impl AsyncRead for ResetSocket {
    fn poll_read(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        buffer: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        if let Some(kind) = self.error {
            return Poll::Ready(Err(kind.into()));
        }
        let read = Pin::new(&mut self.stream).poll_read(context, buffer);
        // Only the client's side is counted: it sees all transfers, also if several servers respond to it.
        if let (Side::Client, true, Some(reset_state)) =
            (self.side, read.is_ready(), &self.reset_state)
        {
            reset_state.record_transfer(Side::Client);
        }
        self.record_error(read)
    }
}

impl AsyncWrite for ResetSocket {
    fn poll_write(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        bytes: &[u8],
    ) -> Poll<io::Result<usize>> {
        match (self.side, &self.reset_state) {
            // Another server has sent this.
            (Side::Client, Some(reset_state)) => {
                reset_state.server_reset.store(false, Ordering::Relaxed);
                reset_state.record_transfer(Side::Server);
            }
            // A pooled connection to the application may now serve another client.
            (Side::Server, _) => self.reset_state = ResetState::current(),
            (Side::Client, None) => {}
        }
        let written = Pin::new(&mut self.stream).poll_write(context, bytes);
        self.record_error(written)
    }

    fn poll_flush(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_flush(context)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        if self.other_side_reset() {
            // The drop resets the socket instead.
            return Poll::Ready(Ok(()));
        }
        self.is_shut = true;
        Pin::new(&mut self.stream).poll_shutdown(context)
    }
}
