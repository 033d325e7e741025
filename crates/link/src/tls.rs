//! TLS as a transport: version 1.3, one cryptographic provider, and three ways to authenticate the server.
//!
//! An agent that was started for one session has a self-signed certificate, and the client knows its fingerprint: the
//! certificate is *pinned*, and its name and dates do not matter. Where there is a certificate authority, it is trusted and
//! the server's name is verified. Where the network path to the server is trusted and its certificate cannot be known in
//! advance, the *first seen* certificate is pinned (trust on first use).
//!
//! The client authenticates with the link's token, or with its own certificate, whose fingerprint the server knows. In the
//! second case the server has no secret that would admit another client.

mod fingerprint;
mod verifier;

use std::fmt;
use std::io;
use std::sync::{Arc, OnceLock};

use rustls::crypto::{CryptoProvider, ring};
use rustls::pki_types::{CertificateDer, PrivateKeyDer, PrivatePkcs8KeyDer, ServerName};
use rustls::{ClientConfig, Error, RootCertStore, ServerConfig};
use tokio::io::BufReader;
use tokio_rustls::TlsConnector;
use tokio_rustls::client::TlsStream;

pub use rustls;
pub use tokio_rustls::TlsAcceptor;
pub use tokio_rustls::server::TlsStream as AcceptedStream;

pub use self::fingerprint::{Fingerprint, MalformedFingerprint};
pub use self::verifier::{CertificateVerifier, untrusted_certificate};

use crate::dial::{Dial, Pipe};
use crate::error::LinkError;

/// How many bytes are encrypted, and therefore written, at once: a link's largest frame. The library's default is a quarter
/// of it.
const TLS_WRITE_BUFFER: usize = 256 * 1024;
/// How many bytes are read at once. Without it the library would read record by record.
const TLS_READ_BUFFER: usize = 128 * 1024;

/// How a client authenticates the server.
#[derive(Debug, Clone)]
pub enum Trust {
    /// The server has exactly this certificate.
    Pinned(Fingerprint),
    /// One of these certificate authorities has signed the server's certificate, and its name matches.
    Authorities(Vec<CertificateDer<'static>>),
    /// The server has the certificate that it had on the first connection.
    FirstSeen(FirstSeen),
}

/// The certificate of the first connection to a server. Clones share it.
#[derive(Debug, Clone, Default)]
pub struct FirstSeen(Arc<OnceLock<Fingerprint>>);

impl FirstSeen {
    /// The fingerprint, after the first connection.
    pub fn fingerprint(&self) -> Option<Fingerprint> {
        self.0.get().copied()
    }
}

/// A self-signed certificate and its key. Peers trust it by its fingerprint.
pub struct Identity {
    certificate: CertificateDer<'static>,
    key: PrivatePkcs8KeyDer<'static>,
}

impl Identity {
    /// Generates a new certificate and key.
    pub fn generate() -> Result<Self, LinkError> {
        Self::generate_named("standin")
    }

    /// Generates a certificate for a server whose name is verified.
    pub fn generate_named(name: &str) -> Result<Self, LinkError> {
        let generated = rcgen::generate_simple_self_signed([name.to_owned()])?;
        Ok(Self {
            certificate: generated.cert.der().clone(),
            key: generated.signing_key.serialize_der().into(),
        })
    }

    /// A stored identity: the certificate, and its key as PKCS #8.
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

/// Dials with another dialer, and uses TLS on its pipes.
#[derive(Clone)]
pub struct TlsDialer<D> {
    inner: D,
    name: ServerName<'static>,
    connector: TlsConnector,
}

impl<D: Dial> TlsDialer<D> {
    /// `name` is the server name (SNI). It is sent to the server even if it is not verified.
    pub fn new(inner: D, name: ServerName<'static>, trust: Trust) -> Result<Self, LinkError> {
        Self::build(inner, name, trust, None)
    }

    /// Like [`Self::new`], and authenticates with a client certificate.
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
        let connecting = self
            .connector
            .connect_with(self.name.clone(), pipe, |connection| {
                connection.set_buffer_limit(Some(TLS_WRITE_BUFFER));
            });
        connecting.await
    }

    async fn handover(&self) {
        self.inner.handover().await;
    }
}

/// A TLS acceptor for all clients. They authenticate with a token later.
pub fn acceptor(identity: &Identity) -> Result<TlsAcceptor, LinkError> {
    let (certificates, key) = identity.parts();
    let config = ServerConfig::builder_with_provider(provider())
        .with_protocol_versions(&[&rustls::version::TLS13])?
        .with_no_client_auth()
        .with_single_cert(certificates, key)?;
    Ok(TlsAcceptor::from(Arc::new(config)))
}

/// A TLS acceptor for clients whose certificates have these fingerprints. [`client_fingerprint`] returns which one it is. The
/// handshake of every other client fails.
pub fn acceptor_for_clients(
    identity: &Identity,
    clients: &[Fingerprint],
) -> Result<TlsAcceptor, LinkError> {
    let (certificates, key) = identity.parts();
    let clients = clients.to_vec();
    let verifier = CertificateVerifier::new(&provider(), move |certificate| {
        let is_trusted = clients.contains(&Fingerprint::of(certificate));
        is_trusted.then_some(()).ok_or_else(untrusted_certificate)
    });
    let config = ServerConfig::builder_with_provider(provider())
        .with_protocol_versions(&[&rustls::version::TLS13])?
        .with_client_cert_verifier(verifier)
        .with_single_cert(certificates, key)?;
    Ok(TlsAcceptor::from(Arc::new(config)))
}

/// Accepts TLS on a pipe that carries a link, with larger buffers than other connections need.
pub async fn accept_link<P: Pipe>(
    acceptor: &TlsAcceptor,
    pipe: P,
) -> io::Result<AcceptedStream<BufReader<P>>> {
    let pipe = BufReader::with_capacity(TLS_READ_BUFFER, pipe);
    let accepting = acceptor.accept_with(pipe, |connection| {
        connection.set_buffer_limit(Some(TLS_WRITE_BUFFER));
    });
    accepting.await
}

/// The fingerprint of the client's certificate on an accepted connection.
pub fn client_fingerprint<S>(stream: &tokio_rustls::server::TlsStream<S>) -> Option<Fingerprint> {
    let certificates = stream.get_ref().1.peer_certificates()?;
    certificates.first().map(Fingerprint::of)
}

fn client_config(trust: Trust, identity: Option<&Identity>) -> Result<ClientConfig, Error> {
    let builder = ClientConfig::builder_with_provider(provider())
        .with_protocol_versions(&[&rustls::version::TLS13])?;
    let exactly = |certificate: &CertificateDer<'_>, expected: Fingerprint| {
        let is_trusted = Fingerprint::of(certificate) == expected;
        is_trusted.then_some(()).ok_or_else(untrusted_certificate)
    };
    let builder =
        match trust {
            Trust::Pinned(fingerprint) => {
                builder
                    .dangerous()
                    .with_custom_certificate_verifier(CertificateVerifier::new(
                        &provider(),
                        move |shown| exactly(shown, fingerprint),
                    ))
            }
            Trust::FirstSeen(FirstSeen(first)) => builder
                .dangerous()
                .with_custom_certificate_verifier(CertificateVerifier::new(
                    &provider(),
                    move |shown| exactly(shown, *first.get_or_init(|| Fingerprint::of(shown))),
                )),
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

/// Not derived, because the key is secret.
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
