//! Simulated developers: sessions with an operator as `standin exec` has them, without a program in them.
//!
//! Each is a connection through the API server and a link with each of the agents that are ready first, which then asks every
//! few seconds whether the other end is there, as real ones do. With as many agents as there are clusters, where each has one
//! pod, a session covers all of them.

use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use anyhow::{Context as _, Result};
use api::TargetPath;
use api::connect::{AgentEndpoint, AgentEndpoints, ConnectParameters};
use api::session::SessionId;
use clap::Args;
use cluster::{Cluster, EndpointDialer, OperatorConnection, OperatorSession};
use kube::config::{KubeConfigOptions, Kubeconfig};
use link::tls::rustls::pki_types::ServerName;
use link::tls::{FirstSeen, Identity, TlsDialer, Trust};
use link::{Link, Settings};
use serde::Deserialize;
use tokio::runtime::Runtime;
use tokio::sync::Semaphore;
use tokio::task::{JoinHandle, JoinSet};
use tokio::time::timeout;

use crate::worker::{Numbers, obey_input};

/// How long one session may take to begin or to end.
const PATIENCE: Duration = Duration::from_secs(120);
/// What a session waits for its client.
const RESUME_WINDOW: u64 = 120;

#[derive(Debug, Args)]
pub(crate) struct ClientsArguments {
    #[arg(long)]
    kubeconfig: PathBuf,
    #[arg(long)]
    context: String,
    #[arg(long)]
    namespace: String,
    #[arg(long)]
    target: TargetPath,
    /// A session has begun when it has a link with so many agents, and all of its clusters are there
    #[arg(long, default_value_t = 1)]
    agents: usize,
    /// Stay in the one cluster, where the operator has others
    #[arg(long)]
    no_multi_cluster: bool,
}

#[derive(Debug, Deserialize)]
#[serde(tag = "do", rename_all = "snake_case", deny_unknown_fields)]
enum Order {
    /// Begins as many sessions, so many at the same time. Answers how long each took, in seconds.
    Open { count: usize, at_once: usize },
    /// Answers how many sessions there are, and how many connections have ended since they began.
    Look,
    /// Ends all of them as a program that is done does.
    Close,
}

pub(crate) fn run(arguments: ClientsArguments) -> Result<()> {
    let runtime = Runtime::new()?;
    let client = runtime.block_on(client(&arguments.kubeconfig, &arguments.context))?;
    let mut clients = Clients {
        ground: Arc::new(Ground {
            cluster: Cluster::new(client, &*arguments.namespace),
            namespace: arguments.namespace,
            target: arguments.target,
            agents: arguments.agents,
            multi_cluster: arguments.no_multi_cluster.then_some(false),
        }),
        sessions: Vec::new(),
        ended: Arc::default(),
    };
    obey_input(|order| runtime.block_on(clients.obey(order)))
}

/// Whoever a context of a kubeconfig says. Nothing is between us and the lab's API servers.
pub(crate) async fn client(kubeconfig: &Path, context: &str) -> Result<kube::Client> {
    let options = KubeConfigOptions {
        context: Some(context.to_owned()),
        ..KubeConfigOptions::default()
    };
    let kubeconfig = Kubeconfig::read_from(kubeconfig)?;
    let mut config = kube::Config::from_custom_kubeconfig(kubeconfig, &options).await?;
    config.proxy_url = None;
    config.read_timeout = None;
    config.write_timeout = None;
    Ok(cluster::client(config)?)
}

struct Ground {
    cluster: Cluster,
    namespace: String,
    target: TargetPath,
    agents: usize,
    multi_cluster: Option<bool>,
}

struct Clients {
    ground: Arc<Ground>,
    sessions: Vec<Session>,
    /// Connections that have ended by themselves.
    ended: Arc<AtomicUsize>,
}

/// One simulated developer.
struct Session {
    connection: Arc<OperatorConnection>,
    _links: Vec<Link>,
    watcher: JoinHandle<()>,
}

impl Clients {
    async fn obey(&mut self, order: Order) -> Result<Numbers> {
        match order {
            Order::Open { count, at_once } => self.open(count, at_once).await,
            Order::Look => Ok(Numbers::from([
                ("open", vec![self.sessions.len() as f64]),
                ("cut", vec![self.ended.load(Ordering::Relaxed) as f64]),
            ])),
            Order::Close => self.close().await,
        }
    }

