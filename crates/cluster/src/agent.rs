//! An agent in the cluster: started beside a replica, reached through the API server, and ended with its session.
//!
//! Only the client that started an agent can use it. The client generates a certificate for each agent, and the agent gets
//! its fingerprint as an argument, so reading the pod discloses no secret. The client pins the agent's own certificate on
//! the first connection, see [`dialer`].
//!
//! The agent ends with the session: when the link ends, when the client was disconnected for longer than the resume window,
//! or when no client connected at all. An ephemeral container leaves its entry in the pod; Kubernetes removes a Job and its
//! pod.

mod condition;
mod dialer;
mod instance;
mod manifest;
mod settings;
mod start;

use std::fmt;
use std::future::Future;
use std::io;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};
use std::pin::{Pin, pin};
use std::time::Duration;

use backoff::Backoff;
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
pub use instance::{
    AgentInstance, AgentInstanceState, AgentSpec, agent_instances, job_agent_instance,
};
use manifest::Plan;
pub use settings::{AgentSettings, PodSettings, Toleration};

use crate::access::Cluster;
use crate::error::{Error, Result};
use crate::forward::{PodProxy, PortForward};
use crate::pod::{AGENT_PREFIX, Replica};
use crate::refusal::{Attempt, Denial, Refusal};
use crate::rights;

/// Agents listen below the kernel's ephemeral port range and above the usual service ports. The agent of a session with an
/// operator has two of these ports; see [`api::node::operator_port`].
pub const AGENT_PORTS: std::ops::Range<u16> = 20_000..32_000;
/// The number of agents to start when the port of each is already in use.
const MAX_PORT_ATTEMPTS: usize = 3;
/// The delays between attempts to connect to an agent that is about to listen.
const MIN_BACKOFF: Duration = Duration::from_millis(25);
const MAX_BACKOFF: Duration = Duration::from_millis(250);
/// How long an agent waits for the first connection of its client.
const FIRST_CLIENT_TIMEOUT: Duration = Duration::from_secs(60);
/// The timeout of one connection attempt.
const DIAL_TIMEOUT: Duration = Duration::from_secs(10);
/// The direct connection may take as long as the port-forward took, within these bounds.
const MIN_DIRECT_TIMEOUT: Duration = Duration::from_millis(500);
const MAX_DIRECT_TIMEOUT: Duration = Duration::from_secs(2);

/// An agent that was started in a cluster. It ends by itself when no client connects.
#[derive(Debug, Clone)]
pub struct ClusterAgent {
    cluster: Cluster,
    namespace: String,
    pod: String,
    container: String,
    job: Option<String>,
    listen: SocketAddr,
}

/// An agent that accepts connections.
pub struct ReachableAgent {
    pub agent: ClusterAgent,
    /// Dials the connections of a link. The first one is already established.
    pub dialer: AgentDialer,
    /// Completes with the reason when the agent has ended.
    pub ended: Pin<Box<dyn Future<Output = String> + Send>>,
}

type ForwardedPipe = <TlsDialer<PortForward> as Dial>::Pipe;

/// The server name of the TLS handshake. It is not verified.
fn server_name() -> Result<ServerName<'static>> {
    let name = ServerName::try_from("agent");
    let general = |error: InvalidDnsNameError| rustls::Error::General(error.to_string());
    Ok(name.map_err(|error| LinkError::from(general(error)))?)
}

impl ClusterAgent {
    /// Starts an agent beside a replica, or without a target, and waits until it accepts connections. `notify_user` gets
    /// messages for the user. `on_created` gets the agent before it is reachable, so that a caller that gives up early can
    /// still remove it.
    pub async fn start(
        cluster: &Cluster,
        replica: Option<&Replica>,
        namespace: &str,
        settings: &AgentSettings,
        notify_user: &(dyn Fn(&str) + Send + Sync),
        on_created: &(dyn Fn(&ClusterAgent) + Send + Sync),
    ) -> Result<ReachableAgent> {
        let mut attempts = 1;
        loop {
            let identity = Identity::generate()?;
            let client = identity.fingerprint();
            let agent = create(cluster, replica, namespace, settings, client, notify_user).await?;
            on_created(&agent);
            match agent.connect(settings, &identity).await {
                Ok(reachable) => return Ok(reachable),
                Err(Error::AgentFailed { why, .. })
                    if why.contains("cannot listen on") && attempts < MAX_PORT_ATTEMPTS =>
                {
                    tracing::info!(reason = why, "agent port in use, retrying");
                    attempts += 1;
                }
                Err(error) => {
                    agent.remove().await;
                    return Err(error);
                }
            }
        }
    }

