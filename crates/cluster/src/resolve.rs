//! Resolves a target to the selection of its pods.

use k8s_openapi::api::apps::v1::{DaemonSet, Deployment, ReplicaSet, StatefulSet};
use k8s_openapi::api::batch::v1::{CronJob, Job};
use k8s_openapi::api::core::v1::Service;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::LabelSelector;
use kube::api::DynamicObject;
use kube::core::{ApiResource, GroupVersionKind, NamespaceResourceScope, Selector};
use kube::runtime::watcher;
use kube::{Api, Resource, ResourceExt as _};
use serde::de::DeserializeOwned;
use serde_json::Value;

use crate::access::Cluster;
use crate::error::{Error, Result, code};
use crate::owner::Owner;
use crate::rights;
use crate::target::{Kind, Workload};

/// Selects the pods of a target.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Selection {
    /// Applied by the API server.
    pub(crate) filter: Filter,
    pub(crate) owner: Owner,
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Filter {
    Name(String),
    Labels(String),
}

impl Selection {
    pub(crate) fn watcher_config(&self) -> watcher::Config {
        let config = watcher::Config::default();
        match &self.filter {
            Filter::Name(name) => config.fields(&format!("metadata.name={name}")),
            Filter::Labels(labels) => config.labels(labels),
        }
    }
}

/// Reads the target and selects its pods.
pub(crate) async fn resolve(cluster: &Cluster, target: &Workload) -> Result<Selection> {
    let lookup = Lookup { cluster, target };
    let (filter, owner) = match target.kind {
        Kind::Pod => (Filter::Name(target.name.clone()), Owner::Any),
        Kind::Selector => (Filter::Labels(target.name.clone()), Owner::Any),
        Kind::Deployment => {
            let found: Deployment = lookup.get().await?;
            let uid = found.uid().unwrap_or_default();
            let selector = found.spec.map(|spec| spec.selector);
            (lookup.labels(selector)?, Owner::Indirect(uid))
        }
        Kind::ReplicaSet => {
            let found: ReplicaSet = lookup.get().await?;
            let uid = found.uid().unwrap_or_default();
            let selector = found.spec.map(|spec| spec.selector);
            (lookup.labels(selector)?, Owner::Direct(uid))
        }
        Kind::StatefulSet => {
            let found: StatefulSet = lookup.get().await?;
            let uid = found.uid().unwrap_or_default();
            let selector = found.spec.map(|spec| spec.selector);
            (lookup.labels(selector)?, Owner::Direct(uid))
        }
        Kind::DaemonSet => {
            let found: DaemonSet = lookup.get().await?;
            let uid = found.uid().unwrap_or_default();
            let selector = found.spec.map(|spec| spec.selector);
            (lookup.labels(selector)?, Owner::Direct(uid))
        }
        Kind::Job => {
            let found: Job = lookup.get().await?;
            let uid = found.uid().unwrap_or_default();
            let selector = found.spec.and_then(|spec| spec.selector);
            (lookup.labels(selector)?, Owner::Direct(uid))
        }
        Kind::CronJob => {
            let found: CronJob = lookup.get().await?;
            let uid = found.uid().unwrap_or_default();
            let of_jobs = Filter::Labels("batch.kubernetes.io/job-name".to_owned());
            (of_jobs, Owner::Indirect(uid))
        }
        Kind::Service => {
            let found: Service = lookup.get().await?;
            let labels = found.spec.and_then(|spec| spec.selector);
            let selector = labels.map(|labels| LabelSelector {
                match_labels: Some(labels),
                ..LabelSelector::default()
            });
            (lookup.labels(selector)?, Owner::Any)
        }
        Kind::Rollout => {
            let (filter, uid) = lookup.rollout().await?;
            (filter, Owner::Indirect(uid))
        }
    };
    Ok(Selection { filter, owner })
}

struct Lookup<'call> {
    cluster: &'call Cluster,
    target: &'call Workload,
}

