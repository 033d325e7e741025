//! The operator: sessions for teams, through the API server that users can reach already.
//!
//! It is an *aggregated API server*: the cluster's own API server authenticates users, checks their rights and forwards
//! requests for the group `operator.metalbear.co`. Read [`run`] first, then [`server`] for the request handling.
//!
//! Several replicas serve at once. All state is in objects of the cluster; memory is only a cache, so a replica that exits
//! costs its clients a reconnect and nothing else.
//!
//! | module | what it does |
//! |---|---|
//! | [`audit`] | audit log entries |
//! | [`authorize`] | checks with the cluster whether a user may have a session with a target |
//! | [`background`] | tasks without which a replica must exit |
//! | [`cache`] | watches objects and keeps them in memory |
//! | [`certificates`] | creates and rotates the operator's certificates |
//! | [`connect`] | a client's connection: admission, relay to agents, tracking of its ports |
//! | [`controller`] | reconciles sessions in this cluster |
//! | [`discovery`], [`openapi`] | the documents by which clients discover the API |
//! | [`front_proxy`] | authenticates the API server and reads the user from its headers |
//! | [`leader`] | leader election |
//! | [`metrics`], [`probes`], [`plain_http`] | metrics and health endpoints |
//! | [`multicluster`] | sessions over several clusters |
//! | [`nodes`] | requests to node agents |
//! | [`overview`], [`sessions`], [`targets`] | the objects that the API serves |
//! | [`policies`] | the administrators' policies, compiled into grants |
//! | [`routes`], [`response`], [`server`] | HTTP requests and responses |
//! | [`unconfirmed`] | stops the traffic to agents that have not confirmed the current policies |
//! | [`users`] | daily and monthly active users |

mod audit;
mod authorize;
mod background;
mod cache;
mod certificates;
mod connect;
mod controller;
mod discovery;
mod error;
#[cfg(test)]
mod fixture;
mod front_proxy;
#[cfg(test)]
mod golden;
mod leader;
mod metrics;
mod multicluster;
mod nodes;
mod openapi;
mod overview;
mod plain_http;
mod policies;
mod probes;
mod response;
mod routes;
mod server;
mod sessions;
mod settings;
mod targets;
mod unconfirmed;
mod uninstall;
mod users;

use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use kube::Client;
use link::tls::Identity;
use tokio::net::TcpListener;
use tokio::sync::watch;
use tokio::time::sleep;
use tokio_util::sync::CancellationToken;
use tokio_util::task::TaskTracker;

pub use crate::error::{Error, Result};
pub use crate::settings::{
    AgentMode, AgentSettings, MemberAuthorization, PodSettings, PrimarySettings, SessionSettings,
    Settings,
};
pub use crate::uninstall::uninstall;

use crate::background::Background;
use crate::cache::SessionCache;
use crate::certificates::CertificateRotator;
use crate::leader::Election;
use crate::metrics::Metrics;
use crate::multicluster::member_clusters::MemberClusters;
use crate::nodes::Nodes;
use crate::policies::PolicyCache;
use crate::server::{Trust, TrustReloader};
use crate::unconfirmed::StoppedAgents;
use crate::users::Users;

/// State that all parts of the operator share.
pub(crate) struct Shared {
    pub(crate) client: Client,
    pub(crate) settings: Settings,
    pub(crate) metrics: Metrics,
    pub(crate) trust: watch::Receiver<Arc<Trust>>,
    pub(crate) sessions: SessionCache,
    pub(crate) policies: PolicyCache,
    /// Agents that have not confirmed the current policies in time.
    pub(crate) stopped_agents: StoppedAgents,
    /// The certificate with which the operator authenticates to agents. Its holder may end them.
    pub(crate) identity: Identity,
    /// The member clusters, if this operator is a Primary.
    pub(crate) members: Option<MemberClusters>,
    pub(crate) nodes: Nodes,
    pub(crate) background: Background,
    pub(crate) users: Users,
    /// Cancelled when this replica begins to shut down: it is not ready any more and gets no new clients.
    pub(crate) ending: CancellationToken,
    /// Cancelled a little later, when no new clients connect: connected clients hand over to another replica.
    pub(crate) draining: CancellationToken,
    /// The tasks that relay sessions.
    pub(crate) relays: TaskTracker,
}

/// How long a client may take to move to another replica. It connects to the other one before it closes this connection.
const HANDOVER_TIMEOUT: Duration = Duration::from_secs(8);

