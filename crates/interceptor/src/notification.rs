//! One caught call: its arguments, the memory that they point to, and its answer.

use std::fs::File;
use std::os::fd::{AsFd, AsRawFd, OwnedFd, RawFd};
use std::os::unix::fs::FileExt;
use std::sync::Arc;

use crate::Errno;
use crate::restarts::{Call, Outcome};
use crate::sys::memory::{self, Plain};
use crate::sys::seccomp;

/// The longest path that the kernel takes, with its zero.
const PATH_MAX: usize = 4096;
const PAGE: u64 = 4096;

/// A call that waits for its answer. Dropping it unanswered fails the call with `EIO`, so that nobody waits forever.
#[derive(Debug)]
pub(crate) struct Notification {
    listener: Arc<OwnedFd>,
    received: seccomp::Received,
    /// Where signals do not wait for answers: the call, which may be made again.
    restartable: Option<Arc<Call>>,
    answered: bool,
}

impl Notification {
    pub(crate) fn new(listener: Arc<OwnedFd>, received: seccomp::Received) -> Self {
        Self {
            listener,
            received,
            restartable: None,
            answered: false,
        }
    }

    pub(crate) fn restartable(mut self, call: Arc<Call>) -> Self {
        self.restartable = Some(call);
        self
    }

    /// The work on an earlier one answers it.
    pub(crate) fn leave_to_earlier(mut self) {
        self.answered = true;
    }

    /// The thread that makes the call.
    pub(crate) fn thread(&self) -> libc::pid_t {
        self.received.thread
    }

    pub(crate) fn argument(&self, index: usize) -> u64 {
        self.received.arguments.get(index).copied().unwrap_or(0)
    }

