//! A connection from being asked for to being there.

use std::net::SocketAddr;
use std::os::fd::{AsFd, OwnedFd, RawFd};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Condvar, Mutex, PoisonError};
use std::time::{Duration, Instant};

use super::address::{encode_internet, internet};
use super::relay::{Kind, Listener, Look, Relay, domain_of, loopback, release_from_device};
use super::{Connections, Destination, Ends, Names, Peer, Socket, Transport, own};
use crate::Errno;
use crate::notification::Notification;
use crate::process::{self, Vigil, has_signal};
use crate::sys::socket;
use crate::workers::lock;

/// Attempts are numbered, because a socket may be used for several, one after the other.
static ATTEMPTS: AtomicU64 = AtomicU64::new(0);

/// A connection that the application asks for. Completed by [`establish`](Self::establish) or
/// [`refuse`](Self::refuse); dropping it refuses it with `ECONNABORTED`.
#[derive(Debug)]
pub struct Outgoing {
    attempt: Arc<Attempt>,
    completed: bool,
}

impl Outgoing {
    #[must_use]
    pub fn transport(&self) -> Transport {
        self.attempt.transport
    }

    #[must_use]
    pub fn destination(&self) -> &Destination {
        &self.attempt.destination
    }

    /// Whether somebody still waits for it: false when the application's process has ended.
    #[must_use]
    pub fn is_wanted(&self) -> bool {
        lock(&self.attempt.state).is_wanted()
    }

    /// The remote half is there. The application's call succeeds, or its socket becomes writable, and what it writes
    /// arrives at the returned end. Takes a fraction of a millisecond.
    ///
    /// # Errors
    /// When the application's socket cannot be connected to us, or nobody waits any more.
    pub fn establish(mut self, names: Names) -> Result<Connection, Errno> {
        self.completed = true;
        self.attempt.establish(names)
    }

    /// The remote half cannot be had. The application sees this error, now or when it asks.
    pub fn refuse(mut self, errno: Errno) {
        self.completed = true;
        self.attempt.refuse(errno);
    }
}

impl Drop for Outgoing {
    fn drop(&mut self) {
        if !self.completed {
            self.attempt.refuse(Errno::ECONNABORTED);
        }
    }
}

/// Our end of the application's connection.
///
/// A stream behaves as such: the end of input says that the application shut its side down or closed. For
/// [`Transport::Udp`] each read is a datagram for the destination and each write one from it.
///
/// Keep it until both directions have ended, because with it goes what the application sees as the connection's names.
#[derive(Debug)]
pub struct Connection {
    socket: OwnedFd,
    registration: Registration,
}

impl Connection {
    /// The socket, and what keeps the connection known as long as it lives.
    #[must_use]
    pub fn into_parts(self) -> (OwnedFd, Registration) {
        (self.socket, self.registration)
    }
}

impl AsFd for Connection {
    fn as_fd(&self) -> std::os::fd::BorrowedFd<'_> {
        self.socket.as_fd()
    }
}

/// Keeps a connection known; dropping it forgets it.
#[derive(Debug)]
pub struct Registration {
    connections: Arc<Connections>,
    cookie: u64,
    caller: Caller,
    attempt: u64,
    datagrams: Option<DatagramEnds>,
}

/// Who has a socket, and its number there. Both may change; what is found there must be looked at.
#[derive(Debug, Clone, Copy)]
pub(super) struct Caller {
    pub(super) thread: libc::pid_t,
    pub(super) number: RawFd,
}

impl Caller {
    pub(super) fn of(from: &Notification) -> Self {
        Self {
            thread: from.thread(),
            number: from.int(0),
        }
    }
}

/// Both ends of the local half of a datagram association.
#[derive(Debug, Clone, Copy)]
struct DatagramEnds {
    application: SocketAddr,
    relay: SocketAddr,
    is_connected: bool,
    made: Instant,
}

