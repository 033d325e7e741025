//! The life of a connection from the application's request until it is established.

use std::net::SocketAddr;
use std::os::fd::{AsFd as _, OwnedFd};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use parking_lot::{Condvar, Mutex};

use super::address::{encode_internet, internet};
use super::connection::{Caller, DatagramEnds, OutgoingConnection, OutgoingRegistration};
use super::relay::{
    InitialState, Relay, RelayListener, SocketKind, domain_of, loopback, release_from_device,
};
use super::{
    ConnectionEnds, Connections, Destination, Peer, SocketAddresses, SocketState, Transport,
};
use crate::Errno;
use crate::notification::Notification;
use crate::process::{PollInterval, has_signal};
use crate::sys::socket;

/// Attempts are numbered, because a socket may be used for several attempts in sequence.
static ATTEMPTS: AtomicU64 = AtomicU64::new(0);

/// A connection that the application requests. It is completed by [`establish`](Self::establish) or
/// [`refuse`](Self::refuse); dropping it refuses it with `ECONNABORTED`.
#[derive(Debug)]
pub struct PendingConnection {
    attempt: Arc<Attempt>,
    completed: bool,
}

impl PendingConnection {
    #[must_use]
    pub fn transport(&self) -> Transport {
        self.attempt.transport
    }

    #[must_use]
    pub fn destination(&self) -> &Destination {
        &self.attempt.destination
    }

    /// Whether the application still needs the connection: false when its process has ended.
    #[must_use]
    pub fn is_pending(&self) -> bool {
        self.attempt.state.lock().is_pending()
    }

    /// The remote side is connected. The application's call succeeds, or its socket becomes writable, and the data that
    /// it writes can be read from the returned socket. Takes a fraction of a millisecond.
    ///
    /// # Errors
    /// When the application's socket cannot be connected to ours, or the application no longer waits.
    pub fn establish(mut self, addresses: SocketAddresses) -> Result<OutgoingConnection, Errno> {
        self.completed = true;
        self.attempt.establish(addresses)
    }

    /// The remote side cannot be connected. The application sees this error, now or when it queries `SO_ERROR`.
    pub fn refuse(mut self, errno: Errno) {
        self.completed = true;
        self.attempt.refuse(errno);
    }
}

impl Drop for PendingConnection {
    fn drop(&mut self) {
        if !self.completed {
            self.attempt.refuse(Errno::ECONNABORTED);
        }
    }
}

/// The purpose of an attempt.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Purpose {
    Connect,
    /// Adds a peer to a datagram socket without connecting it.
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
    /// Our copy of the application's socket. Held only while connecting, because it keeps the socket open.
    theirs: Option<OwnedFd>,
    /// The suspended call.
    waiting: Option<Notification>,
    /// The suspended call was interrupted.
    interrupted: bool,
    /// The local connection, if the application does not wait.
    relay: Option<Relay>,
    /// The listener for the local connection, if the application waits.
    listener: Option<RelayListener>,
    result: Option<Result<(), Errno>>,
}

