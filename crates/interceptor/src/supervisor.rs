//! Receives the application's system calls and completes each: immediately if the result is known, on a worker thread
//! if it may block.

use std::os::fd::{AsFd, OwnedFd};
use std::sync::Arc;

use nix::poll::{PollFd, PollFlags, PollTimeout, poll};

use crate::Errno;
use crate::files::Files;
use crate::filter::InterceptSettings;
use crate::host::{Host, Notice};
use crate::hostname::SystemNames;
use crate::incoming::Incoming;
use crate::notification::Notification;
use crate::outgoing::Connections;
use crate::process::Processes;
use crate::restarts::Restarts;
use crate::sys::process::system_names;
use crate::sys::seccomp;
use crate::syscalls::{Call, Group, NATIVE_ARCHITECTURE};
use crate::workers::Workers;
use crate::{hostname, process};

/// The state shared by the receiving thread and the workers.
#[derive(Clone)]
pub(crate) struct Supervisor {
    pub(crate) host: Arc<dyn Host>,
    pub(crate) settings: InterceptSettings,
    pub(crate) files: Arc<Files>,
    pub(crate) connections: Arc<Connections>,
    pub(crate) incoming: Arc<Incoming>,
    pub(crate) processes: Arc<Processes>,
    pub(crate) names: Arc<SystemNames>,
    pub(crate) workers: Workers,
    /// Only set on kernels where signals interrupt intercepted calls (without `WAIT_KILLABLE_RECV`).
    pub(crate) restarts: Option<Arc<Restarts>>,
}

/// How an intercepted call is handled, as decided by the receiving thread.
pub(crate) enum Decision {
    /// The kernel executes the call.
    Pass,
    /// The result is known.
    Complete(Result<i64, Errno>),
    /// The job may take time but does not block: it starts the work, and another thread completes the call.
    Start(Job),
    /// The job may block and runs on a worker thread.
    Defer(Job),
}

/// The remaining work on a call.
type Job = Box<dyn FnOnce(&Supervisor, Notification) + Send>;

impl Decision {
    pub(crate) fn start(job: impl FnOnce(&Supervisor, Notification) + Send + 'static) -> Self {
        Self::Start(Box::new(job))
    }

    pub(crate) fn defer(job: impl FnOnce(&Supervisor, Notification) + Send + 'static) -> Self {
        Self::Defer(Box::new(job))
    }
}

impl Supervisor {
    pub(crate) fn new(host: Arc<dyn Host>, settings: InterceptSettings) -> Self {
        Self {
            host,
            settings,
            files: Arc::default(),
            connections: Arc::default(),
            incoming: Arc::default(),
            processes: Arc::default(),
            names: Arc::default(),
            workers: Workers::default(),
            restarts: None,
        }
    }

    /// Handles calls until the last supervised process has ended.
    pub(crate) fn run(&self, listener: OwnedFd) {
        self.receive_all(listener);
        self.workers.close();
    }

    fn receive_all(&self, listener: OwnedFd) {
        let listener = Arc::new(listener);
        // Since Linux 6.11 receiving also returns when the last process has ended, which saves one `poll` per call.
        let receive_returns_at_end = release() >= (6, 11);
        while receive_returns_at_end || wait_for_call(&listener, PollTimeout::NONE) {
            match seccomp::receive(listener.as_fd()) {
                Ok(received) => self.handle(&listener, received),
                Err(Errno::EINTR) => {}
                // The caller was killed, or the last process has ended.
                Err(Errno::ENOENT) if !all_processes_ended(&listener) => {}
                Err(Errno::ENOENT) => return,
                Err(errno) => {
                    tracing::error!(%errno, "receiving system calls failed");
                    return;
                }
            }
        }
    }

