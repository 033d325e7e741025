//! Replaces a certificate authority by a new one, without a moment at which a peer cannot verify a certificate.
//!
//! ```text
//!            Introduce                      Promote                            Drop
//! signing A -----------> signing A, next B ----------> signing B, previous A -------> signing B
//! ```
//!
//! - A new authority is *introduced*: every peer gets it and trusts it, and it signs nothing yet.
//! - It is *promoted*, and signs from then on, when every peer with a valid certificate has confirmed it. A peer that is
//!   away is waited for, but only for the overlap: by default as long as a certificate is valid, because a peer that was
//!   away for longer has to register again in any case.
//! - The previous one is *dropped* when the last certificate that it may have signed has expired.
//!
//! All replicas share one stored state, which they write only if no other replica has written it in between. A replica may act
//! on a state that is older than the stored one, but by less than [`Durations::distribution`]: it has to read the state
//! more often than that. So no replica is presented with a certificate of an authority that it has not read yet, and a
//! replica that still signs with the previous authority is allowed for.
//!
//! Authorities that were generated here are replaced in time. One that an administrator has brought is never replaced by
//! itself: the administrator stores its successor as the next one.

mod decide;
mod policy;
mod stored;

use std::collections::BTreeSet;

use jiff::{SignedDuration, Timestamp};

pub use self::policy::{Durations, Policy};
use crate::{Authority, Error, Facts, Issued, PrivateKey, Profile, SigningRequest};

/// A peer that has a certificate, and trusts authorities.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Peer {
    pub name: String,
    pub certificate_expires_at: Timestamp,
    /// The [`Facts::fingerprint`] of each authority that the peer has confirmed to trust.
    pub trusts: BTreeSet<String>,
}

/// The authorities of a deployment: one that signs, and those that are trusted besides it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Trust {
    signing: Authority,
    /// Whether the authority that signs was generated here.
    is_generated: bool,
    /// The longest life of any certificate that it has signed, which is known before one is signed.
    lifetime: SignedDuration,
    next: Option<Next>,
    previous: Vec<Previous>,
}

#[derive(Clone, Debug, PartialEq, Eq)]
struct Next {
    authority: Authority,
    is_generated: bool,
    /// Since when peers get it. An administrator who stores a next authority does not say it.
    since: Option<Timestamp>,
}

#[derive(Clone, Debug, PartialEq, Eq)]
struct Previous {
    certificate_pem: String,
    facts: Facts,
    /// When the last certificate that it may have signed expires.
    until: Timestamp,
}

/// An authority that is trusted.
#[derive(Clone, Copy, Debug)]
pub struct Trusted<'a> {
    pub certificate_pem: &'a str,
    pub facts: &'a Facts,
    pub role: Role,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Role {
    Signing,
    Next,
    Previous { until: Timestamp },
}

/// What has to be done next.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Step {
    Nothing,
    /// Note that certificates are signed with a longer life than until now.
    NoteLifetime,
    /// Forget authorities of which no certificate is valid.
    Drop,
    /// Generate the next authority, and distribute it to the peers.
    Introduce,
    /// Distribute the next authority, which an administrator has stored.
    Announce,
    /// Sign with the next authority from now on.
    Promote,
    /// Nothing can be done: the authority must be replaced soon, and an administrator has brought it.
    AwaitSuccessor,
}

impl Step {
    /// Whether it changes the state.
    pub fn is_change(self) -> bool {
        !matches!(self, Self::Nothing | Self::AwaitSuccessor)
    }
}

impl Trust {
    /// The first authority of a deployment.
    pub fn create(policy: &Policy, now: Timestamp) -> Result<Self, Error> {
        Ok(Self {
            signing: policy.generate(now)?,
            is_generated: true,
            lifetime: policy.durations.certificate,
            next: None,
            previous: Vec::new(),
        })
    }

    pub fn signing(&self) -> &Authority {
        &self.signing
    }

    /// The authority that will sign, once every peer trusts it.
    pub fn next(&self) -> Option<&Authority> {
        self.next.as_ref().map(|next| &next.authority)
    }

