//! Sessions that start with their Default, and go on without others.

use super::*;

fn going_on() -> MirrordMultiClusterSession {
    let mut parent = parent();
    parent.spec.on_unreachable = OnUnreachable::Continue;
    parent
}

#[test]
fn a_session_starts_with_its_default() {
    // What there is in east, which is the Default, and in west; the phase, and where a child is made.
    let cases = [
        (ready(), cut(), 2, MultiClusterPhase::Ready, vec![]),
        (ready(), cut(), 61, MultiClusterPhase::Ready, vec![]),
        (ready(), failed(), 2, MultiClusterPhase::Ready, vec![]),
        (
            ready(),
            Observed::Missing,
            2,
            MultiClusterPhase::Ready,
            vec!["west"],
        ),
        (
            ready(),
            Observed::Unknown,
            2,
            MultiClusterPhase::Ready,
            vec![],
        ),
        (cut(), ready(), 2, MultiClusterPhase::Pending, vec![]),
        (cut(), ready(), 61, MultiClusterPhase::Failed, vec![]),
        (failed(), ready(), 2, MultiClusterPhase::Failed, vec![]),
    ];
    for (east, west, age, phase, create) in cases {
        let plan = planned(&begun_from(going_on()), east.clone(), west.clone(), age);
        assert_eq!(phase_of(&plan), Some(phase), "{east:?} {west:?}");
        assert_eq!(plan.create, create);
    }
    let plan = planned(&begun_from(going_on()), ready(), cut(), 2);
    let message = plan.report.unwrap().message;
    assert_eq!(message.as_deref(), Some("west: no route"));
}

#[test]
fn a_cluster_that_was_away_joins() {
    let parent = begun_from(going_on());
    let plan = planned(&parent, ready(), cut(), 2);
    let parent = after(parent, plan);
    let plan = planned(&parent, ready(), Observed::Missing, 3);
    assert_eq!(plan.create, ["west"]);
    let parent = after(parent, plan);
    let plan = planned(&parent, ready(), ready(), 4);
    let report = plan.report.clone().unwrap();
    assert_eq!(report.message, None);
    assert!(report.cluster_sessions["west"].ready);
    assert_eq!(report.cluster_sessions["west"].generation, 0);
}

/// Its next child is written down, with a number of its own, before it is made.
#[test]
fn a_cluster_whose_child_was_ended_joins_again() {
    let parent = running_from(going_on());
    let leaving = planned(&parent, ready(), deleted(ready()), 1005);
    assert!(!leaving.delete && leaving.create.is_empty());
    assert!(!leaving.report.clone().unwrap().cluster_sessions["west"].ready);
    let parent = after(parent, leaving);
    let gone = planned(&parent, ready(), Observed::Missing, 1010);
    assert!(!gone.delete && gone.create.is_empty());
    let parent = after(parent, gone);
    let west = parent.status.as_ref().unwrap().cluster_sessions["west"].clone();
    assert_eq!((west.made, west.generation), (false, 1));
    let again = planned(&parent, ready(), Observed::Missing, 1011);
    assert_eq!(again.create, ["west"]);
    // An attempt that did not succeed changes nothing.
    assert_eq!(again.report, None);
    let parent = after(
        parent,
        planned(&running_from(going_on()), ready(), ready(), 1012),
    );
    assert_eq!(parent.status.unwrap().phase, Some(MultiClusterPhase::Ready));
}

#[test]
fn a_cluster_that_leaves_again_and_again_joins_later_and_later() {
    let left = |generation| ClusterSession {
        generation,
        left_timestamp: Some(at(0).to_string()),
        ..ClusterSession::default()
    };
    let cases = [
        (0, 0),
        (1, 0),
        (2, 10),
        (3, 20),
        (4, 40),
        (8, 640),
        (4000, 640),
    ];
    for (generation, pause) in cases {
        assert!(may_join(&left(generation), at(pause)), "{generation}");
        let is_early = pause > 0 && may_join(&left(generation), at(pause - 1));
        assert!(!is_early, "{generation}");
    }
}

#[test]
fn no_session_goes_on_without_its_default() {
    for east in [Observed::Missing, deleted(ready())] {
        let plan = planned(&running_from(going_on()), east, ready(), 1010);
        let closed = plan.report.unwrap().closed.unwrap();
        assert_eq!(closed.reason, "ChildEnded");
        assert!(closed.message.contains("east"), "{}", closed.message);
        assert!(plan.delete);
    }
    let plan = planned(&running_from(going_on()), cut(), ready(), 1010);
    assert!(!plan.delete, "it may come back");
}
