//! The hub: clusters that can only dial out connect to it, and Kubernetes clients reach their API servers through it.
//!
//! Read [`run`] first. Several replicas serve at once. All state is in objects and Secrets of the hub's cluster; memory is
//! only a cache, so a replica that exits costs its agents a reconnect and nothing else.
//!
//! | module | what it does |
//! |---|---|
//! | [`agents`] | the listener for agents: registration, and the beginning of a tunnel |
//! | [`audit`] | rows of the audit log |
//! | [`authenticate`], [`authentication`], [`authorize`], [`user`] | who sends a request, and what the user may do |
//! | [`background`] | tasks without which a replica must exit |
//! | [`certificates`], [`tls`] | the authority for agents, and the certificates that listeners serve |
//! | [`cluster_status`] | what the hub shows of a cluster |
//! | [`configuration`], [`settings`] | what administrators choose |
//! | [`control`] | the control stream of a tunnel |
//! | [`http_api`], [`responses`] | the JSON API |
//! | [`identity`] | who an agent is, and whether it may connect |
//! | [`impersonate`], [`kubernetes_request`], [`proxy`], [`status`], [`upstreams`] | requests to the API servers of clusters |
//! | [`listeners`] | the listeners for administrators and Kubernetes clients |
//! | [`metrics`], [`probes`], [`plain_http`] | metrics and health endpoints |
//! | [`peers`] | the other replicas |
//! | [`rate_limit`] | limits of requests per source |
//! | [`registration`], [`tokens`], [`token_store`] | registration of agents with tokens |
//! | [`registry`] | the registered clusters |
//! | [`secrets`] | Secrets that several replicas change |
//! | [`sessions`], [`tunnels`] | the tunnels of this replica |

mod agents;
mod audit;
mod authenticate;
mod authentication;
mod authorize;
mod background;
mod body;
mod cache;
mod certificates;
mod cluster_status;
mod configuration;
mod control;
mod error;
mod http_api;
mod identity;
mod impersonate;
mod kubernetes_request;
mod listeners;
mod metrics;
mod peers;
mod plain_http;
mod probes;
mod proxy;
mod rate_limit;
mod registration;
mod registry;
mod responses;
mod secrets;
mod sessions;
mod settings;
mod status;
#[cfg(test)]
mod testing;
#[cfg(test)]
mod tests;
mod tls;
mod token_store;
mod tokens;
mod tunnels;
mod upstreams;
mod user;

use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use kube::Client;
use parking_lot::Mutex;
use tokio::net::TcpListener;
use tokio::sync::{Semaphore, watch};
use tokio::time::{sleep, timeout};
use tokio_rustls::TlsAcceptor;
use tokio_util::sync::CancellationToken;
use tokio_util::task::TaskTracker;

pub use crate::error::{Error, Result};
pub use crate::settings::{PublicCertificate, Settings};

use crate::audit::Audit;
use crate::authenticate::Authenticator;
use crate::authorize::Authorizer;
use crate::background::Background;
use crate::certificates::{CertificateRotator, Certificates};
use crate::configuration::Configuration;
use crate::listeners::ClientListener;
use crate::metrics::Metrics;
use crate::peers::{AllUpstreams, Discovery, Peers};
use crate::proxy::Proxy;
use crate::rate_limit::RateLimit;
use crate::registry::Registry;
use crate::secrets::SharedSecret;
use crate::sessions::{CloseReason, Sessions};
use crate::token_store::TokenStore;
use crate::upstreams::LocalUpstreams;

/// How long it may take until the cluster sends no new connections to a replica that shuts down. Connections that arrive
/// in the meantime are served.
const SHUTDOWN_DELAY: Duration = Duration::from_secs(4);
/// How long agents may take to connect to another replica, and requests to end.
const DRAIN_TIMEOUT: Duration = Duration::from_secs(20);

/// State that all parts of the hub share.
pub(crate) struct Hub {
    pub(crate) settings: Settings,
    pub(crate) configuration: watch::Receiver<Configuration>,
    pub(crate) certificates: watch::Receiver<Certificates>,
    pub(crate) registry: Registry,
    pub(crate) tokens: TokenStore,
    pub(crate) sessions: Sessions,
    pub(crate) acceptor: tunnel::Acceptor,
    pub(crate) metrics: Arc<Metrics>,
    pub(crate) rate_limit: Mutex<RateLimit>,
    /// TLS handshakes of agents that run at the same time.
    pub(crate) handshakes: Semaphore,
    /// The tasks of tunnels.
    pub(crate) tunnels: TaskTracker,
    /// Cancelled when this replica begins to shut down: it is not ready any more and gets no new agents.
    pub(crate) ending: CancellationToken,
    /// Cancelled together with it: agents connect to another replica.
    pub(crate) draining: CancellationToken,
    pub(crate) authenticator: Authenticator,
    pub(crate) authorizer: Arc<Authorizer>,
    pub(crate) audit: Audit,
    pub(crate) proxy: Proxy,
    pub(crate) peers: Peers,
    /// The tunnels of this replica.
    pub(crate) upstreams: Arc<LocalUpstreams>,
    /// Cancelled when clients do not connect to this replica any more.
    pub(crate) stop: CancellationToken,
}

