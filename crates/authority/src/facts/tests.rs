use super::*;
use crate::fixtures::{days, profile, start};
use crate::{Authority, PrivateKey, Profile, Usage};

fn issued(usage: Usage, lifetime: SignedDuration, now: Timestamp) -> Facts {
    let authority = Authority::generate("test", days(3650), now).unwrap();
    let profile = Profile {
        lifetime,
        ..profile(usage)
    };
    let key = PrivateKey::generate().unwrap();
    authority.issue(&key, &profile, now).unwrap().facts
}

#[test]
fn facts_are_those_that_openssl_shows() {
    let facts = Facts::from_pem(include_str!("../../testdata/p256.ca.pem")).unwrap();
    assert_eq!(facts.common_name, "Example Tunnels");
    assert_eq!(facts.organizations, ["Example Corp"]);
    assert_eq!(facts.serial, "5098ad7c0b25c30f72ee3c6409e3c8d31cb7c127");
    assert_eq!(facts.not_before.to_string(), "2026-11-19T21:57:42Z");
    assert_eq!(facts.not_after.to_string(), "2126-10-26T21:57:42Z");
    assert_eq!(
        facts.fingerprint,
        "7b557f60c94489e9ba8d4724a851093aa2b36c900f3482a0ee29d009f5d1afa0"
    );
    assert!(facts.is_authority && !facts.is_client && !facts.is_server);
    let facts = Facts::from_pem(include_str!("../../testdata/no-authority.pem")).unwrap();
    assert!(!facts.is_authority && !facts.is_client && !facts.is_server);
}

#[test]
fn two_thirds_of_a_life_are_the_time_of_renewal() {
    // A certificate of 90 days is valid for an hour more, which has passed when it is issued.
    let long = issued(Usage::Client, days(90), start());
    let short = issued(Usage::Client, SignedDuration::from_mins(2), start());
    #[rustfmt::skip] // A table is read by its columns.
    let cases: &[(&Facts, SignedDuration, bool)] = &[
        (&long,  SignedDuration::ZERO,            false),
        (&long,  days(59),                        false),
        (&long,  days(60),                        true),
        (&short, SignedDuration::ZERO,            false),
        (&short, SignedDuration::from_secs(75),   false),
        (&short, SignedDuration::from_secs(76),   true),
    ];
    for (facts, later, due) in cases {
        assert_eq!(facts.is_renewal_due(start() + *later), *due, "{later:?}");
    }
    assert!(!long.is_expired(start() + days(90)));
    assert!(long.is_expired(start() + days(90) + SignedDuration::from_secs(1)));
}

#[test]
fn the_time_of_issue_is_known_to_the_second() {
    let lifetimes = [1, 9, 10, 11, 119, 120, 35_999, 36_000, 36_001, 7_776_000];
    for seconds in lifetimes {
        let now = start() + SignedDuration::from_millis(700);
        let facts = issued(Usage::Client, SignedDuration::from_secs(seconds), now);
        assert_eq!(facts.issued_at(), start(), "{seconds} s");
        assert_eq!(
            facts.not_after,
            start() + SignedDuration::from_secs(seconds)
        );
    }
}

#[test]
fn what_is_no_certificate_is_refused() {
    let text = include_str!("../../testdata/p256.ca.pem");
    let mut longer = crate::pem::certificates(text).unwrap()[0].to_vec();
    assert!(Facts::from_der(&longer).is_ok());
    longer.push(0);
    for wrong in [&longer[..], &longer[..200], &[]] {
        let error = Facts::from_der(wrong).unwrap_err();
        assert!(matches!(error, Error::UnreadableCertificate(_)), "{error}");
    }
    let key = include_str!("../../testdata/p256.pkcs8.pem");
    assert!(matches!(Facts::from_pem(key), Err(Error::NoCertificate)));
}
