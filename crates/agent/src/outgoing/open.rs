//! Connections that sessions have, so that what they may not have any more can be ended.

use std::net::SocketAddr;
use std::sync::{Arc, Mutex, PoisonError, Weak};

use rustix::net::connect_unspec;
use tokio::net::TcpStream;

use crate::grant::{Rules, Transport};

/// So many are forgotten together, at least, when they have ended.
const FEW: usize = 64;

#[derive(Debug, Default)]
pub(crate) struct OpenConnections(Mutex<Known>);

#[derive(Debug, Default)]
struct Known {
    all: Vec<(SocketAddr, Weak<TcpStream>)>,
    /// How many there are when it is time to forget those that have ended. It doubles, so that each costs the same.
    forget_at: usize,
}

impl OpenConnections {
    /// `rules` are those of now: they may have changed while the connection was made.
    pub(crate) fn add(&self, address: SocketAddr, stream: &Arc<TcpStream>, rules: &Rules) {
        let mut known = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        if known.all.len() >= known.forget_at {
            known.all.retain(|(_, stream)| stream.strong_count() > 0);
            known.forget_at = (known.all.len() * 2).max(FEW);
        }
        known.all.push((address, Arc::downgrade(stream)));
        drop(known);
        reset_if_forbidden(rules, address, stream);
    }

    pub(crate) fn reset_forbidden(&self, rules: &Rules) {
        let known = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        for (address, stream) in &known.all {
            if let Some(stream) = stream.upgrade() {
                reset_if_forbidden(rules, *address, &stream);
            }
        }
    }
}

/// The kernel resets a connection that is given no peer, and tells both ends so.
fn reset_if_forbidden(rules: &Rules, address: SocketAddr, stream: &TcpStream) {
    if rules.allow_address(Transport::Tcp, address).is_err() {
        tracing::info!(%address, "a connection is forbidden now");
        let _ = connect_unspec(stream);
    }
}
