//! What a link's user and its driver share: the machine, the pipe, and moving bytes between the two.
//!
//! There is one lock. It is held while bytes are copied and while the pipe is asked, which never blocks, and never
//! across an await.

use std::io::{self, IoSlice};
use std::ops::{Deref, DerefMut};
use std::pin::Pin;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, TryLockError};
use std::task::{Context, Poll, Waker, ready};
use std::time::{Duration, Instant};

use bytes::BufMut;
use tokio::io::{AsyncWriteExt, ReadBuf};
use tokio::sync::watch;
use tokio::time::Sleep;
use tokio_util::io::poll_read_buf;

use crate::dial::Pipe;
use crate::error::{Abort, Malformed};
use crate::link::Status;
use crate::machine::{Ending, Machine, SLICES};
use crate::wakers::{self, Wakers};

/// Bytes go straight from the pipe to the user when the user has room for at least this many. With less room the
/// saved copy is not worth the additional calls into the kernel.
const LARGE: usize = 32 * 1024;
/// As many bytes are read to find the next header, when those behind it may go straight to the user. A small message
/// is read with it.
const GLANCE: usize = 4 * 1024;
/// How long the end of a pipe may take that is not needed any more.
const PIPE_SHUTDOWN: Duration = Duration::from_secs(1);

pub(crate) struct Shared {
    inner: Mutex<Inner>,
    pub(crate) wakers: Arc<Wakers>,
    pub(crate) status: watch::Sender<Status>,
    /// The driver found the lock taken.
    driver_waits: AtomicBool,
    pipe_readable: Waker,
    pipe_writable: Waker,
}

pub(crate) struct Inner {
    pub(crate) machine: Machine,
    pipe: Option<Box<dyn Pipe>>,
    /// The pipe may hold bytes back until it is flushed.
    unflushed: bool,
}

/// Why the driver looks up.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Event {
    /// There is a connection now.
    Attached,
    /// There is none any more.
    Lost,
    /// There will never be one again.
    Over,
}

pub(crate) fn now() -> Instant {
    tokio::time::Instant::now().into_std()
}

impl Shared {
    pub(crate) fn new(machine: Machine) -> Arc<Self> {
        let wakers = Arc::new(Wakers::default());
        Arc::new(Self {
            inner: Mutex::new(Inner {
                machine,
                pipe: None,
                unflushed: false,
            }),
            pipe_readable: wakers::readable(&wakers),
            pipe_writable: wakers::writable(&wakers),
            wakers,
            status: watch::Sender::new(Status::Connected),
            driver_waits: AtomicBool::new(false),
        })
    }

