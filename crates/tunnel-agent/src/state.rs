//! What the agent keeps in its Secret, and what it has to do next because of it. Pure.
//!
//! | key | content |
//! |---|---|
//! | `tls.crt`, `tls.key` | the agent's certificate and its key |
//! | `ca.crt` | the hub's authorities |
//! | `pending.key` | the key of a registration whose response has not been stored yet. A repeated request with it gets the same response |
//! | `registered-with` | the SHA-256 of the registration token that was used last, in hex |

use authority::{Facts, KeyHash, PrivateKey};
use jiff::Timestamp;
use sha2::{Digest as _, Sha256};

use crate::api_server::secret::Secret;
use crate::error::Result;

const CERTIFICATE: &str = "tls.crt";
const KEY: &str = "tls.key";
const AUTHORITIES: &str = "ca.crt";
const PENDING_KEY: &str = "pending.key";
const REGISTERED_WITH: &str = "registered-with";

/// An agent's certificate, its key, and the hub's authorities, in PEM.
#[derive(Clone, PartialEq, Eq)]
pub(crate) struct Credential {
    pub(crate) certificate: String,
    pub(crate) key: String,
    pub(crate) authorities: String,
}

impl std::fmt::Debug for Credential {
    fn fmt(&self, formatter: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        formatter.write_str("Credential")
    }
}

/// Identifies a registration token without revealing it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct TokenDigest(String);

impl TokenDigest {
    pub(crate) fn of(token: &str) -> Self {
        let digest = Sha256::digest(token.as_bytes());
        Self(digest.iter().map(|byte| format!("{byte:02x}")).collect())
    }
}

/// What the agent does next.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Next {
    Connect,
    Register(Reason),
    /// The agent has to register, and has no token that it has not used yet.
    WaitForToken(Reason),
}

/// Why an agent has to register.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Reason {
    NotRegistered,
    /// The stored certificate or its key is damaged.
    Unusable(String),
    Expired(Timestamp),
    OtherCluster(String),
    /// The hub refuses the certificate, or the agent cannot trust the hub any more.
    Refused(String),
}

impl std::fmt::Display for Reason {
    fn fmt(&self, formatter: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Self::NotRegistered => write!(formatter, "this agent has no certificate yet"),
            Self::Unusable(reason) => {
                write!(formatter, "the stored certificate cannot be used: {reason}")
            }
            Self::Expired(time) => write!(formatter, "the agent's certificate expired at {time}"),
            Self::OtherCluster(name) => write!(
                formatter,
                "the stored certificate is for the cluster `{name}`, which is not this agent's"
            ),
            Self::Refused(reason) => write!(formatter, "{reason}"),
        }
    }
}

/// Reads the certificate, if there is one.
pub(crate) fn credential(secret: &Secret) -> Option<Credential> {
    Some(Credential {
        certificate: secret.text(CERTIFICATE)?.to_owned(),
        key: secret.text(KEY)?.to_owned(),
        authorities: secret.text(AUTHORITIES)?.to_owned(),
    })
}

/// Decides what to do with the state. `refused` is what the hub said of this certificate, if it refuses it.
pub(crate) fn next(
    secret: &Secret,
    cluster: &str,
    token: Option<&TokenDigest>,
    refused: Option<&str>,
    now: Timestamp,
) -> Next {
    let reason = match reason_to_register(credential(secret).as_ref(), cluster, now) {
        Some(reason) => reason,
        None => match refused {
            None => return Next::Connect,
            Some(refusal) => Reason::Refused(refusal.to_owned()),
        },
    };
    let is_new =
        |token: &TokenDigest| secret.text(REGISTERED_WITH).map(str::trim) != Some(token.0.as_str());
    match (token.is_some_and(is_new), &reason) {
        (true, _) => Next::Register(reason),
        // The hub may accept the certificate again, for example after the cluster was added again.
        (false, Reason::Refused(_)) => Next::Connect,
        (false, _) => Next::WaitForToken(reason),
    }
}

fn reason_to_register(
    credential: Option<&Credential>,
    cluster: &str,
    now: Timestamp,
) -> Option<Reason> {
    let Some(credential) = credential else {
        return Some(Reason::NotRegistered);
    };
    let facts = match check(credential) {
        Ok(facts) => facts,
        Err(reason) => return Some(Reason::Unusable(reason)),
    };
    if facts.common_name != cluster {
        return Some(Reason::OtherCluster(facts.common_name));
    }
    facts
        .is_expired(now)
        .then_some(Reason::Expired(facts.not_after))
}

/// The facts of a certificate whose key fits.
pub(crate) fn check(credential: &Credential) -> Result<Facts, String> {
    let facts = Facts::from_pem(&credential.certificate).map_err(|error| error.to_string())?;
    let key = PrivateKey::from_pem(&credential.key).map_err(|error| error.to_string())?;
    match facts.key == key.key() {
        true => Ok(facts),
        false => Err("its key is another one".to_owned()),
    }
}

/// The key for a registration: the one of an earlier attempt, or else a new one, which must be stored before it is used.
pub(crate) fn pending_key(secret: &Secret) -> Option<PrivateKey> {
    PrivateKey::from_pem(secret.text(PENDING_KEY)?).ok()
}

pub(crate) fn set_pending_key(secret: &mut Secret, key: &PrivateKey) {
    secret.set(PENDING_KEY, key.to_pem());
}

/// Stores what a registration has returned. The key is not pending any more.
pub(crate) fn set_registered(secret: &mut Secret, credential: &Credential, token: &TokenDigest) {
    set_credential(secret, credential);
    secret.set(REGISTERED_WITH, &token.0);
    secret.remove(PENDING_KEY);
}

pub(crate) fn set_credential(secret: &mut Secret, credential: &Credential) {
    secret.set(CERTIFICATE, &credential.certificate);
    secret.set(KEY, &credential.key);
    set_authorities(secret, &credential.authorities);
}

pub(crate) fn set_authorities(secret: &mut Secret, authorities: &str) {
    secret.set(AUTHORITIES, authorities);
}

/// Why a certificate that the hub has issued is not for this agent. Checked before the old one is replaced.
pub(crate) fn unfit(facts: &Facts, key: &KeyHash, cluster: &str, now: Timestamp) -> Option<String> {
    if facts.key != *key {
        return Some("it is for another key".to_owned());
    }
    if facts.common_name != cluster {
        return Some(format!("it is for the cluster `{}`", facts.common_name));
    }
    if !facts.is_client {
        return Some("it is not for clients".to_owned());
    }
    if facts.is_expired(now) {
        return Some(format!("it expired at {}", facts.not_after));
    }
    None
}
