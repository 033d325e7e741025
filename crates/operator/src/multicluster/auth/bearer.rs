//! Tokens of a service account in the member. The administrator configures the first one; each token is used to request the
//! next one, of the same lifetime as the first.
//!
//! Renewed tokens are stored in a Secret whose content is not part of the chart ([`super::token_secrets`]). So `helm upgrade` may
//! restore an old token in its own Secret, or remove it, without effect: of two tokens, the one that expires later is used.

use std::time::Duration;

use jiff::{SignedDuration, Timestamp};
use k8s_openapi::ByteString;
use k8s_openapi::api::authentication::v1::{TokenRequest, TokenRequestSpec};
use k8s_openapi::api::core::v1::{Secret, ServiceAccount};
use kube::api::PostParams;
use kube::{Api, Client, ResourceExt as _};
use secrecy::{ExposeSecret as _, SecretString};

use super::claims::Claims;
use super::{NoCredential, value};
use crate::error::{Error, KubeResultExt as _, Result};
use crate::multicluster::clusters::Member;

/// The limit of a token. Those of Kubernetes have about one kilobyte.
const MAX_TOKEN_BYTES: usize = 16 * 1024;
/// The service account that the chart creates in a member for the Primary.
const ACCOUNT: &str = "mirrord-operator-envoy";
const RECEIVED: &str = ".received";
/// The expiry in the member's response, which may be sooner than that in the token.
const EXPIRES: &str = ".expires";
/// The lifetime of the first token, in seconds.
const LIFETIME: &str = ".lifetime";
pub(super) const KEY: &str = "bearerToken";
/// The shortest lifetime that Kubernetes grants.
const MIN_LIFETIME: Duration = Duration::from_secs(600);
/// How much the clocks of two clusters may differ.
const MAX_CLOCK_SKEW: SignedDuration = SignedDuration::from_mins(10);
/// A renewal that is overdue for this time has failed.
const RENEWAL_GRACE: SignedDuration = SignedDuration::from_mins(2);

/// A token and its claims.
#[derive(Clone)]
pub(crate) struct Token {
    pub(crate) text: SecretString,
    pub(crate) claims: Claims,
    /// When the operator received it, by its own clock. The member's clock may differ.
    pub(crate) received: Option<Timestamp>,
    /// The lifetime of the administrator's token, if this one was requested by the operator. The member may have granted less.
    original_lifetime: Option<Duration>,
}

impl Token {
    fn new(text: Vec<u8>, received: Option<Timestamp>) -> Option<Self> {
        // A token may be wrapped, as long lines often are.
        let text = String::from_utf8(text)
            .ok()?
            .trim()
            .replace(['\r', '\n'], "");
        // A token has to be a valid header value.
        let is_plausible = (1..=MAX_TOKEN_BYTES).contains(&text.len())
            && text.bytes().all(|byte| byte.is_ascii_graphic());
        is_plausible.then(|| Self {
            claims: Claims::read(&text).unwrap_or_default(),
            text: SecretString::from(text),
            received,
            original_lifetime: None,
        })
    }

    /// The same token, with an expiry of at most this time.
    fn expiring_by(mut self, expires: Timestamp) -> Self {
        let own = self.claims.expires;
        self.claims.expires = Some(own.map_or(expires, |own| own.min(expires)));
        self
    }

    fn lifetime(&self) -> Option<SignedDuration> {
        let lifetime = self.claims.issued?.duration_until(self.claims.expires?);
        (lifetime > SignedDuration::ZERO).then_some(lifetime)
    }

    /// When the token expires, by the operator's clock if the token was received by it.
    pub(crate) fn expires(&self) -> Option<Timestamp> {
        match (self.received, self.lifetime()) {
            (Some(received), Some(lifetime)) => received.checked_add(lifetime).ok(),
            _ => self.claims.expires,
        }
    }

    /// When to renew the token: after three fifths of its lifetime, which leaves time for many attempts.
    pub(crate) fn renewal(&self) -> Option<Timestamp> {
        let start = self.received.or(self.claims.issued)?;
        start.checked_add(self.lifetime()? * 3 / 5).ok()
    }

    /// The lifetime to request for the next token: that of the first one.
    pub(crate) fn requested_lifetime(&self) -> Duration {
        let own = || Duration::try_from(self.lifetime()?).ok();
        let lifetime = self.original_lifetime.or_else(own);
        lifetime.unwrap_or_default().max(MIN_LIFETIME)
    }
}

/// Chooses between the token of the administrator's Secret and the renewed one. A renewed token that the member has rejected is
/// not used if there is another one: the service account may have been recreated. Without the administrator's Secret, which is
/// needed only for the first token, the renewed one stays in use.
pub(crate) fn choose(
    member: &Member,
    configured: Option<&Secret>,
    renewed: Option<&Secret>,
    rejected: Option<&SecretString>,
    now: Timestamp,
) -> Result<Token, NoCredential> {
    let renewed = renewed.and_then(|secret| renewed_token(secret, &member.name));
    let token = match (configured, renewed) {
        (None, None) => return Err(NoCredential::NoSecret(member.secret())),
        (None, Some(renewed)) => renewed,
        (Some(secret), renewed) => {
            let configured = configured_token(secret, now)?;
            choose_between(configured, renewed, rejected, now)
        }
    };
    match expired(&token, now) {
        Some(expires) => Err(NoCredential::Expired(expires.to_string())),
        None => Ok(token),
    }
}

