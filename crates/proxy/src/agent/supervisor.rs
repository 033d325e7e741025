//! Maintains the session's agent connections: reconnects each agent, elects the stateful agent, and emits events.

use std::collections::{HashMap, HashSet};
use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use error_chain::error_chain;
use link::LinkError;
use protocol::rpc::HelloResponse;
use tokio::sync::mpsc;
use tokio::task::AbortHandle;
use tokio::time::{Instant, sleep_until};

use super::reconnector::{AgentReport, LossReason, Reconnector, ReportSender};
use super::{
    AgentChange, AgentConnection, AgentEndpoint, AgentId, AgentSource, Agents, Preference,
};
use crate::error::Error;
use crate::event::{Event, EventSink};

/// How long calls wait when the target has no agent and none is being connected. This happens during a rollout.
const NO_AGENT_TIMEOUT: Duration = Duration::from_secs(30);

/// A session whose first agent is connected; others may still be connecting. Dropping it closes all of them.
pub struct FirstAgent {
    pub(crate) agents: Agents,
    pub(crate) hello: HelloResponse,
    pub(crate) events: EventSink,
    pub(crate) supervisor: SupervisorHandle,
}

/// Stops the supervisor when it is dropped.
#[derive(Debug)]
pub(crate) struct SupervisorHandle(AbortHandle);

impl FirstAgent {
    /// Connects the agents of a source and waits until one of them can be the stateful agent. When none of the initial
    /// agents can be connected, the error is that of the best one. Emits events from now to the end of the session. Must be
    /// called on the runtime of the session.
    pub async fn connect(source: impl AgentSource, events: EventSink) -> Result<Self, Error> {
        let (supervisor, hello) = AgentSupervisor::start(source, Arc::clone(&events)).await?;
        Ok(Self {
            agents: supervisor.agents.clone(),
            hello,
            events,
            supervisor: SupervisorHandle(tokio::spawn(supervisor.run()).abort_handle()),
        })
    }

    /// The mount points at the target.
    pub fn mounts(&self) -> impl Iterator<Item = String> {
        let target = self.hello.target.iter();
        let mounts = target.flat_map(|target| &target.mounts);
        mounts.filter_map(|mount| String::from_utf8(mount.to_vec()).ok())
    }
}

impl fmt::Debug for FirstAgent {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut debug = formatter.debug_struct("FirstAgent");
        debug.field("hello", &self.hello).finish_non_exhaustive()
    }
}

impl SupervisorHandle {
    /// Stops supervision: agents are not reconnected any more.
    pub(crate) fn stop(&self) {
        self.0.abort();
    }
}

impl Drop for SupervisorHandle {
    fn drop(&mut self) {
        self.stop();
    }
}

struct AgentSupervisor<S: AgentSource> {
    source: S,
    agents: Agents,
    events: EventSink,
    supervised: HashMap<AgentId, SupervisedAgent>,
    /// Endpoints that are not connected yet: there are better ones, or one agent is enough.
    deferred: Vec<AgentEndpoint<S::Connector>>,
    /// Whether all agents are needed.
    needs_all: bool,
    /// Initial agents that have neither connected nor failed.
    pending_initial: HashSet<AgentId>,
    /// Agents whose links are reconnecting.
    reconnecting: HashSet<AgentId>,
    reconnectors_started: u64,
    /// Cloned for each reconnector.
    report_sender: ReportSender,
    reports: mpsc::UnboundedReceiver<(AgentId, u64, AgentReport)>,
    stateful: Option<(AgentId, AgentConnection)>,
    /// The response of the session's first agent.
    hello: Option<HelloResponse>,
    has_started: bool,
    /// When calls begin to fail because no agent is available.
    no_agent_deadline: Option<Instant>,
    /// The last reported reason for having no agent.
    reported_loss: String,
}

/// An agent that has a reconnector, which stops when this is dropped.
struct SupervisedAgent {
    number: u64,
    preference: Preference,
    state: State,
    reconnector: AbortHandle,
}

enum State {
    /// The first connection is being made.
    Connecting,
    /// The agent was lost and is being reconnected. That may fail for good, because its pod may be terminating.
    Reconnecting,
    Connected,
    /// The agent is connected, but its target has exited, and other agents do its work.
    WithoutTarget,
    /// The last attempt to connect failed; another one may succeed.
    Failed(Error),
}

enum SupervisorEvent<R> {
    Reported(AgentId, u64, AgentReport),
    Changed(Vec<AgentChange<R>>),
    AllNeeded,
    NoAgentTimeout,
}

