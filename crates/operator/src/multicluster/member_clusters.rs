//! The member clusters of a Primary: their clients, their health, and the renewal of their tokens.

pub(crate) mod connect;
mod connection;
pub(crate) mod membership;
pub(crate) mod relay;

use std::collections::BTreeSet;
use std::sync::Arc;
use std::time::Duration;

use api::operator::{ConnectedCluster, ConnectedOperator, MultiClusterRoles};
use error_chain::error_chain;
use futures_util::StreamExt as _;
use jiff::Timestamp;
use k8s_openapi::api::core::v1::Secret;
use kube::{Api, Client};
use tokio::sync::watch;
use tokio::time::sleep;

use self::membership::{Membership, for_each_member};
use super::auth::bearer::{self, Token};
use super::auth::eks::EksTokens;
use super::auth::identity::WebIdentity;
use super::auth::{mtls, token_secrets};
use super::bounds;
use super::clusters::{AuthMethod, Member, MultiCluster};
use super::configuration;
use super::member_client::{MemberAccess, MemberClient, MemberHealth, OutageDetector};
use crate::background::Background;
use crate::cache::ParentCache;
use crate::error::Result;
use crate::settings::{PrimarySettings, Settings};

/// The delay after a failed renewal. Renewals begin early enough for many retries.
const RETRY_DELAY: Duration = Duration::from_secs(30);
/// A renewal that is due much later is checked again after this time, in case the clock was changed.
const MAX_SLEEP: Duration = Duration::from_secs(3600);
const NOT_CONFIGURED: &str = "the cluster is not configured any more";

/// All members of this Primary.
pub(crate) struct MemberClusters {
    pub(crate) settings: PrimarySettings,
    /// The configured clusters. They change with the configuration.
    membership: watch::Sender<Arc<Membership>>,
    /// Why the last change of the configuration is not in effect.
    configuration_error: watch::Sender<Option<String>>,
    /// Members with tokens that are not configured any more, as far as this replica has seen it.
    removed: watch::Sender<BTreeSet<String>>,
    /// The cache of sessions over several clusters.
    pub(crate) sessions: ParentCache,
    /// The client for this cluster.
    client: Client,
    eks: Option<Arc<EksTokens>>,
    /// The operator's namespace, which is the default for members.
    namespace: String,
    /// Secrets of that namespace.
    secrets: Api<Secret>,
}

impl MemberClusters {
    /// Returns `None` if the operator is for one cluster.
    pub(crate) async fn new(
        client: &Client,
        settings: &Settings,
        background: &Background,
    ) -> Result<Option<Self>> {
        let Some(primary) = settings.primary.clone() else {
            return Ok(None);
        };
        let clusters =
            configuration::read(client, &settings.namespace, &primary.config_map).await?;
        let identity = WebIdentity::from_environment(|name| std::env::var(name).ok());
        Ok(Some(Self {
            membership: watch::Sender::new(Arc::new(Membership::new(clusters))),
            configuration_error: watch::Sender::default(),
            removed: watch::Sender::default(),
            eks: identity.map(EksTokens::new).map(Arc::new),
            namespace: settings.namespace.clone(),
            secrets: Api::namespaced(client.clone(), &settings.namespace),
            sessions: ParentCache::start(client.clone(), background, "parents"),
            client: client.clone(),
            settings: primary,
        }))
    }

    /// Follows the configuration, and runs the clients of all members. Never returns.
    pub(crate) async fn run(&self) {
        let members = for_each_member(self.membership.subscribe(), async |member_client| {
            let (secrets, eks) = (self.secrets.clone(), self.eks.clone());
            member_client.run(secrets, eks).await;
        });
        tokio::join!(self.follow_configuration(), members);
    }

    async fn follow_configuration(&self) {
        let config_map = &self.settings.config_map;
        let changes = configuration::changes(&self.client, &self.namespace, config_map);
        let mut changes = std::pin::pin!(changes);
        while let Some(change) = changes.next().await {
            self.configure(change);
        }
    }

    /// Uses another configuration. One that is invalid is only reported: the previous one stays in use.
    fn configure(&self, change: Result<MultiCluster, String>) {
        let error = match change {
            Ok(clusters) => {
                let is_new = self.membership.send_if_modified(|membership| {
                    let is_new = membership.clusters != clusters;
                    if is_new {
                        self.removed.send_modify(|removed| {
                            update_removed(removed, &membership.clusters, &clusters);
                        });
                        *membership = Arc::new(membership.updated(clusters));
                    }
                    is_new
                });
                if is_new {
                    tracing::info!("clusters configuration changed");
                }
                None
            }
            Err(error) => {
                tracing::warn!(
                    error,
                    "clusters configuration not usable, keeping the previous one"
                );
                Some(error)
            }
        };
        self.configuration_error.send_replace(error);
    }

    /// The clusters that are configured now.
    pub(crate) fn membership(&self) -> Arc<Membership> {
        Arc::clone(&self.membership.borrow())
    }

    /// The configured clusters, for tasks that follow changes.
    pub(crate) fn membership_changes(&self) -> watch::Receiver<Arc<Membership>> {
        self.membership.subscribe()
    }

