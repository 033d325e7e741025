//! The administrator's certificate for the hub, in files that are mounted from a Secret and change when it is renewed.

use std::path::Path;
use std::sync::Arc;

use authority::Facts;
use rustls::sign::CertifiedKey;

use crate::error::{Error, Result};
use crate::settings::PublicCertificate;
use crate::tls;

pub(super) struct PublicFiles(PublicCertificate);

/// The certificate at a moment.
pub(super) struct PublicKeyPair {
    pub(super) certified: Arc<CertifiedKey>,
    pub(super) fingerprint: String,
}

impl PublicFiles {
    pub(super) fn new(files: PublicCertificate) -> Self {
        Self(files)
    }

    pub(super) async fn read(&self) -> Result<PublicKeyPair> {
        let chain = read(&self.0.certificate).await?;
        let key = read(&self.0.key).await?;
        Ok(PublicKeyPair {
            certified: tls::certified_key(&chain, &key)?,
            fingerprint: Facts::from_pem(&chain)?.fingerprint,
        })
    }
}

async fn read(path: &Path) -> Result<String> {
    let read = tokio::fs::read_to_string(path).await;
    read.map_err(|source| Error::File {
        path: path.to_owned(),
        source,
    })
}
