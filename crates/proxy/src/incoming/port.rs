//! The task of one port, from the application's first listener to its last, at all agents.

mod end;
mod events;

use std::collections::{HashMap, HashSet};
use std::pin::pin;
use std::sync::Arc;
use std::sync::atomic::AtomicBool;
use std::time::Duration;

use interceptor::Errno;
use parking_lot::Mutex;
use protocol::rpc::Failure;
use router::MemberChange;
use tokio::sync::{mpsc, oneshot};
use tokio::task::AbortHandle;
use tokio::time::{Instant, interval, sleep};
use tonic::Status;

pub(crate) use self::end::UNSUBSCRIBE_TIMEOUT;

use super::app_listener::PendingListen;
use super::app_listeners::AppListeners;
use super::diagnostics::PortDiagnostics;
use super::subscription::{
    ActiveSubscription, AgentSubscription, ReportSender, SubscriptionReport,
};
use super::{PortKey, Shared, is_final, reason_of};
use crate::agent::{AgentConnection, AgentId};
use crate::event::{IncomingEventKind, RedirectCheck};

/// Waiting for agents that are being started is reported after this time.
const WAITING_NOTICE_DELAY: Duration = Duration::from_secs(3);

/// Sent by the session to the task of a port.
#[derive(Debug)]
pub(super) enum PortMessage {
    /// A new `listen` call of the application.
    Listen(PendingListen),
    /// The application may have closed its listeners. The sender is dropped when it still listens, or when no agent accepts
    /// connections for the port any more.
    Check(Option<oneshot::Sender<()>>),
}

pub(super) struct PortTask {
    shared: Arc<Shared>,
    key: PortKey,
    /// The application's port.
    local_port: u16,
    messages: mpsc::UnboundedReceiver<PortMessage>,
    /// Calls that wait for the subscription.
    pending: Vec<PendingListen>,
    listeners: Arc<AppListeners>,
    /// Agents at which the port was subscribed before.
    subscribed_before: HashSet<AgentId>,
    /// Whether an application at the target listens on the port.
    is_served: bool,
    /// Whether traffic from outside of the target was received.
    has_traffic: bool,
}

/// A port while the application listens on it.
struct ListeningPort {
    agents: HashMap<AgentId, PortAtAgent>,
    diagnostics: Arc<Mutex<PortDiagnostics>>,
    /// Cloned for the task of each agent.
    report_sender: ReportSender,
    reports: mpsc::UnboundedReceiver<(AgentId, AgentConnection, SubscriptionReport)>,
    /// Whether the application's `listen` calls were completed.
    is_confirmed: bool,
    /// Set when the application has closed its listeners. The subscriptions are not renewed any more.
    is_ending: Arc<AtomicBool>,
}

/// The port at one agent. Dropping it ends the subscription there.
struct PortAtAgent {
    connection: AgentConnection,
    state: State,
    /// The last reported reason why there is no traffic from this agent.
    reported_reason: Option<String>,
    task: AbortHandle,
}

enum State {
    Pending,
    Active(ActiveSubscription),
    /// The agent refused. The flag is whether the subscription will be retried.
    Refused(Status, bool),
    TakenOver,
}

enum PortEvent {
    Message(PortMessage),
    Agents(Option<MemberChange<AgentId, AgentConnection>>),
    Report(AgentId, AgentConnection, SubscriptionReport),
    /// There is no agent, and calls do not wait for one any more.
    NoAgent,
    Poll,
}

impl PortTask {
    pub(super) fn new(
        shared: Arc<Shared>,
        key: PortKey,
        local_port: u16,
        messages: mpsc::UnboundedReceiver<PortMessage>,
    ) -> Self {
        Self {
            shared,
            key,
            local_port,
            messages,
            pending: Vec::new(),
            listeners: Arc::default(),
            subscribed_before: HashSet::new(),
            is_served: false,
            has_traffic: false,
        }
    }

