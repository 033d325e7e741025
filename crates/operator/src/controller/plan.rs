//! Plans what to do about a session. Pure logic without I/O or clock.

use std::time::Duration;

use api::session::{SessionClosed, SessionPhase, SessionPod};
use api::{MirrordClusterSession, MirrordClusterSessionStatus};
use cluster::{AGENT_PORTS, AgentInstance, AgentInstanceState, Replica};
use jiff::Timestamp;
use sha2::{Digest as _, Sha256};

use super::validate::ValidatedSpec;
use crate::settings::{AgentMode, SessionSettings};

/// How long agents may take to start, before a session that has none fails.
pub(crate) const STARTUP_TIMEOUT: Duration = Duration::from_secs(60);
/// After this many failed agents for the same container, no further agent is started.
const MAX_FAILED_AGENTS: usize = 3;
/// After this many ended agents for the same container, for whatever reason, no further agent is started.
const MAX_ENDED_AGENTS: usize = 6;
/// The limit of agents that all sessions together may start in a pod: ephemeral containers are never removed from their
/// pod, and the size of an object is bounded.
const MAX_AGENTS_PER_POD: usize = 200;
/// How long a deleted session waits for its agents to end. They end by themselves when their client does not reconnect.
const TERMINATION_TIMEOUT: Duration = Duration::from_secs(30);
/// The requeue delay while something changes without an event.
const SHORT_REQUEUE: Duration = Duration::from_secs(1);
const LONG_REQUEUE: Duration = Duration::from_secs(15);

/// The observed state of a session's pods and agents.
#[derive(Clone, Debug, Default, PartialEq)]
pub(crate) struct Observed {
    /// Pods that can have an agent, sorted by name.
    pub(crate) pods: Vec<ObservedPod>,
    /// Pods that cannot have an agent, with the reason.
    pub(crate) unfit: Vec<String>,
    /// Why the session has no target at all.
    pub(crate) missing: Option<String>,
}

impl Observed {
    /// The state of a session without a target.
    pub(crate) fn missing(reason: String) -> Self {
        Self {
            missing: Some(reason),
            ..Self::default()
        }
    }
}

#[derive(Clone, Debug, PartialEq)]
pub(crate) struct ObservedPod {
    pub(crate) replica: Replica,
    /// The session's agents for this pod, the oldest first.
    pub(crate) agents: Vec<ObservedAgent>,
    /// A digest of the cached policies. They are read again before the agent's grant is changed.
    pub(crate) policies: String,
    /// The grant that the agent received in this reconciliation.
    pub(crate) new_grant: Option<GrantDigests>,
    /// Why an agent could not be started in this reconciliation.
    pub(crate) start_failure: Option<StartFailure>,
}

/// Digests of an agent's grant and of the policies that it was computed from.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct GrantDigests {
    pub(crate) policies: String,
    pub(crate) grant: String,
}

/// An agent of a session, in any agent mode.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct ObservedAgent {
    pub(crate) instance: AgentInstance,
    /// The address of the pod in which it runs.
    pub(crate) host: Option<String>,
    /// The SHA-256 of its certificate, if a trusted node agent reported it.
    pub(crate) certificate: Option<String>,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct StartFailure {
    pub(crate) reason: String,
    /// Whether a retry is pointless.
    pub(crate) is_final: bool,
}

impl ObservedAgent {
    fn has_ended(&self) -> bool {
        matches!(self.instance.state, AgentInstanceState::Ended(_))
    }

    /// The address at which the operator reaches the agent.
    pub(crate) fn address(&self) -> Option<String> {
        let host = self.host.as_ref()?;
        let port = self.instance.port;
        Some(match host.contains(':') {
            true => format!("[{host}]:{port}"),
            false => format!("{host}:{port}"),
        })
    }
}

/// What to do.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct Plan {
    pub(crate) start: Vec<Start>,
    /// Agents whose grant may be outdated.
    pub(crate) regrant: Vec<Regrant>,
    /// Agents to end.
    pub(crate) end: Vec<ObservedAgent>,
    /// The part of the status that the controller writes, if it has changed.
    pub(crate) report: Option<Report>,
    /// Whether to delete the object.
    pub(crate) delete: bool,
    /// Whether to remove the finalizer.
    pub(crate) release: bool,
    pub(crate) requeue_after: Duration,
}

#[derive(Clone, Debug, PartialEq)]
pub(crate) struct Start {
    pub(crate) replica: Replica,
    pub(crate) name: String,
    pub(crate) port: u16,
}

#[derive(Clone, Debug, PartialEq)]
pub(crate) struct Regrant {
    pub(crate) replica: Replica,
    pub(crate) agent: ObservedAgent,
    /// The digest of the policies that the agent's current grant was computed from.
    pub(crate) known_policies: Option<String>,
}

