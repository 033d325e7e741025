//! Certificates as text, always in the same form.

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use rustls::pki_types::CertificateDer;
use rustls::pki_types::pem::PemObject as _;

use crate::Error;

/// The length of a line, by RFC 7468.
const LINE: usize = 64;

pub(crate) fn encode_certificate(der: &[u8]) -> String {
    let data = STANDARD.encode(der);
    let mut text = String::from("-----BEGIN CERTIFICATE-----\n");
    let mut rest = data.as_str();
    while !rest.is_empty() {
        let (line, following) = rest.split_at(rest.len().min(LINE));
        text.push_str(line);
        text.push('\n');
        rest = following;
    }
    text.push_str("-----END CERTIFICATE-----\n");
    text
}

/// All certificates of a text, which may contain other things.
pub(crate) fn certificates(text: &str) -> Result<Vec<CertificateDer<'static>>, Error> {
    CertificateDer::pem_slice_iter(text.as_bytes())
        .collect::<Result<_, _>>()
        .map_err(|error| Error::UnreadableCertificate(error.to_string()))
}
