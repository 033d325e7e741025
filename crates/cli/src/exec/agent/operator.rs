//! A session through the operator of a cluster: whether there is one, and the agents that it starts.

mod clusters;
mod source;

use std::sync::Arc;
use std::time::Duration;

use anyhow::Result;
use api::connect::{ClusterEndpoints, ConnectParameters};
use api::session::SessionId;
use api::{OnConcurrentSteal, TargetKind, TargetPath};
use cluster::{Cluster, OperatorSession, ReconnectingOperator};
use config::{AgentSettings, Settings, Target, WorkloadKind};
use link::Status;
use link::tls::Identity;
use parking_lot::Mutex;
use proxy::EventSink;
use tokio::sync::watch;
use tokio::time::timeout;

pub(crate) use clusters::{ClusterSummary, coordinated_clusters};
use source::OperatorAgentSource;

use crate::exec::holder;
use crate::exec::progress::Progress;

/// How long to wait until the agents have confirmed the end of the session.
const END_TIMEOUT: Duration = Duration::from_secs(2);

/// The agents of a session through an operator. Clones share state.
#[derive(Debug, Clone)]
pub(crate) struct OperatorAgents(Arc<OperatorSessionState>);

#[derive(Debug)]
struct OperatorSessionState {
    operator: ReconnectingOperator,
    /// The target, as the user named it.
    target: String,
    /// The name of the operator's cluster in the kubeconfig.
    cluster: Option<String>,
    identity: Identity,
    resume_window: Duration,
    /// The status of each link, so that the end of the session can wait for them.
    links: Mutex<Vec<watch::Receiver<Status>>>,
}

/// How a session accesses a cluster.
#[derive(Debug)]
pub(crate) enum AccessPath {
    Operator(OperatorAgents),
    /// With the user's own rights.
    Direct,
}

/// Starts a session through the operator of the cluster, if there is one and the settings allow it.
pub(crate) async fn choose_access_path(
    settings: &Settings,
    cluster: &Cluster,
    progress: &Progress,
) -> Result<AccessPath> {
    let forced = match settings.operator {
        Some(false) => return Ok(AccessPath::Direct),
        Some(true) => true,
        None => {
            progress.startup_step("looking for an operator");
            if !cluster::has_operator(cluster).await? {
                return Ok(AccessPath::Direct);
            }
            false
        }
    };
    progress.startup_step("creating the session with the operator");
    let error = match start_session(settings, cluster, progress).await {
        Ok(session) => {
            if has_agent_settings(&settings.agent) {
                progress.warn(
                    "the operator decides how agents are started: of the settings below `agent` only `communication_timeout` has an effect",
                );
            }
            progress.startup_step("waiting for the agents of the operator");
            return Ok(AccessPath::Operator(session));
        }
        Err(error) => error,
    };
    match error.downcast_ref::<cluster::Error>() {
        // This operator cannot be used, and none of its rules is bypassed: the user's own rights apply.
        Some(cluster::Error::IncompatibleOperator) if !forced => {
            progress.warn(
                "another operator answers in this cluster, which this standin does not understand: the session uses your own rights",
            );
            Ok(AccessPath::Direct)
        }
        // The operator was uninstalled in between.
        Some(cluster::Error::NoOperator) if !forced => Ok(AccessPath::Direct),
        // A session without a target affects no other user.
        Some(cluster::Error::OperatorRefused(why)) if !forced && is_targetless(settings) => {
            progress.warn(&format!(
                "without a target the session uses your own rights, since the operator refuses it: {why}"
            ));
            Ok(AccessPath::Direct)
        }
        // Without an operator, the API server may report missing rights instead.
        Some(cluster::Error::AccessDenied { .. })
            if forced && !cluster::has_operator(cluster).await? =>
        {
            Err(cluster::Error::NoOperator.into())
        }
        _ => Err(error),
    }
}

/// Whether there are settings for agents that have no effect with an operator. The image is not one of them: it is commonly
/// set for clusters without an operator.
fn has_agent_settings(agent: &AgentSettings) -> bool {
    let default = AgentSettings::default();
    let without_effect = AgentSettings {
        image: None,
        communication_timeout: default.communication_timeout,
        ..agent.clone()
    };
    without_effect != default
}

async fn start_session(
    settings: &Settings,
    cluster: &Cluster,
    progress: &Progress,
) -> Result<OperatorAgents> {
    if settings.multi_cluster == Some(true) {
        clusters::ensure_primary(cluster).await?;
    }
    let (target, labels) = target_path(settings);
    let resume_window = Duration::from_secs(settings.agent.communication_timeout.0);
    let steal = settings.feature.network.incoming.on_concurrent_steal;
    let parameters = ConnectParameters {
        connect: true,
        on_concurrent_steal: Some(on_steal(steal)),
        label_target: labels,
        resume_window: Some(resume_window.as_secs()),
        multi_cluster: settings.multi_cluster,
        ..ConnectParameters::default()
    };
    let name = match &parameters.label_target {
        Some(labels) => format!("selector/{labels}"),
        None => target.to_string(),
    };
    let identity = Identity::generate()?;
    let id = new_id()?;
    let namespace = cluster.namespace();
    let session = OperatorSession::new(cluster, namespace, &target, &parameters, id, &identity)
        .with_client_names(&holder::user(), &holder::machine());
    tracing::info!(%id, %target, "starting session through the operator");
    let single_cluster = settings.multi_cluster == Some(false);
    let operator = tokio::select! {
        operator = ReconnectingOperator::start(session) => operator?,
        never = clusters::announce(cluster, id, progress), if !single_cluster => match never {},
    };
    Ok(OperatorAgents(Arc::new(OperatorSessionState {
        operator,
        target: name,
        cluster: cluster.context().map(str::to_owned),
        identity,
        resume_window,
        links: Mutex::default(),
    })))
}

