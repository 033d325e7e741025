//! The operator: sessions for teams, through the API server that everybody can reach already.
//!
//! It is an *aggregated API server*: the cluster's own API server authenticates users, checks their rights and passes
//! requests of the group `operator.metalbear.co` on. Read [`run`] first, then [`server`] for what is answered.
//!
//! Several replicas serve at once. What matters is in objects of the cluster; memory is a cache, so a replica that ends
//! costs its clients a reconnect and nothing else.

mod address;
mod answer;
mod audit;
mod authorize;
mod background;
mod cache;
mod certificates;
mod connect;
mod controller;
mod discovery;
mod error;
mod front_proxy;
#[cfg(test)]
mod golden;
mod leader;
mod listening;
mod metrics;
mod multicluster;
mod nodes;
mod openapi;
mod overview;
mod policies;
mod probes;
mod server;
mod sessions;
mod settings;
mod targets;
mod uninstall;
mod users;

use std::sync::Arc;
use std::time::Duration;

use kube::Client;
use link::tls::Identity;
use tokio::sync::watch;
use tokio::time::sleep;
use tokio_util::sync::CancellationToken;
use tokio_util::task::TaskTracker;

pub use crate::error::{Error, Result};
pub use crate::multicluster::{InvalidClusters, MultiCluster};
pub use crate::settings::{
    AgentMode, AgentSettings, MemberAuthorization, PodSettings, SessionSettings, Settings,
};
pub use crate::uninstall::uninstall;

use crate::background::Background;
use crate::cache::SessionCache;
use crate::certificates::CertificateKeeper;
use crate::leader::Election;
use crate::listening::listen;
use crate::metrics::Metrics;
use crate::multicluster::envoy::Envoy;
use crate::nodes::Nodes;
use crate::policies::PolicyCache;
use crate::server::{Trust, TrustKeeper};
use crate::users::Users;

/// What all parts of an operator have in common.
pub(crate) struct Shared {
    pub(crate) client: Client,
    pub(crate) settings: Settings,
    pub(crate) metrics: Metrics,
    pub(crate) trust: watch::Receiver<Arc<Trust>>,
    pub(crate) sessions: SessionCache,
    pub(crate) policies: PolicyCache,
    /// Who the operator is for agents: whoever has it may end them.
    pub(crate) identity: Identity,
    /// Other clusters, where this operator is their Primary.
    pub(crate) envoy: Option<Envoy>,
    pub(crate) nodes: Nodes,
    pub(crate) background: Background,
    pub(crate) users: Users,
    /// Cancelled when this replica is about to end, so that nobody new is sent to it.
    pub(crate) ending: CancellationToken,
    /// Cancelled a little later, when nobody new comes any more: those who are here are told to go elsewhere.
    pub(crate) leaving: CancellationToken,
    /// The tasks that carry sessions.
    pub(crate) relays: TaskTracker,
}

/// How long a client may take to go to another replica. It has found one before it leaves this one.
const MOVES_WITHIN: Duration = Duration::from_secs(8);

impl Shared {
    /// Waits until this replica carries nobody any more.
    pub(crate) async fn left(&self) {
        self.leaving.cancelled().await;
        sleep(MOVES_WITHIN).await;
    }
}

/// Runs an operator until `shutdown`, and then until what is under way is done.
pub async fn run(settings: Settings, shutdown: CancellationToken) -> Result<()> {
    let config = kube::Config::infer()
        .await
        .map_err(|error| Error::NoCluster(Box::new(error)))?;
    let client = Client::try_from(config).map_err(|source| Error::Kubernetes {
        doing: "be reached".to_owned(),
        source: Box::new(source),
    })?;
    // A failure of our own is for us alone, not for whoever may tell us to end.
    let (metrics, ending) = (Metrics::new(), shutdown.child_token());
    let background = Background::new(ending.clone(), metrics.failed_tasks.clone());
    let needed = background.end_with_guard();
    let envoy = Envoy::new(&client, &settings, &background)?;
    let certificates = CertificateKeeper::start(client.clone(), settings.clone()).await?;
    let trust = TrustKeeper::start(client.clone(), certificates.subscribe()).await?;
    let (listener, probes) = (
        listen(settings.listen).await?,
        listen(settings.listen_for_probes).await?,
    );
    let shared = Arc::new(Shared {
        sessions: SessionCache::follow(client.clone(), &background, "sessions"),
        policies: PolicyCache::follow(&client, &background),
        users: Users::write_down(client.clone(), &settings, &background),
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
        envoy,
        background: background.clone(),
        ending: ending.clone(),
        leaving: CancellationToken::new(),
        relays: TaskTracker::new(),
        settings,
    });
    tracing::info!(
        address = %shared.settings.listen,
        version = env!("CARGO_PKG_VERSION"),
        "the operator is there"
    );
    background.spawn("certificates", certificates.keep());
    background.spawn("trust", trust.keep());
    background.spawn("probes", probes::serve(Arc::clone(&shared), probes));
    background.spawn("leader", lead(Arc::clone(&shared)));
    if shared.envoy.is_some() {
        background.spawn("members", keep_members(Arc::clone(&shared)));
    }
    let (client, settings) = (shared.client.clone(), shared.settings.clone());
    server::serve(shared, listener, ending).await;
    drop(needed);
    Election::resign(client, &settings).await;
    match background.failure() {
        Some(failure) => Err(Error::TaskFailed(failure.to_string())),
        None => Ok(()),
    }
}

/// Runs the controllers whenever this replica is the leader. One that ends is begun again, and counted; one that panics takes
/// this task along.
async fn lead(shared: Arc<Shared>) {
    Election::new(shared.client.clone(), &shared.settings)
        .lead(&shared.metrics, || async {
            let ended = tokio::select! {
                () = controller::run(Arc::clone(&shared)) => "controller",
                () = multicluster::sessions::run(&shared) => "parents_controller",
                () = renew_tokens(&shared) => "tokens",
            };
            tracing::error!(
                task = ended,
                "what the leader runs has ended, and begins again"
            );
            shared.background.count(ended);
        })
        .await;
}

/// Looks after other clusters, where there are some.
async fn keep_members(shared: Arc<Shared>) {
    if let Some(envoy) = &shared.envoy {
        envoy.keep().await;
    }
}

async fn renew_tokens(shared: &Shared) {
    match &shared.envoy {
        Some(envoy) => envoy.keep_renewing().await,
        None => std::future::pending().await,
    }
}
