//! How long everything lasts during a rotation.

use jiff::{SignedDuration, Timestamp};

use crate::{Authority, Error};

/// A hundred years.
const MAX_LIFETIME: SignedDuration = SignedDuration::from_hours(100 * 365 * 24);

/// How long everything lasts.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Durations {
    /// The life of a generated authority.
    pub authority: SignedDuration,
    /// The longest life of a certificate.
    pub certificate: SignedDuration,
    /// How long peers that are away are waited for. Without it, as long as a certificate is valid.
    pub overlap: Option<SignedDuration>,
    /// More than it takes until every replica has read a change of the stored state, with the difference of their clocks.
    pub distribution: SignedDuration,
}

impl Default for Durations {
    fn default() -> Self {
        let day = SignedDuration::from_hours(24);
        Self {
            authority: day * 3650,
            certificate: day * 90,
            overlap: None,
            distribution: SignedDuration::from_mins(2),
        }
    }
}

/// How authorities are named, and how long everything lasts. It is valid: an authority lives long enough to be replaced.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Policy {
    name: String,
    pub(super) durations: Durations,
}

impl Policy {
    pub fn new(name: &str, mut durations: Durations) -> Result<Self, Error> {
        // As it is stored.
        durations.certificate = SignedDuration::from_secs(durations.certificate.as_secs());
        let policy = Self {
            name: name.to_owned(),
            durations,
        };
        let parts = [
            durations.authority,
            durations.certificate,
            durations.overlap.unwrap_or(durations.certificate),
            durations.distribution,
        ];
        let positive = parts.iter().all(|part| *part > SignedDuration::ZERO);
        let needed = policy.replacement(durations.certificate).checked_mul(2);
        let is_long_enough = needed.is_some_and(|needed| durations.authority >= needed);
        if positive && is_long_enough && durations.authority <= MAX_LIFETIME {
            Ok(policy)
        } else {
            Err(Error::Policy)
        }
    }

    /// The longest life of a certificate.
    pub fn certificate_lifetime(&self) -> SignedDuration {
        self.durations.certificate
    }

    /// How long peers that are away are waited for, if certificates are valid for `lifetime`.
    pub(super) fn overlap(&self, lifetime: SignedDuration) -> SignedDuration {
        let overlap = self.durations.overlap.unwrap_or(lifetime);
        // A certificate from a replica that had not read of the new authority yet.
        overlap.saturating_add(self.durations.distribution)
    }

    /// How long it takes at most until an authority with certificates of this life is replaced and dropped.
    pub(super) fn replacement(&self, lifetime: SignedDuration) -> SignedDuration {
        self.overlap(lifetime).saturating_add(lifetime)
    }

    pub(super) fn generate(&self, now: Timestamp) -> Result<Authority, Error> {
        // Some verifiers confuse two authorities of the same name.
        let name = format!("{}@{}", self.name, now.as_second());
        Authority::generate(&name, self.durations.authority, now)
    }
}