impl Registration {
    /// Whether the application still has its socket, and still speaks to this peer. Datagram sockets do not say when they
    /// are closed; this asks the kernel, and is meant for once in a while. Always true for streams.
    #[must_use]
    pub fn is_open(&self) -> bool {
        let Some(ends) = self.datagrams else {
            return true;
        };
        // It may have been connected to somebody else.
        self.is_peer() && own::is_datagram_port_open(ends.application.port(), ends.made)
    }

    /// Corrects what the application sees as its own end, when the host said it before it knew. Only for connected
    /// datagram sockets.
    pub fn set_local(&self, local: SocketAddr) {
        if self.datagrams.is_some_and(|ends| ends.is_connected) && self.is_peer() {
            self.connections.set_local(self.cookie, local);
        }
    }

    /// Whether the application still speaks to this peer, as far as we know.
    fn is_peer(&self) -> bool {
        let known = self.connections.datagrams(self.cookie);
        known.zip(self.datagrams).is_some_and(|(known, ends)| {
            let mut peers = known.peers.iter();
            peers.any(|peer| peer.relay == ends.relay)
        })
    }

    /// Tells the application that nobody takes what it sends, as its kernel would: the next call on its connected
    /// datagram socket fails with `ECONNREFUSED`. `ours` is our end. Does nothing on other sockets.
    ///
    /// Only the kernel can put an error into a socket, and does so when a packet of the socket is refused. So a packet is
    /// sent from the application's socket while ours looks elsewhere.
    ///
    /// # Errors
    /// When the application's socket is not where it was.
    pub fn report_refusal(&self, ours: impl AsFd) -> Result<(), Errno> {
        let Some(ends) = self.datagrams.filter(|ends| ends.is_connected) else {
            return Ok(());
        };
        let theirs = process::copy_descriptor_of(self.caller.thread, self.caller.number)?;
        if socket::cookie(theirs.as_fd())? != self.cookie {
            return Err(Errno::ESTALE);
        }
        let domain = domain_of(ours.as_fd())?;
        socket::connect(ours.as_fd(), &encode_internet(ends.relay, domain))?;
        let sent = socket::send(theirs.as_fd(), &[], libc::MSG_DONTWAIT, &[]);
        socket::connect(ours.as_fd(), &encode_internet(ends.application, domain))?;
        match sent {
            // An error was there already.
            Ok(_) | Err(Errno::ECONNREFUSED) => Ok(()),
            Err(errno) => Err(errno),
        }
    }
}

impl Drop for Registration {
    fn drop(&mut self) {
        match self.datagrams {
            None => self.connections.end(self.cookie, self.attempt),
            Some(ends) => self.connections.remove_peer(self.cookie, ends.relay),
        }
    }
}

/// What an attempt does to the application's socket.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Purpose {
    Connect,
    /// Only gives a datagram socket one more peer.
    AddPeer,
}

#[derive(Debug)]
pub(super) struct Attempt {
    transport: Transport,
    destination: Destination,
    purpose: Purpose,
    number: u64,
    cookie: u64,
    caller: Caller,
    connections: Arc<Connections>,
    state: Mutex<State>,
    completed: Condvar,
}

#[derive(Debug)]
struct State {
    /// Our copy of the application's socket. Held only while connecting: it would keep the socket open.
    theirs: Option<OwnedFd>,
    /// The call that waits.
    waiting: Option<Notification>,
    /// The call that waited does not any more.
    interrupted: bool,
    /// The local half, when the application does not wait.
    relay: Option<Relay>,
    /// For the local half, when it does.
    listener: Option<Listener>,
    result: Option<Result<(), Errno>>,
}

impl State {
    fn is_wanted(&self) -> bool {
        let waits = |call: &Notification| call.is_valid();
        self.relay.is_some() || self.waiting.as_ref().is_none_or(waits)
    }
}

