//! Plans what to do about a session over several clusters. Pure logic without I/O or clock.

use std::collections::BTreeMap;
use std::time::Duration;

use api::multicluster::{
    ClusterSession, MultiClusterPhase, OnUnreachable, PARENT_UID_LABEL, child_name,
};
use api::session::{SessionClosed, SessionPhase, SessionPod};
use api::{MirrordClusterSession, MirrordMultiClusterSession, MirrordMultiClusterSessionStatus};
use jiff::Timestamp;
use kube::ResourceExt as _;

use crate::settings::SessionSettings;

/// How long children may take to become ready.
const STARTUP_TIMEOUT: Duration = Duration::from_secs(60);
/// The requeue delay after a failed attempt. Changes trigger reconciliations by themselves.
const SHORT_REQUEUE: Duration = Duration::from_secs(1);
const LONG_REQUEUE: Duration = Duration::from_secs(10);
/// How long the creation of a child may take to become visible. It is longer than the timeout of the request.
const CREATION_TIMEOUT: Duration = Duration::from_secs(10);
/// The delay before a cluster joins for the third time. It doubles with each further time.
const MIN_REJOIN_DELAY: Duration = Duration::from_secs(10);

/// A child, as observed in its cluster.
#[derive(Clone, Debug, PartialEq)]
pub(super) enum Observed {
    Present(Box<MirrordClusterSession>),
    Missing,
    Unreachable(String),
    /// The cluster was not observed yet, as after a restart of this operator.
    Unknown,
    /// The cluster is not configured as a member any more.
    Unconfigured,
}

impl Observed {
    /// The child, if it belongs to the parent. Another Primary, or an earlier parent, may have a session with the same number.
    /// A child without the label was created by an older operator.
    fn own(&self, parent: &MirrordMultiClusterSession) -> Option<&MirrordClusterSession> {
        let Self::Present(child) = self else {
            return None;
        };
        let parent_uid = child.labels().get(PARENT_UID_LABEL);
        let is_own = parent_uid.is_none() || parent_uid == parent.metadata.uid.as_ref();
        is_own.then_some(child)
    }
}

/// What to do.
#[derive(Clone, Debug, PartialEq)]
pub(super) struct Plan {
    /// Clusters in which to create the child.
    pub(super) create: Vec<String>,
    /// Children to delete: cluster and name.
    pub(super) remove: Vec<(String, String)>,
    /// The part of the status that the controller writes, if it has changed.
    pub(super) report: Option<Report>,
    /// Whether to delete the parent.
    pub(super) delete: bool,
    /// Whether to remove the parent's finalizer.
    pub(super) release: bool,
    pub(super) requeue_after: Duration,
}

/// The part of the status that the controller writes. The relay writes when the client was last connected.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Report {
    pub(super) phase: MultiClusterPhase,
    pub(super) message: Option<String>,
    pub(super) cluster_sessions: BTreeMap<String, ClusterSession>,
    pub(super) closed: Option<SessionClosed>,
    pub(super) failed_timestamp: Option<String>,
}

impl Report {
    fn of(status: &MirrordMultiClusterSessionStatus) -> Option<Self> {
        Some(Self {
            phase: status.phase?,
            message: status.message.clone(),
            cluster_sessions: status.cluster_sessions.clone(),
            closed: status.closed.clone(),
            failed_timestamp: status.failed_timestamp.clone(),
        })
    }
}

pub(super) fn plan(
    parent: &MirrordMultiClusterSession,
    observed: &BTreeMap<String, Observed>,
    settings: &SessionSettings,
    now: Timestamp,
) -> Plan {
    let status = parent.status.clone().unwrap_or_default();
    let created = parent.metadata.creation_timestamp.as_ref();
    let age = since(created.map(|time| time.0), now);
    if let Some(deleted) = &parent.metadata.deletion_timestamp {
        return plan_deletion(parent, &status, observed, since(Some(deleted.0), now));
    }
    if let Some(closed) = end_reason(parent, &status, observed, age, settings, now) {
        let report = Report {
            phase: MultiClusterPhase::Terminating,
            message: Some(closed.message.clone()),
            cluster_sessions: status.cluster_sessions.clone(),
            closed: Some(closed),
            failed_timestamp: status.failed_timestamp.clone(),
        };
        return Plan {
            delete: true,
            ..reporting(&status, report, SHORT_REQUEUE)
        };
    }
    match status.phase {
        None => plan_initial(parent, &status),
        Some(MultiClusterPhase::Failed) => no_changes(LONG_REQUEUE),
        Some(_) => plan_active(parent, &status, observed, age, now),
    }
}

