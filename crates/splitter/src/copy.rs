//! Copies of what clients send. A copy never slows what it is a copy of: it has a bounded memory, and ends when that is
//! full.

use std::future::{Future as _, poll_fn};
use std::io;
use std::pin::Pin;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::task::{Context, Poll, Waker, ready};
use std::time::Duration;

use bytes::BytesMut;
use tokio::io::AsyncWrite as _;
use tokio::time::{Instant, Sleep, sleep_until};
use tokio_util::io::InspectReader;

use crate::claims::HeldClaim;
use crate::settings::{Notice, Settings};
use crate::stream::{Arrival, BoxStream, Outbox, Read, poll_read};

/// So long a session may go on answering a copy that has ended. Closing at once would look like an error to it.
pub(crate) const LINGER: Duration = Duration::from_secs(10);

/// What waits longer than a moment for others gets no cheaper by it.
const LARGE: usize = 16 * 1024;

/// What waits in memory for a session. All of its copies share it, so that one that is stuck does not take all there is.
#[derive(Debug, Default)]
pub(crate) struct Budget(AtomicUsize);

impl Budget {
    pub(crate) fn take(&self, amount: usize, limit: usize) -> bool {
        let before = self.0.fetch_add(amount, Ordering::Relaxed);
        let fits = before.saturating_add(amount) <= limit;
        if !fits {
            self.give(amount);
        }
        fits
    }

    pub(crate) fn give(&self, amount: usize) {
        self.0.fetch_sub(amount, Ordering::Relaxed);
    }
}

/// The end of a copy that bytes go into. Dropping it ends the copy.
pub(crate) struct Copy {
    shared: Arc<Shared>,
    limit: usize,
    session_limit: usize,
}

struct Shared {
    held: Arc<HeldClaim>,
    state: Mutex<State>,
}

#[derive(Default)]
struct State {
    waiting: BytesMut,
    /// Bytes that are being written at the moment.
    in_flight: usize,
    has_ended: bool,
    was_dropped: bool,
    /// Whoever delivers the copy.
    delivery: Option<Waker>,
}

impl Copy {
    /// Starts a copy for a session.
    pub(crate) fn start(held: &Arc<HeldClaim>, arrival: &Arrival, settings: &Settings) -> Self {
        let shared = Arc::new(Shared {
            held: held.clone(),
            state: Mutex::default(),
        });
        tokio::spawn(deliver(arrival.clone(), shared.clone()));
        Self {
            shared,
            limit: settings.copy_limit,
            session_limit: settings.copies_limit,
        }
    }

    /// Adds bytes, unless the copy is too far behind.
    pub(crate) fn push(&mut self, bytes: &[u8]) {
        let mut state = self.shared.lock();
        if state.was_dropped {
            return;
        }
        let budget = &self.shared.held.copies;
        if state.waiting.len() + state.in_flight + bytes.len() > self.limit
            || !budget.take(bytes.len(), self.session_limit)
        {
            budget.give(state.waiting.len());
            state.was_dropped = true;
            state.waiting = BytesMut::new();
        } else {
            state.waiting.extend_from_slice(bytes);
        }
        state.wake();
    }
}

impl Drop for Copy {
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

/// What there is to do for a copy.
enum Next {
    Write(BytesMut),
    /// There is something to write then, together with other copies.
    Wait(Instant),
    /// The client has sent all.
    End,
    /// It is too far behind.
    Dropped,
}

impl Shared {
    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// What is next, when all before it has been written. With `is_due`, it has waited for others already.
    fn poll_next(&self, is_due: bool, context: &Context<'_>) -> Poll<Next> {
        let mut state = self.lock();
        self.held.copies.give(std::mem::take(&mut state.in_flight));
        if state.was_dropped {
            return Poll::Ready(Next::Dropped);
        }
        if !state.waiting.is_empty() {
            let is_large = state.waiting.len() >= LARGE;
            let departures = &self.held.departures;
            if let Some(at) = departures
                .next(Instant::now())
                .filter(|_| !is_due && !is_large)
            {
                return Poll::Ready(Next::Wait(at));
            }
            let bytes = std::mem::take(&mut state.waiting);
            state.in_flight = bytes.len();
            return Poll::Ready(Next::Write(bytes));
        }
        if state.has_ended {
            return Poll::Ready(Next::End);
        }
        state.delivery = Some(context.waker().clone());
        Poll::Pending
    }

