use std::collections::BTreeMap;

use super::*;
use crate::Usage;
use crate::fixtures::{days, profile, start, verify_client, verify_server};

fn minutes(count: i64) -> SignedDuration {
    SignedDuration::from_mins(count)
}

fn policy() -> Policy {
    Policy::new("standin-hub", Durations::default()).unwrap()
}

fn fingerprint(authority: &Authority) -> String {
    authority.facts().fingerprint.clone()
}

fn peer(expires: Timestamp, trusts: &[&Authority]) -> Peer {
    Peer {
        name: "prod-eu".to_owned(),
        certificate_expires_at: expires,
        trusts: trusts.iter().map(|trusted| fingerprint(trusted)).collect(),
    }
}

/// An authority of an administrator, as the data of a Secret.
fn brought(keys: [&str; 2], authority: &Authority) -> BTreeMap<String, Vec<u8>> {
    let [certificate, key] = keys.map(str::to_owned);
    [
        (certificate, authority.certificate_pem().into()),
        (key, authority.key_pem().into()),
    ]
    .into()
}

fn read(data: &BTreeMap<String, Vec<u8>>) -> Trust {
    Trust::from_data(data).unwrap().unwrap()
}

#[test]
fn each_step_has_its_time() {
    let policy = policy();
    let new = Trust::create(&policy, start()).unwrap();
    let rotating = new.clone().introduce(&policy, start()).unwrap();
    let next = rotating.next().unwrap();
    let promoted = rotating.clone().apply(Step::Promote, &policy, start());
    let promoted = promoted.unwrap();
    let brought = read(&brought(["ca.crt", "ca.key"], new.signing()));
    let noted = brought.clone().apply(Step::NoteLifetime, &policy, start());
    let noted = noted.unwrap();
    let mut short = rotating.clone();
    short.signing = Authority::generate("short", days(1), start()).unwrap();

    let away = [peer(start() + days(90), &[new.signing()])];
    let gone = [peer(start(), &[new.signing()])];
    let one_of_two = [peer(start() + days(90), &[next]), away[0].clone()];
    let all = [peer(start() + days(90), &[new.signing(), next])];
    #[rustfmt::skip] // A table is read by its columns.
    let cases: &[(&str, &Trust, &[Peer], SignedDuration, Step)] = &[
        ("a new authority",                      &new,      &away,       days(0),               Step::Nothing),
        ("before two thirds of its life",        &new,      &away,       days(2432),            Step::Nothing),
        ("after two thirds of its life",         &new,      &away,       days(2434),            Step::Introduce),
        ("the next one is not known everywhere", &rotating, &all,        minutes(1),            Step::Nothing),
        ("all have confirmed it",                &rotating, &all,        minutes(2),            Step::Promote),
        ("there is no peer",                     &rotating, &[],         minutes(2),            Step::Promote),
        ("one has not confirmed it",             &rotating, &one_of_two, minutes(2),            Step::Nothing),
        ("one is away",                          &rotating, &away,       days(90),              Step::Nothing),
        ("one was away for longer",              &rotating, &away,       days(90) + minutes(2), Step::Promote),
        ("its certificate has expired",          &rotating, &gone,       minutes(2),            Step::Promote),
        ("the authority has expired",            &short,    &away,       days(2),               Step::Promote),
        ("the previous one is in use",           &promoted, &all,        days(90) + minutes(2), Step::Nothing),
        ("the previous one is not in use",       &promoted, &all,        days(90) + minutes(3), Step::Drop),
        ("an administrator's, as found",         &brought,  &all,        days(0),               Step::NoteLifetime),
        ("an administrator's",                   &noted,    &all,        days(0),               Step::Nothing),
        ("an administrator's is old",            &noted,    &all,        days(2434),            Step::AwaitSuccessor),
    ];
    for (what, trust, peers, later, expected) in cases {
        let step = trust.decide(&policy, peers, start() + *later);
        assert_eq!(step, *expected, "{what}");
    }
}

