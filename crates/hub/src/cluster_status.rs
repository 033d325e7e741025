//! What the hub shows of a cluster: in the status of its object, and in the API.

use std::sync::Arc;

use api::hub::{Cluster, ClusterState};
use api::managed_cluster::ManagedCluster;
use error_chain::error_chain;
use jiff::Timestamp;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::Time;
use kube::ResourceExt as _;
use serde_json::{Value, json};

use crate::Hub;
use crate::registry::{is_from_values, needs_registration};
use crate::sessions::{Connected, ConnectedCluster};

/// Writes the status of clusters whose tunnels begin or end here. Never returns.
pub(crate) async fn run(hub: Arc<Hub>) {
    let mut connected = hub.sessions.subscribe();
    let mut written = Arc::new(Connected::new());
    while connected.changed().await.is_ok() {
        // Changes during the writes are written together.
        let now = connected.borrow_and_update().clone();
        for (cluster, fields) in changes(&written, &now, Timestamp::now()) {
            // Another replica, to which the agent has moved, has written its own.
            if !now.contains_key(&cluster) && !hub.peers.tunnels(&cluster).is_empty() {
                continue;
            }
            if let Err(error) = hub.registry.patch_status(&cluster, &fields).await {
                let error = error_chain(&error);
                tracing::warn!(cluster, error, "cluster status not written");
            }
        }
        written = now;
    }
}

/// The fields to write for each cluster.
fn changes(before: &Connected, after: &Connected, now: Timestamp) -> Vec<(String, Value)> {
    let ended = before.keys().filter(|name| !after.contains_key(*name));
    let ended = ended.map(|name| {
        let fields = json!({ "connectedSince": null, "lastSeen": Time(now) });
        (name.clone(), fields)
    });
    let shown = |cluster: &ConnectedCluster| {
        json!({
            "connectedSince": Time(cluster.since),
            "agentVersion": cluster.agent_version,
            "kubernetesVersion": cluster.kubernetes_version,
        })
    };
    let begun = after.iter().filter_map(|(name, cluster)| {
        let fields = shown(cluster);
        let is_new = before.get(name).is_none_or(|it| shown(it) != fields);
        is_new.then(|| (name.clone(), fields))
    });
    ended.chain(begun).collect()
}

/// The tunnels of a cluster to all replicas.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Connection {
    /// The facts of the oldest tunnel, and of all the earliest beginning.
    cluster: ConnectedCluster,
    replicas: Vec<String>,
}

impl Connection {
    /// The tunnels to this replica and to its peers. `None` if there is none.
    pub(crate) fn of(hub: &Hub, name: &str) -> Option<Self> {
        let own = hub.sessions.connected().get(name).cloned();
        let own = own.map(|own| (hub.settings.replica.clone(), own));
        Self::all(own.into_iter().chain(hub.peers.tunnels(name)).collect())
    }

    fn all(mut tunnels: Vec<(String, ConnectedCluster)>) -> Option<Self> {
        tunnels.sort_by(|(first, _), (second, _)| first.cmp(second));
        let oldest = tunnels.iter().min_by_key(|(_, tunnel)| tunnel.since);
        let mut cluster = oldest?.1.clone();
        cluster.number = tunnels.iter().map(|(_, tunnel)| tunnel.number).sum();
        Some(Self {
            cluster,
            replicas: tunnels.into_iter().map(|(replica, _)| replica).collect(),
        })
    }
}

