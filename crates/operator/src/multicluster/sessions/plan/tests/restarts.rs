//! A Primary that is restarted knows what is in the parent's object, and at first nothing of any cluster.

use super::*;

/// The parent at each step of its life.
fn steps() -> Vec<(&'static str, MirrordMultiClusterSession, i64)> {
    let pending = after(
        begun(),
        planned(&begun(), Observed::Missing, Observed::Missing, 1),
    );
    let half = after(begun(), planned(&begun(), ready(), child(None), 2));
    let failing = after(begun(), planned(&begun(), ready(), failed(), 2));
    let over = after(running(), planned(&running(), ready(), ready(), 1121));
    vec![
        ("made", parent(), 1),
        ("initializing", begun(), 1),
        ("pending", pending, 2),
        // It was down for longer than a start may take.
        ("half ready", half, 90),
        ("failed", failing, 3),
        ("ready", running(), 1010),
        ("over", over, 1122),
    ]
}

#[test]
fn nothing_is_decided_before_the_clusters_have_said_how_they_are() {
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
        assert_eq!(
            next.cluster_sessions.len(),
            2,
            "{step}: a child is forgotten"
        );
    }
}

/// Whatever had been done of a step before the restart, the next looks come to the same end.
#[test]
fn every_step_is_taken_up_where_it_was() {
    // What had become of the child in west when the Primary was killed.
    for west in [Observed::Missing, child(None), ready()] {
        for (step, parent, now) in steps() {
            let is_going_up = matches!(step, "made" | "initializing" | "pending");
            if !is_going_up {
                continue;
            }
            let parent = after(parent.clone(), planned(&parent, ready(), west.clone(), now));
            let plan = planned(&parent, ready(), west.clone(), now);
            // A child that is there is not made again, and one that is not is.
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
fn children_are_removed_by_what_is_written_down() {
    for (step, mut parent, now) in steps() {
        let is_written = parent.status.is_some();
        parent.metadata.deletion_timestamp = Some(Time(at(now)));
        let plan = planned(&parent, ready(), ready(), now);
        let expected: &[&str] = if is_written { &["east", "west"] } else { &[] };
        assert_eq!(removed(&plan), expected, "{step}");
        assert_eq!(plan.release, !is_written, "{step}");
        // Restarted in the middle of it.
        let plan = planned(&parent, Observed::Missing, deleted(ready()), now);
        assert!(removed(&plan).is_empty(), "{step}");
        assert_eq!(plan.release, !is_written, "{step}");
        let plan = planned(&parent, Observed::Missing, Observed::Missing, now + 11);
        assert!(plan.release, "{step}");
    }
}

/// Whoever carries the connection next knows which agents there were, also of a cluster that it cannot reach.
#[test]
fn agents_are_written_down() {
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
    let known = |parent: &MirrordMultiClusterSession| {
        parent.status.as_ref().unwrap().cluster_sessions["west"]
            .pods
            .clone()
    };
    let expected = SessionPod {
        address: None,
        ..pod
    };
    assert_eq!(known(&parent), std::slice::from_ref(&expected));
    let cut_off = after(parent.clone(), planned(&parent, ready(), cut(), 1010));
    assert_eq!(known(&cut_off), [expected]);
}

/// A client within its window finds its session, however long the Primary was away.
#[test]
fn a_session_whose_client_may_still_come_back_is_kept() {
    let plan = planned(&running(), Observed::Unknown, Observed::Unknown, 1119);
    assert!(!plan.delete && plan.report.is_none());
    let plan = planned(&running(), ready(), ready(), 1119);
    assert!(!plan.delete);
}