#[test]
fn an_own_overlap_limits_how_long_peers_are_waited_for() {
    let durations = Durations {
        overlap: Some(days(7)),
        ..Durations::default()
    };
    let policy = Policy::new("standin-hub", durations).unwrap();
    let trust = Trust::create(&policy, start()).unwrap();
    let rotating = trust.introduce(&policy, start()).unwrap();
    let away = [peer(start() + days(90), &[])];
    assert_eq!(rotating.unconfirmed(&away, start()).count(), 1);
    let decide = |later| rotating.decide(&policy, &away, start() + later);
    assert_eq!(decide(days(7)), Step::Nothing);
    assert_eq!(decide(days(7) + minutes(2)), Step::Promote);
}

#[test]
fn a_peer_of_a_previous_authority_is_waited_for() {
    let policy = policy();
    let long = Trust::create(&policy, start()).unwrap();
    let short = Durations {
        certificate: days(1),
        ..Durations::default()
    };
    let short = Policy::new("standin-hub", short).unwrap();
    // The peer has a certificate of the first authority. Two rotations follow within its life.
    let rotating = long.introduce(&short, start()).unwrap();
    let second = rotating.next().unwrap().clone();
    let trust = rotating.apply(Step::Promote, &short, start()).unwrap();
    let trust = trust.introduce(&short, start()).unwrap();
    let away = [peer(start() + days(89), &[&second])];
    let decide = |later| trust.decide(&short, &away, start() + later);
    assert_eq!(decide(days(2)), Step::Nothing);
    assert_eq!(decide(days(89) + minutes(1)), Step::Promote);
}

#[test]
fn certificates_are_verified_throughout_a_rotation() {
    let policy = policy();
    let key = PrivateKey::generate().unwrap();
    let issue = |trust: &Trust, usage, at| {
        let issued = trust.issue(&key, &profile(usage), at);
        issued.unwrap().certificate_pem
    };
    let name = "hub.example.com";
    let trust = Trust::create(&policy, start()).unwrap();
    let old_bundle = trust.bundle_pem();
    let old_agent = issue(&trust, Usage::Client, start());
    let old_server = issue(&trust, Usage::Server, start());

    let trust = trust.introduce(&policy, start()).unwrap();
    let bundle = trust.bundle_pem();
    let later = start() + minutes(2);
    let (trust, steps) = trust.advance(&policy, &[], later).unwrap();
    assert_eq!(steps, [Step::Promote]);
    let agent = issue(&trust, Usage::Client, later);
    let server = issue(&trust, Usage::Server, later);
    for client in [&old_agent, &agent] {
        verify_client(&trust.bundle_pem(), client, later).unwrap();
    }
    for server in [&old_server, &server] {
        verify_server(&bundle, server, name, later).unwrap();
    }
    verify_server(&old_bundle, &old_server, name, later).unwrap();
    assert!(verify_server(&old_bundle, &server, name, later).is_err());

    let last = later + days(90) + minutes(2);
    let (same, steps) = trust.advance(&policy, &[], last).unwrap();
    assert!(same == trust && steps.is_empty());
    let (trust, steps) = trust.advance(&policy, &[], last + minutes(1)).unwrap();
    assert_eq!(steps, [Step::Drop]);
    assert_eq!(trust.bundle().len(), 1);
    assert!(verify_client(&trust.bundle_pem(), &old_agent, later).is_err());
}