/// A cluster as the API shows it.
pub(crate) fn describe(
    object: &ManagedCluster,
    connected: Option<&Connection>,
    now: Timestamp,
) -> Cluster {
    let replicas = connected.map(|it| it.replicas.clone()).unwrap_or_default();
    let connected = connected.map(|it| &it.cluster);
    let status = object.status.clone().unwrap_or_default();
    let missing = needs_registration(object, now);
    let state = match (connected, missing) {
        (Some(_), _) => ClusterState::Connected,
        (None, Some(state)) => state,
        (None, None) => ClusterState::Disconnected,
    };
    let certificates = status.certificates.iter();
    let newest = certificates
        .map(|certificate| certificate.expires_at.0)
        .max();
    let expires_at = connected.map(|it| it.certificate_expires_at).or(newest);
    let name = object.name_any();
    Cluster {
        backend: "agent".to_owned(),
        from_values: is_from_values(object),
        labels: object.spec.labels.clone(),
        connected_since: connected.map(|it| Time(it.since)),
        last_seen: match connected {
            Some(_) => Some(Time(now)),
            None => status.last_seen,
        },
        agent_version: connected
            .and_then(|it| it.agent_version.clone())
            .or(status.agent_version),
        kubernetes_version: connected
            .and_then(|it| it.kubernetes_version.clone())
            .or(status.kubernetes_version),
        certificate_expires_at: expires_at.map(Time),
        replicas,
        message: message(&name, state, expires_at, now),
        state,
        name,
    }
}

/// Why a cluster is not connected, and what to do about it.
pub(crate) fn message(
    name: &str,
    state: ClusterState,
    certificate_expires_at: Option<Timestamp>,
    now: Timestamp,
) -> Option<String> {
    match state {
        ClusterState::Connected => None,
        ClusterState::Pending => Some(match certificate_expires_at {
            Some(expired) if expired <= now => format!(
                "the certificate of its agent has expired; empty the Secret of the agent's certificate, and register it with \
                 a new token: `standin cluster token {name}`"
            ),
            _ => format!(
                "no agent has registered yet; install one with a token: `standin cluster token {name}`"
            ),
        }),
        ClusterState::Disconnected => Some(
            "the agent is not connected; check its pod and its log: it reconnects by itself as soon as it reaches the hub"
                .to_owned(),
        ),
        ClusterState::Revoked => Some(format!(
            "its certificates are revoked; empty the Secret of the agent's certificate, and register it with a new token: \
             `standin cluster token {name}`"
        )),
    }
}

#[cfg(test)]
mod tests {
    use jiff::SignedDuration;

    use super::*;

    fn at(seconds: i64) -> Timestamp {
        Timestamp::UNIX_EPOCH + SignedDuration::from_secs(seconds)
    }

    fn cluster(since: i64, version: Option<&str>) -> ConnectedCluster {
        ConnectedCluster {
            number: 1,
            since: at(since),
            agent_version: version.map(str::to_owned),
            kubernetes_version: None,
            certificate_expires_at: at(1000),
        }
    }

    #[test]
    fn only_what_the_status_shows_is_written() {
        let before: Connected = [
            ("gone".to_owned(), cluster(1, None)),
            ("same".to_owned(), cluster(1, None)),
            ("described".to_owned(), cluster(1, None)),
        ]
        .into();
        let mut same = cluster(1, None);
        same.number = 2;
        same.certificate_expires_at = at(2000);
        let after: Connected = [
            ("same".to_owned(), same),
            ("described".to_owned(), cluster(1, Some("0.1.0"))),
            ("new".to_owned(), cluster(5, None)),
        ]
        .into();
        let written: Vec<String> = changes(&before, &after, at(9))
            .into_iter()
            .map(|(name, fields)| format!("{name} {fields}"))
            .collect();
        let since = |seconds: &str| {
            format!(r#""connectedSince":"1970-01-01T00:00:0{seconds}Z","kubernetesVersion":null"#)
        };
        assert_eq!(
            written,
            [
                r#"gone {"connectedSince":null,"lastSeen":"1970-01-01T00:00:09Z"}"#.to_owned(),
                format!(r#"described {{"agentVersion":"0.1.0",{}}}"#, since("1")),
                format!(r#"new {{"agentVersion":null,{}}}"#, since("5")),
            ]
        );
    }
}
