//! Keeps a client for a member: it follows the member's credentials and checks the member's health.

use std::sync::Arc;
use std::time::Duration;

use api::multicluster::{PARENT_LABEL, PARENT_UID_LABEL};
use api::{MirrordClusterSession, MirrordClusterSessionSpec, MirrordOperator};
use error_chain::error_chain;
use futures_util::{Stream, StreamExt as _};
use http::Request;
use jiff::Timestamp;
use k8s_openapi::api::core::v1::Secret;
use kube::api::PostParams;
use kube::runtime::WatchStreamExt as _;
use kube::runtime::watcher::watch_object;
use kube::{Api, Client};
use secrecy::SecretString;
use tokio::sync::watch;
use tokio::time::{sleep, timeout};

use super::auth::bearer::{self, Token};
use super::auth::eks::EksTokens;
use super::auth::{self, Credential, NoCredential, mtls, token_secrets, tunnel};
use super::bounds;
use super::clusters::{AuthMethod, Member};

/// The interval of health checks. Together with their timeout, a network outage is detected in less than 30 s.
const HEALTH_CHECK_INTERVAL: Duration = Duration::from_secs(10);
const HEALTH_CHECK_TIMEOUT: Duration = Duration::from_secs(10);
const RETRY_DELAY: Duration = Duration::from_secs(5);
/// How many failed checks in succession close the connections to a member.
const MIN_FAILED_CHECKS: u32 = 2;
const UNAUTHORIZED: u16 = 401;
const CONFLICT: u16 = 409;
/// Statuses from this one on are failures of the server.
const SERVER_ERROR: u16 = 500;
const TOO_MANY_REQUESTS: u16 = 429;

/// A client for a member's API server, and its credential. It is only kept in memory.
#[derive(Clone, Default)]
pub(crate) struct MemberAccess {
    /// Absent without a usable credential.
    pub(crate) client: Option<Client>,
    /// Why there is no client.
    pub(crate) error: Option<NoCredential>,
    /// The token of the client, if it has one that can be renewed.
    pub(crate) token: Option<Token>,
    /// When the client's certificate expires, if it has one.
    pub(crate) certificate_expires: Option<Timestamp>,
}

/// The health of a member.
#[derive(Clone, Default)]
pub(crate) struct MemberHealth {
    pub(crate) check: Option<HealthCheck>,
    /// The error of the last attempt to renew the token.
    pub(crate) renewal_failure: Option<String>,
    /// A token that the member has rejected.
    pub(super) rejected: Option<SecretString>,
    /// Why the member, although healthy, would refuse a session of this operator.
    pub(crate) refusal: Option<String>,
    /// How many checks in succession found the member unreachable, or rejected by it.
    pub(crate) outages: u32,
}

impl MemberHealth {
    /// Records a check: the operator's status, or the error and the status of the response if there was one.
    fn record(
        &mut self,
        at: Timestamp,
        outcome: Result<Box<MirrordOperator>, String>,
        code: Option<u16>,
    ) {
        self.outages = match outcome {
            Err(_) if !is_busy(code) => self.outages.saturating_add(1),
            _ => 0,
        };
        self.check = Some(HealthCheck { at, outcome });
    }
}

/// The result of the last health check.
#[derive(Clone, Debug)]
pub(crate) struct HealthCheck {
    pub(crate) at: Timestamp,
    pub(crate) outcome: Result<Box<MirrordOperator>, String>,
}

/// Detects that a member has become unreachable. One failed check is not enough to close connections that work.
pub(crate) struct OutageDetector {
    /// The failed checks that were about earlier connections.
    ignored: u32,
}

impl OutageDetector {
    pub(crate) fn since(health: &MemberHealth) -> Self {
        Self {
            ignored: health.outages,
        }
    }

    /// The reason, after enough failed checks.
    pub(crate) fn detect(&mut self, health: &MemberHealth) -> Option<String> {
        self.ignored = self.ignored.min(health.outages);
        if health.outages - self.ignored < MIN_FAILED_CHECKS {
            return None;
        }
        health.check.as_ref()?.outcome.as_ref().err().cloned()
    }
}

