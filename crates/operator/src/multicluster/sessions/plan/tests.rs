use api::multicluster::{PARENT_FINALIZER, parent_name};
use api::session::{SessionId, SessionOwner};
use api::{
    MirrordClusterSessionSpec, MirrordClusterSessionStatus, MirrordMultiClusterSessionSpec,
    SessionData,
};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::Time;

use super::*;

mod cuts;
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
    Observed::There(Box::new(child))
}

fn changed(observed: Observed, change: impl FnOnce(&mut MirrordClusterSession)) -> Observed {
    let Observed::There(mut child) = observed else {
        panic!("there is no child");
    };
    change(&mut child);
    Observed::There(child)
}

fn deleted(observed: Observed) -> Observed {
    changed(observed, |child| {
        child.metadata.deletion_timestamp = Some(Time(at(0)));
    })
}

/// Of another Primary, or of a session that had the same number.
fn foreign(observed: Observed) -> Observed {
    changed(observed, |child| {
        child.metadata.labels = Some([(PARENT_UID_LABEL.to_owned(), "other".to_owned())].into());
    })
}

fn cut() -> Observed {
    Observed::Unreachable("no route".to_owned())
}

fn ready() -> Observed {
    child(Some(SessionPhase::Ready))
}

fn failed() -> Observed {
    child(Some(SessionPhase::Failed))
}

fn planned(parent: &MirrordMultiClusterSession, east: Observed, west: Observed, now: i64) -> Plan {
    let observed = BTreeMap::from([("east".to_owned(), east), ("west".to_owned(), west)]);
    let settings = SessionSettings {
        time_to_live: Duration::from_secs(60),
        most_resume: Duration::from_secs(900),
    };
    plan(parent, &observed, &settings, at(now))
}

/// The parent with what a plan reports in its status.
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

fn begun_from(parent: MirrordMultiClusterSession) -> MirrordMultiClusterSession {
    let first = planned(&parent, Observed::Missing, Observed::Missing, 0);
    assert!(
        first.create.is_empty(),
        "nothing is made that is not written down"
    );
    after(parent, first)
}

fn begun() -> MirrordMultiClusterSession {
    begun_from(parent())
}

