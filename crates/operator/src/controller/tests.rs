use serde_json::{Value, json};

use super::*;
use crate::fixture::{self, Writes, api_server};
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

/// Reconciles a session once, and returns what was written. No agent becomes ready, so time is paused.
async fn reconciled(
    session: Arc<MirrordClusterSession>,
    settings: Settings,
) -> Vec<(String, Value)> {
    let stored = serde_json::to_value(&*session).unwrap();
    let (client, writes): (_, Writes) = api_server(move |path, _| {
        let is_session = path.contains("/mirrordclustersessions/");
        is_session.then(|| stored.clone())
    });
    let shared = fixture::shared(client, settings, None);
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

/// A Primary creates children for users that this operator did not check.
#[tokio::test(start_paused = true)]
async fn a_member_refuses_children_without_a_target_if_they_are_not_allowed() {
    for (targetless, is_refused) in [(false, true), (true, false)] {
        let settings = Settings {
            targetless,
            ..fixture::settings()
        };
        let writes = reconciled(child("targetless", None), settings).await;
        let status = status(&writes);
        assert_eq!(status["phase"] == "Failed", is_refused, "{status}");
        let message = status["message"].as_str().unwrap_or_default();
        let refusal = "does not allow sessions without a target (`operator.agent.targetless`";
        assert_eq!(message.contains(refusal), is_refused, "{status}");
        // Nothing was started.
        assert_eq!(writes.len() == 1, is_refused, "{writes:?}");
    }
}
