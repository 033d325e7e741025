//! The objects `targets`: the workloads of a namespace, listed on request.

use std::collections::BTreeMap;

use api::target::{TargetSession, TargetStatus};
use api::{MirrordClusterSession, Target, TargetKind, TargetPath, TargetSpec};
use futures_util::future::try_join_all;
use k8s_openapi::api::apps::v1::{DaemonSet, Deployment, ReplicaSet, StatefulSet};
use k8s_openapi::api::batch::v1::{CronJob, Job};
use k8s_openapi::api::core::v1::{Pod, PodSpec, Service};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::ObjectMeta;
use kube::api::ListParams;
use kube::{Api, Client, Resource};
use serde::de::DeserializeOwned;
use serde_json::{Value, json};

use crate::error::{KubeResultExt as _, Result};
use crate::response::{Column, ListedObject};

/// Which targets to list.
#[derive(Clone, Debug, Default)]
pub(crate) struct TargetFilter {
    /// All namespaces, if none is given.
    pub(crate) namespace: Option<String>,
    pub(crate) labels: Option<String>,
}

/// A page of a list, which is sorted.
#[derive(Clone, Debug, Default, PartialEq)]
pub(crate) struct TargetPage {
    pub(crate) targets: Vec<Target>,
    /// The token of the next page.
    pub(crate) next: Option<String>,
}

impl TargetPage {
    /// The page that a Primary requests. Others get the whole list, because each page costs as much as the list.
    pub(crate) fn requested(targets: Vec<Target>, query: &str) -> Self {
        let pairs = query.split('&').filter_map(|pair| pair.split_once('='));
        let pairs: BTreeMap<&str, &str> = pairs.collect();
        if pairs.get("multi_cluster") != Some(&"false") {
            return Self::of(targets, None, None);
        }
        let limit = pairs.get("limit").and_then(|limit| limit.parse().ok());
        let after = pairs.get("continue").map(|after| {
            let after = percent_encoding::percent_decode_str(after);
            after.decode_utf8_lossy()
        });
        Self::of(targets, limit, after.as_deref())
    }

    /// The page after the one with this token. Without a limit it has all targets.
    pub(crate) fn of(mut targets: Vec<Target>, limit: Option<usize>, after: Option<&str>) -> Self {
        if let Some(after) = after {
            targets.retain(|target| page_key(target).as_str() > after);
        }
        let limit = limit.filter(|limit| (1..targets.len()).contains(limit));
        if let Some(limit) = limit {
            targets.truncate(limit);
        }
        let next = limit.and_then(|_| targets.last().map(page_key));
        Self { targets, next }
    }
}

/// It sorts like the list: a space is less than any character of a name.
fn page_key(target: &Target) -> String {
    let metadata = &target.metadata;
    let namespace = metadata.namespace.as_deref().unwrap_or_default();
    let name = metadata.name.as_deref().unwrap_or_default();
    format!("{namespace} {name}")
}

/// A list of targets.
#[derive(Clone, Debug, Default, PartialEq)]
pub(crate) struct TargetList {
    pub(crate) targets: Vec<Target>,
    /// Readable warnings about targets that are missing in the list.
    pub(crate) warnings: Vec<String>,
}

impl TargetList {
    /// One target, if it exists. Whether it has pods is checked when a session starts.
    pub(crate) fn find(self, path: &TargetPath) -> Option<Target> {
        let name = path.without_container().address();
        self.targets.into_iter().find(|target| {
            let has_container = path
                .container
                .as_ref()
                .is_none_or(|container| target.spec.containers.contains(container));
            target.metadata.name.as_deref() == Some(&name) && has_container
        })
    }
}

/// The fields of a workload that a target needs.
#[derive(Clone, Debug, Default, PartialEq)]
struct Workload {
    kind: Option<TargetKind>,
    namespace: String,
    name: String,
    labels: BTreeMap<String, String>,
    /// Whether its controller is a target as well.
    is_owned: bool,
    replicas: Option<i32>,
    containers: Vec<String>,
    ports: Vec<u16>,
    /// The labels of the pods, for a workload without its own pod template.
    selector: Option<BTreeMap<String, String>>,
}

pub(crate) async fn list(
    client: &Client,
    filter: &TargetFilter,
    sessions: &[MirrordClusterSession],
) -> Result<Vec<Target>> {
    let lists = [
        tokio::spawn(workloads::<Deployment>(client.clone(), filter.clone())),
        tokio::spawn(workloads::<StatefulSet>(client.clone(), filter.clone())),
        tokio::spawn(workloads::<DaemonSet>(client.clone(), filter.clone())),
        tokio::spawn(workloads::<ReplicaSet>(client.clone(), filter.clone())),
        tokio::spawn(workloads::<Job>(client.clone(), filter.clone())),
        tokio::spawn(workloads::<CronJob>(client.clone(), filter.clone())),
        tokio::spawn(workloads::<Service>(client.clone(), filter.clone())),
        tokio::spawn(workloads::<Pod>(client.clone(), filter.clone())),
    ];
    let mut found = Vec::new();
    // A task only fails by a panic, which is a bug; its workloads are then missing in the list.
    for list in try_join_all(lists).await.unwrap_or_default() {
        found.extend(list?);
    }
    Ok(targets(&found, sessions))
}

