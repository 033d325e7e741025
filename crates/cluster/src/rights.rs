//! The rights that a user needs, and the Role to ask for if some are missing.

use k8s_openapi::api::authorization::v1::{
    ResourceAttributes, SelfSubjectAccessReview, SelfSubjectAccessReviewSpec,
};
use kube::api::PostParams;
use kube::{Api, Client};

use crate::error::Error;
use crate::target::Kind;

/// The right to use one verb on one resource in a namespace.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub struct Right {
    pub group: &'static str,
    /// With the subresource, in the format of RBAC rules: `pods/portforward`.
    pub resource: &'static str,
    pub verb: &'static str,
}

const fn right(group: &'static str, resource: &'static str, verb: &'static str) -> Right {
    Right {
        group,
        resource,
        verb,
    }
}

/// The rights to resolve a target and watch its pods.
pub(crate) fn to_resolve(kind: Kind) -> Vec<Right> {
    let mut rights: Vec<Right> = kind
        .resource()
        .filter(|(_, resource)| *resource != "pods")
        .map(|(group, resource)| right(group, resource, "get"))
        .into_iter()
        .collect();
    // What is between the target and its pods.
    match kind {
        Kind::CronJob => rights.push(right("batch", "jobs", "get")),
        Kind::Deployment | Kind::Rollout => rights.push(right("apps", "replicasets", "get")),
        _ => {}
    }
    rights.extend([right("", "pods", "list"), right("", "pods", "watch")]);
    rights
}

/// The rights to connect to an agent. API servers require the second verb from 1.35 on.
pub(crate) const TO_REACH: &[Right] = &[
    right("", "pods/portforward", "get"),
    right("", "pods/portforward", "create"),
];

pub(crate) const FOR_EPHEMERAL: &[Right] = &[right("", "pods/ephemeralcontainers", "patch")];

/// A Job creates the pod of an agent, so that Kubernetes removes it.
pub(crate) const FOR_POD: &[Right] = &[
    right("", "pods", "list"),
    right("", "pods", "watch"),
    right("batch", "jobs", "create"),
    right("batch", "jobs", "delete"),
];

/// All rights that a session with a target needs, with an agent in the target's pod.
pub(crate) fn for_session(kind: Kind) -> Vec<Right> {
    [&to_resolve(kind), FOR_EPHEMERAL, TO_REACH].concat()
}

/// The error for a forbidden action. It lists all rights of `needed` that are missing, so that the user has to ask only once.
/// `denied` is the right that was just denied.
pub(crate) async fn forbidden(
    client: &Client,
    namespace: &str,
    action: &str,
    denied: Option<Right>,
    needed: &[Right],
) -> Error {
    let mut missing: Vec<Right> = denied.into_iter().collect();
    for right in needed {
        if !missing.contains(right) && !is_allowed(client, namespace, *right).await {
            missing.push(*right);
        }
    }
    if missing.is_empty() {
        // The rights were granted in the meantime, or something other than RBAC denied the request.
        missing = needed.to_vec();
    }
    Error::Forbidden {
        action: action.to_owned(),
        namespace: namespace.to_owned(),
        missing,
    }
}

/// True also if the review itself fails: then the right is not known to be missing.
async fn is_allowed(client: &Client, namespace: &str, right: Right) -> bool {
    let (resource, subresource) = match right.resource.split_once('/') {
        Some((resource, subresource)) => (resource, Some(subresource.to_owned())),
        None => (right.resource, None),
    };
    let review = SelfSubjectAccessReview {
        spec: SelfSubjectAccessReviewSpec {
            resource_attributes: Some(ResourceAttributes {
                group: Some(right.group.to_owned()),
                namespace: Some(namespace.to_owned()),
                resource: Some(resource.to_owned()),
                subresource,
                verb: Some(right.verb.to_owned()),
                ..ResourceAttributes::default()
            }),
            ..SelfSubjectAccessReviewSpec::default()
        },
        ..SelfSubjectAccessReview::default()
    };
    let response = Api::<SelfSubjectAccessReview>::all(client.clone())
        .create(&PostParams::default(), &review)
        .await;
    response.map_or(true, |review| {
        review.status.is_some_and(|status| status.allowed)
    })
}

/// A Role that grants these rights, as YAML.
pub fn role(namespace: &str, rights: &[Right]) -> String {
    let mut rights = rights.to_vec();
    rights.sort_unstable();
    rights.dedup();
    let mut text = format!(
        "apiVersion: rbac.authorization.k8s.io/v1\nkind: Role\nmetadata:\n  name: standin\n  namespace: {namespace}\nrules:\n"
    );
    for of_one in
        rights.chunk_by(|one, next| (one.group, one.resource) == (next.group, next.resource))
    {
        let Some(first) = of_one.first() else {
            continue;
        };
        let verbs: Vec<&str> = of_one.iter().map(|right| right.verb).collect();
        text += &format!(
            "- apiGroups: [{:?}]\n  resources: [{}]\n  verbs: [{}]\n",
            first.group,
            first.resource,
            verbs.join(", ")
        );
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_role_has_one_rule_for_each_resource() {
        assert_eq!(
            role("shop", &for_session(Kind::Deployment)),
            "\
apiVersion: rbac.authorization.k8s.io/v1
kind: Role
metadata:
  name: standin
  namespace: shop
rules:
- apiGroups: [\"\"]
  resources: [pods]
  verbs: [list, watch]
- apiGroups: [\"\"]
  resources: [pods/ephemeralcontainers]
  verbs: [patch]
- apiGroups: [\"\"]
  resources: [pods/portforward]
  verbs: [create, get]
- apiGroups: [\"apps\"]
  resources: [deployments]
  verbs: [get]
- apiGroups: [\"apps\"]
  resources: [replicasets]
  verbs: [get]
"
        );
    }

    #[test]
    fn resolving_a_pod_needs_no_right_to_another_kind() {
        assert_eq!(to_resolve(Kind::Pod), to_resolve(Kind::Selector));
    }
}
