//! The life of a certificate: until when it is accepted, and when it has to be renewed.
//!
//! ```text
//! not yet valid -> valid -> renewal due -> expired
//!         \__________\___________\___________\____-> revoked
//! ```
//!
//! A certificate can be revoked by itself, by its key, which holds for every certificate of that key, or together with all
//! that were issued before a time.

use std::collections::BTreeSet;
use std::fmt;

use jiff::{SignedDuration, Timestamp};

use crate::{Facts, KeyHash};

/// The state of a certificate. Each one is left by the time that passes, or by a revocation.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum State {
    /// The clocks of both sides differ, if it was issued already.
    NotYetValid,
    Valid,
    /// It is accepted, and two thirds of its life are over.
    RenewalDue,
    Expired,
    /// Final, also after it has expired.
    Revoked(Revoked),
}

/// Why a certificate is revoked.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Revoked {
    Serial,
    Key,
    IssuedBefore(Timestamp),
}

/// The certificates that are no longer accepted.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Revocations {
    /// As in [`Facts::serial`].
    pub serials: BTreeSet<String>,
    pub keys: BTreeSet<KeyHash>,
    /// Certificates say when they were issued to the second. One of the same second counts as issued before.
    pub issued_before: Option<Timestamp>,
}

impl State {
    pub fn of(facts: &Facts, revocations: &Revocations, now: Timestamp) -> Self {
        if let Some(reason) = revocations.find(facts) {
            Self::Revoked(reason)
        } else if now < facts.not_before {
            Self::NotYetValid
        } else if facts.is_expired(now) {
            Self::Expired
        } else if facts.is_renewal_due(now) {
            Self::RenewalDue
        } else {
            Self::Valid
        }
    }

    /// Whether a peer with this certificate may connect, and may remain connected.
    pub fn is_accepted(self) -> bool {
        matches!(self, Self::Valid | Self::RenewalDue)
    }

    /// When the next state begins if nothing is revoked, for a timer.
    pub fn until(self, facts: &Facts) -> Option<Timestamp> {
        match self {
            Self::NotYetValid => Some(facts.not_before),
            Self::Valid => Some(facts.renewal_at()),
            // It is accepted in its last second.
            Self::RenewalDue => facts
                .not_after
                .checked_add(SignedDuration::from_secs(1))
                .ok(),
            Self::Expired | Self::Revoked(_) => None,
        }
    }
}

impl Revocations {
    /// Why a certificate is revoked, if it is.
    pub fn find(&self, facts: &Facts) -> Option<Revoked> {
        if self.serials.contains(&facts.serial) {
            Some(Revoked::Serial)
        } else if self.keys.contains(&facts.key) {
            Some(Revoked::Key)
        } else {
            self.issued_before
                .filter(|before| facts.issued_at() <= *before)
                .map(Revoked::IssuedBefore)
        }
    }

    /// The time to issue a certificate at, so that it is not itself one of those that were issued before.
    pub fn time_of_issue(&self, now: Timestamp) -> Timestamp {
        let second = SignedDuration::from_secs(1);
        let following = |before: Timestamp| before.saturating_add(second).unwrap_or(before);
        self.issued_before
            .map_or(now, |before| now.max(following(before)))
    }
}

impl fmt::Display for State {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::NotYetValid => formatter.write_str("not yet valid"),
            Self::Valid => formatter.write_str("valid"),
            Self::RenewalDue => formatter.write_str("renewal due"),
            Self::Expired => formatter.write_str("expired"),
            Self::Revoked(reason) => write!(formatter, "revoked: {reason}"),
        }
    }
}

impl fmt::Display for Revoked {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Serial => formatter.write_str("its serial number is revoked"),
            Self::Key => formatter.write_str("its key is revoked"),
            Self::IssuedBefore(time) => {
                write!(formatter, "all issued until {time} are revoked")
            }
        }
    }
}

#[cfg(test)]
mod tests;
