//! One intercepted call: its arguments, the memory that they point to, and its completion.

use std::fs::File;
use std::os::fd::{AsFd, AsRawFd, OwnedFd, RawFd};
use std::os::unix::fs::FileExt;
use std::sync::Arc;

use crate::Errno;
use crate::restarts::{CallResponse, RestartableCall};
use crate::sys::memory::{self, Plain};
use crate::sys::seccomp;

/// The longest path that the kernel accepts, including the terminating zero.
pub(crate) const PATH_MAX: usize = 4096;
const PAGE: u64 = 4096;

/// A suspended call. Dropping it without a response fails the call with `EIO`, so that the caller never waits forever.
#[derive(Debug)]
pub(crate) struct Notification {
    listener: Arc<OwnedFd>,
    received: seccomp::ReceivedCall,
    /// The call that may be repeated after a signal; only on kernels where signals interrupt intercepted calls.
    restartable: Option<Arc<RestartableCall>>,
    completed: bool,
}

impl Notification {
    pub(crate) fn new(listener: Arc<OwnedFd>, received: seccomp::ReceivedCall) -> Self {
        Self {
            listener,
            received,
            restartable: None,
            completed: false,
        }
    }

    pub(crate) fn restartable(mut self, call: Arc<RestartableCall>) -> Self {
        self.restartable = Some(call);
        self
    }

    /// Leaves the response to the worker of the original call, of which this is a repetition.
    pub(crate) fn leave_to_original(mut self) {
        self.completed = true;
    }

    /// The thread that made the call.
    pub(crate) fn thread(&self) -> libc::pid_t {
        self.received.thread
    }

    /// The number of the call.
    pub(crate) fn number(&self) -> libc::c_int {
        self.received.number
    }

    pub(crate) fn argument(&self, index: usize) -> u64 {
        self.received.arguments.get(index).copied().unwrap_or(0)
    }

    /// An argument that the kernel takes as an `int`.
    #[expect(
        clippy::cast_possible_truncation,
        reason = "the kernel uses only the lower half"
    )]
    pub(crate) fn int(&self, index: usize) -> i32 {
        self.argument(index) as i32
    }

    /// Like [`int`](Self::int), but unsigned.
    pub(crate) fn uint(&self, index: usize) -> u32 {
        self.int(index).cast_unsigned()
    }

    /// Whether the caller is still suspended in this call. If so, what was read from it belongs to it, and not to a
    /// later process with the same ID.
    pub(crate) fn is_valid(&self) -> bool {
        let listener = self.listener.as_fd();
        match &self.restartable {
            Some(call) => call.is_pending(listener),
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
            // Never read across a page boundary: the next page may not be mapped.
            let from = address + length as u64;
            let in_page = usize::try_from(PAGE - from % PAGE).unwrap_or(PATH_MAX);
            let chunk_length = in_page.min(rest.len());
            let chunk = rest.get_mut(..chunk_length).unwrap_or_default();
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

    /// The memory of the caller, for writing. `ESRCH` if the caller is no longer suspended.
    pub(crate) fn memory(&self) -> Result<Memory, Errno> {
        let path = format!("/proc/{}/mem", self.thread());
        let file = File::options()
            .write(true)
            .open(path)
            .map_err(|error| errno_of(&error))?;
        // The check comes after the open: from here on the file certainly belongs to the process that made the call.
        if self.is_valid() {
            Ok(Memory(file))
        } else {
            Err(Errno::ESRCH)
        }
    }

    pub(crate) fn write_plain<T: Plain>(&self, address: u64, value: &T) -> Result<(), Errno> {
        self.memory()?.write(address, memory::bytes_of(value))
    }

    /// Duplicates a descriptor of the caller into this process.
    pub(crate) fn copy_descriptor(&self, number: RawFd) -> Result<OwnedFd, Errno> {
        let descriptor = crate::process::copy_descriptor_of(self.thread(), number)?;
        if self.is_valid() {
            Ok(descriptor)
        } else {
            Err(Errno::ESRCH)
        }
    }

    /// A handle that tells whether the caller is still suspended.
    pub(crate) fn pending_call(&self) -> PendingCall {
        PendingCall {
            listener: Arc::clone(&self.listener),
            id: self.received.id,
        }
    }

    /// Lets the kernel execute the call.
    pub(crate) fn pass(mut self) {
        self.respond(CallResponse::Pass);
    }

    pub(crate) fn succeed(mut self, value: i64) {
        self.respond(CallResponse::Value(value));
    }

    pub(crate) fn fail(mut self, errno: Errno) {
        self.respond(CallResponse::Error(errno as i32));
    }

    /// Fails the call with the kernel-internal `ERESTARTSYS`: it is repeated after the signal handler, or fails with
    /// `EINTR`, depending on the flags of the handler. Only valid for a thread with a pending signal; any other thread
    /// would see the raw error number.
    pub(crate) fn restart(mut self) {
        const ERESTARTSYS: i32 = 512;
        self.respond(CallResponse::Error(ERESTARTSYS));
    }

    pub(crate) fn finish(self, result: Result<i64, Errno>) {
        match result {
            Ok(value) => self.succeed(value),
            Err(errno) => self.fail(errno),
        }
    }

    /// Completes the call with a descriptor at the lowest free number of the caller.
    pub(crate) fn respond_with_descriptor(mut self, descriptor: OwnedFd, close_on_exec: bool) {
        self.respond(CallResponse::Descriptor(descriptor, close_on_exec));
    }

    fn respond(&mut self, response: CallResponse) {
        self.completed = true;
        match &self.restartable {
            Some(call) => call.complete(self.listener.as_fd(), response),
            // An error means that the caller is gone.
            None => drop(response.send(self.listener.as_fd(), self.received.id)),
        }
    }

    /// Completes the call with a descriptor at the lowest free number of the caller. Returns the notification and the
    /// error on failure.
    pub(crate) fn try_respond_with_descriptor(
        mut self,
        descriptor: &OwnedFd,
        close_on_exec: bool,
    ) -> Result<(), (Self, Errno)> {
        let result = seccomp::send_descriptor(
            self.listener.as_fd(),
            self.received.id,
            descriptor.as_raw_fd(),
            seccomp::DescriptorSlot::Lowest,
            close_on_exec,
        );
        match result {
            Ok(()) => {
                self.completed = true;
                Ok(())
            }
            Err(errno) => Err((self, errno)),
        }
    }

    /// Completes the call with a descriptor at this number. Returns the notification on failure.
    pub(crate) fn respond_with_descriptor_at(
        mut self,
        descriptor: &OwnedFd,
        number: u32,
        close_on_exec: bool,
    ) -> Result<(), Self> {
        let result = seccomp::send_descriptor(
            self.listener.as_fd(),
            self.received.id,
            descriptor.as_raw_fd(),
            seccomp::DescriptorSlot::At(number),
            close_on_exec,
        );
        if result.is_err() {
            return Err(self);
        }
        self.completed = true;
        Ok(())
    }
}

/// Identifies a call that may still be suspended.
#[derive(Debug)]
pub(crate) struct PendingCall {
    listener: Arc<OwnedFd>,
    id: u64,
}

impl PendingCall {
    pub(crate) fn is_valid(&self) -> bool {
        seccomp::is_valid(self.listener.as_fd(), self.id)
    }
}

impl Drop for Notification {
    fn drop(&mut self) {
        if !self.completed {
            self.respond(CallResponse::Error(Errno::EIO as i32));
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
