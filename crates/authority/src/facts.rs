use std::net::IpAddr;

use jiff::{SignedDuration, Timestamp};
use x509_parser::certificate::X509Certificate;
use x509_parser::extensions::GeneralName;
use x509_parser::prelude::FromDer as _;
use x509_parser::x509::AttributeTypeAndValue;

use crate::key::{hex, sha256};
use crate::{Error, KeyHash, pem};

/// Certificates are backdated because clocks differ, but by no more than a tenth of their life, so that a certificate for
/// minutes is not due for renewal when it is issued.
const MAX_BACKDATING: i64 = 3600;

/// What a certificate says. It is not verified.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Facts {
    /// Empty if there is none, or more than one.
    pub common_name: String,
    pub organizations: Vec<String>,
    /// In hex.
    pub serial: String,
    pub key: KeyHash,
    /// The SHA-256 of the whole certificate, in hex.
    pub fingerprint: String,
    pub not_before: Timestamp,
    pub not_after: Timestamp,
    /// DNS names and IP addresses.
    pub names: Vec<String>,
    /// Whether it says that a client may use it. A certificate that says nothing of its use is not one of a client.
    pub is_client: bool,
    pub is_server: bool,
    /// Whether it may sign certificates.
    pub is_authority: bool,
}

impl Facts {
    /// Reads the first certificate of a text.
    pub fn from_pem(text: &str) -> Result<Self, Error> {
        let certificates = pem::certificates(text)?;
        Self::from_der(certificates.first().ok_or(Error::NoCertificate)?)
    }

    pub fn from_der(der: &[u8]) -> Result<Self, Error> {
        let (rest, certificate) =
            X509Certificate::from_der(der).map_err(|error| unreadable(&error))?;
        if !rest.is_empty() {
            return Err(unreadable(&"there are bytes after its end"));
        }
        let subject = certificate.subject();
        let common_names = texts(subject.iter_common_name());
        let common_name = match common_names.as_slice() {
            [name] => name.clone(),
            _ => String::new(),
        };
        let usage = certificate
            .extended_key_usage()
            .map_err(|error| unreadable(&error))?;
        Ok(Self {
            common_name,
            organizations: texts(subject.iter_organization()),
            serial: serial(&certificate),
            key: KeyHash::of(certificate.public_key().raw),
            fingerprint: hex(&sha256(der)),
            not_before: time(certificate.validity().not_before.timestamp()),
            not_after: time(certificate.validity().not_after.timestamp()),
            names: names(&certificate)?,
            is_client: usage.as_ref().is_some_and(|usage| usage.value.client_auth),
            is_server: usage.as_ref().is_some_and(|usage| usage.value.server_auth),
            is_authority: is_authority(&certificate)?,
        })
    }

    /// Whether two thirds of its life are over.
    pub fn is_renewal_due(&self, now: Timestamp) -> bool {
        now >= self.renewal_at()
    }

    /// When two thirds of its life are over.
    pub fn renewal_at(&self) -> Timestamp {
        self.not_before + self.not_before.duration_until(self.not_after) * 2 / 3
    }

    pub fn is_expired(&self, now: Timestamp) -> bool {
        now > self.not_after
    }

    /// When it was issued, to the second, if one of our authorities has issued it: it is backdated.
    pub fn issued_at(&self) -> Timestamp {
        // A certificate of the life `l` is valid for `l` and its backdating, which is the smaller one of an hour and l/10.
        let seconds = self.not_before.duration_until(self.not_after).as_secs();
        let backdating = (seconds / 11).clamp(0, MAX_BACKDATING);
        self.not_before + SignedDuration::from_secs(backdating)
    }
}

/// How long before its issue a certificate of this life becomes valid, in seconds.
pub(crate) fn backdating(lifetime: i64) -> i64 {
    (lifetime / 10).min(MAX_BACKDATING)
}

fn unreadable(error: &impl ToString) -> Error {
    Error::UnreadableCertificate(error.to_string())
}

/// A certificate without an end says the end of the year 9999, which is beyond what a timestamp can be.
fn time(second: i64) -> Timestamp {
    let second = second.clamp(Timestamp::MIN.as_second(), Timestamp::MAX.as_second());
    Timestamp::from_second(second).unwrap_or(Timestamp::MAX)
}

fn texts<'a>(attributes: impl Iterator<Item = &'a AttributeTypeAndValue<'a>>) -> Vec<String> {
    attributes
        .filter_map(|attribute| attribute.as_str().ok())
        .map(str::to_owned)
        .collect()
}

/// Without the byte in front that only says that the number is positive.
fn serial(certificate: &X509Certificate<'_>) -> String {
    match certificate.raw_serial() {
        [0, rest @ ..] if !rest.is_empty() => hex(rest),
        serial => hex(serial),
    }
}

fn names(certificate: &X509Certificate<'_>) -> Result<Vec<String>, Error> {
    let names = certificate
        .subject_alternative_name()
        .map_err(|error| unreadable(&error))?
        .map(|names| names.value.general_names.as_slice())
        .unwrap_or_default();
    Ok(names.iter().filter_map(name).collect())
}

fn name(name: &GeneralName<'_>) -> Option<String> {
    match name {
        GeneralName::DNSName(name) => Some((*name).to_owned()),
        GeneralName::IPAddress(bytes) => {
            let address = <[u8; 4]>::try_from(*bytes)
                .map(IpAddr::from)
                .or_else(|_| <[u8; 16]>::try_from(*bytes).map(IpAddr::from));
            address.ok().map(|address| address.to_string())
        }
        _ => None,
    }
}

fn is_authority(certificate: &X509Certificate<'_>) -> Result<bool, Error> {
    let constraints = certificate
        .basic_constraints()
        .map_err(|error| unreadable(&error))?;
    let usage = certificate
        .key_usage()
        .map_err(|error| unreadable(&error))?;
    Ok(constraints.is_some_and(|constraints| constraints.value.ca)
        && usage.is_none_or(|usage| usage.value.key_cert_sign()))
}

#[cfg(test)]
mod tests;