    pub(crate) fn lock(&self) -> Locked<'_> {
        // Nobody panics while holding it; if somebody did, the numbers are still those of the streams.
        let guard = self.inner.lock().unwrap_or_else(PoisonError::into_inner);
        self.locked(guard)
    }

    /// For the driver, which must not block its thread while a user copies a lot: it is woken when the lock is free.
    fn try_lock(&self) -> Option<Locked<'_>> {
        for _ in 0..2 {
            match self.inner.try_lock() {
                Ok(guard) => return Some(self.locked(guard)),
                Err(TryLockError::Poisoned(poisoned)) => {
                    return Some(self.locked(poisoned.into_inner()));
                }
                // Tried once more afterwards: the lock may have been let go before this could be seen.
                Err(TryLockError::WouldBlock) => self.driver_waits.store(true, Ordering::SeqCst),
            }
        }
        None
    }

    fn locked<'a>(&'a self, guard: MutexGuard<'a, Inner>) -> Locked<'a> {
        Locked {
            guard,
            _afterwards: WakeDriver(self),
        }
    }

    /// Gives the link a pipe, whose greeting the machine has just been told of, in place of the one it may have.
    pub(crate) fn set_pipe(&self, inner: &mut Inner, pipe: Box<dyn Pipe>) {
        inner.pipe = Some(pipe);
        inner.unflushed = false;
        self.wakers.driver.wake();
    }

    /// Takes the pipe away, for another one to come in its place. As long as it is not dropped, the peer misses nobody.
    /// None of a link that is over or has none.
    pub(crate) fn set_aside(&self) -> Option<Box<dyn Pipe>> {
        let mut inner = self.lock();
        if inner.machine.ending().is_some() {
            return None;
        }
        let pipe = inner.pipe.take()?;
        inner.machine.detach(now(), None);
        Some(pipe)
    }

    /// There is no connection, and none is about to come by itself.
    pub(crate) fn report_loss(&self, why: String) {
        self.status.send_replace(Status::Reconnecting {
            since: now(),
            attempts: 0,
            last_error: why,
        });
    }

    /// Reads for the user: from what has arrived, or else from the pipe.
    pub(crate) fn poll_read(
        &self,
        context: &Context<'_>,
        buffer: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        let mut inner = self.lock();
        let large = buffer.remaining() >= LARGE;
        loop {
            let before = buffer.filled().len();
            let room = buffer.remaining();
            let mut progress = Poll::Ready(());
            inner.machine.read(|bytes| buffer.put_slice(bytes), room);
            if large && inner.machine.direct_room() >= GLANCE && buffer.has_remaining_mut() {
                progress = self.poll_pull_directly(&mut inner, buffer);
            }
            if buffer.filled().len() > before || room == 0 || inner.machine.is_at_end() {
                self.push(&mut inner);
                self.reader_leaves(context, progress);
                return Poll::Ready(Ok(()));
            }
            if let Some(ending) = inner.machine.ending() {
                return Poll::Ready(read_result(ending));
            }
            if progress.is_ready() {
                progress = self.poll_pull(&mut inner, if large { GLANCE } else { usize::MAX });
            }
            if progress.is_pending() {
                self.push(&mut inner);
                self.wakers.reader.register(context.waker());
                return Poll::Pending;
            }
        }
    }

    /// The reader has something and goes away.
    fn reader_leaves(&self, context: &Context<'_>, progress: Poll<()>) {
        if progress.is_pending() {
            // The pipe has been asked to tell when there is more. Tell the reader, who will most likely be back by
            // then, rather than the driver.
            self.wakers.reader.register(context.waker());
        }
        if self.wakers.writer_waits() {
            // The reader has not read the pipe to its end, and the writer needs what is there.
            self.wakers.driver.wake();
        }
    }

    /// Writes for the user: into the machine, and from there into the pipe as far as it goes.
    pub(crate) fn poll_write(
        &self,
        context: &Context<'_>,
        slices: &[IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        let mut inner = self.lock();
        loop {
            if let Some(ending) = inner.machine.ending() {
                return Poll::Ready(Err(write_error(ending)));
            }
            if inner.machine.is_finishing() {
                return Poll::Ready(Err(io::ErrorKind::BrokenPipe.into()));
            }
            let mut count = 0;
            for slice in slices {
                let taken = inner.machine.write(slice);
                count += taken;
                if taken < slice.len() {
                    break;
                }
            }
            if count > 0 || slices.iter().all(|slice| slice.is_empty()) {
                self.wakers.set_writer_waits(false);
                self.push(&mut inner);
                return Poll::Ready(Ok(count));
            }
            ready!(self.poll_wait_for_acks(context, &mut inner));
        }
    }

    /// Ends the user's stream. Ready when the peer has all of it.
    pub(crate) fn poll_shutdown(&self, context: &Context<'_>) -> Poll<io::Result<()>> {
        let mut inner = self.lock();
        if inner.machine.ending().is_none() {
            inner.machine.finish();
        }
        loop {
            self.push(&mut inner);
            if inner.machine.is_delivered() {
                self.wakers.set_writer_waits(false);
                return Poll::Ready(Ok(()));
            }
            if let Some(ending) = inner.machine.ending() {
                return Poll::Ready(Err(write_error(ending)));
            }
            ready!(self.poll_wait_for_acks(context, &mut inner));
        }
    }

    /// Moves what is written into the pipe, as far as it goes.
    pub(crate) fn flush(&self) {
        self.push(&mut self.lock());
    }

    /// The user is gone.
    pub(crate) fn abandon(&self) {
        let mut inner = self.lock();
        inner.machine.abandon(now());
        self.push(&mut inner);
        self.wakers.driver.wake();
    }

    /// Gives the link up, for whatever reason its user has.
    pub(crate) fn abort(&self, reason: Abort) {
        let mut inner = self.lock();
        inner.machine.abort(now(), reason);
        self.push(&mut inner);
        self.wake_users(&inner);
        self.wakers.driver.wake();
    }

    /// Waits for acknowledgements, which are read like everything else.
    fn poll_wait_for_acks(&self, context: &Context<'_>, inner: &mut Inner) -> Poll<()> {
        // First, so that an acknowledgement that somebody else reads meanwhile is not missed.
        self.wakers.set_writer_waits(true);
        self.wakers.writer.register(context.waker());
        ready!(self.poll_pull(inner, usize::MAX));
        if inner.machine.is_readable() {
            self.wakers.reader.wake();
        }
        Poll::Ready(())
    }

    /// Drives the link until something happens that its task has to look at.
    pub(crate) fn poll_drive(
        &self,
        context: &mut Context<'_>,
        mut timer: Pin<&mut Sleep>,
        seen: Event,
    ) -> Poll<Event> {
        self.wakers.driver.register(context.waker());
        let Some(mut inner) = self.try_lock() else {
            return Poll::Pending;
        };
        loop {
            while self.poll_pull(&mut inner, usize::MAX).is_ready() {}
            self.push(&mut inner);
            let event = match inner.machine.ending() {
                Some(_) => Event::Over,
                None if inner.machine.is_attached() => Event::Attached,
                None => Event::Lost,
            };
            self.wake_users(&inner);
            if event != seen {
                return Poll::Ready(event);
            }
            if let Some(deadline) = inner.machine.deadline() {
                let deadline = tokio::time::Instant::from_std(deadline);
                // A timer that rings too early costs less than moving it with each byte that arrives.
                if deadline < timer.deadline() || timer.is_elapsed() {
                    timer.as_mut().reset(deadline);
                }
            }
            ready!(timer.as_mut().poll(context));
            if inner.machine.time_passed(now()) {
                self.lose(&mut inner, "the other end was silent for too long", None);
            }
        }
    }

    /// Reads the pipe once, at most as many bytes. Ready as long as it makes sense to go on.
    fn poll_pull(&self, inner: &mut Inner, most: usize) -> Poll<()> {
        let (Some(pipe), Some(raw)) = (&mut inner.pipe, inner.machine.raw()) else {
            return Poll::Pending;
        };
        let mut context = Context::from_waker(&self.pipe_readable);
        let pipe = Pin::new(pipe.as_mut());
        match ready!(poll_read_buf(pipe, &mut context, &mut raw.limit(most))) {
            Ok(0) => self.lose(inner, "the connection was closed", None),
            Ok(_) => match inner.machine.received(now()) {
                Ok(()) => self.wake_if_over_or_writable(inner),
                Err(malformed) => self.lose(inner, "nonsense was received", Some(malformed)),
            },
            Err(error) => self.lose(inner, &error, None),
        }
        Poll::Ready(())
    }

    /// Reads bytes of the stream from the pipe into the user's buffer.
    fn poll_pull_directly(&self, inner: &mut Inner, buffer: &mut ReadBuf<'_>) -> Poll<()> {
        let most = inner.machine.direct_room();
        let Some(pipe) = &mut inner.pipe else {
            return Poll::Pending;
        };
        let mut context = Context::from_waker(&self.pipe_readable);
        let room = buffer.remaining().min(most);
        let mut straight = ReadBuf::new(buffer.initialize_unfilled_to(room));
        let pipe = Pin::new(pipe.as_mut());
        let result = ready!(pipe.poll_read(&mut context, &mut straight));
        let count = straight.filled().len();
        buffer.advance(count);
        match result {
            Ok(()) if count == 0 => self.lose(inner, "the connection was closed", None),
            Ok(()) => inner.machine.received_directly(now(), count),
            Err(error) => self.lose(inner, &error, None),
        }
        Poll::Ready(())
    }

    /// Writes to the pipe what the machine has to say, as far as it goes.
    fn push(&self, inner: &mut Inner) {
        let mut context = Context::from_waker(&self.pipe_writable);
        while let Some(pipe) = &mut inner.pipe {
            let mut slices = [IoSlice::new(&[]); SLICES];
            let used = inner.machine.slices(&mut slices);
            let mut pipe = Pin::new(pipe.as_mut());
            let result = if used > 0 {
                pipe.poll_write_vectored(&mut context, &slices[..used])
            } else if inner.unflushed {
                match pipe.as_mut().poll_flush(&mut context) {
                    Poll::Ready(Ok(())) => {
                        inner.unflushed = false;
                        return;
                    }
                    Poll::Ready(Err(error)) => Poll::Ready(Err(error)),
                    Poll::Pending => return,
                }
            } else {
                return;
            };
            match result {
                Poll::Pending => return,
                Poll::Ready(Ok(0)) => self.lose_when_read(inner, "the connection takes no more"),
                Poll::Ready(Ok(count)) => {
                    inner.unflushed = true;
                    inner.machine.written(count);
                    self.wake_if_over_or_writable(inner);
                }
                Poll::Ready(Err(error)) => self.lose_when_read(inner, &error),
            }
        }
    }

    /// A connection that takes nothing any more may still hold what the peer said last, such as why it left.
    fn lose_when_read(&self, inner: &mut Inner, why: impl std::fmt::Display) {
        while self.poll_pull(inner, usize::MAX).is_ready() {}
        self.wake_users(inner);
        if inner.pipe.is_some() {
            self.lose(inner, why, None);
        }
    }

    fn lose(&self, inner: &mut Inner, why: impl std::fmt::Display, malformed: Option<Malformed>) {
        tracing::debug!(%why, ?malformed, "a link lost its connection");
        inner.pipe = None;
        self.wakers.driver.wake();
        if inner.machine.ending().is_some() {
            return;
        }
        inner.machine.detach(now(), malformed);
        self.report_loss(why.to_string());
    }

    fn wake_users(&self, inner: &Inner) {
        if inner.machine.is_readable() {
            self.wakers.reader.wake();
        }
        if inner.machine.is_writable() {
            self.wakers.writer.wake();
        }
    }

    /// The driver ends what is over, and a writer who waited for acknowledgements may go on.
    fn wake_if_over_or_writable(&self, inner: &Inner) {
        if inner.machine.ending().is_some() {
            self.wakers.driver.wake();
        }
        if self.wakers.writer_waits() && inner.machine.is_writable() {
            self.wakers.writer.wake();
        }
    }

    /// Ends the pipe of a link that is over. What the peer still says is read, because a connection that is closed with
    /// unread bytes is reset, and the peer might then not hear the last words.
    pub(crate) async fn end_pipe(&self) {
        let pipe = self.lock().pipe.take();
        let Some(mut pipe) = pipe else { return };
        let end = async {
            pipe.shutdown().await?;
            tokio::io::copy(&mut pipe, &mut tokio::io::sink()).await
        };
        // Whatever comes of it: this end knows that the link is over.
        let _ = tokio::time::timeout(PIPE_SHUTDOWN, end).await;
    }
}

