//! Tokens of an account in the member. The first one is the administrator's; then each is exchanged for the next one.
//!
//! New tokens are kept in a Secret that no chart owns. So `helm upgrade` may bring an old token back into its own Secret,
//! and nothing happens: of two tokens the one that lives longer counts.

use std::time::Duration;

use jiff::{SignedDuration, Timestamp};
use k8s_openapi::ByteString;
use k8s_openapi::api::authentication::v1::{TokenRequest, TokenRequestSpec};
use k8s_openapi::api::core::v1::{Secret, ServiceAccount};
use kube::api::PostParams;
use kube::{Api, Client};
use secrecy::{ExposeSecret as _, SecretString};

use super::claims::Claims;
use super::{NoCredential, value};
use crate::error::{Doing as _, Error, Result};
use crate::multicluster::clusters::Member;

/// The Secret for tokens that we asked for. Each member has three keys in it.
pub(crate) const TOKENS: &str = "mirrord-operator-cluster-tokens";
/// Who the chart makes the Primary in a member.
const ACCOUNT: &str = "mirrord-operator-envoy";
const KEY: &str = "bearerToken";
/// Kubernetes gives no shorter one.
const SHORTEST: Duration = Duration::from_secs(600);
/// How far the clocks of two clusters may be apart.
const SKEW: SignedDuration = SignedDuration::from_mins(10);
/// A renewal that did not happen by then has failed.
const LATE: SignedDuration = SignedDuration::from_mins(2);

/// A token, and what is known about it.
#[derive(Clone)]
pub(crate) struct Token {
    pub(crate) text: SecretString,
    pub(crate) claims: Claims,
    /// When we got it, by our own clock. The member's may be another.
    pub(crate) received: Option<Timestamp>,
}

impl Token {
    fn new(text: Vec<u8>, received: Option<Timestamp>) -> Option<Self> {
        let text = String::from_utf8(text).ok()?.trim().to_owned();
        // What cannot be in a header cannot be a token.
        let is_plausible = !text.is_empty() && text.bytes().all(|byte| byte.is_ascii_graphic());
        is_plausible.then(|| Self {
            claims: Claims::read(&text).unwrap_or_default(),
            text: SecretString::from(text),
            received,
        })
    }

    /// The same token, which ends at this time at the latest.
    fn ending_by(mut self, expires: Timestamp) -> Self {
        let own = self.claims.expires;
        self.claims.expires = Some(own.map_or(expires, |own| own.min(expires)));
        self
    }

    fn life(&self) -> Option<SignedDuration> {
        let life = self.claims.issued?.duration_until(self.claims.expires?);
        (life > SignedDuration::ZERO).then_some(life)
    }

    /// When it ends, by our own clock as far as we know it.
    pub(crate) fn ends(&self) -> Option<Timestamp> {
        match (self.received, self.life()) {
            (Some(received), Some(life)) => received.checked_add(life).ok(),
            _ => self.claims.expires,
        }
    }

    /// When to ask for the next one: when three fifths of its life are over. Then there is time for many attempts.
    pub(crate) fn renewal(&self) -> Option<Timestamp> {
        let begins = self.received.or(self.claims.issued)?;
        begins.checked_add(self.life()? * 3 / 5).ok()
    }

    /// What to ask for: as long a life as this one was given.
    pub(crate) fn asked_life(&self) -> Duration {
        let life = self
            .life()
            .and_then(|life| Duration::try_from(life).ok())
            .unwrap_or_default();
        life.max(SHORTEST)
    }
}

/// The token that counts, of the administrator's Secret and of ours. One of ours that the member has refused does not, if
/// there is another: its account may have been made anew.
pub(crate) fn choose(
    member: &Member,
    given: Option<&Secret>,
    kept: Option<&Secret>,
    refused: Option<&SecretString>,
    now: Timestamp,
) -> Result<Token, NoCredential> {
    let given = match given {
        Some(secret) => value(secret, KEY).and_then(|text| {
            Token::new(text, None).ok_or(NoCredential::Unreadable {
                secret: member.secret(),
                key: KEY,
                why: "is no token",
            })
        }),
        None => Err(NoCredential::NoSecret(member.secret())),
    };
    // A Secret that an administrator takes away is a member that is to be left alone.
    let mut given = given?;
    if given.claims.issued > Some(now) {
        // By the member's clock, which is ahead of ours. It would be renewed too late.
        given.received = Some(now);
    }
    let is_refused = |token: &Token| {
        refused.is_some_and(|refused| refused.expose_secret() == token.text.expose_secret())
    };
    // The member's clock may be another, and decides. So nothing is given up that may still be good.
    let over = |token: &Token| token.ends().filter(|end| end.duration_until(now) > SKEW);
    let kept = kept.and_then(|kept| kept_token(kept, &member.name));
    let token = match kept.filter(|kept| later(kept, &given)) {
        // A refusal may pass. Where the other one is over for certain, it is hoped for.
        Some(kept) if !is_refused(&kept) || over(&given).is_some() => kept,
        _ => given,
    };
    match over(&token) {
        Some(end) => Err(NoCredential::Expired(end.to_string())),
        None => Ok(token),
    }
}

