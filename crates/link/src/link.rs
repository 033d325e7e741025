//! A link as its user sees it.

use std::fmt;
use std::io::{self, IoSlice};
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};
use std::time::{Duration, Instant};

use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio::sync::watch;

use crate::client;
use crate::dial::Dial;
use crate::error::{Abort, LinkError};
use crate::handshake::LinkId;
use crate::machine::EndReason;
use crate::settings::Settings;
use crate::shared::Shared;

/// A bidirectional byte stream that survives the loss of its connections.
///
/// It is read and written like any other stream. The differences:
///
/// - A write is complete when the bytes are in the replay buffer. They are then delivered, unless the link fails. Flushing
///   is not necessary.
/// - `shutdown` completes when the peer has received everything that was written. A program that exits before that may lose
///   bytes.
/// - Dropping a link that was not shut down aborts it, and the peer's next read fails. After a shutdown the link may be
///   dropped.
/// - An error of a read or write is final, and contains a [`LinkError`].
pub struct Link {
    shared: Arc<Shared>,
    id: LinkId,
    peer: String,
}

/// The state of a link.
#[derive(Debug, Clone)]
pub enum Status {
    Connected,
    Reconnecting {
        since: Instant,
        /// Failed attempts to connect since then.
        attempts: u32,
        /// Why there is no connection.
        last_error: String,
    },
    /// Both streams ended and everything was delivered, or this end aborted the link. Final.
    Finished,
    Failed(LinkError),
}

/// Counters and buffer levels of a link.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Statistics {
    pub bytes_written: u64,
    pub bytes_received: u64,
    /// Bytes that the peer has not acknowledged yet.
    pub bytes_to_acknowledge: usize,
    /// Bytes that were received, and not read by the user yet.
    pub bytes_to_read: usize,
    /// How often the link was resumed on a new connection.
    pub resumes: u64,
    /// The round-trip time of the last keep-alive.
    pub round_trip: Option<Duration>,
    /// When something was last received from the peer.
    pub last_received: Option<Instant>,
}

impl Link {
    /// Creates a link, and spawns the task that keeps it connected.
    pub async fn connect(dialer: impl Dial, settings: Settings) -> Result<Self, LinkError> {
        client::connect(dialer, settings).await
    }

    pub(crate) fn new(shared: Arc<Shared>, id: LinkId, peer: String) -> Self {
        Self { shared, id, peer }
    }

    pub fn id(&self) -> LinkId {
        self.id
    }

    /// The name that [`Admit`](crate::Admit) returned for the peer. Empty on the client side.
    pub fn peer(&self) -> &str {
        &self.peer
    }

    /// Watches the state of the link. The receiver stays valid after the link has been moved or dropped.
    pub fn status(&self) -> watch::Receiver<Status> {
        self.shared.status.subscribe()
    }

    /// How long the link may be without a connection before it fails.
    pub fn resume_window(&self) -> Duration {
        self.shared.lock().machine.window()
    }

    /// A handle to the statistics. It stays valid after the link has been moved or dropped.
    pub fn meter(&self) -> Meter {
        Meter(Arc::clone(&self.shared))
    }

    pub fn statistics(&self) -> Statistics {
        statistics(&self.shared)
    }

    /// A handle that aborts the link. It stays valid after the link has been moved or dropped.
    pub fn aborter(&self) -> Aborter {
        Aborter(Arc::clone(&self.shared))
    }

    /// Aborts the link, and sends the reason to the peer. Bytes that were not delivered may be lost.
    pub fn abort(self, reason: Abort) {
        self.shared.abort(reason);
    }
}

/// Reads the [`Statistics`] of a link that is used elsewhere.
#[derive(Clone)]
pub struct Meter(Arc<Shared>);

impl Meter {
    pub fn statistics(&self) -> Statistics {
        statistics(&self.0)
    }

    /// Why the link failed, if it did. A reader or writer that gets an error finds the reason here: unlike the link's status
    /// it is never late.
    pub fn failure(&self) -> Option<LinkError> {
        match self.0.lock().machine.end_reason() {
            Some(EndReason::Failed(error)) => Some(error.clone()),
            _ => None,
        }
    }
}

/// Aborts a link that is used elsewhere.
#[derive(Clone)]
pub struct Aborter(Arc<Shared>);

impl Aborter {
    /// Aborts the link, and sends the reason to the peer. Bytes that were not delivered may be lost.
    pub fn abort(&self, reason: Abort) {
        self.0.abort(reason);
    }
}

impl fmt::Debug for Aborter {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.debug_struct("Aborter").finish_non_exhaustive()
    }
}

fn statistics(shared: &Shared) -> Statistics {
    let machine = &shared.lock().machine;
    let (bytes_written, bytes_received) = machine.totals();
    Statistics {
        bytes_written,
        bytes_received,
        bytes_to_acknowledge: machine.replay_buffer_length(),
        bytes_to_read: machine.receive_buffer_length(),
        resumes: machine.resumes(),
        round_trip: machine.round_trip(),
        last_received: machine.last_received(),
    }
}

impl Drop for Link {
    fn drop(&mut self) {
        self.shared.abandon();
    }
}

impl AsyncRead for Link {
    fn poll_read(
        self: Pin<&mut Self>,
        context: &mut Context<'_>,
        buffer: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        self.shared.poll_read(context, buffer)
    }
}

impl AsyncWrite for Link {
    fn poll_write(
        self: Pin<&mut Self>,
        context: &mut Context<'_>,
        bytes: &[u8],
    ) -> Poll<io::Result<usize>> {
        self.shared.poll_write(context, &[IoSlice::new(bytes)])
    }

    fn poll_write_vectored(
        self: Pin<&mut Self>,
        context: &mut Context<'_>,
        slices: &[IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        self.shared.poll_write(context, slices)
    }

    fn is_write_vectored(&self) -> bool {
        true
    }

    fn poll_flush(self: Pin<&mut Self>, _: &mut Context<'_>) -> Poll<io::Result<()>> {
        self.shared.flush();
        Poll::Ready(Ok(()))
    }

    fn poll_shutdown(self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        self.shared.poll_shutdown(context)
    }
}

impl fmt::Debug for Link {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut debug = formatter.debug_struct("Link");
        debug.field("id", &self.id).finish_non_exhaustive()
    }
}

impl fmt::Debug for Meter {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter
            .debug_tuple("Meter")
            .field(&self.statistics())
            .finish()
    }
}
