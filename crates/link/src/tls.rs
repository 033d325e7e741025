//! TLS as a transport: version 1.3, one cryptographic provider, and two ways to know the server.
//!
//! An agent that was started for one session has a certificate that it made itself, and whoever started it knows the
//! fingerprint: that is a *pinned* certificate, and its name and dates do not matter. Where there is an authority, its
//! certificates are trusted and the server's name is checked. Where the way to the server is trusted and its certificate
//! cannot be known before, the *first seen* one is pinned.
//!
//! The client shows who it is with the link's token, or with a certificate of its own, of which the server knows the
//! fingerprint. Then nothing that the server was given lets anybody else in.

use std::fmt;
use std::io;
use std::str::FromStr;
use std::sync::{Arc, OnceLock};

use rustls::client::danger::{HandshakeSignatureValid, ServerCertVerified, ServerCertVerifier};
use rustls::crypto::{CryptoProvider, ring, verify_tls12_signature, verify_tls13_signature};
use rustls::pki_types::{CertificateDer, PrivateKeyDer, PrivatePkcs8KeyDer, ServerName, UnixTime};
use rustls::server::danger::{ClientCertVerified, ClientCertVerifier};
use rustls::{
    CertificateError, ClientConfig, DigitallySignedStruct, DistinguishedName, Error, RootCertStore,
    ServerConfig, SignatureScheme,
};
use sha2::{Digest, Sha256};
use tokio_rustls::TlsConnector;
use tokio_rustls::client::TlsStream;

pub use rustls;
pub use tokio_rustls::TlsAcceptor;

use crate::dial::Dial;
use crate::error::LinkError;

/// The SHA-256 of a certificate.
#[derive(Clone, Copy, PartialEq, Eq)]
pub struct Fingerprint(pub [u8; 32]);

impl Fingerprint {
    pub fn of(certificate: &CertificateDer<'_>) -> Self {
        Self(Sha256::digest(certificate).into())
    }
}

/// As [`Display`](fmt::Display) writes it: 64 hexadecimal digits. Colons between the bytes are allowed, as other tools
/// write them.
impl FromStr for Fingerprint {
    type Err = MalformedFingerprint;

    fn from_str(text: &str) -> Result<Self, MalformedFingerprint> {
        let digits: Vec<u8> = text
            .chars()
            .filter(|character| *character != ':')
            .map(|character| {
                character
                    .to_digit(16)
                    .and_then(|digit| u8::try_from(digit).ok())
            })
            .collect::<Option<_>>()
            .ok_or(MalformedFingerprint)?;
        let bytes: Vec<u8> = digits
            .chunks(2)
            .map(|pair| pair.iter().fold(0, |byte, digit| byte << 4 | digit))
            .collect();
        match (digits.len(), bytes.try_into()) {
            (64, Ok(bytes)) => Ok(Self(bytes)),
            _ => Err(MalformedFingerprint),
        }
    }
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error("a SHA-256 has 64 hexadecimal digits")]
pub struct MalformedFingerprint;

impl fmt::Display for Fingerprint {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0
            .iter()
            .try_for_each(|byte| write!(formatter, "{byte:02x}"))
    }
}

impl fmt::Debug for Fingerprint {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(formatter, "Fingerprint({self})")
    }
}

/// How a client knows the server.
#[derive(Debug, Clone)]
pub enum Trust {
    /// It has exactly this certificate.
    Pinned(Fingerprint),
    /// One of these authorities vouches for its name.
    Authorities(Vec<CertificateDer<'static>>),
    /// It has the certificate that it had the first time.
    FirstSeen(FirstSeen),
}

/// The certificate that a server had the first time. Clones remember the same.
#[derive(Debug, Clone, Default)]
pub struct FirstSeen(Arc<OnceLock<Fingerprint>>);

/// A certificate that nobody vouches for, and its key: whoever is to trust it knows the fingerprint.
pub struct Identity {
    certificate: CertificateDer<'static>,
    key: PrivatePkcs8KeyDer<'static>,
}

impl Identity {
    /// A new one, which nobody else has.
    pub fn generate() -> Result<Self, LinkError> {
        Self::generate_named("standin")
    }

    /// The same, for a server that is known by its name.
    pub fn generate_named(name: &str) -> Result<Self, LinkError> {
        let made = rcgen::generate_simple_self_signed([name.to_owned()])?;
        Ok(Self {
            certificate: made.cert.der().clone(),
            key: made.signing_key.serialize_der().into(),
        })
    }

    /// One that was kept: the certificate, and its key as PKCS #8.
    pub fn from_parts(
        certificate: CertificateDer<'static>,
        key: PrivatePkcs8KeyDer<'static>,
    ) -> Self {
        Self { certificate, key }
    }