fn configured_token(secret: &Secret, now: Timestamp) -> Result<Token, NoCredential> {
    let text = value(secret, KEY)?;
    let mut token = Token::new(text, None).ok_or_else(|| NoCredential::Unreadable {
        secret: secret.name_any(),
        key: KEY,
        why: "is no token of at most 16 KiB",
    })?;
    if token.claims.issued > Some(now) {
        // The member's clock is ahead. By its clock, the token would be renewed too late.
        token.received = Some(now);
    }
    Ok(token)
}

fn choose_between(
    configured: Token,
    renewed: Option<Token>,
    rejected: Option<&SecretString>,
    now: Timestamp,
) -> Token {
    let is_rejected = |token: &Token| {
        rejected.is_some_and(|rejected| rejected.expose_secret() == token.text.expose_secret())
    };
    match renewed.filter(|renewed| is_successor(renewed, &configured)) {
        // A rejection may be temporary. If the other token has expired, the rejected one is tried again.
        Some(renewed) if !is_rejected(&renewed) || expired(&configured, now).is_some() => renewed,
        _ => configured,
    }
}

/// When the token has expired, if it has. The member's clock decides and may differ, so a token is used until it has certainly
/// expired.
fn expired(token: &Token, now: Timestamp) -> Option<Timestamp> {
    token
        .expires()
        .filter(|expires| expires.duration_until(now) > MAX_CLOCK_SKEW)
}

/// A warning about a token that is not renewed. `failure` is the error of the last renewal, if this replica tried one.
pub(crate) fn warning(token: &Token, failure: Option<&str>, now: Timestamp) -> Option<String> {
    let Some((renewal, expires)) = token.renewal().zip(token.expires()) else {
        let why = "the token does not contain its lifetime, so it is never renewed";
        return Some(why.to_owned());
    };
    let is_late = renewal.duration_until(now) > RENEWAL_GRACE;
    // Before the renewal is due, the failure is about the previous token, which another replica has renewed.
    let failure = failure.filter(|_| renewal <= now);
    match failure {
        Some(failure) => Some(format!(
            "the token expires at {expires} and is not renewed: {failure}"
        )),
        None if is_late => Some(format!(
            "the token expires at {expires} and is not renewed; see the log of the leader"
        )),
        None => None,
    }
}

/// Whether the renewed token replaces the configured one. With a token of another account, the administrator has replaced the
/// account.
fn is_successor(renewed: &Token, configured: &Token) -> bool {
    renewed.claims.account == configured.claims.account
        && renewed.claims.expires > configured.claims.expires
}

fn renewed_token(secret: &Secret, member: &str) -> Option<Token> {
    let data = secret.data.as_ref()?;
    let text = |suffix| {
        let value = data.get(&format!("{member}{suffix}"))?;
        std::str::from_utf8(&value.0).ok()
    };
    let time = |suffix| text(suffix)?.parse().ok();
    let mut token = Token::new(data.get(member)?.0.clone(), time(RECEIVED))?;
    let lifetime = text(LIFETIME).and_then(|seconds| seconds.parse().ok());
    token.original_lifetime = lifetime.map(Duration::from_secs);
    Some(match time(EXPIRES) {
        Some(expires) => token.expiring_by(expires),
        None => token,
    })
}

/// Requests the next token from the member, with the current one. A token without an account is assumed to belong to the
/// chart's account in this namespace.
pub(crate) async fn renew(
    client: &Client,
    token: &Token,
    namespace: &str,
    now: Timestamp,
) -> Result<Token> {
    let account = token.claims.account.clone();
    let (namespace, name) = account.unwrap_or_else(|| (namespace.to_owned(), ACCOUNT.to_owned()));
    let accounts: Api<ServiceAccount> = Api::namespaced(client.clone(), &namespace);
    let request = TokenRequest {
        spec: TokenRequestSpec {
            expiration_seconds: i64::try_from(token.requested_lifetime().as_secs()).ok(),
            ..TokenRequestSpec::default()
        },
        ..TokenRequest::default()
    };
    let action = format!("create a token for {namespace}/{name}");
    let response = accounts
        .create_token_request(&name, &PostParams::default(), &request)
        .await
        .action(action.as_str())?;
    let no_token = || Error::NoToken { action };
    let Some(status) = response.status else {
        return Err(no_token());
    };
    let expires = status.expiration_timestamp.0;
    let next = Token::new(status.token.into_bytes(), Some(now)).ok_or_else(no_token)?;
    // The member may grant a shorter lifetime than requested. The sooner expiry of token and response is used, and the next
    // request is for the original lifetime again.
    Ok(Token {
        original_lifetime: Some(token.requested_lifetime()),
        ..next.expiring_by(expires)
    })
}

/// Inserts a member's token into its Secret.
pub(crate) fn insert(mut secret: Secret, member: &str, token: &Token) -> Secret {
    let data = secret.data.get_or_insert_default();
    let text = token.text.expose_secret().as_bytes().to_vec();
    data.insert(member.to_owned(), ByteString(text));
    let lifetime = token
        .original_lifetime
        .map(|lifetime| lifetime.as_secs().to_string());
    let known = [
        (RECEIVED, token.received.map(|time| time.to_string())),
        (EXPIRES, token.claims.expires.map(|time| time.to_string())),
        (LIFETIME, lifetime),
    ];
    for (suffix, value) in known {
        let key = format!("{member}{suffix}");
        match value {
            Some(value) => data.insert(key, ByteString(value.into_bytes())),
            // The value of the previous token is invalid for this one.
            None => data.remove(&key),
        };
    }
    secret
}
