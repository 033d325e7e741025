//! `accept` with room for an address.
//!
//! It is done on our copy of the application's socket, and the accepted connection is then put into the application. A
//! socket that does not wait is answered on the thread that receives all calls. For one that waits, a worker does; of all
//! that wait for the same socket, one watches it at a time, so that one connection wakes one. Only that one has a copy of
//! the socket: with the last process that has it, it closes.
//!
//! A connection that was accepted for a caller who is then gone, or has no descriptor left, goes back to the socket: the
//! next `accept` gets it. As the kernel's own queue cannot be filled again, an empty connection of ours is put there, so
//! that whoever watches the socket learns of it; it is thrown away when it comes out.

use std::collections::VecDeque;
use std::net::SocketAddr;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::{Arc, Condvar, Mutex, PoisonError};
use std::time::{Duration, Instant};

use nix::poll::{PollFd, PollFlags, PollTimeout, poll};

use super::{Incoming, Socket, encode_shown, family_of};
use crate::Errno;
use crate::notification::Notification;
use crate::outgoing::{Transport, internet, write_address};
use crate::process::{self, Vigil, has_signal};
use crate::supervisor::{Decision, Supervisor};
use crate::sys::socket;
use crate::syscalls::Call;
use crate::workers::lock;

/// Who watches a socket for connections, and those that came back.
#[derive(Debug, Default)]
pub(super) struct Turns {
    state: Mutex<State>,
    free: Condvar,
}

#[derive(Debug, Default)]
struct State {
    taken: bool,
    returned: VecDeque<Accepted>,
}

/// A connection, and the address of its other end.
#[derive(Debug)]
struct Accepted {
    socket: OwnedFd,
    from: Vec<u8>,
    /// Whether it came back before: who watches the socket was told then, and still is.
    has_returned: bool,
}

/// The way in which a call accepts.
#[derive(Debug, Clone, Copy)]
struct Manner {
    close_on_exec: bool,
    /// Of the connection.
    nonblocking: bool,
    /// Whether it waits for a connection.
    waits: bool,
}

