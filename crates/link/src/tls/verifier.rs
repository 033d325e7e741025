//! Verifies a peer by its certificate alone.

use std::fmt;
use std::sync::Arc;

use rustls::client::danger::{HandshakeSignatureValid, ServerCertVerified, ServerCertVerifier};
use rustls::crypto::{
    CryptoProvider, WebPkiSupportedAlgorithms, verify_tls12_signature, verify_tls13_signature,
};
use rustls::pki_types::{CertificateDer, ServerName, UnixTime};
use rustls::server::danger::{ClientCertVerified, ClientCertVerifier};
use rustls::{CertificateError, DigitallySignedStruct, DistinguishedName, Error, SignatureScheme};

/// Accepts a server or a client whose certificate passes a custom check. Possession of the key is verified as usual; names,
/// dates and issuers are not.
pub struct CertificateVerifier<Check> {
    check: Check,
    algorithms: WebPkiSupportedAlgorithms,
}

impl<Check> CertificateVerifier<Check>
where
    Check: Fn(&CertificateDer<'_>) -> Result<(), Error> + Send + Sync,
{
    /// A check that fails returns [`untrusted_certificate`].
    pub fn new(provider: &CryptoProvider, check: Check) -> Arc<Self> {
        let algorithms = provider.signature_verification_algorithms;
        Arc::new(Self { check, algorithms })
    }
}

/// The error for a certificate that is not trusted.
#[must_use]
pub fn untrusted_certificate() -> Error {
    Error::InvalidCertificate(CertificateError::ApplicationVerificationFailure)
}

impl<Check> ServerCertVerifier for CertificateVerifier<Check>
where
    Check: Fn(&CertificateDer<'_>) -> Result<(), Error> + Send + Sync,
{
    fn verify_server_cert(
        &self,
        certificate: &CertificateDer<'_>,
        _intermediates: &[CertificateDer<'_>],
        _name: &ServerName<'_>,
        _ocsp_response: &[u8],
        _now: UnixTime,
    ) -> Result<ServerCertVerified, Error> {
        (self.check)(certificate).map(|()| ServerCertVerified::assertion())
    }

    fn verify_tls12_signature(
        &self,
        message: &[u8],
        certificate: &CertificateDer<'_>,
        signature: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, Error> {
        verify_tls12_signature(message, certificate, signature, &self.algorithms)
    }

    fn verify_tls13_signature(
        &self,
        message: &[u8],
        certificate: &CertificateDer<'_>,
        signature: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, Error> {
        verify_tls13_signature(message, certificate, signature, &self.algorithms)
    }

    fn supported_verify_schemes(&self) -> Vec<SignatureScheme> {
        self.algorithms.supported_schemes()
    }
}

impl<Check> ClientCertVerifier for CertificateVerifier<Check>
where
    Check: Fn(&CertificateDer<'_>) -> Result<(), Error> + Send + Sync,
{
    fn root_hint_subjects(&self) -> &[DistinguishedName] {
        &[]
    }

    fn verify_client_cert(
        &self,
        certificate: &CertificateDer<'_>,
        _intermediates: &[CertificateDer<'_>],
        _now: UnixTime,
    ) -> Result<ClientCertVerified, Error> {
        (self.check)(certificate).map(|()| ClientCertVerified::assertion())
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

impl<Check> fmt::Debug for CertificateVerifier<Check> {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.write_str("CertificateVerifier")
    }
}
