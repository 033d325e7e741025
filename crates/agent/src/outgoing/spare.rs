//! Sockets made in advance, so that connecting does not wait for the thread that makes them.

use std::os::fd::OwnedFd;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use rustix::net::{AddressFamily, SocketType};

use super::make_socket;
use crate::Result;
use crate::connection::Connection;

/// As many are ready for each family.
const READY: usize = 4;
/// New ones are made when those who connect now are done.
const LATER: Duration = Duration::from_millis(2);

/// TCP sockets in the target's network, bound to nothing.
#[derive(Debug, Default)]
pub(crate) struct SpareSockets {
    ipv4: Mutex<Spare>,
    ipv6: Mutex<Spare>,
}

#[derive(Debug, Default)]
struct Spare {
    sockets: Vec<OwnedFd>,
    /// Somebody makes new ones.
    refilling: bool,
}

impl SpareSockets {
    fn of(&self, family: AddressFamily) -> MutexGuard<'_, Spare> {
        let spare = if family == AddressFamily::INET6 {
            &self.ipv6
        } else {
            &self.ipv4
        };
        spare.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Takes a spare socket, or makes one, and sees that there are some for those who come later.
pub(super) async fn take(connection: &Arc<Connection>, family: AddressFamily) -> Result<OwnedFd> {
    let (socket, refill) = {
        let mut spare = connection.spare_sockets.of(family);
        let socket = spare.sockets.pop();
        (socket, !std::mem::replace(&mut spare.refilling, true))
    };
    if refill {
        tokio::spawn(refill_later(Arc::clone(connection), family));
    }
    match socket {
        Some(socket) => Ok(socket),
        None => make_socket(&connection.agent, family, SocketType::STREAM, None).await,
    }
}

async fn refill_later(connection: Arc<Connection>, family: AddressFamily) {
    tokio::time::sleep(LATER).await;
    while connection.spare_sockets.of(family).sockets.len() < READY {
        // Without spare ones, the next is made when it is needed, and says what is wrong.
        let made = make_socket(&connection.agent, family, SocketType::STREAM, None).await;
        let Ok(socket) = made else { break };
        connection.spare_sockets.of(family).sockets.push(socket);
    }
    connection.spare_sockets.of(family).refilling = false;
}
