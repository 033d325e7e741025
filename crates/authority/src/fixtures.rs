//! What the tests of several modules need.

use std::sync::Arc;
use std::time::Duration;

use jiff::{SignedDuration, Timestamp};
use rustls::client::WebPkiServerVerifier;
use rustls::client::danger::ServerCertVerifier as _;
use rustls::pki_types::{CertificateDer, ServerName, UnixTime};
use rustls::server::WebPkiClientVerifier;
use rustls::{Error, RootCertStore};

use crate::{Profile, Usage, pem};

/// Within the validity of the files in `testdata`.
pub(crate) fn start() -> Timestamp {
    Timestamp::from_second(1_900_000_000).unwrap()
}

pub(crate) fn days(count: i64) -> SignedDuration {
    SignedDuration::from_hours(24 * count)
}

pub(crate) fn profile(usage: Usage) -> Profile {
    Profile {
        common_name: "prod-eu".to_owned(),
        names: vec!["hub.example.com".to_owned(), "192.0.2.7".to_owned()],
        usage,
        lifetime: days(90),
    }
}

/// What a TLS client says to a server with this certificate.
pub(crate) fn verify_server(
    bundle: &str,
    certificate: &str,
    name: &str,
    at: Timestamp,
) -> Result<(), Error> {
    let verifier = WebPkiServerVerifier::builder_with_provider(roots(bundle), provider())
        .build()
        .unwrap();
    let name = ServerName::try_from(name).unwrap();
    let chain = chain(certificate);
    verifier
        .verify_server_cert(&chain[0], &chain[1..], &name, &[], unix(at))
        .map(drop)
}

/// What a TLS server says to a client with this certificate.
pub(crate) fn verify_client(bundle: &str, certificate: &str, at: Timestamp) -> Result<(), Error> {
    let verifier = WebPkiClientVerifier::builder_with_provider(roots(bundle), provider())
        .build()
        .unwrap();
    let chain = chain(certificate);
    verifier
        .verify_client_cert(&chain[0], &chain[1..], unix(at))
        .map(drop)
}

fn provider() -> Arc<rustls::crypto::CryptoProvider> {
    Arc::new(rustls::crypto::ring::default_provider())
}

fn roots(bundle: &str) -> Arc<RootCertStore> {
    let mut roots = RootCertStore::empty();
    for authority in chain(bundle) {
        roots.add(authority).unwrap();
    }
    Arc::new(roots)
}

fn chain(text: &str) -> Vec<CertificateDer<'static>> {
    pem::certificates(text).unwrap()
}

fn unix(at: Timestamp) -> UnixTime {
    UnixTime::since_unix_epoch(Duration::from_secs(at.as_second().unsigned_abs()))
}
