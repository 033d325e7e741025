//! What to do about a session. Decides everything, does nothing, and has no clock.

use std::time::Duration;

use api::session::{SessionClosed, SessionPhase, SessionPod};
use api::{MirrordClusterSession, MirrordClusterSessionStatus};
use cluster::{Ordered, OrderedState, PORTS, Replica};
use jiff::Timestamp;
use sha2::{Digest as _, Sha256};

use super::validate::Wanted;
use crate::settings::SessionSettings;

/// How long agents may take to start, before a session that has none is given up.
const STARTUP: Duration = Duration::from_secs(60);
/// How long a session that failed is kept for people to look at.
const KEPT: Duration = Duration::from_secs(60);
/// An agent that fails again and again, beside the same container, is not started any more.
const ATTEMPTS: usize = 3;
/// The entry of an ephemeral container stays in its pod, so their number is bounded, whatever happens.
const MOST_AGENTS: usize = 20;
/// How soon to look again at what changes without telling.
const SOON: Duration = Duration::from_secs(1);
const LATER: Duration = Duration::from_secs(15);

/// What there is.
#[derive(Clone, Debug, Default, PartialEq)]
pub(crate) struct Observed {
    /// Pods that an agent can be in, in the order of their names.
    pub(crate) pods: Vec<ObservedPod>,
    /// Pods that no agent can be in, and why.
    pub(crate) unfit: Vec<String>,
    /// Why there is nothing at all.
    pub(crate) missing: Option<String>,
}

impl Observed {
    pub(crate) fn nothing(why: String) -> Self {
        Self {
            missing: Some(why),
            ..Self::default()
        }
    }
}

#[derive(Clone, Debug, PartialEq)]
pub(crate) struct ObservedPod {
    pub(crate) replica: Replica,
    pub(crate) address: Option<String>,
    /// The session's agents in it, the oldest first.
    pub(crate) agents: Vec<Ordered>,
}

/// What to do.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct Plan {
    pub(crate) start: Vec<Start>,
    /// Agents that are to end: their addresses.
    pub(crate) end: Vec<String>,
    /// The part of the status that the controller writes, if it is not there already.
    pub(crate) report: Option<Report>,
    /// Whether the object is to be deleted.
    pub(crate) delete: bool,
    /// Whether the object may go.
    pub(crate) release: bool,
    pub(crate) look_again: Duration,
}

#[derive(Clone, Debug, PartialEq)]
pub(crate) struct Start {
    pub(crate) replica: Replica,
    pub(crate) name: String,
    pub(crate) port: u16,
}

/// What the controller says about a session. The rest of the status is the replica's that carries the connection.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Report {
    pub(crate) phase: SessionPhase,
    pub(crate) message: Option<String>,
    pub(crate) pods: Vec<SessionPod>,
    pub(crate) next_channel: u32,
    pub(crate) closed: Option<SessionClosed>,
}

impl Report {
    fn of(status: &MirrordClusterSessionStatus) -> Option<Self> {
        Some(Self {
            phase: status.phase?,
            message: status.message.clone(),
            pods: status.pods.clone(),
            next_channel: status.next_channel,
            closed: status.closed.clone(),
        })
    }
}

pub(crate) fn plan(
    session: &MirrordClusterSession,
    wanted: Option<&Wanted>,
    observed: &Observed,
    settings: &SessionSettings,
    now: Timestamp,
) -> Plan {
    let status = session.status.clone().unwrap_or_default();
    let age = since(
        session
            .metadata
            .creation_timestamp
            .as_ref()
            .map(|time| time.0),
        now,
    );
    if session.metadata.deletion_timestamp.is_some() {
        return ending(&status);
    }
    if let Some(closed) = over(session, &status, age, settings, now) {
        let report = Report {
            phase: SessionPhase::Terminating,
            message: Some(closed.message.clone()),
            pods: status.pods.clone(),
            next_channel: status.next_channel,
            closed: Some(closed),
        };
        return Plan {
            delete: true,
            ..reporting(&status, report, SOON)
        };
    }
    match wanted {
        Some(wanted) => going_on(&status, wanted, observed, age),
        None => {
            let why = observed.missing.clone().unwrap_or_default();
            reporting(&status, failed(&status, why), LATER)
        }
    }
}

