//! Lists the possible targets of a namespace.

use std::collections::BTreeMap;

use k8s_openapi::api::apps::v1::{DaemonSet, Deployment, ReplicaSet, StatefulSet};
use k8s_openapi::api::batch::v1::{CronJob, Job};
use k8s_openapi::api::core::v1::{Namespace, Pod, PodTemplateSpec, Service};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::ObjectMeta;
use kube::api::ListParams;
use kube::core::NamespaceResourceScope;
use kube::{Api, Resource, ResourceExt as _};
use serde::Serialize;
use serde::de::DeserializeOwned;

use crate::access::Cluster;
use crate::error::{Error, Result, code};
use crate::pod::{check_pod, containers};
use crate::rights;
use crate::target::Kind;

/// An object that can be a target.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct ListedTarget {
    /// In the format of the `-t` flag.
    pub target: String,
    pub kind: String,
    pub name: String,
    pub namespace: String,
    /// The default container first.
    pub containers: Vec<String>,
    /// How many pods an agent can be started for now. Through an operator, the desired number of replicas, if known.
    pub available: Option<usize>,
    /// The users who have a session with it. Only an operator knows them.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub users: Vec<String>,
    /// The clusters that have it, if an operator coordinates several.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub clusters: Vec<String>,
}

#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize)]
pub struct Listing {
    pub targets: Vec<ListedTarget>,
    /// Kinds that the user may not list.
    pub forbidden: Vec<&'static str>,
    /// Warnings of an operator about targets that are missing here.
    pub warnings: Vec<String>,
}

/// Lists a namespace. The user must be allowed to list pods; other kinds that the user may not list are left out.
pub async fn list(cluster: &Cluster, namespace: &str) -> Result<Listing> {
    let pods = list_pods(cluster, namespace).await?;
    let lister = Lister {
        cluster,
        namespace,
        pods: &pods,
    };
    let (deployments, stateful_sets, daemon_sets, replica_sets, cron_jobs, jobs, services) = tokio::join!(
        lister.kind(Kind::Deployment, |found: &Deployment| {
            let spec = found.spec.as_ref();
            Some((
                spec.and_then(|spec| spec.selector.match_labels.clone()),
                spec.map(|spec| &spec.template),
            ))
        }),
        lister.kind(Kind::StatefulSet, |found: &StatefulSet| {
            let spec = found.spec.as_ref();
            Some((
                spec.and_then(|spec| spec.selector.match_labels.clone()),
                spec.map(|spec| &spec.template),
            ))
        }),
        lister.kind(Kind::DaemonSet, |found: &DaemonSet| {
            let spec = found.spec.as_ref();
            Some((
                spec.and_then(|spec| spec.selector.match_labels.clone()),
                spec.map(|spec| &spec.template),
            ))
        }),
        lister.kind(Kind::ReplicaSet, |found: &ReplicaSet| {
            let spec = found.spec.as_ref();
            let free = found.owner_references().is_empty();
            free.then(|| {
                (
                    spec.and_then(|spec| spec.selector.match_labels.clone()),
                    spec.and_then(|spec| spec.template.as_ref()),
                )
            })
        }),
        lister.kind(Kind::CronJob, |found: &CronJob| {
            let job = found
                .spec
                .as_ref()
                .and_then(|spec| spec.job_template.spec.as_ref());
            Some((None, job.map(|job| &job.template)))
        }),
        lister.kind(Kind::Job, |found: &Job| {
            let spec = found.spec.as_ref();
            let selector = spec.and_then(|spec| spec.selector.as_ref());
            let labels = selector.and_then(|selector| selector.match_labels.clone());
            Some((labels, spec.map(|spec| &spec.template)))
        }),
        lister.kind(Kind::Service, |found: &Service| {
            let selector = found.spec.as_ref().and_then(|spec| spec.selector.clone());
            selector.map(|selector| (Some(selector), None))
        }),
    );
    let mut listing = Listing::default();
    for (kind, listed) in [
        (Kind::Deployment, deployments?),
        (Kind::StatefulSet, stateful_sets?),
        (Kind::DaemonSet, daemon_sets?),
        (Kind::ReplicaSet, replica_sets?),
        (Kind::CronJob, cron_jobs?),
        (Kind::Job, jobs?),
        (Kind::Service, services?),
    ] {
        match listed {
            Some(listed) => listing.targets.extend(listed),
            None => listing.forbidden.push(kind.as_str()),
        }
    }
    listing.targets.extend(pods.iter().map(|pod| ListedTarget {
        available: Some(usize::from(check_pod(pod, None).is_ok())),
        ..listed(Kind::Pod, &pod.metadata, containers(pod), 0)
    }));
    Ok(listing)
}

