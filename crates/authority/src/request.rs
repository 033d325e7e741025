use rcgen::SubjectPublicKeyInfo;
use rustls::pki_types::CertificateSigningRequestDer;
use rustls::pki_types::pem::PemObject as _;
use x509_parser::certification_request::X509CertificationRequest;
use x509_parser::prelude::FromDer as _;

use crate::{Error, KeyHash};

/// A request with an RSA key of 8,192 bits and some extensions has half of it.
const MAX_LENGTH: usize = 16 * 1024;

/// A request to sign a certificate for a key (PKCS #10), from a peer that has proved that it has the key. Of all that the
/// request contains, only the public key is used: who signs decides about names, usage and lifetime.
#[derive(Clone, Debug)]
pub struct SigningRequest {
    key: KeyHash,
    public_key: SubjectPublicKeyInfo,
}

impl SigningRequest {
    /// Reads a request, and verifies its signature.
    pub fn from_pem(text: &str) -> Result<Self, Error> {
        if text.len() > MAX_LENGTH {
            return Err(Error::LongRequest(text.len()));
        }
        let der = CertificateSigningRequestDer::from_pem_slice(text.as_bytes())
            .map_err(|_| Error::NoRequest)?;
        let (rest, request) = X509CertificationRequest::from_der(&der)
            .map_err(|error| Error::UnreadableRequest(error.to_string()))?;
        if !rest.is_empty() {
            let why = "there are bytes after its end".to_owned();
            return Err(Error::UnreadableRequest(why));
        }
        request
            .verify_signature()
            .map_err(|_| Error::ForgedRequest)?;
        let public_key = request.certification_request_info.subject_pki.raw;
        Ok(Self {
            key: KeyHash::of(public_key),
            public_key: SubjectPublicKeyInfo::from_der(public_key)
                .map_err(|error| Error::UnreadableRequest(error.to_string()))?,
        })
    }

    pub fn key(&self) -> KeyHash {
        self.key
    }

    pub(crate) fn public_key(&self) -> &SubjectPublicKeyInfo {
        &self.public_key
    }
}

#[cfg(test)]
mod tests;
