//! A session through the operator of a cluster: whether there is one, and the agents that it makes.

mod agents;
mod clusters;

use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use anyhow::Result;
use api::connect::{ConnectParameters, PlaceCluster};
use api::session::SessionId;
use api::{OnConcurrentSteal, TargetKind, TargetPath};
use cluster::{Carrier, Cluster, OperatorSession};
use config::{AgentSettings, Settings, Target, WorkloadKind};
use link::Status;
use link::tls::Identity;
use proxy::Tell;
use tokio::sync::watch;
use tokio::time::timeout;

use agents::OperatorAgents;
pub(crate) use clusters::{Clusters, coordinated_clusters};

use crate::exec::holder;
use crate::exec::progress::Progress;

/// How long to wait for an agent to hear of the end.
const FAREWELL: Duration = Duration::from_secs(2);

/// A session that the operator carries. Clones are the same.
#[derive(Debug, Clone)]
pub(crate) struct ThroughOperator(Arc<Carried>);

#[derive(Debug)]
struct Carried {
    carrier: Carrier,
    /// What the user calls it.
    target: String,
    /// What the user calls the operator's cluster.
    cluster: Option<String>,
    identity: Identity,
    resume_window: Duration,
    /// What becomes of the links, so that the end can wait for them.
    links: Mutex<Vec<watch::Receiver<Status>>>,
}

/// Whether a session goes through the operator.
#[derive(Debug)]
pub(crate) enum Way {
    Operator(ThroughOperator),
    /// With the user's own rights.
    Own,
}

/// Finds the operator, unless the settings say that it is not wanted, and begins a session there.
pub(crate) async fn choose(
    settings: &Settings,
    cluster: &Cluster,
    progress: &Progress,
) -> Result<Way> {
    let forced = match settings.operator {
        Some(false) => return Ok(Way::Own),
        Some(true) => true,
        None => {
            progress.begin("looking for an operator");
            if !cluster::has_operator(cluster).await? {
                return Ok(Way::Own);
            }
            false
        }
    };
    progress.begin("making the session with the operator");
    let error = match begin(settings, cluster, progress).await {
        Ok(session) => {
            if has_wishes(&settings.agent) {
                progress.say(
                    "the operator decides how agents are made: of the settings below `agent` only `communication_timeout` has an effect",
                );
            }
            progress.begin("waiting for the agents of the operator");
            return Ok(Way::Operator(session));
        }
        Err(error) => error,
    };
    match error.downcast_ref::<cluster::Error>() {
        // Nothing can be asked of it, and no rule of it is passed by: the user's own rights are all that counts.
        Some(cluster::Error::ForeignOperator) if !forced => {
            progress.say(
                "another operator answers in this cluster, which this standin does not understand: the session uses your own rights",
            );
            Ok(Way::Own)
        }
        // It went in between, and a session without a target is nobody's.
        Some(cluster::Error::NoOperator) if !forced => Ok(Way::Own),
        Some(cluster::Error::OperatorRefused(why)) if !forced && is_targetless(settings) => {
            progress.say(&format!(
                "without a target the session uses your own rights, since the operator refuses it: {why}"
            ));
            Ok(Way::Own)
        }
        // Rights that are missing may hide that there is nobody to use them with.
        Some(cluster::Error::MayNot { .. })
            if forced && !cluster::has_operator(cluster).await? =>
        {
            Err(cluster::Error::NoOperator.into())
        }
        _ => Err(error),
    }
}

/// Whether something is said about agents that only those can have who make them. The image is no wish: it is there for
/// clusters without an operator.
fn has_wishes(agent: &AgentSettings) -> bool {
    let nothing_said = AgentSettings::default();
    let without_effect = AgentSettings {
        image: None,
        communication_timeout: nothing_said.communication_timeout,
        ..agent.clone()
    };
    without_effect != nothing_said
}

async fn begin(
    settings: &Settings,
    cluster: &Cluster,
    progress: &Progress,
) -> Result<ThroughOperator> {
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
        .introduce(&holder::user(), &holder::machine());
    tracing::info!(%id, %target, "a session through the operator");
    let stays_here = settings.multi_cluster == Some(false);
    let carrier = tokio::select! {
        carrier = Carrier::start(session) => carrier?,
        never = clusters::announce(cluster, id, progress), if !stays_here => match never {},
    };
    Ok(ThroughOperator(Arc::new(Carried {
        carrier,
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

/// The target as addresses have it, and the labels of one that is known by labels.
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

fn on_steal(what: config::OnConcurrentSteal) -> OnConcurrentSteal {
    match what {
        config::OnConcurrentSteal::Abort => OnConcurrentSteal::Abort,
        config::OnConcurrentSteal::Continue => OnConcurrentSteal::Continue,
        config::OnConcurrentSteal::Override => OnConcurrentSteal::Override,
    }
}

/// A number that no other session has.
fn new_id() -> Result<SessionId> {
    let mut bytes = [0; 8];
    super::local::random(&mut bytes)?;
    Ok(SessionId(u64::from_be_bytes(bytes)))
}

impl ThroughOperator {
    /// What the user calls the target.
    pub(crate) fn target(&self) -> &str {
        &self.0.target
    }

    /// By which the operator knows the session, too.
    pub(crate) fn id(&self) -> SessionId {
        self.0.carrier.id()
    }

    /// All clusters of the session. Where the operator has no others, the one that it is in.
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

    /// The clusters of a session over several. Empty, where there is one, and before the operator has said.
    pub(crate) fn clusters(&self) -> Vec<PlaceCluster> {
        self.0.carrier.places().borrow().clusters.clone()
    }

    /// The agents, as they come and go. What becomes of their clusters is told.
    pub(crate) fn agents(&self, tell: Tell) -> OperatorAgents {
        OperatorAgents::new(self.clone(), tell)
    }

    /// Waits until agents and operator have been told of the end.
    pub(crate) async fn end(&self) {
        let links = {
            let mut links = self.0.links.lock().unwrap_or_else(PoisonError::into_inner);
            std::mem::take(&mut *links)
        };
        let told = async {
            for mut link in links {
                let ended =
                    |status: &Status| matches!(status, Status::Finished | Status::Failed(_));
                let _ = link.wait_for(ended).await;
            }
        };
        let _ = timeout(FAREWELL, told).await;
        self.0.carrier.end().await;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn targets_are_named_as_addresses_name_them() {
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
    fn an_image_is_no_wish_and_a_namespace_is() {
        let wishes = |agent: &str| {
            let text = format!("agent: {{{agent}}}");
            let layers = config::Layers::new().file("test", &text, config::Format::Yaml);
            has_wishes(&layers.resolve().unwrap().settings.agent)
        };
        assert!(!wishes("image: 'registry.example.com/standind:1'"));
        assert!(!wishes("communication_timeout: 30"));
        assert!(wishes("namespace: tools"));
        assert!(wishes("ephemeral: false"));
    }
}
