//! Compiles the administrators' policies for one pod of a session's target into one grant.
//!
//! A policy selects targets, and a pod belongs to many targets: itself, its owners and the Services that select it. The policy
//! applies to the pod whichever of them the client has requested.

use std::collections::{BTreeMap, BTreeSet};

use api::policy::{
    BlockedFeature, PolicyRules, PolicySelector, SelectorExpression, SelectorOperator,
};
use api::{MirrordClusterPolicy, MirrordPolicy};
use cluster::Replica;
use futures_util::Stream;
use k8s_openapi::api::apps::v1::ReplicaSet;
use k8s_openapi::api::batch::v1::Job;
use k8s_openapi::api::core::v1::{Pod, Service};
use kube::api::ListParams;
use kube::{Api, Client, Resource, ResourceExt as _};
use protocol::grant::Grant;
use serde::de::DeserializeOwned;
use sha2::{Digest as _, Sha256};

use crate::Shared;
use crate::background::Background;
use crate::cache::ObjectCache;
use crate::controller::ValidatedSpec;
use crate::error::{KubeResultExt as _, Result};

/// A session's grant, and the policies that it was computed from.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Granted {
    pub(crate) grant: Grant,
    /// A digest of all policies, also of those that do not apply.
    pub(crate) policies: String,
}

/// The grant of the session for this pod, by the current policies.
pub(crate) async fn granted(
    shared: &Shared,
    spec: &ValidatedSpec,
    replica: &Replica,
) -> Result<Granted> {
    let (policies, digest) = policies(&shared.client, &replica.namespace).await?;
    Ok(Granted {
        grant: grant(shared, spec, replica, &policies).await?,
        policies: digest,
    })
}

async fn grant(
    shared: &Shared,
    spec: &ValidatedSpec,
    replica: &Replica,
    policies: &[PolicyRules],
) -> Result<Grant> {
    let mut grant = Grant {
        holder: Some(spec.holder.clone()),
        ..Grant::default()
    };
    grant.incoming.probes = replica.probes.clone();
    if policies.is_empty() {
        return Ok(grant);
    }
    if spec.target.is_none() {
        let names = [spec.target_path.clone()].into();
        for rules in policies {
            if applies_to(rules, &names, &BTreeMap::new()) {
                add(&mut grant, rules);
            }
        }
        return Ok(grant);
    }
    let pods: Api<Pod> = Api::namespaced(shared.client.clone(), &replica.namespace);
    let pod = pods
        .get(&replica.pod)
        .await
        .action("read the pod of a target")?;
    let mut names = names(&shared.client, &pod).await?;
    names.insert(spec.target_path.clone());
    for rules in policies {
        if applies_to(rules, &names, pod.labels()) {
            add(&mut grant, rules);
        }
    }
    Ok(grant)
}

async fn policies(client: &Client, namespace: &str) -> Result<(Vec<PolicyRules>, String)> {
    let everywhere: Api<MirrordClusterPolicy> = Api::all(client.clone());
    let here: Api<MirrordPolicy> = Api::namespaced(client.clone(), namespace);
    let all = ListParams::default();
    let (everywhere, here) = tokio::join!(everywhere.list(&all), here.list(&all));
    let everywhere = everywhere.action("list the policies of the cluster")?.items;
    let here = here.action("list the policies of a namespace")?.items;
    let versions = everywhere.iter().map(version);
    let digest = digest(versions.chain(here.iter().map(version)));
    let everywhere = everywhere.into_iter().map(|policy| policy.spec.rules);
    let here = here.into_iter().map(|policy| policy.spec.rules);
    Ok((everywhere.chain(here).collect(), digest))
}

/// A cache of all policies, to detect changes.
#[derive(Clone)]
pub(crate) struct PolicyCache {
    everywhere: ObjectCache<MirrordClusterPolicy>,
    here: ObjectCache<MirrordPolicy>,
}

impl PolicyCache {
    pub(crate) fn start(client: &Client, background: &Background) -> Self {
        Self {
            everywhere: ObjectCache::start(client.clone(), background, "cluster_policies"),
            here: ObjectCache::start(client.clone(), background, "policies"),
        }
    }

    /// Whether all policies are known.
    pub(crate) fn is_filled(&self) -> bool {
        self.everywhere.is_filled() && self.here.is_filled()
    }

    /// A digest of all policies that can apply to targets of a namespace. It may be slightly outdated.
    pub(crate) fn digest(&self, namespace: &str) -> String {
        let everywhere = self.everywhere.all();
        let here = self.here.all();
        let here = here
            .iter()
            .filter(|policy| policy.namespace().as_deref() == Some(namespace));
        let here = here.map(|policy| version(&**policy));
        let everywhere = everywhere.iter().map(|policy| version(&**policy));
        digest(everywhere.chain(here))
    }