/// The client of one member, which follows its credentials and its health.
pub(crate) struct MemberClient {
    pub(crate) member: Member,
    /// Written by the task that follows the credential.
    pub(crate) access: watch::Sender<MemberAccess>,
    /// Written by the health checks and by the renewal of tokens.
    pub(crate) health: watch::Sender<MemberHealth>,
}

impl MemberClient {
    pub(crate) fn new(member: Member) -> Self {
        Self {
            member,
            access: watch::Sender::default(),
            health: watch::Sender::default(),
        }
    }

    /// Follows the credential and checks the health. Never returns.
    pub(crate) async fn run(&self, secrets: Api<Secret>, eks: Option<Arc<EksTokens>>) {
        tokio::join!(
            self.follow_credential(secrets, eks),
            self.run_health_checks()
        );
    }

    async fn follow_credential(&self, secrets: Api<Secret>, eks: Option<Arc<EksTokens>>) {
        match &self.member.method {
            AuthMethod::Eks { region } => match eks {
                Some(eks) => self.refresh_eks_token(&eks, region).await,
                // Kubernetes sets the role when it creates the pod, so it cannot change.
                None => self.replace_credential(Err(NoCredential::NoRole), |_| {}),
            },
            AuthMethod::BearerToken => self.follow_token(secrets).await,
            AuthMethod::Mtls => {
                let missing = || NoCredential::NoSecret(self.member.secret());
                self.follow_secret(secrets, |secret| {
                    let (credential, expires) = mtls::choose(secret.ok_or_else(missing)?)?;
                    Ok((credential, Some(expires)))
                })
                .await;
            }
            AuthMethod::Tunnel => {
                let choose = |secret: Option<&Secret>| tunnel::choose(&self.member.name, secret);
                self.follow_secret(secrets, choose).await;
            }
        }
    }

    async fn refresh_eks_token(&self, eks: &EksTokens, region: &str) {
        loop {
            let token = eks.token(region, &self.member.name, Timestamp::now()).await;
            let delay = token.as_ref().map_or(RETRY_DELAY, |(_, delay)| *delay);
            self.replace_credential(token.map(|(token, _)| token), |_| {});
            sleep(delay).await;
        }
    }

    /// Uses what the member's Secret has, whenever it changes.
    async fn follow_secret(
        &self,
        secrets: Api<Secret>,
        choose: impl Fn(Option<&Secret>) -> Result<(Credential, Option<Timestamp>), NoCredential>,
    ) {
        let mut configured = std::pin::pin!(watch_secret(secrets, &self.member.secret()));
        let mut was_read = false;
        while let Some(secret) = configured.next().await {
            let secret = match secret {
                Ok(secret) => secret,
                Err(error) => {
                    self.record_read_error(error, was_read);
                    continue;
                }
            };
            was_read = true;
            match choose(secret.as_ref()) {
                Ok((credential, expires)) => self.replace_credential(Ok(credential), |access| {
                    access.certificate_expires = expires;
                }),
                Err(error) => self.replace_credential(Err(error), |_| {}),
            }
        }
    }

    async fn follow_token(&self, secrets: Api<Secret>) {
        let mut configured = std::pin::pin!(watch_secret(secrets.clone(), &self.member.secret()));
        let mut renewed = std::pin::pin!(watch_secret(
            secrets,
            &token_secrets::name(&self.member.name)
        ));
        let mut rejections = self.health.subscribe();
        let (mut configured_secret, mut renewed_secret) = (None, None);
        loop {
            let rejected = self.health.borrow().rejected.clone();
            tokio::select! {
                Some(secret) = configured.next() => match secret {
                    Ok(secret) => configured_secret = Some(secret),
                    Err(error) => self.record_read_error(error, configured_secret.is_some()),
                },
                Some(secret) = renewed.next() => match secret {
                    Ok(secret) => renewed_secret = Some(secret),
                    Err(error) => self.record_read_error(error, renewed_secret.is_some()),
                },
                Ok(_) = rejections.wait_for(|health| differ(health.rejected.as_ref(), rejected.as_ref())) => {}
            }
            let (Some(configured_secret), Some(renewed_secret)) =
                (&configured_secret, &renewed_secret)
            else {
                continue;
            };
            let rejected = self.health.borrow().rejected.clone();
            let token = bearer::choose(
                &self.member,
                configured_secret.as_ref(),
                renewed_secret.as_ref(),
                rejected.as_ref(),
                Timestamp::now(),
            );
            self.use_token(token);
        }
    }

