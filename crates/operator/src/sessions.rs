//! The objects `sessions`: listing and ending sessions.

use std::collections::BTreeSet;

use api::multicluster::{parent_id, parent_name};
use api::session::{Session, SessionCluster, SessionId, SessionPort, SessionSpec, age};
use api::{MirrordClusterSession, MirrordMultiClusterSession};
use jiff::Timestamp;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::ObjectMeta;
use kube::api::{DeleteParams, ListParams};
use kube::{Api, Client};
use serde::de::DeserializeOwned;
use serde_json::{Value, json};

use crate::error::{KubeResultExt as _, Result};
use crate::response::{Column, ListedObject};

/// The stored objects of all sessions.
pub(crate) async fn list(client: &Client) -> Result<Vec<MirrordClusterSession>> {
    let sessions: Api<MirrordClusterSession> = Api::all(client.clone());
    let list = sessions
        .list(&ListParams::default().match_any())
        .await
        .action("list sessions")?;
    Ok(list.items)
}

/// The objects of sessions over several clusters.
pub(crate) async fn list_parents(client: &Client) -> Result<Vec<MirrordMultiClusterSession>> {
    let parents: Api<MirrordMultiClusterSession> = Api::all(client.clone());
    let list = parents
        .list(&ListParams::default().match_any())
        .await
        .action("list sessions over several clusters")?;
    Ok(list.items)
}

/// All sessions as API objects. In the Primary, a session over several clusters is listed once: its child in this cluster is
/// not listed.
pub(crate) fn to_api_list(
    sessions: &[MirrordClusterSession],
    parents: &[MirrordMultiClusterSession],
    now: Timestamp,
) -> Vec<Session> {
    let is_child = |session: &&MirrordClusterSession| {
        let parent = session.spec.multi_cluster_parent_name.as_deref();
        parent.is_some_and(|parent| {
            let mut names = parents
                .iter()
                .filter_map(|one| one.metadata.name.as_deref());
            names.any(|name| name == parent)
        })
    };
    let single = sessions.iter().filter(|session| !is_child(session));
    let single = single.map(|session| to_api(session, now));
    let multi = parents.iter().map(|parent| parent_to_api(parent, now));
    single.chain(multi).collect()
}

/// Ends a session: its finalizer keeps the object until its agents are removed. Returns whether there was such a session. The
/// child of a session that another cluster coordinates has the same number, and can be ended by it.
pub(crate) async fn end(client: &Client, id: SessionId) -> Result<bool> {
    let sessions: Api<MirrordClusterSession> = Api::all(client.clone());
    if delete(&sessions, &id.object_name()).await? {
        return Ok(true);
    }
    let id = id.to_string();
    let sessions_list = list(client).await?;
    let mut children = sessions_list.iter().filter(|session| id_of(session) == id);
    match children
        .next()
        .and_then(|child| child.metadata.name.as_deref())
    {
        Some(name) => delete(&sessions, name).await,
        None => Ok(false),
    }
}

/// Ends a session over several clusters with all its children.
pub(crate) async fn end_parent(client: &Client, id: SessionId) -> Result<bool> {
    let parents: Api<MirrordMultiClusterSession> = Api::all(client.clone());
    delete(&parents, &parent_name(id)).await
}

async fn delete<Object>(objects: &Api<Object>, name: &str) -> Result<bool>
where
    Object: Clone + std::fmt::Debug + DeserializeOwned,
{
    match objects.delete(name, &DeleteParams::default()).await {
        Ok(_) => Ok(true),
        Err(kube::Error::Api(status)) if status.code == 404 => Ok(false),
        Err(error) => Err(error).action(format!("end the session {name}")),
    }
}

/// A session's number in hexadecimal digits.
pub(crate) fn id_of(session: &MirrordClusterSession) -> String {
    let name = session.metadata.name.as_deref().unwrap_or_default();
    SessionId::from_object_name(name).map_or_else(|| name.to_owned(), |id| id.to_string())
}

