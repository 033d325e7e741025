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
use crate::greeting::LinkId;
use crate::settings::Settings;
use crate::shared::Shared;

/// A stream of bytes in both directions that survives the loss of its connections.
///
/// It is read and written like any other. What differs:
///
/// - A write is done when the bytes are kept; they then arrive, unless the link fails. There is no need to flush.
/// - `shutdown` is done when the peer has everything that was written. A program that ends before that may lose bytes,
///   as nobody is left to send them again.
/// - Dropping a link that was not shut down gives it up, and the peer's next read is an error. After a shutdown,
///   dropping it is fine.
/// - An error of a read or write is final and holds a [`LinkError`].
pub struct Link {
    shared: Arc<Shared>,
    id: LinkId,
    peer: String,
}

/// How a link is.
#[derive(Debug, Clone)]
pub enum Status {
    Connected,
    Reconnecting {
        since: Instant,
        /// Connections that could not be made since then.
        attempts: u32,
        /// Why there is no connection.
        last_error: String,
    },
    /// Both streams ended and everything arrived, or this end gave the link up. There is nothing more to come.
    Finished,
    Failed(LinkError),
}

/// What a link did so far, and what it holds now.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Statistics {
    pub bytes_written: u64,
    pub bytes_received: u64,
    /// Kept until the peer acknowledges them.
    pub bytes_to_acknowledge: usize,
    /// Received, and not read by the user yet.
    pub bytes_to_read: usize,
    /// How often the link continued with a new connection.
    pub resumes: u64,
    /// As the last keep-alive saw it.
    pub round_trip: Option<Duration>,
}

impl Link {
    /// Makes a link, and a task that keeps it alive.
    pub async fn connect(dialer: impl Dial, settings: Settings) -> Result<Self, LinkError> {
        client::connect(dialer, settings).await
    }

    pub(crate) fn new(shared: Arc<Shared>, id: LinkId, peer: String) -> Self {
        Self { shared, id, peer }
    }

    pub fn id(&self) -> LinkId {
        self.id
    }

    /// Who the peer is, as [`Admit`](crate::Admit) named it. Empty on the client's end.
    pub fn peer(&self) -> &str {
        &self.peer
    }

    /// How the link is, now and later. It can be watched after the link has been given away or dropped.
    pub fn status(&self) -> watch::Receiver<Status> {
        self.shared.status.subscribe()
    }

    /// How long the link may be without a connection before it is over.
    pub fn resume_window(&self) -> Duration {
        self.shared.lock().machine.window()
    }

    /// Can be asked after the link has been given away or dropped.
    pub fn meter(&self) -> Meter {
        Meter(Arc::clone(&self.shared))
    }

    pub fn statistics(&self) -> Statistics {
        statistics(&self.shared)
    }

    /// Gives the link up, and tells the peer why. What was written and has not arrived may be lost.
    pub fn abort(self, reason: Abort) {
        self.shared.abort(reason);
    }
}

/// Asks for the [`Statistics`] of a link that somebody else uses.
#[derive(Clone)]
pub struct Meter(Arc<Shared>);

impl Meter {
    pub fn statistics(&self) -> Statistics {
        statistics(&self.0)
    }
}

fn statistics(shared: &Shared) -> Statistics {
    let machine = &shared.lock().machine;
    let (bytes_written, bytes_received) = machine.totals();
    Statistics {
        bytes_written,
        bytes_received,
        bytes_to_acknowledge: machine.outbox_length(),
        bytes_to_read: machine.inbox_length(),
        resumes: machine.resumes(),
        round_trip: machine.round_trip(),
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
