//! The subscription of a port at one agent: subscribes, serves, and subscribes again.

use std::fs;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use parking_lot::Mutex;
use protocol::rpc;
use protocol::rpc::SubscribeEvent;
use protocol::rpc::incoming_client::IncomingClient;
use protocol::rpc::subscribe_event::Event as AgentEvent;
use tokio::sync::mpsc;
use tokio::time::{interval, sleep};
use tonic::{Status, Streaming};

use super::accept_pool::{AcceptPool, StolenConnection};
use super::app_listeners::AppListeners;
use super::diagnostics::PortDiagnostics;
use super::{PortKey, Shared};
use crate::agent::{AgentConnection, AgentId};
use crate::event::{EarlierSession, RedirectCheck};

/// How often the size of the accept pool is adjusted.
const ADJUST_INTERVAL: Duration = Duration::from_millis(500);
/// Delay after a refused subscription.
const RETRY_DELAY: Duration = Duration::from_secs(1);
/// Delay after a subscription has ended.
const RESUBSCRIBE_DELAY: Duration = Duration::from_millis(50);

/// The subscription of a port at one agent. It runs until it is aborted, or another session takes the port over.
pub(super) struct AgentSubscription {
    pub(super) shared: Arc<Shared>,
    pub(super) key: PortKey,
    /// The application's port.
    pub(super) local_port: u16,
    pub(super) id: AgentId,
    pub(super) connection: AgentConnection,
    pub(super) listeners: Arc<AppListeners>,
    pub(super) diagnostics: Arc<Mutex<PortDiagnostics>>,
    /// Whether the port was subscribed at an agent with this id before.
    pub(super) is_renewed: bool,
    /// Whether a refusal is retried. It is not before the application's `listen` call is completed.
    pub(super) retries_refusals: bool,
    /// Whether the port is being released: the subscription is not renewed any more.
    pub(super) is_ending: Arc<AtomicBool>,
    pub(super) reports: ReportSender,
}

/// Carries reports from the subscriptions to the port, with the agent.
pub(super) type ReportSender =
    mpsc::UnboundedSender<(AgentId, AgentConnection, SubscriptionReport)>;

/// A change of the subscription at one agent.
#[derive(Debug)]
pub(super) enum SubscriptionReport {
    Active(ActiveSubscription),
    /// The agent refused. The flag is whether the subscription will be retried.
    Refused(Status, bool),
    TrafficSeen,
    /// The sessions with earlier claims have changed.
    Earlier(Vec<EarlierSession>),
    /// Another session, with this holder, has taken the port over.
    TakenOver(String),
}

/// A subscription that the agent has confirmed.
#[derive(Debug)]
pub(super) struct ActiveSubscription {
    /// The ID at the agent.
    pub(super) id: u64,
    pub(super) check: RedirectCheck,
    pub(super) mesh: Option<String>,
    pub(super) flushed: u32,
    pub(super) is_renewed: bool,
    /// Sessions with earlier claims.
    pub(super) earlier: Vec<EarlierSession>,
    /// The sockets that listen on the port in the target's network. `None`: unknown.
    pub(super) listeners: Option<TargetListeners>,
}

/// Sockets of the target's network.
#[derive(Debug)]
pub(super) struct TargetListeners {
    pub(super) cookies: Vec<u64>,
    /// Whether they are in the network of this process. Cookies of other networks cannot be compared with ours.
    pub(super) is_own_network: bool,
}

enum SubscriptionEvent {
    Accepted(StolenConnection),
    Agent(Result<Option<SubscribeEvent>, Status>),
    Adjust,
}

impl AgentSubscription {
    pub(super) async fn run(mut self) {
        loop {
            match self.subscribe().await {
                Ok((response, events)) => {
                    let pool = self.activate(&response);
                    self.is_renewed = true;
                    if let Some(holder) = self.serve(pool, events).await {
                        self.report(SubscriptionReport::TakenOver(holder));
                        return;
                    }
                    if self.is_ending.load(Ordering::Relaxed) {
                        return;
                    }
                    sleep(RESUBSCRIBE_DELAY).await;
                }
                Err(status) => {
                    let will_retry = self.will_retry(&status);
                    self.report(SubscriptionReport::Refused(status, will_retry));
                    if !will_retry {
                        return;
                    }
                    sleep(RETRY_DELAY).await;
                }
            }
        }
    }

    /// A port that was subscribed before can be subscribed again when the conflicting session has ended. A failure of the
    /// call itself is always retried.
    fn will_retry(&self, status: &Status) -> bool {
        self.is_renewed || self.retries_refusals || !super::is_final(status)
    }

    async fn subscribe(&self) -> Result<(rpc::Subscribed, Streaming<SubscribeEvent>), Status> {
        let shared = &self.shared;
        let filter = shared.rules.filter(self.local_port, self.key.port);
        let request = shared.options.request(self.key, filter, self.is_renewed);
        let mut client = IncomingClient::new(self.connection.client.clone());
        let mut events = client.subscribe(request).await?.into_inner();
        let first = events.message().await?.and_then(|event| event.event);
        match first {
            Some(AgentEvent::Subscribed(response)) => Ok((response, events)),
            _ => Err(Status::internal(
                "the agent did not confirm the subscription",
            )),
        }
    }

