use serde_json::Value;

use super::*;
use crate::multicluster::stub;

fn parent(default: &str) -> MirrordMultiClusterSession {
    serde_json::from_value(json!({
        "apiVersion": "operator.metalbear.co/v1alpha", "kind": "MirrordMultiClusterSession",
        "metadata": {"name": "mc-00000000000000ab", "uid": "1"},
        "spec": {
            "owner": {
                "userId": "", "username": "", "hostname": "", "k8sUsername": "anna",
                "k8sGroups": ["developers"], "k8sExtra": {"team": ["shop"]},
            },
            "namespace": "shop", "target": "deployment/web", "targetAlias": "deployment.web",
            "clusters": ["hub", "east", "west"], "primaryCluster": "hub", "defaultCluster": default,
            "resumeWindowSecs": 100, "clientCertificate": "",
            "onConcurrentSteal": "override", "profile": "fast",
            "data": {
                "pgBranchNames": ["pg-5www5"],
                "mysqlBranchNames": ["mysql-5www5"],
                "mongodbBranchNames": ["mongodb-5www5"],
                "sqsSplits": {"orders": {"user": "anna"}},
                "sqsOutputQueues": {"orders": "orders-5www5"},
            },
        },
    }))
    .unwrap()
}

/// A branch exists once, in the Default. Each cluster has its own queues.
#[test]
fn only_the_default_has_branches_and_all_clusters_have_queues() {
    let queues = json!({
        "sqsSplits": {"orders": {"user": "anna"}},
        "sqsOutputQueues": {"orders": "orders-5www5"},
    });
    for default in ["hub", "east"] {
        let parent = parent(default);
        for cluster in &parent.spec.clusters {
            let child = serde_json::to_value(child_of(&parent, cluster)).unwrap();
            let expected = match cluster == default {
                true => serde_json::to_value(&parent.spec.data).unwrap(),
                false => queues.clone(),
            };
            assert_eq!(child["spec"]["onConcurrentSteal"], "override");
            assert_eq!(child["spec"]["profile"], "fast");
            let found = &child["spec"]["data"];
            assert_eq!(
                *found, expected,
                "{cluster}, where {default} is the Default"
            );
        }
    }
}

/// Other clusters get the user's name and groups. The rest has a meaning only where the user was authenticated.
#[test]
fn what_else_is_known_of_the_user_stays_in_the_primary() {
    let parent = parent("east");
    for cluster in &parent.spec.clusters {
        let owner = child_of(&parent, cluster).spec.owner;
        assert_eq!(owner.k8s_groups, ["developers"], "{cluster}");
        assert_eq!(owner.k8s_extra.is_empty(), cluster != "hub", "{cluster}");
    }
}

/// A member that refuses the child says why.
#[tokio::test]
async fn the_error_of_a_creation_is_that_of_the_member() {
    let message = "mirrordclustersessions is forbidden: no right";
    let cases = [
        (http::StatusCode::CREATED, Ok(true)),
        (http::StatusCode::CONFLICT, Ok(false)),
        (http::StatusCode::FORBIDDEN, Err(message.to_owned())),
    ];
    for (status, expected) in cases {
        let child = child_of(&parent("east"), "east");
        let mut response = serde_json::to_value(&child).unwrap();
        if !status.is_success() {
            response = json!({
                "kind": "Status", "status": "Failure", "code": status.as_u16(), "reason": "", "message": message,
            });
        }
        let client = stub::client(move |_| stub::json_response(status, &response));
        assert_eq!(create_with(client, &child).await, expected);
    }
}

/// A member of an older version does not know the field.
#[test]
fn a_session_without_data_omits_the_field() {
    let mut parent = parent("east");
    parent.spec.data = api::SessionData::default();
    let child = serde_json::to_value(child_of(&parent, "east")).unwrap();
    assert_eq!(child["spec"].get("data"), None::<&Value>);
}
