//! Authorization of a session: the cluster's own RBAC rules decide, before anything is started.

use api::{GROUP, TargetKind, TargetPath, VERSION};
use k8s_openapi::api::authorization::v1::{
    ResourceAttributes, SubjectAccessReview, SubjectAccessReviewSpec, SubjectAccessReviewStatus,
};
use kube::api::PostParams;
use kube::{Api, Client};

use crate::error::KubeResultExt as _;
use crate::front_proxy::User;
use crate::response::Refusal;

pub(crate) mod revocation;

const VERB: &str = "proxy";
const RESOURCE: &str = "targets";

/// Reviews access by each resource name that a rule may allow.
pub(crate) async fn authorize(
    client: &Client,
    user: &User,
    namespace: &str,
    target: &TargetPath,
) -> Result<(), Refusal> {
    for name in names(target) {
        if is_authorized(client, user, namespace, name).await? {
            return Ok(());
        }
    }
    Err(Refusal::forbidden(refusal(user, namespace, target)))
}

/// Whether the user may have sessions with one target, or with all targets of the namespace.
pub(crate) async fn is_authorized(
    client: &Client,
    user: &User,
    namespace: &str,
    name: Option<String>,
) -> Result<bool, Refusal> {
    let reviews: Api<SubjectAccessReview> = Api::all(client.clone());
    let reviewed = reviews
        .create(&PostParams::default(), &review(user, namespace, name))
        .await
        .action("review a user's rights")?;
    is_allowed(reviewed.status.as_ref())
}

/// The decision of a review. An authorizer that has failed has not decided, so the request can be repeated.
fn is_allowed(status: Option<&SubjectAccessReviewStatus>) -> Result<bool, Refusal> {
    let Some(status) = status else {
        return Ok(false);
    };
    match &status.evaluation_error {
        Some(error) if !status.allowed && status.denied != Some(true) => Err(Refusal::unavailable(
            format!("the cluster cannot review the rights of the user: {error}; try again"),
        )),
        _ => Ok(status.allowed),
    }
}

/// A rule may name a target with or without its container. Labels can select every pod of the namespace, also pods that
/// are created later, so they require the permission for all of its targets: a review without a name.
fn names(target: &TargetPath) -> Vec<Option<String>> {
    if target.kind == TargetKind::Label {
        return vec![None];
    }
    let mut names = vec![Some(target.address())];
    if target.container.is_some() {
        names.push(Some(target.without_container().address()));
    }
    names
}

fn review(user: &User, namespace: &str, name: Option<String>) -> SubjectAccessReview {
    SubjectAccessReview {
        spec: SubjectAccessReviewSpec {
            user: Some(user.name.clone()),
            groups: Some(user.groups.clone()),
            extra: Some(user.extra.clone()),
            resource_attributes: Some(ResourceAttributes {
                group: Some(GROUP.to_owned()),
                version: Some(VERSION.to_owned()),
                resource: Some(RESOURCE.to_owned()),
                verb: Some(VERB.to_owned()),
                namespace: Some(namespace.to_owned()),
                name,
                ..ResourceAttributes::default()
            }),
            ..SubjectAccessReviewSpec::default()
        },
        ..SubjectAccessReview::default()
    }
}

/// The message of a refusal, with the rule that an administrator has to add.
fn refusal(user: &User, namespace: &str, target: &TargetPath) -> String {
    let (names, note) = match target.kind {
        TargetKind::Label => (
            String::new(),
            " Labels can choose any pod, so they take the right to all targets.",
        ),
        _ => {
            let name = target.without_container().address();
            (format!("resourceNames: [{name}], "), "")
        }
    };
    format!(
        "{} may not have a session with {target} in {namespace}.{note} Ask for this rule in a Role there: {{apiGroups: \
         [{GROUP}], resources: [{RESOURCE}], {names}verbs: [{VERB}]}}",
        user.name,
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    fn user() -> User {
        User {
            name: "anna".to_owned(),
            groups: vec!["developers".to_owned()],
            extra: [("team".to_owned(), vec!["shop".to_owned(), "web".to_owned()])].into(),
        }
    }

    #[test]
    fn the_review_names_the_user_and_the_target() {
        let review = review(&user(), "shop", Some("deployment.checkout".to_owned())).spec;
        assert_eq!(review.user.as_deref(), Some("anna"));
        assert_eq!(review.groups, Some(vec!["developers".to_owned()]));
        assert_eq!(review.extra.unwrap()["team"], ["shop", "web"]);
        let attributes = review.resource_attributes.unwrap();
        let reviewed = [
            attributes.group,
            attributes.resource,
            attributes.verb,
            attributes.namespace,
            attributes.name,
        ];
        assert_eq!(
            reviewed.map(Option::unwrap),
            [
                "operator.metalbear.co",
                "targets",
                "proxy",
                "shop",
                "deployment.checkout"
            ]
        );
    }

    #[test]
    fn a_failed_authorizer_has_not_decided() {
        let status = |allowed, denied, error: Option<&str>| SubjectAccessReviewStatus {
            allowed,
            denied,
            evaluation_error: error.map(str::to_owned),
            ..SubjectAccessReviewStatus::default()
        };
        // The status, and whether it allows, or the code of the refusal.
        let cases = [
            (None, Ok(false)),
            (Some(status(true, None, None)), Ok(true)),
            (Some(status(true, None, Some("webhook"))), Ok(true)),
            (Some(status(false, None, None)), Ok(false)),
            (Some(status(false, Some(true), Some("webhook"))), Ok(false)),
            (Some(status(false, None, Some("webhook"))), Err(503)),
            (Some(status(false, Some(false), Some("webhook"))), Err(503)),
        ];
        for (status, expected) in cases {
            let found = is_allowed(status.as_ref()).map_err(|refusal| refusal.code.as_u16());
            assert_eq!(found, expected, "{status:?}");
        }
    }

    #[test]
    fn permission_for_one_target_does_not_allow_labels() {
        let cases: [(&str, &[Option<&str>]); 4] = [
            ("deployment.web", &[Some("deployment.web")]),
            (
                "pod.web.container.app",
                &[Some("pod.web.container.app"), Some("pod.web")],
            ),
            ("targetless", &[Some("targetless")]),
            ("label.container.app", &[None]),
        ];
        for (address, expected) in cases {
            let target = TargetPath::from_address(address).unwrap();
            let names = names(&target);
            let names: Vec<Option<&str>> = names.iter().map(Option::as_deref).collect();
            assert_eq!(names, expected, "{address}");
        }
        let label = TargetPath::from_address("label").unwrap();
        let refusal = refusal(&user(), "shop", &label);
        assert!(!refusal.contains("resourceNames"), "{refusal}");
    }

    #[test]
    fn a_refusal_names_the_rule() {
        let target = TargetPath::from_address("deployment.checkout.container.app").unwrap();
        assert_eq!(
            refusal(&user(), "shop", &target),
            "anna may not have a session with deployment/checkout/container/app in shop. Ask for this rule in a Role \
             there: {apiGroups: [operator.metalbear.co], resources: [targets], resourceNames: [deployment.checkout], \
             verbs: [proxy]}"
        );
    }
}