impl Manner {
    /// `None` for flags that the kernel refuses.
    fn of(call: Call, from: &Notification) -> Option<Self> {
        let flags = match call {
            Call::Accept4 => from.int(3),
            _ => 0,
        };
        let known = libc::SOCK_CLOEXEC | libc::SOCK_NONBLOCK;
        (flags & !known == 0).then_some(Self {
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
    let Some(manner) = Manner::of(call, from) else {
        return Ok(Decision::Pass);
    };
    let theirs = from.copy_descriptor(from.int(0))?;
    let cookie = socket::cookie(theirs.as_fd())?;
    let Some(listener) = supervisor.incoming.get(cookie) else {
        return Ok(Decision::Pass);
    };
    let manner = Manner {
        waits: !socket::is_nonblocking(theirs.as_fd()),
        ..manner
    };
    if manner.waits {
        return Ok(Decision::later(move |supervisor, call| {
            wait(&supervisor.incoming, &listener, theirs, call, manner);
        }));
    }
    Ok(Decision::begin(move |supervisor, call| {
        match take(&supervisor.incoming, &listener, &theirs, manner) {
            Ok(accepted) => give(&supervisor.incoming, &listener, accepted, call, manner),
            Err(errno) => call.fail(errno),
        }
    }))
}

/// The next connection. `EAGAIN` if there is none.
fn take(
    incoming: &Incoming,
    listener: &Socket,
    theirs: &OwnedFd,
    manner: Manner,
) -> Result<Accepted, Errno> {
    if let Some(accepted) = lock(&listener.turns.state).returned.pop_front() {
        // Whether a connection waits is said by whoever accepts it.
        socket::set_nonblocking(accepted.socket.as_fd(), manner.nonblocking)?;
        return Ok(accepted);
    }
    loop {
        // Also for a socket that did not wait a moment ago: whoever shares it may have changed that, and here nobody waits.
        if !is_readable(theirs.as_fd()) {
            return Err(Errno::EAGAIN);
        }
        let (socket, from) = socket::accept(theirs.as_fd(), manner.nonblocking)?;
        let is_empty = internet(&from).is_some_and(|address| {
            incoming.deliveries.find(Transport::Tcp, address, || {
                socket::cookie(socket.as_fd()).ok()
            }) == Some(None)
        });
        if !is_empty {
            return Ok(Accepted {
                socket,
                from,
                has_returned: false,
            });
        }
    }
}

/// Gives a connection to the caller, with the address of its client.
fn give(
    incoming: &Arc<Incoming>,
    listener: &Socket,
    accepted: Accepted,
    call: Notification,
    manner: Manner,
) {
    let shown = shown(incoming, &accepted);
    let written = write_address(&call, call.argument(1), call.argument(2), &shown);
    match written {
        Ok(()) => {}
        Err(Errno::ESRCH) => return put_back(incoming, listener, accepted),
        // The kernel loses the connection as well.
        Err(errno) => return call.fail(errno),
    }
    if let Err((call, errno)) = call.offer(&accepted.socket, manner.close_on_exec) {
        put_back(incoming, listener, accepted);
        match errno {
            // It is gone.
            Errno::ENOENT | Errno::ESRCH => drop(call),
            errno => call.fail(errno),
        }
    }
}

/// The address of a connection's client as the application sees it.
fn shown(incoming: &Incoming, accepted: &Accepted) -> Vec<u8> {
    let domain = family_of(&accepted.from);
    let cookie = || socket::cookie(accepted.socket.as_fd()).ok();
    internet(&accepted.from)
        .and_then(|address: SocketAddr| {
            incoming
                .deliveries
                .find(Transport::Tcp, address, cookie)
                .flatten()
        })
        .and_then(|names| encode_shown(names.client, domain))
        .unwrap_or_else(|| accepted.from.clone())
}

fn put_back(incoming: &Arc<Incoming>, listener: &Socket, mut accepted: Accepted) {
    let is_new = !accepted.has_returned;
    accepted.has_returned = true;
    // Before all others, as it was.
    lock(&listener.turns.state).returned.push_front(accepted);
    if is_new {
        // It is enough that it was there. If it cannot be made, the next connection brings the other along.
        let _ = incoming
            .deliveries
            .open(Transport::Tcp, listener.reached, None);
    }
}

/// Waits for a connection on behalf of a call, and answers it.
fn wait(
    incoming: &Arc<Incoming>,
    listener: &Socket,
    theirs: OwnedFd,
    call: Notification,
    manner: Manner,
) {
    let timeout = socket::timeout(theirs.as_fd(), libc::SO_RCVTIMEO);
    let deadline = timeout.map(|timeout| Instant::now() + timeout);
    let caller = process::open_thread_or_process(call.thread()).ok();
    let mut vigil = Vigil::new();
    // Dropped in the opposite order: who waits for the turn, or for us to let go, must not find our copy.
    let mut turn = None;
    let mut held = None;
    let mut copy = Some(theirs);
    loop {
        let left = deadline.map(|deadline| deadline.saturating_duration_since(Instant::now()));
        let pause = vigil.pause().min(left.unwrap_or(Duration::MAX));
        if turn.is_none() {
            turn = listener.turns.take(&mut copy, pause);
            held = turn.as_ref().map(|_| incoming.copies.hold(&call));
        }
        if turn.is_some() {
            match watch(&mut copy, listener, &call, caller.as_ref(), pause)
                .and_then(|theirs| take(incoming, listener, theirs, manner))
            {
                Ok(accepted) => {
                    drop((copy, held, turn));
                    return give(incoming, listener, accepted, call, manner);
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
            // Let others go on first: the caller may be back soon.
            drop((copy, held, turn));
            return match deadline {
                Some(_) => call.fail(Errno::EINTR),
                None => call.restart(),
            };
        }
    }
}

/// Waits until a connection is there, the caller is gone, or a while is over.
fn watch<'a>(
    copy: &'a mut Option<OwnedFd>,
    listener: &Socket,
    call: &Notification,
    caller: Option<&OwnedFd>,
    pause: Duration,
) -> Result<&'a OwnedFd, Errno> {
    let theirs = match copy.take() {
        Some(theirs) => theirs,
        None => call.copy_descriptor(call.int(0))?,
    };
    // The number may be another socket's by now.
    if socket::cookie(theirs.as_fd())? != listener.cookie {
        return Err(Errno::EBADF);
    }
    let theirs = copy.insert(theirs);
    let waiting = [Some(&*theirs), caller].into_iter().flatten();
    let mut waiting: Vec<_> = waiting
        .map(|descriptor| PollFd::new(descriptor.as_fd(), PollFlags::POLLIN))
        .collect();
    let timeout = PollTimeout::try_from(pause).unwrap_or(PollTimeout::ZERO);
    let _ = poll(&mut waiting, timeout);
    let gone = waiting.get(1).and_then(PollFd::any).unwrap_or(false);
    // What waits for a caller who is gone is the next one's.
    if gone { Err(Errno::EAGAIN) } else { Ok(theirs) }
}

fn is_readable(socket: BorrowedFd<'_>) -> bool {
    let mut waiting = [PollFd::new(socket, PollFlags::POLLIN)];
    matches!(poll(&mut waiting, PollTimeout::ZERO), Ok(1))
}

/// The right to watch a socket. Dropping it passes it on.
struct Turn<'a>(&'a Turns);

impl Turns {
    /// Whether connections wait that came back.
    pub(super) fn any_returned(&self) -> bool {
        !lock(&self.state).returned.is_empty()
    }

    /// Ends connections that came back: nobody will accept them.
    pub(super) fn clear(&self) {
        let returned = std::mem::take(&mut lock(&self.state).returned);
        drop(returned);
    }

    /// Waits a while for the turn. Who waits has no copy of the socket meanwhile.
    fn take(&self, copy: &mut Option<OwnedFd>, pause: Duration) -> Option<Turn<'_>> {
        let mut state = lock(&self.state);
        if state.taken {
            drop(copy.take());
            (state, _) = self
                .free
                .wait_timeout_while(state, pause, |state| state.taken)
                .unwrap_or_else(PoisonError::into_inner);
        }
        if state.taken {
            return None;
        }
        state.taken = true;
        Some(Turn(self))
    }
}

impl Drop for Turn<'_> {
    fn drop(&mut self) {
        lock(&self.0.state).taken = false;
        self.0.free.notify_one();
    }
}