/// Records the children in the status before they are created, so that none is leaked.
fn plan_initial(
    parent: &MirrordMultiClusterSession,
    status: &MirrordMultiClusterSessionStatus,
) -> Plan {
    let children = parent.spec.clusters.iter().map(|cluster| {
        let child = ClusterSession {
            session_name: child_name(&parent.name_any(), cluster),
            ..ClusterSession::default()
        };
        (cluster.clone(), child)
    });
    let report = Report {
        phase: MultiClusterPhase::Initializing,
        message: None,
        cluster_sessions: children.collect(),
        closed: None,
        failed_timestamp: None,
    };
    reporting(status, report, SHORT_REQUEUE)
}

fn plan_active(
    parent: &MirrordMultiClusterSession,
    status: &MirrordMultiClusterSessionStatus,
    observed: &BTreeMap<String, Observed>,
    age: Duration,
    now: Timestamp,
) -> Plan {
    let was_ready = status.phase == Some(MultiClusterPhase::Ready);
    let mut create = Vec::new();
    let mut children = BTreeMap::new();
    for (cluster, previous) in &status.cluster_sessions {
        let (child, is_missing) = update_child(parent, previous, observed.get(cluster), now);
        if is_missing {
            create.push(cluster.clone());
        }
        children.insert(cluster.clone(), child);
    }
    let (phase, message) = phase(parent, &children, observed, was_ready, age);
    let is_complete = children.values().all(|child| child.ready);
    let has_failed = phase == MultiClusterPhase::Failed;
    let report = Report {
        phase,
        message,
        cluster_sessions: children,
        closed: None,
        failed_timestamp: has_failed.then(|| now.to_string()),
    };
    if has_failed {
        create.clear();
    }
    let requeue_after = if create.is_empty() && is_complete {
        LONG_REQUEUE
    } else {
        SHORT_REQUEUE
    };
    Plan {
        create,
        ..reporting(status, report, requeue_after)
    }
}

/// The new state of a child, and whether to create it. A child that has disappeared is created again after its new generation
/// is recorded in the status.
fn update_child(
    parent: &MirrordMultiClusterSession,
    previous: &ClusterSession,
    observed: Option<&Observed>,
    now: Timestamp,
) -> (ClusterSession, bool) {
    let not_ready = |error: Option<String>| ClusterSession {
        ready: false,
        error,
        ..previous.clone()
    };
    match observed.unwrap_or(&Observed::Unconfigured) {
        found @ Observed::Present(_) => match found.own(parent) {
            Some(child) => (observed_child(previous, child), false),
            None => {
                let why = "another session has this one's name there; it has to end first";
                (not_ready(Some(why.to_owned())), false)
            }
        },
        Observed::Missing if previous.made => {
            let next = ClusterSession {
                session_name: previous.session_name.clone(),
                generation: previous.generation.wrapping_add(1),
                error: Some("its child was ended; it joins again".to_owned()),
                left_timestamp: Some(now.to_string()),
                ..ClusterSession::default()
            };
            (next, false)
        }
        Observed::Missing => (not_ready(previous.error.clone()), may_join(previous, now)),
        Observed::Unreachable(why) => (not_ready(Some(why.clone())), false),
        Observed::Unconfigured => {
            let why = "the cluster is not configured any more";
            (not_ready(Some(why.to_owned())), false)
        }
        Observed::Unknown => (previous.clone(), false),
    }
}

fn observed_child(previous: &ClusterSession, child: &MirrordClusterSession) -> ClusterSession {
    let status = child.status.clone().unwrap_or_default();
    let is_deleted = child.metadata.deletion_timestamp.is_some();
    let has_failed = matches!(
        status.phase,
        Some(SessionPhase::Failed | SessionPhase::Terminating)
    );
    ClusterSession {
        session_name: previous.session_name.clone(),
        ready: status.phase == Some(SessionPhase::Ready) && !is_deleted,
        error: (has_failed || is_deleted).then(|| {
            status
                .message
                .unwrap_or_else(|| "it is being deleted".to_owned())
        }),
        last_heartbeat: status.last_seen_timestamp,
        made: true,
        generation: previous.generation,
        pods: without_addresses(status.pods),
        ports: status.ports,
        left_timestamp: previous.left_timestamp.clone(),
    }
}

