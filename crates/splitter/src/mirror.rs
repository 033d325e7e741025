//! Mirrors of client connections. A mirror never slows the connection that it copies: its buffer is bounded, and it is
//! dropped when the buffer is full.

use std::future::{Future as _, poll_fn};
use std::io;
use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::task::{Context, Poll, Waker, ready};
use std::time::Duration;

use bytes::BytesMut;
use parking_lot::{Mutex, MutexGuard};
use tokio::io::AsyncWrite as _;
use tokio::time::{Instant, Sleep, sleep_until};
use tokio_util::io::InspectReader;

use crate::claims::ActiveClaim;
use crate::memory::Memory;
use crate::settings::{Notice, Settings};
use crate::stream::{BoxStream, ConnectionMeta, Read, WriteBuffer, poll_read};

/// How long a session may keep sending responses after a mirrored connection has ended. Closing immediately would look
/// like an error to it.
pub(crate) const DRAIN_TIMEOUT: Duration = Duration::from_secs(10);

/// Writes of this size are flushed immediately: batching would not make them cheaper.
const LARGE_WRITE: usize = 16 * 1024;

/// Counts the bytes that are buffered for a session. All of its mirrors share it, so the memory of a session is bounded.
#[derive(Debug, Default)]
pub(crate) struct MirrorBudget {
    used: AtomicUsize,
    /// What it is a part of. `None` if it is a part of another mirror budget.
    memory: Option<Memory>,
}

impl MirrorBudget {
    pub(crate) fn within(memory: &Memory) -> Self {
        Self {
            used: AtomicUsize::new(0),
            memory: Some(memory.clone()),
        }
    }

    pub(crate) fn reserve(&self, amount: usize, limit: usize) -> bool {
        let before = self.used.fetch_add(amount, Ordering::Relaxed);
        let fits = before.saturating_add(amount) <= limit
            && self
                .memory
                .as_ref()
                .is_none_or(|memory| memory.reserve_for_mirror(amount));
        if !fits {
            self.used.fetch_sub(amount, Ordering::Relaxed);
        }
        fits
    }

    pub(crate) fn release(&self, amount: usize) {
        self.used.fetch_sub(amount, Ordering::Relaxed);
        if let Some(memory) = &self.memory {
            memory.release_from_mirror(amount);
        }
    }
}

/// The input of a mirror. Dropping it ends the mirrored stream.
pub(crate) struct Mirror {
    shared: Arc<Shared>,
    limit: usize,
    session_limit: usize,
}

struct Shared {
    active: Arc<ActiveClaim>,
    state: Mutex<State>,
}

#[derive(Default)]
struct State {
    pending: BytesMut,
    /// Bytes that are being written at the moment.
    in_flight: usize,
    has_ended: bool,
    was_dropped: bool,
    /// Wakes the delivery task.
    delivery: Option<Waker>,
}

impl Mirror {
    /// Starts a mirror for a session.
    pub(crate) fn start(
        active: &Arc<ActiveClaim>,
        meta: &ConnectionMeta,
        settings: &Settings,
    ) -> Self {
        let shared = Arc::new(Shared {
            active: active.clone(),
            state: Mutex::default(),
        });
        tokio::spawn(deliver(meta.clone(), shared.clone()));
        Self {
            shared,
            limit: settings.mirror_limit,
            session_limit: settings.session_mirror_limit,
        }
    }

    /// Adds bytes. Drops the mirror if its buffer would exceed a limit.
    pub(crate) fn push(&mut self, bytes: &[u8]) {
        let mut state = self.shared.lock();
        if state.was_dropped {
            return;
        }
        let budget = &self.shared.active.mirror_budget;
        if state.pending.len() + state.in_flight + bytes.len() > self.limit
            || !budget.reserve(bytes.len(), self.session_limit)
        {
            budget.release(state.pending.len());
            state.was_dropped = true;
            state.pending = BytesMut::new();
        } else {
            state.pending.extend_from_slice(bytes);
        }
        state.wake();
    }
}

impl Drop for Mirror {
    fn drop(&mut self) {
        let mut state = self.shared.lock();
        state.has_ended = true;
        state.wake();
    }
}

impl State {
    fn wake(&mut self) {
        if let Some(delivery) = self.delivery.take() {
            delivery.wake();
        }
    }
}

/// The next step of a delivery.
enum Step {
    Write(BytesMut),
    /// Bytes are pending, and are flushed at this time together with other mirrors.
    Wait(Instant),
    /// The client has ended its stream.
    End,
    /// The mirror was dropped because its buffer was full.
    Dropped,
}

