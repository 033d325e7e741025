//! Agents in a cluster that are started with the user's rights: one beside each pod of the target.

use std::collections::{BTreeMap, HashMap};
use std::env;
use std::fmt;
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use anyhow::{Context, Result, ensure};
use cluster::{
    Access, AgentSettings, Cluster, ClusterAgent, Kind, PodSettings, Replica, Replicas, Toleration,
    Workload,
};
use config::{IncomingMode, OrderedMap, Settings, Target, WorkloadKind};
use link::{Link, Redial, Status};
use parking_lot::Mutex;
use proxy::Connected;
use tokio::sync::{OnceCell, Semaphore, watch};
use tokio::task::JoinSet;
use tokio::time::timeout;

use super::pods::PodSource;
use super::suggestion;
use crate::environment::HOME;
use crate::exec::progress::Progress;

/// How long to wait until an agent has confirmed the end of the session.
const END_TIMEOUT: Duration = Duration::from_secs(2);
/// How many agents are started concurrently: enough to hide the latency, and not enough to overload a node.
const MAX_CONCURRENT_STARTS: usize = 8;
/// The user is warned if one pod has more entries of ended agents, because they cannot be removed.
const MAX_FINISHED_AGENTS: usize = 20;

const NAME_A_TARGET: &str = "name a target: `standin exec -t deployment/<name> -- COMMAND` in a cluster, `-t \
    process/<pid>` or `-t container/<name>` on this machine. `standin ls`, `ps aux` and `podman ps` list what is there";

/// Starts agents for a target in a cluster.
#[derive(Debug)]
pub(crate) struct ClusterAgents {
    cluster: Cluster,
    /// `None`: no target, only a namespace.
    target: Option<(Kind, String, Option<String>)>,
    settings: AgentSettings,
    /// Whether the session steals traffic, and so needs agents in all pods.
    steals: bool,
    progress: Progress,
    resolved: OnceCell<ResolvedTarget>,
    /// Limits concurrent starts.
    start_permits: Semaphore,
    next_number: AtomicU64,
    /// The agents that were started, by a number that is unique in this process.
    started: Mutex<HashMap<u64, StartedAgent>>,
}

/// The target, which is resolved once.
#[derive(Debug)]
struct ResolvedTarget {
    cluster: Cluster,
    replicas: Option<Replicas>,
}

/// An agent that was started for the session.
#[derive(Debug)]
struct StartedAgent {
    agent: ClusterAgent,
    /// The uid of the target's pod.
    uid: Option<String>,
    /// The status of the link, once there is one.
    status: Option<watch::Receiver<Status>>,
}

/// Fails if no setting refers to a cluster, instead of using the current context by surprise.
pub(crate) fn ensure_cluster_intended(settings: &Settings) -> Result<()> {
    let target = settings.target.as_ref();
    let is_intended = target.is_some_and(|target| target.path.is_some())
        || settings.agent.image.is_some()
        || settings.operator == Some(true);
    ensure!(is_intended, NAME_A_TARGET);
    Ok(())
}

/// Reads the kubeconfig. If that fails without a target, the user may not have intended to use a cluster.
pub(crate) async fn connect_cluster(settings: &Settings) -> Result<Cluster> {
    let cluster = Cluster::connect(&access(settings)).await;
    match &settings.target {
        None => cluster.context(NAME_A_TARGET),
        Some(_) => Ok(cluster?),
    }
}

impl ClusterAgents {
    pub(crate) fn new(settings: &Settings, cluster: Cluster, progress: &Progress) -> Result<Self> {
        let path = settings
            .target
            .as_ref()
            .and_then(|target| target.path.clone());
        let target = match path {
            Some(Target::Workload {
                kind,
                name,
                container,
            }) => Some((kind_of(kind), name, container)),
            _ => None,
        };
        Ok(Self {
            cluster,
            target,
            settings: agent_settings(&settings.agent)?,
            steals: settings.feature.network.incoming.mode == IncomingMode::Steal,
            progress: progress.clone(),
            resolved: OnceCell::new(),
            start_permits: Semaphore::new(MAX_CONCURRENT_STARTS),
            next_number: AtomicU64::new(0),
            started: Mutex::default(),
        })
    }

