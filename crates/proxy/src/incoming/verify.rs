//! Whose certificates an application may show.

use std::fs;
use std::path::Path;
use std::sync::Arc;

use config::TlsDeliverySettings;
use rustls::client::danger::{HandshakeSignatureValid, ServerCertVerified, ServerCertVerifier};
use rustls::crypto::{
    CryptoProvider, WebPkiSupportedAlgorithms, verify_tls12_signature, verify_tls13_signature,
};
use rustls::pki_types::pem::PemObject as _;
use rustls::pki_types::{CertificateDer, ServerName, UnixTime};
use rustls::{
    CertificateError, ClientConfig, DigitallySignedStruct, RootCertStore, SignatureScheme,
};

use crate::error::Error;

/// How the application is spoken to: it is on this machine, so by default any certificate is good.
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
    let verifier = Known {
        only,
        algorithms: algorithms(&provider),
    };
    Ok(builder
        .dangerous()
        .with_custom_certificate_verifier(Arc::new(verifier))
        .with_no_client_auth())
}

fn algorithms(provider: &CryptoProvider) -> WebPkiSupportedAlgorithms {
    provider.signature_verification_algorithms
}

/// Those of a file, or of the files of a folder.
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

/// Takes one certificate, or any.
#[derive(Debug)]
struct Known {
    only: Option<CertificateDer<'static>>,
    algorithms: WebPkiSupportedAlgorithms,
}

impl ServerCertVerifier for Known {
    fn verify_server_cert(
        &self,
        end_entity: &CertificateDer<'_>,
        _: &[CertificateDer<'_>],
        _: &ServerName<'_>,
        _: &[u8],
        _: UnixTime,
    ) -> Result<ServerCertVerified, rustls::Error> {
        match &self.only {
            Some(only) if only != end_entity => Err(rustls::Error::InvalidCertificate(
                CertificateError::ApplicationVerificationFailure,
            )),
            _ => Ok(ServerCertVerified::assertion()),
        }
    }

    fn verify_tls12_signature(
        &self,
        message: &[u8],
        certificate: &CertificateDer<'_>,
        signature: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, rustls::Error> {
        verify_tls12_signature(message, certificate, signature, &self.algorithms)
    }

    fn verify_tls13_signature(
        &self,
        message: &[u8],
        certificate: &CertificateDer<'_>,
        signature: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, rustls::Error> {
        verify_tls13_signature(message, certificate, signature, &self.algorithms)
    }

    fn supported_verify_schemes(&self) -> Vec<SignatureScheme> {
        self.algorithms.supported_schemes()
    }
}