/// Removes the addresses, which are only valid in their cluster.
fn without_addresses(mut pods: Vec<SessionPod>) -> Vec<SessionPod> {
    for pod in &mut pods {
        pod.address = None;
    }
    pods
}

/// Whether the delay before a cluster joins again is over. Each time that a cluster joins, agents are started in its pods, so
/// the delay grows.
fn may_join(previous: &ClusterSession, now: Timestamp) -> bool {
    let left = previous.left_timestamp.as_deref();
    let left = left.and_then(|left| left.parse::<Timestamp>().ok());
    let doublings = previous.generation.saturating_sub(2).min(6);
    let delay = match previous.generation {
        0 | 1 => Duration::ZERO,
        _ => MIN_REJOIN_DELAY * 2_u32.pow(doublings),
    };
    left.is_none_or(|left| since(Some(left), now) >= delay)
}

/// Whether a session needs its child in a cluster.
fn is_required(parent: &MirrordMultiClusterSession, cluster: &str) -> bool {
    match parent.spec.on_unreachable {
        OnUnreachable::Fail => true,
        OnUnreachable::Continue => cluster == parent.spec.default_cluster,
    }
}

fn phase(
    parent: &MirrordMultiClusterSession,
    children: &BTreeMap<String, ClusterSession>,
    observed: &BTreeMap<String, Observed>,
    was_ready: bool,
    age: Duration,
) -> (MultiClusterPhase, Option<String>) {
    let pending: Vec<(&String, String)> = children
        .iter()
        .filter(|(_, child)| !child.ready)
        .map(|(cluster, child)| match &child.error {
            Some(error) => (cluster, format!("{cluster}: {error}")),
            None => (cluster, format!("{cluster}: agents are being started")),
        })
        .collect();
    let reasons: Vec<&str> = pending.iter().map(|(_, reason)| reason.as_str()).collect();
    let message = (!reasons.is_empty()).then(|| reasons.join("; "));
    let required: Vec<&String> = pending
        .iter()
        .map(|(cluster, _)| *cluster)
        .filter(|cluster| is_required(parent, cluster))
        .collect();
    // A session that was ready stays ready with its other clusters: an unreachable cluster may recover.
    if was_ready || required.is_empty() {
        return (MultiClusterPhase::Ready, message);
    }
    let has_failed = |cluster: &&String| {
        let child = observed.get(*cluster).and_then(|found| found.own(parent));
        let status = child.and_then(|child| child.status.as_ref());
        status.and_then(|status| status.phase) == Some(SessionPhase::Failed)
    };
    // A cluster that was not observed yet is no reason to fail, however old the session is.
    let is_late = |cluster: &&String| {
        age > STARTUP_TIMEOUT && !matches!(observed.get(*cluster), Some(Observed::Unknown))
    };
    if required.iter().any(has_failed) || required.iter().any(is_late) {
        return (MultiClusterPhase::Failed, message);
    }
    (MultiClusterPhase::Pending, message)
}

/// Why a session has ended, if it has.
fn end_reason(
    parent: &MirrordMultiClusterSession,
    status: &MirrordMultiClusterSessionStatus,
    observed: &BTreeMap<String, Observed>,
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
    let seen = status.connected_timestamp.as_deref();
    let seen = seen.and_then(|seen| seen.parse::<Timestamp>().ok());
    let window = Duration::from_secs(parent.spec.resume_window_secs).max(settings.time_to_live);
    match (status.phase, seen) {
        (Some(MultiClusterPhase::Failed), _) => {
            let message = status.message.clone().unwrap_or_default();
            let failed = status.failed_timestamp.as_deref();
            let failed = failed.and_then(|failed| failed.parse::<Timestamp>().ok());
            // A status without the time of the failure was written by an older operator.
            let retention = settings.failed_retention();
            let is_old = failed.is_none_or(|failed| since(Some(failed), now) > retention);
            is_old.then(|| closed("Failed", message)).flatten()
        }
        (_, Some(seen)) if since(Some(seen), now) > window => closed(
            "ClientGone",
            format!(
                "the client was disconnected for longer than {} s",
                window.as_secs()
            ),
        ),
        // The client's request waits for the session, so the client connects within moments or never.
        (_, None) if age > STARTUP_TIMEOUT + settings.time_to_live => {
            closed("NeverConnected", "no client connected".to_owned())
        }
        (Some(MultiClusterPhase::Ready), _) => {
            ended_child(parent, status, observed).and_then(|message| closed("ChildEnded", message))
        }
        _ => None,
    }
}