impl<S: AgentSource> AgentSupervisor<S> {
    /// Waits for the first agent. When none of the initial agents can be connected, the error is that of the best one.
    async fn start(source: S, events: EventSink) -> Result<(Self, HelloResponse), Error> {
        let (report_sender, reports) = mpsc::unbounded_channel();
        let mut supervisor = Self {
            needs_all: !source.is_on_demand(),
            source,
            agents: Agents::default(),
            events,
            supervised: HashMap::new(),
            deferred: Vec::new(),
            pending_initial: HashSet::new(),
            reconnecting: HashSet::new(),
            reconnectors_started: 0,
            report_sender,
            reports,
            stateful: None,
            hello: None,
            has_started: false,
            no_agent_deadline: Some(Instant::now() + NO_AGENT_TIMEOUT),
            reported_loss: String::new(),
        };
        loop {
            if let Some(error) = supervisor.take_failure() {
                return Err(error);
            }
            supervisor.step().await?;
            if let Some(hello) = supervisor.hello.take() {
                supervisor.has_started = true;
                supervisor.start_deferred();
                supervisor.check_initial();
                return Ok((supervisor, hello));
            }
        }
    }

    /// Runs until the session has ended.
    async fn run(mut self) {
        while self.step().await.is_ok() {}
    }

    /// Waits for one event and handles it. An error ends the session.
    async fn step(&mut self) -> Result<(), Error> {
        let deadline = self.no_agent_deadline;
        let no_agent_timeout = async move {
            match deadline {
                Some(time) => sleep_until(time).await,
                None => std::future::pending().await,
            }
        };
        let agents = self.agents.clone();
        let event = tokio::select! {
            biased;
            Some((id, number, report)) = self.reports.recv() => SupervisorEvent::Reported(id, number, report),
            changes = self.source.changes() => SupervisorEvent::Changed(changes),
            () = agents.all_needed(), if !self.needs_all => SupervisorEvent::AllNeeded,
            () = no_agent_timeout => SupervisorEvent::NoAgentTimeout,
        };
        match event {
            SupervisorEvent::Reported(id, number, report) => {
                self.handle_report(&id, number, report);
            }
            SupervisorEvent::Changed(changes) => {
                for change in changes {
                    self.apply_change(change)?;
                }
            }
            SupervisorEvent::AllNeeded => {
                self.needs_all = true;
                let deferred = self.deferred.iter().map(|endpoint| endpoint.id.clone());
                self.pending_initial.extend(deferred);
            }
            SupervisorEvent::NoAgentTimeout => {
                self.no_agent_deadline = None;
                let reason = format!("none available for {} s", NO_AGENT_TIMEOUT.as_secs());
                if !self.has_started {
                    return Err(Error::NoAgent);
                }
                self.report_loss(reason, LinkError::StateLost);
            }
        }
        self.start_deferred();
        self.check_initial();
        Ok(())
    }

    fn apply_change(&mut self, change: AgentChange<S::Connector>) -> Result<(), Error> {
        match change {
            AgentChange::Added(endpoint) => {
                self.remove(&endpoint.id, "it was replaced by another one");
                if !self.has_started {
                    self.pending_initial.insert(endpoint.id.clone());
                }
                self.no_agent_deadline = None;
                self.deferred.push(endpoint);
            }
            AgentChange::Removed(id, reason) => self.remove(&id, &reason),
            AgentChange::RulesChanged(id) => (self.events)(&Event::RulesChanged(id)),
            AgentChange::SessionEnded(reason) => {
                let ids: Vec<AgentId> = self.supervised.keys().cloned().collect();
                for id in ids {
                    self.agents.router.leave(&id);
                }
                self.agents.stateful.set_lost(LinkError::StateLost);
                (self.events)(&Event::SessionEnded(reason.clone()));
                self.supervised.clear();
                return Err(Error::Refused(reason));
            }
        }
        Ok(())
    }

    fn start_reconnector(&mut self, endpoint: AgentEndpoint<S::Connector>) {
        self.reconnectors_started += 1;
        self.no_agent_deadline = None;
        let AgentEndpoint {
            id,
            preference,
            connector,
        } = endpoint;
        let reconnector = Reconnector {
            id: id.clone(),
            number: self.reconnectors_started,
            connector,
            reports: self.report_sender.clone(),
        };
        let agent = SupervisedAgent {
            number: self.reconnectors_started,
            preference,
            state: State::Connecting,
            reconnector: tokio::spawn(reconnector.run()).abort_handle(),
        };
        self.supervised.insert(id, agent);
    }

    /// Stops supervising an agent.
    fn remove(&mut self, id: &AgentId, reason: &str) {
        self.pending_initial.remove(id);
        self.deferred.retain(|endpoint| endpoint.id != *id);
        let Some(agent) = self.supervised.remove(id) else {
            return;
        };
        if matches!(agent.state, State::Connected) {
            self.leave(id, reason);
        } else {
            self.update_stateful();
        }
        // The reconnector stops only now, so that calls that fail and are repeated go to another agent.
        drop(agent);
    }

