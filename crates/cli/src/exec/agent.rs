//! The agent of a session: one that is started for it on this machine or in a cluster, or one that runs already.

mod in_cluster;
mod local;
mod meant;
mod operator;
mod pods;

use std::env;
use std::error::Error;
use std::net::{SocketAddr, ToSocketAddrs};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use anyhow::{Context, Result};
use clap::Args;
use link::tls::rustls::pki_types::ServerName;
use link::tls::{Fingerprint, TlsDialer, Trust};
use link::{Link, LinkError, Redial, TcpDialer, Token};
use proxy::{FirstAgent, One, Reach, Reached, Tell};

pub(crate) use in_cluster::{InCluster, access, cluster_of, ensure_meant};
use local::LocalAgent;
pub(crate) use local::program;
use operator::ThroughOperator;
pub(crate) use operator::{
    Clusters, Way, choose as choose_way, coordinated_clusters, is_targetless,
};

use super::log::Verbosity;
use super::progress::Progress;
use super::target::LocalTarget;
use crate::environment::AGENT_TOKEN;

/// How long to try before the first connection to an agent that may just be starting is given up.
const FIRST_CONNECTION: Duration = Duration::from_secs(2);
/// The pause between attempts to find an agent again that is not ours to start, or that could not be started.
const ANOTHER_TRY: Duration = Duration::from_secs(5);

/// An agent that runs already.
#[derive(Debug, Args)]
pub(crate) struct GivenAgent {
    /// Use the agent that listens here, whose token is in STANDIN_AGENT_TOKEN
    ///
    /// Without this an agent is started beside the target, and ends with the session.
    #[arg(long = "agent", value_name = "HOST:PORT", help_heading = "Agent")]
    pub(super) address: Option<String>,
    /// Speak TLS to that agent, which has the certificate with this SHA-256
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

/// Where a session's agent is. Clones are the same.
#[derive(Debug, Clone)]
pub(super) enum Agent {
    Given(Arc<Place>),
    Local(Arc<Local>),
    Cluster(Arc<InCluster>),
    Operator(ThroughOperator),
}

/// An agent that somebody else started.
pub(super) struct Place {
    name: String,
    addresses: Vec<SocketAddr>,
    certificate: Option<Fingerprint>,
    token: String,
}

/// Starts agents beside a target of this machine: one, and another one when that is lost.
#[derive(Debug)]
pub(super) struct Local {
    target: LocalTarget,
    verbosity: Verbosity,
    progress: Progress,
    current: Mutex<Option<LocalAgent>>,
}

impl Agent {
    /// The one that was named on the command line, if one was.
    pub(super) fn given(given: &GivenAgent) -> Result<Option<Self>> {
        let Some(address) = &given.address else {
            return Ok(None);
        };
        let addresses = address
            .to_socket_addrs()
            .with_context(|| format!("--agent {address} is not a host and a port"))?
            .collect();
        let token = env::var(AGENT_TOKEN).with_context(|| {
            format!("set {AGENT_TOKEN} to the token that the agent at {address} was started with")
        })?;
        Ok(Some(Agent::Given(Arc::new(Place {
            name: address.clone(),
            addresses,
            certificate: given.certificate,
            token,
        }))))
    }

    pub(super) fn beside(target: LocalTarget, verbosity: Verbosity, progress: &Progress) -> Self {
        Agent::Local(Arc::new(Local {
            target,
            verbosity,
            progress: progress.clone(),
            current: Mutex::default(),
        }))
    }

    /// Waits for the first agent of the session. What happens to agents later is told.
    pub(super) async fn first(&self, tell: Tell) -> Result<FirstAgent> {
        Ok(match self {
            Agent::Given(place) => FirstAgent::wait(One::new(Arc::clone(place)), tell).await?,
            Agent::Local(local) => FirstAgent::wait(One::new(Arc::clone(local)), tell).await?,
            Agent::Cluster(in_cluster) => FirstAgent::wait(in_cluster.pods().await?, tell).await?,
            Agent::Operator(operator) => {
                let agents = operator.agents(Arc::clone(&tell));
                FirstAgent::wait(agents, tell).await?
            }
        })
    }

    /// The clusters of a session over several, as people read them.
    pub(super) fn clusters(&self) -> Clusters {
        match self {
            Agent::Operator(operator) => Clusters::of(operator.clusters()),
            Agent::Given(_) | Agent::Local(_) | Agent::Cluster(_) => Clusters::default(),
        }
    }

