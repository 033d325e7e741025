use api::multicluster::{PARENT_FINALIZER, parent_name};
use api::session::{SessionId, SessionOwner};
use api::{
    MirrordClusterSessionSpec, MirrordClusterSessionStatus, MirrordMultiClusterSessionSpec,
    SessionData,
};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::Time;

use super::*;
use crate::settings::SessionSettings;

mod errors;
mod outages;
mod partial;
mod restarts;

fn at(seconds: i64) -> Timestamp {
    Timestamp::from_second(1_800_000_000 + seconds).unwrap()
}

fn parent() -> MirrordMultiClusterSession {
    let spec = MirrordMultiClusterSessionSpec {
        owner: SessionOwner::default(),
        namespace: "shop".to_owned(),
        target: "deployment/web".to_owned(),
        target_alias: "deployment.web".to_owned(),
        clusters: vec!["east".to_owned(), "west".to_owned()],
        primary_cluster: "hub".to_owned(),
        default_cluster: "east".to_owned(),
        on_unreachable: OnUnreachable::Fail,
        label_target: None,
        key: None,
        on_concurrent_steal: None,
        profile: None,
        client_cli_version: None,
        resume_window_secs: 120,
        client_certificate: String::new(),
        data: SessionData::default(),
    };
    let mut parent = MirrordMultiClusterSession::new(&parent_name(SessionId(0xab)), spec);
    parent.metadata.creation_timestamp = Some(Time(at(0)));
    parent.metadata.finalizers = Some(vec![PARENT_FINALIZER.to_owned()]);
    parent.metadata.uid = Some("parent".to_owned());
    parent
}

fn child(phase: Option<SessionPhase>) -> Observed {
    let mut child = MirrordClusterSession::new("child", MirrordClusterSessionSpec::default());
    child.metadata.labels = Some([(PARENT_UID_LABEL.to_owned(), "parent".to_owned())].into());
    child.status = Some(MirrordClusterSessionStatus {
        phase,
        message: Some("no pods".to_owned()),
        ..MirrordClusterSessionStatus::default()
    });
    Observed::Present(Box::new(child))
}

fn changed(observed: Observed, change: impl FnOnce(&mut MirrordClusterSession)) -> Observed {
    let Observed::Present(mut child) = observed else {
        panic!("there is no child");
    };
    change(&mut child);
    Observed::Present(child)
}

fn deleted(observed: Observed) -> Observed {
    changed(observed, |child| {
        child.metadata.deletion_timestamp = Some(Time(at(0)));
    })
}

/// A child of another Primary, or of an earlier session with the same number.
fn foreign(observed: Observed) -> Observed {
    changed(observed, |child| {
        child.metadata.labels = Some([(PARENT_UID_LABEL.to_owned(), "other".to_owned())].into());
    })
}

fn unreachable() -> Observed {
    Observed::Unreachable("no route".to_owned())
}

fn ready() -> Observed {
    child(Some(SessionPhase::Ready))
}

fn failed() -> Observed {
    child(Some(SessionPhase::Failed))
}

fn settings() -> PrimarySettings {
    PrimarySettings {
        config_map: String::new(),
        session: SessionSettings {
            time_to_live: Duration::from_secs(60),
            max_resume: Duration::from_secs(900),
            max_age: None,
            review_interval: Duration::from_secs(300),
        },
        startup_timeout: Duration::from_secs(75),
    }
}

fn planned(parent: &MirrordMultiClusterSession, east: Observed, west: Observed, now: i64) -> Plan {
    let observed = BTreeMap::from([("east".to_owned(), east), ("west".to_owned(), west)]);
    plan(parent, &observed, &settings(), at(now))
}

/// The parent with the report of a plan in its status.
fn after(mut parent: MirrordMultiClusterSession, plan: Plan) -> MirrordMultiClusterSession {
    if let Some(report) = plan.report {
        let before = parent.status.take().unwrap_or_default();
        parent.status = Some(MirrordMultiClusterSessionStatus {
            phase: Some(report.phase),
            message: report.message,
            cluster_sessions: report.cluster_sessions,
            closed: report.closed,
            failed_timestamp: report.failed_timestamp,
            ..before
        });
    }
    parent
}