    /// An item for each time that a policy was created, changed or deleted.
    pub(crate) fn changes(&self) -> impl Stream<Item = ()> + Send + Sync + 'static + use<> {
        let changes = (self.everywhere.subscribe(), self.here.subscribe());
        futures_util::stream::unfold(changes, async |(mut everywhere, mut here)| {
            let changed = tokio::select! {
                changed = everywhere.changed() => changed,
                changed = here.changed() => changed,
            };
            changed.ok().map(|()| ((), (everywhere, here)))
        })
    }
}

/// The identity and the generation of a policy.
fn version(policy: &impl Resource) -> String {
    let metadata = policy.meta();
    let uid = metadata.uid.as_deref().unwrap_or_default();
    format!("{uid}/{}", metadata.generation.unwrap_or_default())
}

/// A digest that does not depend on the order.
fn digest(versions: impl Iterator<Item = String>) -> String {
    let versions: BTreeSet<String> = versions.collect();
    short_digest(&versions.into_iter().collect::<Vec<_>>().join(" "))
}

/// A digest that is long enough to distinguish values.
pub(crate) fn short_digest(text: &str) -> String {
    let digest = Sha256::digest(text);
    digest
        .iter()
        .take(8)
        .map(|byte| format!("{byte:02x}"))
        .collect()
}

/// The paths of all targets that the pod belongs to.
async fn names(client: &Client, pod: &Pod) -> Result<BTreeSet<String>> {
    let namespace = pod.namespace().unwrap_or_default();
    let mut names: BTreeSet<String> = [format!("pod/{}", pod.name_any())].into();
    for owner in pod.owner_references() {
        names.insert(target(&owner.kind, &owner.name));
        let above = match owner.kind.as_str() {
            "ReplicaSet" => owners::<ReplicaSet>(client, &namespace, &owner.name).await?,
            "Job" => owners::<Job>(client, &namespace, &owner.name).await?,
            _ => Vec::new(),
        };
        names.extend(above);
    }
    let services: Api<Service> = Api::namespaced(client.clone(), &namespace);
    let services = services.list(&ListParams::default()).await;
    let services = services.action("list the services of a namespace")?;
    let in_front = services.items.iter().filter(|service| {
        let selector = service
            .spec
            .as_ref()
            .and_then(|spec| spec.selector.as_ref());
        selector.is_some_and(|labels| !labels.is_empty() && has_all(pod.labels(), labels))
    });
    names.extend(in_front.map(|service| target("service", &service.name_any())));
    Ok(names)
}

async fn owners<K>(client: &Client, namespace: &str, name: &str) -> Result<Vec<String>>
where
    K: Resource<Scope = kube::core::NamespaceResourceScope, DynamicType = ()>
        + Clone
        + DeserializeOwned
        + std::fmt::Debug,
{
    let objects: Api<K> = Api::namespaced(client.clone(), namespace);
    let found = objects
        .get_opt(name)
        .await
        .action("read the owner of a pod")?;
    let owners = found.iter().flat_map(kube::ResourceExt::owner_references);
    Ok(owners
        .map(|owner| target(&owner.kind, &owner.name))
        .collect())
}

fn target(kind: &str, name: &str) -> String {
    format!("{}/{name}", kind.to_lowercase())
}

fn applies_to(
    rules: &PolicyRules,
    names: &BTreeSet<String>,
    labels: &BTreeMap<String, String>,
) -> bool {
    let by_name = rules.target_path.as_ref().is_none_or(|pattern| {
        let pattern = pattern.to_lowercase();
        names.iter().any(|name| matches_pattern(&pattern, name))
    });
    let by_labels = rules
        .selector
        .as_ref()
        .is_none_or(|selector| selects(selector, labels));
    by_name && by_labels
}

/// Matches a pattern in which `*` stands for any characters.
fn matches_pattern(pattern: &str, text: &str) -> bool {
    let mut parts = pattern.split('*');
    let first = parts.next().unwrap_or_default();
    let Some(mut rest) = text.strip_prefix(first) else {
        return false;
    };
    let mut parts: Vec<&str> = parts.collect();
    let Some(last) = parts.pop() else {
        return rest.is_empty();
    };
    for part in parts {
        match rest.find(part) {
            Some(found) => rest = &rest[found + part.len()..],
            None => return false,
        }
    }
    rest.ends_with(last)
}

fn selects(selector: &PolicySelector, labels: &BTreeMap<String, String>) -> bool {
    let mut expressions = selector.match_expressions.iter();
    has_all(labels, &selector.match_labels)
        && expressions.all(|expression| holds(expression, labels))
}

fn has_all(labels: &BTreeMap<String, String>, required: &BTreeMap<String, String>) -> bool {
    let mut required = required.iter();
    required.all(|(key, value)| labels.get(key) == Some(value))
}