    pub(super) async fn run(mut self) {
        loop {
            while let Ok(message) = self.messages.try_recv() {
                self.handle_before_subscription(message);
            }
            if self.pending.is_empty() && !self.listeners.remove_closed() {
                if self.unregister() {
                    return;
                }
                continue;
            }
            self.connect_all_agents().await;
            self.serve().await;
        }
    }

    /// The application's `listen` succeeds only when all agents deliver the traffic.
    async fn connect_all_agents(&mut self) {
        let agents = self.shared.context.agents.clone();
        let mut connected = pin!(agents.connect_all());
        let mut notice = pin!(sleep(WAITING_NOTICE_DELAY));
        let mut was_noticed = false;
        loop {
            tokio::select! {
                () = &mut connected => return,
                () = &mut notice, if !was_noticed => {
                    was_noticed = true;
                    self.emit(None, IncomingEventKind::Waiting);
                }
                Some(message) = self.messages.recv() => self.handle_before_subscription(message),
            }
        }
    }

    fn handle_before_subscription(&mut self, message: PortMessage) {
        match message {
            PortMessage::Listen(listen) => self.pending.push(listen),
            // No agent accepts connections for the port.
            PortMessage::Check(_) => {}
        }
    }

    /// Runs until the application has no listener.
    async fn serve(&mut self) {
        let mut port = ListeningPort::new(self.filter());
        let mut changes = self.shared.context.agents.router.changes();
        let stateful_agent = self.shared.context.stateful_agent.clone();
        let mut poll = interval(self.shared.poll_interval);
        poll.tick().await;
        loop {
            while let Some(change) = changes.try_next() {
                self.apply_member_change(&mut port, change);
            }
            if !port.is_confirmed && !self.try_confirm(&mut port) {
                return;
            }
            let has_no_agent = !port.is_confirmed && port.agents.is_empty();
            let event = tokio::select! {
                Some(message) = self.messages.recv() => PortEvent::Message(message),
                change = changes.next() => PortEvent::Agents(change),
                Some((id, connection, report)) = port.reports.recv() => PortEvent::Report(id, connection, report),
                () = stateful_agent.lost(), if has_no_agent => PortEvent::NoAgent,
                _ = poll.tick() => PortEvent::Poll,
            };
            match event {
                PortEvent::Message(PortMessage::Listen(listen)) if port.is_confirmed => {
                    self.accept(listen);
                }
                PortEvent::Message(PortMessage::Listen(listen)) => self.pending.push(listen),
                PortEvent::Message(PortMessage::Check(waiting)) => {
                    if port.is_confirmed && !self.listeners.remove_closed() {
                        port.unsubscribe(Arc::clone(&self.shared), self.key).await;
                        drop(waiting);
                        return;
                    }
                }
                PortEvent::Agents(Some(change)) => self.apply_member_change(&mut port, change),
                // The session has ended.
                PortEvent::Agents(None) => return,
                PortEvent::Report(id, connection, report) => {
                    self.handle_report(&mut port, &id, &connection, report);
                }
                PortEvent::NoAgent => {
                    let reason = "there is no agent".to_owned();
                    if self.shared.steals() {
                        return self.refuse(Errno::EADDRNOTAVAIL, reason, None);
                    }
                    self.confirm(&mut port);
                    self.emit(
                        None,
                        IncomingEventKind::LocalOnly {
                            reason,
                            will_retry: true,
                        },
                    );
                }
                PortEvent::Poll if !port.is_confirmed => {}
                PortEvent::Poll => {
                    let kinds = port.diagnostics.lock().due_events(Instant::now());
                    for kind in kinds {
                        self.emit(None, kind);
                    }
                    if !self.listeners.remove_closed() {
                        let shared = Arc::clone(&self.shared);
                        return port.unsubscribe(shared, self.key).await;
                    }
                }
            }
        }
    }

