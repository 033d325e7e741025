//! What to do about a session over several clusters. Decides everything, does nothing, and has no clock.

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

/// How long children may take to be ready.
const STARTUP: Duration = Duration::from_secs(60);
/// How long a session that failed is kept for people to look at.
const KEPT: Duration = Duration::from_secs(60);
/// Changes are told, so this is only for what was tried and did not succeed.
const SOON: Duration = Duration::from_secs(1);
const LATER: Duration = Duration::from_secs(10);
/// How long an attempt to make a child may take to show. It is longer than anybody waits for the answer.
const UNDER_WAY: Duration = Duration::from_secs(10);
/// Before a cluster joins for the third time.
const FIRST_PAUSE: Duration = Duration::from_secs(10);

/// A child, as its cluster says.
#[derive(Clone, Debug, PartialEq)]
pub(super) enum Observed {
    There(Box<MirrordClusterSession>),
    Missing,
    Unreachable(String),
    /// The cluster has not said yet, as after a restart of this operator.
    Unknown,
    /// The cluster is no member any more.
    Unconfigured,
}

impl Observed {
    /// The child, if it is the parent's own. Another Primary may have a session of the same number, and so may one that was
    /// here before. One without the label is of an older operator.
    fn own(&self, parent: &MirrordMultiClusterSession) -> Option<&MirrordClusterSession> {
        let Self::There(child) = self else {
            return None;
        };
        let made_by = child.labels().get(PARENT_UID_LABEL);
        let is_own = made_by.is_none() || made_by == parent.metadata.uid.as_ref();
        is_own.then_some(child)
    }
}

/// What to do.
#[derive(Clone, Debug, PartialEq)]
pub(super) struct Plan {
    /// Clusters in which the child is to be made.
    pub(super) create: Vec<String>,
    /// Children that are to go: cluster and name.
    pub(super) remove: Vec<(String, String)>,
    /// The part of the status that the controller writes, if it is not there already.
    pub(super) report: Option<Report>,
    /// Whether the parent is to be deleted.
    pub(super) delete: bool,
    /// Whether the parent may go.
    pub(super) release: bool,
    pub(super) look_again: Duration,
}

/// What the controller says. When the client was seen is the relay's to say.
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
        return ending(parent, &status, observed, since(Some(deleted.0), now));
    }
    if let Some(closed) = over(parent, &status, observed, age, settings, now) {
        let report = Report {
            phase: MultiClusterPhase::Terminating,
            message: Some(closed.message.clone()),
            cluster_sessions: status.cluster_sessions.clone(),
            closed: Some(closed),
            failed_timestamp: status.failed_timestamp.clone(),
        };
        return Plan {
            delete: true,
            ..reporting(&status, report, SOON)
        };
    }
    match status.phase {
        None => beginning(parent, &status),
        Some(MultiClusterPhase::Failed) => nothing(LATER),
        Some(_) => going_on(parent, &status, observed, age, now),
    }
}

/// Writes down which children there will be, so that each of them is found again, whatever happens next.
fn beginning(
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
    reporting(status, report, SOON)
}

