//! The settings of the tunnel agent.

use std::net::SocketAddr;
use std::path::PathBuf;

use authority::KeyHash;
use tunnel::ProxyRules;

use crate::allow_list::AllowList;
use crate::endpoint::Endpoint;

/// The settings that the chart passes. They do not change at run time.
#[derive(Clone, Debug)]
pub struct Settings {
    /// The name under which the hub knows this cluster.
    pub cluster: String,
    /// The hub's address for agents.
    pub server: Endpoint,
    /// The address for the registration, if it is not derived from the address for agents.
    pub registration: Option<Endpoint>,
    /// The hash of the hub's public key. It replaces the verification of the hub's certificate during the registration.
    pub server_pin: Option<KeyHash>,
    /// A file with authorities, in PEM, that are trusted beside the public ones.
    pub server_ca_file: Option<PathBuf>,
    /// A file with the registration token. It may appear and change at any time.
    pub registration_token_file: Option<PathBuf>,
    pub api_server: ApiServerSettings,
    /// The Secret with this agent's certificate. The chart creates it.
    pub state_secret: String,
    pub allow_list: AllowList,
    /// Which connections to the hub use a proxy.
    pub proxy: ProxyRules,
    /// The listen address for the kubelet.
    pub listen_for_probes: SocketAddr,
}

/// How the agent reaches the API server of its own cluster.
#[derive(Clone, Debug)]
pub struct ApiServerSettings {
    pub server: Endpoint,
    /// The authorities of the API server's certificate, in PEM.
    pub ca_file: PathBuf,
    /// The token of the agent's service account. The kubelet replaces it regularly.
    pub token_file: PathBuf,
    /// The namespace in which the agent runs.
    pub namespace: String,
}

impl Settings {
    /// Where the agent registers.
    #[must_use]
    pub fn registration(&self) -> Endpoint {
        self.registration
            .clone()
            .unwrap_or_else(|| self.server.for_registration())
    }
}