    /// An argument that the kernel takes as an `int`.
    #[expect(
        clippy::cast_possible_truncation,
        reason = "the kernel looks at the lower half only"
    )]
    pub(crate) fn int(&self, index: usize) -> i32 {
        self.argument(index) as i32
    }

    /// As [`int`](Self::int), without sign.
    pub(crate) fn word(&self, index: usize) -> u32 {
        self.int(index).cast_unsigned()
    }

    /// Whether the caller still waits: what was read of it belonged to it, and not to a successor with its number.
    pub(crate) fn is_valid(&self) -> bool {
        let listener = self.listener.as_fd();
        match &self.restartable {
            Some(call) => call.is_wanted(listener),
            None => seccomp::is_valid(listener, self.received.id),
        }
    }

    pub(crate) fn read_string(&self, address: u64) -> Result<Vec<u8>, Errno> {
        if address == 0 {
            return Err(Errno::EFAULT);
        }
        let mut buffer = [0_u8; PATH_MAX];
        let mut length = 0;
        while let Some(rest) = buffer.get_mut(length..)
            && !rest.is_empty()
        {
            // Never beyond a page at once: the next one may not exist.
            let from = address + length as u64;
            let in_page = usize::try_from(PAGE - from % PAGE).unwrap_or(PATH_MAX);
            let wanted = in_page.min(rest.len());
            let chunk = rest.get_mut(..wanted).unwrap_or_default();
            let count = memory::read_some(self.thread(), from, chunk)?;
            let chunk = chunk.get(..count).unwrap_or_default();
            if let Some(end) = chunk.iter().position(|byte| *byte == 0) {
                return Ok(buffer.get(..length + end).unwrap_or_default().to_vec());
            }
            if count == 0 {
                return Err(Errno::EFAULT);
            }
            length += count;
        }
        Err(Errno::ENAMETOOLONG)
    }

    pub(crate) fn read_plain<T: Plain>(&self, address: u64) -> Result<T, Errno> {
        memory::read_plain(self.thread(), address)
    }

    pub(crate) fn read_bytes(&self, address: u64, length: usize) -> Result<Vec<u8>, Errno> {
        let mut bytes = vec![0; length];
        if length > 0 {
            memory::read_exactly(self.thread(), address, &mut bytes)?;
        }
        Ok(bytes)
    }

    /// The caller's memory, for writing. `ESRCH` if the caller no longer waits.
    pub(crate) fn memory(&self) -> Result<Memory, Errno> {
        let path = format!("/proc/{}/mem", self.thread());
        let file = File::options()
            .write(true)
            .open(path)
            .map_err(|error| errno_of(&error))?;
        // Opened first, checked then: from here on the file is of the process that made the call.
        if self.is_valid() {
            Ok(Memory(file))
        } else {
            Err(Errno::ESRCH)
        }
    }

    pub(crate) fn write_plain<T: Plain>(&self, address: u64, value: &T) -> Result<(), Errno> {
        self.memory()?.write(address, memory::bytes_of(value))
    }

    /// Our own copy of a descriptor of the caller.
    pub(crate) fn copy_descriptor(&self, number: RawFd) -> Result<OwnedFd, Errno> {
        let descriptor = crate::process::copy_descriptor_of(self.thread(), number)?;
        if self.is_valid() {
            Ok(descriptor)
        } else {
            Err(Errno::ESRCH)
        }
    }

    /// Whether the caller still waits, for somebody else to ask.
    pub(crate) fn waiting(&self) -> Waiting {
        Waiting {
            listener: Arc::clone(&self.listener),
            id: self.received.id,
        }
    }

    /// Lets the kernel do the call.
    pub(crate) fn pass(mut self) {
        self.answer(Outcome::Pass);
    }

    pub(crate) fn succeed(mut self, value: i64) {
        self.answer(Outcome::Value(value));
    }

    pub(crate) fn fail(mut self, errno: Errno) {
        self.answer(Outcome::Error(errno as i32));
    }

    /// The kernel's own `ERESTARTSYS`: the call is made again after the signal's handler, or fails with `EINTR`, by
    /// what the handler was installed with. Only for a thread with a signal waiting; others would see the number.
    pub(crate) fn restart(mut self) {
        const ERESTARTSYS: i32 = 512;
        self.answer(Outcome::Error(ERESTARTSYS));
    }

    pub(crate) fn finish(self, result: Result<i64, Errno>) {
        match result {
            Ok(value) => self.succeed(value),
            Err(errno) => self.fail(errno),
        }
    }

    /// Answers with a descriptor, in the caller's lowest free number.
    pub(crate) fn give(mut self, descriptor: OwnedFd, close_on_exec: bool) {
        self.answer(Outcome::Descriptor(descriptor, close_on_exec));
    }

    fn answer(&mut self, outcome: Outcome) {
        self.answered = true;
        match &self.restartable {
            Some(call) => call.answer(self.listener.as_fd(), outcome),
            // An error says that the caller is gone.
            None => drop(outcome.deliver(self.listener.as_fd(), self.received.id)),
        }
    }

    /// Answers with a descriptor, in the caller's lowest free number. Gives the notification back with the error if that
    /// cannot be.
    pub(crate) fn offer(
        mut self,
        descriptor: &OwnedFd,
        close_on_exec: bool,
    ) -> Result<(), (Self, Errno)> {
        let result = seccomp::send_descriptor(
            self.listener.as_fd(),
            self.received.id,
            descriptor.as_raw_fd(),
            seccomp::Place::Lowest,
            close_on_exec,
        );
        match result {
            Ok(()) => {
                self.answered = true;
                Ok(())
            }
            Err(errno) => Err((self, errno)),
        }
    }

    /// Answers with a descriptor at this number. Gives the notification back if that cannot be.
    pub(crate) fn give_at(
        mut self,
        descriptor: &OwnedFd,
        number: u32,
        close_on_exec: bool,
    ) -> Result<(), Self> {
        let result = seccomp::send_descriptor(
            self.listener.as_fd(),
            self.received.id,
            descriptor.as_raw_fd(),
            seccomp::Place::At(number),
            close_on_exec,
        );
        if result.is_err() {
            return Err(self);
        }
        self.answered = true;
        Ok(())
    }
}

/// A call that waits, or no longer does.
#[derive(Debug)]
pub(crate) struct Waiting {
    listener: Arc<OwnedFd>,
    id: u64,
}

impl Waiting {
    pub(crate) fn is_valid(&self) -> bool {
        seccomp::is_valid(self.listener.as_fd(), self.id)
    }
}

impl Drop for Notification {
    fn drop(&mut self) {
        if !self.answered {
            self.answer(Outcome::Error(Errno::EIO as i32));
        }
    }
}

/// The memory of the process that made a call, opened for writing.
#[derive(Debug)]
pub(crate) struct Memory(File);

impl Memory {
    pub(crate) fn write(&self, address: u64, bytes: &[u8]) -> Result<(), Errno> {
        self.0
            .write_all_at(bytes, address)
            .map_err(|_| Errno::EFAULT)
    }
}

pub(crate) fn errno_of(error: &std::io::Error) -> Errno {
    error.raw_os_error().map_or(Errno::EIO, Errno::from_raw)
}
