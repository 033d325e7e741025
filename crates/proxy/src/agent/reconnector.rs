//! Keeps one agent connected: connects it, watches it, and reconnects it when it is lost.

use std::pin::pin;
use std::time::Duration;

use link::http2::Client;
use link::{LinkError, Status};
use protocol::rpc::control_client::ControlClient;
use protocol::rpc::{HelloResponse, PingRequest};
use tokio::sync::mpsc;
use tokio::time::sleep;

use super::abortable::AbortOnDrop;
use super::handshake::AcceptedAgent;
use super::{AgentConnection, AgentId, Connector};
use crate::error::Error;

/// How often the agent is asked whether the target is alive.
const PING_INTERVAL: Duration = Duration::from_secs(2);
/// A disconnected link is reported after so many failed attempts to reconnect. Most links are connected again by then.
const REPORTED_ATTEMPTS: u32 = 2;

pub(super) struct Reconnector<C> {
    pub(super) id: AgentId,
    /// Distinguishes this reconnector from earlier ones with the same id.
    pub(super) number: u64,
    pub(super) connector: C,
    pub(super) reports: ReportSender,
}

/// Carries reports from the reconnectors to the supervisor, with the id and number of the reconnector.
pub(super) type ReportSender = mpsc::UnboundedSender<(AgentId, u64, AgentReport)>;

/// A change of the state of an agent.
#[derive(Debug)]
pub(super) enum AgentReport {
    Connected(AgentConnection, Box<HelloResponse>),
    /// The agent is lost and is being reconnected. Calls in progress fail when the guard is dropped.
    Lost(LossReason, AbortOnDrop),
    /// The agent could not be connected. It is retried when the connector says so.
    Failed(Error),
    /// The link has been without a connection for a while.
    Disconnected(String),
    /// The link has a connection again.
    Reconnected,
    /// The agent is connected, but its target has exited.
    TargetExited,
}

/// Why an agent is lost.
#[derive(Debug)]
pub(super) enum LossReason {
    Link(LinkError),
    AgentEnded(String),
    /// The target runs again and needs a new agent.
    TargetRestarted,
}

impl<C: Connector> Reconnector<C> {
    /// Runs until it is aborted.
    pub(super) async fn run(self) {
        loop {
            let mut agent = self.connect().await;
            let hello = Box::new(agent.hello.clone());
            self.report(AgentReport::Connected(agent.connection(), hello));
            let reason = self.watch(&mut agent).await;
            self.report(AgentReport::Lost(reason, agent.abort_guard));
        }
    }

    /// Connects the agent, with as many attempts as it takes.
    async fn connect(&self) -> AcceptedAgent {
        loop {
            let connected = self.connector.connect().await.map_err(Error::Connect);
            let accepted = match connected {
                Ok(connected) => AcceptedAgent::handshake(connected).await,
                Err(error) => Err(error),
            };
            match accepted {
                Ok(agent) => return agent,
                Err(error) => self.report(AgentReport::Failed(error)),
            }
            tokio::select! {
                () = self.connector.target_restarted() => {}
                () = self.connector.retry_ready() => {}
            }
        }
    }

    /// Watches an agent until it must be replaced.
    async fn watch(&self, agent: &mut AcceptedAgent) -> LossReason {
        let mut target_restarted = pin!(async {
            target_exited(agent.client.clone()).await;
            self.report(AgentReport::TargetExited);
            self.connector.target_restarted().await;
        });
        let mut is_reported = false;
        loop {
            tokio::select! {
                biased;
                reason = &mut agent.ended => return LossReason::AgentEnded(reason),
                () = &mut target_restarted => return LossReason::TargetRestarted,
                changed = agent.status.changed() => {
                    let status = agent.status.borrow_and_update().clone();
                    match status {
                        Status::Failed(error) => return LossReason::Link(error),
                        Status::Finished => return LossReason::Link(LinkError::StateLost),
                        Status::Connected if is_reported => {
                            is_reported = false;
                            self.report(AgentReport::Reconnected);
                        }
                        Status::Reconnecting { attempts, last_error, .. }
                            if !is_reported && attempts >= REPORTED_ATTEMPTS =>
                        {
                            is_reported = true;
                            self.report(AgentReport::Disconnected(last_error));
                        }
                        Status::Connected | Status::Reconnecting { .. } => {}
                    }
                    if changed.is_err() {
                        return LossReason::Link(LinkError::StateLost);
                    }
                }
            }
        }
    }

    fn report(&self, report: AgentReport) {
        // Without a supervisor, this task is about to be aborted.
        let _ = self.reports.send((self.id.clone(), self.number, report));
    }
}

/// Completes when the agent reports that its target has exited.
async fn target_exited(client: Client) {
    loop {
        sleep(PING_INTERVAL).await;
        let mut control = ControlClient::new(client.clone());
        match control.ping(PingRequest::default()).await {
            Ok(response) if !response.get_ref().target_alive => return,
            Ok(_) => {}
            // The agent itself is lost, which `watch` notices.
            Err(_) => std::future::pending().await,
        }
    }
}