    /// Replaces the client if the token has changed. Otherwise the client and its connections are kept.
    fn use_token(&self, token: Result<Token, NoCredential>) {
        match token {
            Ok(token) => {
                let current = self
                    .access
                    .borrow()
                    .token
                    .as_ref()
                    .map(|it| it.text.clone());
                if differ(current.as_ref(), Some(&token.text)) {
                    self.replace_credential(Ok(Credential::Token(token.text.clone())), |access| {
                        access.token = Some(token);
                    });
                }
            }
            Err(error) => self.replace_credential(Err(error), |_| {}),
        }
    }

    /// Records why a Secret cannot be read. A credential that was read before stays in use.
    fn record_read_error(&self, error: NoCredential, was_read: bool) {
        let is_recorded = self.access.borrow().error.as_ref() == Some(&error);
        if !was_read && !is_recorded {
            self.replace_credential(Err(error), |_| {});
        }
    }

    /// Replaces the client. Without a credential there is none.
    fn replace_credential(
        &self,
        credential: Result<Credential, NoCredential>,
        annotate: impl FnOnce(&mut MemberAccess),
    ) {
        let member = &self.member;
        let client = credential.and_then(|credential| {
            auth::client(member, &credential)
                .map_err(|error| NoCredential::Unusable(error_chain(&error)))
        });
        let mut access = MemberAccess::default();
        match client {
            Ok(client) => {
                access.client = Some(client);
                annotate(&mut access);
            }
            Err(error) => {
                tracing::warn!(cluster = member.name, error = %error, "member credential unavailable");
                access.error = Some(error);
            }
        }
        self.access.send_replace(access);
    }

    /// Checks the member's health periodically, and at once with a new client.
    async fn run_health_checks(&self) {
        let mut changes = self.access.subscribe();
        let mut was_rejected = false;
        loop {
            let access = changes.borrow_and_update().clone();
            let Some(client) = access.client else {
                if changes.changed().await.is_err() {
                    return;
                }
                continue;
            };
            let (outcome, code) = check_health(&client).await;
            let refusal = match &outcome {
                Ok(operator) => match management_refusal(operator) {
                    Some(refusal) => Some(Some(refusal)),
                    None => check_refusal(&client).await,
                },
                Err(_) => None,
            };
            let previous = self.health.borrow().check.clone();
            if let Err(error) = &outcome
                && previous.is_none_or(|previous| previous.outcome.as_ref().err() != Some(error))
            {
                tracing::warn!(
                    cluster = self.member.name,
                    error,
                    "member health check failed"
                );
            }
            let delay = if outcome.is_ok() {
                HEALTH_CHECK_INTERVAL
            } else {
                RETRY_DELAY
            };
            let is_rejected = code == Some(UNAUTHORIZED);
            let rejected = access.token.filter(|_| is_rejected);
            let at = Timestamp::now();
            self.health.send_modify(|health| {
                health.record(at, outcome, code);
                if let Some(refusal) = refusal {
                    health.refusal = refusal;
                }
                if let Some(rejected) = rejected {
                    health.rejected = Some(rejected.text);
                }
            });
            // A rejected token is replaced by another one, if there is one. If both are rejected, they alternate, so the next
            // check waits for the delay.
            let is_alternating = is_rejected && was_rejected;
            was_rejected = is_rejected;
            tokio::select! {
                () = sleep(delay) => {}
                _ = changes.changed(), if !is_alternating => {}
            }
        }
    }
}

fn differ(one: Option<&SecretString>, other: Option<&SecretString>) -> bool {
    use secrecy::ExposeSecret as _;
    one.map(SecretString::expose_secret) != other.map(SecretString::expose_secret)
}