    /// The agents in the pods of the target. It is an error if the target has no usable pod.
    pub(super) async fn pods(self: &Arc<Self>) -> Result<PodSource> {
        self.progress.startup_step("finding the target");
        let resolved = self.resolved.get_or_try_init(|| self.resolve()).await?;
        if let Some(replicas) = &resolved.replicas {
            replicas.best()?;
        }
        self.progress.startup_step("starting the agent");
        Ok(PodSource::new(Arc::clone(self)))
    }

    pub(super) fn cluster_name(&self) -> Option<String> {
        self.cluster.context().map(str::to_owned)
    }

    pub(super) fn steals(&self) -> bool {
        self.steals
    }

    pub(super) fn replicas(&self) -> Option<&Replicas> {
        self.resolved.get()?.replicas.as_ref()
    }

    /// Starts an agent beside a replica, or without a target, and connects a link to it.
    pub(super) async fn start(&self, replica: Option<&Replica>) -> Result<Connected> {
        let resolved = self.resolved.get().context("the target was not found")?;
        // The semaphore is never closed.
        let _permit = self.start_permits.acquire().await;
        if let Some(replica) = replica {
            let Replica { pod, container, .. } = replica;
            tracing::info!(pod, container, "starting agent");
            self.warn_of_finished_agents(replica);
        }
        let number = self.next_number.fetch_add(1, Ordering::Relaxed);
        let uid = replica.map(|replica| replica.uid.clone());
        let notify_user = |text: &str| self.progress.warn(text);
        let on_created = |agent: &ClusterAgent| {
            let started = StartedAgent {
                agent: agent.clone(),
                uid: uid.clone(),
                status: None,
            };
            self.started.lock().insert(number, started);
        };
        let reachable = ClusterAgent::start(
            &resolved.cluster,
            replica,
            resolved.cluster.namespace(),
            &self.settings,
            &notify_user,
            &on_created,
        )
        .await?;
        self.progress.startup_step("connecting");
        let settings = link::Settings {
            redial: Redial {
                resume_window: self.settings.resume_window,
                ..Redial::default()
            },
            ..link::Settings::default()
        };
        let link = Link::connect(reachable.dialer, settings)
            .await
            .with_context(|| {
                format!("the agent in pod {} cannot be used", reachable.agent.pod())
            })?;
        if let Some(started) = self.started.lock().get_mut(&number) {
            started.status = Some(link.status());
        }
        Ok(Connected {
            link,
            // The agent authenticates the client by its certificate.
            token: String::new(),
            ended: reachable.ended,
        })
    }

    async fn resolve(&self) -> Result<ResolvedTarget> {
        let cluster = self.cluster.clone();
        let Some((kind, name, container)) = &self.target else {
            self.progress.note(&format!(
                "without a target: the network of the namespace {}",
                cluster.namespace()
            ));
            return Ok(ResolvedTarget {
                cluster,
                replicas: None,
            });
        };
        let workload = Workload {
            namespace: cluster.namespace().to_owned(),
            kind: *kind,
            name: name.clone(),
            container: container.clone(),
        };
        let replicas = match Replicas::watch(&cluster, &workload).await {
            Ok(replicas) => replicas,
            Err(error) => return Err(suggestion::add(&cluster, error).await.into()),
        };
        Ok(ResolvedTarget {
            cluster,
            replicas: Some(replicas),
        })
    }

    fn warn_of_finished_agents(&self, replica: &Replica) {
        let (count, pod) = (replica.finished_agents, &replica.pod);
        if count > MAX_FINISHED_AGENTS && self.settings.ephemeral != Some(false) {
            self.progress.warn(&format!(
                "pod {pod} keeps the entries of {count} agents that have ended, and Kubernetes cannot remove them: delete the \
                 pod, or use --no-ephemeral-container"
            ));
        }
    }

    /// Removes the agents that were started for a pod, without notifying them of the end.
    pub(super) async fn remove(&self, uid: Option<&str>) {
        let removed: Vec<StartedAgent> = {
            let mut started = self.started.lock();
            let removed = started.extract_if(|_, started| started.uid.as_deref() == uid);
            removed.map(|(_, started)| started).collect()
        };
        for started in removed {
            started.agent.remove().await;
        }
    }

