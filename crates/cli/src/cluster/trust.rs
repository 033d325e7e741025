//! Verifies a hub's certificate: by authorities, or by the pin of its key.
//!
//! A pin is the SHA-256 of the public key, as agents use it (RFC 7469). It survives renewals of the certificate and a rotation
//! of the hub's authority, because the hub keeps its key. With stored authorities and a pin, each is enough: so a login outlives
//! the rotation of the authority. A pin alone must match.

use std::fmt;
use std::str::FromStr;
use std::sync::Arc;

use anyhow::{Context as _, Result, ensure};
use parking_lot::Mutex;
use rustls_platform_verifier::Verifier as MachineVerifier;
use serde::{Deserialize, Serialize};
use sha2::{Digest as _, Sha256};
use tokio_rustls::rustls::client::WebPkiServerVerifier;
use tokio_rustls::rustls::client::danger::{
    HandshakeSignatureValid, ServerCertVerified, ServerCertVerifier,
};
use tokio_rustls::rustls::crypto::{
    CryptoProvider, ring, verify_tls12_signature, verify_tls13_signature,
};
use tokio_rustls::rustls::pki_types::pem::PemObject as _;
use tokio_rustls::rustls::pki_types::{CertificateDer, ServerName, UnixTime};
use tokio_rustls::rustls::{
    self, CertificateError, ClientConfig, DigitallySignedStruct, RootCertStore, SignatureScheme,
};
use x509_parser::prelude::{FromDer as _, X509Certificate};

const PIN_PREFIX: &str = "sha256:";

/// The SHA-256 of a public key, with its algorithm.
#[derive(Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(try_from = "String", into = "String")]
pub(super) struct Pin([u8; 32]);

/// Verifies one server. Afterwards it can be asked for the key that the server has shown.
pub(super) struct Verifier {
    provider: Arc<CryptoProvider>,
    authorities: Option<Arc<dyn ServerCertVerifier>>,
    pin: Option<Pin>,
    shown: Mutex<Option<Pin>>,
}

impl Pin {
    fn of(certificate: &CertificateDer<'_>) -> Option<Self> {
        let (_, certificate) = X509Certificate::from_der(certificate).ok()?;
        let key = certificate.tbs_certificate.subject_pki.raw;
        Some(Self(Sha256::digest(key).into()))
    }
}

impl FromStr for Pin {
    type Err = &'static str;

    fn from_str(text: &str) -> Result<Self, &'static str> {
        const INVALID: &str = "a pin is `sha256:` and 64 hexadecimal digits";
        let digits = text.strip_prefix(PIN_PREFIX).ok_or(INVALID)?;
        let digits = digits.as_bytes();
        let is_hexadecimal = digits.iter().all(u8::is_ascii_hexdigit);
        if digits.len() != 64 || !is_hexadecimal {
            return Err(INVALID);
        }
        let mut pin = [0; 32];
        for (byte, pair) in pin.iter_mut().zip(digits.chunks_exact(2)) {
            let pair = std::str::from_utf8(pair).map_err(|_| INVALID)?;
            *byte = u8::from_str_radix(pair, 16).map_err(|_| INVALID)?;
        }
        Ok(Self(pin))
    }
}

impl fmt::Display for Pin {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.write_str(PIN_PREFIX)?;
        self.0
            .iter()
            .try_for_each(|byte| write!(formatter, "{byte:02x}"))
    }
}

impl fmt::Debug for Pin {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, formatter)
    }
}

impl TryFrom<String> for Pin {
    type Error = &'static str;

    fn try_from(text: String) -> Result<Self, &'static str> {
        text.parse()
    }
}

impl From<Pin> for String {
    fn from(pin: Pin) -> Self {
        pin.to_string()
    }
}

/// The certificates in a PEM file with authorities.
pub(super) fn parse_authorities(pem: &str) -> Result<Vec<CertificateDer<'static>>> {
    let certificates: Result<Vec<_>, _> = CertificateDer::pem_slice_iter(pem.as_bytes()).collect();
    let certificates = certificates.context("this is not PEM")?;
    ensure!(!certificates.is_empty(), "there is no certificate in it");
    Ok(certificates)
}

impl Verifier {
    /// Trusts authorities (in PEM) and a pin; without both, the authorities of the machine.
    pub(super) fn new(authorities: Option<&str>, pin: Option<Pin>) -> Result<Arc<Self>> {
        let provider = Arc::new(ring::default_provider());
        let authorities: Option<Arc<dyn ServerCertVerifier>> = match (authorities, pin) {
            (Some(pem), _) => Some(of_authorities(pem, &provider)?),
            (None, Some(_)) => None,
            // A machine may have none, such as a small container. Then it trusts no hub.
            (None, None) => match MachineVerifier::new(provider.clone()) {
                Ok(verifier) => Some(Arc::new(verifier)),
                Err(_) => None,
            },
        };
        Ok(Arc::new(Self {
            provider,
            authorities,
            pin,
            shown: Mutex::default(),
        }))
    }

    pub(super) fn client_config(self: &Arc<Self>) -> Result<ClientConfig> {
        let builder = ClientConfig::builder_with_provider(self.provider.clone());
        let builder = builder.with_safe_default_protocol_versions()?;
        let mut config = builder
            .dangerous()
            .with_custom_certificate_verifier(self.clone())
            .with_no_client_auth();
        config.alpn_protocols = vec![b"http/1.1".to_vec()];
        Ok(config)
    }

    /// The pin of the key that the server has shown, trusted or not.
    pub(super) fn shown(&self) -> Option<Pin> {
        *self.shown.lock()
    }