/// The part of the status that the controller writes. The replica that relays the connection writes the rest.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Report {
    pub(crate) phase: SessionPhase,
    pub(crate) message: Option<String>,
    pub(crate) pods: Vec<SessionPod>,
    pub(crate) next_channel: u32,
    pub(crate) closed: Option<SessionClosed>,
    pub(crate) failed_timestamp: Option<String>,
}

impl Report {
    fn of(status: &MirrordClusterSessionStatus) -> Option<Self> {
        Some(Self {
            phase: status.phase?,
            message: status.message.clone(),
            pods: status.pods.clone(),
            next_channel: status.next_channel,
            closed: status.closed.clone(),
            failed_timestamp: status.failed_timestamp.clone(),
        })
    }
}

/// Plans the deletion of a session that has ended and was not deleted yet, independent of its target and agents.
pub(crate) fn plan_close(
    session: &MirrordClusterSession,
    settings: &SessionSettings,
    now: Timestamp,
) -> Option<Plan> {
    let status = session.status.clone().unwrap_or_default();
    let closed = end_reason(session, &status, settings, now)?;
    let report = Report {
        phase: SessionPhase::Terminating,
        message: Some(closed.message.clone()),
        pods: status.pods.clone(),
        next_channel: status.next_channel,
        closed: Some(closed),
        failed_timestamp: status.failed_timestamp.clone(),
    };
    Some(Plan {
        delete: true,
        ..reporting(&status, report, SHORT_REQUEUE)
    })
}

/// Plans the next steps of a session that has not ended.
pub(crate) fn plan(
    session: &MirrordClusterSession,
    spec: Option<&ValidatedSpec>,
    observed: &Observed,
    mode: AgentMode,
    now: Timestamp,
) -> Plan {
    let status = session.status.clone().unwrap_or_default();
    if status.phase == Some(SessionPhase::Failed) {
        // The status is kept until the object is deleted, so that users can read the reason.
        return Plan {
            end: running_agents(&observed.pods),
            ..no_changes(SHORT_REQUEUE)
        };
    }
    match spec {
        Some(spec) => plan_active(&status, spec, observed, mode, age(session, now), now),
        None => {
            let reason = observed.missing.clone().unwrap_or_default();
            reporting(&status, failed(&status, reason, now), SHORT_REQUEUE)
        }
    }
}

/// Plans the steps after the deletion of a session: its agents are ended, then the finalizer is removed.
pub(crate) fn plan_deletion(
    session: &MirrordClusterSession,
    remaining: &[ObservedAgent],
    now: Timestamp,
) -> Plan {
    let running: Vec<_> = remaining
        .iter()
        .filter(|agent| !agent.has_ended())
        .collect();
    let deleted = session.metadata.deletion_timestamp.as_ref();
    let has_timed_out = since(deleted.map(|time| time.0), now) > TERMINATION_TIMEOUT;
    Plan {
        release: running.is_empty() || has_timed_out,
        end: running.into_iter().cloned().collect(),
        ..no_changes(SHORT_REQUEUE)
    }
}

fn no_changes(requeue_after: Duration) -> Plan {
    Plan {
        start: Vec::new(),
        regrant: Vec::new(),
        end: Vec::new(),
        report: None,
        delete: false,
        release: false,
        requeue_after,
    }
}

fn running_agents(pods: &[ObservedPod]) -> Vec<ObservedAgent> {
    let agents = pods.iter().flat_map(|pod| &pod.agents);
    agents.filter(|agent| !agent.has_ended()).cloned().collect()
}

fn age(session: &MirrordClusterSession, now: Timestamp) -> Duration {
    let created = session.metadata.creation_timestamp.as_ref();
    since(created.map(|time| time.0), now)
}

/// Why a session has ended, if it has.
fn end_reason(
    session: &MirrordClusterSession,
    status: &MirrordClusterSessionStatus,
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
        let failed = status.failed_timestamp.as_deref();
        let failed = failed.and_then(|failed| failed.parse::<Timestamp>().ok());
        // A status without the time of the failure was written by an older operator.
        let retention = settings.failed_retention();
        let is_old = failed.is_none_or(|failed| since(Some(failed), now) > retention);
        return is_old.then(|| closed("Failed", message)).flatten();
    }
    let window = Duration::from_secs(session.spec.resume_window_secs);
    let seen = status.last_seen_timestamp.as_deref();
    match seen.and_then(|seen| seen.parse::<Timestamp>().ok()) {
        Some(seen) if since(Some(seen), now) > window.max(settings.time_to_live) => closed(
            "ClientGone",
            format!(
                "the client was disconnected for longer than {} s",
                window.as_secs()
            ),
        ),
        // The client's request waits for the session, so the client connects within moments or never.
        None if age(session, now) > STARTUP_TIMEOUT + settings.time_to_live => {
            closed("NeverConnected", "no client connected".to_owned())
        }
        _ => None,
    }
}