    /// Renews tokens. It runs in the leader and never returns.
    pub(crate) async fn renew_tokens(&self) {
        let renewing = for_each_member(self.membership.subscribe(), async |member_client| {
            if member_client.member.method == AuthMethod::BearerToken {
                self.renew_token(&member_client).await;
            }
        });
        tokio::join!(self.migrate_tokens(), self.remove_tokens(), renewing);
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
                    let error = bounds::text(&error_chain(&error));
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
        let membership = self.membership();
        let members = membership.clusters.members.iter();
        let members: Vec<&str> = members.map(|member| member.name.as_str()).collect();
        while let Err(error) = token_secrets::migrate(&self.secrets, &members).await {
            let error = error_chain(&error);
            tracing::warn!(error, "token migration failed");
            sleep(RETRY_DELAY).await;
        }
    }

    /// Removes the tokens of members that are not configured any more. Never returns.
    async fn remove_tokens(&self) {
        let mut changes = self.removed.subscribe();
        loop {
            let member = match changes.wait_for(|removed| !removed.is_empty()).await {
                Ok(removed) => removed.first().cloned(),
                Err(_) => return,
            };
            let Some(member) = member else { continue };
            match token_secrets::remove(&self.secrets, &member).await {
                Ok(true) => tracing::info!(cluster = member, "token of removed member deleted"),
                Ok(false) => {}
                Err(error) => {
                    let is_forbidden = error.is_forbidden();
                    let error = error_chain(&error);
                    tracing::warn!(cluster = member, error, "token deletion failed");
                    if !is_forbidden {
                        sleep(RETRY_DELAY).await;
                        continue;
                    }
                }
            }
            self.removed
                .send_if_modified(|removed| removed.remove(&member));
        }
    }

    /// A client for a cluster, which may be this one. The error is the reason why there is none.
    pub(crate) fn client_of(&self, cluster: &str) -> Result<Client, String> {
        let membership = self.membership();
        if cluster == membership.clusters.name {
            return Ok(self.client.clone());
        }
        let Some(member_client) = membership.member_client(cluster) else {
            return Err(NOT_CONFIGURED.to_owned());
        };
        let access = member_client.access.borrow();
        let error = || match &access.error {
            Some(error) => error.to_string(),
            None => "its credential has not been read yet".to_owned(),
        };
        access.client.clone().ok_or_else(error)
    }

    /// Waits until a member becomes unreachable: several health checks fail, its credential is removed, or its configuration
    /// changes. Returns the reason.
    async fn unreachable(&self, cluster: &str) -> String {
        let membership = self.membership();
        let Some(member_client) = membership.member_client(cluster) else {
            return NOT_CONFIGURED.to_owned();
        };
        let mut changes = self.membership.subscribe();
        let mut access = member_client.access.subscribe();
        let mut health = member_client.health.subscribe();
        // Earlier health checks were about another connection.
        let mut outage = OutageDetector::since(&health.borrow_and_update());
        let shutdown = || "the operator is shutting down".to_owned();
        loop {
            tokio::select! {
                changed = health.changed() => {
                    if changed.is_err() {
                        return shutdown();
                    }
                    if let Some(reason) = outage.detect(&health.borrow_and_update()) {
                        return reason;
                    }
                }
                changed = access.changed() => {
                    if changed.is_err() {
                        return shutdown();
                    }
                    if let Some(error) = &access.borrow_and_update().error {
                        return error.to_string();
                    }
                }
                changed = changes.wait_for(|membership| !membership.uses(member_client)) => {
                    return match changed {
                        Ok(membership) if membership.member_client(cluster).is_some() => {
                            "the configuration of the cluster has changed".to_owned()
                        }
                        Ok(_) => NOT_CONFIGURED.to_owned(),
                        Err(_) => shutdown(),
                    };
                }
            }
        }
    }

    /// The roles of the clusters, for users.
    pub(crate) fn roles(&self) -> MultiClusterRoles {
        let clusters = &self.membership().clusters;
        MultiClusterRoles {
            cluster_name: clusters.name.clone(),
            default_cluster: clusters.default.clone(),
            management_only: clusters.is_management_only,
        }
    }

    /// The status of all members, for users.
    pub(crate) fn connected_clusters(&self, now: Timestamp) -> Vec<ConnectedCluster> {
        let configuration_error = self.configuration_error.borrow().clone();
        let membership = self.membership();
        let member_clients = membership.member_clients.iter();
        member_clients
            .map(|member_client| {
                let (access, health) =
                    (member_client.access.borrow(), member_client.health.borrow());
                let cluster = connected_cluster(&member_client.member.name, &access, &health, now);
                ConnectedCluster {
                    warning: cluster.warning.or_else(|| configuration_error.clone()),
                    ..cluster
                }
            })
            .collect()
    }
}

/// Updates the members with tokens that are not configured any more, after a change of the configuration.
fn update_removed(removed: &mut BTreeSet<String>, before: &MultiCluster, now: &MultiCluster) {
    let has_token = |member: &&Member| member.method == AuthMethod::BearerToken;
    let before = before.members.iter().filter(has_token);
    removed.extend(before.map(|member| member.name.clone()));
    removed.retain(|removed| {
        let mut names = now.members.iter().map(|member| &member.name);
        names.all(|name| token_secrets::name(name) != token_secrets::name(removed))
    });
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
        last_check: health.check.as_ref().map(|check| check.at.to_string()),
        connected: None,
        warning: token.or(certificate),
        error: access.error.as_ref().map(ToString::to_string),
    };
    match (&cluster.error, &health.check) {
        (Some(_), _) => {}
        (None, None) => cluster.error = Some("the member was not checked yet".to_owned()),
        (None, Some(check)) => match &check.outcome {
            Ok(_) if health.refusal.is_some() => cluster.error.clone_from(&health.refusal),
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