/// Runs a hub until `shutdown`, and then until its agents and requests have moved to other replicas.
pub async fn run(settings: Settings, shutdown: CancellationToken) -> Result<()> {
    let config = kube::Config::infer()
        .await
        .map_err(|error| Error::NoCluster(Box::new(error)))?;
    let client = Client::try_from(config).map_err(|source| Error::Kubernetes {
        action: "be reached".to_owned(),
        source: Box::new(source),
    })?;
    let listeners = Listeners::bind(&settings).await?;
    serve(client, settings, listeners, shutdown).await
}

/// The listeners, which tests bind to other ports.
pub(crate) struct Listeners {
    http: TcpListener,
    agents: TcpListener,
    clients: TcpListener,
    peers: TcpListener,
    probes: TcpListener,
    metrics: TcpListener,
}

impl Listeners {
    async fn bind(settings: &Settings) -> Result<Self> {
        Ok(Self {
            http: listen(settings.listen).await?,
            agents: listen(settings.listen_for_agents).await?,
            clients: listen(settings.listen_for_clients).await?,
            peers: listen(settings.listen_for_peers).await?,
            probes: listen(settings.listen_for_probes).await?,
            metrics: listen(settings.listen_for_metrics).await?,
        })
    }
}

async fn serve(
    client: Client,
    settings: Settings,
    listeners: Listeners,
    shutdown: CancellationToken,
) -> Result<()> {
    // A failure of this hub must not cancel the caller's token.
    let (metrics, ending) = (Arc::new(Metrics::new()), shutdown.child_token());
    let background = Background::new(ending.clone(), metrics.failed_tasks.clone());
    let tasks = background.stop_guard();
    let read = Configuration::read(&settings.configuration).await?;
    let configuration = watch::Sender::new(read);
    let registry = Registry::start(client.clone(), &settings.namespace, &background);
    let rotator = CertificateRotator::start(
        &client,
        &settings,
        configuration.subscribe(),
        registry.clone(),
    )
    .await?;
    let (serving, certificates) = (rotator.serving(), rotator.subscribe());
    let hub = Arc::new(
        Hub::new(
            client,
            settings,
            configuration.subscribe(),
            &rotator,
            registry,
            &background,
            Arc::clone(&metrics),
        )
        .await?,
    );
    let path = hub.settings.configuration.clone();
    background.spawn("configuration", configuration::run(path, configuration));
    background.spawn("certificates", rotator.run());
    let is_ready = Arc::new(AtomicBool::new(false));
    let admission = |listener, limits| metrics.admission(listener, limits);
    background.spawn(
        "probes",
        probes::serve(
            background.clone(),
            Arc::clone(&is_ready),
            ending.clone(),
            listeners.probes,
            admission("probes", probes::LIMITS),
        ),
    );
    background.spawn(
        "metrics",
        metrics::serve(
            Arc::clone(&metrics),
            hub.sessions.clone(),
            listeners.metrics,
            admission("metrics", metrics::LIMITS),
        ),
    );
    // Before, every agent would be refused as not registered.
    tokio::select! {
        () = hub.registry.filled() => {}
        () = ending.cancelled() => {}
    }
    background.spawn("values", registry::follow_values(Arc::clone(&hub)));
    background.spawn("enforcement", tunnels::enforce(Arc::clone(&hub)));
    background.spawn("status", cluster_status::run(Arc::clone(&hub)));
    let agents_tls = tls::server_config(serving.clone(), &[b"http/1.1"])?;
    let clients_tls = tls::server_config(serving, &[b"h2", b"http/1.1"])?;
    let (stop, graceful) = (hub.stop.clone(), TaskTracker::new());
    let peers = &hub.peers;
    background.spawn("peers", peers.clone().connect(discovery(&hub)));
    background.spawn("peer_certificates", peers.clone().renew(certificates));
    background.spawn("peer_revocations", tunnels::end_revoked(Arc::clone(&hub)));
    let local = Arc::clone(&hub.upstreams) as Arc<_>;
    graceful.spawn(peers.clone().serve(listeners.peers, local, stop.clone()));
    graceful.spawn(agents::serve(
        Arc::clone(&hub),
        listeners.agents,
        admission("agents", agents::LIMITS),
        TlsAcceptor::from(agents_tls),
        stop.clone(),
    ));
    for (listener, name, tls) in [
        (listeners.http, "http", None),
        (
            listeners.clients,
            "clients",
            Some(TlsAcceptor::from(clients_tls)),
        ),
    ] {
        let admission = admission(name, listeners::LIMITS);
        let listener = ClientListener {
            listener,
            admission,
            tls,
        };
        graceful.spawn(listeners::serve(Arc::clone(&hub), listener, stop.clone()));
    }
    tracing::info!(
        address = %hub.settings.listen,
        agents_address = %hub.settings.listen_for_agents,
        clients_address = %hub.settings.listen_for_clients,
        version = env!("CARGO_PKG_VERSION"),
        "listening"
    );
    is_ready.store(true, Ordering::Release);
    ending.cancelled().await;
    drain(&hub, &graceful).await;
    drop(tasks);
    match background.failure() {
        Some(failure) => Err(Error::TaskFailed(failure.to_string())),
        None => Ok(()),
    }
}

