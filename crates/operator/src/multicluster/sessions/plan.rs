//! What to do about a session over several clusters. Decides everything, does nothing, and has no clock.

use std::collections::BTreeMap;
use std::time::Duration;

use api::multicluster::{ClusterSession, MultiClusterPhase, child_name};
use api::session::{SessionClosed, SessionPhase};
use api::{MirrordClusterSession, MirrordMultiClusterSession, MirrordMultiClusterSessionStatus};
use jiff::Timestamp;
use kube::ResourceExt as _;

use crate::settings::SessionSettings;

/// How long children may take to be ready.
const STARTUP: Duration = Duration::from_secs(60);
/// How long a session that failed is kept for people to look at.
const KEPT: Duration = Duration::from_secs(60);
/// Each look asks every cluster, so this is about a round trip.
const SOON: Duration = Duration::from_millis(200);
const LATER: Duration = Duration::from_secs(10);

/// A child, as its cluster says.
#[derive(Clone, Debug, PartialEq)]
pub(super) enum Observed {
    There(Box<MirrordClusterSession>),
    Missing,
    Unreachable(String),
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
}

impl Report {
    fn of(status: &MirrordMultiClusterSessionStatus) -> Option<Self> {
        Some(Self {
            phase: status.phase?,
            message: status.message.clone(),
            cluster_sessions: status.cluster_sessions.clone(),
            closed: status.closed.clone(),
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
        };
        return Plan {
            delete: true,
            ..reporting(&status, report, SOON)
        };
    }
    match status.phase {
        None => beginning(parent, &status),
        Some(MultiClusterPhase::Failed) => nothing(LATER),
        Some(_) => going_on(parent, &status, observed, age),
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
    };
    reporting(status, report, SOON)
}

fn going_on(
    parent: &MirrordMultiClusterSession,
    status: &MirrordMultiClusterSessionStatus,
    observed: &BTreeMap<String, Observed>,
    age: Duration,
) -> Plan {
    let was_ready = status.phase == Some(MultiClusterPhase::Ready);
    let mut create = Vec::new();
    let mut children = BTreeMap::new();
    for (cluster, known) in &status.cluster_sessions {
        let (child, is_missing) = judged(known, observed.get(cluster));
        if is_missing && !was_ready {
            create.push(cluster.clone());
        }
        children.insert(cluster.clone(), child);
    }
    let (phase, message) = phase(parent, &children, observed, was_ready, age);
    let report = Report {
        phase,
        message,
        cluster_sessions: children,
        closed: None,
    };
    let look_again = if phase == MultiClusterPhase::Pending {
        SOON
    } else {
        LATER
    };
    Plan {
        create: if phase == MultiClusterPhase::Failed {
            Vec::new()
        } else {
            create
        },
        ..reporting(status, report, look_again)
    }
}

/// A child as it is now, and whether it is still to be made.
fn judged(known: &ClusterSession, observed: Option<&Observed>) -> (ClusterSession, bool) {
    let mut child = ClusterSession {
        error: None,
        ready: false,
        ..known.clone()
    };
    match observed {
        Some(Observed::There(found)) => {
            let status = found.status.clone().unwrap_or_default();
            child.ready = status.phase == Some(SessionPhase::Ready)
                && found.metadata.deletion_timestamp.is_none();
            child.last_heartbeat = status.last_seen_timestamp;
            if matches!(
                status.phase,
                Some(SessionPhase::Failed | SessionPhase::Terminating)
            ) {
                child.error = Some(status.message.unwrap_or_default());
            }
            (child, false)
        }
        Some(Observed::Missing) => (child, true),
        Some(Observed::Unreachable(why)) => {
            child.error = Some(why.clone());
            (child, false)
        }
        None => {
            child.error = Some("the cluster is not configured any more".to_owned());
            (child, false)
        }
    }
}

fn phase(
    parent: &MirrordMultiClusterSession,
    children: &BTreeMap<String, ClusterSession>,
    observed: &BTreeMap<String, Observed>,
    was_ready: bool,
    age: Duration,
) -> (MultiClusterPhase, Option<String>) {
    let waiting: Vec<String> = children
        .iter()
        .filter(|(_, child)| !child.ready)
        .map(|(cluster, child)| match &child.error {
            Some(error) => format!("{cluster}: {error}"),
            None => format!("{cluster}: agents are being started"),
        })
        .collect();
    if waiting.is_empty() {
        return (MultiClusterPhase::Ready, None);
    }
    let why = waiting.join("; ");
    if was_ready {
        // A cluster that cannot be reached now may come back, and the others go on.
        return (MultiClusterPhase::Ready, Some(why));
    }
    let has_failed = parent.spec.clusters.iter().any(|cluster| {
        matches!(observed.get(cluster), Some(Observed::There(child))
            if child.status.as_ref().and_then(|status| status.phase) == Some(SessionPhase::Failed))
    });
    if has_failed || age > STARTUP {
        return (MultiClusterPhase::Failed, Some(why));
    }
    (MultiClusterPhase::Pending, Some(why))
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
            (age > STARTUP + KEPT).then(|| closed("Failed", message))?
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
            ended_child(status, observed).and_then(|message| closed("ChildEnded", message))
        }
        _ => None,
    }
}

/// A child that was there and is not, or that is going, was ended by somebody: the session has lost a part of itself.
fn ended_child(
    status: &MirrordMultiClusterSessionStatus,
    observed: &BTreeMap<String, Observed>,
) -> Option<String> {
    let mut children = status.cluster_sessions.keys();
    children.find_map(|cluster| match observed.get(cluster)? {
        Observed::Missing => Some(format!("its part in {cluster} was ended")),
        Observed::There(child) if child.metadata.deletion_timestamp.is_some() => {
            let closed = child
                .status
                .as_ref()
                .and_then(|status| status.closed.as_ref());
            let why = closed.map_or("it was ended there", |closed| closed.message.as_str());
            Some(format!("its part in {cluster} is over: {why}"))
        }
        Observed::There(_) | Observed::Unreachable(_) => None,
    })
}

/// Children go, and then the parent. One whose cluster cannot be reached goes by itself, when its own window is over.
fn ending(
    parent: &MirrordMultiClusterSession,
    status: &MirrordMultiClusterSessionStatus,
    observed: &BTreeMap<String, Observed>,
    ending: Duration,
) -> Plan {
    let window = Duration::from_secs(parent.spec.resume_window_secs) + STARTUP;
    let mut remove = Vec::new();
    let mut is_done = true;
    for (cluster, child) in &status.cluster_sessions {
        let is_gone = match observed.get(cluster) {
            Some(Observed::Missing) | None => true,
            Some(Observed::Unreachable(_)) => ending > window,
            Some(Observed::There(found)) => {
                if found.metadata.deletion_timestamp.is_none() {
                    remove.push((cluster.clone(), child.session_name.clone()));
                }
                false
            }
        };
        is_done &= is_gone;
    }
    Plan {
        remove,
        release: is_done,
        ..nothing(SOON)
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
