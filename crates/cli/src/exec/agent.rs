//! The agents of a session, and the four ways to get them:
//!
//! | [`AgentProvider`] | agents |
//! |---|---|
//! | `Existing` | one that already runs and listens at a TCP address ([`TcpAgent`]) |
//! | `Local` | one that is started beside a target of this machine ([`LocalAgents`]) |
//! | `Cluster` | one that is started beside each pod of the target, with the user's rights ([`ClusterAgents`]) |
//! | `Operator` | those that the operator of a cluster starts and relays to ([`OperatorAgents`]) |

mod cluster_agents;
mod local;
mod operator;
mod pods;
mod suggestion;

use std::env;
use std::error::Error;
use std::net::{SocketAddr, ToSocketAddrs};
use std::sync::Arc;
use std::time::Duration;

use anyhow::{Context, Result};
use clap::Args;
use link::tls::rustls::pki_types::ServerName;
use link::tls::{Fingerprint, TlsDialer, Trust};
use link::{Link, LinkError, Redial, TcpDialer, Token};
use parking_lot::Mutex;
use proxy::{Connected, Connector, EventSink, FirstAgent, SingleAgent};

pub(crate) use cluster_agents::{ClusterAgents, access, connect_cluster, ensure_cluster_intended};
use local::LocalAgent;
pub(crate) use local::program;
use operator::OperatorAgents;
pub(crate) use operator::{
    AccessPath, ClusterSummary, choose_access_path, coordinated_clusters, is_targetless,
};

use super::log::Verbosity;
use super::progress::Progress;
use super::target::LocalTarget;
use crate::environment::AGENT_TOKEN;

/// How long the first connection is retried, for an agent that may be starting.
const FIRST_CONNECT_TIMEOUT: Duration = Duration::from_secs(2);
/// The delay before another attempt to connect to an agent, or to start one.
const RETRY_INTERVAL: Duration = Duration::from_secs(5);

/// The flags that name an agent that already runs.
#[derive(Debug, Args)]
pub(crate) struct AgentFlags {
    /// Use the agent that listens at this address, with the token from STANDIN_AGENT_TOKEN
    ///
    /// Without this, an agent is started beside the target and ends with the session.
    #[arg(long = "agent", value_name = "HOST:PORT", help_heading = "Agent")]
    pub(super) address: Option<String>,
    /// Use TLS, and accept only the certificate with this SHA-256 fingerprint
    ///
    /// `standind agent --tls` prints it when it starts.
    #[arg(
        long = "agent-certificate",
        value_name = "SHA256",
        requires = "address",
        help_heading = "Agent"
    )]
    certificate: Option<Fingerprint>,
}

/// Provides the agents of a session. Clones share state.
#[derive(Debug, Clone)]
pub(super) enum AgentProvider {
    Existing(Arc<TcpAgent>),
    Local(Arc<LocalAgents>),
    Cluster(Arc<ClusterAgents>),
    Operator(OperatorAgents),
}

/// An agent that listens at a TCP address.
pub(super) struct TcpAgent {
    name: String,
    addresses: Vec<SocketAddr>,
    certificate: Option<Fingerprint>,
    token: String,
}

/// Starts agents beside a target of this machine: one at a time, and another one when that is lost.
#[derive(Debug)]
pub(super) struct LocalAgents {
    target: LocalTarget,
    verbosity: Verbosity,
    progress: Progress,
    current: Mutex<Option<LocalAgent>>,
}

impl AgentProvider {
    /// The agent that the command line names, if any.
    pub(super) fn existing(flags: &AgentFlags) -> Result<Option<Self>> {
        let Some(address) = &flags.address else {
            return Ok(None);
        };
        let addresses = address
            .to_socket_addrs()
            .with_context(|| format!("--agent {address} is not a host and a port"))?
            .collect();
        let token = env::var(AGENT_TOKEN).with_context(|| {
            format!("set {AGENT_TOKEN} to the token that the agent at {address} was started with")
        })?;
        Ok(Some(Self::Existing(Arc::new(TcpAgent {
            name: address.clone(),
            addresses,
            certificate: flags.certificate,
            token,
        }))))
    }

    pub(super) fn local(target: LocalTarget, verbosity: Verbosity, progress: &Progress) -> Self {
        Self::Local(Arc::new(LocalAgents {
            target,
            verbosity,
            progress: progress.clone(),
            current: Mutex::default(),
        }))
    }

    /// Waits for the first agent of the session. `events` gets what happens to agents from then on.
    pub(super) async fn connect_first(&self, events: EventSink) -> Result<FirstAgent> {
        Ok(match self {
            Self::Existing(agent) => {
                FirstAgent::connect(SingleAgent::new(Arc::clone(agent)), events).await?
            }
            Self::Local(agents) => {
                FirstAgent::connect(SingleAgent::new(Arc::clone(agents)), events).await?
            }
            Self::Cluster(agents) => FirstAgent::connect(agents.pods().await?, events).await?,
            Self::Operator(agents) => {
                let source = agents.source(Arc::clone(&events));
                FirstAgent::connect(source, events).await?
            }
        })
    }