    /// The name of its pod.
    pub fn pod(&self) -> &str {
        &self.pod
    }

    /// Deletes the agent's Job and pod, if it has its own. Kubernetes would remove them by itself a little later.
    pub async fn remove(&self) {
        let Some(job) = &self.job else {
            return;
        };
        let jobs: Api<Job> = Api::namespaced(self.cluster.client.clone(), &self.namespace);
        if let Err(error) = jobs.delete(job, &DeleteParams::background()).await {
            tracing::debug!(%error, job, "agent job not deleted");
        }
    }

    /// Waits until it accepts connections.
    async fn connect(
        &self,
        settings: &AgentSettings,
        identity: &Identity,
    ) -> Result<ReachableAgent> {
        let client = self.cluster.client.clone();
        let forward = PortForward::new(client, &self.namespace, &self.pod, self.listen.port());
        let seen = FirstSeen::default();
        let trust = Trust::FirstSeen(seen.clone());
        let forward = TlsDialer::with_identity(forward, server_name()?, trust, identity)?;
        let connected = tokio::select! {
            connected = self.first_connection(&forward, settings.startup_timeout) => connected,
            why = self.failure() => Err(Error::AgentFailed { pod: self.pod.clone(), why }),
        };
        let (first, took) = connected?;
        let mut dialer = AgentDialer::new(forward, first);
        if let Some(certificate) = seen.fingerprint() {
            self.try_direct(&mut dialer, certificate, identity, took)
                .await?;
        }
        let agent = self.clone();
        Ok(ReachableAgent {
            agent: self.clone(),
            dialer,
            ended: Box::pin(async move { agent.ended().await }),
        })
    }

    /// Switches to a connection over the pod network, if the agent listens there and the API server can reach pods. The agent
    /// must present the certificate that was pinned on the port-forward.
    async fn try_direct(
        &self,
        dialer: &mut AgentDialer,
        certificate: Fingerprint,
        identity: &Identity,
        port_forward_took: Duration,
    ) -> Result<()> {
        if !self.listen.ip().is_unspecified() || !self.cluster.reaches_pods() {
            return Ok(());
        }
        let client = self.cluster.client.clone();
        let proxy = PodProxy::new(client, &self.namespace, &self.pod, self.listen.port());
        let trust = Trust::Pinned(certificate);
        let direct = TlsDialer::with_identity(proxy, server_name()?, trust, identity)?;
        // The start of a session must not wait longer for this optimization than the port-forward took.
        let direct_timeout = port_forward_took.clamp(MIN_DIRECT_TIMEOUT, MAX_DIRECT_TIMEOUT);
        match dialer.try_direct(direct, direct_timeout).await {
            Ok(()) => tracing::debug!("agent reached over the pod network"),
            Err(error) => {
                tracing::debug!(%error, "agent reached by port-forward only");
                let permanent = [io::ErrorKind::TimedOut, io::ErrorKind::PermissionDenied];
                if permanent.contains(&error.kind()) {
                    self.cluster.disable_direct_connections();
                }
            }
        }
        Ok(())
    }

    /// The first connection, and how long the successful attempt took.
    async fn first_connection(
        &self,
        dialer: &TlsDialer<PortForward>,
        startup_timeout: Duration,
    ) -> Result<(ForwardedPipe, Duration)> {
        let started = Instant::now();
        let mut backoff = Backoff::new(MIN_BACKOFF, MAX_BACKOFF);
        loop {
            let attempt_started = Instant::now();
            let why = match timeout(DIAL_TIMEOUT, dialer.dial()).await {
                Ok(Ok(pipe)) => return Ok((pipe, attempt_started.elapsed())),
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
                Err(_) => "the connection attempt timed out".to_owned(),
            };
            tracing::trace!(reason = why, "agent not reachable yet");
            if started.elapsed() > startup_timeout {
                return Err(Error::Timeout {
                    pod: self.pod.clone(),
                    waited: startup_timeout,
                    why,
                });
            }
            sleep(backoff.next_delay()).await;
        }
    }

