//! The operator's certificates: its own authority, and a certificate for its Service.
//!
//! They are stored in one Secret that all replicas share. The API server reads the authority from the APIService. Both are
//! renewed before they expire. A new authority is trusted together with the previous one, because replicas do not switch at
//! the same moment.

mod rotator;

use std::collections::BTreeMap;

use authority::{Authority, Facts, PrivateKey, Profile, Usage};
use jiff::{SignedDuration, Timestamp};
use link::tls::{Fingerprint, Identity};
use rustls::pki_types::pem::PemObject as _;
use rustls::pki_types::{CertificateDer, PrivateKeyDer, PrivatePkcs8KeyDer};

pub(crate) use self::rotator::CertificateRotator;
use crate::error::{Error, Result};

const AUTHORITY_LIFETIME: SignedDuration = SignedDuration::from_hours(3 * 365 * 24);
const CERTIFICATE_LIFETIME: SignedDuration = SignedDuration::from_hours(90 * 24);

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
    let Ok(authority) = Authority::from_pem(&found.authority, &found.authority_key) else {
        return Renewal::Authority;
    };
    let Ok(certificate) = Facts::from_pem(&found.certificate) else {
        return Renewal::Authority;
    };
    if authority.facts().is_renewal_due(now) {
        Renewal::Authority
    } else if certificate.is_renewal_due(now)
        || names.iter().any(|name| !certificate.names.contains(name))
        || PrivateKey::from_pem(&found.key).is_err()
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
            let authority = Authority::from_pem(&found.authority, &found.authority_key)?;
            let (certificate, key) = new_certificate(&authority, names, now)?;
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
            let authority = new_authority(now)?;
            let (certificate, key) = new_certificate(&authority, names, now)?;
            let previous = previous_authority(found.as_ref(), now);
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
                bundle: format!("{}{previous}", authority.certificate_pem()),
                authority: authority.certificate_pem().to_owned(),
                authority_key: authority.key_pem().to_owned(),
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
    let key = PrivateKey::generate()?;
    let certificate = key.self_signed_pem("standin-operator")?;
    Ok((certificate, key.to_pem().to_owned()))
}

/// The previous authority, as long as its certificates can be in use.
fn previous_authority(found: Option<&Certificates>, now: Timestamp) -> String {
    let is_in_use = |found: &&Certificates| {
        Facts::from_pem(&found.authority).is_ok_and(|previous| now < previous.not_after)
    };
    found
        .filter(is_in_use)
        .map(|found| found.authority.clone())
        .unwrap_or_default()
}

fn new_authority(now: Timestamp) -> Result<Authority> {
    // Verifiers could confuse two authorities of the same name.
    let name = format!("standin-operator-ca@{}", now.as_second());
    Ok(Authority::generate(&name, AUTHORITY_LIFETIME, now)?)
}

fn new_certificate(
    authority: &Authority,
    names: &[String],
    now: Timestamp,
) -> Result<(String, String)> {
    let key = PrivateKey::generate()?;
    let profile = Profile {
        common_name: names.first().cloned().unwrap_or_default(),
        names: names.to_vec(),
        usage: Usage::Both,
        lifetime: CERTIFICATE_LIFETIME,
    };
    let issued = authority.issue(&key, &profile, now)?;
    Ok((issued.certificate_pem, key.to_pem().to_owned()))
}

#[cfg(test)]
mod tests;
