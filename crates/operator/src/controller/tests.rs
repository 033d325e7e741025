use serde_json::{Value, json};

use super::*;
use crate::fixture::{self, Writes, api_server};
use crate::multicluster::clusters::MultiCluster;
use crate::settings::Settings;

/// The child of a Primary's session, as another cluster has created it here.
fn child(target: &str, phase: Option<&str>) -> Arc<MirrordClusterSession> {
    let session = serde_json::from_value(json!({
        "apiVersion": "mirrord.metalbear.co/v1alpha", "kind": "MirrordClusterSession",
        "metadata": {
            "name": "mc-00000000000000ab-hub", "uid": "1",
            "creationTimestamp": Timestamp::now().to_string(),
        },
        "spec": {
            "owner": {"userId": "", "username": "", "hostname": "", "k8sUsername": "anna", "k8sGroups": ["developers"]},
            "namespace": "shop", "target": target, "resumeWindowSecs": 100, "clientCertificate": "00".repeat(32),
            "multiClusterParentName": "mc-00000000000000ab",
        },
        "status": {"phase": phase},
    }));
    Arc::new(session.unwrap())
}

fn clusters(is_management_only: bool) -> MultiCluster {
    MultiCluster {
        name: "hub".to_owned(),
        default: "east".to_owned(),
        is_management_only,
        on_unreachable: api::multicluster::OnUnreachable::Fail,
        members: Vec::new(),
    }
}

/// Reconciles a session once, and returns what was written. No agent becomes ready, so time is paused.
async fn reconciled(
    session: Arc<MirrordClusterSession>,
    settings: Settings,
    clusters: Option<MultiCluster>,
) -> Vec<(String, Value)> {
    let stored = serde_json::to_value(&*session).unwrap();
    let (client, writes): (_, Writes) = api_server(move |path, _| {
        let is_session = path.contains("/mirrordclustersessions/");
        is_session.then(|| stored.clone())
    });
    let shared = fixture::shared(client, settings, clusters);
    reconcile(session, shared).await.unwrap();
    let writes = writes.lock();
    writes.clone()
}

fn status(writes: &[(String, Value)]) -> &Value {
    let path =
        "/apis/mirrord.metalbear.co/v1alpha/mirrordclustersessions/mc-00000000000000ab-hub/status";
    let mut found = writes
        .iter()
        .filter(|(written, _)| written.starts_with(path));
    &found.next().expect("the status is written").1["status"]
}

/// Another Primary has this one as its member, and creates a child here.
#[tokio::test(start_paused = true)]
async fn a_management_only_cluster_has_no_child_of_another_primary() {
    // The phase, whether the cluster is management-only, and the phase and the reason afterwards.
    let cases = [
        (None, true, "Failed", Value::Null),
        (Some("Pending"), true, "Failed", Value::Null),
        // It has become management-only since.
        (Some("Ready"), true, "Terminating", json!("Denied")),
        (Some("Ready"), false, "Ready", Value::Null),
    ];
    for (phase, is_management_only, expected, reason) in cases {
        let settings = fixture::settings();
        let session = child("targetless", phase);
        let writes = reconciled(session, settings, Some(clusters(is_management_only))).await;
        let status = status(&writes);
        assert_eq!(status["phase"], expected, "{phase:?}: {status}");
        assert_eq!(status["closed"]["reason"], reason, "{phase:?}: {status}");
        let message = status["message"].as_str().unwrap_or_default();
        let is_refused = message.contains("the cluster hub only coordinates others");
        assert_eq!(is_refused, is_management_only, "{phase:?}: {status}");
    }
}

/// A Primary creates children for users that this operator did not check.
#[tokio::test(start_paused = true)]
async fn a_member_refuses_children_without_a_target_if_they_are_not_allowed() {
    for (targetless, is_refused) in [(false, true), (true, false)] {
        let settings = Settings {
            targetless,
            ..fixture::settings()
        };
        let writes = reconciled(child("targetless", None), settings, None).await;
        let status = status(&writes);
        assert_eq!(status["phase"] == "Failed", is_refused, "{status}");
        let message = status["message"].as_str().unwrap_or_default();
        let refusal = "does not allow sessions without a target (`operator.agent.targetless`";
        assert_eq!(message.contains(refusal), is_refused, "{status}");
        // Nothing was started.
        assert_eq!(writes.len() == 1, is_refused, "{writes:?}");
    }
}