#[test]
fn an_administrator_brings_the_next_authority() {
    let policy = policy();
    let trust = Trust::create(&policy, start()).unwrap();
    let next = Authority::generate("corporate", days(1000), start()).unwrap();
    let mut data = trust.to_data();
    data.extend(brought(["next.crt", "next.key"], &next));

    let (trust, steps) = read(&data).advance(&policy, &[], start()).unwrap();
    assert_eq!(steps, [Step::Announce]);
    let roles: Vec<Role> = trust.bundle().iter().map(|trusted| trusted.role).collect();
    assert_eq!(roles, [Role::Signing, Role::Next]);

    let later = start() + minutes(2);
    let (trust, steps) = read(&trust.to_data()).advance(&policy, &[], later).unwrap();
    assert_eq!(steps, [Step::Promote]);
    assert!(*trust.signing() == next && trust.next().is_none());
    // It is the administrator's, so it is not replaced by one of ours.
    let old = start() + days(900);
    let (_, steps) = trust.advance(&policy, &[], old).unwrap();
    assert_eq!(steps, [Step::Drop, Step::AwaitSuccessor]);
}

#[test]
fn a_next_authority_that_cannot_sign_is_not_promoted() {
    let policy = policy();
    let trust = Trust::create(&policy, start()).unwrap();
    let expired = Authority::generate("expired", days(1), start() - days(2)).unwrap();
    let future = Authority::generate("future", days(900), start() + days(2)).unwrap();
    #[rustfmt::skip] // A table is read by its columns.
    let cases: &[(&str, &Authority, SignedDuration, &[Step])] = &[
        ("it has expired",         &expired,        minutes(0), &[Step::Drop]),
        ("it is the same",         trust.signing(), minutes(0), &[Step::Drop]),
        ("it is not valid yet",    &future,         minutes(9), &[]),
        ("it has become valid",    &future,         days(3),    &[Step::Promote]),
    ];
    for (what, next, later, expected) in cases {
        let mut trust = trust.clone();
        trust.next = Some(Next {
            authority: (*next).clone(),
            is_generated: false,
            since: Some(start()),
        });
        let (_, steps) = trust.advance(&policy, &[], start() + *later).unwrap();
        assert_eq!(steps, *expected, "{what}");
    }
}

#[test]
fn the_longest_life_of_a_certificate_decides_when_its_authority_is_dropped() {
    let long = policy();
    let short = Durations {
        certificate: days(1),
        ..Durations::default()
    };
    let short = Policy::new("standin-hub", short).unwrap();
    let key = PrivateKey::generate().unwrap();
    let lifetime = |trust: &Trust| {
        let issued = trust.issue(&key, &profile(Usage::Client), start()).unwrap();
        start().duration_until(issued.facts.not_after)
    };

    let trust = Trust::create(&short, start()).unwrap();
    assert_eq!(lifetime(&trust), days(1));
    let (trust, steps) = trust.advance(&long, &[], start()).unwrap();
    assert_eq!(steps, [Step::NoteLifetime]);
    assert_eq!(lifetime(&trust), days(90));
    // The certificates of 90 days do not end with the setting.
    let trust = read(&trust.to_data()).introduce(&short, start()).unwrap();
    let trust = trust.apply(Step::Promote, &short, start()).unwrap();
    let until = start() + days(90) + minutes(2);
    assert_eq!(trust.bundle()[1].role, Role::Previous { until });
}

#[test]
fn the_state_is_stored() {
    let policy = policy();
    assert!(Trust::from_data(&BTreeMap::new()).unwrap().is_none());
    let empty = ["ca.crt", "ca.key"].map(|key| (key.to_owned(), Vec::new()));
    assert!(Trust::from_data(&empty.into()).unwrap().is_none());

    let new = Trust::create(&policy, start()).unwrap();
    let rotating = new.clone().introduce(&policy, start()).unwrap();
    let promoted = rotating.clone().apply(Step::Promote, &policy, start());
    let promoted = promoted.unwrap();
    let again = promoted.clone().introduce(&policy, start()).unwrap();
    #[rustfmt::skip] // A table is read by its columns.
    let cases: &[(&Trust, &[&str])] = &[
        (&new,      &["ca.crt", "ca.key", "rotation.json"]),
        (&rotating, &["ca.crt", "ca.key", "next.crt", "next.key", "rotation.json"]),
        (&promoted, &["ca.crt", "ca.key", "previous.crt", "rotation.json"]),
        (&again,    &["ca.crt", "ca.key", "next.crt", "next.key", "previous.crt", "rotation.json"]),
    ];
    for (trust, expected) in cases {
        let data = trust.to_data();
        assert_eq!(data.keys().collect::<Vec<_>>(), *expected);
        assert_eq!(read(&data), **trust);
        assert_eq!(read(&data).to_data(), data);
    }
}