    fn handle_report(&mut self, id: &AgentId, number: u64, report: AgentReport) {
        let Some(agent) = self.supervised.get_mut(id) else {
            return;
        };
        if agent.number != number {
            return;
        }
        match report {
            AgentReport::Connected(connection, hello) => {
                agent.state = State::Connected;
                let preference = agent.preference;
                self.join(id, connection, *hello, preference);
            }
            AgentReport::Lost(reason, abort_guard) => {
                let was_connected = matches!(agent.state, State::Connected);
                agent.state = State::Reconnecting;
                match reason {
                    LossReason::TargetRestarted => {
                        (self.events)(&Event::TargetRestarted);
                        self.agents.router.leave(id);
                        self.update_stateful();
                    }
                    LossReason::Link(error) if was_connected => {
                        self.leave(id, &error_chain(&error));
                    }
                    LossReason::AgentEnded(reason) if was_connected => self.leave(id, &reason),
                    LossReason::Link(_) | LossReason::AgentEnded(_) => {}
                }
                // Calls in progress fail now, and not only when the link stops reconnecting.
                drop(abort_guard);
            }
            AgentReport::Failed(error) => self.fail(id, error),
            // Stateful operations do not need this agent. The state of its cluster is reported by the agent source.
            AgentReport::Disconnected(reason) if agent.preference == Preference::TrafficOnly => {
                tracing::info!(agent = %id, reason, "agent disconnected");
            }
            AgentReport::Disconnected(reason) => {
                if self.reconnecting.is_empty() {
                    (self.events)(&Event::ConnectionLost(reason));
                }
                self.reconnecting.insert(id.clone());
            }
            AgentReport::Reconnected => {
                let was_reconnecting = self.reconnecting.remove(id);
                if was_reconnecting && self.reconnecting.is_empty() {
                    (self.events)(&Event::ConnectionRestored);
                }
            }
            AgentReport::TargetExited if self.agents.router.all().len() > 1 => {
                agent.state = State::WithoutTarget;
                self.leave(id, "it has ended");
            }
            AgentReport::TargetExited => (self.events)(&Event::TargetExited),
        }
    }

    fn join(
        &mut self,
        id: &AgentId,
        connection: AgentConnection,
        hello: HelloResponse,
        preference: Preference,
    ) {
        let is_late = !self.pending_initial.remove(id);
        self.agents.router.join(id.clone(), connection, preference);
        let previous = self.stateful.clone();
        self.update_stateful();
        let is_stateful = self.is_stateful(id);
        // A traffic-only agent may connect earlier, but its target is not the one that the session stands in for.
        if is_stateful && !self.has_started {
            self.hello = Some(hello);
        }
        if is_late && previous.is_some() && !is_stateful {
            (self.events)(&Event::AgentJoined(id.clone()));
        }
    }

    /// Handles the loss of a connected agent.
    fn leave(&mut self, id: &AgentId, reason: &str) {
        self.reconnecting.remove(id);
        let (agent, reason) = (id.clone(), reason.to_owned());
        (self.events)(&match self.is_stateful(id) {
            true => Event::AgentLost { agent, reason },
            false => Event::AgentLeft { agent, reason },
        });
        self.agents.router.leave(id);
        self.update_stateful();
    }

    fn is_stateful(&self, id: &AgentId) -> bool {
        let stateful = self.stateful.as_ref();
        stateful.is_some_and(|(stateful, _)| stateful == id)
    }

    /// Handles a failed attempt to connect.
    fn fail(&mut self, id: &AgentId, error: Error) {
        self.pending_initial.remove(id);
        let Some(agent) = self.supervised.get_mut(id) else {
            return;
        };
        let reason = error_chain(&error);
        let is_new = match &agent.state {
            State::Failed(previous) => error_chain(previous) != reason,
            _ => true,
        };
        let is_traffic_only = agent.preference == Preference::TrafficOnly;
        agent.state = State::Failed(error);
        if is_new && self.has_started && (self.stateful.is_some() || is_traffic_only) {
            let agent = id.clone();
            (self.events)(&Event::AgentJoinFailed { agent, reason });
        }
        self.update_stateful();
    }

    /// Directs stateful calls to the agent that the router has elected.
    fn update_stateful(&mut self) {
        match self.agents.router.stateful() {
            Some((id, connection)) => {
                let current = self.stateful.as_ref();
                if current.is_some_and(|(_, current)| *current == connection) {
                    return;
                }
                self.no_agent_deadline = None;
                self.reported_loss.clear();
                self.agents.stateful.replace(connection.clone());
                if self.has_started {
                    (self.events)(&Event::SessionRestored(id.clone()));
                }
                self.stateful = Some((id, connection));
            }
            None => {
                if self.stateful.take().is_some() {
                    self.agents.stateful.set_pending();
                }
                self.handle_no_stateful();
            }
        }
    }

