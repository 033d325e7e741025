//! Plans what to do about a session. Pure logic without I/O or clock.

mod agents;
mod report;

use std::time::Duration;

use api::session::{SessionClosed, SessionPhase};
use api::{MirrordClusterSession, MirrordClusterSessionStatus};
use cluster::Replica;
use jiff::Timestamp;

use self::agents::{current_agent, next_agent, obstacle, to_regrant};
pub(crate) use self::report::Report;
use self::report::{ReportedPod, failed, phase, report_pod};
use super::observed::{Observed, ObservedAgent, ObservedPod};
use super::validate::ValidatedSpec;
use crate::settings::{AgentMode, SessionSettings};

/// How long agents may take to start, before a session that has none fails.
pub(crate) const STARTUP_TIMEOUT: Duration = Duration::from_secs(60);
/// How long a deleted session waits for its agents to end. They end by themselves when their client does not reconnect.
const TERMINATION_TIMEOUT: Duration = Duration::from_secs(30);
/// The requeue delay while something changes without an event.
const SHORT_REQUEUE: Duration = Duration::from_secs(1);
const LONG_REQUEUE: Duration = Duration::from_secs(15);

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

/// Plans the deletion of a session that has ended and was not deleted yet, independent of its target and agents.
pub(crate) fn plan_close(
    session: &MirrordClusterSession,
    settings: &SessionSettings,
    now: Timestamp,
) -> Option<Plan> {
    let status = session.status.clone().unwrap_or_default();
    let closed = end_reason(session, &status, settings, now)?;
    Some(closing(&status, closed))
}

/// Plans the end of a session whose user may not have it. One that has not started yet fails with the reason.
pub(crate) fn plan_denied(
    session: &MirrordClusterSession,
    message: String,
    now: Timestamp,
) -> Plan {
    let status = session.status.clone().unwrap_or_default();
    match status.phase {
        None | Some(SessionPhase::Pending) => {
            reporting(&status, failed(&status, message, now), SHORT_REQUEUE)
        }
        // Its reason is kept, and its agents have ended.
        Some(SessionPhase::Failed) => no_changes(SHORT_REQUEUE),
        Some(SessionPhase::Ready | SessionPhase::Terminating) => {
            closing(&status, SessionClosed::denied(message))
        }
    }
}

/// When to reconcile the session again: as planned, and when it reaches its maximum age.
pub(crate) fn requeue_delay(
    session: &MirrordClusterSession,
    plan: &Plan,
    settings: &SessionSettings,
    now: Timestamp,
) -> Duration {
    let remaining = settings.remaining(age(session, now));
    remaining.map_or(plan.requeue_after, |remaining| {
        plan.requeue_after.min(remaining.max(SHORT_REQUEUE))
    })
}

fn closing(status: &MirrordClusterSessionStatus, closed: SessionClosed) -> Plan {
    let report = Report {
        phase: SessionPhase::Terminating,
        message: Some(closed.message.clone()),
        pods: status.pods.clone(),
        next_channel: status.next_channel,
        closed: Some(closed),
        failed_timestamp: status.failed_timestamp.clone(),
    };
    Plan {
        delete: true,
        ..reporting(status, report, SHORT_REQUEUE)
    }
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

fn running_agents<'a>(pods: impl IntoIterator<Item = &'a ObservedPod>) -> Vec<ObservedAgent> {
    let agents = pods.into_iter().flat_map(|pod| &pod.agents);
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
    if let Some(denied) = &status.denied {
        return Some(SessionClosed::denied(denied));
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
    let age = age(session, now);
    if let Some(closed) = settings.end_of_age(age) {
        return Some(closed);
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
        None if age > STARTUP_TIMEOUT + settings.time_to_live => {
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
        if pod.refused.is_none() {
            regrant.extend(to_regrant(pod, previous));
        }
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
        end: running_agents(
            observed
                .pods
                .iter()
                .filter(|pod| has_failed || pod.refused.is_some()),
        ),
        ..reporting(status, report, requeue_after)
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
