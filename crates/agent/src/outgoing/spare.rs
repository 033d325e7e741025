//! Sockets that are there before they are needed. Only a thread inside the target's network can make one, and a connection should not
//! wait until that thread has had its turn.

use std::os::fd::OwnedFd;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use rustix::net::{AddressFamily, SocketType};

use super::new_socket;
use crate::workers::Workers;

/// A few unbound sockets, of the families that were asked for last.
#[derive(Debug, Clone, Default)]
pub(crate) struct Spare(Arc<Mutex<Vec<SpareSocket>>>);

#[derive(Debug)]
struct SpareSocket {
    family: AddressFamily,
    kind: SocketType,
    socket: OwnedFd,
}

impl SpareSocket {
    fn is(&self, family: AddressFamily, kind: SocketType) -> bool {
        self.family == family && self.kind == kind
    }
}

/// How many of a kind are kept. Names are asked for in pairs, one question for each family of addresses.
fn enough(kind: SocketType) -> usize {
    match kind {
        SocketType::DGRAM => 2,
        _ => 1,
    }
}

impl Spare {
    /// A socket, if there is one.
    pub(crate) fn take(&self, family: AddressFamily, kind: SocketType) -> Option<OwnedFd> {
        let mut spare = self.lock();
        let index = spare.iter().position(|spare| spare.is(family, kind))?;
        Some(spare.swap_remove(index).socket)
    }

    /// Keeps a socket that is as if it were new, where one is missing.
    pub(crate) fn put(&self, family: AddressFamily, kind: SocketType, socket: OwnedFd) {
        let mut spare = self.lock();
        // Whoever asks for another family now will do so again.
        spare.retain(|spare| spare.kind != kind || spare.family == family);
        if missing(&spare, family, kind) > 0 {
            spare.push(SpareSocket {
                family,
                kind,
                socket,
            });
        }
    }

    /// Has what is missing made, for whoever comes after this one.
    pub(crate) fn prepare(&self, sockets: &Workers, family: AddressFamily, kind: SocketType) {
        let (spare, sockets) = (self.clone(), sockets.clone());
        // Behind what the runtime has to do for this connection.
        tokio::spawn(async move {
            tokio::task::yield_now().await;
            let missing = missing(&spare.lock(), family, kind);
            if missing == 0 {
                return;
            }
            sockets.start(move || {
                // Without a spare one, the next connection makes its own and says what is wrong.
                for socket in (0..missing).map_while(|_| new_socket(family, kind).ok()) {
                    spare.put(family, kind, socket);
                }
            });
        });
    }

    fn lock(&self) -> MutexGuard<'_, Vec<SpareSocket>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

fn missing(spare: &[SpareSocket], family: AddressFamily, kind: SocketType) -> usize {
    let there = spare.iter().filter(|spare| spare.is(family, kind)).count();
    enough(kind).saturating_sub(there)
}
