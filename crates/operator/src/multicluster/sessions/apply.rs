//! Executes a plan. It makes no decisions.

use std::collections::BTreeMap;
use std::time::Duration;

use api::multicluster::{PARENT_FINALIZER, PARENT_LABEL, PARENT_UID_LABEL, child_name};
use api::session::{FINALIZER, SessionOwner};
use api::{MirrordClusterSession, MirrordClusterSessionSpec, MirrordMultiClusterSession};
use error_chain::error_chain;
use futures_util::future::join_all;
use kube::api::{DeleteParams, Patch, PatchParams, PostParams};
use kube::{Api, Client, ResourceExt as _};
use serde_json::json;
use tokio::time::timeout;

use super::plan::Plan;
use crate::error::{KubeResultExt as _, Result};
use crate::multicluster::member_clusters::MemberClusters;
use crate::{Shared, audit};

const REQUEST_TIMEOUT: Duration = Duration::from_secs(5);

pub(super) async fn apply(
    shared: &Shared,
    members: &MemberClusters,
    parent: &MirrordMultiClusterSession,
    plan: Plan,
) -> Result<()> {
    let created = plan.create.iter().map(async |cluster| {
        let created = create_child(members, parent, cluster).await;
        (cluster.clone(), created)
    });
    let created = join_all(created).await;
    let plan = plan.with_created(parent, &created.into_iter().collect());
    let remove = plan.remove.iter();
    join_all(remove.map(|(cluster, name)| remove_child(members, cluster, name))).await;
    report(shared, parent, &plan).await
}

/// Creates a child. A failure is retried in the next reconciliation and does not delay the others. The error is for users.
async fn create_child(
    members: &MemberClusters,
    parent: &MirrordMultiClusterSession,
    cluster: &str,
) -> Result<(), String> {
    let child = child_of(parent, cluster);
    let name = child.name_any();
    let error = match create_with(members.client_of(cluster)?, &child).await {
        Ok(is_new) => {
            if is_new {
                tracing::info!(session = name, cluster, "child created");
            }
            return Ok(());
        }
        Err(error) => error,
    };
    tracing::warn!(session = name, cluster, error, "child creation failed");
    Err(format!("its session cannot be created there: {error}"))
}

/// Whether the child was created by this request.
async fn create_with(client: Client, child: &MirrordClusterSession) -> Result<bool, String> {
    let children: Api<MirrordClusterSession> = Api::all(client);
    let parameters = PostParams::default();
    let created = children.create(&parameters, child);
    match timeout(REQUEST_TIMEOUT, created).await {
        Ok(Ok(_)) => Ok(true),
        Ok(Err(kube::Error::Api(status))) if status.code == 409 => Ok(false),
        Ok(Err(kube::Error::Api(status))) => Err(status.message.clone()),
        Ok(Err(error)) => Err(error_chain(&error)),
        Err(_) => Err(format!(
            "the API server did not respond within {} s",
            REQUEST_TIMEOUT.as_secs()
        )),
    }
}

/// The child's object, with only what its own operator needs.
fn child_of(parent: &MirrordMultiClusterSession, cluster: &str) -> MirrordClusterSession {
    let spec = &parent.spec;
    let child = MirrordClusterSessionSpec {
        owner: owner_in(parent, cluster),
        namespace: spec.namespace.clone(),
        target: spec.target.clone(),
        label_target: spec.label_target.clone(),
        key: spec.key.clone(),
        on_concurrent_steal: spec.on_concurrent_steal,
        profile: spec.profile.clone(),
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

/// The session's user, with only what a Primary asserts in another cluster.
fn owner_in(parent: &MirrordMultiClusterSession, cluster: &str) -> SessionOwner {
    let owner = parent.spec.owner.clone();
    match cluster == parent.spec.primary_cluster {
        true => owner,
        false => SessionOwner {
            k8s_extra: BTreeMap::new(),
            ..owner
        },
    }
}

/// The generation of the child in the parent's status.
fn generation(parent: &MirrordMultiClusterSession, cluster: &str) -> u32 {
    let status = parent.status.as_ref();
    let child = status.and_then(|status| status.cluster_sessions.get(cluster));
    child.map_or(0, |child| child.generation)
}

async fn remove_child(members: &MemberClusters, cluster: &str, name: &str) {
    let Ok(client) = members.client_of(cluster) else {
        return;
    };
    let children: Api<MirrordClusterSession> = Api::all(client);
    let deleted = timeout(
        REQUEST_TIMEOUT,
        children.delete(name, &DeleteParams::default()),
    )
    .await;
    if let Ok(Err(error)) = deleted {
        tracing::warn!(
            session = name,
            cluster,
            error = error_chain(&error),
            "child deletion failed"
        );
    }
}

async fn report(shared: &Shared, parent: &MirrordMultiClusterSession, plan: &Plan) -> Result<()> {
    let parents: Api<MirrordMultiClusterSession> = Api::all(shared.client.clone());
    let name = parent.name_any();
    if let Some(report) = &plan.report {
        if let Some(closed) = report.closed.as_ref().filter(|_| plan.delete) {
            audit::multi_cluster_session_ended(parent, &closed.reason);
        }
        // Absent values are `null`, so that the merge patch removes them.
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
                    "omitted": child.omitted,
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
        ignore_not_found(patched.map(drop)).action(format!("write the status of {name}"))?;
    }
    if plan.delete {
        let deleted = parents.delete(&name, &DeleteParams::default()).await;
        ignore_not_found(deleted.map(drop)).action(format!("delete {name}"))?;
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
        ignore_not_found(released.map(drop)).action(format!("release {name}"))?;
    }
    Ok(())
}

fn ignore_not_found(result: Result<(), kube::Error>) -> Result<(), kube::Error> {
    match result {
        Err(kube::Error::Api(status)) if status.code == 404 => Ok(()),
        other => other,
    }
}

#[cfg(test)]
mod tests;
