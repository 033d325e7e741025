//! Sessions that only need their Default.

use super::*;

fn tolerant() -> MirrordMultiClusterSession {
    let mut parent = parent();
    parent.spec.on_unreachable = OnUnreachable::Continue;
    parent
}

#[test]
fn a_session_starts_with_its_default() {
    // The children in east, which is the Default, and in west; the age, the phase, and where a child is created.
    let cases = [
        (ready(), unreachable(), 2, MultiClusterPhase::Ready, vec![]),
        (ready(), unreachable(), 76, MultiClusterPhase::Ready, vec![]),
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
        (
            unreachable(),
            ready(),
            2,
            MultiClusterPhase::Pending,
            vec![],
        ),
        (
            unreachable(),
            ready(),
            76,
            MultiClusterPhase::Failed,
            vec![],
        ),
        (failed(), ready(), 2, MultiClusterPhase::Failed, vec![]),
    ];
    for (east, west, age, phase, create) in cases {
        let plan = planned(
            &initialized_from(tolerant()),
            east.clone(),
            west.clone(),
            age,
        );
        assert_eq!(phase_of(&plan), Some(phase), "{east:?} {west:?}");
        assert_eq!(plan.create, create);
    }
    let plan = planned(&initialized_from(tolerant()), ready(), unreachable(), 2);
    let message = plan.report.unwrap().message;
    assert_eq!(message.as_deref(), Some("west: no route"));
}

#[test]
fn a_cluster_joins_when_it_becomes_reachable() {
    let parent = initialized_from(tolerant());
    let plan = planned(&parent, ready(), unreachable(), 2);
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

/// The generation of the next child is recorded before the child is created.
#[test]
fn a_cluster_whose_child_was_ended_joins_again() {
    let parent = running_from(tolerant());
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
    // A failed attempt does not change the status.
    assert_eq!(again.report, None);
    let parent = after(
        parent,
        planned(&running_from(tolerant()), ready(), ready(), 1012),
    );
    assert_eq!(parent.status.unwrap().phase, Some(MultiClusterPhase::Ready));
}

#[test]
fn the_delay_before_rejoining_grows() {
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
    for (generation, delay) in cases {
        assert!(may_join(&left(generation), at(delay)), "{generation}");
        let joins_early = delay > 0 && may_join(&left(generation), at(delay - 1));
        assert!(!joins_early, "{generation}");
    }
}

#[test]
fn a_session_ends_with_its_default() {
    for east in [Observed::Missing, deleted(ready())] {
        let plan = planned(&running_from(tolerant()), east, ready(), 1010);
        let closed = plan.report.unwrap().closed.unwrap();
        assert_eq!(closed.reason, "ChildEnded");
        assert!(closed.message.contains("east"), "{}", closed.message);
        assert!(plan.delete);
    }
    let plan = planned(&running_from(tolerant()), unreachable(), ready(), 1010);
    assert!(!plan.delete, "it may become reachable again");
}