pub(crate) fn is_targetless(settings: &Settings) -> bool {
    let target = settings.target.as_ref();
    !matches!(
        target.and_then(|target| target.path.as_ref()),
        Some(Target::Workload { .. })
    )
}

/// The target in the format of API paths, and the label selector if it is one.
fn target_path(settings: &Settings) -> (TargetPath, Option<String>) {
    let target = settings.target.as_ref();
    let Some(Target::Workload {
        kind,
        name,
        container,
    }) = target.and_then(|target| target.path.as_ref())
    else {
        let kind = TargetKind::Targetless;
        let (name, container) = (String::new(), None);
        let path = TargetPath {
            kind,
            name,
            container,
        };
        return (path, None);
    };
    let path = |kind, name: &str| TargetPath {
        kind,
        name: name.to_owned(),
        container: container.clone(),
    };
    match kind_of(*kind) {
        TargetKind::Label => (path(TargetKind::Label, ""), Some(name.clone())),
        kind => (path(kind, name), None),
    }
}

fn kind_of(kind: WorkloadKind) -> TargetKind {
    match kind {
        WorkloadKind::Pod => TargetKind::Pod,
        WorkloadKind::Deployment => TargetKind::Deployment,
        WorkloadKind::ReplicaSet => TargetKind::ReplicaSet,
        WorkloadKind::StatefulSet => TargetKind::StatefulSet,
        WorkloadKind::DaemonSet => TargetKind::DaemonSet,
        WorkloadKind::Job => TargetKind::Job,
        WorkloadKind::CronJob => TargetKind::CronJob,
        WorkloadKind::Service => TargetKind::Service,
        WorkloadKind::Rollout => TargetKind::Rollout,
        WorkloadKind::Selector => TargetKind::Label,
    }
}

fn on_steal(policy: config::OnConcurrentSteal) -> OnConcurrentSteal {
    match policy {
        config::OnConcurrentSteal::Abort => OnConcurrentSteal::Abort,
        config::OnConcurrentSteal::Continue => OnConcurrentSteal::Continue,
        config::OnConcurrentSteal::Override => OnConcurrentSteal::Override,
    }
}

/// A random id, unique among sessions.
fn new_id() -> Result<SessionId> {
    let mut bytes = [0; 8];
    super::local::random(&mut bytes)?;
    Ok(SessionId(u64::from_be_bytes(bytes)))
}

impl OperatorAgents {
    /// The target, as the user named it.
    pub(crate) fn target(&self) -> &str {
        &self.0.target
    }

    pub(crate) fn id(&self) -> SessionId {
        self.0.operator.id()
    }

    /// All clusters of the session. Without member clusters, the operator's own.
    pub(crate) fn cluster_names(&self) -> Vec<String> {
        let clusters = self.clusters().into_iter();
        let names = clusters.map(|cluster| cluster.name);
        let names: Vec<String> = names.collect();
        if names.is_empty() {
            self.0.cluster.iter().cloned().collect()
        } else {
            names
        }
    }

    /// The clusters of a session over several. Empty with a single cluster, and until the operator has reported them.
    pub(crate) fn clusters(&self) -> Vec<ClusterEndpoints> {
        self.0.operator.endpoints().borrow().clusters.clone()
    }

    /// The source of the agents. `events` gets changes of their clusters.
    pub(crate) fn source(&self, events: EventSink) -> OperatorAgentSource {
        OperatorAgentSource::new(self.clone(), events)
    }

    /// Waits until agents and operator have confirmed the end of the session.
    pub(crate) async fn end(&self) {
        let links = std::mem::take(&mut *self.0.links.lock());
        let confirmed = async {
            for mut link in links {
                let ended =
                    |status: &Status| matches!(status, Status::Finished | Status::Failed(_));
                let _ = link.wait_for(ended).await;
            }
        };
        let _ = timeout(END_TIMEOUT, confirmed).await;
        self.0.operator.end().await;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn targets_are_converted_to_api_paths() {
        let check = |target: &str, address: &str, labels: Option<&str>| {
            let layers = config::Layers::new().flag("--target", "target", target);
            let settings = layers.resolve().unwrap().settings;
            let (path, label_target) = target_path(&settings);
            assert_eq!(path.address(), address);
            assert_eq!(label_target.as_deref(), labels);
            assert_eq!(is_targetless(&settings), address == "targetless");
        };
        check("deployment/checkout", "deployment.checkout", None);
        check("pod/a.b/container/c", "pod.a.b.container.c", None);
        check("selector/app=x,tier!=y", "label", Some("app=x,tier!=y"));
        check("targetless", "targetless", None);
    }

    #[test]
    fn agent_settings_without_effect_are_detected() {
        let check = |agent: &str| {
            let text = format!("agent: {{{agent}}}");
            let layers = config::Layers::new().file("test", &text, config::Format::Yaml);
            has_agent_settings(&layers.resolve().unwrap().settings.agent)
        };
        assert!(!check("image: 'registry.example.com/standind:1'"));
        assert!(!check("communication_timeout: 30"));
        assert!(check("namespace: tools"));
        assert!(check("ephemeral: false"));
    }
}
