//! Verifies the certificate of an application.

use std::fs;
use std::path::Path;
use std::sync::Arc;

use config::TlsDeliverySettings;
use link::tls::{CertificateVerifier, untrusted_certificate};
use rustls::pki_types::CertificateDer;
use rustls::pki_types::pem::PemObject as _;
use rustls::{ClientConfig, RootCertStore};

use crate::error::Error;

/// The TLS configuration towards the application. The application runs on this machine, so by default any certificate is
/// accepted.
pub(super) fn config(settings: &TlsDeliverySettings) -> Result<ClientConfig, Error> {
    let provider = Arc::new(rustls::crypto::ring::default_provider());
    let builder = ClientConfig::builder_with_provider(Arc::clone(&provider));
    let builder = builder
        .with_safe_default_protocol_versions()
        .map_err(|error| Error::Tls(Box::new(error)))?;
    if let Some(roots) = settings
        .trust_roots
        .as_ref()
        .filter(|roots| !roots.is_empty())
    {
        let mut store = RootCertStore::empty();
        for path in roots.iter() {
            for certificate in certificates(Path::new(path))? {
                let added = store.add(certificate);
                added.map_err(|error| unusable(Path::new(path), error))?;
            }
        }
        return Ok(builder.with_root_certificates(store).with_no_client_auth());
    }
    let only = match &settings.server_cert {
        Some(path) => certificates(Path::new(path))?.into_iter().next(),
        None => None,
    };
    let verifier = CertificateVerifier::new(&provider, move |shown| match &only {
        Some(only) if only != shown => Err(untrusted_certificate()),
        _ => Ok(()),
    });
    Ok(builder
        .dangerous()
        .with_custom_certificate_verifier(verifier)
        .with_no_client_auth())
}

/// The certificates of a file, or of all files in a folder.
fn certificates(path: &Path) -> Result<Vec<CertificateDer<'static>>, Error> {
    let mut files = vec![path.to_path_buf()];
    if path.is_dir() {
        let entries = fs::read_dir(path).map_err(|error| unusable(path, error))?;
        files = entries
            .filter_map(|entry| Some(entry.ok()?.path()))
            .filter(|path| path.is_file())
            .collect();
    }
    let mut found = Vec::new();
    for file in files {
        let text = fs::read(&file).map_err(|error| unusable(&file, error))?;
        for certificate in CertificateDer::pem_slice_iter(&text) {
            found.push(certificate.map_err(|error| unusable(&file, error))?);
        }
    }
    if found.is_empty() {
        return Err(Error::NoCertificate(path.to_path_buf()));
    }
    Ok(found)
}

fn unusable(path: &Path, error: impl std::error::Error + Send + Sync + 'static) -> Error {
    Error::Certificate {
        path: path.to_path_buf(),
        source: Box::new(error),
    }
}