impl Attempt {
    pub(super) fn new(
        connections: &Arc<Connections>,
        (transport, destination, purpose): (Transport, Destination, Purpose),
        theirs: OwnedFd,
        caller: Caller,
    ) -> Result<Arc<Self>, Errno> {
        release_from_device(theirs.as_fd())?;
        Ok(Arc::new(Self {
            transport,
            destination,
            purpose,
            number: ATTEMPTS.fetch_add(1, Ordering::Relaxed),
            cookie: socket::cookie(theirs.as_fd())?,
            caller,
            connections: Arc::clone(connections),
            state: Mutex::new(State {
                theirs: Some(theirs),
                waiting: None,
                interrupted: false,
                relay: None,
                listener: None,
                result: None,
            }),
            completed: Condvar::new(),
        }))
    }

    pub(super) fn number(&self) -> u64 {
        self.number
    }

    pub(super) fn cookie(&self) -> u64 {
        self.cookie
    }

    /// Whether the application's socket does not wait, and how long it waits if it does.
    pub(super) fn manner(&self) -> (bool, Option<Duration>) {
        let state = lock(&self.state);
        state.theirs.as_ref().map_or((false, None), |theirs| {
            let timeout = socket::timeout(theirs.as_fd(), libc::SO_SNDTIMEO);
            (socket::is_nonblocking(theirs.as_fd()), timeout)
        })
    }

    /// What the host is asked with.
    pub(super) fn outgoing(self: &Arc<Self>) -> Outgoing {
        Outgoing {
            attempt: Arc::clone(self),
            completed: false,
        }
    }

    fn address(&self) -> Option<SocketAddr> {
        match &self.destination {
            Destination::Internet(address) => Some(*address),
            Destination::Unix(_) => None,
        }
    }

    /// Makes the application's socket look as if it were connecting.
    pub(super) fn detach(&self) -> Result<(), Errno> {
        self.detach_locked(&mut lock(&self.state))
    }

    fn detach_locked(&self, state: &mut State) -> Result<(), Errno> {
        let detachable = self.transport == Transport::Tcp && state.relay.is_none();
        if let Some(theirs) = &state.theirs
            && detachable
        {
            state.relay = Some(Relay::connect(theirs, self.address(), Look::Connecting)?);
        }
        Ok(())
    }

    /// `connect` of a datagram socket to a peer that it already has: what stands for the peer stays the same, so that
    /// answers which are under way arrive. `None` if it does not have it.
    pub(super) fn connect_to_peer(&self) -> Option<Result<(), Errno>> {
        let peer = self.address()?;
        let datagrams = self.connections.datagrams(self.cookie)?;
        let known = datagrams
            .peers
            .into_iter()
            .find(|known| known.address == peer)?;
        let state = lock(&self.state);
        let theirs = state.theirs.as_ref()?;
        let connected = domain_of(theirs.as_fd()).and_then(|domain| {
            socket::connect(theirs.as_fd(), &encode_internet(known.relay, domain))
        });
        if connected.is_ok() {
            self.connections.add_peer(self.cookie, known, true);
        }
        Some(connected)
    }

    /// Waits for the result, on behalf of a call. Returns when the call is answered.
    pub(super) fn wait(&self, call: Notification, timeout: Option<Duration>) {
        let deadline = timeout.map(|timeout| Instant::now() + timeout);
        let thread = call.thread();
        self.expect(call);
        self.watch(thread, deadline);
    }

    /// Has a call answered with the result: by whoever completes the attempt, or at once if that has happened.
    pub(super) fn expect(&self, call: Notification) {
        let mut state = lock(&self.state);
        if let Some(result) = state.result {
            self.connections.with(self.cookie, |socket| {
                if let Socket::Connected { told, .. } = socket {
                    *told = true;
                }
            });
            return call.finish(result.map(|()| 0));
        }
        // A caller whom a signal took away may be back already, with another call.
        if state.waiting.is_some() && !call.is_valid() {
            return;
        }
        state.waiting = Some(call);
        state.interrupted = false;
    }

    /// Opens what the local half will need while the remote half is being made.
    pub(super) fn prepare(&self) {
        let kind = match &lock(&self.state).theirs {
            Some(theirs) => Kind::of(theirs),
            None => return,
        };
        // If it does not work now, it is tried again when it is needed.
        let opened = kind.and_then(|kind| Listener::open(kind, self.address(), Look::Connected));
        let mut state = lock(&self.state);
        if state.theirs.is_some() {
            state.listener = opened.ok();
        }
    }

