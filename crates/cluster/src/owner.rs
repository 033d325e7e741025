//! Decides which pods belong to a target: those that it controls, by uid.
//!
//! Labels are not enough, because the selectors of two workloads may overlap, and a right to one target is none to the pods of
//! another. A Deployment controls its pods through a ReplicaSet, and a CronJob through a Job. Those are read, because a pod only
//! names its own controller.

use std::collections::{BTreeSet, HashMap};
use std::fmt;

use k8s_openapi::api::apps::v1::ReplicaSet;
use k8s_openapi::api::batch::v1::Job;
use k8s_openapi::api::core::v1::Pod;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::{ObjectMeta, OwnerReference};
use kube::api::ListParams;
use kube::core::{NamespaceResourceScope, PartialObjectMeta};
use kube::{Api, Client, Resource};
use serde::de::DeserializeOwned;

use crate::access::Cluster;
use crate::error::{Error, Result};

/// With more objects than this to read, they are listed in one request.
const MAX_SINGLE_READS: usize = 8;

/// The required owner of a pod.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Owner {
    Any,
    /// The object with this uid controls the pod.
    Direct(String),
    /// The object with this uid controls the ReplicaSet or the Job that controls the pod.
    Indirect(String),
}

/// The controllers of the pods of one namespace.
#[derive(Clone)]
pub struct PodOwners {
    client: Client,
    namespace: String,
    /// The controllers of ReplicaSets and Jobs, by the uid of the controlled object. `None` without one.
    controllers: HashMap<String, Option<OwnerReference>>,
}

impl PodOwners {
    pub fn new(cluster: &Cluster, namespace: &str) -> Self {
        Self {
            client: cluster.client.clone(),
            namespace: namespace.to_owned(),
            controllers: HashMap::new(),
        }
    }

    /// The controller of a pod, and the controller of that one. Empty for a pod that is alone.
    pub async fn of_pod(&mut self, pod: &Pod) -> Result<Vec<OwnerReference>> {
        let Some(direct) = controller(&pod.metadata) else {
            return Ok(Vec::new());
        };
        let indirect = self.above(direct).await.map_err(unreadable)?;
        Ok([Some(direct.clone()), indirect]
            .into_iter()
            .flatten()
            .collect())
    }

    pub(crate) async fn is_of(&mut self, pod: &Pod, owner: &Owner) -> kube::Result<bool> {
        let Some(direct) = controller(&pod.metadata) else {
            return Ok(*owner == Owner::Any);
        };
        Ok(match owner {
            Owner::Any => true,
            Owner::Direct(uid) => direct.uid == *uid,
            Owner::Indirect(uid) => {
                let indirect = self.above(direct).await?;
                indirect.is_some_and(|indirect| indirect.uid == *uid)
            }
        })
    }

    /// Reads the controllers of all pods at once, where there are many.
    pub(crate) async fn prepare(&mut self, pods: &[Pod]) -> kube::Result<()> {
        let direct = pods.iter().filter_map(|pod| controller(&pod.metadata));
        let between: BTreeSet<(Between, &str)> = direct
            .filter_map(|direct| Some((Between::of(direct)?, direct.uid.as_str())))
            .collect();
        for kind in [Between::ReplicaSet, Between::Job] {
            if between.iter().filter(|(found, _)| *found == kind).count() > MAX_SINGLE_READS {
                self.list(kind).await?;
            }
        }
        Ok(())
    }

    /// The controller of a pod's controller.
    async fn above(&mut self, direct: &OwnerReference) -> kube::Result<Option<OwnerReference>> {
        let Some(kind) = Between::of(direct) else {
            return Ok(None);
        };
        if let Some(known) = self.controllers.get(&direct.uid) {
            return Ok(known.clone());
        }
        let found = match kind {
            Between::ReplicaSet => self.metadata::<ReplicaSet>(&direct.name).await?,
            Between::Job => self.metadata::<Job>(&direct.name).await?,
        };
        // An object of that name that was created later is another one.
        let found = found.filter(|found| found.uid.as_ref() == Some(&direct.uid));
        let above = found.as_ref().and_then(controller).cloned();
        // Without a controller it may still be adopted by one.
        if above.is_some() {
            self.controllers.insert(direct.uid.clone(), above.clone());
        }
        Ok(above)
    }

    async fn list(&mut self, kind: Between) -> kube::Result<()> {
        let all = match kind {
            Between::ReplicaSet => self.list_metadata::<ReplicaSet>().await?,
            Between::Job => self.list_metadata::<Job>().await?,
        };
        for metadata in all {
            let above = controller(&metadata).cloned();
            let uid = metadata.uid.unwrap_or_default();
            self.controllers.insert(uid, above);
        }
        Ok(())
    }

    async fn metadata<K>(&self, name: &str) -> kube::Result<Option<ObjectMeta>>
    where
        K: Resource<Scope = NamespaceResourceScope, DynamicType = ()>,
        K: Clone + DeserializeOwned + std::fmt::Debug,
    {
        let objects: Api<K> = Api::namespaced(self.client.clone(), &self.namespace);
        let found = objects.get_metadata_opt(name).await?;
        Ok(found.map(|found: PartialObjectMeta<K>| found.metadata))
    }

