//! A program that runs, until its end.

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

/// A program that runs under supervision. Dropping it ends the program and everything that it started.
pub struct Supervised {
    /// Closing it tells the watcher to end everything.
    pub(super) control: Option<UnixStream>,
    pub(super) watcher: libc::pid_t,
    pub(super) application: Option<OwnedFd>,
    pub(super) process: libc::pid_t,
    pub(super) receiver: Option<JoinHandle<()>>,
    /// What the receiver works with, when it is there.
    pub(super) listener_to_receiver: Option<Sender<(Supervisor, OwnedFd)>>,
    pub(super) exit: Option<ExitStatus>,
    pub(super) signals_wait: bool,
    pub(crate) features: ListenerFeatures,
}

impl Supervised {
    /// The process id of the program.
    #[must_use]
    pub fn process(&self) -> i32 {
        self.process
    }

    /// Whether signals wait for answers, as the kernel does for its own calls. Before Linux 5.19 they do not, and a
    /// call that natively is not interruptible may fail with `EINTR`.
    #[must_use]
    pub fn signals_wait(&self) -> bool {
        self.signals_wait
    }

    /// Waits for the program to end. What it started may go on until this is dropped.
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

    /// What [`signal`](Self::signal) needs, for another thread than the one that waits.
    ///
    /// # Errors
    /// When the process has no descriptor left.
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

impl std::fmt::Debug for Supervised {
    fn fmt(&self, formatter: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        formatter
            .debug_struct("Supervised")
            .field("process", &self.process)
            .field("exit", &self.exit)
            .finish_non_exhaustive()
    }
}

impl Drop for Supervised {
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
