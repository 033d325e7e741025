//! An agent in the cluster: made beside a replica, reached through the API server, gone with its session.
//!
//! Nobody but us can use it. We make a certificate for each agent, and the agent is told its fingerprint: whoever reads the
//! pod learns nothing of use. We pin the agent's own certificate when we first see it, see [`dialer`].
//!
//! It ends with the session, however that ends: when the link is given up, when the client has been away for longer than
//! it may, or when it never came. What is left is the entry of the container in its pod; a Job and its pod are removed by
//! Kubernetes.

mod condition;
mod dialer;
mod manifest;
mod order;
mod settings;
mod start;

use std::fmt;
use std::future::Future;
use std::io;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};
use std::pin::{Pin, pin};
use std::time::Duration;

use futures_util::StreamExt as _;
use k8s_openapi::api::batch::v1::Job;
use k8s_openapi::api::core::v1::Pod;
use kube::Api;
use kube::api::DeleteParams;
use kube::runtime::WatchStreamExt as _;
use kube::runtime::watcher::watch_object;
use link::tls::rustls::{
    self,
    pki_types::{InvalidDnsNameError, ServerName},
};
use link::tls::{Fingerprint, FirstSeen, Identity, TlsDialer, Trust};
use link::{Dial, LinkError};
use protocol::grant::{Grant, IncomingGrant};
use tokio::time::{Instant, sleep, timeout};

use condition::{Condition, condition};
pub use dialer::AgentDialer;
use manifest::Plan;
pub use order::{Order, Ordered, OrderedState, ordered, ordered_as_pod};
pub use settings::{AgentSettings, PodSettings, Toleration};

use crate::access::Cluster;
use crate::error::{Error, Result};
use crate::forward::{PodProxy, PortForward};
use crate::pod::{AGENT, Replica};
use crate::refusal::{Attempt, Obstacle, Refusal};
use crate::rights;

/// Agents listen below the ports that the kernel gives to connections, and above those that services like.
pub const PORTS: std::ops::Range<u16> = 20_000..32_000;
/// So many agents may find their port taken.
const PORTS_TRIED: usize = 3;
/// The pauses between attempts to reach an agent that is about to listen.
const SHORTEST_PAUSE: Duration = Duration::from_millis(25);
const LONGEST_PAUSE: Duration = Duration::from_millis(250);
/// How long an agent of ours waits for us to come at all.
const PATIENCE: Duration = Duration::from_secs(60);
/// How long one attempt may take.
const ATTEMPT: Duration = Duration::from_secs(10);
/// The faster way is waited for as long as the other took, but within these bounds.
const SHORTEST_GRACE: Duration = Duration::from_millis(500);
const LONGEST_GRACE: Duration = Duration::from_secs(2);

/// An agent that was made. It ends by itself when nobody comes.
#[derive(Debug, Clone)]
pub struct Agent {
    cluster: Cluster,
    namespace: String,
    pod: String,
    container: String,
    job: Option<String>,
    listens: SocketAddr,
}

/// An agent that answers.
pub struct Reachable {
    pub agent: Agent,
    /// Makes the connections of a link. The first one is there already.
    pub dialer: AgentDialer,
    /// Ends, with the reason, when the agent has ended.
    pub ended: Pin<Box<dyn Future<Output = String> + Send>>,
}

type ForwardedPipe = <TlsDialer<PortForward> as Dial>::Pipe;

/// What its certificate is asked for. Nobody looks at the name.
fn name() -> Result<ServerName<'static>> {
    let name = ServerName::try_from("agent");
    let general = |error: InvalidDnsNameError| rustls::Error::General(error.to_string());
    Ok(name.map_err(|error| LinkError::from(general(error)))?)
}

impl Agent {
    /// Starts an agent beside a replica, or without a target, and waits until it answers. What the user should know on the
    /// way is said, and what was made is told before it answers, for whoever does not wait that long.
    pub async fn start(
        cluster: &Cluster,
        replica: Option<&Replica>,
        namespace: &str,
        settings: &AgentSettings,
        say: &(dyn Fn(&str) + Send + Sync),
        made: &(dyn Fn(&Agent) + Send + Sync),
    ) -> Result<Reachable> {
        let mut tried = 1;
        loop {
            let identity = Identity::generate()?;
            let client = identity.fingerprint();
            let agent = make(cluster, replica, namespace, settings, client, say).await?;
            made(&agent);
            match agent.reach(settings, &identity).await {
                Ok(reachable) => return Ok(reachable),
                Err(Error::AgentFailed { why, .. })
                    if why.contains("cannot listen on") && tried < PORTS_TRIED =>
                {
                    tracing::info!(why, "another port may be free");
                    tried += 1;
                }
                Err(error) => {
                    agent.remove().await;
                    return Err(error);
                }
            }
        }
    }

