//! The end of a port: its subscriptions end at all agents, and what they still report is emitted.

use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use protocol::rpc::UnsubscribeRequest;
use protocol::rpc::incoming_client::IncomingClient;
use tokio::task::JoinSet;
use tokio::time::timeout;

use super::ListeningPort;
use crate::event::{Event, IncomingEvent};
use crate::incoming::{PortKey, Shared};

/// How long the end of a port waits for agents. An agent that is unreachable ends the subscription when it is reconnected.
pub(crate) const UNSUBSCRIBE_TIMEOUT: Duration = Duration::from_secs(2);

/// How long agents may report requests that were in progress when a port was released.
const DRAIN_TIMEOUT: Duration = Duration::from_secs(1);

impl ListeningPort {
    /// Ends the subscriptions, and waits until no agent accepts connections for them any more.
    pub(super) async fn unsubscribe(self, shared: Arc<Shared>, key: PortKey) {
        self.is_ending.store(true, Ordering::Relaxed);
        let mut calls = JoinSet::new();
        for at_agent in self.agents.values() {
            let Some(active) = at_agent.active() else {
                // A call of Subscribe that has not succeeded yet.
                at_agent.task.abort();
                continue;
            };
            let mut client = IncomingClient::new(at_agent.connection.client.clone());
            let request = UnsubscribeRequest {
                subscription: active.id,
            };
            calls.spawn(async move { client.unsubscribe(request).await });
        }
        let all = async { while calls.join_next().await.is_some() {} };
        let _ = timeout(UNSUBSCRIBE_TIMEOUT, all).await;
        tokio::spawn(drain(shared, key, self));
    }
}

/// Waits for reports of requests that were in progress when the subscriptions ended, such as those that a program missed
/// because it has crashed, and emits them.
async fn drain(shared: Arc<Shared>, key: PortKey, port: ListeningPort) {
    let ListeningPort {
        agents,
        diagnostics,
        report_sender,
        mut reports,
        ..
    } = port;
    // The tasks of the agents end with the events, and each has a sender.
    drop(report_sender);
    let all = async { while reports.recv().await.is_some() {} };
    let _ = timeout(DRAIN_TIMEOUT, all).await;
    // This ends the calls of Subscribe at agents of older releases.
    drop(agents);
    let kinds = diagnostics.lock().pending_events();
    for kind in kinds {
        let event = IncomingEvent {
            port: key.port,
            is_udp: key.is_udp,
            agent: None,
            // There has been traffic.
            is_expected: true,
            kind,
        };
        (shared.context.events)(&Event::Incoming(event));
    }
}
