//! The hub: clusters that can only dial out connect to it, and Kubernetes clients reach their API servers through it.
//!
//! Read [`run`] first. Several replicas serve at once. All state is in objects and Secrets of the hub's cluster; memory is
//! only a cache, so a replica that exits costs its agents a reconnect and nothing else.
//!
//! | module | what it does |
//! |---|---|
//! | [`agents`] | the listener for agents: registration, and the beginning of a tunnel |
//! | [`api`], [`responses`] | the JSON API |
//! | [`background`] | tasks without which a replica must exit |
//! | [`certificates`], [`tls`] | the authority for agents, and the certificates that listeners serve |
//! | [`cluster_status`] | what the hub shows of a cluster |
//! | [`configuration`], [`settings`] | what administrators choose |
//! | [`control`] | the control stream of a tunnel |
//! | [`identity`] | who an agent is, and whether it may connect |
//! | [`listeners`] | the listeners for administrators and Kubernetes clients |
//! | [`metrics`], [`probes`], [`plain_http`] | metrics and health endpoints |
//! | [`rate_limit`] | limits of requests per source |
//! | [`registration`], [`tokens`], [`token_store`] | registration of agents with tokens |
//! | [`registry`] | the registered clusters |
//! | [`secrets`] | Secrets that several replicas change |
//! | [`sessions`], [`tunnels`] | the tunnels of this replica |

mod agents;
mod api;
mod background;
mod body;
mod certificates;
mod cluster_status;
mod configuration;
mod control;
mod error;
mod identity;
mod listeners;
mod metrics;
mod plain_http;
mod probes;
mod rate_limit;
mod registration;
mod registry;
mod responses;
mod secrets;
mod sessions;
mod settings;
mod tls;
mod token_store;
mod tokens;
mod tunnels;

use std::net::SocketAddr;
use std::sync::Arc;
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

use crate::background::Background;
use crate::certificates::{CertificateRotator, Certificates};
use crate::configuration::Configuration;
use crate::listeners::ClientListener;
use crate::metrics::Metrics;
use crate::rate_limit::RateLimit;
use crate::registry::Registry;
use crate::secrets::SharedSecret;
use crate::sessions::{CloseReason, Sessions};
use crate::token_store::TokenStore;

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
}
