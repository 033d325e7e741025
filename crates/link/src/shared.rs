//! The state that a link's user and its driver task share: the state machine and the pipe, and the transfer of bytes
//! between them.
//!
//! There is one lock. It is held while bytes are copied and while the pipe is polled, which never blocks, and never across
//! an await.

use std::io::{self, IoSlice};
use std::ops::{Deref, DerefMut};
use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering, fence};
use std::task::{Context, Poll, Waker, ready};
use std::time::{Duration, Instant};

use bytes::BufMut;
use parking_lot::{Mutex, MutexGuard};
use tokio::io::{AsyncWriteExt, ReadBuf};
use tokio::sync::watch;
use tokio::time::Sleep;
use tokio_util::io::poll_read_buf;

use crate::dial::Pipe;
use crate::error::{Abort, Malformed};
use crate::link::Status;
use crate::machine::{EndReason, Machine, SLICES};
use crate::wakers::{self, Wakers};

/// Bytes are read directly from the pipe into the user's buffer if it has at least this size. For smaller buffers the saved
/// copy is not worth the additional system calls.
const DIRECT_READ_MIN: usize = 32 * 1024;
/// Size of the read for the next frame header when its data may be read directly into the user's buffer. A small message is
/// read along with it.
const HEADER_READ_SIZE: usize = 4 * 1024;
/// How long shutting down an unused pipe may take.
const PIPE_SHUTDOWN_TIMEOUT: Duration = Duration::from_secs(1);

pub(crate) struct Shared {
    inner: Mutex<Inner>,
    pub(crate) wakers: Arc<Wakers>,
    pub(crate) status: watch::Sender<Status>,
    /// The driver found the lock held, and must be woken when it is released.
    driver_waits: AtomicBool,
    pipe_readable: Waker,
    pipe_writable: Waker,
}

pub(crate) struct Inner {
    pub(crate) machine: Machine,
    pipe: Option<Box<dyn Pipe>>,
    /// The pipe may buffer bytes until it is flushed.
    unflushed: bool,
}

