//! The application's listeners, as this module sees them.

use std::any::Any;
use std::fmt;
use std::net::SocketAddr;
use std::os::fd::OwnedFd;
use std::sync::Arc;

use interceptor::{Delivery, Errno, Listener, Listening, Transport};

/// Where a connection is handed to the application.
pub(super) trait Door: fmt::Debug + Send + Sync {
    fn is_there(&self) -> bool;

    /// Begins a connection. The socket does not block; what comes with it must be there as long as the connection.
    fn deliver(&self, client: SocketAddr, server: SocketAddr) -> Result<Delivered, Errno>;
}

pub(super) struct Delivered {
    pub(super) socket: OwnedFd,
    pub(super) kept: Box<dyn Any + Send + Sync>,
}

impl Door for Listener {
    fn is_there(&self) -> bool {
        Listener::is_there(self)
    }

    fn deliver(&self, client: SocketAddr, server: SocketAddr) -> Result<Delivered, Errno> {
        let Delivery {
            socket,
            registration,
        } = Listener::deliver(self, client, server)?;
        let kept = Box::new(registration);
        Ok(Delivered { socket, kept })
    }
}

/// Ends the application's call, with an error or with where connections are handed over.
type Complete = dyn FnOnce(Option<Errno>) -> Option<Arc<dyn Door>> + Send;

/// An application that waits for its `listen`.
pub(super) struct Asking {
    pub(super) is_udp: bool,
    pub(super) address: SocketAddr,
    complete: Box<Complete>,
}

impl Asking {
    pub(super) fn new(
        is_udp: bool,
        address: SocketAddr,
        complete: impl FnOnce(Option<Errno>) -> Option<Arc<dyn Door>> + Send + 'static,
    ) -> Self {
        let complete = Box::new(complete);
        Self {
            is_udp,
            address,
            complete,
        }
    }

    /// The call succeeds.
    pub(super) fn accept(self) -> Option<Arc<dyn Door>> {
        (self.complete)(None)
    }

    /// The call fails.
    pub(super) fn refuse(self, errno: Errno) {
        (self.complete)(Some(errno));
    }
}

impl From<Listening> for Asking {
    fn from(listening: Listening) -> Self {
        let is_udp = listening.transport() == Transport::Udp;
        Self::new(is_udp, listening.address(), |refused| match refused {
            None => Some(Arc::new(listening.accept())),
            Some(errno) => {
                listening.refuse(errno);
                None
            }
        })
    }
}

impl fmt::Debug for Asking {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut debug = formatter.debug_struct("Asking");
        debug
            .field("address", &self.address)
            .finish_non_exhaustive()
    }
}
