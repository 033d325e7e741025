//! The member clusters of a Primary: their clients, their health, and the renewal of their tokens.

pub(crate) mod connect;
mod connection;
pub(crate) mod relay;

use std::sync::Arc;
use std::time::Duration;

use api::operator::{ConnectedCluster, ConnectedOperator};
use error_chain::error_chain;
use futures_util::future::join_all;
use jiff::Timestamp;
use k8s_openapi::api::core::v1::Secret;
use kube::{Api, Client};
use tokio::time::sleep;

use super::auth::bearer::{self, Token};
use super::auth::eks::EksTokens;
use super::auth::identity::WebIdentity;
use super::auth::{mtls, token_secrets};
use super::bounds;
use super::clusters::{AuthMethod, MultiCluster};
use super::member_client::{MemberAccess, MemberClient, MemberHealth};
use crate::background::Background;
use crate::cache::ParentCache;
use crate::error::{Error, Result};
use crate::settings::Settings;

/// The delay after a failed renewal. Renewals begin early enough for many retries.
const RETRY_DELAY: Duration = Duration::from_secs(30);
/// A renewal that is due much later is checked again after this time, in case the clock was changed.
const MAX_SLEEP: Duration = Duration::from_secs(3600);

/// All members of this Primary.
pub(crate) struct MemberClusters {
    pub(crate) clusters: MultiCluster,
    /// The cache of sessions over several clusters.
    pub(crate) sessions: ParentCache,
    /// The client for this cluster.
    client: Client,
    member_clients: Vec<Arc<MemberClient>>,
    eks: Option<Arc<EksTokens>>,
    /// The operator's namespace, which is the default for members.
    namespace: String,
    /// Secrets of that namespace.
    secrets: Api<Secret>,
}

impl MemberClusters {
    /// Returns `None` if the operator is for one cluster.
    pub(crate) fn new(
        client: &Client,
        settings: &Settings,
        background: &Background,
    ) -> Result<Option<Self>> {
        let Some(clusters) = settings.multi_cluster.clone() else {
            return Ok(None);
        };
        let identity = WebIdentity::from_environment(|name| std::env::var(name).ok());
        let in_eks = clusters
            .members
            .iter()
            .find(|member| matches!(member.method, AuthMethod::Eks { .. }));
        if let (Some(member), None) = (in_eks, &identity) {
            return Err(Error::NoRole {
                cluster: member.name.clone(),
            });
        }
        let member_clients = clusters.members.iter().cloned();
        Ok(Some(Self {
            member_clients: member_clients
                .map(MemberClient::new)
                .map(Arc::new)
                .collect(),
            eks: identity.map(EksTokens::new).map(Arc::new),
            namespace: settings.namespace.clone(),
            secrets: Api::namespaced(client.clone(), &settings.namespace),
            sessions: ParentCache::start(client.clone(), background, "parents"),
            client: client.clone(),
            clusters,
        }))
    }

    /// Runs the clients of all members. Never returns.
    pub(crate) async fn run(&self) {
        let running = self
            .member_clients
            .iter()
            .map(|member_client| member_client.run(self.secrets.clone(), self.eks.clone()));
        join_all(running).await;
    }

    /// Renews tokens. It runs in the leader and never returns.
    pub(crate) async fn renew_tokens(&self) {
        let tokens = self
            .member_clients
            .iter()
            .filter(|member_client| member_client.member.method == AuthMethod::BearerToken);
        let renewing = join_all(tokens.map(|member_client| self.renew_token(member_client)));
        tokio::join!(self.migrate_tokens(), renewing);
        // Without a token to renew, this must not end the leader's other tasks.
        std::future::pending::<()>().await;
    }

    async fn renew_token(&self, member_client: &MemberClient) {
        let mut changes = member_client.access.subscribe();
        loop {
            let (client, token) = {
                let access = changes.borrow_and_update();
                (access.client.clone(), access.token.clone())
            };
            let due = token.as_ref().and_then(Token::renewal);
            let (Some(client), Some(token), Some(due)) = (client, token, due) else {
                if changes.changed().await.is_err() {
                    return;
                }
                continue;
            };
            let now = Timestamp::now();
            let left = Duration::try_from(now.duration_until(due)).unwrap_or_default();
            if !left.is_zero() {
                tokio::select! {
                    () = sleep(left.min(MAX_SLEEP)) => {}
                    _ = changes.changed() => {}
                }
                continue;
            }
            let member = member_client.member.name.as_str();
            let namespace = member_client.member.namespace.as_deref();
            let namespace = namespace.unwrap_or(&self.namespace);
            let renewed = async {
                let next = bearer::renew(&client, &token, namespace, now).await?;
                token_secrets::store(&self.secrets, member, &next).await
            };
            let failure = match renewed.await {
                Ok(()) => {
                    tracing::info!(cluster = member, "token refreshed");
                    None
                }
                Err(error) => {
                    let error = error_chain(&error);
                    tracing::warn!(cluster = member, error, "token refresh failed");
                    Some(error)
                }
            };
            let has_failed = failure.is_some();
            member_client
                .health
                .send_modify(|health| health.renewal_failure = failure);
            if has_failed {
                sleep(RETRY_DELAY).await;
            } else {
                // The watch of the Secret delivers the new token.
                let is_new = |access: &MemberAccess| {
                    access.token.as_ref().and_then(Token::renewal) != Some(due)
                };
                tokio::select! {
                    _ = changes.wait_for(is_new) => {}
                    () = sleep(RETRY_DELAY) => {}
                }
            }
        }
    }

