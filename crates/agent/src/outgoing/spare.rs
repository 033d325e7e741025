//! A socket that is there before it is needed. Only a thread inside the target's network can make one, and a connection should not
//! wait until that thread has had its turn.

use std::os::fd::OwnedFd;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use rustix::net::{AddressFamily, SocketType};

use super::new_socket;
use crate::workers::Workers;

/// At most one socket for streams of the family that was asked for last.
#[derive(Debug, Clone, Default)]
pub(crate) struct Spare(Arc<Mutex<Option<(AddressFamily, OwnedFd)>>>);

impl Spare {
    /// The socket, if there is one of this family.
    pub(crate) fn take(&self, family: AddressFamily) -> Option<OwnedFd> {
        let mut spare = self.lock();
        spare
            .take_if(|(has, _)| *has == family)
            .map(|(_, socket)| socket)
    }

    /// Has the next one made, for whoever comes after this connection.
    pub(crate) fn prepare(&self, sockets: &Workers, family: AddressFamily) {
        let (spare, sockets) = (self.clone(), sockets.clone());
        // Behind what the runtime has to do for this connection.
        tokio::spawn(async move {
            tokio::task::yield_now().await;
            if spare.lock().as_ref().is_some_and(|(has, _)| *has == family) {
                return;
            }
            sockets.start(move || {
                // Without a spare one, the next connection makes its own and says what is wrong.
                if let Ok(socket) = new_socket(family, SocketType::STREAM) {
                    *spare.lock() = Some((family, socket));
                }
            });
        });
    }

    fn lock(&self) -> MutexGuard<'_, Option<(AddressFamily, OwnedFd)>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
