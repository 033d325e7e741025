//! Errors of children, which reach the parent's status and so the user.

use super::*;

const REFUSED: &str = "its session cannot be created there: forbidden";

fn results(west: Result<(), &str>) -> BTreeMap<String, Result<(), String>> {
    BTreeMap::from([("west".to_owned(), west.map_err(str::to_owned))])
}

/// The plan for a west without a child, and the result of creating it.
fn creating(
    parent: &MirrordMultiClusterSession,
    west: Result<(), &str>,
    now: i64,
) -> (Plan, Option<MirrordMultiClusterSession>) {
    let plan = planned(parent, ready(), Observed::Missing, now);
    assert_eq!(plan.create, ["west"]);
    let plan = plan.with_created(parent, &results(west));
    let next = plan
        .report
        .is_some()
        .then(|| after(parent.clone(), plan.clone()));
    (plan, next)
}

fn error_and_message(parent: &MirrordMultiClusterSession) -> (Option<&str>, Option<&str>) {
    let status = parent.status.as_ref().unwrap();
    let error = status.cluster_sessions["west"].error.as_deref();
    (error, status.message.as_deref())
}

#[test]
fn a_failed_creation_is_reported_until_it_succeeds() {
    let (plan, refused) = creating(&initialized(), Err(REFUSED), 2);
    let refused = refused.unwrap();
    assert_eq!(phase_of(&plan), Some(MultiClusterPhase::Pending));
    let message = format!("west: {REFUSED}");
    assert_eq!(
        error_and_message(&refused),
        (Some(REFUSED), Some(message.as_str()))
    );
    // The same error is written once.
    let (_, same) = creating(&refused, Err(REFUSED), 3);
    assert_eq!(same, None);
    let (_, created) = creating(&refused, Ok(()), 4);
    let started = Some("west: agents are being started");
    assert_eq!(error_and_message(&created.unwrap()), (None, started));
}

/// The reason is in the final error, also where the creation has failed until the end.
#[test]
fn the_last_error_is_the_reason_of_the_failure() {
    let (_, refused) = creating(&initialized(), Err(REFUSED), 2);
    let failed = planned(&refused.unwrap(), ready(), Observed::Missing, 76);
    assert_eq!(phase_of(&failed), Some(MultiClusterPhase::Failed));
    let message = failed.report.unwrap().message.unwrap();
    assert_eq!(message, format!("west: {REFUSED}"));
}

#[test]
fn errors_that_are_over_are_removed() {
    let lost = after(
        initialized(),
        planned(&initialized(), ready(), unreachable(), 2),
    );
    assert_eq!(error_and_message(&lost).0, Some("no route"));
    let (_, created) = creating(&lost, Ok(()), 3);
    assert_eq!(error_and_message(&created.unwrap()).0, None);
}

/// A pending child says what it waits for. Its own operator ends it before the parent ends the session.
#[test]
fn a_pending_child_says_what_it_waits_for() {
    let pending = || child(Some(SessionPhase::Pending));
    for (west, now, phase) in [
        (pending(), 2, MultiClusterPhase::Pending),
        (pending(), 61, MultiClusterPhase::Pending),
        (failed(), 62, MultiClusterPhase::Failed),
    ] {
        let plan = planned(&initialized(), ready(), west, now);
        assert_eq!(phase_of(&plan), Some(phase), "{now}");
        let parent = after(initialized(), plan);
        assert_eq!(
            error_and_message(&parent),
            (Some("no pods"), Some("west: no pods"))
        );
    }
    let plan = planned(&initialized(), ready(), ready(), 2);
    assert_eq!(error_and_message(&after(initialized(), plan)), (None, None));
}