    /// The target and how it is reached, when the session has begun.
    pub(super) fn describe(&self, target: &str) -> String {
        match self {
            Agent::Operator(_) => format!("{target}{}, through the operator", self.clusters()),
            Agent::Given(_) | Agent::Local(_) | Agent::Cluster(_) => target.to_owned(),
        }
    }

    /// The session's name, where somebody else knows it by one.
    pub(super) fn session_id(&self) -> Option<String> {
        match self {
            Agent::Operator(operator) => Some(operator.id().to_string()),
            Agent::Given(_) | Agent::Local(_) | Agent::Cluster(_) => None,
        }
    }

    /// The clusters in which the session is, as it is now.
    pub(super) fn cluster_names(&self) -> Vec<String> {
        match self {
            Agent::Given(_) | Agent::Local(_) => Vec::new(),
            Agent::Cluster(in_cluster) => in_cluster.cluster_name().into_iter().collect(),
            Agent::Operator(operator) => operator.cluster_names(),
        }
    }

    pub(super) fn is_operator(&self) -> bool {
        matches!(self, Agent::Operator(_))
    }

    /// Ends the agents that were started for the session, and waits for their end.
    pub(super) async fn end(&self) {
        match self {
            Agent::Given(_) => {}
            Agent::Local(local) => {
                if let Some(agent) = local.take() {
                    agent.end().await;
                }
            }
            Agent::Cluster(in_cluster) => in_cluster.end().await,
            Agent::Operator(operator) => operator.end().await,
        }
    }
}

impl Reach for Place {
    async fn reach(&self) -> Result<Reached, Box<dyn Error + Send + Sync>> {
        Ok(Reached {
            link: self.link().await?,
            token: self.token.clone(),
            ended: Box::pin(std::future::pending()),
        })
    }

    async fn another_try(&self) {
        tokio::time::sleep(ANOTHER_TRY).await;
    }
}

impl Reach for Local {
    async fn reach(&self) -> Result<Reached, Box<dyn Error + Send + Sync>> {
        Ok(self.start().await?)
    }

    async fn successor(&self) {
        self.target.successor(self.process()).await;
    }
}

impl Local {
    async fn start(&self) -> Result<Reached> {
        if let Some(before) = self.take() {
            before.end().await;
        }
        self.progress.begin("finding the target");
        let process = self.target.process().await?;
        self.progress.begin("starting the agent");
        let (agent, ended) = LocalAgent::start(process, &self.target, self.verbosity)
            .await
            .with_context(|| format!("there is no agent beside {}", self.target))?;
        let place = Place {
            name: agent.address.to_string(),
            addresses: vec![agent.address],
            certificate: None,
            token: agent.token.clone(),
        };
        *self.current.lock().unwrap_or_else(PoisonError::into_inner) = Some(agent);
        self.progress.begin("connecting");
        Ok(Reached {
            link: place.link().await?,
            token: place.token,
            ended,
        })
    }

    fn take(&self) -> Option<LocalAgent> {
        let mut current = self.current.lock().unwrap_or_else(PoisonError::into_inner);
        current.take()
    }

    fn process(&self) -> Option<u32> {
        let current = self.current.lock().unwrap_or_else(PoisonError::into_inner);
        current.as_ref().map(|agent| agent.process)
    }
}

impl Place {
    async fn link(&self) -> Result<Link> {
        let settings = link::Settings {
            token: Token::new(self.token.as_bytes())?,
            redial: Redial {
                first_connection: FIRST_CONNECTION,
                ..Redial::default()
            },
            ..link::Settings::default()
        };
        let dialer = TcpDialer::any_of(self.addresses.clone());
        let link = match self.certificate {
            None => Link::connect(dialer, settings).await,
            Some(certificate) => {
                // The certificate is known, so its name does not matter.
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

    /// What the user can do.
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
            LinkError::NoGreeting(_) | LinkError::Protocol(_) if self.certificate.is_none() => {
                "Check that it is a standind agent; one that was started with --tls needs --agent-certificate".to_owned()
            }
            _ => "Check that it is a standind agent of the same release".to_owned(),
        }
    }
}

/// Not derived: the token is a secret.
impl std::fmt::Debug for Place {
    fn fmt(&self, formatter: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let mut debug = formatter.debug_struct("Place");
        debug.field("name", &self.name).finish_non_exhaustive()
    }
}
