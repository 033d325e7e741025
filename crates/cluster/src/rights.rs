//! What a user must be allowed to do, and the rule to ask for where it is not so.

use k8s_openapi::api::authorization::v1::{
    ResourceAttributes, SelfSubjectAccessReview, SelfSubjectAccessReviewSpec,
};
use kube::api::PostParams;
use kube::{Api, Client};

use crate::error::Error;
use crate::target::Kind;

/// To do something with one kind of things in a namespace.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub struct Right {
    pub group: &'static str,
    /// With the subresource, as rules have it: `pods/portforward`.
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

/// To find the pods of a target and follow them.
pub(crate) fn to_resolve(kind: Kind) -> Vec<Right> {
    let mut rights: Vec<Right> = kind
        .resource()
        .filter(|(_, resource)| *resource != "pods")
        .map(|(group, resource)| right(group, resource, "get"))
        .into_iter()
        .collect();
    if kind == Kind::CronJob {
        rights.push(right("batch", "jobs", "get"));
    }
    rights.extend([right("", "pods", "list"), right("", "pods", "watch")]);
    rights
}

/// To reach an agent. API servers ask for the second verb from 1.35 on.
pub(crate) const TO_REACH: &[Right] = &[
    right("", "pods/portforward", "get"),
    right("", "pods/portforward", "create"),
];

pub(crate) const FOR_EPHEMERAL: &[Right] = &[right("", "pods/ephemeralcontainers", "patch")];

/// An agent that is a pod is made by a Job, so that Kubernetes removes it.
pub(crate) const FOR_POD: &[Right] = &[
    right("", "pods", "list"),
    right("", "pods", "watch"),
    right("batch", "jobs", "create"),
    right("batch", "jobs", "delete"),
];

/// Everything that a session on a target needs, with an agent in the target's pod.
pub(crate) fn for_session(kind: Kind) -> Vec<Right> {
    [&to_resolve(kind), FOR_EPHEMERAL, TO_REACH].concat()
}

/// The error for something that was forbidden: with everything among these rights that is missing as well, so that one
/// asks only once. `certain` is what was just refused.
pub(crate) async fn forbidden(
    client: &Client,
    namespace: &str,
    action: &str,
    certain: Option<Right>,
    needed: &[Right],
) -> Error {
    let mut missing: Vec<Right> = certain.into_iter().collect();
    for right in needed {
        if !missing.contains(right) && !is_allowed(client, namespace, *right).await {
            missing.push(*right);
        }
    }
    if missing.is_empty() {
        // The rights came in the meantime, or somebody forbids without rules. What is needed is still this.
        missing = needed.to_vec();
    }
    Error::Forbidden {
        action: action.to_owned(),
        namespace: namespace.to_owned(),
        missing,
    }
}

/// What cannot be asked is not known to be missing.
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
    let answer = Api::<SelfSubjectAccessReview>::all(client.clone())
        .create(&PostParams::default(), &review)
        .await;
    answer.map_or(true, |answer| {
        answer.status.is_some_and(|status| status.allowed)
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
"
        );
    }

    #[test]
    fn a_pod_is_found_without_another_kind() {
        assert_eq!(to_resolve(Kind::Pod), to_resolve(Kind::Selector));
    }
}