#[cfg(test)]
mod tests {
    use std::net::{TcpListener, TcpStream};
    use std::sync::mpsc;
    use std::thread;

    use super::*;

    const PATIENCE: Duration = Duration::from_secs(30);

    /// Its socket may wait, because whoever shares it has changed that a moment ago. Those who take calls must not.
    #[test]
    fn a_call_that_does_not_wait_never_does() {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let address = listener.local_addr().unwrap();
        let incoming = Arc::new(Incoming::default());
        let deliveries = Arc::clone(&incoming.deliveries);
        let (taken, taking) = mpsc::channel();
        let (next, wanted) = mpsc::channel();
        thread::spawn(move || {
            let theirs = OwnedFd::from(listener);
            let socket = Socket::new(&theirs, Transport::Tcp, address).unwrap();
            let manner = Manner {
                close_on_exec: true,
                nonblocking: false,
                waits: false,
            };
            while wanted.recv().is_ok() {
                let _ = taken.send(take(&incoming, &socket, &theirs, manner));
            }
        });
        let take = || {
            next.send(()).unwrap();
            let taken = taking.recv_timeout(PATIENCE);
            taken.expect("it does not wait").map(|_| ())
        };
        assert_eq!(take(), Err(Errno::EAGAIN));
        let _client = TcpStream::connect(address).unwrap();
        assert_eq!(take(), Ok(()));
        // After what only wakes those who watch, there may be nothing more.
        let _empty = deliveries.open(Transport::Tcp, address, None).unwrap();
        assert_eq!(take(), Err(Errno::EAGAIN));
    }
}