impl Lookup<'_> {
    async fn get<K>(&self) -> Result<K>
    where
        K: Resource<Scope = NamespaceResourceScope, DynamicType = ()>
            + Clone
            + DeserializeOwned
            + std::fmt::Debug,
    {
        self.get_with(Api::namespaced(
            self.cluster.client.clone(),
            &self.target.namespace,
        ))
        .await
    }

    async fn get_with<K>(&self, api: Api<K>) -> Result<K>
    where
        K: Clone + DeserializeOwned + std::fmt::Debug,
    {
        let error = match api.get(&self.target.name).await {
            Ok(found) => return Ok(found),
            Err(error) => error,
        };
        let Workload {
            namespace, kind, ..
        } = self.target;
        let action = format!("get {}", self.target);
        Err(match code(&error) {
            Some(404) => Error::NotFound {
                target: format!("{}/{}", kind.as_str(), self.target.name),
                namespace: namespace.clone(),
                hint: format!(
                    "`standin ls -n {namespace}` lists what is there; -n names another namespace, --context another cluster"
                ),
            },
            Some(403) => {
                let needed = rights::for_session(*kind);
                let denied = needed.first().copied();
                rights::forbidden(&self.cluster.client, namespace, &action, denied, &needed).await
            }
            _ => self.cluster.first_error(&action, error),
        })
    }

    /// Rollouts are not part of Kubernetes, and may refer to a Deployment instead of having a selector of their own. They
    /// control their own ReplicaSets in any case. Returns the filter of the pods, and the uid of the Rollout.
    async fn rollout(&self) -> Result<(Filter, String)> {
        let kind = GroupVersionKind::gvk("argoproj.io", "v1alpha1", "Rollout");
        let resource = ApiResource::from_gvk(&kind);
        let (client, namespace) = (self.cluster.client.clone(), &self.target.namespace);
        let rollout = Api::<DynamicObject>::namespaced_with(client, namespace, &resource);
        let rollout = self.get_with(rollout).await?;
        let uid = rollout.uid().unwrap_or_default();
        let own = rollout.data.pointer("/spec/selector").cloned();
        let selector = match own {
            Some(selector) => Some(selector_of(selector)),
            None => {
                let name = rollout.data.pointer("/spec/workloadRef/name");
                let workload = Workload {
                    kind: Kind::Deployment,
                    name: name.and_then(Value::as_str).unwrap_or_default().to_owned(),
                    ..self.target.clone()
                };
                let lookup = Lookup {
                    target: &workload,
                    ..*self
                };
                let found: Deployment = lookup.get().await?;
                found.spec.map(|spec| spec.selector)
            }
        };
        Ok((self.labels(selector)?, uid))
    }

    fn labels(&self, selector: Option<LabelSelector>) -> Result<Filter> {
        let text = selector.and_then(labels_of);
        text.map(Filter::Labels).ok_or_else(|| Error::NoPod {
            target: self.target.to_string(),
            namespace: self.target.namespace.clone(),
            why: "it selects no pods by labels".to_owned(),
        })
    }
}

fn selector_of(selector: Value) -> LabelSelector {
    serde_json::from_value(selector).unwrap_or_default()
}

/// A selector as text. `None` for an empty or invalid selector, which would select all pods.
fn labels_of(selector: LabelSelector) -> Option<String> {
    let selector = Selector::try_from(selector).ok()?;
    let text = selector.to_string();
    (!text.is_empty()).then_some(text)
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use serde_json::json;

    use super::*;

    #[test]
    fn selectors_are_converted_to_text() {
        let check = |selector: Value, expected: Option<&str>| {
            let text = labels_of(selector_of(selector));
            // The order is not significant.
            let parts = |text: &str| text.split(',').map(str::to_owned).collect::<BTreeSet<_>>();
            assert_eq!(text.as_deref().map(parts), expected.map(parts));
        };
        check(json!({"matchLabels": {"app": "web"}}), Some("app=web"));
        check(
            json!({"matchExpressions": [{"key": "tier", "operator": "In", "values": ["a", "b"]}]}),
            Some("tier in (a,b)"),
        );
        check(
            json!({"matchLabels": {"app": "web"}, "matchExpressions": [{"key": "old", "operator": "DoesNotExist"}]}),
            Some("app=web,!old"),
        );
        check(json!({}), None);
        check(json!("nonsense"), None);
    }
}
