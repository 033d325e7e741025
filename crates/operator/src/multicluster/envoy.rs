//! The Primary's side of members: which there are, how they are, and a client for each.

pub(crate) mod connect;
mod leg;
pub(crate) mod relay;

use std::sync::Arc;
use std::time::Duration;

use api::operator::{ConnectedCluster, ConnectedOperator};
use futures_util::future::join_all;
use jiff::Timestamp;
use k8s_openapi::api::core::v1::Secret;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::ObjectMeta;
use kube::api::PostParams;
use kube::{Api, Client};
use tokio::time::sleep;

use super::auth::bearer::{self, TOKENS, Token};
use super::auth::eks::EksTokens;
use super::auth::identity::WebIdentity;
use super::auth::mtls;
use super::clusters::{Method, MultiCluster};
use super::sync::{Access, Health, MemberKeeper};
use crate::background::Background;
use crate::cache::ParentCache;
use crate::error::{Doing as _, Error, Result, chain};
use crate::settings::Settings;

/// After a renewal that failed. There is time for many of these.
const AFTER_A_FAILURE: Duration = Duration::from_secs(30);
/// A renewal that is months away is looked at again before, in case clocks are changed.
const LONGEST_SLEEP: Duration = Duration::from_secs(3600);
const CONFLICT: u16 = 409;

/// All members of this Primary.
pub(crate) struct Envoy {
    pub(crate) clusters: MultiCluster,
    /// Sessions over several clusters, as this replica knows them.
    pub(crate) sessions: ParentCache,
    /// For this cluster itself.
    client: Client,
    keepers: Vec<Arc<MemberKeeper>>,
    eks: Option<Arc<EksTokens>>,
    /// The operator's own, which is that of members where nothing else is said.
    namespace: String,
    /// Of that namespace.
    secrets: Api<Secret>,
}

impl Envoy {
    /// None, where the operator is for one cluster.
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
            .find(|member| matches!(member.method, Method::Eks { .. }));
        if let (Some(member), None) = (in_eks, &identity) {
            return Err(Error::NoRole {
                cluster: member.name.clone(),
            });
        }
        let keepers = clusters.members.iter().cloned();
        Ok(Some(Self {
            keepers: keepers.map(MemberKeeper::new).map(Arc::new).collect(),
            eks: identity.map(EksTokens::new).map(Arc::new),
            namespace: settings.namespace.clone(),
            secrets: Api::namespaced(client.clone(), &settings.namespace),
            sessions: ParentCache::follow(client.clone(), background, "parents"),
            client: client.clone(),
            clusters,
        }))
    }

    /// Looks after all members for ever, each by itself.
    pub(crate) async fn keep(&self) {
        let keeping = self
            .keepers
            .iter()
            .map(|keeper| keeper.keep(self.secrets.clone(), self.eks.clone()));
        join_all(keeping).await;
    }

    /// Renews tokens for ever, and forgets those of members that are gone. The leader does it.
    pub(crate) async fn keep_renewing(&self) {
        let tokens = self
            .keepers
            .iter()
            .filter(|keeper| keeper.member.method == Method::BearerToken);
        let renewing = join_all(tokens.map(|keeper| self.renew_of(keeper)));
        tokio::join!(self.forget_others(), renewing);
        // Where nothing is to be renewed, the leader's other work goes on.
        std::future::pending::<()>().await;
    }

    async fn renew_of(&self, keeper: &MemberKeeper) {
        let mut changes = keeper.access.subscribe();
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
                    () = sleep(left.min(LONGEST_SLEEP)) => {}
                    _ = changes.changed() => {}
                }
                continue;
            }
            let member = keeper.member.name.as_str();
            let namespace = keeper.member.namespace.as_deref();
            let namespace = namespace.unwrap_or(&self.namespace);
            let renewed = async {
                let next = bearer::renew(&client, &token, namespace, now).await?;
                self.store(member, &next).await
            };
            let failure = match renewed.await {
                Ok(()) => {
                    tracing::info!(cluster = member, "a member's token is renewed");
                    None
                }
                Err(error) => {
                    let error = chain(&error);
                    tracing::warn!(cluster = member, error, "a member's token is not renewed");
                    Some(error)
                }
            };
            let pause = failure.is_some();
            keeper
                .health
                .send_modify(|health| health.renewal_failure = failure);
            if pause {
                sleep(AFTER_A_FAILURE).await;
            } else {
                // The Secret's change brings the new token.
                let is_new =
                    |access: &Access| access.token.as_ref().and_then(Token::renewal) != Some(due);
                tokio::select! {
                    _ = changes.wait_for(is_new) => {}
                    () = sleep(AFTER_A_FAILURE) => {}
                }
            }
        }
    }

    /// Puts a token into the Secret that is ours alone.
    async fn store(&self, member: &str, token: &Token) -> Result<()> {
        let writing = format!("write the Secret {TOKENS}");
        loop {
            let found = self.secrets.get_opt(TOKENS).await.doing(&writing)?;
            let parameters = PostParams::default();
            let written = match found {
                Some(found) => {
                    let secret = bearer::keep(found, member, token);
                    self.secrets.replace(TOKENS, &parameters, &secret).await
                }
                None => {
                    let secret = Secret {
                        metadata: ObjectMeta {
                            name: Some(TOKENS.to_owned()),
                            ..ObjectMeta::default()
                        },
                        ..Secret::default()
                    };
                    let secret = bearer::keep(secret, member, token);
                    self.secrets.create(&parameters, &secret).await
                }
            };
            match written {
                Ok(_) => return Ok(()),
                // Another member's token came in between.
                Err(kube::Error::Api(status)) if status.code == CONFLICT => {}
                Err(error) => return Err(error).doing(writing),
            }
        }
    }

    /// A member that is not configured any more needs no token. Members change with a restart alone, so once is enough.
    async fn forget_others(&self) {
        let members = self.keepers.iter();
        let members: Vec<&str> = members.map(|keeper| keeper.member.name.as_str()).collect();
        while let Err(error) = forget(&self.secrets, &members).await {
            let error = chain(&error);
            tracing::warn!(error, "tokens of members that are gone cannot be removed");
            sleep(AFTER_A_FAILURE).await;
        }
    }

    pub(crate) fn keepers(&self) -> &[Arc<MemberKeeper>] {
        &self.keepers
    }

    /// A client for a cluster, which may be this one. Without one, why.
    pub(crate) fn client_of(&self, cluster: &str) -> Result<Client, String> {
        if cluster == self.clusters.name {
            return Ok(self.client.clone());
        }
        let mut keepers = self.keepers.iter();
        let Some(keeper) = keepers.find(|keeper| keeper.member.name == cluster) else {
            return Err("the cluster is not configured any more".to_owned());
        };
        let access = keeper.access.borrow();
        let trouble = || match &access.trouble {
            Some(trouble) => trouble.to_string(),
            None => "its credential is not read yet".to_owned(),
        };
        access.client.clone().ok_or_else(trouble)
    }

    /// Ends when a member was asked how it is and did not answer, or when nobody may ask it any more.
    async fn unreachable(&self, cluster: &str) -> String {
        let mut keepers = self.keepers.iter();
        let Some(keeper) = keepers.find(|keeper| keeper.member.name == cluster) else {
            return "the cluster is not configured any more".to_owned();
        };
        let (mut health, mut access) = (keeper.health.subscribe(), keeper.access.subscribe());
        // What was before says nothing about the connection.
        health.mark_unchanged();
        loop {
            tokio::select! {
                changed = health.changed() => {
                    if changed.is_err() {
                        return "the operator ends".to_owned();
                    }
                    let check = health.borrow_and_update().check.clone();
                    if let Some(Err(why)) = check.map(|check| check.outcome) {
                        return why;
                    }
                }
                changed = access.changed() => {
                    if changed.is_err() {
                        return "the operator ends".to_owned();
                    }
                    if let Some(trouble) = &access.borrow_and_update().trouble {
                        return trouble.to_string();
                    }
                }
            }
        }
    }

    /// How members are, for people.
    pub(crate) fn connected_clusters(&self, now: Timestamp) -> Vec<ConnectedCluster> {
        let keepers = self.keepers.iter();
        keepers
            .map(|keeper| {
                let (access, health) = (keeper.access.borrow(), keeper.health.borrow());
                shown(&keeper.member.name, &access, &health, now)
            })
            .collect()
    }
}

