//! TLS of the hub's listeners. The certificates that they serve change at run time; a handshake uses those of its moment.

use std::fmt;
use std::sync::Arc;

use error_chain::error_chain;
use rustls::client::danger::HandshakeSignatureValid;
use rustls::crypto::{CryptoProvider, verify_tls12_signature, verify_tls13_signature};
use rustls::pki_types::pem::PemObject as _;
use rustls::pki_types::{CertificateDer, PrivateKeyDer, UnixTime};
use rustls::server::danger::{ClientCertVerified, ClientCertVerifier};
use rustls::server::{
    ClientHello, NoServerSessionStorage, ResolvesServerCert, WebPkiClientVerifier,
};
use rustls::sign::CertifiedKey;
use rustls::{
    DigitallySignedStruct, DistinguishedName, RootCertStore, ServerConfig, SignatureScheme,
};
use tokio::sync::watch;

use crate::error::{Error, Result};

/// What the listeners serve.
pub(crate) struct ServedCertificates {
    /// Signed by the hub's authority.
    pub(crate) own: Arc<CertifiedKey>,
    /// The administrator's. It is for all names but those of [`ServedCertificates::own_names`].
    pub(crate) public: Option<Arc<CertifiedKey>>,
    /// The names by which clients in the hub's cluster reach it, which no public authority certifies.
    pub(crate) own_names: Vec<String>,
}

impl ServedCertificates {
    fn for_name(&self, name: Option<&str>) -> Arc<CertifiedKey> {
        let is_own = name.is_some_and(|name| self.own_names.iter().any(|own| own == name));
        match &self.public {
            Some(public) if !is_own => Arc::clone(public),
            _ => Arc::clone(&self.own),
        }
    }
}

pub(crate) fn provider() -> Arc<CryptoProvider> {
    Arc::new(rustls::crypto::ring::default_provider())
}

/// The configuration of a listener. It stays the same when certificates change.
pub(crate) fn server_config(
    served: watch::Receiver<Arc<ServedCertificates>>,
    protocols: &[&[u8]],
) -> Result<Arc<ServerConfig>> {
    let provider = provider();
    let verifier = AnyClientCertificate(Arc::clone(&provider));
    let mut config = ServerConfig::builder_with_provider(provider)
        .with_protocol_versions(&[&rustls::version::TLS13, &rustls::version::TLS12])?
        .with_client_cert_verifier(Arc::new(verifier))
        .with_cert_resolver(Arc::new(Resolver(served)));
    config.alpn_protocols = protocols.iter().map(|name| name.to_vec()).collect();
    // A resumed TLS session would have the client certificate of an earlier moment.
    config.session_storage = Arc::new(NoServerSessionStorage {});
    config.send_tls13_tickets = 0;
    Ok(Arc::new(config))
}

/// Verifies client certificates that these authorities have signed.
pub(crate) fn client_verifier(authorities: &str) -> Result<Arc<dyn ClientCertVerifier>> {
    let mut roots = RootCertStore::empty();
    for certificate in CertificateDer::pem_slice_iter(authorities.as_bytes()) {
        roots.add(certificate.map_err(|error| unreadable(&error))?)?;
    }
    WebPkiClientVerifier::builder_with_provider(Arc::new(roots), provider())
        .build()
        .map_err(|error| Error::UnreadableCertificate(error_chain(&error)))
}

/// A chain and its key, both in PEM. They must belong together.
pub(crate) fn certified_key(chain: &str, key: &str) -> Result<Arc<CertifiedKey>> {
    let chain: Vec<_> = CertificateDer::pem_slice_iter(chain.as_bytes())
        .collect::<Result<_, _>>()
        .map_err(|error| unreadable(&error))?;
    if chain.is_empty() {
        return Err(Error::UnreadableCertificate("there is none".to_owned()));
    }
    let key = PrivateKeyDer::from_pem_slice(key.as_bytes()).map_err(|error| unreadable(&error))?;
    let certified = CertifiedKey::from_der(chain, key, &provider())?;
    Ok(Arc::new(certified))
}

fn unreadable(error: &rustls::pki_types::pem::Error) -> Error {
    Error::UnreadableCertificate(error.to_string())
}

struct Resolver(watch::Receiver<Arc<ServedCertificates>>);

impl fmt::Debug for Resolver {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.write_str("Resolver")
    }
}

impl ResolvesServerCert for Resolver {
    fn resolve(&self, hello: ClientHello<'_>) -> Option<Arc<CertifiedKey>> {
        Some(self.0.borrow().for_name(hello.server_name()))
    }
}

/// Accepts any client certificate whose key the client has, and no certificate. What a certificate is worth is decided for
/// each request, with an error that says what to do.
#[derive(Debug)]
struct AnyClientCertificate(Arc<CryptoProvider>);

impl ClientCertVerifier for AnyClientCertificate {
    fn client_auth_mandatory(&self) -> bool {
        false
    }

    fn root_hint_subjects(&self) -> &[DistinguishedName] {
        &[]
    }

    fn verify_client_cert(
        &self,
        _end_entity: &CertificateDer<'_>,
        _intermediates: &[CertificateDer<'_>],
        _now: UnixTime,
    ) -> Result<ClientCertVerified, rustls::Error> {
        Ok(ClientCertVerified::assertion())
    }

    fn verify_tls12_signature(
        &self,
        message: &[u8],
        certificate: &CertificateDer<'_>,
        signature: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, rustls::Error> {
        let algorithms = &self.0.signature_verification_algorithms;
        verify_tls12_signature(message, certificate, signature, algorithms)
    }

    fn verify_tls13_signature(
        &self,
        message: &[u8],
        certificate: &CertificateDer<'_>,
        signature: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, rustls::Error> {
        let algorithms = &self.0.signature_verification_algorithms;
        verify_tls13_signature(message, certificate, signature, algorithms)
    }

    fn supported_verify_schemes(&self) -> Vec<SignatureScheme> {
        self.0.signature_verification_algorithms.supported_schemes()
    }
}