/// Whether a link is connected.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum ConnectionState {
    Attached,
    Detached,
    /// Final.
    Ended,
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

    pub(crate) fn lock(&self) -> InnerGuard<'_> {
        self.locked(self.inner.lock())
    }

    /// For the driver, which must not block its thread while a user copies many bytes. It is woken when the lock is
    /// released.
    fn try_lock(&self) -> Option<InnerGuard<'_>> {
        if let Some(guard) = self.inner.try_lock() {
            return Some(self.locked(guard));
        }
        self.driver_waits.store(true, Ordering::SeqCst);
        // The lock may have been released before the flag was visible, so it is tried once more. The fence keeps this
        // attempt from being reordered before the store.
        fence(Ordering::SeqCst);
        self.inner.try_lock().map(|guard| self.locked(guard))
    }

    fn locked<'a>(&'a self, guard: MutexGuard<'a, Inner>) -> InnerGuard<'a> {
        InnerGuard {
            guard,
            _wake_on_release: WakeDriver(self),
        }
    }

    /// Sets the pipe after its handshake, and replaces an existing one.
    pub(crate) fn set_pipe(&self, inner: &mut Inner, pipe: Box<dyn Pipe>) {
        inner.pipe = Some(pipe);
        inner.unflushed = false;
        self.wakers.driver.wake();
    }

    /// Takes the pipe for a handover. The peer sees no disconnect as long as it is not dropped. Returns `None` if the link
    /// has ended or is disconnected.
    pub(crate) fn take_pipe(&self) -> Option<Box<dyn Pipe>> {
        let mut inner = self.lock();
        if inner.machine.end_reason().is_some() {
            return None;
        }
        let pipe = inner.pipe.take()?;
        inner.machine.detach(now(), None);
        Some(pipe)
    }

    /// Reports that the link is disconnected.
    pub(crate) fn report_reconnecting(&self, why: String) {
        self.status.send_replace(Status::Reconnecting {
            since: now(),
            attempts: 0,
            last_error: why,
        });
    }

    /// Reads for the user: from the receive buffer, or else from the pipe.
    pub(crate) fn poll_read(
        &self,
        context: &Context<'_>,
        buffer: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        let mut inner = self.lock();
        let is_large = buffer.remaining() >= DIRECT_READ_MIN;
        loop {
            let before = buffer.filled().len();
            let room = buffer.remaining();
            let mut progress = Poll::Ready(());
            inner.machine.read(|bytes| buffer.put_slice(bytes), room);
            if is_large
                && inner.machine.direct_room() >= HEADER_READ_SIZE
                && buffer.has_remaining_mut()
            {
                progress = self.poll_read_pipe_directly(&mut inner, buffer);
            }
            if buffer.filled().len() > before || room == 0 || inner.machine.is_at_end() {
                self.write_pipe(&mut inner);
                self.reader_done(context, progress);
                return Poll::Ready(Ok(()));
            }
            if let Some(end_reason) = inner.machine.end_reason() {
                return Poll::Ready(read_result(end_reason));
            }
            if progress.is_ready() {
                progress = self.poll_read_pipe(
                    &mut inner,
                    if is_large {
                        HEADER_READ_SIZE
                    } else {
                        usize::MAX
                    },
                );
            }
            if progress.is_pending() {
                self.write_pipe(&mut inner);
                self.wakers.reader.register(context.waker());
                return Poll::Pending;
            }
        }
    }

    /// Registers wakers after a read has returned bytes.
    fn reader_done(&self, context: &Context<'_>, progress: Poll<()>) {
        if progress.is_pending() {
            // The pipe will wake us when it has more bytes. Wake the reader then, which most likely reads again, rather
            // than the driver.
            self.wakers.reader.register(context.waker());
        }
        if self.wakers.writer_waits() {
            // The reader has not drained the pipe, and the writer waits for acknowledgements in it.
            self.wakers.driver.wake();
        }
    }

    /// Writes for the user: into the state machine, and from there into the pipe as far as it accepts bytes.
    pub(crate) fn poll_write(
        &self,
        context: &Context<'_>,
        slices: &[IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        let mut inner = self.lock();
        loop {
            if let Some(end_reason) = inner.machine.end_reason() {
                return Poll::Ready(Err(write_error(end_reason)));
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
                self.write_pipe(&mut inner);
                return Poll::Ready(Ok(count));
            }
            ready!(self.poll_wait_for_acks(context, &mut inner));
        }
    }

    /// Ends the user's stream. Ready when the peer has received all of it.
    pub(crate) fn poll_shutdown(&self, context: &Context<'_>) -> Poll<io::Result<()>> {
        let mut inner = self.lock();
        if inner.machine.end_reason().is_none() {
            inner.machine.finish();
        }
        loop {
            self.write_pipe(&mut inner);
            if inner.machine.is_delivered() {
                self.wakers.set_writer_waits(false);
                return Poll::Ready(Ok(()));
            }
            if let Some(end_reason) = inner.machine.end_reason() {
                return Poll::Ready(Err(write_error(end_reason)));
            }
            ready!(self.poll_wait_for_acks(context, &mut inner));
        }
    }

    /// Writes pending bytes into the pipe, as far as it accepts them.
    pub(crate) fn flush(&self) {
        self.write_pipe(&mut self.lock());
    }

    /// The user has dropped the link.
    pub(crate) fn abandon(&self) {
        let mut inner = self.lock();
        inner.machine.abandon(now());
        self.write_pipe(&mut inner);
        self.wakers.driver.wake();
    }

    /// Aborts the link.
    pub(crate) fn abort(&self, reason: Abort) {
        let mut inner = self.lock();
        inner.machine.abort(now(), reason);
        self.write_pipe(&mut inner);
        self.wake_users(&inner);
        self.wakers.driver.wake();
    }

    /// Waits for acknowledgements, by reading from the pipe.
    fn poll_wait_for_acks(&self, context: &Context<'_>, inner: &mut Inner) -> Poll<()> {
        // Registered before reading, so that an acknowledgement that another task reads in the meantime is not missed.
        self.wakers.set_writer_waits(true);
        self.wakers.writer.register(context.waker());
        ready!(self.poll_read_pipe(inner, usize::MAX));
        if inner.machine.is_readable() {
            self.wakers.reader.wake();
        }
        Poll::Ready(())
    }

    /// Drives the link until its state differs from `current`.
    pub(crate) fn poll_drive(
        &self,
        context: &mut Context<'_>,
        mut timer: Pin<&mut Sleep>,
        current: ConnectionState,
    ) -> Poll<ConnectionState> {
        self.wakers.driver.register(context.waker());
        let Some(mut inner) = self.try_lock() else {
            return Poll::Pending;
        };
        loop {
            while self.poll_read_pipe(&mut inner, usize::MAX).is_ready() {}
            self.write_pipe(&mut inner);
            let state = match inner.machine.end_reason() {
                Some(_) => ConnectionState::Ended,
                None if inner.machine.is_attached() => ConnectionState::Attached,
                None => ConnectionState::Detached,
            };
            self.wake_users(&inner);
            if state != current {
                return Poll::Ready(state);
            }
            if let Some(deadline) = inner.machine.deadline() {
                let deadline = tokio::time::Instant::from_std(deadline);
                // A timer that fires too early costs less than resetting it with each received byte.
                if deadline < timer.deadline() || timer.is_elapsed() {
                    timer.as_mut().reset(deadline);
                }
            }
            ready!(timer.as_mut().poll(context));
            if inner.machine.handle_timeout(now()) {
                self.lose_pipe(&mut inner, "the other end was silent for too long", None);
            }
        }
    }

    /// Reads at most `max` bytes from the pipe, once. Ready as long as there may be more.
    fn poll_read_pipe(&self, inner: &mut Inner, max: usize) -> Poll<()> {
        let (Some(pipe), Some(raw)) = (&mut inner.pipe, inner.machine.raw()) else {
            return Poll::Pending;
        };
        let mut context = Context::from_waker(&self.pipe_readable);
        let pipe = Pin::new(pipe.as_mut());
        match ready!(poll_read_buf(pipe, &mut context, &mut raw.limit(max))) {
            Ok(0) => self.lose_pipe(inner, "the connection was closed", None),
            Ok(_) => match inner.machine.received(now()) {
                Ok(()) => self.wake_if_ended_or_writable(inner),
                Err(malformed) => {
                    self.lose_pipe(inner, "malformed input was received", Some(malformed));
                }
            },
            Err(error) => self.lose_pipe(inner, &error, None),
        }
        Poll::Ready(())
    }

    /// Reads bytes of the stream from the pipe directly into the user's buffer.
    fn poll_read_pipe_directly(&self, inner: &mut Inner, buffer: &mut ReadBuf<'_>) -> Poll<()> {
        let max = inner.machine.direct_room();
        let Some(pipe) = &mut inner.pipe else {
            return Poll::Pending;
        };
        let mut context = Context::from_waker(&self.pipe_readable);
        let room = buffer.remaining().min(max);
        let mut direct = ReadBuf::new(buffer.initialize_unfilled_to(room));
        let pipe = Pin::new(pipe.as_mut());
        let result = ready!(pipe.poll_read(&mut context, &mut direct));
        let count = direct.filled().len();
        buffer.advance(count);
        match result {
            Ok(()) if count == 0 => self.lose_pipe(inner, "the connection was closed", None),
            Ok(()) => inner.machine.received_directly(now(), count),
            Err(error) => self.lose_pipe(inner, &error, None),
        }
        Poll::Ready(())
    }

    /// Writes the frames of the state machine to the pipe, as far as it accepts bytes.
    fn write_pipe(&self, inner: &mut Inner) {
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
                Poll::Ready(Ok(0)) => {
                    self.drain_and_lose_pipe(inner, "the connection accepts no more bytes");
                }
                Poll::Ready(Ok(count)) => {
                    inner.unflushed = true;
                    inner.machine.written(count);
                    self.wake_if_ended_or_writable(inner);
                }
                Poll::Ready(Err(error)) => self.drain_and_lose_pipe(inner, &error),
            }
        }
    }

    /// A connection that accepts no more bytes may still contain the peer's last frames, such as ABORT with its reason.
    fn drain_and_lose_pipe(&self, inner: &mut Inner, why: impl std::fmt::Display) {
        while self.poll_read_pipe(inner, usize::MAX).is_ready() {}
        self.wake_users(inner);
        if inner.pipe.is_some() {
            self.lose_pipe(inner, why, None);
        }
    }

    fn lose_pipe(
        &self,
        inner: &mut Inner,
        why: impl std::fmt::Display,
        malformed: Option<Malformed>,
    ) {
        tracing::debug!(reason = %why, ?malformed, "link disconnected");
        inner.pipe = None;
        self.wakers.driver.wake();
        if inner.machine.end_reason().is_some() {
            return;
        }
        inner.machine.detach(now(), malformed);
        self.report_reconnecting(why.to_string());
    }

    fn wake_users(&self, inner: &Inner) {
        if inner.machine.is_readable() {
            self.wakers.reader.wake();
        }
        if inner.machine.is_writable() {
            self.wakers.writer.wake();
        }
    }

    /// Wakes the driver if the link has ended, and a writer whose acknowledgements have been received.
    fn wake_if_ended_or_writable(&self, inner: &Inner) {
        if inner.machine.end_reason().is_some() {
            self.wakers.driver.wake();
        }
        if self.wakers.writer_waits() && inner.machine.is_writable() {
            self.wakers.writer.wake();
        }
    }

    /// Shuts the pipe of a link that has ended down. Remaining bytes of the peer are read, because a connection that is
    /// closed with unread bytes is reset, and the peer might then not receive the last frames.
    pub(crate) async fn end_pipe(&self) {
        let pipe = self.lock().pipe.take();
        let Some(mut pipe) = pipe else { return };
        let end = async {
            pipe.shutdown().await?;
            tokio::io::copy(&mut pipe, &mut tokio::io::sink()).await
        };
        // Errors are ignored: the link has ended in any case.
        let _ = tokio::time::timeout(PIPE_SHUTDOWN_TIMEOUT, end).await;
    }
}

/// The lock guard. Releasing it wakes the driver, if that found the lock held.
pub(crate) struct InnerGuard<'a> {
    guard: MutexGuard<'a, Inner>,
    /// Dropped after the guard, because it is declared after it.
    _wake_on_release: WakeDriver<'a>,
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

impl Deref for InnerGuard<'_> {
    type Target = Inner;

    fn deref(&self) -> &Inner {
        &self.guard
    }
}

impl DerefMut for InnerGuard<'_> {
    fn deref_mut(&mut self) -> &mut Inner {
        &mut self.guard
    }
}

fn read_result(end_reason: &EndReason) -> io::Result<()> {
    match end_reason {
        EndReason::Finished => Ok(()),
        EndReason::Aborted(_) => Err(io::ErrorKind::ConnectionAborted.into()),
        EndReason::Failed(error) => Err(error.clone().into()),
    }
}

fn write_error(end_reason: &EndReason) -> io::Error {
    match end_reason {
        EndReason::Finished | EndReason::Aborted(_) => io::ErrorKind::BrokenPipe.into(),
        EndReason::Failed(error) => error.clone().into(),
    }
}