fn plan_active(
    status: &MirrordClusterSessionStatus,
    spec: &ValidatedSpec,
    observed: &Observed,
    mode: AgentMode,
    age: Duration,
    now: Timestamp,
) -> Plan {
    let mut next_channel = status.next_channel.max(spec.number_offset);
    let mut start = Vec::new();
    let mut regrant = Vec::new();
    let mut pods = Vec::new();
    for pod in &observed.pods {
        let previous = status
            .pods
            .iter()
            .find(|previous| previous.uid == pod.replica.uid);
        let channel = previous.map_or(next_channel + 1, |previous| previous.channel);
        next_channel = next_channel.max(channel);
        let obstacle = obstacle(pod, mode, spec.number_offset);
        if obstacle.is_none() && current_agent(pod).is_none() {
            start.push(next_agent(pod, previous, spec));
        }
        regrant.extend(to_regrant(pod, previous));
        pods.push(ReportedPod {
            is_failed: obstacle.as_ref().is_some_and(|obstacle| obstacle.is_final),
            pod: report_pod(pod, previous, channel, obstacle),
        });
    }
    let (phase, message) = phase(status, observed, &pods, age);
    let has_failed = phase == SessionPhase::Failed;
    let report = Report {
        phase,
        message,
        pods: pods.into_iter().map(|reported| reported.pod).collect(),
        next_channel,
        closed: None,
        failed_timestamp: has_failed.then(|| now.to_string()),
    };
    let requeue_after = match phase {
        SessionPhase::Ready if regrant.is_empty() => LONG_REQUEUE,
        _ => SHORT_REQUEUE,
    };
    Plan {
        start: if has_failed { Vec::new() } else { start },
        regrant,
        end: if has_failed {
            running_agents(&observed.pods)
        } else {
            Vec::new()
        },
        ..reporting(status, report, requeue_after)
    }
}

/// A running agent whose grant is from before a change of policies. The session's object has the digest of its policies.
fn to_regrant(pod: &ObservedPod, previous: Option<&SessionPod>) -> Option<Regrant> {
    if pod.new_grant.is_some() {
        return None;
    }
    let agent =
        current_agent(pod).filter(|agent| agent.instance.state == AgentInstanceState::Running)?;
    let known_policies = previous.and_then(|previous| previous.policies.clone());
    (known_policies.as_deref() != Some(&pod.policies)).then(|| Regrant {
        replica: pod.replica.clone(),
        agent: agent.clone(),
        known_policies,
    })
}

/// A pod as it is reported, and whether it can never have an agent.
struct ReportedPod {
    pod: SessionPod,
    is_failed: bool,
}

/// The agent that serves the current container, or is being started for it.
fn current_agent(pod: &ObservedPod) -> Option<&ObservedAgent> {
    agents_of_container(pod)
        .filter(|agent| !agent.has_ended())
        .last()
}

/// The agents of the current container. A restarted container is another container, so earlier agents do not count.
fn agents_of_container(pod: &ObservedPod) -> impl Iterator<Item = &ObservedAgent> {
    let agents = pod.agents.iter();
    agents.filter(|agent| agent.instance.container_id == pod.replica.container_id)
}

/// Why a pod cannot have an agent, if it cannot.
fn obstacle(pod: &ObservedPod, mode: AgentMode, number_offset: u32) -> Option<StartFailure> {
    let finally = |reason: String| {
        Some(StartFailure {
            reason,
            is_final: true,
        })
    };
    if let Some(agent) = current_agent(pod) {
        return match &agent.instance.state {
            AgentInstanceState::FailingToStart(reason) => finally(reason.clone()),
            _ => None,
        };
    }
    // Agents of an earlier session with the same name do not count.
    let before = usize::try_from(number_offset).unwrap_or_default();
    let is_own = |agent: &&ObservedAgent| agent.instance.number() > before;
    let ended = || agents_of_container(pod).filter(|agent| agent.has_ended() && is_own(agent));
    let failures = ended().filter(|agent| agent.instance.has_failed);
    if failures.count() >= MAX_FAILED_AGENTS || ended().count() >= MAX_ENDED_AGENTS {
        let last = ended().last().map(|agent| &agent.instance.state);
        return finally(match last {
            Some(AgentInstanceState::Ended(reason)) => reason.clone(),
            _ => "its agents end again and again".to_owned(),
        });
    }
    if mode == AgentMode::Ephemeral && pod.replica.finished_agents >= MAX_AGENTS_PER_POD {
        return finally(format!(
            "the pod has had {MAX_AGENTS_PER_POD} ephemeral agent containers, which is the limit. Restart the pod, or use \
             node agents (`operator.agent.mode: node`)"
        ));
    }
    pod.start_failure.clone()
}