    /// Returns when the call that is expected is answered, and answers it itself if its thread has a signal or its time is
    /// over.
    pub(super) fn watch(&self, thread: libc::pid_t, deadline: Option<Instant>) {
        let mut state = lock(&self.state);
        let mut vigil = Vigil::new();
        // Who completes it answers the call too.
        while state.result.is_none() && state.waiting.is_some() {
            (state, _) = self
                .completed
                .wait_timeout(state, vigil.pause())
                .unwrap_or_else(PoisonError::into_inner);
            if state.result.is_some() || state.waiting.is_none() {
                return;
            }
            let signalled = has_signal(thread);
            let late = deadline.is_some_and(|deadline| Instant::now() >= deadline);
            let gone = state.waiting.as_ref().is_some_and(|call| !call.is_valid());
            if signalled || late || gone {
                return self.interrupt(&mut state, signalled, late, deadline.is_some());
            }
        }
    }

    /// The connection goes on without the caller.
    fn interrupt(&self, state: &mut State, signalled: bool, late: bool, has_timeout: bool) {
        state.interrupted = true;
        let detached = self.detach_locked(state);
        let Some(call) = state.waiting.take() else {
            return;
        };
        match detached {
            Err(errno) => call.fail(errno),
            Ok(()) if late => call.fail(Errno::EINPROGRESS),
            Ok(()) if has_timeout => call.fail(Errno::EINTR),
            Ok(()) if signalled => call.restart(),
            Ok(()) => drop(call),
        }
    }

    /// Waits for the result, on behalf of ourselves. `still_wanted` is asked now and then.
    pub(super) fn wait_for_result(&self, still_wanted: impl Fn() -> bool) -> Result<(), Errno> {
        let mut state = lock(&self.state);
        let mut vigil = Vigil::new();
        loop {
            if let Some(result) = state.result {
                return result;
            }
            if !still_wanted() {
                return Err(Errno::EINTR);
            }
            (state, _) = self
                .completed
                .wait_timeout(state, vigil.pause())
                .unwrap_or_else(PoisonError::into_inner);
        }
    }

    fn establish(&self, names: Names) -> Result<Connection, Errno> {
        let mut state = lock(&self.state);
        let made = if state.is_wanted() {
            self.make(&mut state, names)
        } else {
            Err(Errno::ECANCELED)
        };
        let result = made.as_ref().map(drop).map_err(|errno| *errno);
        if let Err(errno) = result {
            self.forget();
            tracing::debug!(%errno, "the application's socket could not be connected to us");
        }
        self.complete(&mut state, result);
        made
    }

    fn make(&self, state: &mut State, names: Names) -> Result<Connection, Errno> {
        let theirs = state.theirs.take().ok_or(Errno::ECANCELED)?;
        let peer = match (&self.destination, names.peer) {
            (Destination::Internet(_), Some(peer)) => Destination::Internet(peer),
            (destination, _) => destination.clone(),
        };
        let ends = Ends {
            local: names.local,
            peer,
        };
        if self.transport == Transport::Udp {
            return self.make_datagrams(&theirs, ends);
        }
        let mut relay = match state.relay.take() {
            Some(relay) => relay,
            None => match state.listener.take() {
                Some(listener) => Relay::connect_through(&theirs, listener, Look::Connected)?,
                None => Relay::connect(&theirs, self.address(), Look::Connected)?,
            },
        };
        // Known as connected before it is writable, or an early question would be answered wrongly.
        let connected = Socket::Connected {
            attempt: self.number,
            ends,
            told: !state.interrupted && state.waiting.as_ref().is_none_or(Notification::is_valid),
        };
        let wanted = self
            .connections
            .complete(self.cookie, self.number, Some(connected));
        if !wanted {
            return Err(Errno::ECANCELED);
        }
        relay.settle(&theirs)?;
        Ok(Connection {
            socket: relay.ours,
            registration: self.registration(None),
        })
    }

