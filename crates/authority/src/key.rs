//! Keys, and the hashes by which they are recognised.

mod sec1;

use std::fmt;
use std::str::FromStr;
use std::sync::Arc;

use rcgen::{CertificateParams, DistinguishedName, DnType, KeyPair, PublicKeyData as _};
use ring::digest;
use rustls::pki_types::PrivateKeyDer;
use rustls::pki_types::pem::PemObject as _;

use crate::Error;

/// A private key. It is never shown, and clones share it.
#[derive(Clone)]
pub struct PrivateKey {
    pair: Arc<KeyPair>,
    pem: Arc<str>,
}

impl PrivateKey {
    /// A new key for ECDSA P-256.
    pub fn generate() -> Result<Self, Error> {
        Ok(Self::new(KeyPair::generate()?))
    }

    /// Reads a key in PKCS #8 or SEC 1. Sections before it, such as the parameters that `openssl ecparam` writes, are
    /// skipped.
    pub fn from_pem(text: &str) -> Result<Self, Error> {
        let pair = match PrivateKeyDer::from_pem_slice(text.as_bytes()) {
            Ok(PrivateKeyDer::Pkcs8(key)) => KeyPair::try_from(&key).ok(),
            Ok(PrivateKeyDer::Sec1(key)) => sec1::to_pkcs8(key.secret_sec1_der())
                .iter()
                .find_map(|key| KeyPair::try_from(key).ok()),
            Ok(_) => None,
            Err(_) => return Err(Error::NoKey),
        };
        pair.map(Self::new).ok_or(Error::UnusableKey)
    }

    fn new(pair: KeyPair) -> Self {
        let pem = pair.serialize_pem().into();
        Self {
            pair: Arc::new(pair),
            pem,
        }
    }

    /// The key in PKCS #8. It is a secret.
    pub fn to_pem(&self) -> &str {
        &self.pem
    }

    pub fn key(&self) -> KeyHash {
        KeyHash::of(&self.pair.subject_public_key_info())
    }

    /// A request to sign a certificate for this key, in PEM.
    pub fn request_pem(&self, common_name: &str) -> Result<String, Error> {
        let mut parameters = CertificateParams::default();
        parameters.distinguished_name = subject(common_name);
        Ok(parameters.serialize_request(&*self.pair)?.pem()?)
    }

    /// A certificate for this key that it has signed itself, and that never expires, in PEM. Its peers pin it, so it needs no
    /// authority.
    pub fn self_signed_pem(&self, name: &str) -> Result<String, Error> {
        let mut parameters = CertificateParams::new([name.to_owned()])?;
        parameters.distinguished_name = subject(name);
        Ok(parameters.self_signed(&*self.pair)?.pem())
    }

    pub(crate) fn pair(&self) -> &KeyPair {
        &self.pair
    }
}

impl fmt::Debug for PrivateKey {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(formatter, "PrivateKey({})", self.key())
    }
}

pub(crate) fn subject(common_name: &str) -> DistinguishedName {
    let mut subject = DistinguishedName::new();
    subject.push(DnType::CommonName, common_name);
    subject
}

/// The SHA-256 of a public key, by which a key is pinned (RFC 7469) or revoked. It stays the same when the certificate
/// of the key is renewed.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct KeyHash([u8; 32]);

impl KeyHash {
    const PREFIX: &str = "sha256:";

    /// The hash of a SubjectPublicKeyInfo in DER.
    pub fn of(public_key: &[u8]) -> Self {
        Self(sha256(public_key))
    }

    /// Reads what [`Self::hex`] wrote.
    pub fn from_hex(text: &str) -> Result<Self, Error> {
        let invalid = || Error::KeyHash(text.to_owned());
        if text.len() != 64 || !text.bytes().all(|byte| byte.is_ascii_hexdigit()) {
            return Err(invalid());
        }
        let mut hash = [0; 32];
        for (index, byte) in hash.iter_mut().enumerate() {
            let digits = &text[2 * index..2 * index + 2];
            *byte = u8::from_str_radix(digits, 16).map_err(|_| invalid())?;
        }
        Ok(Self(hash))
    }

    pub fn hex(&self) -> String {
        hex(&self.0)
    }
}

impl fmt::Display for KeyHash {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(formatter, "{}{}", Self::PREFIX, self.hex())
    }
}

impl fmt::Debug for KeyHash {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, formatter)
    }
}

impl FromStr for KeyHash {
    type Err = Error;

    fn from_str(text: &str) -> Result<Self, Error> {
        let invalid = || Error::KeyHash(text.to_owned());
        let digits = text.strip_prefix(Self::PREFIX).ok_or_else(invalid)?;
        Self::from_hex(digits).map_err(|_| invalid())
    }
}

pub(crate) fn sha256(data: &[u8]) -> [u8; 32] {
    let mut hash = [0; 32];
    hash.copy_from_slice(digest::digest(&digest::SHA256, data).as_ref());
    hash
}

pub(crate) fn hex(bytes: &[u8]) -> String {
    bytes.iter().map(|byte| format!("{byte:02x}")).collect()
}

#[cfg(test)]
mod tests;