/// Agents end, and then the object.
fn ending(status: &MirrordClusterSessionStatus) -> Plan {
    let addresses = status.pods.iter().filter_map(|pod| pod.address.clone());
    Plan {
        start: Vec::new(),
        end: addresses.collect(),
        report: None,
        delete: false,
        release: true,
        look_again: LATER,
    }
}

/// Why a session is over, if it is.
fn over(
    session: &MirrordClusterSession,
    status: &MirrordClusterSessionStatus,
    age: Duration,
    settings: &SessionSettings,
    now: Timestamp,
) -> Option<SessionClosed> {
    let closed = |reason: &str, message: String| {
        Some(SessionClosed {
            reason: reason.to_owned(),
            message,
        })
    };
    if let Some(closed) = &status.closed {
        return Some(closed.clone());
    }
    if status.phase == Some(SessionPhase::Failed) {
        let message = status.message.clone().unwrap_or_default();
        return (age > KEPT).then(|| closed("Failed", message)).flatten();
    }
    let window = Duration::from_secs(session.spec.resume_window_secs);
    let seen = status.last_seen_timestamp.as_deref();
    match seen.and_then(|seen| seen.parse::<Timestamp>().ok()) {
        Some(seen) if since(Some(seen), now) > window.max(settings.time_to_live) => closed(
            "ClientGone",
            format!("the client was away for longer than {} s", window.as_secs()),
        ),
        // The client's request waits for the session, so it comes within moments, or never.
        None if age > STARTUP + settings.time_to_live => {
            closed("NeverConnected", "no client has come".to_owned())
        }
        _ => None,
    }
}

fn going_on(
    status: &MirrordClusterSessionStatus,
    wanted: &Wanted,
    observed: &Observed,
    age: Duration,
) -> Plan {
    let mut next_channel = status.next_channel;
    let mut start = Vec::new();
    let mut pods = Vec::new();
    for pod in &observed.pods {
        let known = status
            .pods
            .iter()
            .find(|known| known.uid == pod.replica.uid);
        let channel = known.map_or(next_channel + 1, |known| known.channel);
        next_channel = next_channel.max(channel);
        pods.push(covered(pod, channel));
        if needs_agent(pod) {
            start.push(next_agent(pod, wanted));
        }
    }
    let (phase, message) = phase(status, observed, &pods, age);
    let report = Report {
        phase,
        message,
        pods,
        next_channel,
        closed: None,
    };
    let look_again = if phase == SessionPhase::Pending {
        SOON
    } else {
        LATER
    };
    Plan {
        start: if phase == SessionPhase::Failed {
            Vec::new()
        } else {
            start
        },
        ..reporting(status, report, look_again)
    }
}

/// The agent that serves the container as it is now, if one does or may.
fn current(pod: &ObservedPod) -> Option<&Ordered> {
    let agents = pod.agents.iter().rev();
    agents
        .filter(|agent| agent.container_id == pod.replica.container_id)
        .find(|agent| !matches!(agent.state, OrderedState::Ended(_)))
}

fn failures(pod: &ObservedPod) -> impl Iterator<Item = &Ordered> {
    let agents = pod.agents.iter();
    agents.filter(|agent| agent.has_failed && agent.container_id == pod.replica.container_id)
}

fn needs_agent(pod: &ObservedPod) -> bool {
    current(pod).is_none() && failures(pod).count() < ATTEMPTS && pod.agents.len() < MOST_AGENTS
}

fn next_agent(pod: &ObservedPod, wanted: &Wanted) -> Start {
    let last = pod.agents.last().map_or(0, Ordered::number);
    let name = format!("{}{}", wanted.agent_prefix(), last + 1);
    Start {
        replica: pod.replica.clone(),
        port: port_of(&name),
        name,
    }
}

