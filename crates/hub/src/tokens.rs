//! Registration tokens: what a token allows, and what burns it. No I/O and no clock.
//!
//! A token is for one cluster, lives for minutes, and yields one certificate. Only its hash is stored. A lost response or
//! a crash of the agent must not cost the administrator another token, so the same token with the same key gets the same
//! certificate again. Anything else that is wrong with a known token burns it: it may have been stolen.

use std::collections::BTreeMap;
use std::fmt;

use base64::Engine as _;
use base64::engine::general_purpose::URL_SAFE_NO_PAD;
use jiff::{SignedDuration, Timestamp};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::Time;
use serde::{Deserialize, Serialize};
use sha2::{Digest as _, Sha256};

/// The bytes of a token.
pub(crate) const TOKEN_BYTES: usize = 32;
/// All tokens are in one Secret, which has at most 1 MiB, and a redeemed one has its certificate.
const MAX_TOKENS: usize = 400;
/// How long an expired token is kept, so that the log can say that it has expired.
const RETENTION: SignedDuration = SignedDuration::from_hours(1);

/// The SHA-256 of a token, in hex.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(transparent)]
pub(crate) struct TokenHash(String);

impl TokenHash {
    /// `None` for a text that no hub has ever issued as a token.
    pub(crate) fn of(token: &str) -> Option<Self> {
        let bytes = URL_SAFE_NO_PAD.decode(token).ok()?;
        (bytes.len() == TOKEN_BYTES).then(|| Self(hex(&Sha256::digest(token))))
    }
}

/// The text of a token.
pub(crate) fn encode(bytes: &[u8; TOKEN_BYTES]) -> String {
    URL_SAFE_NO_PAD.encode(bytes)
}

fn hex(bytes: &[u8]) -> String {
    bytes.iter().map(|byte| format!("{byte:02x}")).collect()
}

/// All tokens of a hub.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(transparent)]
pub(crate) struct Tokens {
    tokens: BTreeMap<TokenHash, Token>,
}

#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
struct Token {
    cluster: String,
    expires_at: Time,
    state: State,
}

#[derive(Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(tag = "is", rename_all = "camelCase")]
enum State {
    /// Until it is redeemed or expires.
    Fresh,
    /// A certificate was issued. Until the token is burned or expires, the same key gets it again.
    Redeemed { key: String, certificate: String },
    /// For ever.
    Burned,
}

impl fmt::Debug for State {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.write_str(match self {
            Self::Fresh => "Fresh",
            Self::Redeemed { .. } => "Redeemed",
            Self::Burned => "Burned",
        })
    }
}

/// A request to redeem a token.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Claim<'a> {
    pub(crate) token: &'a TokenHash,
    pub(crate) cluster: &'a str,
    /// The public key that shall be certified.
    pub(crate) key: &'a str,
}

/// Why a token was refused. Only the log has it.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub(crate) enum Rejection {
    #[error("unknown token")]
    Unknown,
    #[error("the token has expired")]
    Expired,
    #[error("the token is for the cluster {expected}, and is burned now")]
    ClusterMismatch { expected: String },
    #[error(
        "the token was redeemed with another key before, and is burned now; if you did not register twice, revoke the cluster"
    )]
    AnotherKey,
    #[error("the token was burned before")]
    Burned,
}

/// What an accepted claim gets.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Redemption {
    /// A certificate, which must be stored with [`Tokens::complete`].
    First,
    /// The certificate of the first time.
    Again(String),
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error(
    "there are {MAX_TOKENS} registration tokens that have not expired; try again when some have"
)]
pub(crate) struct TooManyTokens;

impl Tokens {
    /// Adds a token.
    pub(crate) fn add(
        &mut self,
        token: TokenHash,
        cluster: &str,
        expires_at: Timestamp,
        now: Timestamp,
    ) -> Result<(), TooManyTokens> {
        self.remove_expired(now);
        if self.tokens.len() >= MAX_TOKENS {
            // The log's precision is worth less than a new registration.
            self.tokens.retain(|_, token| now < token.expires_at.0);
        }
        if self.tokens.len() >= MAX_TOKENS {
            return Err(TooManyTokens);
        }
        let cluster = cluster.to_owned();
        let state = State::Fresh;
        let expires_at = Time(expires_at);
        self.tokens.insert(
            token,
            Token {
                cluster,
                expires_at,
                state,
            },
        );
        Ok(())
    }

    /// Decides about a claim. A rejected claim may burn the token, so the tokens must be stored then, too.
    pub(crate) fn redeem(
        &mut self,
        claim: Claim<'_>,
        now: Timestamp,
    ) -> Result<Redemption, Rejection> {
        let token = self.tokens.get_mut(claim.token);
        let token = token.ok_or(Rejection::Unknown)?;
        if now >= token.expires_at.0 {
            return Err(Rejection::Expired);
        }
        let rejection = match &token.state {
            State::Burned => return Err(Rejection::Burned),
            _ if token.cluster != claim.cluster => Rejection::ClusterMismatch {
                expected: token.cluster.clone(),
            },
            State::Fresh => return Ok(Redemption::First),
            State::Redeemed { key, certificate } if key == claim.key => {
                return Ok(Redemption::Again(certificate.clone()));
            }
            State::Redeemed { .. } => Rejection::AnotherKey,
        };
        token.state = State::Burned;
        Err(rejection)
    }

    /// Stores the certificate of a [`Redemption::First`].
    pub(crate) fn complete(&mut self, claim: Claim<'_>, certificate: &str) {
        if let Some(token) = self.tokens.get_mut(claim.token) {
            token.state = State::Redeemed {
                key: claim.key.to_owned(),
                certificate: certificate.to_owned(),
            };
        }
    }

    /// Burns every token of a cluster, because it is revoked or removed.
    pub(crate) fn burn(&mut self, cluster: &str) {
        for token in self.tokens.values_mut() {
            if token.cluster == cluster {
                token.state = State::Burned;
            }
        }
    }

    /// Whether a claim with this token could change anything.
    pub(crate) fn contains(&self, token: &TokenHash) -> bool {
        self.tokens.contains_key(token)
    }

    fn remove_expired(&mut self, now: Timestamp) {
        self.tokens
            .retain(|_, token| now.duration_since(token.expires_at.0) < RETENTION);
    }
}

#[cfg(test)]
mod tests;