    /// The pod in which it is.
    pub fn pod(&self) -> &str {
        &self.pod
    }

    /// Removes what can be removed: the pod that was made for it. It would go by itself a little later.
    pub async fn remove(&self) {
        let Some(job) = &self.job else {
            return;
        };
        let jobs: Api<Job> = Api::namespaced(self.cluster.client.clone(), &self.namespace);
        if let Err(error) = jobs.delete(job, &DeleteParams::background()).await {
            tracing::debug!(%error, job, "the agent's Job is left to the cluster");
        }
    }

    /// Waits until it answers.
    async fn reach(&self, settings: &AgentSettings, identity: &Identity) -> Result<Reachable> {
        let client = self.cluster.client.clone();
        let forward = PortForward::new(client, &self.namespace, &self.pod, self.listens.port());
        let seen = FirstSeen::default();
        let trust = Trust::FirstSeen(seen.clone());
        let forward = TlsDialer::with_identity(forward, name()?, trust, identity)?;
        let answered = tokio::select! {
            answered = self.first_answer(&forward, settings.startup_timeout) => answered,
            why = self.trouble() => Err(Error::AgentFailed { pod: self.pod.clone(), why }),
        };
        let (first, took) = answered?;
        let mut dialer = AgentDialer::new(forward, first);
        if let Some(certificate) = seen.fingerprint() {
            self.go_directly(&mut dialer, certificate, identity, took)
                .await?;
        }
        let agent = self.clone();
        Ok(Reachable {
            agent: self.clone(),
            dialer,
            ended: Box::pin(async move { agent.ended().await }),
        })
    }

    /// Uses the pods' network, if the agent is there to be found and the API server gets there. It must show the certificate
    /// that it has shown already.
    async fn go_directly(
        &self,
        dialer: &mut AgentDialer,
        certificate: Fingerprint,
        identity: &Identity,
        port_forward_took: Duration,
    ) -> Result<()> {
        if !self.listens.ip().is_unspecified() || !self.cluster.reaches_pods() {
            return Ok(());
        }
        let client = self.cluster.client.clone();
        let proxy = PodProxy::new(client, &self.namespace, &self.pod, self.listens.port());
        let trust = Trust::Pinned(certificate);
        let direct = TlsDialer::with_identity(proxy, name()?, trust, identity)?;
        // As long as the way through the node took, but nobody shall wait for this.
        let patience = port_forward_took.clamp(SHORTEST_GRACE, LONGEST_GRACE);
        match dialer.go_directly(direct, patience).await {
            Ok(()) => tracing::debug!("the agent is reached over the pods' network"),
            Err(error) => {
                tracing::debug!(%error, "the agent is reached by port-forward only");
                let lasts = [io::ErrorKind::TimedOut, io::ErrorKind::PermissionDenied];
                if lasts.contains(&error.kind()) {
                    self.cluster.does_not_reach_pods();
                }
            }
        }
        Ok(())
    }

    /// The first connection, and how long it took to make.
    async fn first_answer(
        &self,
        dialer: &TlsDialer<PortForward>,
        patience: Duration,
    ) -> Result<(ForwardedPipe, Duration)> {
        let began = Instant::now();
        let mut pause = SHORTEST_PAUSE;
        loop {
            let tried = Instant::now();
            let why = match timeout(ATTEMPT, dialer.dial()).await {
                Ok(Ok(pipe)) => return Ok((pipe, tried.elapsed())),
                Ok(Err(error)) if error.kind() == io::ErrorKind::PermissionDenied => {
                    return Err(rights::forbidden(
                        &self.cluster.client,
                        &self.namespace,
                        "forward ports of pods",
                        None,
                        rights::TO_REACH,
                    )
                    .await);
                }
                Ok(Err(error)) => error.to_string(),
                Err(_) => "it is silent".to_owned(),
            };
            tracing::trace!(why, "the agent does not answer yet");
            if began.elapsed() > patience {
                return Err(Error::Timeout {
                    pod: self.pod.clone(),
                    waited: patience,
                    why,
                });
            }
            sleep(pause).await;
            pause = (pause * 3 / 2).min(LONGEST_PAUSE);
        }
    }

    /// Ends when it is known that it will not answer.
    async fn trouble(&self) -> String {
        self.follow(|condition| match condition {
            Condition::Fine => None,
            Condition::Trouble(why) | Condition::Ended(why) => Some(why),
        })
        .await
    }

