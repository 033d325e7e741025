//! TLS as a transport: version 1.3, one cryptographic provider, and two ways to know the server.
//!
//! An agent that was started for one session has a certificate that it made itself, and whoever started it knows the
//! fingerprint: that is a *pinned* certificate, and its name and dates do not matter. Where there is an authority, its
//! certificates are trusted and the server's name is checked. Where the way to the server is trusted and its certificate
//! cannot be known before, the *first seen* one is pinned.
//!
//! The client shows who it is with the link's token, or with a certificate of its own, of which the server knows the
//! fingerprint. Then nothing that the server was given lets anybody else in.

mod by_certificate;
mod fingerprint;

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

pub use self::by_certificate::{ByCertificate, unknown};
pub use self::fingerprint::{Fingerprint, MalformedFingerprint};

use crate::dial::{Dial, Pipe};
use crate::error::LinkError;

/// So much is encrypted, and so written, at once: all of a link's largest frame. The library would stop at a quarter of it.
const ENCRYPTED_AT_ONCE: usize = 256 * 1024;
/// So much is read at once, of which the library would ask for one record after the other.
const READ_AT_ONCE: usize = 128 * 1024;

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

impl FirstSeen {
    /// The certificate, once the server has shown one.
    pub fn fingerprint(&self) -> Option<Fingerprint> {
        self.0.get().copied()
    }
}

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
        let connecting = self
            .connector
            .connect_with(self.name.clone(), pipe, |connection| {
                connection.set_buffer_limit(Some(ENCRYPTED_AT_ONCE));
            });
        connecting.await
    }

    async fn moved(&self) {
        self.inner.moved().await;
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

/// For a server that some clients may use: those whose certificates have these fingerprints, whom it tells apart by
/// [`client_of`]. Nobody else gets as far as to say a word.
pub fn acceptor_for_clients(
    identity: &Identity,
    clients: &[Fingerprint],
) -> Result<TlsAcceptor, LinkError> {
    let (certificates, key) = identity.parts();
    let clients = clients.to_vec();
    let verifier = ByCertificate::new(&provider(), move |certificate| {
        let is_known = clients.contains(&Fingerprint::of(certificate));
        is_known.then_some(()).ok_or_else(unknown)
    });
    let config = ServerConfig::builder_with_provider(provider())
        .with_protocol_versions(&[&rustls::version::TLS13])?
        .with_client_cert_verifier(verifier)
        .with_single_cert(certificates, key)?;
    Ok(TlsAcceptor::from(Arc::new(config)))
}

/// Speaks TLS with a client that has come to make a link: with larger portions than for those who only ask something.
pub async fn accept_link<P: Pipe>(
    acceptor: &TlsAcceptor,
    pipe: P,
) -> io::Result<AcceptedStream<BufReader<P>>> {
    let pipe = BufReader::with_capacity(READ_AT_ONCE, pipe);
    let accepting = acceptor.accept_with(pipe, |connection| {
        connection.set_buffer_limit(Some(ENCRYPTED_AT_ONCE));
    });
    accepting.await
}

/// Who is at the other end of a connection that a server has accepted.
pub fn client_of<S>(stream: &tokio_rustls::server::TlsStream<S>) -> Option<Fingerprint> {
    let certificates = stream.get_ref().1.peer_certificates()?;
    certificates.first().map(Fingerprint::of)
}

fn client_config(trust: Trust, identity: Option<&Identity>) -> Result<ClientConfig, Error> {
    let builder = ClientConfig::builder_with_provider(provider())
        .with_protocol_versions(&[&rustls::version::TLS13])?;
    let exactly = |certificate: &CertificateDer<'_>, expected: Fingerprint| {
        let is_known = Fingerprint::of(certificate) == expected;
        is_known.then_some(()).ok_or_else(unknown)
    };
    let builder = match trust {
        Trust::Pinned(fingerprint) => {
            builder
                .dangerous()
                .with_custom_certificate_verifier(ByCertificate::new(&provider(), move |shown| {
                    exactly(shown, fingerprint)
                }))
        }
        Trust::FirstSeen(FirstSeen(first)) => {
            builder
                .dangerous()
                .with_custom_certificate_verifier(ByCertificate::new(&provider(), move |shown| {
                    exactly(shown, *first.get_or_init(|| Fingerprint::of(shown)))
                }))
        }
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