    async fn list_metadata<K>(&self) -> kube::Result<Vec<ObjectMeta>>
    where
        K: Resource<Scope = NamespaceResourceScope, DynamicType = ()>,
        K: Clone + DeserializeOwned + std::fmt::Debug,
    {
        let objects: Api<K> = Api::namespaced(self.client.clone(), &self.namespace);
        let found = objects.list_metadata(&ListParams::default()).await?;
        Ok(found.items.into_iter().map(|it| it.metadata).collect())
    }
}

pub(crate) fn unreadable(error: kube::Error) -> Error {
    Error::api("read the owner of a pod", error)
}

/// The kinds of objects between a workload and its pods.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
enum Between {
    ReplicaSet,
    Job,
}

impl Between {
    fn of(owner: &OwnerReference) -> Option<Self> {
        let (group, _) = owner.api_version.split_once('/')?;
        match (group, owner.kind.as_str()) {
            ("apps", "ReplicaSet") => Some(Self::ReplicaSet),
            ("batch", "Job") => Some(Self::Job),
            _ => None,
        }
    }
}

impl fmt::Debug for PodOwners {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut debug = formatter.debug_struct("PodOwners");
        debug
            .field("namespace", &self.namespace)
            .finish_non_exhaustive()
    }
}

fn controller(metadata: &ObjectMeta) -> Option<&OwnerReference> {
    let mut owners = metadata.owner_references.iter().flatten();
    owners.find(|owner| owner.controller == Some(true))
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;
    use std::sync::atomic::{AtomicUsize, Ordering};

    use http::{Request, Response};
    use kube::client::Body;
    use serde_json::{Value, json};

    use super::*;

    fn owner(kind: &str, name: &str, uid: &str) -> Value {
        let version = match kind {
            "Job" | "CronJob" => "batch/v1",
            "Rollout" => "argoproj.io/v1alpha1",
            _ => "apps/v1",
        };
        json!({"apiVersion": version, "kind": kind, "name": name, "uid": uid, "controller": true})
    }

    fn pod(owners: &[Value]) -> Pod {
        let pod =
            json!({"metadata": {"name": "a", "namespace": "shop", "ownerReferences": owners}});
        serde_json::from_value(pod).unwrap()
    }

    fn object(name: &str, uid: &str, owners: &[Value]) -> Value {
        json!({
            "apiVersion": "meta.k8s.io/v1", "kind": "PartialObjectMetadata",
            "metadata": {"name": name, "uid": uid, "ownerReferences": owners},
        })
    }

    /// A cluster with these ReplicaSets and Jobs, and the number of requests that it has answered.
    fn cluster(objects: Vec<(&'static str, Value)>) -> (Cluster, Arc<AtomicUsize>) {
        let requests = Arc::new(AtomicUsize::new(0));
        let counted = Arc::clone(&requests);
        let service = tower::service_fn(move |request: Request<Body>| {
            counted.fetch_add(1, Ordering::Relaxed);
            let path = request.uri().path().to_owned();
            let prefix = |resource: &str| match resource {
                "jobs" => format!("/apis/batch/v1/namespaces/shop/{resource}"),
                _ => format!("/apis/apps/v1/namespaces/shop/{resource}"),
            };
            let of_list = |(resource, object): &(&str, Value)| {
                (prefix(resource) == path).then(|| object.clone())
            };
            let items: Vec<Value> = objects.iter().filter_map(of_list).collect();
            let one = objects.iter().find(|(resource, object)| {
                let name = object["metadata"]["name"].as_str().unwrap();
                format!("{}/{name}", prefix(resource)) == path
            });
            let (code, body) = match one {
                Some((_, object)) => (200, object.clone()),
                None if !items.is_empty() => (
                    200,
                    json!({
                        "apiVersion": "meta.k8s.io/v1", "kind": "PartialObjectMetadataList",
                        "metadata": {}, "items": items,
                    }),
                ),
                None => (
                    404,
                    json!({"kind": "Status", "status": "Failure", "code": 404, "reason": "NotFound", "message": ""}),
                ),
            };
            let response = Response::builder().status(code);
            let response = response.body(Body::from(body.to_string().into_bytes()));
            std::future::ready(Ok::<_, std::convert::Infallible>(response.unwrap()))
        });
        let client = Client::new(service, "shop");
        (Cluster::new(client, "shop"), requests)
    }

    /// Each kind of target, with pods of its own and pods that have the same labels.
    #[tokio::test]
    async fn a_pod_belongs_to_the_target_that_controls_it() {
        let (cluster, _) = cluster(vec![
            (
                "replicasets",
                object("web-1", "set-1", &[owner("Deployment", "web", "web")]),
            ),
            (
                "replicasets",
                object("bank-1", "set-2", &[owner("Deployment", "bank", "bank")]),
            ),
            (
                "replicasets",
                object("canary-1", "set-3", &[owner("Rollout", "canary", "canary")]),
            ),
            ("replicasets", object("alone", "set-4", &[])),
            (
                "jobs",
                object("night-1", "job-1", &[owner("CronJob", "night", "night")]),
            ),
            (
                "jobs",
                object("day-1", "job-2", &[owner("CronJob", "day", "day")]),
            ),
        ]);
        let set = |name: &str, uid: &str| vec![owner("ReplicaSet", name, uid)];
        let direct = |uid: &str| Owner::Direct(uid.to_owned());
        let indirect = |uid: &str| Owner::Indirect(uid.to_owned());
        let mut not_controlled = owner("ReplicaSet", "web-1", "set-1");
        not_controlled["controller"] = json!(false);
        let mut foreign_group = owner("ReplicaSet", "web-1", "set-1");
        foreign_group["apiVersion"] = json!("example.com/v1");
        let cases = [
            ("a Deployment", set("web-1", "set-1"), indirect("web"), true),
            (
                "another Deployment",
                set("bank-1", "set-2"),
                indirect("web"),
                false,
            ),
            (
                "a Rollout",
                set("canary-1", "set-3"),
                indirect("canary"),
                true,
            ),
            (
                "the Deployment beside a Rollout",
                set("web-1", "set-1"),
                indirect("canary"),
                false,
            ),
            (
                "a ReplicaSet alone",
                set("alone", "set-4"),
                indirect("web"),
                false,
            ),
            (
                "a deleted ReplicaSet",
                set("web-0", "set-0"),
                indirect("web"),
                false,
            ),
            (
                "a ReplicaSet of the same name",
                set("web-1", "set-9"),
                indirect("web"),
                false,
            ),
            ("a mere owner", vec![not_controlled], indirect("web"), false),
            (
                "another kind of that name",
                vec![foreign_group],
                indirect("web"),
                false,
            ),
            ("no owner", vec![], indirect("web"), false),
            (
                "a CronJob",
                vec![owner("Job", "night-1", "job-1")],
                indirect("night"),
                true,
            ),
            (
                "another CronJob",
                vec![owner("Job", "day-1", "job-2")],
                indirect("night"),
                false,
            ),
            (
                "a ReplicaSet itself",
                set("web-1", "set-1"),
                direct("set-1"),
                true,
            ),
            (
                "another ReplicaSet",
                set("bank-1", "set-2"),
                direct("set-1"),
                false,
            ),
            (
                "a StatefulSet",
                vec![owner("StatefulSet", "db", "db")],
                direct("db"),
                true,
            ),
            (
                "another StatefulSet",
                vec![owner("StatefulSet", "db", "old")],
                direct("db"),
                false,
            ),
            (
                "a DaemonSet",
                vec![owner("DaemonSet", "log", "log")],
                direct("log"),
                true,
            ),
            (
                "a Job",
                vec![owner("Job", "day-1", "job-2")],
                direct("job-2"),
                true,
            ),
            ("any pod", vec![], Owner::Any, true),
            (
                "any pod with an owner",
                set("web-1", "set-1"),
                Owner::Any,
                true,
            ),
        ];
        let mut owners = PodOwners::new(&cluster, "shop");
        for (what, references, required, expected) in cases {
            let found = owners.is_of(&pod(&references), &required).await;
            assert_eq!(found.unwrap(), expected, "{what}");
        }
    }

    #[tokio::test]
    async fn many_owners_are_read_with_one_request() {
        let count = MAX_SINGLE_READS + 1;
        let objects = (0..count).map(|number| {
            let (name, uid) = (format!("night-{number}"), format!("job-{number}"));
            (
                "jobs",
                object(&name, &uid, &[owner("CronJob", "night", "night")]),
            )
        });
        let (cluster, requests) = cluster(objects.collect());
        let pods = (0..count).map(|number| {
            pod(&[owner(
                "Job",
                &format!("night-{number}"),
                &format!("job-{number}"),
            )])
        });
        let pods: Vec<Pod> = pods.collect();
        let mut owners = PodOwners::new(&cluster, "shop");
        owners.prepare(&pods).await.unwrap();
        for pod in &pods {
            let required = Owner::Indirect("night".to_owned());
            assert!(owners.is_of(pod, &required).await.unwrap());
        }
        assert_eq!(requests.load(Ordering::Relaxed), 1);
    }

    #[tokio::test]
    async fn all_controllers_of_a_pod_are_found() {
        let web = object("web-1", "set-1", &[owner("Deployment", "web", "web")]);
        let (cluster, _) = cluster(vec![("replicasets", web)]);
        let mut owners = PodOwners::new(&cluster, "shop");
        let cases = [
            (
                vec![owner("ReplicaSet", "web-1", "set-1")],
                vec!["web-1", "web"],
            ),
            (vec![owner("StatefulSet", "db", "db")], vec!["db"]),
            (vec![], vec![]),
        ];
        for (references, expected) in cases {
            let found = owners.of_pod(&pod(&references)).await.unwrap();
            let names: Vec<&str> = found.iter().map(|owner| owner.name.as_str()).collect();
            assert_eq!(names, expected);
        }
    }
}
