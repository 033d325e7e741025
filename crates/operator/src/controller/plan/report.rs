//! What a plan reports in the status of the session's object.

use std::time::Duration;

use api::MirrordClusterSessionStatus;
use api::session::{SessionClosed, SessionPhase, SessionPod};
use cluster::AgentInstanceState;
use jiff::Timestamp;

use super::STARTUP_TIMEOUT;
use super::agents::current_agent;
use crate::controller::observed::{Observed, ObservedAgent, ObservedPod, StartFailure};

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
    pub(super) fn of(status: &MirrordClusterSessionStatus) -> Option<Self> {
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

/// A pod as it is reported, and whether it can never have an agent.
pub(super) struct ReportedPod {
    pub(super) pod: SessionPod,
    pub(super) is_failed: bool,
}

pub(super) fn report_pod(
    pod: &ObservedPod,
    previous: Option<&SessionPod>,
    channel: u32,
    obstacle: Option<StartFailure>,
) -> SessionPod {
    let agent = current_agent(pod);
    let running = agent.filter(|agent| {
        pod.refused.is_none() && agent.instance.state == AgentInstanceState::Running
    });
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
        error: obstacle
            .map(|obstacle| obstacle.reason)
            .or_else(|| pod.grant_failure.as_deref().map(unconfirmed)),
    }
}

fn unconfirmed(reason: &str) -> String {
    format!(
        "its agent has not confirmed the current policies ({reason}); the session's traffic to it stops until it does"
    )
}

pub(super) fn phase(
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

pub(super) fn failed(
    status: &MirrordClusterSessionStatus,
    reason: String,
    now: Timestamp,
) -> Report {
    Report {
        phase: SessionPhase::Failed,
        message: Some(reason),
        pods: Vec::new(),
        next_channel: status.next_channel,
        closed: None,
        failed_timestamp: Some(now.to_string()),
    }
}
