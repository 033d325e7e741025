//! The member's side: the Primary connects to a child that it has made.

use api::connect::ConnectParameters;
use api::multicluster::CHILD_HEADER;
use api::{MirrordClusterSession, TargetPath};
use http::HeaderMap;
use k8s_openapi::api::authorization::v1::{
    ResourceAttributes, SubjectAccessReview, SubjectAccessReviewSpec,
};
use kube::api::PostParams;
use kube::{Api, Client};

use crate::answer::Refusal;
use crate::error::Doing as _;
use crate::front_proxy::User;

/// What the Primary says about the child that it wants: its place in the target's address is asked for as well.
pub(crate) struct Attaching<'asked> {
    pub(crate) namespace: &'asked str,
    pub(crate) target: &'asked TargetPath,
    pub(crate) parameters: &'asked ConnectParameters,
}

/// The name of a child, where a Primary asks.
pub(crate) fn child_asked(headers: &HeaderMap) -> Option<&str> {
    headers.get(CHILD_HEADER)?.to_str().ok()
}

/// The child, for somebody who may make such objects. Whoever else has rights on the target is not its Primary.
pub(crate) async fn attach(
    client: &Client,
    user: &User,
    name: &str,
    asked: &Attaching<'_>,
) -> Result<MirrordClusterSession, Refusal> {
    let reviews: Api<SubjectAccessReview> = Api::all(client.clone());
    let answer = reviews
        .create(&PostParams::default(), &review(user))
        .await
        .doing("review a Primary's rights")?;
    if !answer.status.is_some_and(|status| status.allowed) {
        return Err(Refusal::forbidden(format!(
            "{} may not make sessions here; a Primary needs the ClusterRole mirrord-operator-envoy-remote",
            user.name
        )));
    }
    let children: Api<MirrordClusterSession> = Api::all(client.clone());
    let found = children.get_opt(name).await.doing(format!("read {name}"))?;
    let gone = || Refusal::gone(format!("there is no session {name} here; it has ended"));
    let found = found.ok_or_else(gone)?;
    fits(&found, asked)?;
    Ok(found)
}

/// The right to connect was asked for by the target of the address, so the child must be for this one.
fn fits(child: &MirrordClusterSession, asked: &Attaching<'_>) -> Result<(), Refusal> {
    let is_it = child.spec.multi_cluster_parent_name.is_some()
        && child.spec.namespace == asked.namespace
        && child.spec.target == asked.target.to_string()
        && child.spec.label_target == asked.parameters.label_target;
    if is_it {
        Ok(())
    } else {
        Err(Refusal::conflict(
            "this session is for another target, or is no part of another session",
        ))
    }
}

fn review(user: &User) -> SubjectAccessReview {
    SubjectAccessReview {
        spec: SubjectAccessReviewSpec {
            user: Some(user.name.clone()),
            groups: Some(user.groups.clone()),
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
    fn a_right_to_one_target_opens_no_other_session() {
        let target = TargetPath::from_address("deployment.web").unwrap();
        let parameters = ConnectParameters::default();
        let asked = Attaching {
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
            assert_eq!(fits(&child, &asked).is_ok(), expected, "{child:?}");
        }
    }
}
