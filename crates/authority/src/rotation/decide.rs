//! Which step has to be taken.

use jiff::{SignedDuration, Timestamp};

use super::{Next, Peer, Policy, Step, Trust};
use crate::Authority;

impl Trust {
    /// Decides what has to be done next. Replicas with the same state decide the same.
    pub fn decide(&self, policy: &Policy, peers: &[Peer], now: Timestamp) -> Step {
        if policy.durations.certificate > self.lifetime {
            return Step::NoteLifetime;
        }
        if self.previous.iter().any(|previous| previous.is_over(now))
            || self
                .next
                .as_ref()
                .is_some_and(|next| self.is_useless(next, now))
        {
            return Step::Drop;
        }
        match &self.next {
            None if !self.is_successor_due(policy, now) => Step::Nothing,
            None if self.is_generated => Step::Introduce,
            None => Step::AwaitSuccessor,
            Some(Next { since: None, .. }) => Step::Announce,
            Some(Next {
                since: Some(since), ..
            }) if self.can_promote(policy, peers, *since, now) => Step::Promote,
            Some(_) => Step::Nothing,
        }
    }

    /// The peers that have a valid certificate and have not confirmed the next authority.
    pub fn unconfirmed<'a>(
        &'a self,
        peers: &'a [Peer],
        now: Timestamp,
    ) -> impl Iterator<Item = &'a Peer> {
        let next = self.next().map(|next| &next.facts().fingerprint);
        peers
            .iter()
            .filter(move |peer| peer.certificate_expires_at >= now)
            .filter(move |peer| next.is_some_and(|next| !peer.trusts.contains(next)))
    }

    /// Whether the authority that signs has to be replaced now.
    fn is_successor_due(&self, policy: &Policy, now: Timestamp) -> bool {
        let facts = self.signing.facts();
        let left = now.duration_until(facts.not_after);
        facts.is_renewal_due(now) || left <= policy.replacement(self.lifetime)
    }

    /// Whether it can never sign anything.
    pub(super) fn is_useless(&self, next: &Next, now: Timestamp) -> bool {
        next.authority == self.signing || next.authority.facts().is_expired(now)
    }

    fn can_promote(
        &self,
        policy: &Policy,
        peers: &[Peer],
        since: Timestamp,
        now: Timestamp,
    ) -> bool {
        let age = since.duration_until(now);
        let is_valid = |next: &Authority| next.facts().not_before <= now;
        self.next().is_some_and(is_valid)
            && age >= policy.durations.distribution
            && (self.unconfirmed(peers, now).next().is_none()
                || self.is_overlap_over(policy, age)
                || self.has_no_certificates(now))
    }

    /// Whether peers have been waited for long enough.
    fn is_overlap_over(&self, policy: &Policy, age: SignedDuration) -> bool {
        // Without a limit, a peer whose certificate was signed by a previous authority is waited for as well.
        age >= policy.overlap(self.lifetime)
            && (policy.durations.overlap.is_some() || self.previous.is_empty())
    }

    /// Whether no peer can have a valid certificate.
    fn has_no_certificates(&self, now: Timestamp) -> bool {
        self.signing.facts().is_expired(now) && self.previous.is_empty()
    }
}
