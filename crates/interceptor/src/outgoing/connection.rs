//! An established connection: our end of it, and the state that is kept for the application while it exists.

use std::net::SocketAddr;
use std::os::fd::{AsFd, OwnedFd, RawFd};
use std::sync::Arc;
use std::time::Instant;

use super::address::encode_internet;
use super::relay::domain_of;
use super::{Connections, own_sockets};
use crate::Errno;
use crate::notification::Notification;
use crate::process;
use crate::sys::socket;

/// Our end of an application's connection.
///
/// It behaves like a stream: end of input means that the application shut down its side or closed the socket. For
/// [`Transport::Udp`] each read is a datagram for the destination and each write one from it.
///
/// Keep it until both directions have ended, because the addresses that the application sees are removed with it.
#[derive(Debug)]
pub struct OutgoingConnection {
    pub(super) socket: OwnedFd,
    pub(super) registration: OutgoingRegistration,
}

impl OutgoingConnection {
    /// The socket, and the registration that must be kept as long as the connection exists.
    #[must_use]
    pub fn into_parts(self) -> (OwnedFd, OutgoingRegistration) {
        (self.socket, self.registration)
    }
}

impl AsFd for OutgoingConnection {
    fn as_fd(&self) -> std::os::fd::BorrowedFd<'_> {
        self.socket.as_fd()
    }
}

/// Keeps the addresses of a connection registered; dropping it removes them.
#[derive(Debug)]
pub struct OutgoingRegistration {
    pub(super) connections: Arc<Connections>,
    pub(super) cookie: u64,
    pub(super) caller: Caller,
    pub(super) attempt: u64,
    pub(super) datagrams: Option<DatagramEnds>,
}

/// The thread that used a socket, and its descriptor number there. Both may have changed, so the socket found there
/// must be verified.
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

/// Both ends of the local part of a datagram association.
#[derive(Debug, Clone, Copy)]
pub(super) struct DatagramEnds {
    pub(super) application: SocketAddr,
    pub(super) relay: SocketAddr,
    pub(super) is_connected: bool,
    pub(super) made: Instant,
}

impl OutgoingRegistration {
    /// Whether the application's socket is still open and still uses this peer. Datagram sockets do not signal that
    /// they are closed; this queries the kernel, so call it only occasionally. Always true for streams.
    #[must_use]
    pub fn is_open(&self) -> bool {
        let Some(ends) = self.datagrams else {
            return true;
        };
        // It may have been connected to another peer.
        self.is_peer() && own_sockets::is_datagram_port_open(ends.application.port(), ends.made)
    }

    /// Corrects the local address that the application sees, if it was not known when the connection was established.
    /// Only for connected datagram sockets.
    pub fn set_local(&self, local: SocketAddr) {
        if self.datagrams.is_some_and(|ends| ends.is_connected) && self.is_peer() {
            self.connections.set_local(self.cookie, local);
        }
    }

    /// Whether the application still uses this peer, according to our state.
    fn is_peer(&self) -> bool {
        let known = self.connections.datagrams(self.cookie);
        known.zip(self.datagrams).is_some_and(|(known, ends)| {
            let mut peers = known.peers.iter();
            peers.any(|peer| peer.relay == ends.relay)
        })
    }

    /// Reports a refused datagram to the application like the kernel does: the next call on its connected datagram
    /// socket fails with `ECONNREFUSED`. `ours` is our end. Does nothing for other sockets.
    ///
    /// Only the kernel can set the error of a socket, and does so when a packet of that socket is refused. So we send a
    /// packet from the application's socket while ours is connected elsewhere.
    ///
    /// # Errors
    /// When the application's socket is no longer at its descriptor number.
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
            // The socket already had an error.
            Ok(_) | Err(Errno::ECONNREFUSED) => Ok(()),
            Err(errno) => Err(errno),
        }
    }
}

impl Drop for OutgoingRegistration {
    fn drop(&mut self) {
        match self.datagrams {
            None => self.connections.end(self.cookie, self.attempt),
            Some(ends) => self.connections.remove_peer(self.cookie, ends.relay),
        }
    }
}