    fn make_datagrams(&self, theirs: &OwnedFd, ends: Ends) -> Result<Connection, Errno> {
        let destination = self.address().ok_or(Errno::EAFNOSUPPORT)?;
        let domain = domain_of(theirs.as_fd())?;
        let (ours, relay_bytes) = loopback(domain, libc::SOCK_DGRAM, Some(destination))?;
        let relay = internet(&relay_bytes).ok_or(Errno::EAFNOSUPPORT)?;
        let local = || {
            let address = socket::local_address(theirs.as_fd())?;
            internet(&address).ok_or(Errno::EAFNOSUPPORT)
        };
        if self.purpose == Purpose::Connect {
            socket::connect(theirs.as_fd(), &relay_bytes)?;
        } else if local()?.port() == 0 {
            // Sending would do the same.
            let mut any = local()?;
            any.set_port(0);
            socket::bind(theirs.as_fd(), &encode_internet(any, domain))?;
        }
        let mut application = local()?;
        if application.ip().is_unspecified() {
            application.set_ip(relay.ip());
        }
        let our_domain = domain_of(ours.as_fd())?;
        socket::connect(ours.as_fd(), &encode_internet(application, our_domain))?;
        let mut ends = ends;
        if let Some(local) = ends.local.as_mut().filter(|local| local.port() == 0) {
            local.set_port(application.port());
        }
        let peer = Peer {
            address: destination,
            relay,
            ends,
        };
        let connected = self.purpose == Purpose::Connect;
        self.connections.add_peer(self.cookie, peer, connected);
        Ok(Connection {
            socket: ours,
            registration: self.registration(Some(DatagramEnds {
                application,
                relay,
                is_connected: self.purpose == Purpose::Connect,
                made: Instant::now(),
            })),
        })
    }

    fn registration(&self, datagrams: Option<DatagramEnds>) -> Registration {
        Registration {
            connections: Arc::clone(&self.connections),
            cookie: self.cookie,
            caller: self.caller,
            attempt: self.number,
            datagrams,
        }
    }

    /// Returns when the application's socket is as it was before: an error is known a moment earlier.
    pub(super) fn wait_until_refused(&self) {
        drop(lock(&self.state));
    }

    /// Nothing of this attempt is left to be asked for.
    fn forget(&self) {
        self.connections.complete(self.cookie, self.number, None);
        self.connections.end(self.cookie, self.number);
    }

    /// The application uses its socket for something else.
    pub(super) fn cancel(&self) {
        let mut state = lock(&self.state);
        if state.result.is_some() {
            return;
        }
        if let (Some(relay), Some(theirs)) = (state.relay.take(), &state.theirs) {
            relay.give_back(theirs);
        }
        self.complete(&mut state, Err(Errno::ECANCELED));
    }

    fn refuse(self: &Arc<Self>, errno: Errno) {
        let mut state = lock(&self.state);
        if state.result.is_some() {
            return;
        }
        match state.relay.take() {
            Some(relay) => {
                // The error must be known before the reset makes the application ask for it.
                let failed = Socket::Failed(errno, Arc::clone(self));
                self.connections
                    .complete(self.cookie, self.number, Some(failed));
                relay.reset(state.theirs.as_ref());
            }
            None => self.forget(),
        }
        self.complete(&mut state, Err(errno));
    }

    fn complete(&self, state: &mut State, result: Result<(), Errno>) {
        state.theirs = None;
        state.listener = None;
        state.result = Some(result);
        if let Some(call) = state.waiting.take() {
            if result.is_err() && self.transport == Transport::Tcp {
                // The caller has its answer.
                let mut sockets = lock(&self.connections.sockets);
                if matches!(sockets.get(&self.cookie), Some(Socket::Failed(..))) {
                    sockets.remove(&self.cookie);
                }
            }
            call.finish(result.map(|()| 0));
        }
        self.completed.notify_all();
    }
}
