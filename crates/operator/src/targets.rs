//! What sessions can be for: the workloads of a namespace, looked up when somebody asks.

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

use crate::answer::{Column, Listed};
use crate::error::{Doing as _, Result};

/// Which targets are asked for.
#[derive(Clone, Debug, Default)]
pub(crate) struct Wanted {
    /// All namespaces, if none is given.
    pub(crate) namespace: Option<String>,
    pub(crate) labels: Option<String>,
}

/// What there is.
#[derive(Clone, Debug, Default, PartialEq)]
pub(crate) struct Found {
    pub(crate) targets: Vec<Target>,
    /// What is missing among them, for people.
    pub(crate) warnings: Vec<String>,
}

impl Found {
    /// One target, if it is there. Whether it has pods is the session's question.
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

/// A workload, as far as it matters here.
#[derive(Clone, Debug, Default, PartialEq)]
struct Workload {
    kind: Option<TargetKind>,
    namespace: String,
    name: String,
    labels: BTreeMap<String, String>,
    /// Whether something else that is a target made it.
    is_owned: bool,
    replicas: Option<i32>,
    containers: Vec<String>,
    ports: Vec<u16>,
    /// The labels of the pods, for what has no pods of its own.
    selector: Option<BTreeMap<String, String>>,
}

pub(crate) async fn list(
    client: &Client,
    wanted: &Wanted,
    sessions: &[MirrordClusterSession],
) -> Result<Vec<Target>> {
    let lists = [
        tokio::spawn(workloads::<Deployment>(client.clone(), wanted.clone())),
        tokio::spawn(workloads::<StatefulSet>(client.clone(), wanted.clone())),
        tokio::spawn(workloads::<DaemonSet>(client.clone(), wanted.clone())),
        tokio::spawn(workloads::<ReplicaSet>(client.clone(), wanted.clone())),
        tokio::spawn(workloads::<Job>(client.clone(), wanted.clone())),
        tokio::spawn(workloads::<CronJob>(client.clone(), wanted.clone())),
        tokio::spawn(workloads::<Service>(client.clone(), wanted.clone())),
        tokio::spawn(workloads::<Pod>(client.clone(), wanted.clone())),
    ];
    let mut found = Vec::new();
    // A task that panics has a bug of ours; what it would have found is missing then.
    for list in try_join_all(lists).await.unwrap_or_default() {
        found.extend(list?);
    }
    Ok(targets(&found, sessions))
}

async fn workloads<K>(client: Client, wanted: Wanted) -> Result<Vec<Workload>>
where
    K: Resource<DynamicType = ()> + Described + Clone + DeserializeOwned + std::fmt::Debug,
    K: Resource<Scope = k8s_openapi::NamespaceResourceScope>,
{
    let objects: Api<K> = match &wanted.namespace {
        Some(namespace) => Api::namespaced(client, namespace),
        None => Api::all(client),
    };
    // Whatever the API server has in memory is fresh enough for a list.
    let mut parameters = ListParams::default().match_any();
    parameters.label_selector = wanted.labels;
    let list = objects
        .list(&parameters)
        .await
        .doing(format!("list {}", K::plural(&())))?;
    Ok(list
        .items
        .iter()
        .filter_map(|object| {
            let mut workload = object.describe()?;
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
    owner.controller == Some(true) && TargetKind::ALL.iter().any(|known| known.as_str() == kind)
}

/// From what there is to what people see.
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

/// A pod of a Deployment is a target of its own: somebody may want just that one. The Deployment's ReplicaSet is not, nor
/// is a CronJob's Job, which nobody names.
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
        // A Service has the containers of the pods behind it.
        Some(selector) => found.iter().find(|pod| {
            pod.kind == Some(TargetKind::Pod)
                && pod.namespace == workload.namespace
                && selector
                    .iter()
                    .all(|(key, value)| pod.labels.get(key) == Some(value))
        })?,
    };
    let written = path.to_string();
    let status = TargetStatus {
        replicas: workload.replicas,
        sessions: sessions_at(&workload.namespace, &written, sessions),
        clusters: Vec::new(),
    };
    let spec = TargetSpec {
        target: written,
        containers: pods.containers.clone(),
        ports: pods.ports.clone(),
    };
    let mut target = Target::new(&workload.namespace, &path, spec, status);
    target.metadata.labels = Some(workload.labels.clone()).filter(|labels| !labels.is_empty());
    Some(target)
}

fn sessions_at(
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

/// What is told of a workload, beside its metadata. Nothing, if it cannot be a target.
trait Described {
    fn describe(&self) -> Option<Workload>;
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

impl Described for Deployment {
    fn describe(&self) -> Option<Workload> {
        let spec = self.spec.as_ref()?;
        with_pods(
            TargetKind::Deployment,
            spec.replicas,
            spec.template.spec.as_ref(),
        )
    }
}

impl Described for StatefulSet {
    fn describe(&self) -> Option<Workload> {
        let spec = self.spec.as_ref()?;
        with_pods(
            TargetKind::StatefulSet,
            spec.replicas,
            spec.template.spec.as_ref(),
        )
    }
}

impl Described for DaemonSet {
    fn describe(&self) -> Option<Workload> {
        let spec = self.spec.as_ref()?;
        let wanted = self
            .status
            .as_ref()
            .map(|status| status.desired_number_scheduled);
        with_pods(TargetKind::DaemonSet, wanted, spec.template.spec.as_ref())
    }
}

impl Described for ReplicaSet {
    fn describe(&self) -> Option<Workload> {
        let spec = self.spec.as_ref()?;
        let pods = spec.template.as_ref().and_then(|pods| pods.spec.as_ref());
        with_pods(TargetKind::ReplicaSet, spec.replicas, pods)
    }
}

impl Described for Job {
    fn describe(&self) -> Option<Workload> {
        let spec = self.spec.as_ref()?;
        // A finished Job has no pod that runs.
        let active = self.status.as_ref().and_then(|status| status.active)?;
        with_pods(TargetKind::Job, Some(active), spec.template.spec.as_ref())
    }
}

impl Described for CronJob {
    fn describe(&self) -> Option<Workload> {
        let spec = self.spec.as_ref()?.job_template.spec.as_ref()?;
        with_pods(TargetKind::CronJob, None, spec.template.spec.as_ref())
    }
}

impl Described for Pod {
    fn describe(&self) -> Option<Workload> {
        let phase = self.status.as_ref()?.phase.as_deref();
        if phase != Some("Running") {
            return None;
        }
        with_pods(TargetKind::Pod, None, self.spec.as_ref())
    }
}

impl Described for Service {
    fn describe(&self) -> Option<Workload> {
        let selector = self.spec.as_ref()?.selector.clone();
        Some(Workload {
            kind: Some(TargetKind::Service),
            selector: Some(selector.filter(|labels| !labels.is_empty())?),
            ..Workload::default()
        })
    }
}

impl Listed for Target {
    const KIND: &str = Target::KIND;
    const COLUMNS: &[Column] = &[
        Column {
            name: "Name",
            kind: "string",
            description: "The target, as addresses name it",
            wide: false,
        },
        Column {
            name: "Containers",
            kind: "string",
            description: "The containers beside which an agent can work",
            wide: false,
        },
        Column {
            name: "Replicas",
            kind: "string",
            description: "How many pods it should have",
            wide: false,
        },
        Column {
            name: "Sessions",
            kind: "string",
            description: "Who is there now",
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
            description: "Which clusters have it, where the operator coordinates several",
            wide: true,
        },
        Column {
            name: "Traffic",
            kind: "string",
            description: "Who has the traffic of which port, with the filter by which it is chosen",
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
