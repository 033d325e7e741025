//! Agents in a cluster: beside one of the target's pods, and beside another one when that is lost.

use std::collections::BTreeMap;
use std::env;
use std::fmt;
use std::path::PathBuf;
use std::sync::{Mutex, PoisonError};
use std::time::Duration;

use anyhow::{Context, Result, ensure};
use cluster::{
    Access, Agent, AgentSettings, Cluster, Kind, PodSettings, Replica, Replicas, Toleration,
    Workload,
};
use config::{OrderedMap, Settings, Target, WorkloadKind};
use link::{Link, Redial, Status};
use proxy::Reached;
use tokio::sync::{OnceCell, watch};
use tokio::time::{Instant, sleep, timeout};

use crate::environment::HOME;
use crate::exec::progress::Progress;

/// How long to wait for the agent to hear of the end.
const FAREWELL: Duration = Duration::from_secs(2);
/// How long a session waits for another pod before it says that there is none.
const SUCCESSION: Duration = Duration::from_secs(30);
const BETWEEN_TRIES: Duration = Duration::from_millis(500);
/// Entries of agents that have ended, in one pod, that are worth a word: they cannot be removed.
const MANY_AGENTS: usize = 20;

const NAME_A_TARGET: &str = "name a target: `standin exec -t deployment/<name> -- COMMAND` in a cluster, `-t \
    process/<pid>` or `-t container/<name>` on this machine. `standin ls`, `ps aux` and `podman ps` list what is there";

/// Starts agents for a target in a cluster.
#[derive(Debug)]
pub(crate) struct InCluster {
    access: Access,
    /// None: no target, only a namespace.
    target: Option<(Kind, String, Option<String>)>,
    settings: AgentSettings,
    progress: Progress,
    place: OnceCell<Place>,
    current: Mutex<Option<Current>>,
}

/// What is found out once.
#[derive(Debug)]
struct Place {
    cluster: Cluster,
    replicas: Option<Replicas>,
}

/// The agent that there is now.
#[derive(Debug)]
struct Current {
    agent: Agent,
    replica: Option<Replica>,
    status: watch::Receiver<Status>,
}

impl InCluster {
    pub(crate) fn new(settings: &Settings, progress: &Progress) -> Result<Self> {
        let path = settings
            .target
            .as_ref()
            .and_then(|target| target.path.clone());
        // Who says nothing of clusters means none.
        ensure!(
            path.is_some() || settings.agent.image.is_some(),
            NAME_A_TARGET
        );
        let target = match path {
            Some(Target::Workload {
                kind,
                name,
                container,
            }) => Some((kind_of(kind), name, container)),
            _ => None,
        };
        Ok(Self {
            access: access(settings),
            target,
            settings: agent_settings(&settings.agent)?,
            progress: progress.clone(),
            place: OnceCell::new(),
            current: Mutex::default(),
        })
    }

    pub(crate) fn is_targetless(&self) -> bool {
        self.target.is_none()
    }

    /// Starts an agent and makes a link to it. When there was one before, the target may need a moment.
    pub(super) async fn start(&self) -> Result<Reached> {
        let before = self.take();
        let again = before.is_some();
        if let Some(before) = before {
            before.agent.remove().await;
        }
        let give_up = Instant::now() + SUCCESSION;
        loop {
            match self.try_start().await {
                Err(error) if again && may_pass(&error) && Instant::now() < give_up => {
                    tracing::info!(error = format!("{error:#}"), "there is no other agent yet");
                    sleep(BETWEEN_TRIES).await;
                }
                result => return result,
            }
        }
    }

    async fn try_start(&self) -> Result<Reached> {
        self.progress.begin("finding the target");
        let place = self.place.get_or_try_init(|| self.find()).await?;
        let replica = match &place.replicas {
            Some(replicas) => Some(replicas.best()?),
            None => None,
        };
        let namespace = place.cluster.namespace();
        if let Some(replica) = &replica {
            tracing::info!(
                pod = replica.pod,
                container = replica.container,
                "the target"
            );
            self.warn_of_many_agents(replica);
        }
        self.progress.begin("starting the agent");
        let say = |text: &str| self.progress.say(text);
        let reachable = Agent::start(
            &place.cluster,
            replica.as_ref(),
            namespace,
            &self.settings,
            &say,
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
        let current = Current {
            agent: reachable.agent,
            replica,
            status: link.status(),
        };
        *self.current.lock().unwrap_or_else(PoisonError::into_inner) = Some(current);
        Ok(Reached {
            link,
            // The certificate is the proof.
            token: String::new(),
            ended: reachable.ended,
        })
    }

    async fn find(&self) -> Result<Place> {
        let cluster = Cluster::connect(&self.access).await;
        let cluster = match &self.target {
            None => cluster.context(NAME_A_TARGET)?,
            Some(_) => cluster?,
        };
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
        let replicas = Replicas::follow(&cluster, &workload).await?;
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

    /// Ends when the target has another pod than the one in use.
    pub(super) async fn successor(&self) {
        let before = {
            let current = self.current.lock().unwrap_or_else(PoisonError::into_inner);
            current.as_ref().and_then(|current| current.replica.clone())
        };
        match self.place.get().and_then(|place| place.replicas.as_ref()) {
            Some(replicas) => replicas.another_than(before.as_ref()).await,
            None => std::future::pending().await,
        }
    }

    /// Waits until the agent has been told of the end: then it ends by itself. Its pod is removed.
    pub(super) async fn end(&self) {
        let Some(mut current) = self.take() else {
            return;
        };
        let told = current
            .status
            .wait_for(|status| matches!(status, Status::Finished | Status::Failed(_)));
        let _ = timeout(FAREWELL, told).await;
        current.agent.remove().await;
    }

    fn take(&self) -> Option<Current> {
        let mut current = self.current.lock().unwrap_or_else(PoisonError::into_inner);
        current.take()
    }
}

fn may_pass(error: &anyhow::Error) -> bool {
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
