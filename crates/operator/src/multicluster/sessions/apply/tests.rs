use serde_json::Value;

use super::*;

fn parent(default: &str) -> MirrordMultiClusterSession {
    serde_json::from_value(json!({
        "apiVersion": "operator.metalbear.co/v1alpha", "kind": "MirrordMultiClusterSession",
        "metadata": {"name": "mc-00000000000000ab", "uid": "1"},
        "spec": {
            "owner": {"userId": "", "username": "", "hostname": "", "k8sUsername": "anna"},
            "namespace": "shop", "target": "deployment/web", "targetAlias": "deployment.web",
            "clusters": ["hub", "east", "west"], "primaryCluster": "hub", "defaultCluster": default,
            "resumeWindowSecs": 100, "clientCertificate": "",
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
            let found = &child["spec"]["data"];
            assert_eq!(
                *found, expected,
                "{cluster}, where {default} is the Default"
            );
        }
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
