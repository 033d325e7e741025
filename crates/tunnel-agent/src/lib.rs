//! The tunnel agent: connects its cluster to a hub, and forwards the hub's requests to its API server.
//!
//! The cluster needs nothing but a way out. The agent registers once with a token, gets a certificate, and keeps a
//! connection to the hub, through which the hub sends the requests of its users. The agent executes each as the user that
//! the hub names, if its own cluster's administrator allows that user: see [`allow_list`].
//!
//! Read [`run`] first, then [`service`] for the handling of a request.
//!
//! | module | what it does |
//! |---|---|
//! | [`agent`] | registers if necessary, and connects |
//! | [`allow_list`] | which users and groups a hub may name |
//! | [`api_server`] | the client for the API server of this cluster |
//! | [`body`] | bodies of requests and responses |
//! | [`connection`], [`report`], [`condition`] | the tunnel and its state |
//! | [`control`], [`renewal`] | messages between hub and agent: certificates and authorities |
//! | [`endpoint`], [`settings`] | addresses and settings |
//! | [`headers`], [`route`], [`refusal`] | which requests are forwarded, with which headers, and the responses to others |
//! | [`identity`], [`trust`] | the certificate in use, and which servers are trusted |
//! | [`probes`] | health endpoints |
//! | [`registration`] | from a token to a certificate |
//! | [`service`] | serves the hub's requests |
//! | [`state`], [`store`] | the Secret with the certificate, and what follows from its content |

mod agent;
mod allow_list;
mod api_server;
mod body;
mod condition;
mod connection;
mod control;
mod endpoint;
mod error;
mod headers;
mod identity;
mod probes;
mod refusal;
mod registration;
mod renewal;
mod report;
mod route;
mod service;
mod settings;
mod state;
mod store;
#[cfg(test)]
mod testing;
mod trust;

use std::sync::Arc;

use tokio_util::sync::CancellationToken;
use tokio_util::task::AbortOnDropHandle;

pub use authority::KeyHash;
pub use tunnel::ProxyRules;

pub use crate::allow_list::{AllowList, Pattern};
pub use crate::endpoint::{Endpoint, InvalidEndpoint, Scheme};
pub use crate::error::{Error, Result};
pub use crate::registration::RegistrationError;
pub use crate::settings::{ApiServerSettings, Settings};

use crate::agent::Agent;
use crate::condition::Condition;

/// Registers if necessary, connects to the hub, and serves its requests until `shutdown`.
pub async fn run(settings: Settings, shutdown: CancellationToken) -> Result<()> {
    let address = settings.listen_for_probes;
    let listener = admission::listen(address)
        .await
        .map_err(|source| Error::Listen { address, source })?;
    let condition = Arc::new(Condition::default());
    let probes = probes::serve(listener, Arc::clone(&condition));
    let _probes = AbortOnDropHandle::new(tokio::spawn(probes));
    tracing::info!(
        cluster = settings.cluster,
        server = %settings.server,
        probe_address = %address,
        version = env!("CARGO_PKG_VERSION"),
        "starting"
    );
    Agent::new(settings, condition)?.run(&shutdown).await
}
