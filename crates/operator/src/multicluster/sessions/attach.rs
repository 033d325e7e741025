//! Connections of a Primary to its child sessions, on the side of the member.

use api::connect::ConnectParameters;
use api::multicluster::CHILD_HEADER;
use api::{MirrordClusterSession, TargetPath};
use http::HeaderMap;
use k8s_openapi::api::authorization::v1::{
    ResourceAttributes, SubjectAccessReview, SubjectAccessReviewSpec,
};
use kube::api::PostParams;
use kube::{Api, Client};

use crate::error::KubeResultExt as _;
use crate::front_proxy::User;
use crate::response::Refusal;

/// A Primary's request to connect to a child: the namespace and the target are those of the URL.
pub(crate) struct AttachRequest<'a> {
    pub(crate) namespace: &'a str,
    pub(crate) target: &'a TargetPath,
    pub(crate) parameters: &'a ConnectParameters,
}

/// The name of the requested child, in the request of a Primary.
pub(crate) fn requested_child(headers: &HeaderMap) -> Option<&str> {
    headers.get(CHILD_HEADER)?.to_str().ok()
}

/// The child, for a user that may create sessions. Other users with access to the target are not its Primary.
pub(crate) async fn attach(
    client: &Client,
    user: &User,
    name: &str,
    request: &AttachRequest<'_>,
) -> Result<MirrordClusterSession, Refusal> {
    let reviews: Api<SubjectAccessReview> = Api::all(client.clone());
    let reviewed = reviews
        .create(&PostParams::default(), &review(user))
        .await
        .action("review a Primary's rights")?;
    if !reviewed.status.is_some_and(|status| status.allowed) {
        return Err(Refusal::forbidden(format!(
            "{} may not create sessions here; a Primary needs the ClusterRole mirrord-operator-envoy-remote",
            user.name
        )));
    }
    let children: Api<MirrordClusterSession> = Api::all(client.clone());
    let found = children
        .get_opt(name)
        .await
        .action(format!("read {name}"))?;
    let gone = || Refusal::gone(format!("there is no session {name} here; it has ended"));
    let found = found.ok_or_else(gone)?;
    check_target(&found, request)?;
    Ok(found)
}

/// The request was authorized for the target in the URL, so the child must have the same target.
fn check_target(child: &MirrordClusterSession, request: &AttachRequest<'_>) -> Result<(), Refusal> {
    let is_same = child.spec.multi_cluster_parent_name.is_some()
        && child.spec.namespace == request.namespace
        && child.spec.target == request.target.to_string()
        && child.spec.label_target == request.parameters.label_target;
    if is_same {
        Ok(())
    } else {
        Err(Refusal::conflict(
            "this session has another target, or is not the child of another session",
        ))
    }
}

fn review(user: &User) -> SubjectAccessReview {
    SubjectAccessReview {
        spec: SubjectAccessReviewSpec {
            user: Some(user.name.clone()),
            groups: Some(user.groups.clone()),
            extra: Some(user.extra.clone()),
            resource_attributes: Some(ResourceAttributes {
                group: Some("mirrord.metalbear.co".to_owned()),
                resource: Some("mirrordclustersessions".to_owned()),
                verb: Some("create".to_owned()),
                ..ResourceAttributes::default()
            }),
            ..SubjectAccessReviewSpec::default()
        },
        ..SubjectAccessReview::default()
    }
}

#[cfg(test)]
mod tests {
    use api::MirrordClusterSessionSpec;

    use super::*;

    fn child(parent: Option<&str>, target: &str) -> MirrordClusterSession {
        let spec = MirrordClusterSessionSpec {
            namespace: "shop".to_owned(),
            target: target.to_owned(),
            multi_cluster_parent_name: parent.map(str::to_owned),
            ..MirrordClusterSessionSpec::default()
        };
        MirrordClusterSession::new("mc-1-east", spec)
    }

    #[test]
    fn a_child_must_have_the_requested_target() {
        let target = TargetPath::from_address("deployment.web").unwrap();
        let parameters = ConnectParameters::default();
        let request = AttachRequest {
            namespace: "shop",
            target: &target,
            parameters: &parameters,
        };
        let cases = [
            (child(Some("mc-1"), "deployment/web"), true),
            (child(Some("mc-1"), "deployment/bank"), false),
            (child(None, "deployment/web"), false),
        ];
        for (child, expected) in cases {
            assert_eq!(
                check_target(&child, &request).is_ok(),
                expected,
                "{child:?}"
            );
        }
    }
}