/// Agents connect to another replica first and then leave, and requests end.
async fn drain(hub: &Hub, graceful: &TaskTracker) {
    hub.draining.cancel();
    sleep(SHUTDOWN_DELAY).await;
    hub.stop.cancel();
    graceful.close();
    hub.tunnels.close();
    hub.proxy.upgraded().close();
    let upgraded = hub.proxy.upgraded().wait();
    let done = async { tokio::join!(graceful.wait(), hub.tunnels.wait(), upgraded) };
    if timeout(DRAIN_TIMEOUT, done).await.is_err() {
        for tunnel in hub.sessions.all() {
            tunnel.close(CloseReason::Shutdown);
        }
    }
}

/// How the other replicas are found.
fn discovery(hub: &Hub) -> Discovery {
    let listed = &hub.configuration.borrow().peers;
    if listed.is_empty() {
        Discovery::Service {
            host: hub.settings.peer_host(),
            port: hub.settings.listen_for_peers.port(),
        }
    } else {
        Discovery::Addresses(listed.clone())
    }
}

async fn listen(address: SocketAddr) -> Result<TcpListener> {
    let listener = admission::listen(address).await;
    listener.map_err(|source| Error::Listen { address, source })
}

impl Hub {
    async fn new(
        client: Client,
        settings: Settings,
        configuration: watch::Receiver<Configuration>,
        rotator: &CertificateRotator,
        registry: Registry,
        background: &Background,
        metrics: Arc<Metrics>,
    ) -> Result<Self> {
        let limits = configuration.borrow().agent.limits;
        let authentication = configuration.borrow().authentication.clone();
        let namespace = settings.namespace.clone();
        let secret = SharedSecret::new(client.clone(), &namespace, &settings.tokens_secret);
        let authorizer = Arc::new(Authorizer::new(client.clone(), namespace.clone()));
        let authenticator = authentication::build(&client, authentication, background).await?;
        let (audit, sessions) = (Audit::new(audit::DEFAULT_CAPACITY), Sessions::new());
        let (draining, proxy_settings) = (
            CancellationToken::new(),
            configuration.borrow().proxy.settings(),
        );
        let peers = Peers::new(
            settings.replica.clone(),
            sessions.subscribe(),
            &rotator.subscribe().borrow(),
            draining.clone(),
        )?;
        let upstreams = Arc::new(LocalUpstreams::new(registry.clone(), sessions.clone()));
        let local = Arc::clone(&upstreams) as Arc<_>;
        let stop = CancellationToken::new();
        let proxy = Proxy::new(
            Arc::clone(&authorizer),
            Arc::new(AllUpstreams::new(local, peers.clone())),
            audit.clone(),
            proxy_settings,
            stop.clone(),
        );
        Ok(Self {
            authenticator,
            authorizer,
            audit,
            proxy,
            peers,
            upstreams,
            stop,
            registry,
            configuration,
            certificates: rotator.subscribe(),
            tokens: TokenStore::new(secret),
            sessions,
            acceptor: tunnel::Acceptor::new(limits.acceptor()),
            metrics,
            rate_limit: Mutex::default(),
            handshakes: Semaphore::new(agents::MAX_HANDSHAKES),
            tunnels: TaskTracker::new(),
            draining,
            ending: background.ending(),
            settings,
        })
    }
}
