//! Does what was planned, and chooses nothing.

use std::collections::BTreeMap;
use std::time::Duration;

use api::multicluster::{PARENT_FINALIZER, PARENT_LABEL, PARENT_UID_LABEL, child_name};
use api::session::FINALIZER;
use api::{MirrordClusterSession, MirrordClusterSessionSpec, MirrordMultiClusterSession};
use futures_util::future::join_all;
use kube::api::{DeleteParams, Patch, PatchParams, PostParams};
use kube::{Api, ResourceExt as _};
use serde_json::json;
use tokio::time::timeout;

use super::plan::Plan;
use crate::Shared;
use crate::error::{Doing as _, Result, chain};
use crate::multicluster::envoy::Envoy;

const PATIENCE: Duration = Duration::from_secs(5);

pub(super) async fn apply(
    shared: &Shared,
    envoy: &Envoy,
    parent: &MirrordMultiClusterSession,
    plan: &Plan,
) -> Result<()> {
    let create = plan.create.iter();
    join_all(create.map(|cluster| create_child(envoy, parent, cluster))).await;
    let remove = plan.remove.iter();
    join_all(remove.map(|(cluster, name)| remove_child(envoy, cluster, name))).await;
    report(shared, parent, plan).await
}

/// One that cannot be made is tried again at the next look; the others are not held up.
async fn create_child(envoy: &Envoy, parent: &MirrordMultiClusterSession, cluster: &str) {
    let Ok(client) = envoy.client_of(cluster) else {
        return;
    };
    let children: Api<MirrordClusterSession> = Api::all(client);
    let child = child_of(parent, cluster);
    let name = child.name_any();
    match timeout(PATIENCE, children.create(&PostParams::default(), &child)).await {
        Ok(Ok(_)) => tracing::info!(session = name, cluster, "a child is made"),
        Ok(Err(kube::Error::Api(status))) if status.code == 409 => {}
        Ok(Err(error)) => {
            tracing::warn!(
                session = name,
                cluster,
                error = chain(&error),
                "a child cannot be made"
            );
        }
        Err(_) => tracing::warn!(session = name, cluster, "a cluster does not answer"),
    }
}

/// The child's object: what its own operator needs to know, and nothing more.
fn child_of(parent: &MirrordMultiClusterSession, cluster: &str) -> MirrordClusterSession {
    let spec = &parent.spec;
    let child = MirrordClusterSessionSpec {
        owner: spec.owner.clone(),
        namespace: spec.namespace.clone(),
        target: spec.target.clone(),
        label_target: spec.label_target.clone(),
        key: spec.key.clone(),
        client_cli_version: spec.client_cli_version.clone(),
        multi_cluster_parent_name: Some(parent.name_any()),
        generation: generation(parent, cluster),
        resume_window_secs: spec.resume_window_secs,
        client_certificate: spec.client_certificate.clone(),
        data: spec.data_in(cluster),
    };
    let name = child_name(&parent.name_any(), cluster);
    let mut child = MirrordClusterSession::new(&name, child);
    child.metadata.finalizers = Some(vec![FINALIZER.to_owned()]);
    let uid = parent.uid().unwrap_or_default();
    child.metadata.labels = Some(BTreeMap::from([
        (PARENT_LABEL.to_owned(), parent.name_any()),
        (PARENT_UID_LABEL.to_owned(), uid),
    ]));
    child
}

/// As it is written down.
fn generation(parent: &MirrordMultiClusterSession, cluster: &str) -> u32 {
    let status = parent.status.as_ref();
    let child = status.and_then(|status| status.cluster_sessions.get(cluster));
    child.map_or(0, |child| child.generation)
}

async fn remove_child(envoy: &Envoy, cluster: &str, name: &str) {
    let Ok(client) = envoy.client_of(cluster) else {
        return;
    };
    let children: Api<MirrordClusterSession> = Api::all(client);
    let deleted = timeout(PATIENCE, children.delete(name, &DeleteParams::default())).await;
    if let Ok(Err(error)) = deleted {
        tracing::warn!(
            session = name,
            cluster,
            error = chain(&error),
            "a child cannot be removed"
        );
    }
}

async fn report(shared: &Shared, parent: &MirrordMultiClusterSession, plan: &Plan) -> Result<()> {
    let parents: Api<MirrordMultiClusterSession> = Api::all(shared.client.clone());
    let name = parent.name_any();
    if let Some(report) = &plan.report {
        if let Some(closed) = report.closed.as_ref().filter(|_| plan.delete) {
            tracing::info!(target: "audit", session = name, reason = closed.reason, "a session is over");
        }
        // A field that is absent must be said to be.
        let patch = json!({"status": {
            "phase": report.phase,
            "message": report.message,
            "clusterSessions": report.cluster_sessions.iter().map(|(cluster, child)| {
                let child = json!({
                    "sessionName": child.session_name,
                    "ready": child.ready,
                    "error": child.error,
                    "lastHeartbeat": child.last_heartbeat,
                    "made": child.made,
                    "generation": child.generation,
                    "pods": child.pods,
                    "ports": child.ports,
                    "leftTimestamp": child.left_timestamp,
                });
                (cluster.clone(), child)
            }).collect::<BTreeMap<_, _>>(),
            "closed": report.closed,
            "failedTimestamp": report.failed_timestamp,
        }});
        let patched = parents
            .patch_status(&name, &PatchParams::default(), &Patch::Merge(&patch))
            .await;
        gone_is_fine(patched.map(drop)).doing(format!("write the status of {name}"))?;
    }
    if plan.delete {
        let deleted = parents.delete(&name, &DeleteParams::default()).await;
        gone_is_fine(deleted.map(drop)).doing(format!("delete {name}"))?;
    }
    if plan.release {
        let others: Vec<&String> = parent
            .finalizers()
            .iter()
            .filter(|finalizer| *finalizer != PARENT_FINALIZER)
            .collect();
        let patch = json!({"metadata": {"finalizers": others}});
        let released = parents
            .patch(&name, &PatchParams::default(), &Patch::Merge(&patch))
            .await;
        gone_is_fine(released.map(drop)).doing(format!("release {name}"))?;
    }
    Ok(())
}

fn gone_is_fine(result: Result<(), kube::Error>) -> Result<(), kube::Error> {
    match result {
        Err(kube::Error::Api(status)) if status.code == 404 => Ok(()),
        other => other,
    }
}

#[cfg(test)]
mod tests;
