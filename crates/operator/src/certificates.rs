//! The operator's certificates: its own authority, and a certificate for its Service.
//!
//! They are stored in one Secret that all replicas share. The API server reads the authority from the APIService. Both are
//! renewed before they expire. A new authority is trusted together with the previous one, because replicas do not switch at
//! the same moment.

mod rotator;

use std::collections::BTreeMap;

use jiff::{SignedDuration, Timestamp};
use link::tls::{Fingerprint, Identity};
use rcgen::{
    BasicConstraints, CertificateParams, DnType, ExtendedKeyUsagePurpose, IsCa, Issuer, KeyPair,
    KeyUsagePurpose,
};
use rustls::pki_types::pem::PemObject as _;
use rustls::pki_types::{CertificateDer, PrivateKeyDer, PrivatePkcs8KeyDer};
use time::OffsetDateTime;
use x509_parser::prelude::FromDer as _;

pub(crate) use self::rotator::CertificateRotator;
use crate::error::{Error, Result};

const AUTHORITY_LIFETIME: SignedDuration = SignedDuration::from_hours(3 * 365 * 24);
const CERTIFICATE_LIFETIME: SignedDuration = SignedDuration::from_hours(90 * 24);
/// Certificates are backdated because clocks differ.
const BACKDATING: SignedDuration = SignedDuration::from_hours(1);

/// The keys of the Secret.
const AUTHORITY: &str = "ca.crt";
const AUTHORITY_KEY: &str = "ca.key";
const BUNDLE: &str = "ca-bundle.crt";
const CERTIFICATE: &str = "tls.crt";
const KEY: &str = "tls.key";
/// The operator's identity for agents. It never changes, because running agents have pinned it.
const IDENTITY: &str = "agents.crt";
const IDENTITY_KEY: &str = "agents.key";
/// The identity of node agents. The chart mounts these two and the certificate above into their pods.
const NODE: &str = "node.crt";
const NODE_KEY: &str = "node.key";

/// The contents of the Secret, in PEM.
#[derive(Clone, PartialEq, Eq)]
pub(crate) struct Certificates {
    authority: String,
    authority_key: String,
    /// This authority and earlier ones that have not expired.
    bundle: String,
    certificate: String,
    key: String,
    identity: String,
    identity_key: String,
    /// Empty in a Secret of an older operator.
    node: String,
    node_key: String,
}

impl std::fmt::Debug for Certificates {
    fn fmt(&self, formatter: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        formatter.write_str("Certificates")
    }
}

/// What must be renewed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Renewal {
    Nothing,
    /// The certificate, signed by the same authority.
    Certificate,
    /// The authority and the certificate.
    Authority,
}

impl Certificates {
    pub(crate) fn from_secret(data: &BTreeMap<String, Vec<u8>>) -> Option<Self> {
        let text = |key: &str| String::from_utf8(data.get(key)?.clone()).ok();
        Some(Self {
            authority: text(AUTHORITY)?,
            authority_key: text(AUTHORITY_KEY)?,
            bundle: text(BUNDLE)?,
            certificate: text(CERTIFICATE)?,
            key: text(KEY)?,
            identity: text(IDENTITY)?,
            identity_key: text(IDENTITY_KEY)?,
            node: text(NODE).unwrap_or_default(),
            node_key: text(NODE_KEY).unwrap_or_default(),
        })
    }

    pub(crate) fn to_secret(&self) -> BTreeMap<String, Vec<u8>> {
        [
            (AUTHORITY, self.authority.as_bytes()),
            (AUTHORITY_KEY, self.authority_key.as_bytes()),
            (BUNDLE, self.bundle.as_bytes()),
            (CERTIFICATE, self.certificate.as_bytes()),
            (KEY, self.key.as_bytes()),
            (IDENTITY, self.identity.as_bytes()),
            (IDENTITY_KEY, self.identity_key.as_bytes()),
            (NODE, self.node.as_bytes()),
            (NODE_KEY, self.node_key.as_bytes()),
        ]
        .into_iter()
        .map(|(key, value)| (key.to_owned(), value.to_vec()))
        .collect()
    }

