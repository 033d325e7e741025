//! Connections of clients to sessions over several clusters: authorization and the parent object.

use std::time::Duration;

use api::connect::ConnectParameters;
use api::multicluster::{MultiClusterPhase, PARENT_FINALIZER, parent_name};
use api::{
    MirrordClusterSession, MirrordMultiClusterSession, MirrordMultiClusterSessionSpec, TargetKind,
};
use http::HeaderMap;
use kube::ResourceExt as _;
use tokio::time::timeout;

use super::MemberClusters;
use crate::Shared;
use crate::authorize::authorize;
use crate::connect::resume::find_or_create;
use crate::connect::{Caller, ConnectRequest, check_targetless};
use crate::controller::workload;
use crate::front_proxy::User;
use crate::multicluster::clusters::MultiCluster;
use crate::response::Refusal;
use crate::settings::SessionSettings;

/// How much longer than the controller's startup timeout a client waits for its session, so that it gets the reason.
const REPORT_TIMEOUT: Duration = Duration::from_secs(15);

impl MemberClusters {
    /// Whether a session spans several clusters. A client may request a session in this cluster alone.
    pub(crate) fn accepts(&self, parameters: &ConnectParameters) -> bool {
        parameters.multi_cluster != Some(false)
    }

    /// Checks that this cluster may have agents: a management-only one has none, also for another Primary.
    pub(crate) fn check_local(&self, session: LocalSession) -> Result<(), Refusal> {
        check_local(&self.membership().clusters, session)
    }
}

/// A session whose agents are in this cluster.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum LocalSession {
    /// It is in this cluster alone.
    Single,
    /// It is the part of a session over several clusters.
    Child,
}

impl LocalSession {
    pub(crate) fn of(session: &MirrordClusterSession) -> Self {
        match session.spec.multi_cluster_parent_name {
            Some(_) => Self::Child,
            None => Self::Single,
        }
    }
}

fn check_local(clusters: &MultiCluster, session: LocalSession) -> Result<(), Refusal> {
    if !clusters.is_management_only {
        return Ok(());
    }
    let next_step = match session {
        LocalSession::Single => "leave `multi_cluster: false` out",
        LocalSession::Child => {
            "remove it from the clusters of the Primary that has created the session"
        }
    };
    Err(Refusal::unprocessable(format!(
        "the cluster {} only coordinates others and has no sessions itself (`operator.multiCluster.managementOnly` of its \
         chart); {next_step}",
        clusters.name
    )))
}

/// Authorizes the user, finds or creates the parent, waits until it is ready, and returns its name.
pub(crate) async fn admit(
    shared: &Shared,
    members: &MemberClusters,
    user: &User,
    connect_request: &ConnectRequest,
    headers: &HeaderMap,
) -> Result<String, Refusal> {
    // By the rules of this cluster, also if the target is only in other clusters.
    authorize(
        &shared.client,
        user,
        &connect_request.namespace,
        &connect_request.target,
    )
    .await?;
    let client = Caller::read(headers)?;
    let labels = connect_request.parameters.label_target.as_deref();
    let target = workload(&connect_request.namespace, &connect_request.target, labels)
        .map_err(|invalid| Refusal::bad_request(invalid.to_string()))?;
    check_targetless(target.as_ref(), &shared.settings)?;
    let parent = new_parent(
        &members.membership().clusters,
        user,
        connect_request,
        &client,
        &members.settings.session,
    );
    let parent = find_or_create(&shared.client, &parent).await?;
    wait_until_ready(members, &parent).await?;
    Ok(parent.name_any())
}

fn new_parent(
    clusters: &MultiCluster,
    user: &User,
    connect_request: &ConnectRequest,
    client: &Caller,
    settings: &SessionSettings,
) -> MirrordMultiClusterSession {
    let spec = MirrordMultiClusterSessionSpec {
        owner: client.owner(user),
        namespace: connect_request.namespace.clone(),
        target: connect_request.target.to_string(),
        target_alias: connect_request.target.address(),
        clusters: match connect_request.target.kind {
            // A session without a target only has stateful operations.
            TargetKind::Targetless => vec![clusters.default.clone()],
            _ => {
                let clusters = clusters.workload_clusters().into_iter();
                clusters.map(str::to_owned).collect()
            }
        },
        primary_cluster: clusters.name.clone(),
        default_cluster: clusters.default.clone(),
        on_unreachable: clusters.on_unreachable,
        label_target: connect_request.parameters.label_target.clone(),
        key: connect_request.parameters.key.clone(),
        on_concurrent_steal: connect_request.parameters.on_concurrent_steal,
        profile: connect_request.parameters.profile.clone(),
        client_cli_version: client.version.clone(),
        resume_window_secs: connect_request.resume_window(settings).as_secs(),
        client_certificate: client.certificate.to_string(),
        data: connect_request.parameters.data.clone(),
    };
    let mut parent = MirrordMultiClusterSession::new(&parent_name(client.id), spec);
    parent.metadata.finalizers = Some(vec![PARENT_FINALIZER.to_owned()]);
    parent
}

/// Waits until the session is ready, has failed or was ended.
async fn wait_until_ready(
    members: &MemberClusters,
    parent: &MirrordMultiClusterSession,
) -> Result<(), Refusal> {
    let mut changes = members.sessions.subscribe();
    let name = parent.name_any();
    let ready_timeout = members.settings.startup_timeout + REPORT_TIMEOUT;
    let ready = timeout(ready_timeout, async {
        let mut was_cached = false;
        loop {
            let cached = members.sessions.get(&name);
            let cached = cached.filter(|cached| cached.uid() == parent.uid());
            match cached.as_deref().map(outcome) {
                Some(Some(outcome)) => return outcome,
                None if was_cached => return Err(Refusal::gone("the session was ended")),
                Some(None) => was_cached = true,
                None => {}
            }
            if changes.changed().await.is_err() {
                return Err(Refusal::unavailable(
                    "the operator is shutting down; try again",
                ));
            }
        }
    });
    ready.await.unwrap_or_else(|_| {
        let status = members.sessions.get(&name).and_then(|parent| parent.status.clone());
        let reason = status.and_then(|status| status.message);
        let reason = reason.map_or_else(String::new, |reason| format!(": {reason}"));
        Err(Refusal::unavailable(format!(
            "the session was not ready within {} s{reason}; `kubectl get mmcs {name} -o yaml` shows details",
            ready_timeout.as_secs()
        )))
    })
}

/// Whether a client can connect. `None` while that is undecided.
fn outcome(parent: &MirrordMultiClusterSession) -> Option<Result<(), Refusal>> {
    let status = parent.status.as_ref()?;
    let message = status.message.clone().unwrap_or_default();
    match status.phase? {
        MultiClusterPhase::Initializing | MultiClusterPhase::Pending => None,
        MultiClusterPhase::Ready => Some(Ok(())),
        MultiClusterPhase::Failed => Some(Err(Refusal::unprocessable(format!(
            "the session cannot start: {message}"
        )))),
        MultiClusterPhase::Terminating => Some(Err(Refusal::gone(message))),
    }
}

#[cfg(test)]
mod tests;
