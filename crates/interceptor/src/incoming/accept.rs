//! `accept` with a buffer for an address.
//!
//! We accept on our copy of the application's socket, and install the accepted connection in the application. A call on
//! a nonblocking socket is completed on the thread that receives all calls. A call on a blocking socket is completed by
//! a worker. Of all workers that wait for the same socket, only one watches it at a time, so that a connection wakes
//! one of them. Only that one has a copy of the socket, so that the socket closes with the last process that has it.
//!
//! A connection that was accepted for a caller that has ended, or that has no descriptor left, is requeued: the next
//! `accept` gets it. The kernel's own queue cannot be refilled, so we make an empty connection to the socket, which
//! wakes the watchers of the socket; it is discarded when it is accepted.

use std::collections::VecDeque;
use std::net::SocketAddr;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::Arc;
use std::time::{Duration, Instant};

use nix::poll::{PollFd, PollFlags, PollTimeout, poll};
use parking_lot::{Condvar, Mutex};

use super::{Incoming, ListenerSocket, encode_visible, family_of};
use crate::Errno;
use crate::notification::Notification;
use crate::outgoing::{Transport, internet, write_address};
use crate::process::{self, PollInterval, has_signal};
use crate::supervisor::{Decision, Supervisor};
use crate::sys::socket;
use crate::syscalls::Call;

/// Who may watch a socket for connections, and the requeued connections.
#[derive(Debug, Default)]
pub(super) struct AcceptQueue {
    state: Mutex<State>,
    free: Condvar,
}

#[derive(Debug, Default)]
struct State {
    is_watched: bool,
    requeued: VecDeque<Accepted>,
}

/// An accepted connection, and its peer address.
#[derive(Debug)]
struct Accepted {
    socket: OwnedFd,
    from: Vec<u8>,
    /// Whether it was requeued before: the watchers of the socket were woken then, and still are.
    was_requeued: bool,
}

/// The options of an `accept` call.
#[derive(Debug, Clone, Copy)]
struct AcceptOptions {
    close_on_exec: bool,
    /// Whether the accepted connection is nonblocking.
    nonblocking: bool,
    /// Whether the call waits for a connection.
    waits: bool,
}

impl AcceptOptions {
    /// Returns `None` for flags that the kernel refuses.
    fn of(call: Call, from: &Notification) -> Option<Self> {
        let flags = match call {
            Call::Accept4 => from.int(3),
            _ => 0,
        };
        let supported = libc::SOCK_CLOEXEC | libc::SOCK_NONBLOCK;
        (flags & !supported == 0).then_some(Self {
            close_on_exec: flags & libc::SOCK_CLOEXEC != 0,
            nonblocking: flags & libc::SOCK_NONBLOCK != 0,
            waits: true,
        })
    }
}

pub(super) fn decide(
    supervisor: &Supervisor,
    call: Call,
    from: &Notification,
) -> Result<Decision, Errno> {
    let Some(options) = AcceptOptions::of(call, from) else {
        return Ok(Decision::Pass);
    };
    let theirs = from.copy_descriptor(from.int(0))?;
    let cookie = socket::cookie(theirs.as_fd())?;
    let Some(listener) = supervisor.incoming.get(cookie) else {
        return Ok(Decision::Pass);
    };
    let options = AcceptOptions {
        waits: !socket::is_nonblocking(theirs.as_fd()),
        ..options
    };
    if options.waits {
        return Ok(Decision::defer(move |supervisor, call| {
            wait(&supervisor.incoming, &listener, theirs, call, options);
        }));
    }
    Ok(Decision::start(
        move |supervisor, call| match next_connection(
            &supervisor.incoming,
            &listener,
            &theirs,
            options,
        ) {
            Ok(accepted) => complete(&supervisor.incoming, &listener, accepted, call, options),
            Err(errno) => call.fail(errno),
        },
    ))
}

/// The next connection. `EAGAIN` if there is none.
fn next_connection(
    incoming: &Incoming,
    listener: &ListenerSocket,
    theirs: &OwnedFd,
    options: AcceptOptions,
) -> Result<Accepted, Errno> {
    if let Some(accepted) = listener.accept_queue.state.lock().requeued.pop_front() {
        // Each `accept` call chooses whether its connection is nonblocking.
        socket::set_nonblocking(accepted.socket.as_fd(), options.nonblocking)?;
        return Ok(accepted);
    }
    loop {
        // This check is also needed for a socket that was nonblocking a moment ago: a process that shares it may have
        // changed that, and this thread must not block.
        if !is_readable(theirs.as_fd()) {
            return Err(Errno::EAGAIN);
        }
        let (socket, from) = socket::accept(theirs.as_fd(), options.nonblocking)?;
        let is_empty = internet(&from).is_some_and(|address| {
            incoming.app_connections.find(Transport::Tcp, address, || {
                socket::cookie(socket.as_fd()).ok()
            }) == Some(None)
        });
        if !is_empty {
            return Ok(Accepted {
                socket,
                from,
                was_requeued: false,
            });
        }
    }
}

