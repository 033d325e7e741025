//! Who sends a request: the holder of a client certificate, of a token of the hub's cluster, or of a token of an OIDC provider.
//!
//! A certificate is considered first, as in Kubernetes. A token of a configured issuer is checked with that issuer's keys
//! only. All other tokens are reviewed by the API server of the hub's cluster.

mod certificates;
mod jwt;
mod oidc;
mod tokens;

use base64::Engine as _;
use base64::engine::general_purpose::URL_SAFE_NO_PAD;
use http::HeaderMap;
use http::header::AUTHORIZATION;
use jiff::Timestamp;
use rustls::pki_types::CertificateDer;
use thiserror::Error;

pub(crate) use self::certificates::ClientAuthorities;
pub(crate) use self::oidc::{Oidc, OidcSettings};
pub(crate) use self::tokens::TokenReviews;
use crate::impersonate;
use crate::status::Status;
use crate::user::User;

/// The longest token that is considered.
const MAX_TOKEN: usize = 32 * 1024;

/// Why a request has no user.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
pub(crate) enum Rejected {
    #[error(
        "the hub needs a credential: a bearer token of its cluster or of its OIDC provider, or a client certificate; \
         get a kubeconfig from `standin cluster kubeconfig`"
    )]
    NoCredential,
    #[error("{0}; sign in again, or get a new token")]
    Invalid(String),
    /// It is unknown whether the credential is valid.
    #[error("the hub cannot check the credential: {0}; try again")]
    Unavailable(String),
}

impl Rejected {
    pub(crate) fn status(&self) -> Status {
        let message = self.to_string();
        match self {
            Self::NoCredential | Self::Invalid(_) => Status::unauthorized(message),
            // Nothing was done, so the request can be repeated.
            Self::Unavailable(_) => Status::unavailable(message).retry_after(1),
        }
    }
}

#[derive(Debug)]
pub(crate) struct Authenticator {
    tokens: TokenReviews,
    oidc: Vec<Oidc>,
    authorities: Option<ClientAuthorities>,
}

impl Authenticator {
    pub(crate) fn new(
        tokens: TokenReviews,
        oidc: Vec<Oidc>,
        authorities: Option<ClientAuthorities>,
    ) -> Self {
        Self {
            tokens,
            oidc,
            authorities,
        }
    }

    /// The certificates are those that the client presented in the TLS handshake, its own first. They need not be verified.
    pub(crate) async fn authenticate(
        &self,
        headers: &HeaderMap,
        client_certificates: &[CertificateDer<'static>],
    ) -> Result<User, Rejected> {
        let now = Timestamp::now();
        let certified = self
            .authorities
            .as_ref()
            .filter(|_| !client_certificates.is_empty())
            .map(|authorities| authorities.user(client_certificates, now));
        if let Some(Ok(user)) = certified {
            return Ok(user);
        }
        match (bearer(headers)?, certified) {
            (Some(token), _) => self.authenticate_token(&token, now).await,
            (None, Some(Err(invalid))) => Err(invalid),
            (None, _) => Err(Rejected::NoCredential),
        }
    }

    async fn authenticate_token(&self, token: &str, now: Timestamp) -> Result<User, Rejected> {
        if let Some(issuer) = jwt::unverified_issuer(token)
            && let Some(oidc) = self.oidc.iter().find(|oidc| oidc.issuer() == issuer)
        {
            return oidc.authenticate(token, now).await;
        }
        self.tokens.review(token).await
    }
}

/// The token of a request: in its `Authorization` header, or in a WebSocket subprotocol.
fn bearer(headers: &HeaderMap) -> Result<Option<String>, Rejected> {
    let invalid = |text: &str| Rejected::Invalid(text.to_owned());
    let mut values = headers.get_all(AUTHORIZATION).iter();
    let token = match (values.next(), values.next()) {
        (Some(_), Some(_)) => return Err(invalid("the request has two Authorization headers")),
        (Some(value), None) => {
            let (scheme, token) = value
                .to_str()
                .ok()
                .and_then(|value| value.trim().split_once(' '))
                .ok_or_else(|| invalid("the Authorization header is no bearer token"))?;
            if !scheme.eq_ignore_ascii_case("bearer") {
                return Err(invalid("the Authorization header is no bearer token"));
            }
            token.trim().to_owned()
        }
        (None, _) => {
            let mut tokens = impersonate::protocol_tokens(headers);
            let Some(encoded) = tokens.next() else {
                return Ok(None);
            };
            let token = URL_SAFE_NO_PAD.decode(encoded.trim_end_matches('=')).ok();
            token
                .and_then(|token| String::from_utf8(token).ok())
                .filter(|_| tokens.next().is_none())
                .ok_or_else(|| invalid("the WebSocket subprotocol is no bearer token"))?
        }
    };
    let is_plausible = !token.is_empty()
        && token.len() <= MAX_TOKEN
        && token.bytes().all(|byte| byte.is_ascii_graphic());
    if is_plausible {
        Ok(Some(token))
    } else {
        Err(invalid("the bearer token is malformed"))
    }
}

#[cfg(test)]
mod tests;