    /// Moves the tokens of an older operator. Those of members that are not configured any more are removed.
    async fn migrate_tokens(&self) {
        let members = self.member_clients.iter();
        let members: Vec<&str> = members
            .map(|member_client| member_client.member.name.as_str())
            .collect();
        while let Err(error) = token_secrets::migrate(&self.secrets, &members).await {
            let error = error_chain(&error);
            tracing::warn!(error, "token migration failed");
            sleep(RETRY_DELAY).await;
        }
    }

    pub(crate) fn member_clients(&self) -> &[Arc<MemberClient>] {
        &self.member_clients
    }

    /// A client for a cluster, which may be this one. The error is the reason why there is none.
    pub(crate) fn client_of(&self, cluster: &str) -> Result<Client, String> {
        if cluster == self.clusters.name {
            return Ok(self.client.clone());
        }
        let mut member_clients = self.member_clients.iter();
        let Some(member_client) =
            member_clients.find(|member_client| member_client.member.name == cluster)
        else {
            return Err("the cluster is not configured any more".to_owned());
        };
        let access = member_client.access.borrow();
        let error = || match &access.error {
            Some(error) => error.to_string(),
            None => "its credential has not been read yet".to_owned(),
        };
        access.client.clone().ok_or_else(error)
    }

    /// Waits until a member becomes unreachable: a health check fails, or its credential is removed. Returns the reason.
    async fn unreachable(&self, cluster: &str) -> String {
        let mut member_clients = self.member_clients.iter();
        let Some(member_client) =
            member_clients.find(|member_client| member_client.member.name == cluster)
        else {
            return "the cluster is not configured any more".to_owned();
        };
        let (mut health, mut access) = (
            member_client.health.subscribe(),
            member_client.access.subscribe(),
        );
        // Earlier health checks were about another connection.
        health.mark_unchanged();
        loop {
            tokio::select! {
                changed = health.changed() => {
                    if changed.is_err() {
                        return "the operator is shutting down".to_owned();
                    }
                    let check = health.borrow_and_update().check.clone();
                    if let Some(Err(reason)) = check.map(|check| check.outcome) {
                        return reason;
                    }
                }
                changed = access.changed() => {
                    if changed.is_err() {
                        return "the operator is shutting down".to_owned();
                    }
                    if let Some(error) = &access.borrow_and_update().error {
                        return error.to_string();
                    }
                }
            }
        }
    }

    /// The status of all members, for users.
    pub(crate) fn connected_clusters(&self, now: Timestamp) -> Vec<ConnectedCluster> {
        let member_clients = self.member_clients.iter();
        member_clients
            .map(|member_client| {
                let (access, health) =
                    (member_client.access.borrow(), member_client.health.borrow());
                connected_cluster(&member_client.member.name, &access, &health, now)
            })
            .collect()
    }
}

fn connected_cluster(
    name: &str,
    access: &MemberAccess,
    health: &MemberHealth,
    now: Timestamp,
) -> ConnectedCluster {
    let token = access
        .token
        .as_ref()
        .and_then(|token| bearer::warning(token, health.renewal_failure.as_deref(), now));
    let certificate = access
        .certificate_expires
        .and_then(|expires| mtls::warning(expires, now));
    let mut cluster = ConnectedCluster {
        name: name.to_owned(),
        last_check: String::new(),
        connected: None,
        warning: token.or(certificate),
        error: access.error.as_ref().map(ToString::to_string),
    };
    if let Some(check) = &health.check {
        cluster.last_check = check.at.to_string();
    }
    match (&cluster.error, &health.check) {
        (Some(_), _) => {}
        (None, None) => cluster.error = Some("the member was not checked yet".to_owned()),
        (None, Some(check)) => match &check.outcome {
            Ok(operator) => {
                let license = operator.spec.license.as_ref();
                let version = bounds::name(&operator.spec.operator_version);
                cluster.warning = cluster.warning.or_else(|| version_warning(&version));
                let fingerprint = license.and_then(|license| license.fingerprint.as_deref());
                cluster.connected = Some(ConnectedOperator {
                    license_fingerprint: fingerprint.map(bounds::name),
                    operator_version: version,
                });
            }
            Err(error) => cluster.error = Some(error.clone()),
        },
    }
    cluster
}

/// A warning about a member of another version. Clusters are upgraded one after another, so versions differ for a while.
fn version_warning(theirs: &str) -> Option<String> {
    let ours = env!("CARGO_PKG_VERSION");
    let series = |version: &str| {
        let mut parts = version.split('.').map(str::to_owned);
        (parts.next(), parts.next())
    };
    (series(theirs) != series(ours)).then(|| {
        format!(
            "its operator has the version {theirs}, and this one {ours}: features of only one of the versions do not work \
             there; install the same version"
        )
    })
}

#[cfg(test)]
mod tests;
