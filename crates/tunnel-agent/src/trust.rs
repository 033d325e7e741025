//! Which certificates of servers the agent trusts, as configurations of TLS.
//!
//! | connection | trusted |
//! |---|---|
//! | registration, with a pin | the server whose public key has this hash. Names, dates and issuers do not matter |
//! | registration, without a pin | public authorities, and those of the settings |
//! | tunnel | the hub's authorities, which the registration returns. Without a pin, also what the registration trusted: the hub may serve an administrator's certificate |
//!
//! With a pin, a certificate of a public authority is not enough for the tunnel: the pin says that the hub has its own.

use std::fs;
use std::path::Path;
use std::sync::Arc;

use authority::{Facts, KeyHash};
use link::tls::{CertificateVerifier, untrusted_certificate};
use rustls::crypto::{CryptoProvider, ring};
use rustls::pki_types::pem::PemObject as _;
use rustls::pki_types::{CertificateDer, PrivateKeyDer};
use rustls::{ClientConfig, ConfigBuilder, RootCertStore, WantsVerifier};

use crate::error::{Error, Result};
use crate::state::Credential;

/// What is trusted beside the hub's own authorities.
#[derive(Clone, Debug)]
pub(crate) struct Trust {
    pin: Option<KeyHash>,
    /// The public authorities and those of the settings. Without a pin only.
    roots: RootCertStore,
}

impl Trust {
    pub(crate) fn new(pin: Option<KeyHash>, ca_file: Option<&Path>) -> Result<Self> {
        let mut roots = RootCertStore::empty();
        if pin.is_none() {
            roots.extend(webpki_roots::TLS_SERVER_ROOTS.iter().cloned());
            if let Some(file) = ca_file {
                add_file(&mut roots, file)?;
            }
        }
        Ok(Self { pin, roots })
    }

    pub(crate) const fn has_pin(&self) -> bool {
        self.pin.is_some()
    }

    /// For the registration.
    pub(crate) fn for_registration(&self) -> Result<ClientConfig> {
        let Some(pin) = self.pin else {
            let builder = client_builder()?.with_root_certificates(self.roots.clone());
            return Ok(builder.with_no_client_auth());
        };
        let has_pin = move |certificate: &CertificateDer<'_>| match Facts::from_der(certificate) {
            Ok(facts) if facts.key == pin => Ok(()),
            _ => Err(untrusted_certificate()),
        };
        let verifier = CertificateVerifier::new(&provider(), has_pin);
        Ok(client_builder()?
            .dangerous()
            .with_custom_certificate_verifier(verifier)
            .with_no_client_auth())
    }

    /// For the tunnel.
    pub(crate) fn for_tunnel(&self, credential: &Credential) -> Result<ClientConfig> {
        let mut roots = self.roots.clone();
        for certificate in certificates("ca.crt", &credential.authorities)? {
            roots
                .add(certificate)
                .map_err(|error| Error::unreadable("ca.crt", &error))?;
        }
        let chain = certificates("tls.crt", &credential.certificate)?;
        let key = PrivateKeyDer::from_pem_slice(credential.key.as_bytes())
            .map_err(|error| Error::unreadable("tls.key", &error))?;
        client_builder()?
            .with_root_certificates(roots)
            .with_client_auth_cert(chain, key)
            .map_err(|error| Error::unreadable("tls.crt", &error))
    }
}

/// The certificates in a text. There has to be one.
pub(crate) fn certificates(key: &'static str, pem: &str) -> Result<Vec<CertificateDer<'static>>> {
    let certificates: Result<Vec<_>, _> = CertificateDer::pem_slice_iter(pem.as_bytes()).collect();
    let certificates = certificates.map_err(|error| Error::unreadable(key, &error))?;
    match certificates.is_empty() {
        true => Err(Error::unreadable(key, &"it has no certificate")),
        false => Ok(certificates),
    }
}

fn add_file(roots: &mut RootCertStore, file: &Path) -> Result<()> {
    let unreadable = |reason: String| Error::ServerAuthorities {
        path: file.to_owned(),
        reason,
    };
    let pem = fs::read_to_string(file).map_err(|error| unreadable(error.to_string()))?;
    let certificates =
        certificates("ca.crt", &pem).map_err(|error| unreadable(error.to_string()))?;
    for certificate in certificates {
        let added = roots.add(certificate);
        added.map_err(|error| unreadable(error.to_string()))?;
    }
    Ok(())
}

fn provider() -> Arc<CryptoProvider> {
    Arc::new(ring::default_provider())
}

/// The beginning of every configuration: TLS 1.2, for the load balancers of others, and 1.3.
pub(crate) fn client_builder() -> Result<ConfigBuilder<ClientConfig, WantsVerifier>> {
    let builder = ClientConfig::builder_with_provider(provider());
    builder
        .with_safe_default_protocol_versions()
        .map_err(|error| Error::Tls(Arc::new(error)))
}