/// Whether a namespace exists. `None` if the user may not read it.
pub async fn has_namespace(cluster: &Cluster, name: &str) -> Option<bool> {
    let namespaces: Api<Namespace> = Api::all(cluster.client.clone());
    let found = namespaces.get_metadata_opt(name).await.ok()?;
    Some(found.is_some())
}

async fn list_pods(cluster: &Cluster, namespace: &str) -> Result<Vec<Pod>> {
    let pods: Api<Pod> = Api::namespaced(cluster.client.clone(), namespace);
    match pods.list(&ListParams::default()).await {
        Ok(found) => Ok(found.items),
        Err(error) if code(&error) == Some(403) => {
            let needed = rights::to_resolve(Kind::Pod);
            Err(rights::forbidden(&cluster.client, namespace, "list pods", None, &needed).await)
        }
        Err(error) => Err(cluster.first_error("list pods", error)),
    }
}

struct Lister<'call> {
    cluster: &'call Cluster,
    namespace: &'call str,
    pods: &'call [Pod],
}

/// The label selector of a workload's pods, and their template.
type Shape<'object> = (
    Option<BTreeMap<String, String>>,
    Option<&'object PodTemplateSpec>,
);

impl Lister<'_> {
    /// All objects of one kind. `None` if the user may not list it.
    async fn kind<K>(
        &self,
        kind: Kind,
        shape: impl Fn(&K) -> Option<Shape<'_>>,
    ) -> Result<Option<Vec<ListedTarget>>>
    where
        K: Resource<Scope = NamespaceResourceScope, DynamicType = ()>
            + Clone
            + DeserializeOwned
            + std::fmt::Debug,
    {
        let api: Api<K> = Api::namespaced(self.cluster.client.clone(), self.namespace);
        let found = match api.list(&ListParams::default()).await {
            Ok(found) => found.items,
            Err(error) if code(&error) == Some(403) => return Ok(None),
            Err(error) => return Err(Error::api(format!("list {}s", kind.as_str()), error)),
        };
        let listed = found.iter().filter_map(|object| {
            let (labels, template) = shape(object)?;
            let own: Vec<&Pod> = self
                .pods
                .iter()
                .filter(|pod| {
                    labels
                        .as_ref()
                        .is_some_and(|labels| matches(pod.labels(), labels))
                })
                .collect();
            let of_template = template.map(|template| {
                containers(&Pod {
                    metadata: template.metadata.clone().unwrap_or_default(),
                    spec: template.spec.clone(),
                    status: None,
                })
            });
            let names = of_template
                .or_else(|| own.first().map(|pod| containers(pod)))
                .unwrap_or_default();
            let available = own
                .iter()
                .filter(|pod| check_pod(pod, None).is_ok())
                .count();
            Some(listed(kind, object.meta(), names, available))
        });
        Ok(Some(listed.collect()))
    }
}

fn matches(labels: &BTreeMap<String, String>, selector: &BTreeMap<String, String>) -> bool {
    selector
        .iter()
        .all(|(key, value)| labels.get(key) == Some(value))
}

fn listed(
    kind: Kind,
    metadata: &ObjectMeta,
    containers: Vec<String>,
    available: usize,
) -> ListedTarget {
    let name = metadata.name.clone().unwrap_or_default();
    ListedTarget {
        target: format!("{}/{name}", kind.as_str()),
        kind: kind.as_str().to_owned(),
        name,
        namespace: metadata.namespace.clone().unwrap_or_default(),
        containers,
        available: Some(available),
        users: Vec::new(),
        clusters: Vec::new(),
    }
}