    /// Waits until the agents have confirmed the end of the session, after which they exit by themselves. Removes their
    /// pods.
    pub(super) async fn end(&self) {
        let all = std::mem::take(&mut *self.started.lock());
        let ending: JoinSet<()> = all.into_values().map(StartedAgent::end).collect();
        ending.join_all().await;
    }
}

impl StartedAgent {
    async fn end(self) {
        if let Some(mut status) = self.status {
            let confirmed =
                status.wait_for(|status| matches!(status, Status::Finished | Status::Failed(_)));
            let _ = timeout(END_TIMEOUT, confirmed).await;
        }
        self.agent.remove().await;
    }
}

/// Whether a later retry may succeed.
pub(super) fn is_transient(error: &anyhow::Error) -> bool {
    let error = error.downcast_ref::<cluster::Error>();
    error.is_none_or(cluster::Error::is_transient)
}

/// How to access the cluster of these settings.
pub(crate) fn access(settings: &Settings) -> Access {
    let namespace = settings
        .target
        .as_ref()
        .and_then(|target| target.namespace.clone());
    Access {
        kubeconfig: settings.kubeconfig.as_deref().map(with_home),
        context: settings.kube_context.clone(),
        namespace,
        no_proxy: !settings.use_proxy,
        accept_invalid_certificates: settings.accept_invalid_certificates,
    }
}

/// Expands `~/`, which a shell would have done for a flag, but not for a configuration file.
fn with_home(path: &str) -> PathBuf {
    match (path.strip_prefix("~/"), env::var_os(HOME)) {
        (Some(rest), Some(home)) => PathBuf::from(home).join(rest),
        _ => PathBuf::from(path),
    }
}

fn agent_settings(settings: &config::AgentSettings) -> Result<AgentSettings> {
    let image = settings.image.clone().context(
        "name the container image of the agent: --agent-image, STANDIN_AGENT_IMAGE or `agent.image`; `cargo xtask image` \
         builds it",
    )?;
    let map =
        |map: &OrderedMap<String>| -> BTreeMap<String, String> { map.iter().cloned().collect() };
    let secrets = settings.image_pull_secrets.iter();
    let tolerations = settings.tolerations.as_ref().map(|tolerations| {
        let tolerations = tolerations.iter().map(|toleration| Toleration {
            key: toleration.key.clone(),
            operator: toleration.operator.clone(),
            value: toleration.value.clone(),
            effect: toleration.effect.clone(),
        });
        tolerations.collect()
    });
    Ok(AgentSettings {
        image,
        image_pull_policy: format!("{:?}", settings.image_pull_policy),
        image_pull_secrets: secrets.map(|secret| secret.name.clone()).collect(),
        log_level: settings.log_level.clone(),
        ephemeral: settings.ephemeral,
        startup_timeout: Duration::from_secs(settings.startup_timeout.0),
        resume_window: Duration::from_secs(settings.communication_timeout.0),
        pod: PodSettings {
            namespace: settings.namespace.clone(),
            labels: map(&settings.labels),
            annotations: map(&settings.annotations),
            tolerations,
            requests: map(&settings.resources.requests),
            limits: map(&settings.resources.limits),
            node_selector: map(&settings.node_selector),
            service_account: settings.service_account.clone(),
            priority_class: settings.priority_class.clone(),
        },
    })
}

fn kind_of(kind: WorkloadKind) -> Kind {
    match kind {
        WorkloadKind::Pod => Kind::Pod,
        WorkloadKind::Deployment => Kind::Deployment,
        WorkloadKind::ReplicaSet => Kind::ReplicaSet,
        WorkloadKind::StatefulSet => Kind::StatefulSet,
        WorkloadKind::DaemonSet => Kind::DaemonSet,
        WorkloadKind::Job => Kind::Job,
        WorkloadKind::CronJob => Kind::CronJob,
        WorkloadKind::Service => Kind::Service,
        WorkloadKind::Rollout => Kind::Rollout,
        WorkloadKind::Selector => Kind::Selector,
    }
}

impl fmt::Display for ClusterAgents {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Some((kind, name, container)) = &self.target else {
            return formatter.write_str("the namespace");
        };
        write!(formatter, "{}/{name}", kind.as_str())?;
        match container {
            Some(container) => write!(formatter, "/container/{container}"),
            None => Ok(()),
        }
    }
}
