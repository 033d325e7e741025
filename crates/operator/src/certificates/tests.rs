#![allow(clippy::type_complexity, reason = "a table is read by its columns")]

use std::sync::Arc;

use rcgen::{
    BasicConstraints, CertificateParams, DnType, ExtendedKeyUsagePurpose, IsCa, Issuer, KeyPair,
    KeyUsagePurpose, date_time_ymd,
};
use rustls::RootCertStore;
use rustls::client::WebPkiServerVerifier;
use rustls::client::danger::ServerCertVerifier as _;
use rustls::pki_types::{ServerName, UnixTime};

use super::*;

fn names() -> Vec<String> {
    vec!["standin-operator.standin.svc".to_owned()]
}

fn start() -> Timestamp {
    Timestamp::from_second(1_800_000_000).unwrap()
}

fn days(count: i64) -> SignedDuration {
    SignedDuration::from_hours(24 * count)
}

fn created(at: Timestamp) -> Certificates {
    renew(None, Renewal::Authority, &names(), at).unwrap()
}

/// The certificates as the first releases made them, on the day of [`start`].
fn of_an_early_release() -> Certificates {
    let authority_key = KeyPair::generate().unwrap();
    let mut parameters = CertificateParams::default();
    let name = "standin-operator-ca@1800000000";
    parameters.distinguished_name.push(DnType::CommonName, name);
    parameters.is_ca = IsCa::Ca(BasicConstraints::Constrained(0));
    parameters.key_usages = vec![KeyUsagePurpose::KeyCertSign, KeyUsagePurpose::CrlSign];
    parameters.not_before = date_time_ymd(2027, 1, 15);
    parameters.not_after = date_time_ymd(2030, 1, 15);
    let authority = parameters.self_signed(&authority_key).unwrap().pem();
    let issuer = Issuer::from_params(&parameters, &authority_key);

    let key = KeyPair::generate().unwrap();
    let mut parameters = CertificateParams::new(names()).unwrap();
    parameters.extended_key_usages = vec![
        ExtendedKeyUsagePurpose::ServerAuth,
        ExtendedKeyUsagePurpose::ClientAuth,
    ];
    parameters.not_before = date_time_ymd(2027, 1, 15);
    parameters.not_after = date_time_ymd(2027, 4, 15);
    Certificates {
        bundle: authority.clone(),
        authority,
        authority_key: authority_key.serialize_pem(),
        certificate: parameters.signed_by(&key, &issuer).unwrap().pem(),
        key: key.serialize_pem(),
        ..created(start())
    }
}

/// Whether the API server would accept the certificate with this bundle.
fn is_trusted(bundle: &str, certificates: &Certificates, at: Timestamp) -> bool {
    let mut roots = RootCertStore::empty();
    for authority in CertificateDer::pem_slice_iter(bundle.as_bytes()) {
        roots.add(authority.unwrap()).unwrap();
    }
    let provider = Arc::new(rustls::crypto::ring::default_provider());
    let verifier = WebPkiServerVerifier::builder_with_provider(Arc::new(roots), provider)
        .build()
        .unwrap();
    let (chain, _) = certificates.for_server().unwrap();
    let name = ServerName::try_from(names()[0].clone()).unwrap();
    let second = std::time::Duration::from_secs(at.as_second().unsigned_abs());
    verifier
        .verify_server_cert(
            &chain[0],
            &chain[1..],
            &name,
            &[],
            UnixTime::since_unix_epoch(second),
        )
        .is_ok()
}

#[test]
fn old_certificates_are_renewed() {
    let found = created(start());
    let broken = Certificates {
        key: "not a key".to_owned(),
        ..found.clone()
    };
    let other = ["other.standin.svc".to_owned()];
    #[rustfmt::skip] // A table is read by its columns.
    let cases: &[(&str, Option<&Certificates>, &[String], i64, Renewal)] = &[
        ("the Secret is empty",       None,          &names(), 0,    Renewal::Authority),
        ("all is new",                Some(&found),  &names(), 0,    Renewal::Nothing),
        ("before two thirds",         Some(&found),  &names(), 59,   Renewal::Nothing),
        ("after two thirds",          Some(&found),  &names(), 61,   Renewal::Certificate),
        ("after its life",            Some(&found),  &names(), 100,  Renewal::Certificate),
        ("the authority is old",      Some(&found),  &names(), 731,  Renewal::Authority),
        ("the Service has a new name", Some(&found), &other,   0,    Renewal::Certificate),
        ("the key is unreadable",     Some(&broken), &names(), 0,    Renewal::Certificate),
    ];
    for (what, found, names, day, expected) in cases {
        assert_eq!(
            required_renewal(*found, names, start() + days(*day)),
            *expected,
            "{what}"
        );
    }
}

#[test]
fn a_renewed_certificate_has_the_same_authority() {
    let first = created(start());
    let later = start() + days(61);
    let second = renew(Some(first.clone()), Renewal::Certificate, &names(), later).unwrap();
    assert_eq!(second.bundle, first.bundle);
    assert_ne!(second.certificate, first.certificate);
    assert!(is_trusted(first.bundle(), &second, later + days(80)));
    assert_eq!(
        required_renewal(Some(&second), &names(), later),
        Renewal::Nothing
    );
}

#[test]
fn the_secret_of_an_early_release_remains_in_use() {
    let found = of_an_early_release();
    let renewal = required_renewal(Some(&found), &names(), start());
    assert_eq!(renewal, Renewal::Nothing);
    assert!(is_trusted(found.bundle(), &found, start()));
    let later = start() + days(61);
    let renewal = required_renewal(Some(&found), &names(), later);
    assert_eq!(renewal, Renewal::Certificate);
    let renewed = renew(Some(found.clone()), renewal, &names(), later).unwrap();
    assert_eq!(renewed.authority, found.authority);
    assert!(is_trusted(found.bundle(), &renewed, later));
}

#[test]
fn the_bundle_trusts_the_old_and_the_new_authority() {
    let first = created(start());
    let later = start() + days(735);
    let first = renew(Some(first), Renewal::Certificate, &names(), later).unwrap();
    let second = renew(Some(first.clone()), Renewal::Authority, &names(), later).unwrap();
    assert!(is_trusted(second.bundle(), &second, later));
    assert!(is_trusted(second.bundle(), &first, later));
    assert!(!is_trusted(first.bundle(), &second, later));
    let unrelated = created(later);
    assert!(!is_trusted(second.bundle(), &unrelated, later));
}

#[test]
fn secrets_round_trip() {
    let certificates = created(start());
    let mut data = certificates.to_secret();
    assert!(Certificates::from_secret(&data) == Some(certificates));
    data.remove(KEY);
    assert!(Certificates::from_secret(&data).is_none());
}