fn initialized_from(parent: MirrordMultiClusterSession) -> MirrordMultiClusterSession {
    let first = planned(&parent, Observed::Missing, Observed::Missing, 0);
    assert!(
        first.create.is_empty(),
        "a child is created before it is recorded"
    );
    after(parent, first)
}

fn initialized() -> MirrordMultiClusterSession {
    initialized_from(parent())
}

/// A parent that is ready, and whose client was connected a moment ago.
fn running_from(parent: MirrordMultiClusterSession) -> MirrordMultiClusterSession {
    let initialized = initialized_from(parent);
    let plan = planned(&initialized, ready(), ready(), 2);
    let mut parent = after(initialized, plan);
    let status = parent.status.as_mut().unwrap();
    assert_eq!(status.phase, Some(MultiClusterPhase::Ready));
    status.connected_timestamp = Some(at(1000).to_string());
    parent
}

fn running() -> MirrordMultiClusterSession {
    running_from(parent())
}

fn phase_of(plan: &Plan) -> Option<MultiClusterPhase> {
    plan.report.as_ref().map(|report| report.phase)
}

fn removed(plan: &Plan) -> Vec<&str> {
    let children = plan.remove.iter();
    children.map(|(cluster, _)| cluster.as_str()).collect()
}

#[test]
fn children_are_recorded_before_they_are_created() {
    let parent = initialized();
    let status = parent.status.clone().unwrap();
    assert_eq!(status.phase, Some(MultiClusterPhase::Initializing));
    let names: Vec<_> = status
        .cluster_sessions
        .values()
        .map(|child| child.session_name.as_str())
        .collect();
    assert_eq!(
        names,
        ["mc-00000000000000ab-east", "mc-00000000000000ab-west"]
    );
    let plan = planned(&parent, Observed::Missing, Observed::Missing, 1);
    assert_eq!(plan.create, ["east", "west"]);
    assert_eq!(phase_of(&plan), Some(MultiClusterPhase::Pending));
}

#[test]
fn a_session_is_ready_when_all_children_are() {
    // The children in east and west, the age of the session, the phase, and where a child is created.
    let cases = [
        (ready(), ready(), 2, MultiClusterPhase::Ready, vec![]),
        (ready(), child(None), 2, MultiClusterPhase::Pending, vec![]),
        (
            ready(),
            Observed::Missing,
            2,
            MultiClusterPhase::Pending,
            vec!["west"],
        ),
        (
            ready(),
            unreachable(),
            2,
            MultiClusterPhase::Pending,
            vec![],
        ),
        (
            ready(),
            unreachable(),
            76,
            MultiClusterPhase::Failed,
            vec![],
        ),
        (
            ready(),
            Observed::Unconfigured,
            76,
            MultiClusterPhase::Failed,
            vec![],
        ),
        (
            Observed::Missing,
            failed(),
            2,
            MultiClusterPhase::Failed,
            vec![],
        ),
    ];
    for (east, west, age, phase, create) in cases {
        let plan = planned(&initialized(), east, west, age);
        assert_eq!(phase_of(&plan), Some(phase));
        assert_eq!(plan.create, create);
    }
    let failed = planned(&initialized(), ready(), failed(), 2);
    assert_eq!(
        failed.report.unwrap().message.as_deref(),
        Some("west: no pods")
    );
}