    pub fn certificate(&self) -> &CertificateDer<'static> {
        &self.certificate
    }

    pub fn fingerprint(&self) -> Fingerprint {
        Fingerprint::of(&self.certificate)
    }

    fn parts(&self) -> (Vec<CertificateDer<'static>>, PrivateKeyDer<'static>) {
        let key = PrivateKeyDer::Pkcs8(self.key.clone_key());
        (vec![self.certificate.clone()], key)
    }
}

/// Dials with another dialer, and speaks TLS on what that makes.
#[derive(Clone)]
pub struct TlsDialer<D> {
    inner: D,
    name: ServerName<'static>,
    connector: TlsConnector,
}

impl<D: Dial> TlsDialer<D> {
    /// `name` is the one that the server's certificate has. It is sent to the server also when it is not checked.
    pub fn new(inner: D, name: ServerName<'static>, trust: Trust) -> Result<Self, LinkError> {
        Self::build(inner, name, trust, None)
    }

    /// The same, and the server is shown who we are.
    pub fn with_identity(
        inner: D,
        name: ServerName<'static>,
        trust: Trust,
        identity: &Identity,
    ) -> Result<Self, LinkError> {
        Self::build(inner, name, trust, Some(identity))
    }

    fn build(
        inner: D,
        name: ServerName<'static>,
        trust: Trust,
        identity: Option<&Identity>,
    ) -> Result<Self, LinkError> {
        let connector = TlsConnector::from(Arc::new(client_config(trust, identity)?));
        Ok(Self {
            inner,
            name,
            connector,
        })
    }
}

impl<D: Dial> Dial for TlsDialer<D> {
    type Pipe = TlsStream<D::Pipe>;

    async fn dial(&self) -> io::Result<Self::Pipe> {
        let pipe = self.inner.dial().await?;
        self.connector.connect(self.name.clone(), pipe).await
    }
}

/// For the server: turns accepted connections into TLS ones. Anybody may come, and shows a token later.
pub fn acceptor(identity: &Identity) -> Result<TlsAcceptor, LinkError> {
    let (certificates, key) = identity.parts();
    let config = ServerConfig::builder_with_provider(provider())
        .with_protocol_versions(&[&rustls::version::TLS13])?
        .with_no_client_auth()
        .with_single_cert(certificates, key)?;
    Ok(TlsAcceptor::from(Arc::new(config)))
}

/// For a server that one client may use: the one whose certificate has this fingerprint. Nobody else gets as far as to
/// say a word.
pub fn acceptor_for_client(
    identity: &Identity,
    client: Fingerprint,
) -> Result<TlsAcceptor, LinkError> {
    acceptor_for_clients(identity, &[client])
}

/// The same for several, whom the server tells apart by [`client_of`].
pub fn acceptor_for_clients(
    identity: &Identity,
    clients: &[Fingerprint],
) -> Result<TlsAcceptor, LinkError> {
    let (certificates, key) = identity.parts();
    let verifier = KnownCertificate::new(Known::AnyOf(clients.to_vec()));
    let config = ServerConfig::builder_with_provider(provider())
        .with_protocol_versions(&[&rustls::version::TLS13])?
        .with_client_cert_verifier(Arc::new(verifier))
        .with_single_cert(certificates, key)?;
    Ok(TlsAcceptor::from(Arc::new(config)))
}

/// Who is at the other end of a connection that a server has accepted.
pub fn client_of<S>(stream: &tokio_rustls::server::TlsStream<S>) -> Option<Fingerprint> {
    let certificates = stream.get_ref().1.peer_certificates()?;
    certificates.first().map(Fingerprint::of)
}

fn client_config(trust: Trust, identity: Option<&Identity>) -> Result<ClientConfig, Error> {
    let builder = ClientConfig::builder_with_provider(provider())
        .with_protocol_versions(&[&rustls::version::TLS13])?;
    let known = |known| Arc::new(KnownCertificate::new(known));
    let builder = match trust {
        Trust::Pinned(fingerprint) => builder
            .dangerous()
            .with_custom_certificate_verifier(known(Known::Exactly(fingerprint))),
        Trust::FirstSeen(first) => builder
            .dangerous()
            .with_custom_certificate_verifier(known(Known::First(first))),
        Trust::Authorities(certificates) => {
            let mut roots = RootCertStore::empty();
            for certificate in certificates {
                roots.add(certificate)?;
            }
            builder.with_root_certificates(roots)
        }
    };
    match identity {
        None => Ok(builder.with_no_client_auth()),
        Some(identity) => {
            let (certificates, key) = identity.parts();
            builder.with_client_auth_cert(certificates, key)
        }
    }
}