async fn workloads<K>(client: Client, filter: TargetFilter) -> Result<Vec<Workload>>
where
    K: Resource<DynamicType = ()> + AsWorkload + Clone + DeserializeOwned + std::fmt::Debug,
    K: Resource<Scope = k8s_openapi::NamespaceResourceScope>,
{
    let objects: Api<K> = match &filter.namespace {
        Some(namespace) => Api::namespaced(client, namespace),
        None => Api::all(client),
    };
    // The API server's watch cache is fresh enough for a list.
    let mut parameters = ListParams::default().match_any();
    parameters.label_selector = filter.labels;
    let list = objects
        .list(&parameters)
        .await
        .action(format!("list {}", K::plural(&())))?;
    Ok(list
        .items
        .iter()
        .filter_map(|object| {
            let mut workload = object.as_workload()?;
            let metadata = object.meta();
            workload.namespace = metadata.namespace.clone().unwrap_or_default();
            workload.name = metadata.name.clone().unwrap_or_default();
            workload.labels = metadata.labels.clone().unwrap_or_default();
            workload.is_owned = metadata.owner_references.iter().flatten().any(is_target);
            Some(workload)
        })
        .collect())
}

fn is_target(owner: &k8s_openapi::apimachinery::pkg::apis::meta::v1::OwnerReference) -> bool {
    let kind = owner.kind.to_ascii_lowercase();
    owner.controller == Some(true) && TargetKind::ALL.iter().any(|target| target.as_str() == kind)
}

/// Converts workloads to the targets that are listed.
fn targets(found: &[Workload], sessions: &[MirrordClusterSession]) -> Vec<Target> {
    let mut targets: Vec<Target> = found
        .iter()
        .filter(|workload| is_listed(workload))
        .filter_map(|workload| target(workload, found, sessions))
        .collect();
    targets.sort_by_cached_key(|target| {
        let metadata = &target.metadata;
        (metadata.namespace.clone(), metadata.name.clone())
    });
    targets
}

/// Whether a workload is listed as a target. A pod of a Deployment is, because a user may choose exactly that pod. The
/// ReplicaSet of a Deployment and the Job of a CronJob are not.
fn is_listed(workload: &Workload) -> bool {
    !(workload.is_owned
        && matches!(
            workload.kind,
            Some(TargetKind::ReplicaSet | TargetKind::Job)
        ))
}

fn target(
    workload: &Workload,
    found: &[Workload],
    sessions: &[MirrordClusterSession],
) -> Option<Target> {
    let path = TargetPath {
        kind: workload.kind?,
        name: workload.name.clone(),
        container: None,
    };
    let pods = match &workload.selector {
        None => workload,
        // A Service has the containers of the pods that it selects.
        Some(selector) => found.iter().find(|pod| {
            pod.kind == Some(TargetKind::Pod)
                && pod.namespace == workload.namespace
                && selector
                    .iter()
                    .all(|(key, value)| pod.labels.get(key) == Some(value))
        })?,
    };
    let path_text = path.to_string();
    let status = TargetStatus {
        replicas: workload.replicas,
        sessions: sessions_of(&workload.namespace, &path_text, sessions),
        clusters: Vec::new(),
    };
    let spec = TargetSpec {
        target: path_text,
        containers: pods.containers.clone(),
        ports: pods.ports.clone(),
    };
    let mut target = Target::new(&workload.namespace, &path, spec, status);
    target.metadata.labels = Some(workload.labels.clone()).filter(|labels| !labels.is_empty());
    Some(target)
}

fn sessions_of(
    namespace: &str,
    target: &str,
    sessions: &[MirrordClusterSession],
) -> Vec<TargetSession> {
    sessions
        .iter()
        .filter(|session| {
            let path = session.spec.target_path();
            session.spec.namespace == namespace
                && path.is_ok_and(|path| path.without_container().to_string() == target)
        })
        .map(|session| TargetSession {
            id: crate::sessions::id_of(session),
            user: session.spec.owner.k8s_username.clone(),
            ports: session
                .status
                .as_ref()
                .map_or_else(Vec::new, |status| status.ports.clone()),
        })
        .collect()
}

/// Converts a Kubernetes object to a workload, without its metadata. `None` if it cannot be a target.
trait AsWorkload {
    fn as_workload(&self) -> Option<Workload>;
}

fn with_pods(kind: TargetKind, replicas: Option<i32>, pods: Option<&PodSpec>) -> Option<Workload> {
    let containers = pods
        .map(|pods| pods.containers.as_slice())
        .unwrap_or_default();
    let ports = containers
        .iter()
        .flat_map(|container| container.ports.iter().flatten())
        .filter_map(|port| u16::try_from(port.container_port).ok());
    Some(Workload {
        kind: Some(kind),
        replicas,
        ports: ports.collect(),
        containers: containers
            .iter()
            .map(|container| container.name.clone())
            .collect(),
        ..Workload::default()
    })
}