#[test]
fn without_its_notes_a_state_is_still_safe() {
    let policy = policy();
    let trust = Trust::create(&policy, start()).unwrap();
    let trust = trust.introduce(&policy, start()).unwrap();
    let trust = trust.apply(Step::Promote, &policy, start()).unwrap();
    let trust = trust.introduce(&policy, start()).unwrap();
    let mut data = trust.to_data();
    data.remove("rotation.json");
    let (found, steps) = read(&data).advance(&policy, &[], start()).unwrap();
    assert_eq!(steps, [Step::NoteLifetime, Step::Announce]);
    assert_eq!(found.bundle_pem(), trust.bundle_pem());
    let until = trust.bundle()[2].facts.not_after;
    assert_eq!(found.bundle()[2].role, Role::Previous { until });
}

#[test]
fn unusable_data_is_named() {
    let trust = Trust::create(&policy(), start()).unwrap();
    let data = trust.introduce(&policy(), start()).unwrap().to_data();
    let other = Authority::generate("other", days(1000), start()).unwrap();
    #[rustfmt::skip] // A table is read by its columns.
    let cases: &[(&str, &[u8], &str)] = &[
        ("ca.key",        b"",                         "the Secret has no ca.key"),
        ("ca.crt",        b" \n",                      "the Secret has no ca.crt"),
        ("next.key",      b"",                         "the Secret has no next.key"),
        ("ca.crt",        b"\xff",                     "ca.crt in the Secret is not text"),
        ("ca.key",        other.key_pem().as_bytes(),  "ca.crt in the Secret cannot be used"),
        ("next.crt",      b"x",                        "next.crt in the Secret cannot be used"),
        ("previous.crt",  b"-----BEGIN CERTIFICATE-----\nx\n-----END CERTIFICATE-----",
                                                       "previous.crt in the Secret cannot be used"),
        ("rotation.json", b"{",                        "rotation.json in the Secret cannot be read"),
    ];
    for (key, value, expected) in cases {
        let mut data = data.clone();
        data.insert((*key).to_owned(), value.to_vec());
        let error = Trust::from_data(&data).unwrap_err().to_string();
        assert!(error.starts_with(expected), "{key}: {error}");
    }
}

#[test]
fn a_policy_leaves_time_for_a_rotation() {
    let hours = SignedDuration::from_hours;
    let given = |authority, certificate, overlap, distribution| Durations {
        authority,
        certificate,
        overlap,
        distribution,
    };
    #[rustfmt::skip] // A table is read by its columns.
    let cases: &[(Durations, bool)] = &[
        (Durations::default(),                                          true),
        (given(minutes(10), minutes(2), None, minutes(1)),              true),
        (given(minutes(9),  minutes(2), None, minutes(1)),              false),
        (given(minutes(8),  minutes(2), Some(minutes(1)), minutes(1)),  true),
        (given(days(3650),  days(0),    None, minutes(1)),              false),
        (given(days(3650),  days(90),   None, minutes(0)),              false),
        (given(days(3650),  days(90),   Some(-days(1)), minutes(1)),    false),
        (given(hours(24 * 366 * 100), days(90), None, minutes(1)),      false),
        (given(SignedDuration::MAX, SignedDuration::MAX, None, SignedDuration::MAX), false),
    ];
    for (durations, expected) in cases {
        let policy = Policy::new("test", *durations);
        assert_eq!(policy.is_ok(), *expected, "{durations:?}");
    }
}