fn age_in_seconds(metadata: &ObjectMeta, now: Timestamp) -> u64 {
    let created = metadata.creation_timestamp.as_ref();
    let age = created.map(|created| created.0.duration_until(now).as_secs());
    age.and_then(|seconds| u64::try_from(seconds).ok())
        .unwrap_or_default()
}

/// Converts a stored session to its API object.
fn to_api(session: &MirrordClusterSession, now: Timestamp) -> Session {
    let id = id_of(session);
    let status = session.status.clone().unwrap_or_default();
    let metadata = api_metadata(&id, &session.metadata);
    let phase = status.phase.map_or("Pending", |phase| phase.as_str());
    let spec = SessionSpec {
        id,
        user: session.spec.owner.k8s_username.clone(),
        target: session.spec.target.clone(),
        namespace: session.spec.namespace.clone(),
        phase: phase.to_owned(),
        duration_secs: age_in_seconds(&session.metadata, now),
        pods: status.pods.into_iter().map(|pod| pod.name).collect(),
        ports: status.ports,
        clusters: Vec::new(),
    };
    Session::new(metadata, spec)
}

/// Converts a stored session over several clusters to its API object. Its pods are not listed.
fn parent_to_api(parent: &MirrordMultiClusterSession, now: Timestamp) -> Session {
    let name = parent.metadata.name.clone().unwrap_or_default();
    let id = parent_id(&name).map_or(name, |id| id.to_string());
    let status = parent.status.clone().unwrap_or_default();
    let metadata = api_metadata(&id, &parent.metadata);
    let cluster = |name: &String| {
        let child = status.cluster_sessions.get(name).cloned();
        let child = child.unwrap_or_default();
        SessionCluster {
            name: name.clone(),
            is_default: *name == parent.spec.default_cluster,
            ready: child.ready,
            error: child.error,
        }
    };
    let children = status.cluster_sessions.values();
    let ports: BTreeSet<_> = children.flat_map(|child| child.ports.clone()).collect();
    let phase = status.phase.map_or("Initializing", |phase| phase.as_str());
    let spec = SessionSpec {
        id,
        user: parent.spec.owner.k8s_username.clone(),
        target: parent.spec.target.clone(),
        namespace: parent.spec.namespace.clone(),
        phase: phase.to_owned(),
        duration_secs: age_in_seconds(&parent.metadata, now),
        pods: Vec::new(),
        ports: ports.into_iter().collect(),
        clusters: parent.spec.clusters.iter().map(cluster).collect(),
    };
    Session::new(metadata, spec)
}

/// The metadata that users see: the times of creation and deletion.
fn api_metadata(id: &str, stored: &ObjectMeta) -> ObjectMeta {
    ObjectMeta {
        name: Some(id.to_owned()),
        creation_timestamp: stored.creation_timestamp.clone(),
        deletion_timestamp: stored.deletion_timestamp.clone(),
        ..ObjectMeta::default()
    }
}

/// The clusters of a session, with a `!` after those that are not ready.
fn clusters_cell(clusters: &[SessionCluster]) -> String {
    let names = clusters.iter().map(|cluster| match cluster.ready {
        true => cluster.name.clone(),
        false => format!("{}!", cluster.name),
    });
    names.collect::<Vec<_>>().join(",")
}

/// The ports of a session, with their modes and filters.
pub(crate) fn ports_cell(ports: &[SessionPort]) -> String {
    let ports: Vec<String> = ports.iter().map(ToString::to_string).collect();
    ports.join(", ")
}

const fn column(name: &'static str, description: &'static str) -> Column {
    Column {
        name,
        kind: "string",
        description,
        wide: false,
    }
}