impl AsWorkload for Deployment {
    fn as_workload(&self) -> Option<Workload> {
        let spec = self.spec.as_ref()?;
        with_pods(
            TargetKind::Deployment,
            spec.replicas,
            spec.template.spec.as_ref(),
        )
    }
}

impl AsWorkload for StatefulSet {
    fn as_workload(&self) -> Option<Workload> {
        let spec = self.spec.as_ref()?;
        with_pods(
            TargetKind::StatefulSet,
            spec.replicas,
            spec.template.spec.as_ref(),
        )
    }
}

impl AsWorkload for DaemonSet {
    fn as_workload(&self) -> Option<Workload> {
        let spec = self.spec.as_ref()?;
        let desired = self
            .status
            .as_ref()
            .map(|status| status.desired_number_scheduled);
        with_pods(TargetKind::DaemonSet, desired, spec.template.spec.as_ref())
    }
}

impl AsWorkload for ReplicaSet {
    fn as_workload(&self) -> Option<Workload> {
        let spec = self.spec.as_ref()?;
        let pods = spec.template.as_ref().and_then(|pods| pods.spec.as_ref());
        with_pods(TargetKind::ReplicaSet, spec.replicas, pods)
    }
}

impl AsWorkload for Job {
    fn as_workload(&self) -> Option<Workload> {
        let spec = self.spec.as_ref()?;
        // A finished Job has no running pod.
        let active = self.status.as_ref().and_then(|status| status.active)?;
        with_pods(TargetKind::Job, Some(active), spec.template.spec.as_ref())
    }
}

impl AsWorkload for CronJob {
    fn as_workload(&self) -> Option<Workload> {
        let spec = self.spec.as_ref()?.job_template.spec.as_ref()?;
        with_pods(TargetKind::CronJob, None, spec.template.spec.as_ref())
    }
}

impl AsWorkload for Pod {
    fn as_workload(&self) -> Option<Workload> {
        let phase = self.status.as_ref()?.phase.as_deref();
        if phase != Some("Running") {
            return None;
        }
        with_pods(TargetKind::Pod, None, self.spec.as_ref())
    }
}

impl AsWorkload for Service {
    fn as_workload(&self) -> Option<Workload> {
        let selector = self.spec.as_ref()?.selector.clone();
        Some(Workload {
            kind: Some(TargetKind::Service),
            selector: Some(selector.filter(|labels| !labels.is_empty())?),
            ..Workload::default()
        })
    }
}

impl ListedObject for Target {
    const KIND: &str = Target::KIND;
    const COLUMNS: &[Column] = &[
        Column {
            name: "Name",
            kind: "string",
            description: "The resource name of the target",
            wide: false,
        },
        Column {
            name: "Containers",
            kind: "string",
            description: "The containers that can be the target container",
            wide: false,
        },
        Column {
            name: "Replicas",
            kind: "string",
            description: "The desired number of pods",
            wide: false,
        },
        Column {
            name: "Sessions",
            kind: "string",
            description: "The users of running sessions",
            wide: false,
        },
        Column {
            name: "Ports",
            kind: "string",
            description: "The ports that the containers declare",
            wide: true,
        },
        Column {
            name: "Clusters",
            kind: "string",
            description: "The clusters that have the target, where the operator coordinates several",
            wide: true,
        },
        Column {
            name: "Traffic",
            kind: "string",
            description: "The ports that each user steals from or mirrors, with their filters",
            wide: true,
        },
    ];

    fn metadata(&self) -> &ObjectMeta {
        &self.metadata
    }

    fn cells(&self) -> Vec<Value> {
        let ports: Vec<String> = self.spec.ports.iter().map(u16::to_string).collect();
        let users: Vec<&str> = self
            .status
            .sessions
            .iter()
            .map(|session| session.user.as_str())
            .collect();
        let replicas = self.status.replicas.map(|replicas| replicas.to_string());
        vec![
            json!(self.metadata.name),
            json!(or_dash(&self.spec.containers.join(","))),
            json!(or_dash(&replicas.unwrap_or_default())),
            json!(or_dash(&users.join(","))),
            json!(or_dash(&ports.join(","))),
            json!(or_dash(&self.status.clusters.join(","))),
            json!(or_dash(&traffic(&self.status.sessions))),
        ]
    }
}

fn traffic(sessions: &[TargetSession]) -> String {
    let sessions = sessions.iter().filter(|session| !session.ports.is_empty());
    let sessions = sessions.map(|session| {
        let ports = crate::sessions::ports_cell(&session.ports);
        format!("{}: {ports}", session.user)
    });
    sessions.collect::<Vec<_>>().join("; ")
}

fn or_dash(text: &str) -> &str {
    if text.is_empty() { "-" } else { text }
}

#[cfg(test)]
mod tests;