    /// Ends when it has ended.
    async fn ended(&self) -> String {
        self.follow(|condition| match condition {
            Condition::Fine | Condition::Trouble(_) => None,
            Condition::Ended(why) => Some(why),
        })
        .await
    }

    async fn follow(&self, judge: impl Fn(Condition) -> Option<String>) -> String {
        let pods: Api<Pod> = Api::namespaced(self.cluster.client.clone(), &self.namespace);
        let mut states = pin!(watch_object(pods, &self.pod).default_backoff());
        while let Some(state) = states.next().await {
            // What cannot be asked now may be asked later, and the link knows as well.
            let Ok(pod) = state else { continue };
            if let Some(why) = judge(condition(pod.as_ref(), &self.container)) {
                return why;
            }
        }
        std::future::pending().await
    }
}

/// Makes an agent for the client whose certificate has this fingerprint, and does not wait for it.
async fn make(
    cluster: &Cluster,
    replica: Option<&Replica>,
    namespace: &str,
    settings: &AgentSettings,
    client: Fingerprint,
    say: &(dyn Fn(&str) + Send + Sync),
) -> Result<Agent> {
    let name = format!("{AGENT}{:08x}", rand::random::<u32>());
    let grant = replica.and_then(grant);
    let plan = Plan {
        name: &name,
        listen: (Ipv6Addr::UNSPECIFIED, rand::random_range(PORTS)).into(),
        client,
        ended_by: None,
        patience: PATIENCE,
        grant: grant.as_deref(),
        settings,
    };
    let own_namespace = settings.pod.namespace.as_deref().unwrap_or(namespace);
    let mut met = Vec::new();
    if let Some(replica) = replica
        && settings.ephemeral != Some(false)
    {
        let listen = SocketAddr::new(listening_address(replica), plan.listen.port());
        match start::ephemeral(cluster, Plan { listen, ..plan }, replica).await? {
            Ok(agent) => return Ok(agent),
            Err(obstacle) => met.push((Attempt::Ephemeral, obstacle)),
        }
        if settings.ephemeral == Some(true) {
            return Err(refusal(cluster, namespace, met).await);
        }
        let (_, obstacle) = &met[0];
        say(&format!(
            "no ephemeral container can be started ({obstacle}): the agent becomes a pod on the target's node"
        ));
    }
    match start::pod(cluster, plan, replica, own_namespace).await? {
        Ok(agent) => Ok(agent),
        Err(obstacle) => {
            let attempt = match replica {
                Some(_) => Attempt::Pod,
                None => Attempt::Targetless,
            };
            met.push((attempt, obstacle));
            Err(refusal(cluster, own_namespace, met).await)
        }
    }
}

/// Inside of a pod it is the pod's addresses, so that the API server reaches the agent also without the node's help. A pod in
/// the node's network would have those of the node.
fn listening_address(replica: &Replica) -> IpAddr {
    match replica.is_in_host_network {
        true => Ipv4Addr::LOCALHOST.into(),
        false => Ipv6Addr::UNSPECIFIED.into(),
    }
}

/// Without an operator nobody forbids anything. What the agent should know of its target is told in the same words.
fn grant(replica: &Replica) -> Option<String> {
    let grant = Grant {
        incoming: IncomingGrant {
            probes: replica.probes.clone(),
            ..IncomingGrant::default()
        },
        ..Grant::default()
    };
    let has_probes = !replica.probes.is_empty();
    has_probes
        .then(|| serde_json::to_string(&grant).ok())
        .flatten()
}

/// Where rights alone are missing, the rule to ask for is what helps.
async fn refusal(cluster: &Cluster, namespace: &str, met: Vec<(Attempt, Obstacle)>) -> Error {
    let by_rights = |(_, obstacle): &(Attempt, Obstacle)| matches!(obstacle, Obstacle::Rights(_));
    match met.first() {
        Some((attempt, _)) if met.iter().all(by_rights) => {
            let needed = match attempt {
                Attempt::Ephemeral => rights::FOR_EPHEMERAL,
                Attempt::Pod | Attempt::Targetless => rights::FOR_POD,
            };
            let needed = [needed, rights::TO_REACH].concat();
            let action = "start an agent";
            rights::forbidden(&cluster.client, namespace, action, None, &needed).await
        }
        _ => Error::Refused(Refusal {
            namespace: namespace.to_owned(),
            met,
            is_operators: false,
        }),
    }
}

impl fmt::Debug for Reachable {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut debug = formatter.debug_struct("Reachable");
        debug.field("agent", &self.agent).finish_non_exhaustive()
    }
}
