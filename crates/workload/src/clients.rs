//! Simulated developers: sessions with an operator like those of `standin exec`, but without a program.
//!
//! Each session is a connection through the API server and a link with each of the agents that are ready first. Links send
//! keepalives every few seconds, as real ones do. If there are as many agents as clusters, and each cluster has one pod, a
//! session covers all clusters.

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

use crate::worker::{Numbers, serve_stdin};

/// The longest time that one session may take to start or to end.
const SESSION_TIMEOUT: Duration = Duration::from_secs(120);
/// How long a session waits for its client, in seconds.
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
    /// A session has started when it has a link with so many agents and all of its clusters are reachable
    #[arg(long, default_value_t = 1)]
    agents: usize,
    /// Use only this cluster, even if the operator has member clusters
    #[arg(long)]
    no_multi_cluster: bool,
}

#[derive(Debug, Deserialize)]
#[serde(tag = "do", rename_all = "snake_case", deny_unknown_fields)]
enum Request {
    /// Starts `count` sessions, `at_once` in parallel. The response has the seconds that each took.
    Open { count: usize, at_once: usize },
    /// The response has the number of open sessions, and of connections that were lost.
    Status,
    /// Ends all sessions as if their programs had exited.
    Close,
}

pub(crate) fn run(arguments: ClientsArguments) -> Result<()> {
    let runtime = Runtime::new()?;
    let client = runtime.block_on(client(&arguments.kubeconfig, &arguments.context))?;
    let mut clients = Clients {
        settings: Arc::new(SessionSettings {
            cluster: Cluster::new(client, &*arguments.namespace),
            namespace: arguments.namespace,
            target: arguments.target,
            agents: arguments.agents,
            multi_cluster: arguments.no_multi_cluster.then_some(false),
        }),
        sessions: Vec::new(),
        ended: Arc::default(),
    };
    serve_stdin(|request| runtime.block_on(clients.handle(request)))
}

/// A client for a context of a kubeconfig, without a proxy: the lab's API servers are reached directly.
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

struct SessionSettings {
    cluster: Cluster,
    namespace: String,
    target: TargetPath,
    agents: usize,
    multi_cluster: Option<bool>,
}

struct Clients {
    settings: Arc<SessionSettings>,
    sessions: Vec<Session>,
    /// Connections that ended without a request to close.
    ended: Arc<AtomicUsize>,
}

/// One simulated developer.
struct Session {
    connection: Arc<OperatorConnection>,
    _links: Vec<Link>,
    watcher: JoinHandle<()>,
}

impl Clients {
    async fn handle(&mut self, request: Request) -> Result<Numbers> {
        match request {
            Request::Open { count, at_once } => self.open(count, at_once).await,
            Request::Status => Ok(Numbers::from([
                ("open", vec![self.sessions.len() as f64]),
                ("cut", vec![self.ended.load(Ordering::Relaxed) as f64]),
            ])),
            Request::Close => self.close().await,
        }
    }

    async fn open(&mut self, count: usize, at_once: usize) -> Result<Numbers> {
        let slots = Arc::new(Semaphore::new(at_once));
        let mut starting = JoinSet::new();
        for _ in 0..count {
            let (settings, slots) = (Arc::clone(&self.settings), Arc::clone(&slots));
            starting.spawn(async move {
                let _slot = slots.acquire().await?;
                let start = Instant::now();
                let started = timeout(SESSION_TIMEOUT, start_session(&settings)).await?;
                started.map(|started| (started, start.elapsed().as_secs_f64()))
            });
        }
        let mut seconds = Vec::with_capacity(count);
        while let Some(started) = starting.join_next().await {
            let ((connection, links), time) = started??;
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
            timeout(SESSION_TIMEOUT, session.connection.ended())
                .await
                .context("a session did not end in time")?;
        }
        self.ended.store(0, Ordering::Relaxed);
        Ok(Numbers::new())
    }
}

async fn start_session(settings: &SessionSettings) -> Result<(OperatorConnection, Vec<Link>)> {
    let identity = Identity::generate()?;
    let parameters = ConnectParameters {
        connect: true,
        resume_window: Some(RESUME_WINDOW),
        multi_cluster: settings.multi_cluster,
        ..ConnectParameters::default()
    };
    let id = SessionId(number(&identity));
    let session = OperatorSession::new(
        &settings.cluster,
        &settings.namespace,
        &settings.target,
        &parameters,
        id,
        &identity,
    )
    .with_client_names("simulated", "bench");
    let connection = session.connect().await?;
    let mut connecting = JoinSet::new();
    for endpoint in ready_endpoints(&connection, settings.agents).await? {
        connecting.spawn(connect_agent(dialer(&connection, &endpoint, &identity)?));
    }
    let mut links = Vec::with_capacity(settings.agents);
    while let Some(link) = connecting.join_next().await {
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

async fn connect_agent(dialer: TlsDialer<EndpointDialer>) -> Result<Link> {
    Ok(Link::connect(dialer, Settings::default()).await?)
}

/// A session number that is unique because the certificate is.
fn number(identity: &Identity) -> u64 {
    let digits = identity.fingerprint().to_string();
    let digits = digits
        .bytes()
        .filter_map(|digit| char::from(digit).to_digit(16));
    digits
        .take(16)
        .fold(0, |number, digit| number << 4 | u64::from(digit))
}

/// The first ready agents, when there are enough of them and no cluster has an error.
async fn ready_endpoints(
    connection: &OperatorConnection,
    count: usize,
) -> Result<Vec<AgentEndpoint>> {
    let ready = |endpoints_seen: &AgentEndpoints| -> Vec<AgentEndpoint> {
        let endpoints = endpoints_seen
            .endpoints
            .iter()
            .filter(|endpoint| endpoint.ready);
        endpoints.take(count).cloned().collect()
    };
    let are_ready = |endpoints_seen: &AgentEndpoints| {
        let mut clusters = endpoints_seen.clusters.iter();
        clusters.all(|cluster| cluster.error.is_none()) && ready(endpoints_seen).len() == count
    };
    let mut endpoints = connection.endpoints.clone();
    let endpoints_seen = endpoints
        .wait_for(are_ready)
        .await
        .context("the connection ended before its agents were ready")?;
    Ok(ready(&endpoints_seen))
}