    fn handle(&self, listener: &Arc<OwnedFd>, received: seccomp::ReceivedCall) {
        let foreign = received.architecture != NATIVE_ARCHITECTURE;
        let call = Call::by_number(received.number);
        let mut notification = Notification::new(Arc::clone(listener), received);
        // Calls about connections track repeated calls themselves.
        if let Some(restarts) = &self.restarts
            && call.is_some_and(Call::must_not_repeat)
        {
            match restarts.register(listener.as_fd(), &received) {
                Some(call) => notification = notification.restartable(call),
                None => return notification.leave_to_original(),
            }
        }
        if foreign {
            self.processes
                .notify_once(notification.thread(), |process| {
                    self.host.notice(&Notice::ForeignArchitecture { process });
                });
            return notification.pass();
        }
        let decision = call.map_or(Decision::Pass, |call| self.decide(call, &notification));
        match decision {
            Decision::Pass => notification.pass(),
            Decision::Complete(result) => notification.finish(result),
            Decision::Start(job) => job(self, notification),
            Decision::Defer(job) => {
                let supervisor = self.clone();
                self.workers.run(move || job(&supervisor, notification));
            }
        }
    }

    fn decide(&self, call: Call, notification: &Notification) -> Decision {
        if call.group() != Group::Process && self.processes.is_skipped(notification.thread()) {
            return Decision::Pass;
        }
        let decision = match call.group() {
            Group::Process => Ok(process::decide(self, call, notification)),
            Group::Files | Group::Root if self.processes.has_other_root(notification.thread()) => {
                Ok(Decision::Pass)
            }
            // Nothing is remote in a file tree other than ours.
            Group::Root if call != Call::Chroot => {
                self.processes.expect_other_roots();
                Ok(Decision::Pass)
            }
            Group::Files | Group::Root => crate::files::decide(self, call, notification),
            Group::Outgoing | Group::Sockets => crate::outgoing::decide(self, call, notification),
            Group::Incoming => crate::incoming::decide(self, call, notification),
            Group::Hostname => Ok(hostname::decide(self, call)),
        };
        decision.unwrap_or_else(|errno| self.unreadable(notification, errno))
    }

    /// Handles a call whose arguments could not be read. Usually the kernel finds the same error and reports it itself.
    fn unreadable(&self, notification: &Notification, errno: Errno) -> Decision {
        if matches!(errno, Errno::EPERM | Errno::EACCES) {
            self.processes
                .notify_once(notification.thread(), |process| {
                    self.host
                        .notice(&Notice::UnreadableMemory { process, errno });
                });
        }
        Decision::Pass
    }
}

/// Waits for a call. Returns false when the last supervised process has ended.
fn wait_for_call(listener: &OwnedFd, timeout: PollTimeout) -> bool {
    loop {
        let events = events(listener, timeout);
        if events.contains(PollFlags::POLLIN) {
            return true;
        }
        if !events.is_empty() {
            return false;
        }
    }
}

/// Whether the last supervised process has ended.
fn all_processes_ended(listener: &OwnedFd) -> bool {
    events(listener, PollTimeout::ZERO).contains(PollFlags::POLLHUP)
}

fn events(listener: &OwnedFd, timeout: PollTimeout) -> PollFlags {
    let mut waiting = [PollFd::new(listener.as_fd(), PollFlags::POLLIN)];
    match poll(&mut waiting, timeout) {
        Ok(_) | Err(Errno::EINTR) => {}
        Err(_) => return PollFlags::POLLERR,
    }
    let events = waiting.first().and_then(PollFd::revents);
    events.unwrap_or(PollFlags::empty())
}

/// The version of the running kernel (major, minor).
fn release() -> (u32, u32) {
    let names = system_names();
    // The signedness of `c_char` differs between architectures.
    let text = names.release.iter().flat_map(|byte| byte.to_ne_bytes());
    let text: Vec<u8> = text.take_while(|byte| *byte != 0).collect();
    let text = String::from_utf8_lossy(&text).into_owned();
    let mut numbers = text.split(|character: char| !character.is_ascii_digit());
    let mut next = || numbers.next().and_then(|number| number.parse().ok());
    (next().unwrap_or(0), next().unwrap_or(0))
}