    /// Reports the subscription as active and creates its accept pool.
    fn activate(&self, response: &rpc::Subscribed) -> AcceptPool {
        let check = match response.check() {
            rpc::RedirectCheck::Unverified => RedirectCheck::Unverified,
            rpc::RedirectCheck::Loopback => RedirectCheck::Loopback,
            rpc::RedirectCheck::External => RedirectCheck::External,
        };
        self.report(SubscriptionReport::Active(ActiveSubscription {
            id: response.subscription,
            check,
            mesh: Some(response.mesh.clone()).filter(|mesh| !mesh.is_empty()),
            flushed: response.flushed,
            is_renewed: self.is_renewed,
            earlier: earlier_sessions(&response.earlier),
            listeners: response
                .listeners
                .as_ref()
                .map(|listeners| TargetListeners {
                    cookies: listeners.cookies.clone(),
                    is_own_network: own_network().is_some_and(|own| own == listeners.network),
                }),
        }));
        let events = Arc::clone(&self.shared.context.events);
        AcceptPool::new(
            self.connection.clone(),
            events,
            response.subscription,
            self.key.is_udp,
        )
    }

    /// Serves the subscription until the agent ends it, or another session takes the port over. Returns the holder of that
    /// session.
    async fn serve(
        &self,
        mut pool: AcceptPool,
        mut events: Streaming<SubscribeEvent>,
    ) -> Option<String> {
        let mut adjust = interval(ADJUST_INTERVAL);
        adjust.tick().await;
        loop {
            let event = tokio::select! {
                message = events.message() => SubscriptionEvent::Agent(message),
                connection = pool.next() => SubscriptionEvent::Accepted(connection),
                _ = adjust.tick() => SubscriptionEvent::Adjust,
            };
            match event {
                SubscriptionEvent::Accepted(connection) => self.deliver(connection),
                // The agent accepts no more streams.
                SubscriptionEvent::Adjust if self.is_ending.load(Ordering::Relaxed) => {}
                SubscriptionEvent::Adjust => pool.adjust(),
                SubscriptionEvent::Agent(Ok(Some(SubscribeEvent { event }))) => match event {
                    // `Subscribed` is only the first event.
                    None | Some(AgentEvent::Subscribed(_)) => {}
                    Some(AgentEvent::TrafficSeen(_)) => {
                        self.report(SubscriptionReport::TrafficSeen);
                    }
                    Some(AgentEvent::Missed(missed)) => {
                        let monitor = &self.shared.context.monitor;
                        monitor.passed_on(self.key.port, &missed, self.id.cluster.as_ref());
                        self.diagnostics.lock().missed(&missed);
                    }
                    Some(AgentEvent::MirrorDropped(_)) => {
                        self.diagnostics.lock().mirror_dropped();
                    }
                    Some(AgentEvent::Earlier(now)) => {
                        let earlier = earlier_sessions(&now.sessions);
                        self.report(SubscriptionReport::Earlier(earlier));
                    }
                    Some(AgentEvent::LostTo(holder)) => return Some(holder),
                },
                SubscriptionEvent::Agent(Ok(None) | Err(_)) => return None,
            }
        }
    }

    /// Delivers a connection to the application in a task of its own.
    fn deliver(&self, connection: StolenConnection) {
        self.diagnostics.lock().connection_received();
        let shared = &self.shared;
        let attempt = shared.context.monitor.incoming(
            self.key.port,
            self.key.is_udp,
            shared.steals(),
            connection.meta.client,
            self.id.cluster.clone(),
        );
        let listeners = Arc::clone(&self.listeners);
        let (tls, accept_timeout) = (shared.tls.clone(), shared.options.accept_timeout);
        tokio::spawn(connection.deliver(listeners, tls, accept_timeout, attempt));
    }

    fn report(&self, report: SubscriptionReport) {
        // Without the port, this task is about to be aborted.
        let _ = self
            .reports
            .send((self.id.clone(), self.connection.clone(), report));
    }
}

/// The network of this process, in the form of `PortListeners.network`.
pub(super) fn own_network() -> Option<String> {
    let boot_id = fs::read_to_string("/proc/sys/kernel/random/boot_id").ok()?;
    let namespace = fs::read_link("/proc/self/ns/net").ok()?;
    Some(format!("{} {}", boot_id.trim_end(), namespace.display()))
}

fn earlier_sessions(sessions: &[rpc::EarlierSession]) -> Vec<EarlierSession> {
    let convert = |session: &rpc::EarlierSession| EarlierSession {
        holder: session.holder.clone(),
        takes_all: session.takes_all,
    };
    sessions.iter().map(convert).collect()
}