/// The retention begins with the failure, not with the creation of the session.
#[test]
fn failed_sessions_are_retained() {
    for fails in [2, 76, 119] {
        let west = match fails {
            2 => failed(),
            _ => unreachable(),
        };
        let parent = after(
            initialized(),
            planned(&initialized(), ready(), west.clone(), fails),
        );
        let status = parent.status.as_ref().unwrap();
        assert_eq!(status.phase, Some(MultiClusterPhase::Failed));
        assert_eq!(status.failed_timestamp, Some(at(fails).to_string()));
        // Independent of changes in its clusters.
        for west in [west, ready(), Observed::Missing] {
            let kept = planned(&parent, ready(), west.clone(), fails + 60);
            assert_eq!((kept.report, kept.delete), (None, false), "{fails}");
            let expired = planned(&parent, ready(), west, fails + 61);
            assert!(expired.delete, "{fails}");
            let report = expired.report.unwrap();
            assert_eq!(report.closed.unwrap().reason, "Failed");
            assert_eq!(report.failed_timestamp, status.failed_timestamp);
        }
    }
    // A status of an older operator has no time of the failure.
    let mut old = after(initialized(), planned(&initialized(), ready(), failed(), 2));
    old.status.as_mut().unwrap().failed_timestamp = None;
    assert!(planned(&old, ready(), failed(), 3).delete);
}

#[test]
fn an_unreachable_cluster_does_not_stop_a_session() {
    let plan = planned(&running(), ready(), unreachable(), 1010);
    let report = plan.report.clone().unwrap();
    assert_eq!(report.phase, MultiClusterPhase::Ready);
    assert_eq!(report.message.as_deref(), Some("west: no route"));
    assert!(report.cluster_sessions["east"].ready);
    assert!(!report.cluster_sessions["west"].ready);
    assert!(!plan.delete && plan.create.is_empty());
    let back = planned(&after(running(), plan), ready(), ready(), 1020);
    assert_eq!(back.report.unwrap().message, None);
}

#[test]
fn a_session_ends_with_its_client_or_with_a_child() {
    let cases = [
        (ready(), 1119, None),
        (ready(), 1121, Some("ClientGone")),
        (unreachable(), 1119, None),
        (Observed::Unknown, 1119, None),
        (Observed::Missing, 1010, Some("ChildEnded")),
        (deleted(ready()), 1010, Some("ChildEnded")),
    ];
    for (west, now, expected) in cases {
        let plan = planned(&running(), ready(), west, now);
        let reason = plan
            .report
            .and_then(|report| report.closed)
            .map(|closed| closed.reason);
        assert_eq!(reason.as_deref(), expected);
        assert_eq!(plan.delete, expected.is_some());
    }
    let never = planned(&initialized(), child(None), child(None), 136);
    assert_eq!(
        never.report.unwrap().closed.unwrap().reason,
        "NeverConnected"
    );
}

#[test]
fn the_finalizer_is_removed_after_all_children_are_gone() {
    let mut parent = running();
    parent.metadata.deletion_timestamp = Some(Time(at(2000)));
    // The children, the time, which children are deleted, and whether the finalizer is removed.
    let cases = [
        (ready(), ready(), 2001, vec!["east", "west"], false),
        (deleted(ready()), ready(), 2001, vec!["west"], false),
        // The deletion is retried: the API server may be reachable while the operator is not.
        (Observed::Missing, unreachable(), 2001, vec!["west"], false),
        (Observed::Missing, Observed::Unknown, 2001, vec![], false),
        // The child's own resume window is over.
        (Observed::Missing, unreachable(), 2181, vec!["west"], true),
        (
            Observed::Missing,
            Observed::Unconfigured,
            2001,
            vec![],
            true,
        ),
        (Observed::Missing, Observed::Missing, 2001, vec![], true),
        // The child of another parent is not deleted.
        (Observed::Missing, foreign(ready()), 2001, vec![], true),
    ];
    for (east, west, now, expected, release) in cases {
        let plan = planned(&parent, east, west, now);
        assert_eq!(removed(&plan), expected);
        assert_eq!(plan.release, release);
    }
    // The creation of a child that was recorded and never observed may be in progress.
    let mut early = initialized();
    early.metadata.deletion_timestamp = Some(Time(at(5)));
    let cases = [
        (Observed::Missing, Observed::Missing, 15, false),
        (Observed::Missing, Observed::Missing, 16, true),
        (Observed::Unconfigured, Observed::Unconfigured, 6, true),
    ];
    for (east, west, now, release) in cases {
        assert_eq!(planned(&early, east, west, now).release, release, "{now}");
    }
    // After the children were observed, missing children are gone.
    let plan = planned(&early, ready(), ready(), 6);
    assert_eq!(removed(&plan), ["east", "west"]);
    let early = after(early, plan);
    assert!(planned(&early, Observed::Missing, Observed::Missing, 7).release);
    // No child was recorded, so none was created.
    let mut empty = super::tests::parent();
    empty.metadata.deletion_timestamp = Some(Time(at(0)));
    assert!(planned(&empty, Observed::Missing, Observed::Missing, 1).release);
}

