//! The open TCP connections of sessions, so that those that become forbidden can be reset.

use std::net::SocketAddr;
use std::sync::{Arc, Weak};

use parking_lot::Mutex;
use rustix::net::connect_unspec;
use tokio::net::TcpStream;

use crate::grant::{Rules, Transport};

/// The minimum size of the table before ended connections are removed.
const MIN_CLEANUP_SIZE: usize = 64;

#[derive(Debug, Default)]
pub(crate) struct OpenConnections(Mutex<ConnectionTable>);

#[derive(Debug, Default)]
struct ConnectionTable {
    all: Vec<(SocketAddr, Weak<TcpStream>)>,
    /// The size at which ended connections are removed. It is doubled each time, so that the cost per connection is
    /// constant.
    cleanup_size: usize,
}

impl OpenConnections {
    /// Adds a connection, and resets it if the current `rules` forbid it: they may have changed while it was established.
    pub(crate) fn add(&self, address: SocketAddr, stream: &Arc<TcpStream>, rules: &Rules) {
        let mut table = self.0.lock();
        if table.all.len() >= table.cleanup_size {
            table.all.retain(|(_, stream)| stream.strong_count() > 0);
            table.cleanup_size = (table.all.len() * 2).max(MIN_CLEANUP_SIZE);
        }
        table.all.push((address, Arc::downgrade(stream)));
        drop(table);
        reset_if_forbidden(rules, address, stream);
    }

    pub(crate) fn reset_forbidden(&self, rules: &Rules) {
        let table = self.0.lock();
        for (address, stream) in &table.all {
            if let Some(stream) = stream.upgrade() {
                reset_if_forbidden(rules, *address, &stream);
            }
        }
    }
}

/// Disconnecting the socket resets the connection at both ends.
fn reset_if_forbidden(rules: &Rules, address: SocketAddr, stream: &TcpStream) {
    if rules.allow_address(Transport::Tcp, address).is_err() {
        tracing::info!(%address, "forbidden connection reset");
        let _ = connect_unspec(stream);
    }
}
