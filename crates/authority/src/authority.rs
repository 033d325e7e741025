use std::fmt;
use std::net::IpAddr;

use jiff::{SignedDuration, Timestamp};
use rcgen::{
    BasicConstraints, CertificateParams, ExtendedKeyUsagePurpose, IsCa, Issuer, KeyPair,
    KeyUsagePurpose, PublicKeyData, SerialNumber,
};
use ring::rand::{SecureRandom as _, SystemRandom};
use rustls::pki_types::{CertificateDer, DnsName};
use time::OffsetDateTime;
use x509_parser::certificate::X509Certificate;
use x509_parser::prelude::FromDer as _;

use crate::facts::backdating;
use crate::key::subject;
use crate::{Error, Facts, PrivateKey, SigningRequest, pem};

/// Random bytes in a serial number. Two certificates never have the same one, so that one of them can be revoked.
const SERIAL_LENGTH: usize = 16;

/// A certificate authority: its certificate and its key.
#[derive(Clone)]
pub struct Authority {
    certificate: CertificateDer<'static>,
    certificate_pem: String,
    facts: Facts,
    key: PrivateKey,
}

/// What a certificate is for.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Profile {
    pub common_name: String,
    /// DNS names, also with `*.` in front, and IP addresses.
    pub names: Vec<String>,
    pub usage: Usage,
    /// From now on. A certificate never outlives its authority.
    pub lifetime: SignedDuration,
}

/// Which side of a connection may use a certificate.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Usage {
    Server,
    Client,
    Both,
}

/// A certificate that was signed.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Issued {
    pub certificate_pem: String,
    pub facts: Facts,
}

impl Authority {
    /// A new authority with a key for ECDSA P-256. Authorities that are trusted together need different names, because some
    /// verifiers confuse two of the same name.
    pub fn generate(name: &str, lifetime: SignedDuration, now: Timestamp) -> Result<Self, Error> {
        let key = PrivateKey::generate()?;
        let mut parameters = CertificateParams::default();
        parameters.distinguished_name = subject(name);
        parameters.is_ca = IsCa::Ca(BasicConstraints::Constrained(0));
        parameters.key_usages = vec![KeyUsagePurpose::KeyCertSign, KeyUsagePurpose::CrlSign];
        parameters.serial_number = Some(new_serial()?);
        set_validity(&mut parameters, lifetime, Timestamp::MAX, now)?;
        let certificate = parameters.self_signed(key.pair())?;
        Self::new(certificate.into(), key)
    }

    /// An existing authority, also one that an administrator brings: one certificate, and its key in PKCS #8 or SEC 1.
    pub fn from_pem(certificate: &str, key: &str) -> Result<Self, Error> {
        let mut certificates = pem::certificates(certificate)?;
        let certificate = certificates.pop().ok_or(Error::NoCertificate)?;
        if !certificates.is_empty() {
            return Err(Error::SeveralCertificates(certificates.len() + 1));
        }
        Self::new(certificate, PrivateKey::from_pem(key)?)
    }

    fn new(certificate: CertificateDer<'static>, key: PrivateKey) -> Result<Self, Error> {
        let facts = Facts::from_der(&certificate)?;
        let name = || facts.common_name.clone();
        if !facts.is_authority {
            return Err(Error::NotAnAuthority { name: name() });
        }
        if facts.key != key.key() {
            return Err(Error::ForeignKey { name: name() });
        }
        if !can_be_issuer(&certificate, key.pair())? {
            return Err(Error::UnsupportedSubject { name: name() });
        }
        Ok(Self {
            certificate_pem: pem::encode_certificate(&certificate),
            certificate,
            facts,
            key,
        })
    }

    pub fn certificate_pem(&self) -> &str {
        &self.certificate_pem
    }

    /// The key in PKCS #8. It is a secret.
    pub fn key_pem(&self) -> &str {
        self.key.to_pem()
    }

    pub fn facts(&self) -> &Facts {
        &self.facts
    }

    /// Signs a certificate for a peer's key. Of the request, only the key is used.
    pub fn sign(
        &self,
        request: &SigningRequest,
        profile: &Profile,
        now: Timestamp,
    ) -> Result<Issued, Error> {
        self.certify(request.public_key(), profile, now)
    }

    /// Signs a certificate for a key of our own.
    pub fn issue(
        &self,
        key: &PrivateKey,
        profile: &Profile,
        now: Timestamp,
    ) -> Result<Issued, Error> {
        self.certify(key.pair(), profile, now)
    }

