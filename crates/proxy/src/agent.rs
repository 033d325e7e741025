//! Asking the agent, from threads that may wait.

mod agents;
mod connection;
mod cut;
mod greet;
mod keeper;
mod reach;
mod source;
mod watcher;

use std::fmt;
use std::future::Future;
use std::net::IpAddr;
use std::sync::Arc;

use interceptor::{Errno, Instead};
use protocol::rpc::Failure;
use protocol::rpc::dns_client::DnsClient;
use protocol::rpc::files_client::FilesClient;
use tokio::runtime::Handle;

use crate::event::Tell;
use crate::monitor::Monitor;
use crate::outgoing::Routes;

pub(crate) use agents::{Agents, Member};
pub(crate) use connection::Connection;
pub(crate) use greet::{greet, refused};
pub use keeper::FirstAgent;
pub(crate) use keeper::Keeping;
pub use reach::{Reach, Reached};
pub use source::{AgentId, Change, One, Place, Preference, Source};

/// The agents, shared by everything in a session. Those behind it may change.
#[derive(Clone)]
pub(crate) struct Agent {
    /// The one that is asked alone.
    pub(crate) client: Connection,
    /// All of them.
    pub(crate) all: Agents,
    pub(crate) runtime: Handle,
    pub(crate) routes: Arc<Routes>,
    pub(crate) tell: Tell,
    pub(crate) monitor: Monitor,
}

impl fmt::Debug for Agent {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut debug = formatter.debug_struct("Agent");
        debug.field("client", &self.client).finish_non_exhaustive()
    }
}

impl Agent {
    /// For the runtime on which it is called.
    pub(crate) fn new(all: Agents, tell: Tell) -> Self {
        Self {
            client: all.connection.clone(),
            all,
            runtime: Handle::current(),
            routes: Arc::default(),
            tell,
            monitor: Monitor::off(),
        }
    }

    /// The same, for whoever looks.
    pub(crate) fn watched(self, monitor: Monitor) -> Self {
        Self { monitor, ..self }
    }

    pub(crate) fn files(&self) -> FilesClient<Connection> {
        FilesClient::new(self.client.clone()).max_decoding_message_size(64 << 20)
    }

    pub(crate) fn dns(&self) -> DnsClient<Connection> {
        DnsClient::new(self.client.clone())
    }

    /// Waits for an answer, on a thread of the interceptor.
    pub(crate) fn wait<T>(&self, question: impl Future<Output = T>) -> T {
        self.runtime.block_on(question)
    }
}

/// What the application sees of a failed call. A failure that is not the target's own is an input/output error: the
/// application cannot know of agents.
pub(crate) fn instead(status: &tonic::Status) -> Instead {
    let failure = Failure::from_status(status);
    if failure.is_none() {
        tracing::warn!(%status, "the agent did not answer as expected");
    }
    Instead::Fail(errno(failure.as_ref()))
}

/// An address as the protocol has it: four or sixteen bytes.
pub(crate) fn address(bytes: &[u8]) -> Option<IpAddr> {
    let version4 = <[u8; 4]>::try_from(bytes).map(IpAddr::from);
    version4
        .or_else(|_| <[u8; 16]>::try_from(bytes).map(IpAddr::from))
        .ok()
}

pub(crate) fn errno(failure: Option<&Failure>) -> Errno {
    failure
        .and_then(Failure::number)
        .map_or(Errno::EIO, Errno::from_raw)
}

#[cfg(test)]
mod tests;