fn going_on(
    parent: &MirrordMultiClusterSession,
    status: &MirrordMultiClusterSessionStatus,
    observed: &BTreeMap<String, Observed>,
    age: Duration,
    now: Timestamp,
) -> Plan {
    let was_ready = status.phase == Some(MultiClusterPhase::Ready);
    let mut create = Vec::new();
    let mut children = BTreeMap::new();
    for (cluster, known) in &status.cluster_sessions {
        let (child, is_wanted) = judged(parent, known, observed.get(cluster), now);
        if is_wanted {
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
    let look_again = if create.is_empty() && is_complete {
        LATER
    } else {
        SOON
    };
    Plan {
        create,
        ..reporting(status, report, look_again)
    }
}

/// A child as it is now, and whether it is to be made. One that has been there and is not any more is made again when that
/// is written down.
fn judged(
    parent: &MirrordMultiClusterSession,
    known: &ClusterSession,
    observed: Option<&Observed>,
    now: Timestamp,
) -> (ClusterSession, bool) {
    let not_ready = |error: Option<String>| ClusterSession {
        ready: false,
        error,
        ..known.clone()
    };
    match observed.unwrap_or(&Observed::Unconfigured) {
        found @ Observed::There(_) => match found.own(parent) {
            Some(child) => (seen(known, child), false),
            None => {
                let why = "another session has this one's name there; it has to end first";
                (not_ready(Some(why.to_owned())), false)
            }
        },
        Observed::Missing if known.made => {
            let next = ClusterSession {
                session_name: known.session_name.clone(),
                generation: known.generation.wrapping_add(1),
                error: Some("its part there was ended; it joins again".to_owned()),
                left_timestamp: Some(now.to_string()),
                ..ClusterSession::default()
            };
            (next, false)
        }
        Observed::Missing => (not_ready(known.error.clone()), may_join(known, now)),
        Observed::Unreachable(why) => (not_ready(Some(why.clone())), false),
        Observed::Unconfigured => {
            let why = "the cluster is not configured any more";
            (not_ready(Some(why.to_owned())), false)
        }
        Observed::Unknown => (known.clone(), false),
    }
}

fn seen(known: &ClusterSession, child: &MirrordClusterSession) -> ClusterSession {
    let status = child.status.clone().unwrap_or_default();
    let is_going = child.metadata.deletion_timestamp.is_some();
    let has_failed = matches!(
        status.phase,
        Some(SessionPhase::Failed | SessionPhase::Terminating)
    );
    ClusterSession {
        session_name: known.session_name.clone(),
        ready: status.phase == Some(SessionPhase::Ready) && !is_going,
        error: (has_failed || is_going).then(|| {
            status
                .message
                .unwrap_or_else(|| "it is being ended there".to_owned())
        }),
        last_heartbeat: status.last_seen_timestamp,
        made: true,
        generation: known.generation,
        pods: pods_of(status.pods),
        ports: status.ports,
        left_timestamp: known.left_timestamp.clone(),
    }
}

/// Addresses are of use in their cluster alone.
fn pods_of(mut pods: Vec<SessionPod>) -> Vec<SessionPod> {
    for pod in &mut pods {
        pod.address = None;
    }
    pods
}

/// A cluster that leaves again and again has agents started in its pods again and again, so it waits longer each time.
fn may_join(known: &ClusterSession, now: Timestamp) -> bool {
    let left = known.left_timestamp.as_deref();
    let left = left.and_then(|left| left.parse::<Timestamp>().ok());
    let doublings = known.generation.saturating_sub(2).min(6);
    let pause = match known.generation {
        0 | 1 => Duration::ZERO,
        _ => FIRST_PAUSE * 2_u32.pow(doublings),
    };
    left.is_none_or(|left| since(Some(left), now) >= pause)
}

/// Whether a session cannot be without its part in a cluster.
fn is_needed(parent: &MirrordMultiClusterSession, cluster: &str) -> bool {
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
    let waiting: Vec<(&String, String)> = children
        .iter()
        .filter(|(_, child)| !child.ready)
        .map(|(cluster, child)| match &child.error {
            Some(error) => (cluster, format!("{cluster}: {error}")),
            None => (cluster, format!("{cluster}: agents are being started")),
        })
        .collect();
    let why: Vec<&str> = waiting.iter().map(|(_, why)| why.as_str()).collect();
    let why = (!why.is_empty()).then(|| why.join("; "));
    let needed: Vec<&String> = waiting
        .iter()
        .map(|(cluster, _)| *cluster)
        .filter(|cluster| is_needed(parent, cluster))
        .collect();
    // A cluster that cannot be reached now may come back, and the others go on.
    if was_ready || needed.is_empty() {
        return (MultiClusterPhase::Ready, why);
    }
    let has_failed = |cluster: &&String| {
        let child = observed.get(*cluster).and_then(|found| found.own(parent));
        let status = child.and_then(|child| child.status.as_ref());
        status.and_then(|status| status.phase) == Some(SessionPhase::Failed)
    };
    // What nobody has said yet is no reason, however old the session is.
    let is_late = |cluster: &&String| {
        age > STARTUP && !matches!(observed.get(*cluster), Some(Observed::Unknown))
    };
    if needed.iter().any(has_failed) || needed.iter().any(is_late) {
        return (MultiClusterPhase::Failed, why);
    }
    (MultiClusterPhase::Pending, why)
}

/// Why a session is over, if it is.
fn over(
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
            // One that does not say when it failed is of an older operator.
            let is_old = failed.is_none_or(|failed| since(Some(failed), now) > KEPT);
            is_old.then(|| closed("Failed", message)).flatten()
        }
        (_, Some(seen)) if since(Some(seen), now) > window => closed(
            "ClientGone",
            format!("the client was away for longer than {} s", window.as_secs()),
        ),
        // The client's request waits for the session, so it comes within moments, or never.
        (_, None) if age > STARTUP + settings.time_to_live => {
            closed("NeverConnected", "no client has come".to_owned())
        }
        (Some(MultiClusterPhase::Ready), _) => {
            ended_child(parent, status, observed).and_then(|message| closed("ChildEnded", message))
        }
        _ => None,
    }
}

