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

#[cfg(test)]
mod tests {
    use authority::{Authority, Profile, SigningRequest, Usage};
    use jiff::SignedDuration;
    use serde_json::json;

    use super::*;

    const CLUSTER: &str = "prod-eu";
    const LIFE: SignedDuration = SignedDuration::from_hours(24);

    fn secret() -> Secret {
        let object = json!({ "metadata": { "resourceVersion": "1" } });
        Secret::parse(object).unwrap()
    }

    /// A certificate that is issued at the beginning of the epoch.
    fn issue(name: &str, key: &PrivateKey) -> Credential {
        let now = Timestamp::UNIX_EPOCH;
        let authority = Authority::generate("hub", LIFE * 10, now).unwrap();
        let profile = Profile {
            common_name: name.to_owned(),
            names: Vec::new(),
            usage: Usage::Client,
            lifetime: LIFE,
        };
        let request = key.request_pem(name).unwrap();
        let request = SigningRequest::from_pem(&request).unwrap();
        let issued = authority.sign(&request, &profile, now).unwrap();
        Credential {
            certificate: issued.certificate_pem,
            key: key.to_pem().to_owned(),
            authorities: authority.certificate_pem().to_owned(),
        }
    }

    fn registered(name: &str, token: &str) -> Secret {
        let mut secret = secret();
        let credential = issue(name, &PrivateKey::generate().unwrap());
        set_registered(&mut secret, &credential, &TokenDigest::of(token));
        secret
    }

    fn check(
        secret: &Secret,
        token: Option<&str>,
        refused: Option<&str>,
        hour: i64,
        expected: &str,
    ) {
        let token = token.map(TokenDigest::of);
        let now = Timestamp::UNIX_EPOCH + SignedDuration::from_hours(hour);
        let next = match next(secret, CLUSTER, token.as_ref(), refused, now) {
            Next::Connect => "connect".to_owned(),
            Next::Register(reason) => format!("register: {reason}"),
            Next::WaitForToken(reason) => format!("wait: {reason}"),
        };
        assert!(next.starts_with(expected), "{next} instead of {expected}");
    }

    #[test]
    fn an_agent_registers_once() {
        let missing = "this agent has no certificate yet";
        check(&secret(), None, None, 1, &format!("wait: {missing}"));
        check(
            &secret(),
            Some("a"),
            None,
            1,
            &format!("register: {missing}"),
        );
        let registered = registered(CLUSTER, "a");
        check(&registered, Some("a"), None, 1, "connect");
        check(&registered, None, None, 1, "connect");
        // A new token is for the time when the certificate is of no use.
        check(&registered, Some("b"), None, 1, "connect");
    }

    #[test]
    fn an_agent_with_a_useless_certificate_registers_with_a_new_token_only() {
        let registered = registered(CLUSTER, "a");
        let expired = "the agent's certificate expired at 1970-01-02T";
        check(
            &registered,
            Some("a"),
            None,
            25,
            &format!("wait: {expired}"),
        );
        check(&registered, None, None, 25, &format!("wait: {expired}"));
        check(
            &registered,
            Some("b"),
            None,
            25,
            &format!("register: {expired}"),
        );
        let refused = Some("the certificate is revoked");
        // The cluster may be added again.
        check(&registered, Some("a"), refused, 1, "connect");
        check(&registered, None, refused, 1, "connect");
        let again = "register: the certificate is revoked";
        check(&registered, Some("b"), refused, 1, again);
    }

    #[test]
    fn a_damaged_or_foreign_certificate_is_replaced() {
        let foreign = registered("other", "a");
        let other = "register: the stored certificate is for the cluster `other`";
        check(&foreign, Some("b"), None, 1, other);
        let mut damaged = registered(CLUSTER, "a");
        damaged.set(CERTIFICATE, "damaged");
        let unusable = "register: the stored certificate cannot be used";
        check(&damaged, Some("b"), None, 1, unusable);
        let mut mixed = registered(CLUSTER, "a");
        mixed.set(KEY, PrivateKey::generate().unwrap().to_pem());
        let mixed_up = format!("{unusable}: its key is another one");
        check(&mixed, Some("b"), None, 1, &mixed_up);
    }

    #[test]
    fn a_pending_key_is_used_again_until_the_registration_succeeds() {
        let mut secret = secret();
        assert!(pending_key(&secret).is_none());
        let key = PrivateKey::generate().unwrap();
        set_pending_key(&mut secret, &key);
        assert_eq!(pending_key(&secret).unwrap().key(), key.key());
        set_registered(&mut secret, &issue(CLUSTER, &key), &TokenDigest::of("a"));
        assert!(pending_key(&secret).is_none());
        assert!(credential(&secret).is_some());
    }

    #[test]
    fn certificates_of_others_are_not_taken_over() {
        let key = PrivateKey::generate().unwrap();
        let facts = Facts::from_pem(&issue(CLUSTER, &key).certificate).unwrap();
        let hour = |hour| Timestamp::UNIX_EPOCH + SignedDuration::from_hours(hour);
        let other = PrivateKey::generate().unwrap().key();
        let key = key.key();
        let unfit = |key, cluster, now| unfit(&facts, key, cluster, now).unwrap_or_default();
        assert_eq!(unfit(&key, CLUSTER, hour(1)), "");
        assert_eq!(unfit(&other, CLUSTER, hour(1)), "it is for another key");
        let reason = unfit(&key, "other", hour(1));
        assert_eq!(reason, "it is for the cluster `prod-eu`");
        assert!(unfit(&key, CLUSTER, hour(25)).starts_with("it expired at"));
    }

    #[test]
    fn no_debug_output_has_a_key() {
        let credential = issue(CLUSTER, &PrivateKey::generate().unwrap());
        assert_eq!(format!("{credential:?}"), "Credential");
    }
}