/// The lock. Whoever lets it go wakes the driver, if that found it taken.
pub(crate) struct Locked<'a> {
    guard: MutexGuard<'a, Inner>,
    /// Dropped after the guard, because it is declared after it.
    _afterwards: WakeDriver<'a>,
}

struct WakeDriver<'a>(&'a Shared);

impl Drop for WakeDriver<'_> {
    fn drop(&mut self) {
        if self.0.driver_waits.load(Ordering::SeqCst) {
            self.0.driver_waits.store(false, Ordering::SeqCst);
            self.0.wakers.driver.wake();
        }
    }
}

impl Deref for Locked<'_> {
    type Target = Inner;

    fn deref(&self) -> &Inner {
        &self.guard
    }
}

impl DerefMut for Locked<'_> {
    fn deref_mut(&mut self) -> &mut Inner {
        &mut self.guard
    }
}

fn read_result(ending: &Ending) -> io::Result<()> {
    match ending {
        Ending::Finished => Ok(()),
        Ending::Aborted(_) => Err(io::ErrorKind::ConnectionAborted.into()),
        Ending::Failed(error) => Err(error.clone().into()),
    }
}

fn write_error(ending: &Ending) -> io::Error {
    match ending {
        Ending::Finished | Ending::Aborted(_) => io::ErrorKind::BrokenPipe.into(),
        Ending::Failed(error) => error.clone().into(),
    }
}