    pub(super) fn pin(&self) -> Option<Pin> {
        self.pin
    }
}

fn of_authorities(
    pem: &str,
    provider: &Arc<CryptoProvider>,
) -> Result<Arc<dyn ServerCertVerifier>> {
    let mut roots = RootCertStore::empty();
    for certificate in parse_authorities(pem)? {
        roots.add(certificate)?;
    }
    let builder = WebPkiServerVerifier::builder_with_provider(roots.into(), provider.clone());
    Ok(builder.build()?)
}

impl ServerCertVerifier for Verifier {
    fn verify_server_cert(
        &self,
        certificate: &CertificateDer<'_>,
        intermediates: &[CertificateDer<'_>],
        name: &ServerName<'_>,
        ocsp: &[u8],
        now: UnixTime,
    ) -> Result<ServerCertVerified, rustls::Error> {
        let shown = Pin::of(certificate);
        *self.shown.lock() = shown;
        if shown.is_some() && shown == self.pin {
            return Ok(ServerCertVerified::assertion());
        }
        match &self.authorities {
            Some(authorities) => {
                authorities.verify_server_cert(certificate, intermediates, name, ocsp, now)
            }
            None if self.pin.is_some() => {
                Err(CertificateError::ApplicationVerificationFailure.into())
            }
            None => Err(CertificateError::UnknownIssuer.into()),
        }
    }

    fn verify_tls12_signature(
        &self,
        message: &[u8],
        certificate: &CertificateDer<'_>,
        signature: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, rustls::Error> {
        let algorithms = &self.provider.signature_verification_algorithms;
        verify_tls12_signature(message, certificate, signature, algorithms)
    }

    fn verify_tls13_signature(
        &self,
        message: &[u8],
        certificate: &CertificateDer<'_>,
        signature: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, rustls::Error> {
        let algorithms = &self.provider.signature_verification_algorithms;
        verify_tls13_signature(message, certificate, signature, algorithms)
    }

    fn supported_verify_schemes(&self) -> Vec<SignatureScheme> {
        let algorithms = self.provider.signature_verification_algorithms;
        algorithms.supported_schemes()
    }
}

impl fmt::Debug for Verifier {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter
            .debug_struct("Verifier")
            .field("pin", &self.pin)
            .finish_non_exhaustive()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    struct Server {
        authority: String,
        chain: Vec<CertificateDer<'static>>,
        pin: Pin,
    }

    /// A server's certificate for `localhost`, signed by an authority of its own.
    fn server() -> Server {
        use rcgen::{BasicConstraints, CertificateParams, IsCa, Issuer, KeyPair};
        let key = KeyPair::generate().unwrap();
        let mut authority = CertificateParams::new(Vec::new()).unwrap();
        authority.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
        let pem = authority.self_signed(&key).unwrap().pem();
        let issuer = Issuer::new(authority, key);
        let key = KeyPair::generate().unwrap();
        let names = vec!["localhost".to_owned()];
        let leaf = CertificateParams::new(names).unwrap();
        let leaf = leaf.signed_by(&key, &issuer).unwrap();
        Server {
            authority: pem,
            pin: Pin::of(leaf.der()).unwrap(),
            chain: vec![leaf.der().clone()],
        }
    }

    #[test]
    fn a_server_is_trusted_by_its_authority_or_by_its_pin() {
        let (server, other) = (server(), server());
        let (own, foreign) = (server.authority.as_str(), other.authority.as_str());
        #[rustfmt::skip] // A table is read by its columns.
        let table = [
            ("its authority",              Some(own),     None,             "localhost", true),
            ("another authority",          Some(foreign), None,             "localhost", false),
            ("another name",               Some(own),     None,             "other",     false),
            ("the machine's authorities",  None,          None,             "localhost", false),
            ("its pin",                    None,          Some(server.pin), "localhost", true),
            ("its pin, another name",      None,          Some(server.pin), "other",     true),
            ("another pin",                None,          Some(other.pin),  "localhost", false),
            ("another authority, its pin", Some(foreign), Some(server.pin), "localhost", true),
            ("its authority, another pin", Some(own),     Some(other.pin),  "localhost", true),
        ];
        for (what, authorities, pin, name, expected) in table {
            let verifier = Verifier::new(authorities, pin).unwrap();
            assert_eq!(verifier.shown(), None);
            let name = ServerName::try_from(name).unwrap();
            let now = UnixTime::now();
            let result = verifier.verify_server_cert(&server.chain[0], &[], &name, &[], now);
            assert_eq!(result.is_ok(), expected, "{what}: {result:?}");
            assert_eq!(verifier.shown(), Some(server.pin), "{what}");
        }
    }

    #[test]
    fn pins_are_text() {
        let text = format!("sha256:{}", "0af9".repeat(16));
        assert_eq!(text.parse::<Pin>().unwrap().to_string(), text);
        for text in [
            "",
            "sha256:",
            "0af9",
            "sha1:0af9",
            &format!("{text}00"),
            &text.replace('f', "g"),
        ] {
            assert!(text.parse::<Pin>().is_err(), "{text}");
        }
    }

    #[test]
    fn files_with_authorities_have_certificates() {
        assert_eq!(parse_authorities(&server().authority).unwrap().len(), 1);
        for text in [
            "",
            "text",
            "-----BEGIN CERTIFICATE-----\n?\n-----END CERTIFICATE-----\n",
        ] {
            assert!(parse_authorities(text).is_err(), "{text}");
        }
    }
}
