//! Agents in a cluster: one beside each of the target's pods.

use std::collections::{BTreeMap, HashMap};
use std::env;
use std::fmt;
use std::path::PathBuf;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use anyhow::{Context, Result, ensure};
use cluster::{
    Access, Agent, AgentSettings, Cluster, Kind, PodSettings, Replica, Replicas, Toleration,
    Workload,
};
use config::{IncomingMode, OrderedMap, Settings, Target, WorkloadKind};
use link::{Link, Redial, Status};
use proxy::Reached;
use tokio::sync::{OnceCell, Semaphore, watch};
use tokio::task::JoinSet;
use tokio::time::timeout;

use super::meant;
use super::pods::Pods;
use crate::environment::HOME;
use crate::exec::progress::Progress;

/// How long to wait for the agent to hear of the end.
const FAREWELL: Duration = Duration::from_secs(2);
/// So many agents are started beside one another: enough to hide the waiting, and not so many that a node is busy with
/// nothing else.
const AT_ONCE: usize = 8;
/// Entries of agents that have ended, in one pod, that are worth a word: they cannot be removed.
const MANY_AGENTS: usize = 20;

const NAME_A_TARGET: &str = "name a target: `standin exec -t deployment/<name> -- COMMAND` in a cluster, `-t \
    process/<pid>` or `-t container/<name>` on this machine. `standin ls`, `ps aux` and `podman ps` list what is there";

/// Starts agents for a target in a cluster.
#[derive(Debug)]
pub(crate) struct InCluster {
    cluster: Cluster,
    /// None: no target, only a namespace.
    target: Option<(Kind, String, Option<String>)>,
    settings: AgentSettings,
    /// The traffic of all pods will be wanted.
    steals: bool,
    progress: Progress,
    place: OnceCell<Place>,
    /// Turns to start agents.
    starting: Semaphore,
    number: AtomicU64,
    /// The agents that were made, by a number of ours.
    made: Mutex<HashMap<u64, Made>>,
}

/// What is found out once.
#[derive(Debug)]
struct Place {
    cluster: Cluster,
    replicas: Option<Replicas>,
}

/// An agent that was made for the session.
#[derive(Debug)]
struct Made {
    agent: Agent,
    /// Of the target's pod.
    uid: Option<String>,
    /// Of the link, when there is one.
    status: Option<watch::Receiver<Status>>,
}

/// Who says nothing of clusters means none.
pub(crate) fn ensure_meant(settings: &Settings) -> Result<()> {
    let target = settings.target.as_ref();
    let is_meant = target.is_some_and(|target| target.path.is_some())
        || settings.agent.image.is_some()
        || settings.operator == Some(true);
    ensure!(is_meant, NAME_A_TARGET);
    Ok(())
}

/// Reads the kubeconfig. Without a target, that there is none may mean that no cluster was meant.
pub(crate) async fn cluster_of(settings: &Settings) -> Result<Cluster> {
    let cluster = Cluster::connect(&access(settings)).await;
    match &settings.target {
        None => cluster.context(NAME_A_TARGET),
        Some(_) => Ok(cluster?),
    }
}

