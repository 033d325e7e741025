//! Keeps a client for a member: by what its Secrets hold, from one moment to the next, and whether it answers.

use std::sync::Arc;
use std::time::Duration;

use api::MirrordOperator;
use futures_util::{Stream, StreamExt as _};
use http::Request;
use jiff::Timestamp;
use k8s_openapi::api::core::v1::Secret;
use kube::runtime::WatchStreamExt as _;
use kube::runtime::watcher::watch_object;
use kube::{Api, Client};
use secrecy::SecretString;
use tokio::sync::watch;
use tokio::time::{sleep, timeout};

use super::auth::bearer::{self, TOKENS, Token};
use super::auth::eks::EksTokens;
use super::auth::{self, Credential, NoCredential, mtls};
use super::clusters::{Member, Method};
use crate::error::chain;

/// How often a member is asked how it is. With the time that an answer may take, a network that is cut shows in less than
/// 30 s.
const BETWEEN_CHECKS: Duration = Duration::from_secs(10);
const AFTER_A_FAILURE: Duration = Duration::from_secs(5);
const PATIENCE: Duration = Duration::from_secs(10);
const UNAUTHORIZED: u16 = 401;

/// By what a member is reached. Nothing of it is stored here.
#[derive(Clone, Default)]
pub(crate) struct Access {
    /// Absent as long as there is no credential.
    pub(crate) client: Option<Client>,
    /// Why there is no client.
    pub(crate) trouble: Option<NoCredential>,
    /// The token of the client, if it has one that can be renewed.
    pub(crate) token: Option<Token>,
    /// When the client's certificate ends, if it has one.
    pub(crate) certificate_ends: Option<Timestamp>,
}

/// How a member is.
#[derive(Clone, Default)]
pub(crate) struct Health {
    pub(crate) check: Option<Check>,
    /// What the last attempt to renew the token met.
    pub(crate) renewal_failure: Option<String>,
    /// A token that the member does not take.
    pub(super) refused: Option<SecretString>,
}

/// What a member said when it was last asked.
#[derive(Clone, Debug)]
pub(crate) struct Check {
    pub(crate) at: Timestamp,
    pub(crate) outcome: Result<Box<MirrordOperator>, String>,
}

pub(crate) struct MemberKeeper {
    pub(crate) member: Member,
    /// From whoever keeps the credential to everybody.
    pub(crate) access: watch::Sender<Access>,
    /// From whoever asks the member to everybody.
    pub(crate) health: watch::Sender<Health>,
}

impl MemberKeeper {
    pub(crate) fn new(member: Member) -> Self {
        Self {
            member,
            access: watch::Sender::default(),
            health: watch::Sender::default(),
        }
    }

    /// Looks after the member for ever.
    pub(crate) async fn keep(&self, secrets: Api<Secret>, eks: Option<Arc<EksTokens>>) {
        tokio::join!(self.keep_client(secrets, eks), self.keep_asking());
    }

    async fn keep_client(&self, secrets: Api<Secret>, eks: Option<Arc<EksTokens>>) {
        match &self.member.method {
            Method::Eks { region } => {
                if let Some(eks) = eks {
                    self.keep_making_tokens(&eks, region).await;
                }
            }
            Method::BearerToken => self.keep_token(secrets).await,
            Method::Mtls => self.keep_certificate(secrets).await,
        }
    }

    async fn keep_making_tokens(&self, eks: &EksTokens, region: &str) {
        loop {
            let made = eks.token(region, &self.member.name, Timestamp::now()).await;
            let pause = made.as_ref().map_or(AFTER_A_FAILURE, |(_, pause)| *pause);
            self.replace(made.map(|(token, _)| token), |_| {});
            sleep(pause).await;
        }
    }

    async fn keep_certificate(&self, secrets: Api<Secret>) {
        let mut given = std::pin::pin!(follow(secrets, &self.member.secret()));
        let mut is_known = false;
        while let Some(secret) = given.next().await {
            let secret = match secret {
                Ok(secret) => secret,
                Err(trouble) => {
                    self.note_unread(trouble, is_known);
                    continue;
                }
            };
            is_known = true;
            let missing = || NoCredential::NoSecret(self.member.secret());
            match secret
                .ok_or_else(missing)
                .and_then(|secret| mtls::choose(&secret))
            {
                Ok((credential, ends)) => self.replace(Ok(credential), |access| {
                    access.certificate_ends = Some(ends);
                }),
                Err(trouble) => self.replace(Err(trouble), |_| {}),
            }
        }
    }

    async fn keep_token(&self, secrets: Api<Secret>) {
        let mut given = std::pin::pin!(follow(secrets.clone(), &self.member.secret()));
        let mut kept = std::pin::pin!(follow(secrets, TOKENS));
        let mut refusals = self.health.subscribe();
        let (mut from_given, mut from_kept) = (None, None);
        loop {
            let refused = self.health.borrow().refused.clone();
            tokio::select! {
                Some(secret) = given.next() => match secret {
                    Ok(secret) => from_given = Some(secret),
                    Err(trouble) => self.note_unread(trouble, from_given.is_some()),
                },
                Some(secret) = kept.next() => match secret {
                    Ok(secret) => from_kept = Some(secret),
                    Err(trouble) => self.note_unread(trouble, from_kept.is_some()),
                },
                Ok(_) = refusals.wait_for(|health| is_other(health.refused.as_ref(), refused.as_ref())) => {}
            }
            let (Some(from_given), Some(from_kept)) = (&from_given, &from_kept) else {
                continue;
            };
            let refused = self.health.borrow().refused.clone();
            let token = bearer::choose(
                &self.member,
                from_given.as_ref(),
                from_kept.as_ref(),
                refused.as_ref(),
                Timestamp::now(),
            );
            self.take(token);
        }
    }