    fn apply_member_change(
        &mut self,
        port: &mut ListeningPort,
        change: MemberChange<AgentId, AgentConnection>,
    ) {
        match change {
            MemberChange::Joined(id, connection) => {
                let subscription = AgentSubscription {
                    shared: Arc::clone(&self.shared),
                    key: self.key,
                    local_port: self.local_port,
                    id: id.clone(),
                    connection: connection.clone(),
                    listeners: Arc::clone(&self.listeners),
                    diagnostics: Arc::clone(&port.diagnostics),
                    is_renewed: self.subscribed_before.contains(&id),
                    retries_refusals: port.is_confirmed,
                    is_ending: Arc::clone(&port.is_ending),
                    reports: port.report_sender.clone(),
                };
                let task = tokio::spawn(subscription.run()).abort_handle();
                let at_agent = PortAtAgent {
                    connection,
                    state: State::Pending,
                    reported_reason: None,
                    task,
                };
                port.agents.insert(id, at_agent);
            }
            MemberChange::Left(id) => {
                port.agents.remove(&id);
            }
        }
    }

    fn handle_report(
        &mut self,
        port: &mut ListeningPort,
        id: &AgentId,
        connection: &AgentConnection,
        report: SubscriptionReport,
    ) {
        let Some(at_agent) = port.agents.get_mut(id) else {
            return;
        };
        if at_agent.connection != *connection {
            return;
        }
        match report {
            SubscriptionReport::Active(active) => {
                at_agent.reported_reason = None;
                self.is_served |= active.is_served(|cookie| self.is_own_socket(cookie));
                if port.is_confirmed {
                    self.subscribed_before.insert(id.clone());
                    self.emit_subscribed(Some(id), &[(id, &active)]);
                }
                at_agent.state = State::Active(active);
                port.update_expectation();
            }
            SubscriptionReport::Refused(status, will_retry) => {
                // The loss of an agent is reported by its supervisor.
                if port.is_confirmed && (is_final(&status) || !connection.client.is_closed()) {
                    self.emit_refused(id, at_agent, &status, will_retry);
                }
                at_agent.state = State::Refused(status, will_retry);
            }
            SubscriptionReport::TrafficSeen => {
                self.has_traffic = true;
                let kind = port.diagnostics.lock().traffic_seen();
                if let Some(kind) = kind {
                    self.emit(None, kind);
                }
            }
            SubscriptionReport::Earlier(earlier) => {
                if let State::Active(active) = &mut at_agent.state {
                    active.earlier = earlier;
                    // Before that, it is reported when the application's call is completed.
                    if port.is_confirmed {
                        self.emit_subscribed(Some(id), &[(id, active)]);
                    }
                }
                port.update_expectation();
            }
            SubscriptionReport::TakenOver(holder) => {
                at_agent.state = State::TakenOver;
                self.emit(Some(id), IncomingEventKind::TakenOver { holder });
            }
        }
    }

    /// Completes the application's calls when all agents have responded. Returns whether the port is still served.
    fn try_confirm(&mut self, port: &mut ListeningPort) -> bool {
        let is_pending = |at: &PortAtAgent| matches!(at.state, State::Pending);
        if port.agents.is_empty() || port.agents.values().any(is_pending) {
            return true;
        }
        let refusal = port.agents.iter().find_map(|(id, at)| match &at.state {
            State::Refused(status, _) if is_final(status) => Some((id, status)),
            _ => None,
        });
        // After the first subscription, refusals are retried, and a refusal at one agent does not end the port at the others.
        if let Some((id, status)) = refusal
            && self.shared.steals()
            && self.subscribed_before.is_empty()
        {
            let errno = Failure::from_status(status).and_then(|failure| failure.number());
            let errno = errno.map_or(Errno::EADDRNOTAVAIL, Errno::from_raw);
            let (id, reason) = (id.clone(), reason_of(status));
            self.refuse(errno, reason, Some(&id));
            return false;
        }
        let active: Vec<(&AgentId, &ActiveSubscription)> = port
            .agents
            .iter()
            .filter_map(|(id, at)| Some((id, at.active()?)))
            .collect();
        if active.is_empty() && self.shared.steals() && self.subscribed_before.is_empty() {
            // An agent that is lost during the subscription reports nothing; another one will replace it.
            return true;
        }
        if !active.is_empty() {
            let weakest = active.iter().map(|(_, active)| active.check).min();
            self.emit_subscribed(None, &active);
            let mut diagnostics = port.diagnostics.lock();
            diagnostics.set_check(weakest.unwrap_or(RedirectCheck::Unverified));
        }
        self.confirm(port);
        for (id, at_agent) in &mut port.agents {
            if at_agent.active().is_some() {
                self.subscribed_before.insert(id.clone());
            }
            if let State::Refused(status, will_retry) = &at_agent.state {
                let (status, will_retry) = (status.clone(), *will_retry);
                self.emit_refused(id, at_agent, &status, will_retry);
            }
        }
        true
    }