    /// The clusters of a session over several, for display.
    pub(super) fn clusters(&self) -> ClusterSummary {
        match self {
            Self::Operator(agents) => ClusterSummary::of(agents.clusters()),
            Self::Existing(_) | Self::Local(_) | Self::Cluster(_) => ClusterSummary::default(),
        }
    }

    /// The target and how it is reached, once the session has started.
    pub(super) fn describe(&self, target: &str) -> String {
        match self {
            Self::Operator(_) => format!("{target}{}, through the operator", self.clusters()),
            Self::Existing(_) | Self::Local(_) | Self::Cluster(_) => target.to_owned(),
        }
    }

    /// The id that the operator has for the session, if there is one.
    pub(super) fn session_id(&self) -> Option<String> {
        match self {
            Self::Operator(agents) => Some(agents.id().to_string()),
            Self::Existing(_) | Self::Local(_) | Self::Cluster(_) => None,
        }
    }

    /// The current clusters of the session.
    pub(super) fn cluster_names(&self) -> Vec<String> {
        match self {
            Self::Existing(_) | Self::Local(_) => Vec::new(),
            Self::Cluster(agents) => agents.cluster_name().into_iter().collect(),
            Self::Operator(agents) => agents.cluster_names(),
        }
    }

    pub(super) fn is_operator(&self) -> bool {
        matches!(self, Self::Operator(_))
    }

    /// Ends the agents that were started for the session, and waits until they have ended.
    pub(super) async fn end(&self) {
        match self {
            Self::Existing(_) => {}
            Self::Local(agents) => {
                if let Some(agent) = agents.take() {
                    agent.end().await;
                }
            }
            Self::Cluster(agents) => agents.end().await,
            Self::Operator(agents) => agents.end().await,
        }
    }
}

impl Connector for TcpAgent {
    async fn connect(&self) -> Result<Connected, Box<dyn Error + Send + Sync>> {
        Ok(Connected {
            link: self.link().await?,
            token: self.token.clone(),
            ended: Box::pin(std::future::pending()),
        })
    }

    async fn retry_ready(&self) {
        tokio::time::sleep(RETRY_INTERVAL).await;
    }
}

impl Connector for LocalAgents {
    async fn connect(&self) -> Result<Connected, Box<dyn Error + Send + Sync>> {
        Ok(self.start().await?)
    }

    async fn target_restarted(&self) {
        self.target.wait_for_restart(self.process()).await;
    }
}

impl LocalAgents {
    async fn start(&self) -> Result<Connected> {
        if let Some(before) = self.take() {
            before.end().await;
        }
        self.progress.startup_step("finding the target");
        let process = self.target.process().await?;
        self.progress.startup_step("starting the agent");
        let (agent, ended) = LocalAgent::start(process, &self.target, self.verbosity)
            .await
            .with_context(|| format!("cannot start an agent for {}", self.target))?;
        let tcp_agent = TcpAgent {
            name: agent.address.to_string(),
            addresses: vec![agent.address],
            certificate: None,
            token: agent.token.clone(),
        };
        *self.current.lock() = Some(agent);
        self.progress.startup_step("connecting");
        Ok(Connected {
            link: tcp_agent.link().await?,
            token: tcp_agent.token,
            ended,
        })
    }

    fn take(&self) -> Option<LocalAgent> {
        self.current.lock().take()
    }

    fn process(&self) -> Option<u32> {
        self.current.lock().as_ref().map(|agent| agent.process)
    }
}

impl TcpAgent {
    async fn link(&self) -> Result<Link> {
        let settings = link::Settings {
            token: Token::new(self.token.as_bytes())?,
            redial: Redial {
                first_connection_timeout: FIRST_CONNECT_TIMEOUT,
                ..Redial::default()
            },
            ..link::Settings::default()
        };
        let dialer = TcpDialer::any_of(self.addresses.clone());
        let link = match self.certificate {
            None => Link::connect(dialer, settings).await,
            Some(certificate) => {
                // The certificate is pinned, so its name is not verified.
                let name = ServerName::try_from("agent")?;
                let dialer = TlsDialer::new(dialer, name, Trust::Pinned(certificate))?;
                Link::connect(dialer, settings).await
            }
        };
        link.map_err(|error| {
            let hint = self.hint(&error);
            anyhow::Error::new(error)
                .context(format!("the agent at {} cannot be used. {hint}", self.name))
        })
    }

    /// What the user can do about the error.
    fn hint(&self, error: &LinkError) -> String {
        match error {
            LinkError::Unreachable(_) => {
                "Check that it runs and that this machine reaches it".to_owned()
            }
            LinkError::WrongToken { .. } => {
                format!("Set {AGENT_TOKEN} to the token that it was started with")
            }
            LinkError::VersionMismatch { .. } => {
                "Install the same release of standin and standind".to_owned()
            }
            LinkError::NoHandshake(_) | LinkError::Protocol(_) if self.certificate.is_none() => {
                "Check that it is a standind agent; one that was started with --tls needs --agent-certificate".to_owned()
            }
            _ => "Check that it is a standind agent of the same release".to_owned(),
        }
    }
}

/// Not derived: the token is a secret.
impl std::fmt::Debug for TcpAgent {
    fn fmt(&self, formatter: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let mut debug = formatter.debug_struct("TcpAgent");
        debug.field("name", &self.name).finish_non_exhaustive()
    }
}
