//! A connection that is there: our end of it, and what the application is told about it as long as it lives.

use std::net::SocketAddr;
use std::os::fd::{AsFd, OwnedFd, RawFd};
use std::sync::Arc;
use std::time::Instant;

use super::address::encode_internet;
use super::relay::domain_of;
use super::{Connections, own};
use crate::Errno;
use crate::notification::Notification;
use crate::process;
use crate::sys::socket;

/// Our end of the application's connection.
///
/// A stream behaves as such: the end of input says that the application shut its side down or closed. For
/// [`Transport::Udp`] each read is a datagram for the destination and each write one from it.
///
/// Keep it until both directions have ended, because with it goes what the application sees as the connection's names.
#[derive(Debug)]
pub struct Connection {
    pub(super) socket: OwnedFd,
    pub(super) registration: Registration,
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
    pub(super) connections: Arc<Connections>,
    pub(super) cookie: u64,
    pub(super) caller: Caller,
    pub(super) attempt: u64,
    pub(super) datagrams: Option<DatagramEnds>,
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
pub(super) struct DatagramEnds {
    pub(super) application: SocketAddr,
    pub(super) relay: SocketAddr,
    pub(super) is_connected: bool,
    pub(super) made: Instant,
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
