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
    let is_revoked = cluster.spec.revoked_before.is_some() || !cluster.spec.revoked.is_empty();
    if valid.peek().is_none() {
        return Some(if is_revoked {
            ClusterState::Revoked
        } else {
            ClusterState::Pending
        });
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