/// The next agent of a pod. Its name is unique among all agents of the session, also among agents that are not listed any
/// more: clients distinguish agents by name.
fn next_agent(pod: &ObservedPod, previous: Option<&SessionPod>, spec: &ValidatedSpec) -> Start {
    let reported = previous
        .and_then(|previous| previous.agent.as_deref()?.rsplit('-').next()?.parse().ok())
        .unwrap_or(0);
    let observed = pod.agents.last().map_or(0, |agent| agent.instance.number());
    let before = usize::try_from(spec.number_offset).unwrap_or_default();
    let digest = Sha256::digest(&pod.replica.uid);
    let name = format!(
        "{}{:02x}{:02x}{:02x}{:02x}-{}",
        spec.agent_prefix(),
        digest[0],
        digest[1],
        digest[2],
        digest[3],
        observed.max(reported).max(before) + 1
    );
    Start {
        replica: pod.replica.clone(),
        port: port_of(&name),
        name,
    }
}

/// A port that another agent in the same pod is unlikely to use. If it is in use, the agent ends and the next one gets
/// another port.
fn port_of(name: &str) -> u16 {
    let digest = Sha256::digest(name);
    let number = u16::from_be_bytes([digest[0], digest[1]]);
    // Each agent has a pair of ports: for its client, and for the operator.
    let pairs = (AGENT_PORTS.end - AGENT_PORTS.start) / 2;
    AGENT_PORTS.start + number % pairs * 2
}

fn report_pod(
    pod: &ObservedPod,
    previous: Option<&SessionPod>,
    channel: u32,
    obstacle: Option<StartFailure>,
) -> SessionPod {
    let agent = current_agent(pod);
    let running = agent.filter(|agent| agent.instance.state == AgentInstanceState::Running);
    let address = running.and_then(ObservedAgent::address);
    SessionPod {
        name: pod.replica.pod.clone(),
        uid: pod.replica.uid.clone(),
        container: pod.replica.container.clone(),
        channel,
        ready: address.is_some(),
        address,
        agent: match agent {
            Some(agent) => Some(agent.instance.name.clone()),
            // The previous agent, so that the next one gets another name.
            None => previous.and_then(|previous| previous.agent.clone()),
        },
        certificate: running.and_then(|agent| agent.certificate.clone()),
        policies: match &pod.new_grant {
            Some(new_grant) => Some(new_grant.policies.clone()),
            None => previous.and_then(|previous| previous.policies.clone()),
        },
        grant: match &pod.new_grant {
            Some(new_grant) => Some(new_grant.grant.clone()),
            None => previous.and_then(|previous| previous.grant.clone()),
        },
        error: obstacle.map(|obstacle| obstacle.reason),
    }
}

fn phase(
    status: &MirrordClusterSessionStatus,
    observed: &Observed,
    reported: &[ReportedPod],
    age: Duration,
) -> (SessionPhase, Option<String>) {
    let pods: Vec<&SessionPod> = reported.iter().map(|reported| &reported.pod).collect();
    if pods.iter().any(|pod| pod.ready) {
        let pending = pods.iter().filter(|pod| !pod.ready).count();
        let message =
            (pending > 0).then(|| format!("{pending} of {} pods have no agent yet", pods.len()));
        return (SessionPhase::Ready, message);
    }
    let reason = pending_reason(observed, &pods);
    if status.phase == Some(SessionPhase::Ready) {
        // The session was ready before: the target may get new pods, and the client waits for them.
        return (
            SessionPhase::Ready,
            Some(format!("no pod has an agent now: {reason}")),
        );
    }
    let all_failed = !pods.is_empty() && reported.iter().all(|reported| reported.is_failed);
    if all_failed || observed.missing.is_some() || age > STARTUP_TIMEOUT {
        return (SessionPhase::Failed, Some(reason));
    }
    (SessionPhase::Pending, Some(reason))
}

fn pending_reason(observed: &Observed, pods: &[&SessionPod]) -> String {
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

fn failed(status: &MirrordClusterSessionStatus, reason: String, now: Timestamp) -> Report {
    Report {
        phase: SessionPhase::Failed,
        message: Some(reason),
        pods: Vec::new(),
        next_channel: status.next_channel,
        closed: None,
        failed_timestamp: Some(now.to_string()),
    }
}

/// A plan that only reports, if the status has changed.
fn reporting(
    status: &MirrordClusterSessionStatus,
    report: Report,
    requeue_after: Duration,
) -> Plan {
    Plan {
        report: (Report::of(status).as_ref() != Some(&report)).then_some(report),
        ..no_changes(requeue_after)
    }
}

fn since(then: Option<Timestamp>, now: Timestamp) -> Duration {
    then.and_then(|then| Duration::try_from(then.duration_until(now)).ok())
        .unwrap_or_default()
}

#[cfg(test)]
mod tests;