impl InCluster {
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
            place: OnceCell::new(),
            starting: Semaphore::new(AT_ONCE),
            number: AtomicU64::new(0),
            made: Mutex::default(),
        })
    }

    /// The pods of the target as they are now, and as they will be. Having none is an error.
    pub(super) async fn pods(self: &Arc<Self>) -> Result<Pods> {
        self.progress.begin("finding the target");
        let place = self.place.get_or_try_init(|| self.find()).await?;
        if let Some(replicas) = &place.replicas {
            replicas.best()?;
        }
        self.progress.begin("starting the agent");
        Ok(Pods::new(Arc::clone(self)))
    }

    pub(super) fn cluster_name(&self) -> Option<String> {
        self.cluster.context().map(str::to_owned)
    }

    pub(super) fn steals(&self) -> bool {
        self.steals
    }

    pub(super) fn replicas(&self) -> Option<&Replicas> {
        self.place.get()?.replicas.as_ref()
    }

    /// Starts an agent beside a replica, or without a target, and makes a link to it.
    pub(super) async fn start(&self, replica: Option<&Replica>) -> Result<Reached> {
        let place = self.place.get().context("the target was not found")?;
        // Never closed.
        let _turn = self.starting.acquire().await;
        if let Some(replica) = replica {
            tracing::info!(pod = replica.pod, container = replica.container, "a target");
            self.warn_of_many_agents(replica);
        }
        let number = self.number.fetch_add(1, Ordering::Relaxed);
        let uid = replica.map(|replica| replica.uid.clone());
        let say = |text: &str| self.progress.say(text);
        let made = |agent: &Agent| {
            let made = Made {
                agent: agent.clone(),
                uid: uid.clone(),
                status: None,
            };
            self.made().insert(number, made);
        };
        let reachable = Agent::start(
            &place.cluster,
            replica,
            place.cluster.namespace(),
            &self.settings,
            &say,
            &made,
        )
        .await?;
        self.progress.begin("connecting");
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
        if let Some(made) = self.made().get_mut(&number) {
            made.status = Some(link.status());
        }
        Ok(Reached {
            link,
            // The certificate is the proof.
            token: String::new(),
            ended: reachable.ended,
        })
    }

    async fn find(&self) -> Result<Place> {
        let cluster = self.cluster.clone();
        let Some((kind, name, container)) = &self.target else {
            self.progress.note(&format!(
                "without a target: the network of the namespace {}",
                cluster.namespace()
            ));
            return Ok(Place {
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
        let replicas = match Replicas::follow(&cluster, &workload).await {
            Ok(replicas) => replicas,
            Err(error) => return Err(meant::instead(&cluster, error).await.into()),
        };
        Ok(Place {
            cluster,
            replicas: Some(replicas),
        })
    }

    fn warn_of_many_agents(&self, replica: &Replica) {
        let (count, pod) = (replica.finished_agents, &replica.pod);
        if count > MANY_AGENTS && self.settings.ephemeral != Some(false) {
            self.progress.say(&format!(
                "pod {pod} keeps the entries of {count} agents that have ended, which only a new pod is rid of: delete it, or use \
                 --no-ephemeral-container"
            ));
        }
    }

    /// Removes the agents that were made for a pod, which need not be told any more.
    pub(super) async fn remove(&self, uid: Option<&str>) {
        let gone: Vec<Made> = {
            let mut made = self.made();
            let gone = made.extract_if(|_, made| made.uid.as_deref() == uid);
            gone.map(|(_, made)| made).collect()
        };
        for made in gone {
            made.agent.remove().await;
        }
    }

    /// Waits until the agents have been told of the end: then they end by themselves. Their pods are removed.
    pub(super) async fn end(&self) {
        let all = std::mem::take(&mut *self.made());
        let ending: JoinSet<()> = all.into_values().map(Made::end).collect();
        ending.join_all().await;
    }

    fn made(&self) -> MutexGuard<'_, HashMap<u64, Made>> {
        self.made.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Made {
    async fn end(self) {
        if let Some(mut status) = self.status {
            let told =
                status.wait_for(|status| matches!(status, Status::Finished | Status::Failed(_)));
            let _ = timeout(FAREWELL, told).await;
        }
        self.agent.remove().await;
    }
}

/// Whether the same may work a little later.
pub(super) fn may_pass(error: &anyhow::Error) -> bool {
    let known = error.downcast_ref::<cluster::Error>();
    known.is_none_or(cluster::Error::may_pass)
}

/// How to get to the cluster of these settings.
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

/// A shell would have written `~` out, in a file nobody does.
fn with_home(path: &str) -> PathBuf {
    match (path.strip_prefix("~/"), env::var_os(HOME)) {
        (Some(rest), Some(home)) => PathBuf::from(home).join(rest),
        _ => PathBuf::from(path),
    }
}

fn agent_settings(settings: &config::AgentSettings) -> Result<AgentSettings> {
    let image = settings.image.clone().context(
        "name the image of the agent, from which nodes start it: --agent-image, STANDIN_AGENT_IMAGE or `agent.image`; \
         `cargo xtask image` makes it",
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

impl fmt::Display for InCluster {
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