impl Shared {
    /// Waits until the replica is draining and the time for handovers is over.
    pub(crate) async fn handover_deadline(&self) {
        self.draining.cancelled().await;
        sleep(HANDOVER_TIMEOUT).await;
    }
}

/// Runs an operator until `shutdown`, and then until its requests and relays have ended.
pub async fn run(settings: Settings, shutdown: CancellationToken) -> Result<()> {
    let config = kube::Config::infer()
        .await
        .map_err(|error| Error::NoCluster(Box::new(error)))?;
    let client = Client::try_from(config).map_err(|source| Error::Kubernetes {
        action: "be reached".to_owned(),
        source: Box::new(source),
    })?;
    // A failure of this operator must not cancel the caller's token.
    let (metrics, ending) = (Metrics::new(), shutdown.child_token());
    let background = Background::new(ending.clone(), metrics.failed_tasks.clone());
    let tasks = background.stop_guard();
    let members = MemberClusters::new(&client, &settings, &background).await?;
    let certificates = CertificateRotator::start(client.clone(), settings.clone()).await?;
    let trust = TrustReloader::start(client.clone(), certificates.subscribe()).await?;
    let listener = listen(settings.listen).await?;
    let probes_listener = listen(settings.listen_for_probes).await?;
    let metrics_listener = listen(settings.listen_for_metrics).await?;
    let shared = Arc::new(Shared {
        sessions: SessionCache::start(client.clone(), &background, "sessions"),
        policies: PolicyCache::start(&client, &background),
        stopped_agents: StoppedAgents::new(),
        users: Users::start(client.clone(), &settings, &background),
        identity: certificates.identity()?,
        nodes: Nodes::new(
            client.clone(),
            &settings.namespace,
            certificates.identity()?,
            certificates.node()?,
        ),
        client,
        metrics,
        trust: trust.subscribe(),
        members,
        background: background.clone(),
        ending: ending.clone(),
        draining: CancellationToken::new(),
        relays: TaskTracker::new(),
        settings,
    });
    tracing::info!(
        address = %shared.settings.listen,
        probe_address = %shared.settings.listen_for_probes,
        metrics_address = %shared.settings.listen_for_metrics,
        version = env!("CARGO_PKG_VERSION"),
        "listening"
    );
    background.spawn("certificates", certificates.run());
    background.spawn("trust", trust.run());
    let admission = |listener, limits| shared.metrics.admission(listener, limits);
    let api_admission = admission("api", server::LIMITS);
    let probes_admission = admission("probes", probes::LIMITS);
    let metrics_admission = admission("metrics", metrics::LIMITS);
    let serving = probes::serve(Arc::clone(&shared), probes_listener, probes_admission);
    background.spawn("probes", serving);
    let serving = metrics::serve(Arc::clone(&shared), metrics_listener, metrics_admission);
    background.spawn("metrics", serving);
    background.spawn(
        "unconfirmed_policies",
        unconfirmed::run(Arc::clone(&shared)),
    );
    background.spawn("leader", lead(Arc::clone(&shared)));
    if shared.members.is_some() {
        background.spawn("members", run_members(Arc::clone(&shared)));
    }
    let (client, settings) = (shared.client.clone(), shared.settings.clone());
    server::serve(shared, listener, api_admission, ending).await;
    drop(tasks);
    Election::release(client, &settings).await;
    match background.failure() {
        Some(failure) => Err(Error::TaskFailed(failure.to_string())),
        None => Ok(()),
    }
}

async fn listen(address: SocketAddr) -> Result<TcpListener> {
    let listening = admission::listen(address).await;
    listening.map_err(|source| Error::Listen { address, source })
}

/// Runs the controllers whenever this replica is the leader. A controller that ends is restarted and counted; one that panics
/// ends this task.
async fn lead(shared: Arc<Shared>) {
    Election::new(shared.client.clone(), &shared.settings)
        .lead(&shared.metrics, || async {
            let ended = tokio::select! {
                () = controller::run(Arc::clone(&shared)) => "controller",
                () = multicluster::sessions::run(&shared) => "parents_controller",
                () = renew_tokens(&shared) => "tokens",
            };
            tracing::error!(task = ended, "leader task ended, restarting");
            shared.background.count(ended);
        })
        .await;
}

/// Keeps the clients of member clusters connected, if there are member clusters.
async fn run_members(shared: Arc<Shared>) {
    if let Some(members) = &shared.members {
        members.run().await;
    }
}

async fn renew_tokens(shared: &Shared) {
    match &shared.members {
        Some(members) => members.renew_tokens().await,
        None => std::future::pending().await,
    }
}
