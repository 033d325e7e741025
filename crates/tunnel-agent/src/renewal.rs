//! When the agent asks for a new certificate. Pure.

use authority::Facts;
use jiff::{SignedDuration, Timestamp};

/// The least time between two attempts. Certificates may live for minutes.
const MIN_INTERVAL: SignedDuration = SignedDuration::from_secs(5);
/// The longest time between two attempts to renew a certificate that is due.
const MAX_INTERVAL: SignedDuration = SignedDuration::from_mins(10);
/// The longest time until the decision is made again. Clocks may be changed.
const MAX_WAIT: SignedDuration = SignedDuration::from_hours(1);

/// What to do about a certificate now.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Renewal {
    Ask,
    Wait(SignedDuration),
}

/// Decides with the time of the last attempt to renew this certificate.
pub(crate) fn next(facts: &Facts, last_attempt: Option<Timestamp>, now: Timestamp) -> Renewal {
    let life = facts.not_after.duration_since(facts.not_before);
    let due = facts.renewal_at();
    if now < due {
        return Renewal::Wait(due.duration_since(now).min(MAX_WAIT));
    }
    // Several attempts fit into what is left of the life.
    let interval = (life / 30).clamp(MIN_INTERVAL, MAX_INTERVAL);
    match last_attempt.map(|last| now.duration_since(last)) {
        Some(elapsed) if !elapsed.is_negative() && elapsed < interval => {
            Renewal::Wait(interval - elapsed)
        }
        _ => Renewal::Ask,
    }
}

#[cfg(test)]
mod tests {
    use authority::{Authority, PrivateKey, Profile, Usage};

    use super::*;

    /// The facts of a certificate with a life, issued at the beginning of the epoch.
    fn facts(life: SignedDuration) -> Facts {
        let now = Timestamp::UNIX_EPOCH;
        let authority = Authority::generate("hub", life * 2, now).unwrap();
        let profile = Profile {
            common_name: "a".to_owned(),
            names: Vec::new(),
            usage: Usage::Client,
            lifetime: life,
        };
        let key = PrivateKey::generate().unwrap();
        authority.issue(&key, &profile, now).unwrap().facts
    }

    fn at(seconds: i64) -> Timestamp {
        Timestamp::UNIX_EPOCH + SignedDuration::from_secs(seconds)
    }

    #[test]
    fn a_certificate_is_renewed_after_two_thirds_of_its_life() {
        let facts = facts(SignedDuration::from_hours(90 * 24));
        let due = facts.renewal_at().as_second();
        let wait = |seconds| Renewal::Wait(SignedDuration::from_secs(seconds));
        assert_eq!(next(&facts, None, at(0)), wait(3600));
        assert_eq!(next(&facts, None, at(due - 60)), wait(60));
        assert_eq!(next(&facts, None, at(due)), Renewal::Ask);
        // Also when it has expired meanwhile, as after a long sleep.
        assert_eq!(next(&facts, None, at(due * 2)), Renewal::Ask);
    }

    #[test]
    fn attempts_are_repeated_several_times_in_what_is_left_of_the_life() {
        for (life, interval) in [
            (SignedDuration::from_mins(2), 5),
            (SignedDuration::from_hours(1), 132),
            (SignedDuration::from_hours(90 * 24), 600),
        ] {
            let facts = facts(life);
            let due = facts.renewal_at().as_second();
            let check = |after: i64, expected: Option<i64>| {
                let found = next(&facts, Some(at(due)), at(due + after));
                let expected = expected.map_or(Renewal::Ask, |seconds| {
                    Renewal::Wait(SignedDuration::from_secs(seconds))
                });
                assert_eq!(found, expected, "{after} s after the last attempt");
            };
            check(1, Some(interval - 1));
            check(interval, None);
            // The clock was set back.
            check(-1, Some(1));
        }
    }
}
