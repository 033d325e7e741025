//! Client certificates. The administrator renews them; a changed Secret takes effect at once.

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use jiff::{SignedDuration, Timestamp};
use k8s_openapi::api::core::v1::Secret;
use kube::ResourceExt as _;
use rustls::pki_types::PrivateKeyDer;
use rustls::pki_types::pem::PemObject as _;
use secrecy::{ExposeSecret as _, SecretString};
use x509_parser::pem::Pem;

use super::{Credential, NoCredential, value};

pub(super) const CHAIN: &str = "tls.crt";
const KEY: &str = "tls.key";
/// How long before the expiry of a certificate a warning is shown.
const EXPIRY_WARNING: SignedDuration = SignedDuration::from_hours(7 * 24);

/// The certificate of a member's Secret, and when it expires.
pub(crate) fn choose(secret: &Secret) -> Result<(Credential, Timestamp), NoCredential> {
    let name = secret.name_any();
    let unreadable = |key, why| NoCredential::Unreadable {
        secret: name.clone(),
        key,
        why,
    };
    let chain = pem(value(secret, CHAIN)?);
    let key = pem(value(secret, KEY)?);
    let expires = expiry_of(&chain).ok_or_else(|| unreadable(CHAIN, "is no certificate in PEM"))?;
    PrivateKeyDer::from_pem_slice(&key).map_err(|_| unreadable(KEY, "is no key in PEM"))?;
    let key = String::from_utf8(key).map_err(|_| unreadable(KEY, "is no key in PEM"))?;
    let key = SecretString::from(key);
    Ok((Credential::Certificate { chain, key }, expires))
}

/// A warning about a certificate that expires soon or has expired.
pub(crate) fn warning(expires: Timestamp, now: Timestamp) -> Option<String> {
    let left = now.duration_until(expires);
    if left <= SignedDuration::ZERO {
        return Some(format!(
            "the client certificate has expired at {expires}; replace it in the Secret"
        ));
    }
    (left < EXPIRY_WARNING)
        .then(|| format!("the client certificate expires at {expires}; replace it in the Secret"))
}

/// Decodes a value that is base64 by mistake: Kubernetes encodes the values of a Secret already.
fn pem(value: Vec<u8>) -> Vec<u8> {
    if value.starts_with(b"-----") {
        return value;
    }
    let text: Vec<u8> = value
        .iter()
        .copied()
        .filter(|byte| !byte.is_ascii_whitespace())
        .collect();
    STANDARD.decode(text).unwrap_or(value)
}

fn expiry_of(chain: &[u8]) -> Option<Timestamp> {
    let first = Pem::iter_from_buffer(chain).next()?.ok()?;
    let certificate = first.parse_x509().ok()?;
    let expires = certificate.validity().not_after.timestamp();
    Timestamp::from_second(expires).ok()
}

/// The key in the encoding of a kubeconfig.
pub(super) fn encoded(key: &SecretString) -> SecretString {
    SecretString::from(STANDARD.encode(key.expose_secret()))
}