fn provider() -> Arc<CryptoProvider> {
    Arc::new(ring::default_provider())
}

/// Accepts one certificate, of a server or of a client. That its owner has the key is checked as always.
#[derive(Debug)]
struct KnownCertificate {
    known: Known,
    provider: Arc<CryptoProvider>,
}

#[derive(Debug)]
enum Known {
    Exactly(Fingerprint),
    AnyOf(Vec<Fingerprint>),
    First(FirstSeen),
}

impl KnownCertificate {
    fn new(known: Known) -> Self {
        let provider = provider();
        Self { known, provider }
    }

    fn check(&self, certificate: &CertificateDer<'_>) -> Result<(), Error> {
        let shown = Fingerprint::of(certificate);
        let is_known = match &self.known {
            Known::Exactly(fingerprint) => shown == *fingerprint,
            Known::AnyOf(fingerprints) => fingerprints.contains(&shown),
            Known::First(FirstSeen(first)) => shown == *first.get_or_init(|| shown),
        };
        if is_known {
            return Ok(());
        }
        let mismatch = CertificateError::ApplicationVerificationFailure;
        Err(Error::InvalidCertificate(mismatch))
    }
}

impl ServerCertVerifier for KnownCertificate {
    fn verify_server_cert(
        &self,
        certificate: &CertificateDer<'_>,
        _intermediates: &[CertificateDer<'_>],
        _name: &ServerName<'_>,
        _ocsp_response: &[u8],
        _now: UnixTime,
    ) -> Result<ServerCertVerified, Error> {
        self.check(certificate)
            .map(|()| ServerCertVerified::assertion())
    }

    fn verify_tls12_signature(
        &self,
        message: &[u8],
        certificate: &CertificateDer<'_>,
        signature: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, Error> {
        let algorithms = &self.provider.signature_verification_algorithms;
        verify_tls12_signature(message, certificate, signature, algorithms)
    }

    fn verify_tls13_signature(
        &self,
        message: &[u8],
        certificate: &CertificateDer<'_>,
        signature: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, Error> {
        let algorithms = &self.provider.signature_verification_algorithms;
        verify_tls13_signature(message, certificate, signature, algorithms)
    }

    fn supported_verify_schemes(&self) -> Vec<SignatureScheme> {
        self.provider
            .signature_verification_algorithms
            .supported_schemes()
    }
}

impl ClientCertVerifier for KnownCertificate {
    fn root_hint_subjects(&self) -> &[DistinguishedName] {
        &[]
    }

    fn verify_client_cert(
        &self,
        certificate: &CertificateDer<'_>,
        _intermediates: &[CertificateDer<'_>],
        _now: UnixTime,
    ) -> Result<ClientCertVerified, Error> {
        self.check(certificate)
            .map(|()| ClientCertVerified::assertion())
    }

    fn verify_tls12_signature(
        &self,
        message: &[u8],
        certificate: &CertificateDer<'_>,
        signature: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, Error> {
        ServerCertVerifier::verify_tls12_signature(self, message, certificate, signature)
    }

    fn verify_tls13_signature(
        &self,
        message: &[u8],
        certificate: &CertificateDer<'_>,
        signature: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, Error> {
        ServerCertVerifier::verify_tls13_signature(self, message, certificate, signature)
    }

    fn supported_verify_schemes(&self) -> Vec<SignatureScheme> {
        ServerCertVerifier::supported_verify_schemes(self)
    }
}

/// Not derived: the key is a secret.
impl fmt::Debug for Identity {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(formatter, "Identity({})", self.fingerprint())
    }
}

impl<D: fmt::Debug> fmt::Debug for TlsDialer<D> {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut debug = formatter.debug_struct("TlsDialer");
        debug.field("inner", &self.inner).field("name", &self.name);
        debug.finish_non_exhaustive()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn fingerprints_are_read_as_they_are_written() {
        let fingerprint = Fingerprint(std::array::from_fn(|index| index as u8 * 7));
        let text = fingerprint.to_string();
        assert_eq!(text.parse(), Ok(fingerprint));
        let pairs: Vec<&str> = (0..32).map(|pair| &text[2 * pair..2 * pair + 2]).collect();
        assert_eq!(pairs.join(":").to_uppercase().parse(), Ok(fingerprint));
        for wrong in [
            "",
            "00",
            &text[1..],
            &format!("{text}0"),
            &text.replace('0', "g"),
        ] {
            assert_eq!(wrong.parse::<Fingerprint>(), Err(MalformedFingerprint));
        }
    }
}
