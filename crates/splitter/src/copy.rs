//! Copies of what clients send. A copy never slows what it is a copy of: it has a bounded memory, and ends when that is
//! full.

use std::io;
use std::pin::Pin;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::task::{Context, Poll};
use std::time::Duration;

use bytes::BytesMut;
use tokio::io::{AsyncRead, AsyncWrite, AsyncWriteExt, ReadBuf};
use tokio::sync::Notify;

use crate::claims::HeldClaim;
use crate::settings::{Notice, Settings};
use crate::stream::{Arrival, BoxStream};

/// So long a session may go on answering a copy that has ended. Closing at once would look like an error to it.
const LINGER: Duration = Duration::from_secs(10);

/// The end of a copy that bytes go into. Dropping it ends the copy.
pub(crate) struct Copy {
    shared: Arc<Shared>,
    limit: usize,
}

#[derive(Default)]
struct Shared {
    state: Mutex<State>,
    changed: Notify,
}

#[derive(Default)]
struct State {
    waiting: BytesMut,
    /// Bytes that are being written at the moment.
    in_flight: usize,
    has_ended: bool,
    was_dropped: bool,
}

impl Copy {
    /// Starts a copy for a session.
    pub(crate) fn start(held: &Arc<HeldClaim>, arrival: &Arrival, settings: &Settings) -> Self {
        let shared = Arc::<Shared>::default();
        tokio::spawn(deliver(
            held.clone(),
            arrival.clone(),
            settings.clone(),
            shared.clone(),
        ));
        Self {
            shared,
            limit: settings.copy_limit,
        }
    }

    /// Adds bytes, unless the copy is too far behind.
    pub(crate) fn push(&mut self, bytes: &[u8]) {
        let mut state = self.shared.lock();
        if state.was_dropped {
            return;
        }
        if state.waiting.len() + state.in_flight + bytes.len() > self.limit {
            state.was_dropped = true;
            state.waiting = BytesMut::new();
        } else {
            state.waiting.extend_from_slice(bytes);
        }
        drop(state);
        self.shared.changed.notify_one();
    }
}

impl Drop for Copy {
    fn drop(&mut self) {
        self.shared.lock().has_ended = true;
        self.shared.changed.notify_one();
    }
}

impl Shared {
    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Waits for bytes. `None` is the end.
    async fn next(&self) -> Option<BytesMut> {
        loop {
            {
                let mut state = self.lock();
                state.in_flight = 0;
                if state.was_dropped {
                    return None;
                }
                if !state.waiting.is_empty() {
                    let bytes = std::mem::take(&mut state.waiting);
                    state.in_flight = bytes.len();
                    return Some(bytes);
                }
                if state.has_ended {
                    return None;
                }
            }
            self.changed.notified().await;
        }
    }

    /// Waits until the copy has fallen too far behind.
    async fn dropped(&self) {
        while !self.lock().was_dropped {
            self.changed.notified().await;
        }
    }
}

/// Writes the copy to the session, and reads what it answers to nobody.
async fn deliver(held: Arc<HeldClaim>, arrival: Arrival, settings: Settings, shared: Arc<Shared>) {
    let written = async {
        let stream = held.claim.destination.open(&arrival).await?;
        let (mut answers, mut stream) = tokio::io::split(stream);
        let discard = tokio::spawn(async move {
            let _ = tokio::io::copy(&mut answers, &mut tokio::io::sink()).await;
        });
        while let Some(bytes) = shared.next().await {
            tokio::select! {
                written = stream.write_all(&bytes) => written?,
                () = shared.dropped() => break,
            }
        }
        if shared.lock().was_dropped {
            discard.abort();
        } else {
            let _ = stream.shutdown().await;
            let _ = tokio::time::timeout(LINGER, discard).await;
        }
        io::Result::Ok(())
    }
    .await;
    let overflowed = {
        let mut state = shared.lock();
        let overflowed = state.was_dropped;
        // Whatever comes from now on is not kept for anybody.
        state.was_dropped = true;
        state.waiting = BytesMut::new();
        overflowed
    };
    if let Err(error) = written {
        tracing::debug!(%error, holder = %held.claim.holder, "a copy ended early");
    }
    if overflowed {
        settings.notices.tell(Notice::CopyDropped {
            holder: held.claim.holder.clone(),
        });
    }
}

/// A client's stream of which copies are made while it is read.
pub(crate) struct Copied {
    stream: BoxStream,
    copies: Vec<Copy>,
}

impl Copied {
    pub(crate) fn new(stream: BoxStream, copies: Vec<Copy>) -> Self {
        Self { stream, copies }
    }
}

impl AsyncRead for Copied {
    fn poll_read(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        buffer: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        let before = buffer.filled().len();
        let poll = Pin::new(&mut self.stream).poll_read(context, buffer);
        let bytes = &buffer.filled()[before..];
        if !bytes.is_empty() {
            for copy in &mut self.copies {
                copy.push(bytes);
            }
        }
        poll
    }
}

impl AsyncWrite for Copied {
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
