//! A running program under supervision.

use std::io::Read;
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::net::UnixStream;
use std::os::unix::process::ExitStatusExt;
use std::process::ExitStatus;
use std::sync::mpsc::Sender;
use std::thread::JoinHandle;

use crate::diagnose::ListenerFeatures;
use crate::supervisor::Supervisor;
use crate::sys::{process, spawn};
use crate::{Errno, Error};

/// A program that runs under supervision. Dropping it ends the program and all processes that it started.
pub struct SupervisedProcess {
    /// Closing it makes the watcher end all processes.
    pub(super) control: Option<UnixStream>,
    pub(super) watcher: libc::pid_t,
    pub(super) application: Option<OwnedFd>,
    pub(super) process: libc::pid_t,
    pub(super) receiver: Option<JoinHandle<()>>,
    /// Passes the supervisor and the seccomp listener to the receiving thread.
    pub(super) listener_to_receiver: Option<Sender<(Supervisor, OwnedFd)>>,
    pub(super) exit: Option<ExitStatus>,
    pub(super) wait_killable: bool,
    pub(crate) features: ListenerFeatures,
}

impl SupervisedProcess {
    /// The process id of the program.
    #[must_use]
    pub fn process(&self) -> i32 {
        self.process
    }

    /// Whether only fatal signals interrupt intercepted calls, as for calls that the kernel executes itself. Before
    /// Linux 5.19 this is not supported, and a call that is natively uninterruptible may fail with `EINTR`.
    #[must_use]
    pub fn wait_killable(&self) -> bool {
        self.wait_killable
    }

    /// Waits for the program to exit. Processes that it started may keep running until this value is dropped.
    ///
    /// # Errors
    /// When the watcher was killed, and the program with it.
    pub fn wait(&mut self) -> Result<ExitStatus, Error> {
        if let Some(status) = self.exit {
            return Ok(status);
        }
        let status = self.read_message().ok_or(Error::EndedEarly)?;
        let status = ExitStatus::from_raw(status);
        self.exit = Some(status);
        Ok(status)
    }

    /// Sends the program a signal.
    ///
    /// # Errors
    /// `ESRCH` when it has ended.
    pub fn signal(&self, signal: i32) -> Result<(), Errno> {
        let application = self.application.as_ref().ok_or(Errno::ESRCH)?;
        process::send_signal(application.as_fd(), signal)
    }

    /// A handle for [`signal`](Self::signal) that can be used on another thread than the one that waits.
    ///
    /// # Errors
    /// When this process has no descriptor left.
    pub fn signaller(&self) -> Result<Signaller, Errno> {
        let application = self.application.as_ref().ok_or(Errno::ESRCH)?;
        let copy = application.try_clone();
        copy.map(Signaller)
            .map_err(|error| crate::notification::errno_of(&error))
    }

    fn read_message(&mut self) -> Option<i32> {
        let mut message = spawn::WatcherMessage::default();
        self.control.as_mut()?.read_exact(&mut message).ok()?;
        Some(i32::from_ne_bytes(message))
    }
}

impl std::fmt::Debug for SupervisedProcess {
    fn fmt(&self, formatter: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        formatter
            .debug_struct("SupervisedProcess")
            .field("process", &self.process)
            .field("exit", &self.exit)
            .finish_non_exhaustive()
    }
}

impl Drop for SupervisedProcess {
    fn drop(&mut self) {
        drop(self.listener_to_receiver.take());
        drop(self.control.take());
        process::reap(self.watcher);
        if let Some(receiver) = self.receiver.take() {
            let _ = receiver.join();
        }
    }
}

/// Sends signals to a supervised program.
#[derive(Debug)]
pub struct Signaller(OwnedFd);

impl Signaller {
    /// Sends the program a signal.
    ///
    /// # Errors
    /// `ESRCH` when it has ended.
    pub fn signal(&self, signal: i32) -> Result<(), Errno> {
        process::send_signal(self.0.as_fd(), signal)
    }
}