pub(super) async fn check_health(
    client: &Client,
) -> (Result<Box<MirrordOperator>, String>, Option<u16>) {
    let path = format!(
        "/apis/{}/mirrordoperators/{}",
        api::GROUP_VERSION,
        api::operator::NAME
    );
    let request = match Request::get(path).body(Vec::new()) {
        Ok(request) => request,
        Err(error) => return (Err(error.to_string()), None),
    };
    match timeout(
        HEALTH_CHECK_TIMEOUT,
        client.request::<MirrordOperator>(request),
    )
    .await
    {
        Ok(Ok(operator)) => (Ok(Box::new(operator)), None),
        Ok(Err(kube::Error::Api(status))) => {
            let text = match status.code {
                UNAUTHORIZED => "the member rejects the operator's credential".to_owned(),
                404 => "the member has no operator".to_owned(),
                _ => bounds::text(&status.message),
            };
            (Err(text), Some(status.code))
        }
        Ok(Err(error)) => (Err(bounds::text(&error_chain(&error))), None),
        Err(_) => {
            let text = format!(
                "the member did not respond within {} s",
                HEALTH_CHECK_TIMEOUT.as_secs()
            );
            (Err(text), None)
        }
    }
}

/// Whether the API server of the member responds, and only has too much to do.
fn is_busy(code: Option<u16>) -> bool {
    code.is_some_and(|code| code == TOO_MANY_REQUESTS || code >= SERVER_ERROR)
}

/// Why a member has no sessions at all, if it is the management-only Primary of others.
fn management_refusal(operator: &MirrordOperator) -> Option<String> {
    let roles = operator.spec.multi_cluster.as_ref();
    roles.filter(|roles| roles.management_only).map(|_| {
        "the member only coordinates others and has no sessions itself (`operator.multiCluster.managementOnly` of its chart); \
         remove it from the clusters"
            .to_owned()
    })
}

/// Why the member refuses sessions of this operator, if it does: an account may read the status of the operator and have no
/// right to create sessions. The request creates nothing. `None` if that is unknown.
async fn check_refusal(client: &Client) -> Option<Option<String>> {
    let children: Api<MirrordClusterSession> = Api::all(client.clone());
    let parameters = PostParams {
        dry_run: true,
        ..PostParams::default()
    };
    let child = probe_session();
    let created = children.create(&parameters, &child);
    match timeout(HEALTH_CHECK_TIMEOUT, created).await {
        Ok(Ok(_)) => Some(None),
        Ok(Err(kube::Error::Api(status))) if status.code == CONFLICT => Some(None),
        Ok(Err(kube::Error::Api(status))) if !is_busy(Some(status.code)) => Some(Some(format!(
            "the member refuses sessions of this operator: {}; its account there needs the ClusterRole \
             mirrord-operator-envoy-remote, and the name or the group that the member's chart expects",
            bounds::text(&status.message)
        ))),
        _ => None,
    }
}

/// A session that is never created.
fn probe_session() -> MirrordClusterSession {
    let parent = "mc-0000000000000000";
    let spec = MirrordClusterSessionSpec {
        multi_cluster_parent_name: Some(parent.to_owned()),
        ..MirrordClusterSessionSpec::default()
    };
    let mut child = MirrordClusterSession::new(&format!("{parent}-probe"), spec);
    let labels = [(PARENT_LABEL, parent), (PARENT_UID_LABEL, "probe")];
    let labels = labels.map(|(key, value)| (key.to_owned(), value.to_owned()));
    child.metadata.labels = Some(labels.into());
    child
}

/// Watches one Secret: an item for each change and for each failure. The watch is restricted to its name, so that no
/// permission for other Secrets is needed.
fn watch_secret(
    secrets: Api<Secret>,
    name: &str,
) -> impl Stream<Item = Result<Option<Secret>, NoCredential>> + use<> {
    let label = name.to_owned();
    watch_object(secrets, name)
        .default_backoff()
        .map(move |event| {
            event.map_err(|error| {
                let (secret, why) = (label.clone(), error_chain(&error));
                tracing::warn!(secret, error = why, "watch failed");
                NoCredential::NotRead { secret, why }
            })
        })
}

#[cfg(test)]
mod tests;