    fn certify(
        &self,
        key: &impl PublicKeyData,
        profile: &Profile,
        now: Timestamp,
    ) -> Result<Issued, Error> {
        if now < self.facts.not_before || now >= self.facts.not_after {
            return Err(Error::AuthorityNotValid {
                name: self.facts.common_name.clone(),
                not_before: self.facts.not_before,
                not_after: self.facts.not_after,
            });
        }
        let mut parameters = parameters(profile)?;
        set_validity(&mut parameters, profile.lifetime, self.facts.not_after, now)?;
        let issuer = Issuer::from_ca_cert_der(&self.certificate, self.key.pair())?;
        let certificate = parameters.signed_by(key, &issuer)?;
        Ok(Issued {
            certificate_pem: pem::encode_certificate(certificate.der()),
            facts: Facts::from_der(certificate.der())?,
        })
    }
}

impl PartialEq for Authority {
    fn eq(&self, other: &Self) -> bool {
        self.certificate == other.certificate
    }
}

impl Eq for Authority {}

impl fmt::Debug for Authority {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter
            .debug_struct("Authority")
            .field("facts", &self.facts)
            .finish_non_exhaustive()
    }
}

/// Whether certificates of this issuer have exactly its subject as the name of their issuer. rcgen, which writes that name,
/// supports only names in which each attribute occurs once.
fn can_be_issuer(certificate: &CertificateDer<'_>, key: &KeyPair) -> Result<bool, Error> {
    let unreadable = |error: x509_parser::nom::Err<x509_parser::error::X509Error>| {
        Error::UnreadableCertificate(error.to_string())
    };
    let (_, parsed) = X509Certificate::from_der(certificate).map_err(unreadable)?;
    let is_simple = |name: &x509_parser::x509::X509Name<'_>| {
        name.iter_rdn().all(|part| part.iter().count() == 1)
    };
    if !is_simple(parsed.subject()) {
        return Ok(false);
    }
    let Ok(issuer) = Issuer::from_ca_cert_der(certificate, key) else {
        return Ok(false);
    };
    let probe = CertificateParams::default().signed_by(key, &issuer)?;
    let (_, probe) = X509Certificate::from_der(probe.der()).map_err(unreadable)?;
    Ok(probe.issuer().as_raw() == parsed.subject().as_raw())
}

fn parameters(profile: &Profile) -> Result<CertificateParams, Error> {
    if let Some(name) = profile.names.iter().find(|name| !is_name(name)) {
        return Err(Error::UnusableName(name.clone()));
    }
    let mut parameters = CertificateParams::new(profile.names.as_slice())?;
    parameters.distinguished_name = subject(&profile.common_name);
    parameters.serial_number = Some(new_serial()?);
    parameters.key_usages = vec![KeyUsagePurpose::DigitalSignature];
    parameters.extended_key_usages = match profile.usage {
        Usage::Server => vec![ExtendedKeyUsagePurpose::ServerAuth],
        Usage::Client => vec![ExtendedKeyUsagePurpose::ClientAuth],
        Usage::Both => vec![
            ExtendedKeyUsagePurpose::ServerAuth,
            ExtendedKeyUsagePurpose::ClientAuth,
        ],
    };
    // Strict verifiers want to know which key has signed.
    parameters.use_authority_key_identifier_extension = true;
    Ok(parameters)
}

fn is_name(name: &str) -> bool {
    let domain = name.strip_prefix("*.").unwrap_or(name);
    name.parse::<IpAddr>().is_ok() || DnsName::try_from(domain).is_ok()
}

/// A positive number.
fn new_serial() -> Result<SerialNumber, Error> {
    let mut serial = [0; SERIAL_LENGTH];
    SystemRandom::new()
        .fill(&mut serial)
        .map_err(|_| Error::Randomness)?;
    // Without leading zeros there is only one way to write it.
    serial[0] = serial[0] & 0x7f | 0x40;
    Ok(SerialNumber::from(serial.to_vec()))
}

/// From shortly before `now` for `lifetime`, but not beyond `limit`. Certificates have whole seconds.
fn set_validity(
    parameters: &mut CertificateParams,
    lifetime: SignedDuration,
    limit: Timestamp,
    now: Timestamp,
) -> Result<(), Error> {
    let start = now.as_second();
    let seconds = lifetime.as_secs().min(limit.as_second() - start);
    if seconds <= 0 {
        return Err(Error::Lifetime(lifetime));
    }
    let date = |second: i64| {
        OffsetDateTime::from_unix_timestamp(second).map_err(|_| Error::Lifetime(lifetime))
    };
    parameters.not_before = date(start - backdating(seconds))?;
    parameters.not_after = date(start.saturating_add(seconds))?;
    Ok(())
}

#[cfg(test)]
mod tests;