    /// Completes with the reason when the agent has ended or cannot start.
    async fn failure(&self) -> String {
        self.watch_condition(|condition| match condition {
            Condition::Healthy => None,
            Condition::FailingToStart(why) | Condition::Ended(why) => Some(why),
        })
        .await
    }

    /// Completes with the reason when the agent has ended.
    async fn ended(&self) -> String {
        self.watch_condition(|condition| match condition {
            Condition::Healthy | Condition::FailingToStart(_) => None,
            Condition::Ended(why) => Some(why),
        })
        .await
    }

    async fn watch_condition(&self, reason: impl Fn(Condition) -> Option<String>) -> String {
        let pods: Api<Pod> = Api::namespaced(self.cluster.client.clone(), &self.namespace);
        let mut states = pin!(watch_object(pods, &self.pod).default_backoff());
        while let Some(state) = states.next().await {
            // Errors of the watch are transient, and the link notices the end of the agent as well.
            let Ok(pod) = state else { continue };
            if let Some(why) = reason(condition(pod.as_ref(), &self.container)) {
                return why;
            }
        }
        std::future::pending().await
    }
}

/// Creates an agent for the client whose certificate has this fingerprint, without waiting for it to be reachable.
async fn create(
    cluster: &Cluster,
    replica: Option<&Replica>,
    namespace: &str,
    settings: &AgentSettings,
    client: Fingerprint,
    notify_user: &(dyn Fn(&str) + Send + Sync),
) -> Result<ClusterAgent> {
    let name = format!("{AGENT_PREFIX}{:08x}", rand::random::<u32>());
    let grant = replica.and_then(grant);
    let plan = Plan {
        name: &name,
        listen: (Ipv6Addr::UNSPECIFIED, rand::random_range(AGENT_PORTS)).into(),
        client,
        ended_by: None,
        first_client_timeout: FIRST_CLIENT_TIMEOUT,
        grant: grant.as_deref(),
        settings,
    };
    let own_namespace = settings.pod.namespace.as_deref().unwrap_or(namespace);
    let mut attempts = Vec::new();
    if let Some(replica) = replica
        && settings.ephemeral != Some(false)
    {
        let listen = SocketAddr::new(listening_address(replica), plan.listen.port());
        match start::ephemeral(cluster, Plan { listen, ..plan }, replica).await? {
            Ok(agent) => return Ok(agent),
            Err(denial) => attempts.push((Attempt::Ephemeral, denial)),
        }
        if settings.ephemeral == Some(true) {
            return Err(refusal(cluster, namespace, attempts).await);
        }
        let (_, denial) = &attempts[0];
        notify_user(&format!(
            "no ephemeral container can be started ({denial}): the agent becomes a pod on the target's node"
        ));
    }
    match start::pod(cluster, plan, replica, own_namespace).await? {
        Ok(agent) => Ok(agent),
        Err(denial) => {
            let attempt = match replica {
                Some(_) => Attempt::Pod,
                None => Attempt::Targetless,
            };
            attempts.push((attempt, denial));
            Err(refusal(cluster, own_namespace, attempts).await)
        }
    }
}

/// In a pod, the agent listens on the pod's addresses, so that the API server can also reach it without the kubelet. A pod in
/// the host network would expose it on the addresses of the node, so there it listens on localhost.
fn listening_address(replica: &Replica) -> IpAddr {
    match replica.is_in_host_network {
        true => Ipv4Addr::LOCALHOST.into(),
        false => Ipv6Addr::UNSPECIFIED.into(),
    }
}

/// The agent gets the target's probes as part of a grant. Without an operator the grant restricts nothing.
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

/// If all attempts failed for missing rights, the error names the rule to ask for.
async fn refusal(cluster: &Cluster, namespace: &str, attempts: Vec<(Attempt, Denial)>) -> Error {
    let lacks_rights = |(_, denial): &(Attempt, Denial)| matches!(denial, Denial::Rights(_));
    match attempts.first() {
        Some((attempt, _)) if attempts.iter().all(lacks_rights) => {
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
            attempts,
            by_operator: false,
        }),
    }
}

impl fmt::Debug for ReachableAgent {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut debug = formatter.debug_struct("ReachableAgent");
        debug.field("agent", &self.agent).finish_non_exhaustive()
    }
}