    /// Whether it is a socket of the application, which may be in the same network as the target.
    fn is_own_socket(&self, cookie: u64) -> bool {
        let mut pending = self.pending.iter();
        pending.any(|listen| listen.cookie == cookie) || self.listeners.has(cookie)
    }

    /// Lets the application's calls succeed.
    fn confirm(&mut self, port: &mut ListeningPort) {
        port.is_confirmed = true;
        for listen in std::mem::take(&mut self.pending) {
            self.accept(listen);
        }
    }

    /// Makes the application's calls fail.
    fn refuse(&mut self, errno: Errno, reason: String, id: Option<&AgentId>) {
        for listen in std::mem::take(&mut self.pending) {
            listen.refuse(errno);
        }
        self.emit(id, IncomingEventKind::Refused { reason });
    }

    fn accept(&self, listen: PendingListen) {
        let (address, cookie) = (listen.address, listen.cookie);
        if let Some(listener) = listen.accept() {
            self.listeners.add(address, cookie, listener);
        }
    }

    /// Removes the port from the session, unless a message is queued. Returns whether it was removed.
    fn unregister(&mut self) -> bool {
        let mut ports = self.shared.ports.lock();
        if !self.messages.is_empty() {
            return false;
        }
        ports.remove(&self.key);
        self.shared.closed_listeners.forget(self.key);
        true
    }
}

impl ListeningPort {
    fn new(filter: Option<String>) -> Self {
        let diagnostics = PortDiagnostics::new(Instant::now(), RedirectCheck::Unverified, filter);
        let (report_sender, reports) = mpsc::unbounded_channel();
        Self {
            agents: HashMap::new(),
            diagnostics: Arc::new(Mutex::new(diagnostics)),
            report_sender,
            reports,
            is_confirmed: false,
            is_ending: Arc::default(),
        }
    }

    /// Where earlier sessions take all traffic, silence is expected.
    fn update_expectation(&self) {
        let agents = self.agents.values();
        let mut active = agents.filter_map(PortAtAgent::active).peekable();
        let leaves_nothing = |active: &ActiveSubscription| {
            let mut earlier = active.earlier.iter();
            earlier.any(|earlier| earlier.takes_all)
        };
        let expects_nothing = active.peek().is_some() && active.all(leaves_nothing);
        let mut diagnostics = self.diagnostics.lock();
        diagnostics.set_expects_nothing(expects_nothing, Instant::now());
    }
}

impl ActiveSubscription {
    /// Whether an application at the target listens on the port, also if that is unknown.
    fn is_served(&self, is_own_socket: impl Fn(u64) -> bool) -> bool {
        let listeners = self.listeners.as_ref();
        listeners.is_none_or(|listeners| {
            let mut cookies = listeners.cookies.iter();
            cookies.any(|cookie| !(listeners.is_own_network && is_own_socket(*cookie)))
        })
    }
}

impl PortAtAgent {
    fn active(&self) -> Option<&ActiveSubscription> {
        match &self.state {
            State::Active(active) => Some(active),
            _ => None,
        }
    }
}

impl Drop for PortAtAgent {
    fn drop(&mut self) {
        self.task.abort();
    }
}