    /// Every authority that peers have to trust, the one that signs first.
    pub fn bundle(&self) -> Vec<Trusted<'_>> {
        let authority = |authority, role| {
            let authority: &Authority = authority;
            Trusted {
                certificate_pem: authority.certificate_pem(),
                facts: authority.facts(),
                role,
            }
        };
        let previous = self.previous.iter().map(|previous| Trusted {
            certificate_pem: &previous.certificate_pem,
            facts: &previous.facts,
            role: Role::Previous {
                until: previous.until,
            },
        });
        let next = self.next().map(|next| authority(next, Role::Next));
        std::iter::once(authority(&self.signing, Role::Signing))
            .chain(next)
            .chain(previous)
            .collect()
    }

    pub fn bundle_pem(&self) -> String {
        let bundle = self.bundle();
        bundle
            .iter()
            .map(|trusted| trusted.certificate_pem)
            .collect()
    }

    /// Signs a certificate for a peer's key. It does not live longer than what was noted before.
    pub fn sign(
        &self,
        request: &SigningRequest,
        profile: &Profile,
        now: Timestamp,
    ) -> Result<Issued, Error> {
        self.signing.sign(request, &self.limit(profile), now)
    }

    /// Signs a certificate for a key of our own, as [`Self::sign`] does.
    pub fn issue(
        &self,
        key: &PrivateKey,
        profile: &Profile,
        now: Timestamp,
    ) -> Result<Issued, Error> {
        self.signing.issue(key, &self.limit(profile), now)
    }

    fn limit(&self, profile: &Profile) -> Profile {
        Profile {
            lifetime: profile.lifetime.min(self.lifetime),
            ..profile.clone()
        }
    }

    /// Takes one step.
    pub fn apply(mut self, step: Step, policy: &Policy, now: Timestamp) -> Result<Self, Error> {
        match step {
            Step::Nothing | Step::AwaitSuccessor => {}
            Step::NoteLifetime => self.lifetime = self.lifetime.max(policy.durations.certificate),
            Step::Drop => self.forget(now),
            Step::Introduce => return self.introduce(policy, now),
            Step::Announce => {
                if let Some(next) = &mut self.next {
                    next.since = next.since.or(Some(now));
                }
            }
            Step::Promote => self.promote(policy, now),
        }
        Ok(self)
    }

    /// Takes every step that has to be taken now, and says which ones. The caller stores the state if one of them is a
    /// change, before it uses it.
    pub fn advance(
        &self,
        policy: &Policy,
        peers: &[Peer],
        now: Timestamp,
    ) -> Result<(Self, Vec<Step>), Error> {
        let mut trust = self.clone();
        let mut steps = Vec::new();
        loop {
            let step = trust.decide(policy, peers, now);
            if step != Step::Nothing {
                steps.push(step);
            }
            if !step.is_change() {
                return Ok((trust, steps));
            }
            trust = trust.apply(step, policy, now)?;
        }
    }

    /// Begins a rotation with a new authority, whether it is due or not. Without effect during a rotation.
    pub fn introduce(mut self, policy: &Policy, now: Timestamp) -> Result<Self, Error> {
        if self.next.is_none() {
            self.next = Some(Next {
                authority: policy.generate(now)?,
                is_generated: true,
                since: Some(now),
            });
        }
        Ok(self)
    }

    fn forget(&mut self, now: Timestamp) {
        self.previous.retain(|previous| !previous.is_over(now));
        let next = self.next.take();
        self.next = next.filter(|next| !self.is_useless(next, now));
    }

    fn promote(&mut self, policy: &Policy, now: Timestamp) {
        let Some(next) = self.next.take() else {
            return;
        };
        let signing = std::mem::replace(&mut self.signing, next.authority);
        // A replica that has not read of the promotion yet signs with the previous authority for a while.
        let last = self.lifetime.saturating_add(policy.durations.distribution);
        let last = now.saturating_add(last).unwrap_or(Timestamp::MAX);
        let previous = Previous {
            until: last.min(signing.facts().not_after),
            certificate_pem: signing.certificate_pem().to_owned(),
            facts: signing.facts().clone(),
        };
        let promoted = &self.signing.facts().fingerprint;
        self.previous
            .retain(|previous| previous.facts.fingerprint != *promoted);
        self.previous.insert(0, previous);
        self.is_generated = next.is_generated;
        self.lifetime = policy.durations.certificate;
    }
}

impl Previous {
    fn is_over(&self, now: Timestamp) -> bool {
        now > self.until
    }
}

#[cfg(test)]
mod model;
#[cfg(test)]
mod tests;