    async fn open(&mut self, count: usize, at_once: usize) -> Result<Numbers> {
        let places = Arc::new(Semaphore::new(at_once));
        let mut beginning = JoinSet::new();
        for _ in 0..count {
            let (ground, places) = (Arc::clone(&self.ground), Arc::clone(&places));
            beginning.spawn(async move {
                let _place = places.acquire().await?;
                let start = Instant::now();
                let begun = timeout(PATIENCE, begin(&ground)).await?;
                begun.map(|begun| (begun, start.elapsed().as_secs_f64()))
            });
        }
        let mut seconds = Vec::with_capacity(count);
        while let Some(begun) = beginning.join_next().await {
            let ((connection, links), time) = begun??;
            seconds.push(time);
            let (connection, ended) = (Arc::new(connection), Arc::clone(&self.ended));
            let watched = Arc::clone(&connection);
            self.sessions.push(Session {
                connection,
                _links: links,
                watcher: tokio::spawn(async move {
                    watched.ended().await;
                    ended.fetch_add(1, Ordering::Relaxed);
                }),
            });
        }
        Ok(Numbers::from([("seconds", seconds)]))
    }

    async fn close(&mut self) -> Result<Numbers> {
        let sessions = std::mem::take(&mut self.sessions);
        for session in &sessions {
            session.watcher.abort();
            session.connection.end_session();
        }
        for session in sessions {
            timeout(PATIENCE, session.connection.ended())
                .await
                .context("a session does not end")?;
        }
        self.ended.store(0, Ordering::Relaxed);
        Ok(Numbers::new())
    }
}

async fn begin(ground: &Ground) -> Result<(OperatorConnection, Vec<Link>)> {
    let identity = Identity::generate()?;
    let parameters = ConnectParameters {
        connect: true,
        resume_window: Some(RESUME_WINDOW),
        multi_cluster: ground.multi_cluster,
        ..ConnectParameters::default()
    };
    let id = SessionId(number(&identity));
    let session = OperatorSession::new(
        &ground.cluster,
        &ground.namespace,
        &ground.target,
        &parameters,
        id,
        &identity,
    )
    .with_client_names("simulated", "bench");
    let connection = session.connect().await?;
    let mut greeting = JoinSet::new();
    for endpoint in ready_endpoints(&connection, ground.agents).await? {
        greeting.spawn(greet(dialer(&connection, &endpoint, &identity)?));
    }
    let mut links = Vec::with_capacity(ground.agents);
    while let Some(link) = greeting.join_next().await {
        links.push(link??);
    }
    Ok((connection, links))
}

fn dialer(
    connection: &OperatorConnection,
    endpoint: &AgentEndpoint,
    identity: &Identity,
) -> Result<TlsDialer<EndpointDialer>> {
    let trust = match &endpoint.certificate {
        Some(certificate) => Trust::Pinned(certificate.parse()?),
        None => Trust::FirstSeen(FirstSeen::default()),
    };
    let name = ServerName::try_from("agent")?;
    let dialer = connection.dialer(endpoint.number);
    Ok(TlsDialer::with_identity(dialer, name, trust, identity)?)
}

async fn greet(dialer: TlsDialer<EndpointDialer>) -> Result<Link> {
    Ok(Link::connect(dialer, Settings::default()).await?)
}

/// Every client has a certificate of its own, so it has a number of its own as well.
fn number(identity: &Identity) -> u64 {
    let digits = identity.fingerprint().to_string();
    let digits = digits
        .bytes()
        .filter_map(|digit| char::from(digit).to_digit(16));
    digits
        .take(16)
        .fold(0, |number, digit| number << 4 | u64::from(digit))
}

/// The first agents, when there are enough of them and no cluster is awaited any more.
async fn ready_endpoints(
    connection: &OperatorConnection,
    count: usize,
) -> Result<Vec<AgentEndpoint>> {
    let ready = |known: &AgentEndpoints| -> Vec<AgentEndpoint> {
        let endpoints = known.endpoints.iter().filter(|endpoint| endpoint.ready);
        endpoints.take(count).cloned().collect()
    };
    let are_there = |known: &AgentEndpoints| {
        let mut clusters = known.clusters.iter();
        clusters.all(|cluster| cluster.error.is_none()) && ready(known).len() == count
    };
    let mut endpoints = connection.endpoints.clone();
    let known = endpoints
        .wait_for(are_there)
        .await
        .context("the connection has ended before its agents were ready")?;
    Ok(ready(&known))
}
