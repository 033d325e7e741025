//! Whether a user may have a session with a target: the cluster's own rules decide, before anything starts.

use std::collections::BTreeMap;

use api::{GROUP, TargetPath, VERSION};
use k8s_openapi::api::authorization::v1::{
    ResourceAttributes, SubjectAccessReview, SubjectAccessReviewSpec,
};
use kube::api::PostParams;
use kube::{Api, Client};

use crate::answer::Refusal;
use crate::error::Doing as _;
use crate::front_proxy::User;

const VERB: &str = "proxy";
const RESOURCE: &str = "targets";

/// A rule may name a target with its container or without.
pub(crate) async fn authorize(
    client: &Client,
    user: &User,
    namespace: &str,
    target: &TargetPath,
) -> Result<(), Refusal> {
    let reviews: Api<SubjectAccessReview> = Api::all(client.clone());
    let mut names = vec![target.address()];
    if target.container.is_some() {
        names.push(target.without_container().address());
    }
    for name in names {
        let review = review(user, namespace, &name);
        let answer = reviews
            .create(&PostParams::default(), &review)
            .await
            .doing("review a user's rights")?;
        if answer.status.is_some_and(|status| status.allowed) {
            return Ok(());
        }
    }
    Err(Refusal::forbidden(refusal(user, namespace, target)))
}

fn review(user: &User, namespace: &str, name: &str) -> SubjectAccessReview {
    let mut extra: BTreeMap<String, Vec<String>> = BTreeMap::new();
    for (key, value) in &user.extra {
        extra.entry(key.clone()).or_default().push(value.clone());
    }
    SubjectAccessReview {
        spec: SubjectAccessReviewSpec {
            user: Some(user.name.clone()),
            groups: Some(user.groups.clone()),
            extra: Some(extra),
            resource_attributes: Some(ResourceAttributes {
                group: Some(GROUP.to_owned()),
                version: Some(VERSION.to_owned()),
                resource: Some(RESOURCE.to_owned()),
                verb: Some(VERB.to_owned()),
                namespace: Some(namespace.to_owned()),
                name: Some(name.to_owned()),
                ..ResourceAttributes::default()
            }),
            ..SubjectAccessReviewSpec::default()
        },
        ..SubjectAccessReview::default()
    }
}

/// What to ask an administrator for.
fn refusal(user: &User, namespace: &str, target: &TargetPath) -> String {
    format!(
        "{} may not have a session with {target} in {namespace}. Ask for this rule in a Role there: {{apiGroups: \
         [{GROUP}], resources: [{RESOURCE}], resourceNames: [{}], verbs: [{VERB}]}}",
        user.name,
        target.without_container().address()
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    fn user() -> User {
        User {
            name: "anna".to_owned(),
            groups: vec!["developers".to_owned()],
            extra: vec![
                ("team".to_owned(), "shop".to_owned()),
                ("team".to_owned(), "web".to_owned()),
            ],
        }
    }

    #[test]
    fn the_question_is_about_this_user_and_this_target() {
        let review = review(&user(), "shop", "deployment.checkout").spec;
        assert_eq!(review.user.as_deref(), Some("anna"));
        assert_eq!(review.groups, Some(vec!["developers".to_owned()]));
        assert_eq!(review.extra.unwrap()["team"], ["shop", "web"]);
        let attributes = review.resource_attributes.unwrap();
        let asked = [
            attributes.group,
            attributes.resource,
            attributes.verb,
            attributes.namespace,
            attributes.name,
        ];
        assert_eq!(
            asked.map(Option::unwrap),
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
