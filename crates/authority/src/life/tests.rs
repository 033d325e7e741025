use super::*;
use crate::fixtures::{days, profile, start};
use crate::{Authority, PrivateKey, Usage};

fn issue(now: Timestamp) -> Facts {
    let authority = Authority::generate("test", days(3650), start()).unwrap();
    let key = PrivateKey::generate().unwrap();
    let issued = authority.issue(&key, &profile(Usage::Client), now);
    issued.unwrap().facts
}

fn hours(count: i64) -> SignedDuration {
    SignedDuration::from_hours(count)
}

fn serial(facts: &Facts) -> Revocations {
    Revocations {
        serials: [facts.serial.clone()].into(),
        ..Revocations::default()
    }
}

fn key(facts: &Facts) -> Revocations {
    Revocations {
        keys: [facts.key].into(),
        ..Revocations::default()
    }
}

fn before(time: Timestamp) -> Revocations {
    Revocations {
        issued_before: Some(time),
        ..Revocations::default()
    }
}

#[test]
fn a_certificate_has_one_state_at_a_time() {
    let facts = issue(start());
    let other = issue(start());
    let nothing = Revocations::default();
    let second = SignedDuration::from_secs(1);
    let in_second = start() + SignedDuration::from_millis(999);
    #[rustfmt::skip] // A table is read by its columns.
    let cases: &[(&str, Revocations, SignedDuration, State)] = &[
        ("before it is valid",            nothing.clone(),          -hours(2),          State::NotYetValid),
        ("backdated",                     nothing.clone(),          -hours(1),          State::Valid),
        ("new",                           nothing.clone(),          hours(0),           State::Valid),
        ("before two thirds",             nothing.clone(),          days(59),           State::Valid),
        ("after two thirds",              nothing.clone(),          days(60),           State::RenewalDue),
        ("in its last second",            nothing.clone(),          days(90),           State::RenewalDue),
        ("after its life",                nothing.clone(),          days(90) + second,  State::Expired),
        ("another serial is revoked",     serial(&other),           hours(0),           State::Valid),
        ("another key is revoked",        key(&other),              hours(0),           State::Valid),
        ("its serial is revoked",         serial(&facts),           hours(0),           State::Revoked(Revoked::Serial)),
        ("its key is revoked",            key(&facts),              days(60),           State::Revoked(Revoked::Key)),
        ("revoked, and expired",          key(&facts),              days(91),           State::Revoked(Revoked::Key)),
        ("earlier ones are revoked",      before(start() - second), hours(0),           State::Valid),
        ("those of its second",           before(start()),          hours(0),           State::Revoked(Revoked::IssuedBefore(start()))),
        ("those of its second, exactly",  before(in_second),        hours(0),           State::Revoked(Revoked::IssuedBefore(in_second))),
    ];
    for (what, revocations, later, expected) in cases {
        let state = State::of(&facts, revocations, start() + *later);
        assert_eq!(state, *expected, "{what}");
    }
}

#[test]
fn a_state_lasts_until_the_time_that_it_says() {
    let facts = issue(start());
    let nothing = Revocations::default();
    let mut now = start() - days(1);
    let mut states = vec![State::of(&facts, &nothing, now)];
    while let Some(until) = states.last().unwrap().until(&facts) {
        let last = until - SignedDuration::from_secs(1);
        assert_eq!(Some(&State::of(&facts, &nothing, last)), states.last());
        now = until;
        states.push(State::of(&facts, &nothing, now));
    }
    use State::{Expired, NotYetValid, RenewalDue, Valid};
    assert_eq!(states, [NotYetValid, Valid, RenewalDue, Expired]);
    let accepted: Vec<bool> = states.iter().map(|state| state.is_accepted()).collect();
    assert_eq!(accepted, [false, true, true, false]);
}

#[test]
fn a_certificate_that_is_issued_after_a_revocation_is_accepted() {
    let revoked_at = start() + SignedDuration::from_millis(300);
    let revocations = before(revoked_at);
    // The agent registers again within the same second.
    let now = start() + SignedDuration::from_millis(800);
    let renewed = issue(revocations.time_of_issue(now));
    assert_eq!(State::of(&renewed, &revocations, now), State::Valid);
    assert_eq!(revocations.time_of_issue(now + days(1)), now + days(1));
    assert_eq!(Revocations::default().time_of_issue(now), now);
}