/// What people should know about a token. `failure` is what the last attempt to renew it met, if this replica made one.
pub(crate) fn warning(token: &Token, failure: Option<&str>, now: Timestamp) -> Option<String> {
    let Some((renewal, end)) = token.renewal().zip(token.ends()) else {
        let why = "the token does not say how long it lives, so it is never renewed";
        return Some(why.to_owned());
    };
    let is_late = renewal.duration_until(now) > LATE;
    // It is of the token before, where nothing is to be renewed now: another replica did it.
    let failure = failure.filter(|_| renewal <= now);
    match failure {
        Some(failure) => Some(format!(
            "the token ends at {end} and is not renewed: {failure}"
        )),
        None if is_late => Some(format!(
            "the token ends at {end} and is not renewed; the leader's log says why"
        )),
        None => None,
    }
}

/// A token of another account is not the next one of this: the administrator has decided otherwise.
fn later(kept: &Token, given: &Token) -> bool {
    kept.claims.account == given.claims.account && kept.claims.expires > given.claims.expires
}

fn kept_token(kept: &Secret, member: &str) -> Option<Token> {
    let data = kept.data.as_ref()?;
    let time = |key: String| {
        let time = data.get(&key)?;
        std::str::from_utf8(&time.0).ok()?.parse().ok()
    };
    let token = Token::new(data.get(member)?.0.clone(), time(received_key(member)))?;
    Some(match time(expires_key(member)) {
        Some(expires) => token.ending_by(expires),
        None => token,
    })
}

fn received_key(member: &str) -> String {
    format!("{member}.received")
}

/// When the member said that the token ends, which may be sooner than the token says.
fn expires_key(member: &str) -> String {
    format!("{member}.expires")
}

/// Asks the member for the next token, with the current one. A token that does not say whose it is, is taken for the
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
            expiration_seconds: i64::try_from(token.asked_life().as_secs()).ok(),
            ..TokenRequestSpec::default()
        },
        ..TokenRequest::default()
    };
    let doing = format!("make a token for {namespace}/{name}");
    let answer = accounts
        .create_token_request(&name, &PostParams::default(), &request)
        .await
        .doing(doing.as_str())?;
    let nothing = || Error::NoToken { doing };
    let Some(status) = answer.status else {
        return Err(nothing());
    };
    let expires = status.expiration_timestamp.0;
    let next = Token::new(status.token.into_bytes(), Some(now));
    // The member may give less than was asked for. What it says outside of the token holds as well.
    Ok(next.ok_or_else(nothing)?.ending_by(expires))
}

/// The Secret with the member's new token in it; those of other members are left alone.
pub(crate) fn keep(mut kept: Secret, member: &str, token: &Token) -> Secret {
    let data = kept.data.get_or_insert_default();
    let text = token.text.expose_secret().as_bytes().to_vec();
    data.insert(member.to_owned(), ByteString(text));
    let times = [
        (received_key(member), token.received),
        (expires_key(member), token.claims.expires),
    ];
    for (key, time) in times {
        match time {
            Some(time) => data.insert(key, ByteString(time.to_string().into_bytes())),
            // That of the token before says nothing about this one.
            None => data.remove(&key),
        };
    }
    kept
}

/// The Secret without what is of nobody in `members`, if there is such a thing. A member's name has no dot.
pub(crate) fn forget(mut kept: Secret, members: &[&str]) -> Option<Secret> {
    let data = kept.data.as_mut()?;
    let before = data.len();
    data.retain(|key, _| {
        let member = key
            .split_once('.')
            .map_or(key.as_str(), |(member, _)| member);
        members.contains(&member)
    });
    (data.len() < before).then_some(kept)
}
