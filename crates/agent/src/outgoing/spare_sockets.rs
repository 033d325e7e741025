//! Sockets that are created in advance. Only a thread in the target's network can create them, and a connection should not
//! wait for that thread.

use std::os::fd::OwnedFd;
use std::sync::Arc;

use parking_lot::Mutex;
use rustix::net::{AddressFamily, SocketType};

use super::new_socket;
use crate::workers::Workers;

/// A few unbound sockets of the address families that were requested last.
#[derive(Debug, Clone, Default)]
pub(crate) struct SpareSockets(Arc<Mutex<Vec<SpareSocket>>>);

#[derive(Debug)]
struct SpareSocket {
    family: AddressFamily,
    kind: SocketType,
    socket: OwnedFd,
}

impl SpareSocket {
    fn matches(&self, family: AddressFamily, kind: SocketType) -> bool {
        self.family == family && self.kind == kind
    }
}

/// How many sockets of a type are kept. DNS lookups need two datagram sockets, one for each address family.
fn spare_count(kind: SocketType) -> usize {
    match kind {
        SocketType::DGRAM => 2,
        _ => 1,
    }
}

impl SpareSockets {
    /// Takes a spare socket, if there is one.
    pub(crate) fn take(&self, family: AddressFamily, kind: SocketType) -> Option<OwnedFd> {
        let mut spare = self.0.lock();
        let index = spare.iter().position(|spare| spare.matches(family, kind))?;
        Some(spare.swap_remove(index).socket)
    }

    /// Keeps an unused socket if one is missing.
    pub(crate) fn put(&self, family: AddressFamily, kind: SocketType, socket: OwnedFd) {
        let mut spare = self.0.lock();
        // Sockets of the other family are dropped: the family that was requested last is likely to be requested again.
        spare.retain(|spare| spare.kind != kind || spare.family == family);
        if missing(&spare, family, kind) > 0 {
            spare.push(SpareSocket {
                family,
                kind,
                socket,
            });
        }
    }

    /// Creates missing spare sockets in the background.
    pub(crate) fn prepare(&self, sockets: &Workers, family: AddressFamily, kind: SocketType) {
        let (spare, sockets) = (self.clone(), sockets.clone());
        // Yields first, so that the current connection takes precedence.
        tokio::spawn(async move {
            tokio::task::yield_now().await;
            let missing = missing(&spare.0.lock(), family, kind);
            if missing == 0 {
                return;
            }
            sockets.start(move || {
                // On failure, the next connection creates its own socket and reports the error.
                for socket in (0..missing).map_while(|_| new_socket(family, kind).ok()) {
                    spare.put(family, kind, socket);
                }
            });
        });
    }
}

fn missing(spare: &[SpareSocket], family: AddressFamily, kind: SocketType) -> usize {
    let present = spare
        .iter()
        .filter(|spare| spare.matches(family, kind))
        .count();
    spare_count(kind).saturating_sub(present)
}