impl Shared {
    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock()
    }

    /// Returns the next step after all earlier bytes have been written. With `is_due` the flush interval has passed.
    fn poll_next(&self, is_due: bool, context: &Context<'_>) -> Poll<Step> {
        let mut state = self.lock();
        self.active
            .mirror_budget
            .release(std::mem::take(&mut state.in_flight));
        if state.was_dropped {
            return Poll::Ready(Step::Dropped);
        }
        if !state.pending.is_empty() {
            let is_large = state.pending.len() >= LARGE_WRITE;
            let flush_schedule = &self.active.flush_schedule;
            if let Some(at) = flush_schedule
                .next_flush(Instant::now())
                .filter(|_| !is_due && !is_large)
            {
                return Poll::Ready(Step::Wait(at));
            }
            let bytes = std::mem::take(&mut state.pending);
            state.in_flight = bytes.len();
            return Poll::Ready(Step::Write(bytes));
        }
        if state.has_ended {
            return Poll::Ready(Step::End);
        }
        state.delivery = Some(context.waker().clone());
        Poll::Pending
    }

    /// Whether the mirror was dropped during a write. If not, the task is woken when that happens.
    fn was_dropped(&self, context: &Context<'_>) -> bool {
        let mut state = self.lock();
        state.delivery = Some(context.waker().clone());
        state.was_dropped
    }

    /// Discards pending and all further bytes. Returns whether the mirror had been dropped before.
    fn close(&self) -> bool {
        let mut state = self.lock();
        let left = state.pending.len() + std::mem::take(&mut state.in_flight);
        self.active.mirror_budget.release(left);
        state.pending = BytesMut::new();
        std::mem::replace(&mut state.was_dropped, true)
    }
}

/// Delivers a mirrored stream to its session.
async fn deliver(meta: ConnectionMeta, shared: Arc<Shared>) {
    let holder = &shared.active.claim.holder;
    let delivered = async {
        let stream = shared.active.claim.destination.open_mirror(&meta).await?;
        let mut delivery = Delivery {
            stream,
            write_buffer: WriteBuffer::default(),
            flush_timer: None,
            responses_ended: false,
        };
        if poll_fn(|context| delivery.poll_write(&shared, context)).await? {
            delivery.end().await;
        }
        io::Result::Ok(())
    };
    if let Err(error) = delivered.await {
        tracing::debug!(%error, %holder, "mirror ended early");
    }
    if shared.close() {
        shared.active.notify(Notice::MirrorDropped);
    }
}

/// Writes a mirrored stream, and discards the session's responses.
struct Delivery {
    stream: BoxStream,
    write_buffer: WriteBuffer,
    /// Set while pending bytes wait for the next flush.
    flush_timer: Option<Pin<Box<Sleep>>>,
    responses_ended: bool,
}

impl Delivery {
    /// Writes pending bytes until the stream ends. Returns false if the mirror was dropped.
    fn poll_write(&mut self, shared: &Shared, context: &mut Context<'_>) -> Poll<io::Result<bool>> {
        loop {
            let _ = self.poll_responses(context)?;
            if self
                .write_buffer
                .poll_empty(&mut self.stream, context)?
                .is_pending()
            {
                return if shared.was_dropped(context) {
                    Poll::Ready(Ok(false))
                } else {
                    Poll::Pending
                };
            }
            let flush_timer = self.flush_timer.as_mut();
            let is_due = flush_timer.is_some();
            if let Some(flush_timer) = flush_timer {
                ready!(flush_timer.as_mut().poll(context));
                shared.active.flush_schedule.flushed(flush_timer.deadline());
                self.flush_timer = None;
            }
            match ready!(shared.poll_next(is_due, context)) {
                Step::Wait(at) => self.flush_timer = Some(Box::pin(sleep_until(at))),
                Step::Write(bytes) => self.write_buffer.write(&mut self.stream, context, &bytes)?,
                Step::End => return Poll::Ready(Ok(true)),
                Step::Dropped => return Poll::Ready(Ok(false)),
            }
        }
    }

    /// Discards responses. Ready when they have ended.
    fn poll_responses(&mut self, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        while !self.responses_ended {
            match ready!(poll_read(&mut self.stream, usize::MAX, context, |_, _| ()))? {
                Read::Bytes(()) => {}
                Read::End => self.responses_ended = true,
            }
        }
        Poll::Ready(Ok(()))
    }

    async fn end(mut self) {
        let ended = poll_fn(|context| {
            let _ = ready!(Pin::new(&mut self.stream).poll_shutdown(context));
            self.poll_responses(context)
        });
        let _ = tokio::time::timeout(DRAIN_TIMEOUT, ended).await;
    }
}

/// Copies a client's stream to mirrors while it is read.
pub(crate) fn with_mirrors(stream: BoxStream, mut mirrors: Vec<Mirror>) -> BoxStream {
    Box::new(InspectReader::new(stream, move |bytes: &[u8]| {
        if !bytes.is_empty() {
            for mirror in &mut mirrors {
                mirror.push(bytes);
            }
        }
    }))
}