impl State {
    fn is_pending(&self) -> bool {
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

    /// Whether the application's socket is nonblocking, and its timeout if it is not.
    pub(super) fn blocking_mode(&self) -> (bool, Option<Duration>) {
        let state = self.state.lock();
        state.theirs.as_ref().map_or((false, None), |theirs| {
            let timeout = socket::timeout(theirs.as_fd(), libc::SO_SNDTIMEO);
            (socket::is_nonblocking(theirs.as_fd()), timeout)
        })
    }

    /// The handle that is passed to the host.
    pub(super) fn pending_connection(self: &Arc<Self>) -> PendingConnection {
        PendingConnection {
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
        self.detach_locked(&mut self.state.lock())
    }

    fn detach_locked(&self, state: &mut State) -> Result<(), Errno> {
        let detachable = self.transport == Transport::Tcp && state.relay.is_none();
        if let Some(theirs) = &state.theirs
            && detachable
        {
            state.relay = Some(Relay::connect(
                theirs,
                self.address(),
                InitialState::Connecting,
            )?);
        }
        Ok(())
    }

    /// Handles `connect` of a datagram socket to a peer that it already has: the relay socket stays the same, so that
    /// responses in flight are received. Returns `None` if there is no such peer.
    pub(super) fn connect_to_peer(&self) -> Option<Result<(), Errno>> {
        let peer = self.address()?;
        let datagrams = self.connections.datagrams(self.cookie)?;
        let known = datagrams
            .peers
            .into_iter()
            .find(|known| known.address == peer)?;
        let state = self.state.lock();
        let theirs = state.theirs.as_ref()?;
        let connected = domain_of(theirs.as_fd()).and_then(|domain| {
            socket::connect(theirs.as_fd(), &encode_internet(known.relay, domain))
        });
        if connected.is_ok() {
            self.connections.add_peer(self.cookie, known, true);
        }
        Some(connected)
    }

    /// Waits for the result on behalf of a call. Returns when the call is completed.
    pub(super) fn wait(&self, call: Notification, timeout: Option<Duration>) {
        let deadline = timeout.map(|timeout| Instant::now() + timeout);
        let thread = call.thread();
        self.set_waiting_call(call);
        self.watch_caller(thread, deadline);
    }

    /// Sets the call that is completed with the result: when the attempt is completed, or immediately if it already is.
    pub(super) fn set_waiting_call(&self, call: Notification) {
        let mut state = self.state.lock();
        if let Some(result) = state.result {
            self.connections.with(self.cookie, |socket| {
                if let SocketState::Connected { reported, .. } = socket {
                    *reported = true;
                }
            });
            return call.finish(result.map(|()| 0));
        }
        // A caller that was interrupted by a signal may have already made another call.
        if state.waiting.is_some() && !call.is_valid() {
            return;
        }
        state.waiting = Some(call);
        state.interrupted = false;
    }

    /// Opens the listener for the local connection while the host establishes the remote one.
    pub(super) fn prepare_listener(&self) {
        let kind = match &self.state.lock().theirs {
            Some(theirs) => SocketKind::of(theirs),
            None => return,
        };
        // After a failure it is opened again when it is needed.
        let opened = kind
            .and_then(|kind| RelayListener::open(kind, self.address(), InitialState::Connected));
        let mut state = self.state.lock();
        if state.theirs.is_some() {
            state.listener = opened.ok();
        }
    }

    /// Returns when the waiting call is completed. Completes it if its thread has a pending signal or the deadline has
    /// passed.
    pub(super) fn watch_caller(&self, thread: libc::pid_t, deadline: Option<Instant>) {
        let mut state = self.state.lock();
        let mut poll_interval = PollInterval::new();
        // The thread that completes the attempt completes the call as well.
        while state.result.is_none() && state.waiting.is_some() {
            self.completed
                .wait_for(&mut state, poll_interval.next_delay());
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

    /// Completes the call of an interrupted caller; the connection attempt continues.
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

    /// Waits for the result without a call to complete. `is_needed` is polled.
    pub(super) fn wait_for_result(&self, is_needed: impl Fn() -> bool) -> Result<(), Errno> {
        let mut state = self.state.lock();
        let mut poll_interval = PollInterval::new();
        loop {
            if let Some(result) = state.result {
                return result;
            }
            if !is_needed() {
                return Err(Errno::EINTR);
            }
            self.completed
                .wait_for(&mut state, poll_interval.next_delay());
        }
    }

    fn establish(&self, addresses: SocketAddresses) -> Result<OutgoingConnection, Errno> {
        let mut state = self.state.lock();
        let connection = if state.is_pending() {
            self.connect_application(&mut state, addresses)
        } else {
            Err(Errno::ECANCELED)
        };
        let result = connection.as_ref().map(drop).map_err(|errno| *errno);
        if let Err(errno) = result {
            self.forget();
            tracing::debug!(%errno, "connecting the application socket failed");
        }
        self.complete(&mut state, result);
        connection
    }

    fn connect_application(
        &self,
        state: &mut State,
        addresses: SocketAddresses,
    ) -> Result<OutgoingConnection, Errno> {
        let theirs = state.theirs.take().ok_or(Errno::ECANCELED)?;
        let peer = match (&self.destination, addresses.peer) {
            (Destination::Internet(_), Some(peer)) => Destination::Internet(peer),
            (destination, _) => destination.clone(),
        };
        let ends = ConnectionEnds {
            local: addresses.local,
            peer,
        };
        if self.transport == Transport::Udp {
            return self.connect_datagrams(&theirs, ends);
        }
        let mut relay = match state.relay.take() {
            Some(relay) => relay,
            None => match state.listener.take() {
                Some(listener) => {
                    Relay::connect_through(&theirs, listener, InitialState::Connected)?
                }
                None => Relay::connect(&theirs, self.address(), InitialState::Connected)?,
            },
        };
        // Recorded as connected before the socket becomes writable, or an early query would get the wrong result.
        let connected = SocketState::Connected {
            attempt: self.number,
            ends,
            reported: !state.interrupted
                && state.waiting.as_ref().is_none_or(Notification::is_valid),
        };
        let is_current = self
            .connections
            .complete(self.cookie, self.number, Some(connected));
        if !is_current {
            return Err(Errno::ECANCELED);
        }
        relay.settle(&theirs)?;
        Ok(OutgoingConnection {
            socket: relay.ours,
            registration: self.registration(None),
        })
    }

    fn connect_datagrams(
        &self,
        theirs: &OwnedFd,
        ends: ConnectionEnds,
    ) -> Result<OutgoingConnection, Errno> {
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
            // Sending would bind it implicitly.
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
        Ok(OutgoingConnection {
            socket: ours,
            registration: self.registration(Some(DatagramEnds {
                application,
                relay,
                is_connected: self.purpose == Purpose::Connect,
                made: Instant::now(),
            })),
        })
    }

    fn registration(&self, datagrams: Option<DatagramEnds>) -> OutgoingRegistration {
        OutgoingRegistration {
            connections: Arc::clone(&self.connections),
            cookie: self.cookie,
            caller: self.caller,
            attempt: self.number,
            datagrams,
        }
    }

    /// Returns when the application's socket is restored: the error is recorded a moment before that.
    pub(super) fn wait_until_refused(&self) {
        drop(self.state.lock());
    }

    /// Removes the state of this attempt.
    fn forget(&self) {
        self.connections.complete(self.cookie, self.number, None);
        self.connections.end(self.cookie, self.number);
    }

    /// The application uses its socket for something else.
    pub(super) fn cancel(&self) {
        let mut state = self.state.lock();
        if state.result.is_some() {
            return;
        }
        if let (Some(relay), Some(theirs)) = (state.relay.take(), &state.theirs) {
            relay.restore_send_buffer(theirs);
        }
        self.complete(&mut state, Err(Errno::ECANCELED));
    }

    fn refuse(self: &Arc<Self>, errno: Errno) {
        let mut state = self.state.lock();
        if state.result.is_some() {
            return;
        }
        match state.relay.take() {
            Some(relay) => {
                // The error must be recorded before the reset makes the application query it.
                let failed = SocketState::Failed(errno, Arc::clone(self));
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
                // The caller gets the error directly.
                let mut sockets = self.connections.sockets.lock();
                if matches!(sockets.get(&self.cookie), Some(SocketState::Failed(..))) {
                    sockets.remove(&self.cookie);
                }
            }
            call.finish(result.map(|()| 0));
        }
        self.completed.notify_all();
    }
}
