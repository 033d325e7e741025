//! The application's listeners, as an abstraction over the interceptor.

use std::any::Any;
use std::fmt;
use std::net::SocketAddr;
use std::os::fd::OwnedFd;
use std::sync::Arc;

use interceptor::{AppConnection, Errno, Listener, PendingListener, Transport};

/// A listening socket of the application, to which connections can be delivered.
pub(super) trait AppListener: fmt::Debug + Send + Sync {
    fn is_listening(&self) -> bool;

    /// Starts a connection to the application. The socket is nonblocking; the guard must live as long as the connection.
    fn connect(&self, client: SocketAddr, server: SocketAddr) -> Result<AppSocket, Errno>;
}

/// A socket that is connected to the application, and the guard that must live as long.
pub(super) struct AppSocket {
    pub(super) socket: OwnedFd,
    pub(super) guard: Box<dyn Any + Send + Sync>,
}

impl AppListener for Listener {
    fn is_listening(&self) -> bool {
        Listener::is_listening(self)
    }

    fn connect(&self, client: SocketAddr, server: SocketAddr) -> Result<AppSocket, Errno> {
        let AppConnection {
            socket,
            registration,
        } = Listener::connect(self, client, server)?;
        let guard = Box::new(registration);
        Ok(AppSocket { socket, guard })
    }
}

/// Completes the application's call: fails it with an error, or lets it succeed and returns the listener.
type Complete = dyn FnOnce(Option<Errno>) -> Option<Arc<dyn AppListener>> + Send;

/// A `listen` call of the application that is not completed yet.
pub(super) struct PendingListen {
    pub(super) is_udp: bool,
    pub(super) address: SocketAddr,
    /// The cookie of the socket, which identifies it in the kernel's events and tables.
    pub(super) cookie: u64,
    complete: Box<Complete>,
}

impl PendingListen {
    pub(super) fn new(
        is_udp: bool,
        address: SocketAddr,
        cookie: u64,
        complete: impl FnOnce(Option<Errno>) -> Option<Arc<dyn AppListener>> + Send + 'static,
    ) -> Self {
        let complete = Box::new(complete);
        Self {
            is_udp,
            address,
            cookie,
            complete,
        }
    }

    /// Lets the call succeed.
    pub(super) fn accept(self) -> Option<Arc<dyn AppListener>> {
        (self.complete)(None)
    }

    /// Makes the call fail.
    pub(super) fn refuse(self, errno: Errno) {
        (self.complete)(Some(errno));
    }
}

impl From<PendingListener> for PendingListen {
    fn from(listener: PendingListener) -> Self {
        let is_udp = listener.transport() == Transport::Udp;
        let (address, cookie) = (listener.address(), listener.cookie());
        Self::new(is_udp, address, cookie, |errno| match errno {
            None => Some(Arc::new(listener.accept())),
            Some(errno) => {
                listener.refuse(errno);
                None
            }
        })
    }
}

impl fmt::Debug for PendingListen {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut debug = formatter.debug_struct("PendingListen");
        debug
            .field("address", &self.address)
            .finish_non_exhaustive()
    }
}
