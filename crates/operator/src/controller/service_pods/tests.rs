use http::StatusCode;
use serde_json::json;

use super::*;
use crate::controller::validate::validate;
use crate::fixture::{self, api_server};
use crate::multicluster::stub;

#[tokio::test]
async fn the_workloads_of_a_pod_are_its_controllers_that_can_be_targets() {
    let client = stub::client(|path| {
        assert_eq!(path, "/apis/apps/v1/namespaces/shop/replicasets/web-1");
        let controller = json!({
            "apiVersion": "apps/v1", "kind": "Deployment", "name": "web", "uid": "3", "controller": true,
        });
        let set = json!({
            "apiVersion": "meta.k8s.io/v1", "kind": "PartialObjectMetadata",
            "metadata": {"name": "web-1", "uid": "2", "ownerReferences": [controller]},
        });
        stub::json_response(StatusCode::OK, &set)
    });
    let cluster = Cluster::new(client, "shop");
    let cases = [
        (
            Some(("apps/v1", "ReplicaSet", "web-1", "2")),
            vec!["pod/a", "replicaset/web-1", "deployment/web"],
        ),
        (
            Some(("apps/v1", "StatefulSet", "db", "4")),
            vec!["pod/a", "statefulset/db"],
        ),
        (
            Some(("example.com/v1", "Fleet", "ships", "5")),
            vec!["pod/a"],
        ),
        (
            Some(("example.com/v1", "Deployment", "web", "6")),
            vec!["pod/a"],
        ),
        (None, vec!["pod/a"]),
    ];
    for (owner, expected) in cases {
        let owner = owner.map(|(version, kind, name, uid)| {
            json!({"apiVersion": version, "kind": kind, "name": name, "uid": uid, "controller": true})
        });
        let owners: Vec<_> = owner.into_iter().collect();
        let pod =
            json!({"metadata": {"name": "a", "namespace": "shop", "ownerReferences": owners}});
        let pod: Pod = serde_json::from_value(pod).unwrap();
        let found = workloads(&mut PodOwners::new(&cluster, "shop"), &pod)
            .await
            .unwrap();
        let found: Vec<String> = found.iter().map(ToString::to_string).collect();
        assert_eq!(found, expected);
    }
}

/// A session with a Service, of a user who also has these properties of an authenticator.
fn session(extra: &serde_json::Value) -> MirrordClusterSession {
    serde_json::from_value(json!({
        "apiVersion": "mirrord.metalbear.co/v1alpha", "kind": "MirrordClusterSession",
        "metadata": {"name": "session-00000000000000ab", "uid": "1"},
        "spec": {
            "owner": {
                "userId": "", "username": "", "hostname": "", "k8sUsername": "anna",
                "k8sGroups": ["developers"], "k8sExtra": extra,
            },
            "namespace": "shop", "target": "service/web", "resumeWindowSecs": 100,
            "clientCertificate": "00".repeat(32),
        },
    }))
    .unwrap()
}

/// An authorizer may decide by `extra`, as a webhook does for a cloud's roles. The pods are reviewed after the request of the
/// user, so it must be in the session's object.
#[tokio::test]
async fn pods_are_reviewed_with_everything_that_is_known_of_the_user() {
    let pods: Vec<Pod> = ["mine", "theirs"]
        .map(|name| {
            let pod = json!({"metadata": {"name": name, "namespace": "shop", "uid": name}});
            serde_json::from_value(pod).unwrap()
        })
        .into();
    let cases = [
        (json!({"team": ["shop", "web"]}), vec!["theirs"]),
        (json!({"team": ["web"]}), vec!["mine", "theirs"]),
        (json!({}), vec!["mine", "theirs"]),
    ];
    for (extra, expected) in cases {
        let (client, _) = api_server(|path, review| {
            if !path.contains("/subjectaccessreviews") {
                return None;
            }
            let teams = review["spec"]["extra"]["team"].as_array();
            let is_of_shop = teams.is_some_and(|teams| teams.contains(&json!("shop")));
            let is_mine = review["spec"]["resourceAttributes"]["name"] == "pod.mine";
            let mut review = review.clone();
            review["status"] = json!({"allowed": is_of_shop && is_mine});
            Some(review)
        });
        let cluster = Cluster::new(client.clone(), "shop");
        let shared = fixture::shared(client, fixture::settings(), None);
        let session = session(&extra);
        let spec = validate(&session).unwrap();
        let refused = refusals(&shared, &cluster, &session, &spec, &pods).await;
        let refused = refused.unwrap();
        let names: Vec<&str> = refused.keys().map(String::as_str).collect();
        assert_eq!(names, expected, "{extra}");
        let refusal = &refused["theirs"];
        let expected = "anna may have a session with service/web, and not with pod/theirs";
        assert!(refusal.starts_with(expected), "{refusal}");
    }
}