/// Ready, and its client was seen a moment ago.
fn running_from(parent: MirrordMultiClusterSession) -> MirrordMultiClusterSession {
    let begun = begun_from(parent);
    let plan = planned(&begun, ready(), ready(), 2);
    let mut parent = after(begun, plan);
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
fn children_are_written_down_before_they_are_made() {
    let parent = begun();
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
fn a_session_is_ready_when_every_child_is() {
    // What there is in east and west, how old the session is; the phase, and where a child is made.
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
        (ready(), cut(), 2, MultiClusterPhase::Pending, vec![]),
        (ready(), cut(), 61, MultiClusterPhase::Failed, vec![]),
        (
            ready(),
            Observed::Unconfigured,
            61,
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
        let plan = planned(&begun(), east, west, age);
        assert_eq!(phase_of(&plan), Some(phase));
        assert_eq!(plan.create, create);
    }
    let failed = planned(&begun(), ready(), failed(), 2);
    assert_eq!(
        failed.report.unwrap().message.as_deref(),
        Some("west: no pods")
    );
}

/// As long after it failed, whenever that was: who asked for it may look late, and a Primary may have been down.
#[test]
fn a_session_that_failed_is_kept_for_a_while() {
    for fails in [2, 61, 119] {
        let west = match fails {
            2 => failed(),
            _ => cut(),
        };
        let parent = after(begun(), planned(&begun(), ready(), west.clone(), fails));
        let status = parent.status.as_ref().unwrap();
        assert_eq!(status.phase, Some(MultiClusterPhase::Failed));
        assert_eq!(status.failed_timestamp, Some(at(fails).to_string()));
        // Whatever becomes of its clusters meanwhile.
        for west in [west, ready(), Observed::Missing] {
            let kept = planned(&parent, ready(), west.clone(), fails + 60);
            assert_eq!((kept.report, kept.delete), (None, false), "{fails}");
            let over = planned(&parent, ready(), west, fails + 61);
            assert!(over.delete, "{fails}");
            let report = over.report.unwrap();
            assert_eq!(report.closed.unwrap().reason, "Failed");
            assert_eq!(report.failed_timestamp, status.failed_timestamp);
        }
    }
    // One of an operator that did not write it down yet.
    let mut old = after(begun(), planned(&begun(), ready(), failed(), 2));
    old.status.as_mut().unwrap().failed_timestamp = None;
    assert!(planned(&old, ready(), failed(), 3).delete);
}

#[test]
fn a_cluster_that_is_cut_off_stops_no_session() {
    let plan = planned(&running(), ready(), cut(), 1010);
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
        (cut(), 1119, None),
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
    let never = planned(&begun(), child(None), child(None), 121);
    assert_eq!(
        never.report.unwrap().closed.unwrap().reason,
        "NeverConnected"
    );
}

#[test]
fn a_parent_goes_after_its_children() {
    let mut parent = running();
    parent.metadata.deletion_timestamp = Some(Time(at(2000)));
    // What there is, when, what is removed, and whether the parent goes.
    let cases = [
        (ready(), ready(), 2001, vec!["east", "west"], false),
        (deleted(ready()), ready(), 2001, vec!["west"], false),
        // It is asked again and again: its API server may answer while its operator does not.
        (Observed::Missing, cut(), 2001, vec!["west"], false),
        (Observed::Missing, Observed::Unknown, 2001, vec![], false),
        // That child's own window is over.
        (Observed::Missing, cut(), 2181, vec!["west"], true),
        (
            Observed::Missing,
            Observed::Unconfigured,
            2001,
            vec![],
            true,
        ),
        (Observed::Missing, Observed::Missing, 2001, vec![], true),
        // What somebody else has made is not ours to remove.
        (Observed::Missing, foreign(ready()), 2001, vec![], true),
    ];
    for (east, west, now, expected, release) in cases {
        let plan = planned(&parent, east, west, now);
        assert_eq!(removed(&plan), expected);
        assert_eq!(plan.release, release);
    }
    // A child that was written down and never seen may be under way.
    let mut early = begun();
    early.metadata.deletion_timestamp = Some(Time(at(5)));
    let cases = [
        (Observed::Missing, Observed::Missing, 15, false),
        (Observed::Missing, Observed::Missing, 16, true),
        (Observed::Unconfigured, Observed::Unconfigured, 6, true),
    ];
    for (east, west, now, release) in cases {
        assert_eq!(planned(&early, east, west, now).release, release, "{now}");
    }
    // It has come. When it is gone again, nobody waits any more.
    let plan = planned(&early, ready(), ready(), 6);
    assert_eq!(removed(&plan), ["east", "west"]);
    let early = after(early, plan);
    assert!(planned(&early, Observed::Missing, Observed::Missing, 7).release);
    // Nothing was written down, so nothing was made.
    let mut empty = super::tests::parent();
    empty.metadata.deletion_timestamp = Some(Time(at(0)));
    assert!(planned(&empty, Observed::Missing, Observed::Missing, 1).release);
}

#[test]
fn a_parent_that_goes_says_so_once() {
    let over = after(running(), planned(&running(), ready(), ready(), 1121));
    let failing = after(begun(), planned(&begun(), ready(), failed(), 2));
    let alone = after(running(), planned(&running(), ready(), cut(), 1010));
    // What it was when it was deleted, and why it says that it goes.
    let cases = [
        (parent(), None),
        (begun(), Some("the session was ended")),
        (running(), Some("the session was ended")),
        (alone, Some("the session was ended")),
        (failing, Some("west: no pods")),
        // That is written already.
        (over, None),
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
        assert_eq!(children(&next), children(&parent), "none is forgotten");
        if let Some(status) = &next.status {
            assert_eq!(status.phase, Some(MultiClusterPhase::Terminating));
        }
        let again = planned(&next, ready(), ready(), 2002);
        assert_eq!(again.report, None);
    }
}

/// Two Primaries can have sessions of one number, and children of one name.
#[test]
fn the_child_of_another_primary_is_left_alone() {
    let plan = planned(&begun(), ready(), foreign(ready()), 2);
    assert_eq!(phase_of(&plan), Some(MultiClusterPhase::Pending));
    assert!(plan.create.is_empty() && plan.remove.is_empty());
    let message = plan.report.unwrap().message.unwrap();
    assert!(
        message.contains("west: another session has this one's name"),
        "{message}"
    );
    // It is no reason to fail by what it says of itself, and none to be ready.
    let plan = planned(&begun(), ready(), foreign(failed()), 2);
    assert_eq!(phase_of(&plan), Some(MultiClusterPhase::Pending));
    // One that an older operator has made says nothing, and is its parent's.
    let old = changed(ready(), |child| child.metadata.labels = None);
    let plan = planned(&begun(), ready(), old, 2);
    assert_eq!(phase_of(&plan), Some(MultiClusterPhase::Ready));
}

/// A member that knows nothing of what was added later: its API server has dropped those fields, and its operator says less.
#[test]
fn the_child_of_an_older_member_is_understood() {
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
    let west = Observed::There(Box::new(old));
    let plan = planned(&begun(), ready(), west, 2);
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

/// Each cluster's times are by its own clock, and are compared with no other's.
#[test]
fn clocks_of_members_may_be_wrong() {
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
    // Nor is a parent of the future older than its window.
    let plan = planned(&running(), ready(), ready(), 700);
    assert!(!plan.delete);
}
