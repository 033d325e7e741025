//! JSON Web Tokens: their signature, and the claims of an OIDC identity token. Without I/O and clock.

use base64::Engine as _;
use base64::engine::general_purpose::URL_SAFE_NO_PAD;
use jiff::Timestamp;
use ring::signature::{self, RsaPublicKeyComponents, UnparsedPublicKey};
use serde::Deserialize;
use serde_json::{Map, Value};
use thiserror::Error;

/// How far the clocks of the hub and of an issuer may differ.
const LEEWAY_SECONDS: i64 = 30;

/// Why a token is refused.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
pub(super) enum JwtError {
    #[error("the token is no JSON Web Token")]
    Malformed,
    #[error("the token's algorithm {0} is not allowed")]
    Algorithm(String),
    /// The issuer may have new keys.
    #[error("the token is signed by a key that the issuer does not publish")]
    UnknownKey,
    #[error("the token's signature is wrong")]
    Signature,
    #[error("the token has no claim {0:?}")]
    Missing(String),
    #[error("the token is from another issuer")]
    Issuer,
    #[error("the token is for another audience")]
    Audience,
    #[error("the token has expired")]
    Expired,
    #[error("the token is not valid yet")]
    NotYetValid,
}

/// The algorithms that can be allowed. Those with a shared secret are not among them, nor is `none`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Deserialize)]
pub(crate) enum Algorithm {
    RS256,
    RS384,
    RS512,
    PS256,
    PS384,
    PS512,
    ES256,
    ES384,
    #[serde(rename = "EdDSA")]
    EdDsa,
}

/// The keys of an issuer, as it publishes them.
#[derive(Clone, Debug, Default, Deserialize)]
pub(super) struct KeySet {
    /// Keys of kinds that are unknown do not make the others unusable.
    keys: Vec<Value>,
}

#[derive(Debug, Deserialize)]
struct Key {
    kty: String,
    kid: Option<String>,
    alg: Option<String>,
    #[serde(rename = "use")]
    usage: Option<String>,
    crv: Option<String>,
    n: Option<String>,
    e: Option<String>,
    x: Option<String>,
    y: Option<String>,
}

#[derive(Debug, Deserialize)]
struct Header {
    alg: String,
    kid: Option<String>,
    crit: Option<Value>,
}

/// What a token has to be.
#[derive(Clone, Debug)]
pub(super) struct Expected<'a> {
    pub(super) issuer: &'a str,
    pub(super) audiences: &'a [String],
    pub(super) algorithms: &'a [Algorithm],
}

pub(super) type Claims = Map<String, Value>;

/// The issuer that a token names, which proves nothing.
pub(super) fn unverified_issuer(token: &str) -> Option<String> {
    let (_, claims, _) = split(token).ok()?;
    let claims: Claims = decode(claims).ok()?;
    claims.get("iss")?.as_str().map(str::to_owned)
}

/// Whether a token says that it is for this audience, which proves nothing.
pub(super) fn names_audience(token: &str, audience: &str) -> bool {
    let claims = split(token).and_then(|(_, claims, _)| decode::<Claims>(claims));
    let Ok(claims) = claims else { return false };
    match claims.get("aud") {
        Some(Value::String(one)) => one == audience,
        Some(Value::Array(all)) => all.iter().any(|one| one == audience),
        _ => false,
    }
}

/// Verifies a token, and returns its claims.
pub(super) fn verify(
    token: &str,
    keys: &KeySet,
    expected: &Expected<'_>,
    now: Timestamp,
) -> Result<Claims, JwtError> {
    let (header, claims, encoded_signature) = split(token)?;
    let signed = token.get(..header.len() + 1 + claims.len());
    let signed = signed.ok_or(JwtError::Malformed)?.as_bytes();
    let header: Header = decode(header)?;
    if header.crit.is_some() {
        return Err(JwtError::Malformed);
    }
    let algorithm: Algorithm = serde_json::from_value(Value::from(header.alg.as_str()))
        .ok()
        .filter(|algorithm| expected.algorithms.contains(algorithm))
        .ok_or_else(|| JwtError::Algorithm(header.alg.clone()))?;
    let signature = base64(encoded_signature)?;
    let mut candidates = keys.candidates(&header, algorithm).peekable();
    if candidates.peek().is_none() {
        return Err(JwtError::UnknownKey);
    }
    if !candidates.any(|key| key.has_signed(algorithm, signed, &signature)) {
        return Err(JwtError::Signature);
    }
    let claims: Claims = decode(claims)?;
    check_claims(&claims, expected, now.as_second())?;
    Ok(claims)
}

fn check_claims(claims: &Claims, expected: &Expected<'_>, now: i64) -> Result<(), JwtError> {
    if claims.get("iss").and_then(Value::as_str) != Some(expected.issuer) {
        return Err(JwtError::Issuer);
    }
    let is_audience = |value: &Value| {
        value
            .as_str()
            .is_some_and(|audience| expected.audiences.iter().any(|one| one == audience))
    };
    let is_ours = match claims.get("aud") {
        Some(Value::Array(audiences)) => audiences.iter().any(is_audience),
        Some(audience) => is_audience(audience),
        None => false,
    };
    if !is_ours {
        return Err(JwtError::Audience);
    }
    let expires = seconds(claims, "exp")?.ok_or_else(|| JwtError::Missing("exp".to_owned()))?;
    if now >= expires.saturating_add(LEEWAY_SECONDS) {
        return Err(JwtError::Expired);
    }
    match seconds(claims, "nbf")? {
        Some(begins) if now < begins.saturating_sub(LEEWAY_SECONDS) => Err(JwtError::NotYetValid),
        _ => Ok(()),
    }
}