    /// All members' tokens are in one Secret, which changes with each of them. Whose own is the same, keeps its client and
    /// what goes on with it.
    fn take(&self, token: Result<Token, NoCredential>) {
        match token {
            Ok(token) => {
                let current = self
                    .access
                    .borrow()
                    .token
                    .as_ref()
                    .map(|it| it.text.clone());
                if is_other(current.as_ref(), Some(&token.text)) {
                    self.replace(Ok(Credential::Token(token.text.clone())), |access| {
                        access.token = Some(token);
                    });
                }
            }
            Err(trouble) => self.replace(Err(trouble), |_| {}),
        }
    }

    /// What was read before holds. Where nothing was, this is why the member is not asked.
    fn note_unread(&self, trouble: NoCredential, is_known: bool) {
        let is_told = self.access.borrow().trouble.as_ref() == Some(&trouble);
        if !is_known && !is_told {
            self.replace(Err(trouble), |_| {});
        }
    }

    /// Another credential, or none.
    fn replace(
        &self,
        credential: Result<Credential, NoCredential>,
        note: impl FnOnce(&mut Access),
    ) {
        let member = &self.member;
        let made = credential.and_then(|credential| {
            auth::client(member, &credential).map_err(|error| NoCredential::Unusable(chain(&error)))
        });
        let mut access = Access::default();
        match made {
            Ok(client) => {
                access.client = Some(client);
                note(&mut access);
            }
            Err(trouble) => {
                tracing::warn!(cluster = member.name, error = %trouble, "a member has no credential");
                access.trouble = Some(trouble);
            }
        }
        self.access.send_replace(access);
    }

    /// Asks the member how it is, again and again, and at once when there is another client.
    async fn keep_asking(&self) {
        let mut changes = self.access.subscribe();
        let mut was_refused = false;
        loop {
            let access = changes.borrow_and_update().clone();
            let Some(client) = access.client else {
                if changes.changed().await.is_err() {
                    return;
                }
                continue;
            };
            let (outcome, code) = ask(&client).await;
            let before = self.health.borrow().check.clone();
            if let Err(error) = &outcome
                && before.is_none_or(|before| before.outcome.as_ref().err() != Some(error))
            {
                tracing::warn!(
                    cluster = self.member.name,
                    error,
                    "a member does not answer"
                );
            }
            let pause = if outcome.is_ok() {
                BETWEEN_CHECKS
            } else {
                AFTER_A_FAILURE
            };
            let is_refused = code == Some(UNAUTHORIZED);
            let refused = access.token.filter(|_| is_refused);
            let at = Timestamp::now();
            self.health.send_modify(|health| {
                health.check = Some(Check { at, outcome });
                if let Some(refused) = refused {
                    health.refused = Some(refused.text);
                }
            });
            // A refusal makes another client where there is another token; where both are refused, they take turns.
            let takes_turns = is_refused && was_refused;
            was_refused = is_refused;
            tokio::select! {
                () = sleep(pause) => {}
                _ = changes.changed(), if !takes_turns => {}
            }
        }
    }
}

fn is_other(one: Option<&SecretString>, other: Option<&SecretString>) -> bool {
    use secrecy::ExposeSecret as _;
    one.map(SecretString::expose_secret) != other.map(SecretString::expose_secret)
}

async fn ask(client: &Client) -> (Result<Box<MirrordOperator>, String>, Option<u16>) {
    let path = format!(
        "/apis/{}/mirrordoperators/{}",
        api::GROUP_VERSION,
        api::operator::NAME
    );
    let request = match Request::get(path).body(Vec::new()) {
        Ok(request) => request,
        Err(error) => return (Err(error.to_string()), None),
    };
    match timeout(PATIENCE, client.request::<MirrordOperator>(request)).await {
        Ok(Ok(operator)) => (Ok(Box::new(operator)), None),
        Ok(Err(kube::Error::Api(status))) => {
            let text = match status.code {
                UNAUTHORIZED => "the member does not know the operator's credential".to_owned(),
                404 => "there is no operator in the member".to_owned(),
                _ => status.message.clone(),
            };
            (Err(text), Some(status.code))
        }
        Ok(Err(error)) => (Err(chain(&error)), None),
        Err(_) => {
            let text = format!("the member does not answer within {} s", PATIENCE.as_secs());
            (Err(text), None)
        }
    }
}

/// A Secret, whenever it changes, and why it cannot be followed, whenever that is so. By its name, so that no right is
/// needed on others.
fn follow(
    secrets: Api<Secret>,
    name: &str,
) -> impl Stream<Item = Result<Option<Secret>, NoCredential>> + use<> {
    let label = name.to_owned();
    watch_object(secrets, name)
        .default_backoff()
        .map(move |event| {
            event.map_err(|error| {
                let (secret, why) = (label.clone(), chain(&error));
                tracing::warn!(secret, error = why, "a Secret cannot be followed now");
                NoCredential::NotRead { secret, why }
            })
        })
}

#[cfg(test)]
mod tests;