/// Completes the call with a connection and the address of its client.
fn complete(
    incoming: &Arc<Incoming>,
    listener: &ListenerSocket,
    accepted: Accepted,
    call: Notification,
    options: AcceptOptions,
) {
    let visible_peer = visible_peer(incoming, &accepted);
    let written = write_address(&call, call.argument(1), call.argument(2), &visible_peer);
    match written {
        Ok(()) => {}
        Err(Errno::ESRCH) => return requeue(incoming, listener, accepted),
        // The kernel loses the connection as well.
        Err(errno) => return call.fail(errno),
    }
    if let Err((call, errno)) =
        call.try_respond_with_descriptor(&accepted.socket, options.close_on_exec)
    {
        requeue(incoming, listener, accepted);
        match errno {
            // The caller is gone.
            Errno::ENOENT | Errno::ESRCH => drop(call),
            errno => call.fail(errno),
        }
    }
}

/// The address of a connection's client that the application sees.
fn visible_peer(incoming: &Incoming, accepted: &Accepted) -> Vec<u8> {
    let domain = family_of(&accepted.from);
    let cookie = || socket::cookie(accepted.socket.as_fd()).ok();
    internet(&accepted.from)
        .and_then(|address: SocketAddr| {
            incoming
                .app_connections
                .find(Transport::Tcp, address, cookie)
                .flatten()
        })
        .and_then(|addresses| encode_visible(addresses.client, domain))
        .unwrap_or_else(|| accepted.from.clone())
}

fn requeue(incoming: &Arc<Incoming>, listener: &ListenerSocket, mut accepted: Accepted) {
    let is_new = !accepted.was_requeued;
    accepted.was_requeued = true;
    // In front of all others, where it was.
    listener
        .accept_queue
        .state
        .lock()
        .requeued
        .push_front(accepted);
    if is_new {
        // The connection attempt alone wakes the watchers. If it fails, the next connection wakes them.
        let _ = incoming
            .app_connections
            .open(Transport::Tcp, listener.actual, None);
    }
}

/// Waits for a connection on behalf of a call, and completes the call.
fn wait(
    incoming: &Arc<Incoming>,
    listener: &ListenerSocket,
    theirs: OwnedFd,
    call: Notification,
    options: AcceptOptions,
) {
    let timeout = socket::timeout(theirs.as_fd(), libc::SO_RCVTIMEO);
    let deadline = timeout.map(|timeout| Instant::now() + timeout);
    let caller = process::open_thread_or_process(call.thread()).ok();
    let mut poll_interval = PollInterval::new();
    // Dropped in reverse order: our copy must be closed before the permit or the guard is released.
    let mut permit = None;
    let mut guard = None;
    let mut copy = Some(theirs);
    loop {
        let left = deadline.map(|deadline| deadline.saturating_duration_since(Instant::now()));
        let timeout = poll_interval
            .next_delay()
            .min(left.unwrap_or(Duration::MAX));
        if permit.is_none() {
            permit = listener.accept_queue.acquire(&mut copy, timeout);
            guard = permit
                .as_ref()
                .map(|_| incoming.socket_copies.register(&call));
        }
        if permit.is_some() {
            match watch(&mut copy, listener, &call, caller.as_ref(), timeout)
                .and_then(|theirs| next_connection(incoming, listener, theirs, options))
            {
                Ok(accepted) => {
                    drop((copy, guard, permit));
                    return complete(incoming, listener, accepted, call, options);
                }
                Err(Errno::EAGAIN) => {}
                Err(errno) => return call.fail(errno),
            }
        }
        if !call.is_valid() {
            return;
        }
        if deadline.is_some_and(|deadline| Instant::now() >= deadline) {
            return call.fail(Errno::EAGAIN);
        }
        if has_signal(call.thread()) {
            // Released first, because the caller may soon call again.
            drop((copy, guard, permit));
            return match deadline {
                Some(_) => call.fail(Errno::EINTR),
                None => call.restart(),
            };
        }
    }
}

