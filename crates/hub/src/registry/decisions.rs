//! Decisions about a cluster's object: which certificates it admits, and how it changes.

use api::hub::ClusterState;
use api::managed_cluster::{
    IssuedCertificate, ManagedCluster, ManagedClusterStatus, RevokedCertificate,
};
use authority::Facts;
use authority::rotation::Peer;
use jiff::{SignedDuration, Timestamp};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::Time;
use kube::ResourceExt as _;

/// Certificates have times in whole seconds.
const PRECISION: SignedDuration = SignedDuration::from_secs(2);
/// An agent has one certificate, and for a moment two. Others were lost, and are forgotten after this many.
const MAX_CERTIFICATES: usize = 32;

/// Whether a certificate is no longer accepted.
pub(crate) fn is_revoked(cluster: &ManagedCluster, facts: &Facts) -> bool {
    let key = facts.key.hex();
    let is_listed = cluster
        .spec
        .revoked
        .iter()
        .any(|revoked| revoked.serial == facts.serial || revoked.key == key);
    is_listed
        || cluster
            .spec
            .revoked_before
            .as_ref()
            .is_some_and(|before| facts.issued_at() + PRECISION < before.0)
}

/// Whether an agent of the cluster has to register, again or for the first time: no certificate is accepted any more.
pub(crate) fn needs_registration(cluster: &ManagedCluster, now: Timestamp) -> Option<ClusterState> {
    let certificates = cluster.status.as_ref().map(|status| &status.certificates);
    let mut valid = certificates
        .into_iter()
        .flatten()
        .filter(|certificate| now < certificate.expires_at.0)
        .peekable();
    if valid.peek().is_none() {
        let mut revoked = cluster.spec.revoked.iter();
        return Some(
            if revoked.any(|certificate| now < certificate.expires_at.0) {
                ClusterState::Revoked
            } else {
                ClusterState::Pending
            },
        );
    }
    let is_listed = |certificate: &IssuedCertificate| {
        let mut revoked = cluster.spec.revoked.iter();
        revoked.any(|it| it.serial == certificate.serial || it.key == certificate.key)
    };
    valid.all(is_listed).then_some(ClusterState::Revoked)
}

/// The cluster as one whose agent has to trust an authority, if it has a certificate that is accepted.
pub(super) fn peer(cluster: &ManagedCluster, now: Timestamp) -> Option<Peer> {
    let status = cluster.status.as_ref()?;
    let revoked = &cluster.spec.revoked;
    let accepted = status.certificates.iter().filter(|certificate| {
        now < certificate.expires_at.0
            && !revoked
                .iter()
                .any(|it| it.serial == certificate.serial || it.key == certificate.key)
    });
    Some(Peer {
        name: cluster.name_any(),
        certificate_expires_at: accepted.map(|certificate| certificate.expires_at.0).max()?,
        trusts: status.trusted_authorities.iter().cloned().collect(),
    })
}

/// Revokes every certificate of the cluster.
pub(super) fn revoke_all(cluster: &mut ManagedCluster, now: Timestamp) {
    let revoked = &mut cluster.spec.revoked;
    revoked.retain(|entry| now < entry.expires_at.0);
    let certificates = cluster
        .status
        .iter()
        .flat_map(|status| &status.certificates);
    for certificate in certificates.filter(|certificate| now < certificate.expires_at.0) {
        if !revoked.iter().any(|it| it.serial == certificate.serial) {
            revoked.push(RevokedCertificate {
                serial: certificate.serial.clone(),
                key: certificate.key.clone(),
                expires_at: certificate.expires_at.clone(),
            });
        }
    }
    cluster.spec.revoked_before = Some(Time(now));
}

/// Adds a certificate that is about to be handed out. Returns whether the object has changed.
pub(super) fn add_certificate(cluster: &mut ManagedCluster, facts: &Facts, now: Timestamp) -> bool {
    let status = cluster
        .status
        .get_or_insert_with(ManagedClusterStatus::default);
    let certificates = &mut status.certificates;
    if certificates.iter().any(|it| it.serial == facts.serial) {
        return false;
    }
    certificates.retain(|certificate| now < certificate.expires_at.0);
    let excess = (certificates.len() + 1).saturating_sub(MAX_CERTIFICATES);
    certificates.drain(..excess);
    certificates.push(IssuedCertificate {
        serial: facts.serial.clone(),
        key: facts.key.hex(),
        issued_at: Time(now),
        expires_at: Time(facts.not_after),
    });
    true
}

#[cfg(test)]
mod tests {
    use authority::{Authority, PrivateKey, Profile, Usage};

    use super::*;

    fn at(seconds: i64) -> Timestamp {
        Timestamp::from_second(1_800_000_000 + seconds).unwrap()
    }

    fn issued(key: &PrivateKey, seconds: i64) -> Facts {
        let authority = Authority::generate("hub", SignedDuration::from_hours(24), at(0)).unwrap();
        let profile = Profile {
            common_name: "a".to_owned(),
            names: Vec::new(),
            usage: Usage::Client,
            lifetime: SignedDuration::from_hours(1),
        };
        authority.issue(key, &profile, at(seconds)).unwrap().facts
    }

    fn cluster() -> ManagedCluster {
        ManagedCluster::new("a", Default::default())
    }

    #[test]
    fn a_revocation_includes_every_earlier_certificate_and_its_key() {
        let (old, new) = (
            PrivateKey::generate().unwrap(),
            PrivateKey::generate().unwrap(),
        );
        let (known, unknown) = (issued(&old, 0), issued(&PrivateKey::generate().unwrap(), 0));
        let mut cluster = cluster();
        assert!(!is_revoked(&cluster, &known));
        assert_eq!(
            needs_registration(&cluster, at(0)),
            Some(ClusterState::Pending)
        );
        assert!(add_certificate(&mut cluster, &known, at(0)));
        assert!(!add_certificate(&mut cluster, &known, at(0)));
        assert_eq!(needs_registration(&cluster, at(0)), None);
        revoke_all(&mut cluster, at(100));
        assert_eq!(
            needs_registration(&cluster, at(100)),
            Some(ClusterState::Revoked)
        );
        assert!(peer(&cluster, at(100)).is_none());
        // Also one that the status does not have, and another certificate for the same key.
        assert!(is_revoked(&cluster, &known) && is_revoked(&cluster, &unknown));
        assert!(is_revoked(&cluster, &issued(&old, 200)));
        let registered = issued(&new, 100);
        assert!(!is_revoked(&cluster, &registered));
        add_certificate(&mut cluster, &registered, at(100));
        assert_eq!(needs_registration(&cluster, at(100)), None);
        assert!(peer(&cluster, at(100)).is_some());
        // When everything has expired, the list is empty again.
        revoke_all(&mut cluster, at(10_000));
        assert!(cluster.spec.revoked.is_empty());
        assert_eq!(
            needs_registration(&cluster, at(10_000)),
            Some(ClusterState::Pending)
        );
    }

    #[test]
    fn the_list_of_certificates_is_bounded() {
        let mut cluster = cluster();
        let key = PrivateKey::generate().unwrap();
        for seconds in 0..40 {
            add_certificate(&mut cluster, &issued(&key, seconds), at(seconds));
        }
        let certificates = cluster.status.unwrap().certificates;
        assert_eq!(certificates.len(), MAX_CERTIFICATES);
        assert_eq!(certificates.last().unwrap().issued_at, Time(at(39)));
    }
}
