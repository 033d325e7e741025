//! Client certificates of an authority that the administrator has chosen: the common name is the user, and organisations
//! are groups, as in Kubernetes.

use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use error_chain::error_chain;
use jiff::Timestamp;
use parking_lot::RwLock;
use rustls::RootCertStore;
use rustls::pki_types::pem::PemObject as _;
use rustls::pki_types::{CertificateDer, UnixTime};
use rustls::server::WebPkiClientVerifier;
use rustls::server::danger::ClientCertVerifier;
use thiserror::Error;
use tokio::time::sleep;
use tokio_util::sync::CancellationToken;
use x509_parser::certificate::X509Certificate;
use x509_parser::prelude::FromDer as _;

use super::Rejected;
use crate::user::User;

/// How often the file is read. Kubernetes updates mounted files within about a minute.
const RELOAD_INTERVAL: Duration = Duration::from_secs(10);

/// Why authorities cannot be used.
#[derive(Debug, Error)]
pub(crate) enum AuthoritiesError {
    #[error("cannot read the authorities of client certificates from {path}")]
    Read {
        path: PathBuf,
        source: std::io::Error,
    },
    #[error("the authorities of client certificates are not certificates in PEM")]
    Pem(#[source] rustls::pki_types::pem::Error),
    #[error("the file with the authorities of client certificates contains none")]
    Empty,
    #[error("the authorities of client certificates cannot be used")]
    Unusable(#[source] Box<dyn std::error::Error + Send + Sync>),
}

/// The authorities whose certificates are accepted. Clones share them.
#[derive(Clone, Debug)]
pub(crate) struct ClientAuthorities {
    current: Arc<RwLock<Current>>,
}

#[derive(Debug)]
struct Current {
    pem: String,
    verifier: Arc<dyn ClientCertVerifier>,
}

impl Current {
    fn new(pem: String) -> Result<Self, AuthoritiesError> {
        let mut roots = RootCertStore::empty();
        for authority in CertificateDer::pem_slice_iter(pem.as_bytes()) {
            let authority = authority.map_err(AuthoritiesError::Pem)?;
            let added = roots.add(authority);
            added.map_err(|error| AuthoritiesError::Unusable(Box::new(error)))?;
        }
        if roots.is_empty() {
            return Err(AuthoritiesError::Empty);
        }
        let provider = Arc::new(rustls::crypto::ring::default_provider());
        let verifier = WebPkiClientVerifier::builder_with_provider(Arc::new(roots), provider)
            .build()
            .map_err(|error| AuthoritiesError::Unusable(Box::new(error)))?;
        Ok(Self { pem, verifier })
    }
}

impl ClientAuthorities {
    pub(crate) fn from_pem(pem: &str) -> Result<Self, AuthoritiesError> {
        let current = Current::new(pem.to_owned())?;
        Ok(Self {
            current: Arc::new(RwLock::new(current)),
        })
    }

    pub(crate) async fn read(path: &PathBuf) -> Result<Self, AuthoritiesError> {
        Self::from_pem(&read(path).await?)
    }

    /// Reloads the file when it changes. A file that cannot be used changes nothing.
    pub(crate) async fn run(self, path: PathBuf, shutdown: CancellationToken) {
        while shutdown
            .run_until_cancelled(sleep(RELOAD_INTERVAL))
            .await
            .is_some()
        {
            let loaded = match read(&path).await {
                Ok(pem) if pem == self.current.read().pem => continue,
                Ok(pem) => Current::new(pem),
                Err(error) => Err(error),
            };
            match loaded {
                Ok(current) => {
                    *self.current.write() = current;
                    tracing::info!("authorities of client certificates reloaded");
                }
                Err(error) => {
                    let error = error_chain(&error);
                    tracing::warn!(error, "reload of client certificate authorities failed");
                }
            }
        }
    }

    /// The user of a certificate. The TLS handshake has proved that the client has its key.
    pub(super) fn user(
        &self,
        certificates: &[CertificateDer<'static>],
        now: Timestamp,
    ) -> Result<User, Rejected> {
        let invalid = |text: String| Rejected::Invalid(text);
        let Some((own, intermediates)) = certificates.split_first() else {
            return Err(Rejected::NoCredential);
        };
        let now = u64::try_from(now.as_second()).unwrap_or_default();
        let now = UnixTime::since_unix_epoch(Duration::from_secs(now));
        let verifier = Arc::clone(&self.current.read().verifier);
        let verified = verifier.verify_client_cert(own, intermediates, now);
        verified.map_err(|error| invalid(format!("the client certificate is refused: {error}")))?;
        let certificate = X509Certificate::from_der(own);
        let (_, certificate) =
            certificate.map_err(|_| invalid("the client certificate is malformed".to_owned()))?;
        subject(&certificate)
            .ok_or_else(|| invalid("the client certificate names no user".to_owned()))
    }
}

async fn read(path: &PathBuf) -> Result<String, AuthoritiesError> {
    let text = tokio::fs::read_to_string(path).await;
    text.map_err(|source| AuthoritiesError::Read {
        path: path.clone(),
        source,
    })
}

fn subject(certificate: &X509Certificate<'_>) -> Option<User> {
    let mut names = certificate.subject().iter_common_name();
    let name = names.next()?.as_str().ok()?.to_owned();
    // Two names are two users.
    if name.is_empty() || names.next().is_some() {
        return None;
    }
    let groups = certificate.subject().iter_organization();
    let groups: Result<Vec<String>, _> = groups
        .map(|group| group.as_str().map(str::to_owned))
        .collect();
    Some(User {
        name,
        groups: groups.ok()?,
        ..User::default()
    })
}