/// Waits for a connection, the end of the caller, or the timeout.
fn watch<'a>(
    copy: &'a mut Option<OwnedFd>,
    listener: &ListenerSocket,
    call: &Notification,
    caller: Option<&OwnedFd>,
    timeout: Duration,
) -> Result<&'a OwnedFd, Errno> {
    let theirs = match copy.take() {
        Some(theirs) => theirs,
        None => call.copy_descriptor(call.int(0))?,
    };
    // The descriptor number may refer to another socket by now.
    if socket::cookie(theirs.as_fd())? != listener.cookie {
        return Err(Errno::EBADF);
    }
    let theirs = copy.insert(theirs);
    let waiting = [Some(&*theirs), caller].into_iter().flatten();
    let mut waiting: Vec<_> = waiting
        .map(|descriptor| PollFd::new(descriptor.as_fd(), PollFlags::POLLIN))
        .collect();
    let timeout = PollTimeout::try_from(timeout).unwrap_or(PollTimeout::ZERO);
    let _ = poll(&mut waiting, timeout);
    let caller_ended = waiting.get(1).and_then(PollFd::any).unwrap_or(false);
    // A connection is left to the next call if the caller is gone.
    if caller_ended {
        Err(Errno::EAGAIN)
    } else {
        Ok(theirs)
    }
}

fn is_readable(socket: BorrowedFd<'_>) -> bool {
    let mut waiting = [PollFd::new(socket, PollFlags::POLLIN)];
    matches!(poll(&mut waiting, PollTimeout::ZERO), Ok(1))
}

/// The permission to watch a socket. Dropping it passes it on.
struct WatchPermit<'a>(&'a AcceptQueue);

impl AcceptQueue {
    /// Whether there are requeued connections.
    pub(super) fn has_requeued(&self) -> bool {
        !self.state.lock().requeued.is_empty()
    }

    /// Closes the requeued connections, because they will not be accepted.
    pub(super) fn clear(&self) {
        let requeued = std::mem::take(&mut self.state.lock().requeued);
        drop(requeued);
    }

    /// Waits for the permit. The socket copy is closed while waiting.
    fn acquire(&self, copy: &mut Option<OwnedFd>, timeout: Duration) -> Option<WatchPermit<'_>> {
        let mut state = self.state.lock();
        if state.is_watched {
            drop(copy.take());
            self.free
                .wait_while_for(&mut state, |state| state.is_watched, timeout);
        }
        if state.is_watched {
            return None;
        }
        state.is_watched = true;
        Some(WatchPermit(self))
    }
}

impl Drop for WatchPermit<'_> {
    fn drop(&mut self) {
        self.0.state.lock().is_watched = false;
        self.0.free.notify_one();
    }
}

#[cfg(test)]
mod tests {
    use std::net::{TcpListener, TcpStream};
    use std::sync::mpsc;
    use std::thread;

    use super::*;

    const TEST_TIMEOUT: Duration = Duration::from_secs(30);

    /// The socket may be blocking, because a process that shares it changed that a moment ago. The receiving thread
    /// must not block.
    #[test]
    fn nonblocking_accept_never_blocks() {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let address = listener.local_addr().unwrap();
        let incoming = Arc::new(Incoming::default());
        let app_connections = Arc::clone(&incoming.app_connections);
        let (results, accepted) = mpsc::channel();
        let (request, requests) = mpsc::channel();
        thread::spawn(move || {
            let theirs = OwnedFd::from(listener);
            let socket = ListenerSocket::new(&theirs, Transport::Tcp, address).unwrap();
            let options = AcceptOptions {
                close_on_exec: true,
                nonblocking: false,
                waits: false,
            };
            while requests.recv().is_ok() {
                let _ = results.send(next_connection(&incoming, &socket, &theirs, options));
            }
        });
        let accept = || {
            request.send(()).unwrap();
            let result = accepted.recv_timeout(TEST_TIMEOUT);
            result.expect("it does not block").map(|_| ())
        };
        assert_eq!(accept(), Err(Errno::EAGAIN));
        let _client = TcpStream::connect(address).unwrap();
        assert_eq!(accept(), Ok(()));
        // After the empty connection that only wakes the watchers, there may be no other.
        let _empty = app_connections.open(Transport::Tcp, address, None).unwrap();
        assert_eq!(accept(), Err(Errno::EAGAIN));
    }
}