/// A time, which may have a fraction.
fn seconds(claims: &Claims, name: &str) -> Result<Option<i64>, JwtError> {
    let Some(value) = claims.get(name) else {
        return Ok(None);
    };
    #[expect(
        clippy::cast_possible_truncation,
        reason = "the fraction is not needed, and too large values become the largest"
    )]
    let seconds = value.as_f64().ok_or(JwtError::Malformed)? as i64;
    Ok(Some(seconds))
}

impl KeySet {
    /// The keys that may have signed a token with this header.
    fn candidates(&self, header: &Header, algorithm: Algorithm) -> impl Iterator<Item = Key> {
        self.keys
            .iter()
            .filter_map(|key| Key::deserialize(key).ok())
            .filter(|key| header.kid.is_none() || key.kid == header.kid)
            .filter(|key| key.usage.as_deref().is_none_or(|usage| usage == "sig"))
            .filter(|key| key.alg.as_deref().is_none_or(|alg| alg == header.alg))
            .filter(move |key| key.fits(algorithm))
    }
}

impl Key {
    /// A key is used with the algorithms of its kind only.
    fn fits(&self, algorithm: Algorithm) -> bool {
        let curve = self.crv.as_deref();
        match algorithm {
            Algorithm::ES256 => self.kty == "EC" && curve == Some("P-256"),
            Algorithm::ES384 => self.kty == "EC" && curve == Some("P-384"),
            Algorithm::EdDsa => self.kty == "OKP" && curve == Some("Ed25519"),
            _ => self.kty == "RSA",
        }
    }

    fn has_signed(&self, algorithm: Algorithm, message: &[u8], signature: &[u8]) -> bool {
        let rsa = |parameters| self.has_signed_rsa(parameters, message, signature);
        let curve = |parameters| self.has_signed_curve(parameters, message, signature);
        match algorithm {
            Algorithm::RS256 => rsa(&signature::RSA_PKCS1_2048_8192_SHA256),
            Algorithm::RS384 => rsa(&signature::RSA_PKCS1_2048_8192_SHA384),
            Algorithm::RS512 => rsa(&signature::RSA_PKCS1_2048_8192_SHA512),
            Algorithm::PS256 => rsa(&signature::RSA_PSS_2048_8192_SHA256),
            Algorithm::PS384 => rsa(&signature::RSA_PSS_2048_8192_SHA384),
            Algorithm::PS512 => rsa(&signature::RSA_PSS_2048_8192_SHA512),
            Algorithm::ES256 => curve(&signature::ECDSA_P256_SHA256_FIXED),
            Algorithm::ES384 => curve(&signature::ECDSA_P384_SHA384_FIXED),
            Algorithm::EdDsa => curve(&signature::ED25519),
        }
    }

    fn has_signed_rsa(
        &self,
        parameters: &'static signature::RsaParameters,
        message: &[u8],
        signature: &[u8],
    ) -> bool {
        let part = |part: &Option<String>| part.as_deref().and_then(|part| base64(part).ok());
        let (Some(n), Some(e)) = (part(&self.n), part(&self.e)) else {
            return false;
        };
        RsaPublicKeyComponents { n, e }
            .verify(parameters, message, signature)
            .is_ok()
    }

    fn has_signed_curve(
        &self,
        parameters: &'static dyn signature::VerificationAlgorithm,
        message: &[u8],
        signature: &[u8],
    ) -> bool {
        let part = |part: &Option<String>| part.as_deref().and_then(|part| base64(part).ok());
        let point = match (self.kty.as_str(), part(&self.x), part(&self.y)) {
            ("OKP", Some(x), _) => x,
            // An uncompressed point
            (_, Some(x), Some(y)) => [vec![4], x, y].concat(),
            _ => return false,
        };
        UnparsedPublicKey::new(parameters, point)
            .verify(message, signature)
            .is_ok()
    }
}

fn split(token: &str) -> Result<(&str, &str, &str), JwtError> {
    let mut parts = token.split('.');
    match (parts.next(), parts.next(), parts.next(), parts.next()) {
        (Some(header), Some(claims), Some(signature), None) => Ok((header, claims, signature)),
        _ => Err(JwtError::Malformed),
    }
}

fn base64(text: &str) -> Result<Vec<u8>, JwtError> {
    let decoded = URL_SAFE_NO_PAD.decode(text.trim_end_matches('='));
    decoded.map_err(|_| JwtError::Malformed)
}

fn decode<T: for<'a> Deserialize<'a>>(part: &str) -> Result<T, JwtError> {
    serde_json::from_slice(&base64(part)?).map_err(|_| JwtError::Malformed)
}

#[cfg(test)]
pub(super) mod tests;