    /// Without a stateful agent, calls wait for one that is being connected, and for a limited time for one that may be
    /// added.
    fn handle_no_stateful(&mut self) {
        if !self.has_started {
            return;
        }
        self.start_deferred();
        let mut candidates = self
            .supervised
            .values()
            .filter(|agent| is_candidate(agent.preference))
            .peekable();
        if candidates.peek().is_none() {
            if self.no_agent_deadline.is_none() && self.reported_loss.is_empty() {
                self.no_agent_deadline = Some(Instant::now() + NO_AGENT_TIMEOUT);
                (self.events)(&Event::NoTargetPods(NO_AGENT_TIMEOUT.as_secs()));
            }
            return;
        }
        let failures: Option<Vec<&Error>> = candidates
            .map(|agent| match &agent.state {
                State::Failed(error) => Some(error),
                _ => None,
            })
            .collect();
        let Some(error) = failures.and_then(|failures| failures.first().copied()) else {
            return;
        };
        let link_error = match error {
            Error::Link(error) => error.clone(),
            _ => LinkError::StateLost,
        };
        self.report_loss(error_chain(error), link_error);
    }

    /// Makes calls fail until an agent is connected.
    fn report_loss(&mut self, reason: String, link_error: LinkError) {
        self.agents.stateful.set_lost(link_error);
        if self.reported_loss != reason {
            (self.events)(&Event::SessionLost(reason.clone()));
            self.reported_loss = reason;
        }
    }

    /// Starts to connect the deferred endpoints that are needed now.
    fn start_deferred(&mut self) {
        let candidates = || {
            let agents = self.supervised.values();
            agents.filter(|agent| is_candidate(agent.preference))
        };
        let has_hope =
            candidates().any(|agent| matches!(agent.state, State::Connecting | State::Connected));
        let has_failed = candidates().any(|agent| matches!(agent.state, State::Failed(_)));
        let starts_all = !has_hope && has_failed || self.needs_all && self.has_started;
        let mut deferred = std::mem::take(&mut self.deferred);
        // Pods that are not ready are tried when no better one is available.
        deferred.sort_by_key(|endpoint| endpoint.preference);
        let best = deferred.first().map(|endpoint| endpoint.preference);
        for (index, endpoint) in deferred.into_iter().enumerate() {
            let is_best = Some(endpoint.preference) == best && is_candidate(endpoint.preference);
            let is_needed = match self.needs_all {
                true => !has_hope && is_best || endpoint.preference == Preference::TrafficOnly,
                false => !has_hope && is_best && index == 0,
            };
            if starts_all || is_needed {
                self.start_reconnector(endpoint);
            } else {
                self.deferred.push(endpoint);
            }
        }
    }

    /// Reports when each initial agent has connected or failed.
    fn check_initial(&mut self) {
        let is_complete = self.has_started && self.needs_all && self.pending_initial.is_empty();
        if !is_complete || self.agents.is_initial_done() {
            return;
        }
        let all = self.agents.router.all();
        if all.len() > 1 {
            (self.events)(&Event::coverage_of(all.iter().map(|(id, _)| id)));
        }
        self.agents.set_initial_done();
    }

    /// Whether every agent that was tried, and could be the stateful one, has failed.
    fn all_candidates_failed(&self) -> bool {
        let agents = self.supervised.values();
        let mut candidates = agents.filter(|agent| is_candidate(agent.preference));
        candidates.all(|agent| matches!(agent.state, State::Failed(_)))
    }

    /// The error of the best agent, when all candidates have failed.
    fn take_failure(&mut self) -> Option<Error> {
        let mut deferred = self.deferred.iter();
        if deferred.any(|endpoint| is_candidate(endpoint.preference))
            || !self.all_candidates_failed()
        {
            return None;
        }
        let best = self
            .supervised
            .iter()
            .filter(|(_, agent)| is_candidate(agent.preference))
            .min_by_key(|(_, agent)| agent.number)
            .map(|(id, _)| id.clone())?;
        match &mut self.supervised.remove(&best)?.state {
            State::Failed(error) => Some(std::mem::replace(error, Error::NoAgent)),
            _ => None,
        }
    }
}

/// Whether an agent may become the stateful agent.
fn is_candidate(preference: Preference) -> bool {
    preference != Preference::TrafficOnly
}

impl Drop for SupervisedAgent {
    fn drop(&mut self) {
        self.reconnector.abort();
    }
}