impl ListedObject for Session {
    const KIND: &str = Session::KIND;
    const COLUMNS: &[Column] = &[
        column("Name", "The session's id"),
        column("User", "The user of the session"),
        column("Namespace", "The namespace of its target"),
        column("Target", "The target"),
        column("Phase", "The phase of the session"),
        column(
            "Pods",
            "The number of its pods, in a session in one cluster",
        ),
        column(
            "Clusters",
            "The clusters of a session over several clusters; those with a ! are not ready",
        ),
        column("Age", "How long it has been running"),
        Column {
            wide: true,
            ..column(
                "Ports",
                "The ports that it steals from or mirrors, with their filters",
            )
        },
    ];

    fn metadata(&self) -> &ObjectMeta {
        &self.metadata
    }

    fn cells(&self) -> Vec<Value> {
        let spec = &self.spec;
        vec![
            json!(spec.id),
            json!(spec.user),
            json!(spec.namespace),
            json!(spec.target),
            json!(spec.phase),
            json!(match spec.clusters.is_empty() {
                true => spec.pods.len().to_string(),
                false => String::new(),
            }),
            json!(clusters_cell(&spec.clusters)),
            json!(age(spec.duration_secs)),
            json!(ports_cell(&spec.ports)),
        ]
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_session_over_several_clusters_is_listed_once() {
        let port = |filter: &str| json!({"port": 80, "protocol": "TCP", "mode": "steal", "filter": filter});
        let parent: MirrordMultiClusterSession = serde_json::from_value(json!({
            "apiVersion": "operator.metalbear.co/v1alpha", "kind": "MirrordMultiClusterSession",
            "metadata": {"name": "mc-00000000000000ab"},
            "spec": {
                "owner": {"userId": "", "username": "", "hostname": "", "k8sUsername": "anna"},
                "namespace": "shop", "target": "deployment/web", "targetAlias": "deployment.web",
                "clusters": ["hub", "west"], "primaryCluster": "hub", "defaultCluster": "hub",
                "resumeWindowSecs": 100, "clientCertificate": "",
            },
            "status": {"phase": "Ready", "clusterSessions": {
                "hub": {"sessionName": "mc-00000000000000ab-hub", "ready": true, "ports": [port("all")]},
                "west": {"sessionName": "mc-00000000000000ab-west", "ready": false, "error": "no route", "ports": [port("all")]},
            }},
        }))
        .unwrap();
        let child = |name: &str, parent: Option<&str>| -> MirrordClusterSession {
            serde_json::from_value(json!({
                "apiVersion": "mirrord.metalbear.co/v1alpha", "kind": "MirrordClusterSession",
                "metadata": {"name": name},
                "spec": {
                    "owner": {"userId": "", "username": "", "hostname": "", "k8sUsername": "anna"},
                    "namespace": "shop", "target": "deployment/web", "resumeWindowSecs": 100,
                    "clientCertificate": "", "multiClusterParentName": parent,
                },
                "status": {"ports": [port(name)]},
            }))
            .unwrap()
        };
        let sessions = [
            child("mc-00000000000000ab-hub", Some("mc-00000000000000ab")),
            // The child of a session that another cluster coordinates.
            child("mc-00000000000000cd-hub", Some("mc-00000000000000cd")),
            child("session-00000000000000ef", None),
        ];
        let now = Timestamp::UNIX_EPOCH;
        let listed = to_api_list(&sessions, &[parent], now);
        let cells: Vec<_> = listed
            .iter()
            .map(|session| {
                (
                    session.spec.id.as_str(),
                    clusters_cell(&session.spec.clusters),
                    ports_cell(&session.spec.ports),
                )
            })
            .collect();
        assert_eq!(
            cells,
            [
                (
                    "00000000000000cd",
                    String::new(),
                    "80 (steal, mc-00000000000000cd-hub)".to_owned()
                ),
                (
                    "00000000000000ef",
                    String::new(),
                    "80 (steal, session-00000000000000ef)".to_owned()
                ),
                (
                    "00000000000000ab",
                    "hub,west!".to_owned(),
                    "80 (steal, all)".to_owned()
                ),
            ]
        );
    }
}
