//! After a restart, a Primary has the parent's object, and has not observed any cluster yet.

use super::*;

/// The parent in each phase.
fn steps() -> Vec<(&'static str, MirrordMultiClusterSession, i64)> {
    let pending = after(
        initialized(),
        planned(&initialized(), Observed::Missing, Observed::Missing, 1),
    );
    let half = after(
        initialized(),
        planned(&initialized(), ready(), child(None), 2),
    );
    let failing = after(initialized(), planned(&initialized(), ready(), failed(), 2));
    let ended = after(running(), planned(&running(), ready(), ready(), 1121));
    vec![
        ("created", parent(), 1),
        ("initializing", initialized(), 1),
        ("pending", pending, 2),
        // The Primary was down for longer than the startup timeout.
        ("half ready", half, 90),
        ("failed", failing, 3),
        ("ready", running(), 1010),
        ("ended", ended, 1122),
    ]
}

#[test]
fn nothing_is_decided_before_the_clusters_are_observed() {
    for (step, parent, now) in steps() {
        let phase = parent.status.as_ref().and_then(|status| status.phase);
        let plan = planned(&parent, Observed::Unknown, Observed::Unknown, now);
        assert!(plan.create.is_empty() && plan.remove.is_empty(), "{step}");
        assert!(!plan.release, "{step}");
        let next = after(parent, plan).status.unwrap();
        let expected = match phase {
            None => Some(MultiClusterPhase::Initializing),
            Some(MultiClusterPhase::Initializing) => Some(MultiClusterPhase::Pending),
            phase => phase,
        };
        assert_eq!(next.phase, expected, "{step}");
        assert_eq!(next.cluster_sessions.len(), 2, "{step}: a child is lost");
    }
}

/// Whatever part of a step was executed before the restart, the next reconciliations have the same result.
#[test]
fn every_step_is_continued_after_a_restart() {
    // The state of the child in west when the Primary was killed.
    for west in [Observed::Missing, child(None), ready()] {
        for (step, parent, now) in steps() {
            let is_starting = matches!(step, "created" | "initializing" | "pending");
            if !is_starting {
                continue;
            }
            let parent = after(parent.clone(), planned(&parent, ready(), west.clone(), now));
            let plan = planned(&parent, ready(), west.clone(), now);
            // Only a missing child is created.
            let missing = west == Observed::Missing;
            assert_eq!(plan.create == ["west"], missing, "{step} {west:?}");
            let parent = after(parent, plan);
            let parent = after(parent.clone(), planned(&parent, ready(), ready(), now));
            let status = parent.status.unwrap();
            assert_eq!(status.phase, Some(MultiClusterPhase::Ready), "{step}");
            assert_eq!(status.cluster_sessions["west"].generation, 0, "{step}");
        }
    }
}

#[test]
fn recorded_children_are_deleted() {
    for (step, mut parent, now) in steps() {
        let is_recorded = parent.status.is_some();
        parent.metadata.deletion_timestamp = Some(Time(at(now)));
        let plan = planned(&parent, ready(), ready(), now);
        let expected: &[&str] = if is_recorded { &["east", "west"] } else { &[] };
        assert_eq!(removed(&plan), expected, "{step}");
        assert_eq!(plan.release, !is_recorded, "{step}");
        // A restart during the deletion.
        let plan = planned(&parent, Observed::Missing, deleted(ready()), now);
        assert!(removed(&plan).is_empty(), "{step}");
        assert_eq!(plan.release, !is_recorded, "{step}");
        let plan = planned(&parent, Observed::Missing, Observed::Missing, now + 11);
        assert!(plan.release, "{step}");
    }
}

/// The next relay of the connection needs the agents, also those of an unreachable cluster.
#[test]
fn agents_are_recorded() {
    let pod = SessionPod {
        name: "web-a".to_owned(),
        channel: 3,
        ready: true,
        address: Some("10.0.0.1:20001".to_owned()),
        agent: Some("standin-agent-1".to_owned()),
        ..SessionPod::default()
    };
    let west = changed(ready(), |child| {
        child.status.as_mut().unwrap().pods = vec![pod.clone()];
    });
    let parent = after(running(), planned(&running(), ready(), west, 1005));
    let recorded = |parent: &MirrordMultiClusterSession| {
        parent.status.as_ref().unwrap().cluster_sessions["west"]
            .pods
            .clone()
    };
    let expected = SessionPod {
        address: None,
        ..pod
    };
    assert_eq!(recorded(&parent), std::slice::from_ref(&expected));
    let next = after(
        parent.clone(),
        planned(&parent, ready(), unreachable(), 1010),
    );
    assert_eq!(recorded(&next), [expected]);
}

/// A client can resume its session within the resume window, however long the Primary was down.
#[test]
fn a_session_within_its_resume_window_is_kept() {
    let plan = planned(&running(), Observed::Unknown, Observed::Unknown, 1119);
    assert!(!plan.delete && plan.report.is_none());
    let plan = planned(&running(), ready(), ready(), 1119);
    assert!(!plan.delete);
}
