//! A client connects to a session over several clusters: whether it may, its parent object, and when that is ready.

use std::time::Duration;

use api::connect::ConnectParameters;
use api::multicluster::{MultiClusterPhase, PARENT_FINALIZER, parent_name};
use api::session::SessionOwner;
use api::{MirrordMultiClusterSession, MirrordMultiClusterSessionSpec, TargetKind};
use http::HeaderMap;
use kube::ResourceExt as _;
use tokio::time::timeout;

use super::Envoy;
use crate::Shared;
use crate::answer::Refusal;
use crate::authorize::authorize;
use crate::connect::returning::find_or_make;
use crate::connect::{Asking, Caller};
use crate::controller::workload;
use crate::front_proxy::User;
use crate::multicluster::clusters::MultiCluster;
use crate::settings::SessionSettings;

/// How long a client waits. Sessions are given up a little sooner.
const PATIENCE: Duration = Duration::from_secs(75);

impl Envoy {
    /// Whether a session is over several clusters. A client may ask for this one alone.
    pub(crate) fn takes(&self, parameters: &ConnectParameters) -> bool {
        parameters.multi_cluster != Some(false)
    }
}

/// The parent's name, when all of its children are there.
pub(crate) async fn admitted(
    shared: &Shared,
    envoy: &Envoy,
    user: &User,
    asking: &Asking,
    headers: &HeaderMap,
) -> Result<String, Refusal> {
    // By the rules of this cluster, also where the target is not here.
    authorize(&shared.client, user, &asking.namespace, &asking.target).await?;
    let client = Caller::read(headers)?;
    let labels = asking.parameters.label_target.as_deref();
    workload(&asking.namespace, &asking.target, labels)
        .map_err(|invalid| Refusal::bad_request(invalid.to_string()))?;
    let wanted = wanted(
        &envoy.clusters,
        user,
        asking,
        &client,
        &shared.settings.session,
    );
    let parent = find_or_make(&shared.client, &wanted).await?;
    ready(envoy, &parent).await?;
    Ok(parent.name_any())
}

fn wanted(
    clusters: &MultiCluster,
    user: &User,
    asking: &Asking,
    client: &Caller,
    settings: &SessionSettings,
) -> MirrordMultiClusterSession {
    let owner = SessionOwner {
        k8s_groups: user.groups.clone(),
        ..client.owner(user)
    };
    let spec = MirrordMultiClusterSessionSpec {
        owner,
        namespace: asking.namespace.clone(),
        target: asking.target.to_string(),
        target_alias: asking.target.address(),
        clusters: match asking.target.kind {
            // What there is without a target must have one answer.
            TargetKind::Targetless => vec![clusters.default.clone()],
            _ => {
                let clusters = clusters.workload_clusters().into_iter();
                clusters.map(str::to_owned).collect()
            }
        },
        primary_cluster: clusters.name.clone(),
        default_cluster: clusters.default.clone(),
        on_unreachable: clusters.on_unreachable,
        label_target: asking.parameters.label_target.clone(),
        key: asking.parameters.key.clone(),
        client_cli_version: client.version.clone(),
        resume_window_secs: asking.resume_window(settings).as_secs(),
        client_certificate: client.certificate.to_string(),
        data: asking.parameters.data.clone(),
    };
    let mut parent = MirrordMultiClusterSession::new(&parent_name(client.id), spec);
    parent.metadata.finalizers = Some(vec![PARENT_FINALIZER.to_owned()]);
    parent
}

/// Waits until a client can connect, or never will.
async fn ready(envoy: &Envoy, parent: &MirrordMultiClusterSession) -> Result<(), Refusal> {
    let mut bell = envoy.sessions.bell();
    let name = parent.name_any();
    let waited = timeout(PATIENCE, async {
        let mut was_seen = false;
        loop {
            let known = envoy.sessions.get(&name);
            let known = known.filter(|known| known.uid() == parent.uid());
            match known.as_deref().map(judged) {
                Some(Some(judgement)) => return judgement,
                None if was_seen => return Err(Refusal::gone("the session was ended")),
                Some(None) => was_seen = true,
                None => {}
            }
            if bell.changed().await.is_err() {
                return Err(Refusal::unavailable("the operator ends; try again"));
            }
        }
    });
    waited.await.unwrap_or_else(|_| {
        Err(Refusal::unavailable(format!(
            "the session was not ready within {} s; `kubectl get mmcs {name} -o yaml` says more",
            PATIENCE.as_secs()
        )))
    })
}

fn judged(parent: &MirrordMultiClusterSession) -> Option<Result<(), Refusal>> {
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