/// Leaves the tokens of these members alone in the Secret that is ours.
async fn forget(secrets: &Api<Secret>, members: &[&str]) -> Result<()> {
    let doing = format!("remove tokens from the Secret {TOKENS}");
    loop {
        let found = secrets.get_opt(TOKENS).await.doing(&doing)?;
        let Some(left) = found.and_then(|found| bearer::forget(found, members)) else {
            return Ok(());
        };
        let written = secrets.replace(TOKENS, &PostParams::default(), &left).await;
        match written {
            Ok(_) => return Ok(()),
            // A token was renewed in between.
            Err(kube::Error::Api(status)) if status.code == CONFLICT => {}
            Err(error) => return Err(error).doing(doing),
        }
    }
}

fn shown(name: &str, access: &Access, health: &Health, now: Timestamp) -> ConnectedCluster {
    let token = access
        .token
        .as_ref()
        .and_then(|token| bearer::warning(token, health.renewal_failure.as_deref(), now));
    let certificate = access
        .certificate_ends
        .and_then(|ends| mtls::warning(ends, now));
    let mut cluster = ConnectedCluster {
        name: name.to_owned(),
        last_check: String::new(),
        connected: None,
        warning: token.or(certificate),
        error: access.trouble.as_ref().map(ToString::to_string),
    };
    if let Some(check) = &health.check {
        cluster.last_check = check.at.to_string();
    }
    match (&cluster.error, &health.check) {
        (Some(_), _) => {}
        (None, None) => cluster.error = Some("the member was not asked yet".to_owned()),
        (None, Some(check)) => match &check.outcome {
            Ok(operator) => {
                let license = operator.spec.license.as_ref();
                let version = &operator.spec.operator_version;
                cluster.warning = cluster.warning.or_else(|| other_version(version));
                cluster.connected = Some(ConnectedOperator {
                    license_fingerprint: license.and_then(|license| license.fingerprint.clone()),
                    operator_version: operator.spec.operator_version.clone(),
                });
            }
            Err(error) => cluster.error = Some(error.clone()),
        },
    }
    cluster
}

/// Clusters are upgraded one after the other, so a member may be older or newer for a while.
fn other_version(theirs: &str) -> Option<String> {
    let ours = env!("CARGO_PKG_VERSION");
    let series = |version: &str| {
        let mut parts = version.split('.').map(str::to_owned);
        (parts.next(), parts.next())
    };
    (series(theirs) != series(ours)).then(|| {
        format!(
            "its operator has the version {theirs}, and this one {ours}: what only one of them knows does not work there; \
             install the same"
        )
    })
}

#[cfg(test)]
mod tests;