/// A child that was there and is not, or that is going, was ended by somebody. A session that needs it has lost a part of
/// itself.
fn ended_child(
    parent: &MirrordMultiClusterSession,
    status: &MirrordMultiClusterSessionStatus,
    observed: &BTreeMap<String, Observed>,
) -> Option<String> {
    let children = status.cluster_sessions.keys();
    let mut needed = children.filter(|cluster| is_needed(parent, cluster));
    needed.find_map(|cluster| {
        let found = observed.get(cluster)?;
        if *found == Observed::Missing {
            return Some(format!("its part in {cluster} was ended"));
        }
        let child = found.own(parent)?;
        child.metadata.deletion_timestamp.as_ref()?;
        let closed = child.status.as_ref()?.closed.as_ref();
        let why = closed.map_or("it was ended there", |closed| closed.message.as_str());
        Some(format!("its part in {cluster} is over: {why}"))
    })
}

/// Children go, and then the parent, which says so until then. One whose cluster cannot be reached goes by itself, when its own window is over.
fn ending(
    parent: &MirrordMultiClusterSession,
    status: &MirrordMultiClusterSessionStatus,
    observed: &BTreeMap<String, Observed>,
    ending: Duration,
) -> Plan {
    let window = Duration::from_secs(parent.spec.resume_window_secs) + STARTUP;
    let mut remove = Vec::new();
    let mut is_done = true;
    let mut children = status.cluster_sessions.clone();
    for (cluster, child) in &mut children {
        let (is_gone, is_asked) = match observed.get(cluster).unwrap_or(&Observed::Unconfigured) {
            Observed::Unconfigured => (true, false),
            // One that nobody has seen yet may still come.
            Observed::Missing => (child.made || ending > UNDER_WAY, false),
            Observed::Unknown => (ending > window, false),
            // Its operator may be down while its API server is not.
            Observed::Unreachable(_) => (ending > window, child.made),
            found @ Observed::There(_) => match found.own(parent) {
                Some(found) => {
                    child.made = true;
                    (false, found.metadata.deletion_timestamp.is_none())
                }
                None => (true, false),
            },
        };
        if is_asked {
            remove.push((cluster.clone(), child.session_name.clone()));
        }
        is_done &= is_gone;
    }
    // Why it failed, or what was said here before, holds. What was said while it was going on does not.
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
        true => nothing(SOON),
        false => reporting(status, report, SOON),
    };
    Plan {
        remove,
        release: is_done,
        ..reporting
    }
}

fn nothing(look_again: Duration) -> Plan {
    Plan {
        create: Vec::new(),
        remove: Vec::new(),
        report: None,
        delete: false,
        release: false,
        look_again,
    }
}

/// A plan that only reports, and that only if there is something new.
fn reporting(
    status: &MirrordMultiClusterSessionStatus,
    report: Report,
    look_again: Duration,
) -> Plan {
    Plan {
        report: (Report::of(status).as_ref() != Some(&report)).then_some(report),
        ..nothing(look_again)
    }
}

fn since(then: Option<Timestamp>, now: Timestamp) -> Duration {
    then.and_then(|then| Duration::try_from(then.duration_until(now)).ok())
        .unwrap_or_default()
}

#[cfg(test)]
mod tests;