fn holds(expression: &SelectorExpression, labels: &BTreeMap<String, String>) -> bool {
    let value = labels.get(&expression.key);
    let is_among = value.is_some_and(|value| expression.values.contains(value));
    match expression.operator {
        SelectorOperator::In => is_among,
        SelectorOperator::NotIn => !is_among,
        SelectorOperator::Exists => value.is_some(),
        SelectorOperator::DoesNotExist => value.is_none(),
    }
}

/// Adds the restrictions of one policy. No other policy can lift them.
fn add(grant: &mut Grant, rules: &PolicyRules) {
    for blocked in &rules.block {
        match blocked {
            BlockedFeature::Steal => grant.incoming.no_steal = true,
            BlockedFeature::StealWithoutFilter => grant.incoming.no_steal_without_filter = true,
            BlockedFeature::Mirror => grant.incoming.no_mirror = true,
        }
    }
    if let Some(env) = &rules.env {
        grant.hidden_variables.extend(env.exclude.iter().cloned());
    }
    if let Some(files) = &rules.fs {
        grant
            .files
            .read_only
            .extend(files.read_only.iter().cloned());
        // The target does not serve paths that are local to the client.
        let hidden = files.local.iter().chain(&files.not_found);
        grant.files.hidden.extend(hidden.cloned());
    }
    let Some(network) = &rules.network else {
        return;
    };
    let incoming = network.incoming.as_ref();
    let header = incoming
        .and_then(|incoming| incoming.http_filter.as_ref())
        .and_then(|filter| filter.header.clone());
    grant.incoming.header_filters.extend(header);
    if let Some(outgoing) = &network.outgoing {
        if !outgoing.allow.is_empty() {
            grant.outgoing.only.push(outgoing.allow.clone());
        }
        grant
            .outgoing
            .none_of
            .extend(outgoing.block.iter().cloned());
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn rules(value: serde_json::Value) -> PolicyRules {
        serde_json::from_value(value).unwrap()
    }

    #[test]
    fn a_policy_applies_to_all_targets_of_a_pod() {
        let names = [
            "pod/web-1",
            "replicaset/web-f",
            "deployment/web",
            "service/front",
        ];
        let names = names.map(str::to_owned).into();
        let labels = [("app".to_owned(), "web".to_owned())].into();
        for (value, expected) in [
            (json!({}), true),
            (json!({"targetPath": "deployment/web"}), true),
            (json!({"targetPath": "deployment/we*"}), true),
            (json!({"targetPath": "*/front"}), true),
            (json!({"targetPath": "Deployment/web"}), true),
            (json!({"targetPath": "deployment/w"}), false),
            (json!({"targetPath": "*/w*b-*x"}), false),
            (json!({"selector": {"matchLabels": {"app": "web"}}}), true),
            (json!({"selector": {"matchLabels": {"app": "db"}}}), false),
            (
                json!({"targetPath": "deployment/web", "selector": {"matchLabels": {"app": "db"}}}),
                false,
            ),
            (
                json!({"selector": {"matchExpressions": [{"key": "app", "operator": "In", "values": ["web"]}]}}),
                true,
            ),
            (
                json!({"selector": {"matchExpressions": [{"key": "app", "operator": "NotIn", "values": ["web"]}]}}),
                false,
            ),
            (
                json!({"selector": {"matchExpressions": [{"key": "tier", "operator": "DoesNotExist"}]}}),
                true,
            ),
            (
                json!({"selector": {"matchExpressions": [{"key": "tier", "operator": "Exists"}]}}),
                false,
            ),
        ] {
            let rules = rules(value.clone());
            assert_eq!(applies_to(&rules, &names, &labels), expected, "{value}");
        }
    }

    #[test]
    fn policies_are_combined() {
        let mut grant = Grant::default();
        for value in [
            json!({"block": ["steal-without-filter"], "env": {"exclude": ["DB_*"]}}),
            json!({"block": ["mirror"], "fs": {"local": ["/a"], "notFound": ["/b"], "readOnly": ["/c"]}}),
            json!({"network": {"outgoing": {"allow": ["10.0.0.0/8"], "block": [":25"]}, "incoming": {"httpFilter": {"header": "^x-user"}}}}),
            json!({"network": {"outgoing": {"allow": [":443"]}}}),
        ] {
            add(&mut grant, &rules(value));
        }
        assert_eq!(
            serde_json::to_value(&grant).unwrap(),
            json!({
                "incoming": {"noSteal": false, "noStealWithoutFilter": true, "noMirror": true, "headerFilters": ["^x-user"]},
                "hiddenVariables": ["DB_*"],
                "files": {"readOnly": ["/c"], "hidden": ["/a", "/b"]},
                "outgoing": {"only": [["10.0.0.0/8"], [":443"]], "noneOf": [":25"]},
            })
        );
    }
}