/// Why a required child has ended, if one has: it is missing or being deleted in its cluster. The session ends with it.
fn ended_child(
    parent: &MirrordMultiClusterSession,
    status: &MirrordMultiClusterSessionStatus,
    observed: &BTreeMap<String, Observed>,
) -> Option<String> {
    let children = status.cluster_sessions.keys();
    let mut required = children.filter(|cluster| is_required(parent, cluster));
    required.find_map(|cluster| {
        let found = observed.get(cluster)?;
        if *found == Observed::Missing {
            return Some(format!("its child in {cluster} was ended"));
        }
        let child = found.own(parent)?;
        child.metadata.deletion_timestamp.as_ref()?;
        let closed = child.status.as_ref()?.closed.as_ref();
        let why = closed.map_or("it was deleted there", |closed| closed.message.as_str());
        Some(format!("its child in {cluster} has ended: {why}"))
    })
}

/// Plans the steps after the deletion of a parent: its children are deleted, then its finalizer is removed. A child in an
/// unreachable cluster ends by itself after its resume window. `elapsed` is the time since the deletion.
fn plan_deletion(
    parent: &MirrordMultiClusterSession,
    status: &MirrordMultiClusterSessionStatus,
    observed: &BTreeMap<String, Observed>,
    elapsed: Duration,
) -> Plan {
    let timeout = Duration::from_secs(parent.spec.resume_window_secs) + STARTUP_TIMEOUT;
    let mut remove = Vec::new();
    let mut is_done = true;
    let mut children = status.cluster_sessions.clone();
    for (cluster, child) in &mut children {
        let (is_gone, is_deleted) = match observed.get(cluster).unwrap_or(&Observed::Unconfigured) {
            Observed::Unconfigured => (true, false),
            // The creation of a child that was never observed may be in progress.
            Observed::Missing => (child.made || elapsed > CREATION_TIMEOUT, false),
            Observed::Unknown => (elapsed > timeout, false),
            // The API server may be reachable while the operator is not.
            Observed::Unreachable(_) => (elapsed > timeout, child.made),
            found @ Observed::Present(_) => match found.own(parent) {
                Some(found) => {
                    child.made = true;
                    (false, found.metadata.deletion_timestamp.is_none())
                }
                None => (true, false),
            },
        };
        if is_deleted {
            remove.push((cluster.clone(), child.session_name.clone()));
        }
        is_done &= is_gone;
    }
    // The reason of a failure, or of the termination, is kept. A message of an active session is replaced.
    let is_final = matches!(
        status.phase,
        Some(MultiClusterPhase::Failed | MultiClusterPhase::Terminating)
    );
    let message = status.message.clone().filter(|_| is_final);
    let message = message.unwrap_or_else(|| "the session was ended".to_owned());
    let report = Report {
        phase: MultiClusterPhase::Terminating,
        message: Some(message),
        cluster_sessions: children,
        closed: status.closed.clone(),
        failed_timestamp: status.failed_timestamp.clone(),
    };
    let reporting = match is_done {
        true => no_changes(SHORT_REQUEUE),
        false => reporting(status, report, SHORT_REQUEUE),
    };
    Plan {
        remove,
        release: is_done,
        ..reporting
    }
}

fn no_changes(requeue_after: Duration) -> Plan {
    Plan {
        create: Vec::new(),
        remove: Vec::new(),
        report: None,
        delete: false,
        release: false,
        requeue_after,
    }
}

/// A plan that only reports, if the status has changed.
fn reporting(
    status: &MirrordMultiClusterSessionStatus,
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
