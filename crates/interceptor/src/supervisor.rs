//! Receives the application's calls and has each answered: at once where the answer is known, by a worker where it
//! takes time.

use std::os::fd::{AsFd, OwnedFd};
use std::sync::Arc;

use nix::poll::{PollFd, PollFlags, PollTimeout, poll};

use crate::Errno;
use crate::files::Files;
use crate::filter::Catch;
use crate::host::{Host, Notice};
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

/// What is shared by the thread that receives and the workers.
#[derive(Clone)]
pub(crate) struct Supervisor {
    pub(crate) host: Arc<dyn Host>,
    pub(crate) catch: Catch,
    pub(crate) files: Arc<Files>,
    pub(crate) connections: Arc<Connections>,
    pub(crate) incoming: Arc<Incoming>,
    pub(crate) processes: Arc<Processes>,
    pub(crate) workers: Workers,
    /// Only where signals do not wait for answers.
    pub(crate) restarts: Option<Arc<Restarts>>,
}

/// What is done about a call, as far as it can be said at once.
pub(crate) enum Decision {
    /// The kernel does it.
    Pass,
    /// The answer is known.
    Answer(Result<i64, Errno>),
    /// It takes time, and is begun without waiting: somebody else will answer.
    Begin(Job),
    /// It takes time.
    Later(Job),
}

/// The rest of the work on a call.
type Job = Box<dyn FnOnce(&Supervisor, Notification) + Send>;

impl Decision {
    pub(crate) fn begin(job: impl FnOnce(&Supervisor, Notification) + Send + 'static) -> Self {
        Self::Begin(Box::new(job))
    }

    pub(crate) fn later(job: impl FnOnce(&Supervisor, Notification) + Send + 'static) -> Self {
        Self::Later(Box::new(job))
    }
}

impl Supervisor {
    pub(crate) fn new(host: Arc<dyn Host>, catch: Catch) -> Self {
        Self {
            host,
            catch,
            files: Arc::default(),
            connections: Arc::default(),
            incoming: Arc::default(),
            processes: Arc::default(),
            workers: Workers::default(),
            restarts: None,
        }
    }

    /// Answers calls until no process is supervised any more.
    pub(crate) fn run(&self, listener: OwnedFd) {
        self.receive_all(listener);
        self.workers.close();
    }

    fn receive_all(&self, listener: OwnedFd) {
        let listener = Arc::new(listener);
        // Waiting for a call and receiving it is one system call less where receiving also ends when everything has.
        let receiving_ends = release() >= (6, 11);
        while receiving_ends || is_called(&listener, PollTimeout::NONE) {
            match seccomp::receive(listener.as_fd()) {
                Ok(received) => self.answer(&listener, received),
                Err(Errno::EINTR) => {}
                // The caller was killed, or the last one has ended.
                Err(Errno::ENOENT) if !is_over(&listener) => {}
                Err(Errno::ENOENT) => return,
                Err(errno) => {
                    tracing::error!(%errno, "cannot receive the application's calls");
                    return;
                }
            }
        }
    }

    fn answer(&self, listener: &Arc<OwnedFd>, received: seccomp::Received) {
        let foreign = received.architecture != NATIVE_ARCHITECTURE;
        let call = Call::by_number(received.number);
        let mut notification = Notification::new(Arc::clone(listener), received);
        // Calls about connections know by themselves what is under way.
        if let Some(restarts) = &self.restarts
            && call.is_some_and(Call::is_done_once)
        {
            match restarts.arrive(listener.as_fd(), &received) {
                Some(call) => notification = notification.restartable(call),
                None => return notification.leave_to_earlier(),
            }
        }
        if foreign {
            self.processes.say_once(notification.thread(), |process| {
                self.host.notice(&Notice::ForeignArchitecture { process });
            });
            return notification.pass();
        }
        let decision = call.map_or(Decision::Pass, |call| self.decide(call, &notification));
        match decision {
            Decision::Pass => notification.pass(),
            Decision::Answer(result) => notification.finish(result),
            Decision::Begin(job) => job(self, notification),
            Decision::Later(job) => {
                let supervisor = self.clone();
                self.workers.run(move || job(&supervisor, notification));
            }
        }
    }

    fn decide(&self, call: Call, notification: &Notification) -> Decision {
        if call.group() != Group::Process && self.processes.is_left_alone(notification.thread()) {
            return Decision::Pass;
        }
        let decision = match call.group() {
            Group::Process => Ok(process::decide(self, call, notification)),
            Group::Files | Group::Root if self.processes.has_other_root(notification.thread()) => {
                Ok(Decision::Pass)
            }
            // There is nothing remote in any other tree than ours.
            Group::Root if call != Call::Chroot => {
                self.processes.expect_other_roots();
                Ok(Decision::Pass)
            }
            Group::Files | Group::Root => crate::files::decide(self, call, notification),
            Group::Outgoing | Group::Sockets => crate::outgoing::decide(self, call, notification),
            Group::Incoming => crate::incoming::decide(self, call, notification),
            Group::Hostname => Ok(hostname::decide(self)),
        };
        decision.unwrap_or_else(|errno| self.unreadable(notification, errno))
    }

    /// What the call points to could not be read. Usually the kernel will find the same and say so itself.
    fn unreadable(&self, notification: &Notification, errno: Errno) -> Decision {
        if matches!(errno, Errno::EPERM | Errno::EACCES) {
            self.processes.say_once(notification.thread(), |process| {
                self.host.notice(&Notice::Unreadable { process, errno });
            });
        }
        Decision::Pass
    }
}

/// Waits for a call. False when the last supervised process has ended.
fn is_called(listener: &OwnedFd, timeout: PollTimeout) -> bool {
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
fn is_over(listener: &OwnedFd) -> bool {
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

/// The kernel's version.
fn release() -> (u32, u32) {
    let names = system_names();
    // Whether C's characters have a sign differs between architectures.
    let text = names.release.iter().flat_map(|byte| byte.to_ne_bytes());
    let text: Vec<u8> = text.take_while(|byte| *byte != 0).collect();
    let text = String::from_utf8_lossy(&text).into_owned();
    let mut numbers = text.split(|character: char| !character.is_ascii_digit());
    let mut next = || numbers.next().and_then(|number| number.parse().ok());
    (next().unwrap_or(0), next().unwrap_or(0))
}
