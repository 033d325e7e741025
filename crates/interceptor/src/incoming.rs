//! Incoming connections.
//!
//! The application listens with its own socket, on this machine. What arrives at the target is brought to it by the host,
//! which connects to that socket with a [`Listener`] and says who the client is. The application then sees that client as
//! its peer, wherever it asks: `accept`, `accept4`, `getpeername`, `recvfrom`; and the target's address as its own.

use std::net::SocketAddr;
use std::os::fd::OwnedFd;

use crate::Errno;
use crate::outgoing::Transport;

/// A socket with which the application is about to listen. Its call waits for [`Listening::accept`] or
/// [`Listening::refuse`]; to drop it is to refuse it.
#[derive(Debug)]
pub struct Listening {
    transport: Transport,
    address: SocketAddr,
}

impl Listening {
    /// TCP, or UDP.
    #[must_use]
    pub fn transport(&self) -> Transport {
        self.transport
    }

    /// The address as the application knows it. Its port is never 0.
    #[must_use]
    pub fn address(&self) -> SocketAddr {
        self.address
    }

    /// The application's call succeeds.
    pub fn accept(self) -> Listener {
        Listener {}
    }

    /// The application's call fails.
    pub fn refuse(self, errno: Errno) {
        let _ = errno;
    }
}

/// A socket with which the application listens. Clones are the same.
#[derive(Debug, Clone)]
pub struct Listener {}

impl Listener {
    /// Whether the application still listens.
    #[must_use]
    pub fn is_there(&self) -> bool {
        false
    }

    /// Begins a connection to the application (TCP), or opens a socket that exchanges datagrams with it (UDP). To the
    /// application, the other end is `client`, and its own end `server`. Never waits: the socket does not block, and
    /// becomes writable when the connection is there or has failed.
    pub fn deliver(&self, client: SocketAddr, server: SocketAddr) -> Result<Delivery, Errno> {
        let _ = (client, server);
        Err(Errno::ECONNREFUSED)
    }
}

/// Our end of a connection to the application. The application sees the client's address at least as long as this lives.
#[derive(Debug)]
pub struct Delivery {
    pub socket: OwnedFd,
}
