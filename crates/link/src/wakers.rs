//! Which task is woken when the pipe is ready.
//!
//! A pipe stores one waker for reading and one for writing, but three tasks are interested: a user that waits to read, a
//! user that waits to write, and the link's own task, the driver. Received bytes wake the reader, which then reads the pipe
//! itself: a detour through the driver would cost a thread switch for each read. The driver is woken only when no reader
//! waits, or when a writer waits for the acknowledgements between the bytes.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::task::{Wake, Waker};

use atomic_waker::AtomicWaker;

#[derive(Debug, Default)]
pub(crate) struct Wakers {
    pub(crate) reader: AtomicWaker,
    pub(crate) writer: AtomicWaker,
    pub(crate) driver: AtomicWaker,
    /// A user waits for acknowledgements, which are only processed when a task reads the pipe.
    writer_waits: AtomicBool,
}

impl Wakers {
    pub(crate) fn set_writer_waits(&self, waits: bool) {
        self.writer_waits.store(waits, Ordering::Release);
    }

    pub(crate) fn writer_waits(&self) -> bool {
        self.writer_waits.load(Ordering::Acquire)
    }
}

/// The waker for a pipe that becomes readable.
pub(crate) fn readable(wakers: &Arc<Wakers>) -> Waker {
    Waker::from(Arc::new(Readable(Arc::clone(wakers))))
}

/// The waker for a pipe that becomes writable.
pub(crate) fn writable(wakers: &Arc<Wakers>) -> Waker {
    Waker::from(Arc::new(Writable(Arc::clone(wakers))))
}

struct Readable(Arc<Wakers>);
struct Writable(Arc<Wakers>);

impl Wake for Readable {
    fn wake(self: Arc<Self>) {
        self.wake_by_ref();
    }

    fn wake_by_ref(self: &Arc<Self>) {
        let reader = self.0.reader.take();
        if reader.is_none() || self.0.writer_waits() {
            self.0.driver.wake();
        }
        if let Some(reader) = reader {
            reader.wake();
        }
    }
}

impl Wake for Writable {
    fn wake(self: Arc<Self>) {
        self.wake_by_ref();
    }

    fn wake_by_ref(self: &Arc<Self>) {
        self.0.driver.wake();
    }
}