#[test]
fn termination_is_reported_once() {
    let ended = after(running(), planned(&running(), ready(), ready(), 1121));
    let failing = after(initialized(), planned(&initialized(), ready(), failed(), 2));
    let partial = after(running(), planned(&running(), ready(), unreachable(), 1010));
    // The parent before its deletion, and the message of the report.
    let cases = [
        (parent(), None),
        (initialized(), Some("the session was ended")),
        (running(), Some("the session was ended")),
        (partial, Some("the session was ended")),
        (failing, Some("west: no pods")),
        // The status is written already.
        (ended, None),
    ];
    for (mut parent, expected) in cases {
        parent.metadata.deletion_timestamp = Some(Time(at(2000)));
        let children = |parent: &MirrordMultiClusterSession| {
            parent
                .status
                .as_ref()
                .map(|status| status.cluster_sessions.len())
        };
        let plan = planned(&parent, ready(), ready(), 2001);
        let message = plan.report.as_ref().map(|report| report.message.as_deref());
        assert_eq!(message, expected.map(Some));
        let next = after(parent.clone(), plan);
        assert_eq!(children(&next), children(&parent), "a child is lost");
        if let Some(status) = &next.status {
            assert_eq!(status.phase, Some(MultiClusterPhase::Terminating));
        }
        let again = planned(&next, ready(), ready(), 2002);
        assert_eq!(again.report, None);
    }
}

/// Two Primaries can have sessions with the same number, and children with the same name.
#[test]
fn the_child_of_another_primary_is_ignored() {
    let plan = planned(&initialized(), ready(), foreign(ready()), 2);
    assert_eq!(phase_of(&plan), Some(MultiClusterPhase::Pending));
    assert!(plan.create.is_empty() && plan.remove.is_empty());
    let message = plan.report.unwrap().message.unwrap();
    assert!(
        message.contains("west: another session has this one's name"),
        "{message}"
    );
    // Its phase does not matter.
    let plan = planned(&initialized(), ready(), foreign(failed()), 2);
    assert_eq!(phase_of(&plan), Some(MultiClusterPhase::Pending));
    // A child of an older operator has no label, and belongs to the parent.
    let old = changed(ready(), |child| child.metadata.labels = None);
    let plan = planned(&initialized(), ready(), old, 2);
    assert_eq!(phase_of(&plan), Some(MultiClusterPhase::Ready));
}

