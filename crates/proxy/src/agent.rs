//! The agents of a session, and the context that all parts of the session share.
//!
//! | module | what it does |
//! |---|---|
//! | `source` | which agents a session has, given by the program that starts it |
//! | `connector` | how one agent is connected, given by the program that starts the session |
//! | `handshake` | the `Hello` call over a new link |
//! | `reconnector` | keeps one agent connected |
//! | `supervisor` | runs a reconnector for each agent, elects the stateful agent and emits events |
//! | `agents` | the connected agents, as the rest of the session uses them |
//! | `stateful` | the client of the current stateful agent |
//! | `abortable` | a pipe that can be closed from outside |

mod abortable;
mod agents;
mod connector;
mod handshake;
mod reconnector;
mod source;
mod stateful;
mod supervisor;

use std::fmt;
use std::future::Future;
use std::net::IpAddr;
use std::sync::Arc;

use interceptor::{Disposition, Errno};
use protocol::rpc::Failure;
use protocol::rpc::dns_client::DnsClient;
use protocol::rpc::files_client::FilesClient;
use tokio::runtime::Handle;

use crate::event::EventSink;
use crate::monitor::Monitor;
use crate::outgoing::RouteCache;

pub(crate) use agents::{AgentConnection, Agents};
pub use connector::{Connected, Connector};
pub(crate) use handshake::{handshake, refused};
pub use source::{AgentChange, AgentEndpoint, AgentId, AgentSource, Preference, SingleAgent};
pub(crate) use stateful::StatefulAgent;
pub use supervisor::FirstAgent;
pub(crate) use supervisor::SupervisorHandle;

/// What all parts of a session share: its agents, which may change, its runtime and where it reports to.
#[derive(Clone)]
pub(crate) struct SessionContext {
    /// The client of the current stateful agent.
    pub(crate) stateful_agent: StatefulAgent,
    /// All connected agents.
    pub(crate) agents: Agents,
    pub(crate) runtime: Handle,
    pub(crate) routes: Arc<RouteCache>,
    pub(crate) events: EventSink,
    pub(crate) monitor: Monitor,
}

impl fmt::Debug for SessionContext {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut debug = formatter.debug_struct("SessionContext");
        debug
            .field("stateful_agent", &self.stateful_agent)
            .finish_non_exhaustive()
    }
}

impl SessionContext {
    /// Uses the runtime on which it is called. The monitor is off.
    pub(crate) fn new(agents: Agents, events: EventSink) -> Self {
        Self {
            stateful_agent: agents.stateful.clone(),
            agents,
            runtime: Handle::current(),
            routes: Arc::default(),
            events,
            monitor: Monitor::off(),
        }
    }

    pub(crate) fn with_monitor(self, monitor: Monitor) -> Self {
        Self { monitor, ..self }
    }

    pub(crate) fn files(&self) -> FilesClient<StatefulAgent> {
        FilesClient::new(self.stateful_agent.clone()).max_decoding_message_size(64 << 20)
    }

    pub(crate) fn dns(&self) -> DnsClient<StatefulAgent> {
        DnsClient::new(self.stateful_agent.clone())
    }

    /// Blocks a thread of the interceptor until the response is ready.
    pub(crate) fn wait<T>(&self, response: impl Future<Output = T>) -> T {
        self.runtime.block_on(response)
    }
}

/// How a failed call ends for the application. A failure that is not the target's own is an input/output error: the
/// application knows nothing of agents.
pub(crate) fn disposition_of(status: &tonic::Status) -> Disposition {
    let failure = Failure::from_status(status);
    if failure.is_none() {
        tracing::warn!(%status, "unexpected agent response");
    }
    Disposition::Fail(errno_of(failure.as_ref()))
}

/// Decodes an address of the protocol: four or sixteen bytes.
pub(crate) fn decode_ip(bytes: &[u8]) -> Option<IpAddr> {
    let version4 = <[u8; 4]>::try_from(bytes).map(IpAddr::from);
    version4
        .or_else(|_| <[u8; 16]>::try_from(bytes).map(IpAddr::from))
        .ok()
}

pub(crate) fn errno_of(failure: Option<&Failure>) -> Errno {
    failure
        .and_then(Failure::number)
        .map_or(Errno::EIO, Errno::from_raw)
}

#[cfg(test)]
mod tests;