    /// Whether it fell behind while something is being written. If not, we are woken when it does.
    fn was_dropped(&self, context: &Context<'_>) -> bool {
        let mut state = self.lock();
        state.delivery = Some(context.waker().clone());
        state.was_dropped
    }

    /// Whatever comes from now on is not kept for anybody. Says whether it fell behind before.
    fn close(&self) -> bool {
        let mut state = self.lock();
        let left = state.waiting.len() + std::mem::take(&mut state.in_flight);
        self.held.copies.give(left);
        state.waiting = BytesMut::new();
        std::mem::replace(&mut state.was_dropped, true)
    }
}

/// Brings a copy to its session.
async fn deliver(arrival: Arrival, shared: Arc<Shared>) {
    let holder = &shared.held.claim.holder;
    let delivered = async {
        let stream = shared.held.claim.destination.open_copy(&arrival).await?;
        let mut delivery = Delivery {
            stream,
            outbox: Outbox::default(),
            departure: None,
            answers_ended: false,
        };
        if poll_fn(|context| delivery.poll_write(&shared, context)).await? {
            delivery.end().await;
        }
        io::Result::Ok(())
    };
    if let Err(error) = delivered.await {
        tracing::debug!(%error, %holder, "a copy ended early");
    }
    if shared.close() {
        shared.held.tell(Notice::CopyDropped);
    }
}

/// Writes a copy, and reads what the session answers to nobody.
struct Delivery {
    stream: BoxStream,
    outbox: Outbox,
    /// Until what is there may leave.
    departure: Option<Pin<Box<Sleep>>>,
    answers_ended: bool,
}

impl Delivery {
    /// Writes all that comes. Says whether that was all that the client sent.
    fn poll_write(&mut self, shared: &Shared, context: &mut Context<'_>) -> Poll<io::Result<bool>> {
        loop {
            let _ = self.poll_answers(context)?;
            if self
                .outbox
                .poll_empty(&mut self.stream, context)?
                .is_pending()
            {
                return if shared.was_dropped(context) {
                    Poll::Ready(Ok(false))
                } else {
                    Poll::Pending
                };
            }
            let departure = self.departure.as_mut();
            let is_due = departure.is_some();
            if let Some(departure) = departure {
                ready!(departure.as_mut().poll(context));
                shared.held.departures.leave(departure.deadline());
                self.departure = None;
            }
            match ready!(shared.poll_next(is_due, context)) {
                Next::Wait(at) => self.departure = Some(Box::pin(sleep_until(at))),
                Next::Write(bytes) => self.outbox.write(&mut self.stream, context, &bytes)?,
                Next::End => return Poll::Ready(Ok(true)),
                Next::Dropped => return Poll::Ready(Ok(false)),
            }
        }
    }

    /// Ready when there are no more answers.
    fn poll_answers(&mut self, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        while !self.answers_ended {
            match ready!(poll_read(&mut self.stream, context, |_, _| ()))? {
                Read::Bytes(()) => {}
                Read::End => self.answers_ended = true,
            }
        }
        Poll::Ready(Ok(()))
    }

    async fn end(mut self) {
        let ended = poll_fn(|context| {
            let _ = ready!(Pin::new(&mut self.stream).poll_shutdown(context));
            self.poll_answers(context)
        });
        let _ = tokio::time::timeout(LINGER, ended).await;
    }
}

/// A client's stream of which copies are made while it is read.
pub(crate) fn copied(stream: BoxStream, mut copies: Vec<Copy>) -> BoxStream {
    Box::new(InspectReader::new(stream, move |bytes: &[u8]| {
        if !bytes.is_empty() {
            for copy in &mut copies {
                copy.push(bytes);
            }
        }
    }))
}