/// A port that another agent in the same pod is unlikely to have. One that has it ends, and the next gets another.
fn port_of(name: &str) -> u16 {
    let digest = Sha256::digest(name);
    let number = u16::from_be_bytes([digest[0], digest[1]]);
    PORTS.start + number % (PORTS.end - PORTS.start)
}

fn covered(pod: &ObservedPod, channel: u32) -> SessionPod {
    let agent = current(pod);
    let is_running = agent.is_some_and(|agent| agent.state == OrderedState::Running);
    let address = agent
        .filter(|_| is_running)
        .zip(pod.address.as_ref())
        .map(|(agent, address)| match address.contains(':') {
            true => format!("[{address}]:{}", agent.port),
            false => format!("{address}:{}", agent.port),
        });
    let error = match agent.map(|agent| &agent.state) {
        Some(OrderedState::Trouble(why)) => Some(why.clone()),
        None if pod.agents.len() >= MOST_AGENTS => Some(format!(
            "{MOST_AGENTS} agents of this session have been in it, and no more are started"
        )),
        None if !needs_agent(pod) => failures(pod).last().and_then(|agent| match &agent.state {
            OrderedState::Ended(why) => Some(why.clone()),
            _ => None,
        }),
        _ => None,
    };
    SessionPod {
        name: pod.replica.pod.clone(),
        uid: pod.replica.uid.clone(),
        container: pod.replica.container.clone(),
        channel,
        ready: address.is_some(),
        address,
        agent: agent.map(|agent| agent.name.clone()),
        error,
    }
}

fn phase(
    status: &MirrordClusterSessionStatus,
    observed: &Observed,
    pods: &[SessionPod],
    age: Duration,
) -> (SessionPhase, Option<String>) {
    if pods.iter().any(|pod| pod.ready) {
        let waiting = pods.iter().filter(|pod| !pod.ready).count();
        let message =
            (waiting > 0).then(|| format!("{waiting} of {} pods have no agent yet", pods.len()));
        return (SessionPhase::Ready, message);
    }
    let why = why_not(observed, pods);
    if status.phase == Some(SessionPhase::Ready) {
        // It has been well: pods come back, and the client waits.
        return (
            SessionPhase::Ready,
            Some(format!("no pod has an agent now: {why}")),
        );
    }
    let hopeless = !pods.is_empty() && pods.iter().all(|pod| pod.error.is_some());
    if hopeless || observed.missing.is_some() || age > STARTUP {
        return (SessionPhase::Failed, Some(why));
    }
    (SessionPhase::Pending, Some(why))
}

fn why_not(observed: &Observed, pods: &[SessionPod]) -> String {
    if let Some(missing) = &observed.missing {
        return missing.clone();
    }
    let errors = pods.iter().filter_map(|pod| {
        pod.error
            .as_ref()
            .map(|error| format!("pod {}: {error}", pod.name))
    });
    let reasons: Vec<String> = errors.chain(observed.unfit.iter().cloned()).collect();
    match (reasons.is_empty(), pods.is_empty()) {
        (false, _) => reasons.join("; "),
        (true, true) => "the target has no pods; is it scaled to zero?".to_owned(),
        (true, false) => "agents are being started".to_owned(),
    }
}

fn failed(status: &MirrordClusterSessionStatus, why: String) -> Report {
    Report {
        phase: SessionPhase::Failed,
        message: Some(why),
        pods: Vec::new(),
        next_channel: status.next_channel,
        closed: None,
    }
}

/// A plan that only reports, and that only if there is something new.
fn reporting(status: &MirrordClusterSessionStatus, report: Report, look_again: Duration) -> Plan {
    Plan {
        start: Vec::new(),
        end: Vec::new(),
        report: (Report::of(status).as_ref() != Some(&report)).then_some(report),
        delete: false,
        release: false,
        look_again,
    }
}

fn since(then: Option<Timestamp>, now: Timestamp) -> Duration {
    then.and_then(|then| Duration::try_from(then.duration_until(now)).ok())
        .unwrap_or_default()
}

#[cfg(test)]
mod tests;
