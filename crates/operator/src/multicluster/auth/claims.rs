//! The claims of a token. They are not verified here; the member that receives the token verifies it.

use base64::Engine as _;
use base64::engine::general_purpose::URL_SAFE_NO_PAD;
use jiff::Timestamp;
use serde::Deserialize;

/// The lifetime and the account of a JSON Web Token.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Claims {
    pub(crate) issued: Option<Timestamp>,
    pub(crate) expires: Option<Timestamp>,
    /// The namespace and the name of the service account.
    pub(crate) account: Option<(String, String)>,
}

impl Claims {
    /// Returns `None` if the text is not a JSON Web Token.
    pub(crate) fn read(token: &str) -> Option<Self> {
        let mut parts = token.trim().split('.');
        let (_, payload, _) = (parts.next()?, parts.next()?, parts.next()?);
        if parts.next().is_some() {
            return None;
        }
        let payload = URL_SAFE_NO_PAD.decode(payload.trim_end_matches('=')).ok()?;
        let payload: Payload = serde_json::from_slice(&payload).ok()?;
        let time = |seconds: Option<f64>| {
            // A number of seconds, which may have a fraction.
            #[expect(
                clippy::cast_possible_truncation,
                reason = "the fraction is not needed, and a value that is too large is no valid time"
            )]
            let seconds = seconds? as i64;
            Timestamp::from_second(seconds).ok()
        };
        let account = payload
            .sub
            .as_deref()
            .and_then(|subject| subject.strip_prefix("system:serviceaccount:"))
            .and_then(|account| account.split_once(':'))
            .map(|(namespace, name)| (namespace.to_owned(), name.to_owned()));
        Some(Self {
            issued: time(payload.iat.or(payload.nbf)),
            expires: time(payload.exp),
            account,
        })
    }
}

#[derive(Deserialize)]
struct Payload {
    iat: Option<f64>,
    nbf: Option<f64>,
    exp: Option<f64>,
    sub: Option<String>,
}
