//! Who is woken when something happens on the pipe.
//!
//! A pipe remembers one waker for reading and one for writing, but three parties are interested: a user who waits to
//! read, one who waits to write, and the link's own task, the driver. Bytes that arrive wake the user who waits for
//! them, and that user reads the pipe itself: a detour through the driver would cost a change of threads for each read.
//! Only when nobody waits, or when somebody else needs what is between the bytes, the driver is woken.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::task::{Wake, Waker};

use atomic_waker::AtomicWaker;

#[derive(Debug, Default)]
pub(crate) struct Wakers {
    pub(crate) reader: AtomicWaker,
    pub(crate) writer: AtomicWaker,
    pub(crate) driver: AtomicWaker,
    /// A user waits for acknowledgements, which only come when somebody reads the pipe.
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

/// For a pipe to call when it can be read.
pub(crate) fn readable(wakers: &Arc<Wakers>) -> Waker {
    Waker::from(Arc::new(Readable(Arc::clone(wakers))))
}

/// For a pipe to call when it can be written.
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
