//! A socket made in advance, so that connecting does not wait for the thread that makes them.

use std::os::fd::OwnedFd;
use std::sync::{Arc, Mutex, PoisonError};

use rustix::net::{AddressFamily, SocketType};

use super::make_socket;
use crate::Result;
use crate::connection::Connection;

/// One TCP socket for each family, in the target's network, bound to nothing.
#[derive(Debug, Default)]
pub(crate) struct SpareSockets {
    ipv4: Mutex<Option<OwnedFd>>,
    ipv6: Mutex<Option<OwnedFd>>,
}

impl SpareSockets {
    fn place(&self, family: AddressFamily) -> &Mutex<Option<OwnedFd>> {
        if family == AddressFamily::INET6 {
            &self.ipv6
        } else {
            &self.ipv4
        }
    }

    fn replace(&self, family: AddressFamily, socket: Option<OwnedFd>) -> Option<OwnedFd> {
        let mut place = self
            .place(family)
            .lock()
            .unwrap_or_else(PoisonError::into_inner);
        std::mem::replace(&mut *place, socket)
    }
}

/// Takes the spare socket, or makes one, and sees that there is one for the next.
pub(super) async fn take(connection: &Arc<Connection>, family: AddressFamily) -> Result<OwnedFd> {
    let spare = connection.spare_sockets.replace(family, None);
    let refilled = Arc::clone(connection);
    tokio::spawn(async move {
        // Without a spare one, the next is made when it is needed, and says what is wrong.
        let made = make_socket(&refilled.agent, family, SocketType::STREAM, None).await;
        refilled.spare_sockets.replace(family, made.ok());
    });
    match spare {
        Some(socket) => Ok(socket),
        None => make_socket(&connection.agent, family, SocketType::STREAM, None).await,
    }
}
