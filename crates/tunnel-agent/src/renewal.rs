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