/// The API server of an older member drops unknown fields, and its operator sets fewer of them.
#[test]
fn the_child_of_an_older_member_is_accepted() {
    let old: MirrordClusterSession = serde_json::from_value(serde_json::json!({
        "apiVersion": "mirrord.metalbear.co/v1alpha", "kind": "MirrordClusterSession",
        "metadata": {"name": "mc-00000000000000ab-west", "labels": {PARENT_UID_LABEL: "parent"}},
        "spec": {
            "owner": {"userId": "", "username": "", "hostname": "", "k8sUsername": "anna"},
            "namespace": "shop", "target": "deployment/web", "resumeWindowSecs": 120, "clientCertificate": "",
        },
        "status": {
            "phase": "Ready",
            "pods": [{"name": "web-a", "uid": "1", "container": "app", "channel": 1, "ready": true}],
        },
    }))
    .unwrap();
    let west = Observed::Present(Box::new(old));
    let plan = planned(&initialized(), ready(), west, 2);
    let report = plan.report.unwrap();
    assert_eq!(report.phase, MultiClusterPhase::Ready);
    let west = &report.cluster_sessions["west"];
    assert!(west.ready && west.error.is_none(), "{west:?}");
    let pods: Vec<_> = west
        .pods
        .iter()
        .map(|pod| (pod.name.as_str(), pod.channel))
        .collect();
    assert_eq!(pods, [("web-a", 1)]);
}

/// Timestamps of different clusters are never compared.
#[test]
fn clocks_of_members_may_differ() {
    let skewed = |seconds: i64| {
        changed(ready(), |child| {
            child.metadata.creation_timestamp = Some(Time(at(seconds)));
            let status = child.status.as_mut().unwrap();
            status.last_seen_timestamp = Some(at(1000 + seconds).to_string());
        })
    };
    for seconds in [-300, 300] {
        let plan = planned(&running(), skewed(seconds), skewed(-seconds), 1010);
        assert_eq!(phase_of(&plan), Some(MultiClusterPhase::Ready));
        assert!(!plan.delete && plan.create.is_empty() && plan.remove.is_empty());
    }
    // A heartbeat in the future does not end the session.
    let plan = planned(&running(), ready(), ready(), 700);
    assert!(!plan.delete);
}

/// What a member reports is shortened and counted before it is written into the parent.
#[test]
fn a_member_cannot_make_its_parent_too_large() {
    let huge = changed(ready(), |child| {
        let pod = |number: usize| SessionPod {
            name: format!("web-{number}"),
            error: Some("\u{1b}".repeat(5000)),
            ..SessionPod::default()
        };
        let status = child.status.as_mut().unwrap();
        status.pods = (0..1000).map(pod).collect();
        status.last_seen_timestamp = Some("9".repeat(100_000));
    });
    let plan = planned(&initialized(), huge, ready(), 2);
    let report = plan.report.unwrap();
    let bytes = serde_json::to_vec(&report.cluster_sessions).unwrap().len();
    assert!(bytes < 200_000, "{bytes}");
    let east = &report.cluster_sessions["east"];
    let omitted = format!("and {} more pods", 1000 - east.pods.len());
    assert_eq!(east.omitted.as_ref(), Some(&omitted));
    let text = serde_json::to_string(&report.cluster_sessions).unwrap();
    assert!(!text.contains("\\u001b"), "escape sequences");
    assert_eq!(report.cluster_sessions["west"].omitted, None);
}

#[test]
fn a_session_over_several_clusters_ends_with_its_right_and_at_its_maximum_age() {
    let closed = |denied: Option<&str>, max_age: Option<u64>, now: i64| {
        let mut parent = initialized();
        let status = parent.status.as_mut().unwrap();
        status.phase = Some(MultiClusterPhase::Ready);
        status.connected_timestamp = Some(at(now).to_string());
        status.denied = denied.map(str::to_owned);
        let observed = [("east".to_owned(), ready()), ("west".to_owned(), ready())];
        let mut settings = settings();
        settings.session.max_age = max_age.map(Duration::from_secs);
        let plan = plan(&parent, &observed.into(), &settings, at(now));
        let closed = plan.report.and_then(|report| report.closed);
        assert_eq!(plan.delete, closed.is_some());
        closed.map(|closed| closed.reason)
    };
    assert_eq!(closed(None, None, 5000), None);
    assert_eq!(closed(None, Some(5001), 5000), None);
    assert_eq!(closed(None, Some(5000), 5000).as_deref(), Some("MaxAge"));
    assert_eq!(
        closed(Some("no right"), None, 10).as_deref(),
        Some("Denied")
    );
}