    /// The authorities that the API server has to trust.
    pub(crate) fn bundle(&self) -> &str {
        &self.bundle
    }

    /// The certificate chain and the key of the server.
    pub(crate) fn for_server(
        &self,
    ) -> Result<(Vec<CertificateDer<'static>>, PrivateKeyDer<'static>)> {
        let unreadable =
            |error: rustls::pki_types::pem::Error| Error::UnreadableCertificate(error.to_string());
        let certificates = vec![
            CertificateDer::from_pem_slice(self.certificate.as_bytes()).map_err(unreadable)?,
            CertificateDer::from_pem_slice(self.authority.as_bytes()).map_err(unreadable)?,
        ];
        let key = PrivateKeyDer::from_pem_slice(self.key.as_bytes()).map_err(unreadable)?;
        Ok((certificates, key))
    }
}

impl Certificates {
    /// The operator's identity for agents.
    pub(crate) fn identity(&self) -> Result<Identity> {
        let unreadable =
            |error: rustls::pki_types::pem::Error| Error::UnreadableCertificate(error.to_string());
        Ok(Identity::from_parts(
            CertificateDer::from_pem_slice(self.identity.as_bytes()).map_err(unreadable)?,
            PrivatePkcs8KeyDer::from_pem_slice(self.identity_key.as_bytes()).map_err(unreadable)?,
        ))
    }

    /// The fingerprint of the node agents' certificate.
    pub(crate) fn node(&self) -> Result<Fingerprint> {
        let certificate = CertificateDer::from_pem_slice(self.node.as_bytes())
            .map_err(|error| Error::UnreadableCertificate(error.to_string()))?;
        Ok(Fingerprint::of(&certificate))
    }
}

/// Decides what must be renewed: everything that is missing, unreadable, for other DNS names, or past two thirds of its
/// lifetime.
pub(crate) fn required_renewal(
    found: Option<&Certificates>,
    names: &[String],
    now: Timestamp,
) -> Renewal {
    let Some(found) = found else {
        return Renewal::Authority;
    };
    let (Some(authority), Some(certificate)) = (parse(&found.authority), parse(&found.certificate))
    else {
        return Renewal::Authority;
    };
    if authority.needs_renewal(now) || KeyPair::from_pem(&found.authority_key).is_err() {
        Renewal::Authority
    } else if certificate.needs_renewal(now)
        || names.iter().any(|name| !certificate.names.contains(name))
        || KeyPair::from_pem(&found.key).is_err()
        || found.node.is_empty()
    {
        Renewal::Certificate
    } else {
        Renewal::Nothing
    }
}

/// Renews what is required, and keeps the rest.
pub(crate) fn renew(
    found: Option<Certificates>,
    renewal: Renewal,
    names: &[String],
    now: Timestamp,
) -> Result<Certificates> {
    match (found, renewal) {
        (Some(found), Renewal::Nothing) => Ok(found),
        (Some(found), Renewal::Certificate) => {
            let authority_key = KeyPair::from_pem(&found.authority_key)?;
            let issuer = Issuer::from_ca_cert_pem(&found.authority, authority_key)?;
            let (certificate, key) = new_certificate(&issuer, names, now)?;
            let (node, node_key) = match found.node.is_empty() {
                true => new_identity()?,
                false => (found.node, found.node_key),
            };
            Ok(Certificates {
                certificate,
                key,
                node,
                node_key,
                ..found
            })
        }
        (found, _) => {
            let authority_key = KeyPair::generate()?;
            let parameters = authority_parameters(now)?;
            let authority = parameters.self_signed(&authority_key)?.pem();
            let issuer = Issuer::from_params(&parameters, &authority_key);
            let (certificate, key) = new_certificate(&issuer, names, now)?;
            let (identity, identity_key) = match &found {
                Some(found) => (found.identity.clone(), found.identity_key.clone()),
                None => new_identity()?,
            };
            let (node, node_key) = match &found {
                Some(found) if !found.node.is_empty() => {
                    (found.node.clone(), found.node_key.clone())
                }
                _ => new_identity()?,
            };
            Ok(Certificates {
                node,
                node_key,
                bundle: format!("{authority}{}", previous_authority(found.as_ref(), now)),
                authority,
                authority_key: authority_key.serialize_pem(),
                certificate,
                key,
                identity,
                identity_key,
            })
        }
    }
}

/// Creates a self-signed certificate that does not expire. Its peers pin its fingerprint, so it needs no authority.
fn new_identity() -> Result<(String, String)> {
    let identity = rcgen::generate_simple_self_signed(["standin-operator".to_owned()])?;
    Ok((identity.cert.pem(), identity.signing_key.serialize_pem()))
}

/// The previous authority, as long as its certificates can be in use.
fn previous_authority(found: Option<&Certificates>, now: Timestamp) -> String {
    found
        .filter(|found| parse(&found.authority).is_some_and(|previous| now < previous.not_after))
        .map(|found| found.authority.clone())
        .unwrap_or_default()
}

fn authority_parameters(now: Timestamp) -> Result<CertificateParams> {
    let mut parameters = CertificateParams::default();
    // Verifiers could confuse two authorities of the same name.
    let name = format!("standin-operator-ca@{}", now.as_second());
    parameters.distinguished_name.push(DnType::CommonName, name);
    parameters.is_ca = IsCa::Ca(BasicConstraints::Constrained(0));
    parameters.key_usages = vec![KeyUsagePurpose::KeyCertSign, KeyUsagePurpose::CrlSign];
    set_validity(&mut parameters, now, AUTHORITY_LIFETIME)?;
    Ok(parameters)
}

fn new_certificate<S: rcgen::SigningKey>(
    issuer: &Issuer<'_, S>,
    names: &[String],
    now: Timestamp,
) -> Result<(String, String)> {
    let key = KeyPair::generate()?;
    let mut parameters = CertificateParams::new(names)?;
    let name = names.first().cloned().unwrap_or_default();
    parameters.distinguished_name.push(DnType::CommonName, name);
    parameters.extended_key_usages = vec![
        ExtendedKeyUsagePurpose::ServerAuth,
        ExtendedKeyUsagePurpose::ClientAuth,
    ];
    set_validity(&mut parameters, now, CERTIFICATE_LIFETIME)?;
    let certificate = parameters.signed_by(&key, issuer)?;
    Ok((certificate.pem(), key.serialize_pem()))
}

fn set_validity(
    parameters: &mut CertificateParams,
    now: Timestamp,
    lifetime: SignedDuration,
) -> Result<(), rcgen::Error> {
    let date = |at: Timestamp| {
        OffsetDateTime::from_unix_timestamp(at.as_second()).map_err(|_| rcgen::Error::Time)
    };
    parameters.not_before = date(now - BACKDATING)?;
    parameters.not_after = date(now + lifetime)?;
    Ok(())
}

/// The fields of a certificate that decide about its renewal.
struct ParsedCertificate {
    not_before: Timestamp,
    not_after: Timestamp,
    names: Vec<String>,
}

impl ParsedCertificate {
    fn needs_renewal(&self, now: Timestamp) -> bool {
        let lifetime = self.not_before.duration_until(self.not_after);
        now >= self.not_before + lifetime * 2 / 3
    }
}

fn parse(pem: &str) -> Option<ParsedCertificate> {
    let der = CertificateDer::from_pem_slice(pem.as_bytes()).ok()?;
    let (_, certificate) = x509_parser::certificate::X509Certificate::from_der(&der).ok()?;
    let validity = certificate.validity();
    let names = match certificate.subject_alternative_name() {
        Ok(Some(names)) => names
            .value
            .general_names
            .iter()
            .filter_map(dns_name)
            .collect(),
        _ => Vec::new(),
    };
    Some(ParsedCertificate {
        not_before: Timestamp::from_second(validity.not_before.timestamp()).ok()?,
        not_after: Timestamp::from_second(validity.not_after.timestamp()).ok()?,
        names,
    })
}

fn dns_name(name: &x509_parser::extensions::GeneralName<'_>) -> Option<String> {
    match name {
        x509_parser::extensions::GeneralName::DNSName(name) => Some((*name).to_owned()),
        _ => None,
    }
}

#[cfg(test)]
mod tests;
