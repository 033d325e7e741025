//! `standind-tunnel-agent`, the program of the tunnel agent, which `standind tunnel-agent` executes: arguments,
//! environment and logging.
#![allow(clippy::print_stderr, reason = "a program: stderr carries messages")]

mod process;

use std::env;
use std::net::SocketAddr;
use std::path::PathBuf;
use std::process::ExitCode;

use anyhow::{Context as _, Result};
use clap::{Args, Parser};
use tunnel_agent::{
    AllowList, ApiServerSettings, Endpoint, KeyHash, Pattern, ProxyRules, Settings,
};

use process::LogArguments;

/// Our crates in this program.
const CRATES: [&str; 4] = ["authority", "link", "tunnel", "tunnel_agent"];

/// The environment that the program reads.
mod environment {
    /// The address of the API server, which Kubernetes sets in every container.
    pub(super) const API_SERVER_HOST: &str = "KUBERNETES_SERVICE_HOST";
    pub(super) const API_SERVER_PORT: &str = "KUBERNETES_SERVICE_PORT";
    /// A proxy for the connection to the hub. It may contain a password, so it is no argument.
    pub(super) const PROXIES: [&str; 2] = ["HTTPS_PROXY", "https_proxy"];
    /// Hosts that are reached without the proxy.
    pub(super) const NO_PROXIES: [&str; 2] = ["NO_PROXY", "no_proxy"];
}

/// Where Kubernetes mounts the credential of a service account.
const SERVICE_ACCOUNT: &str = "/var/run/secrets/kubernetes.io/serviceaccount";

#[derive(Debug, Parser)]
#[command(name = "standind", version, arg_required_else_help = true)]
enum Role {
    /// Connect this cluster to a hub, and forward the hub's requests to the API server
    TunnelAgent(Box<TunnelAgentArguments>),
}

#[derive(Debug, Args)]
struct TunnelAgentArguments {
    /// The name under which the hub knows this cluster
    #[arg(long, value_name = "NAME")]
    cluster: String,
    /// The hub's address for agents, such as wss://hub.example.com:8443
    #[arg(long, value_name = "URL")]
    server_url: Endpoint,
    /// The hub's address for the registration, if it is another one
    #[arg(long, value_name = "URL")]
    registration_url: Option<Endpoint>,
    /// The pin of the hub's key, if the hub serves its own certificate
    #[arg(long, value_name = "sha256:HEX")]
    server_ca_hash: Option<KeyHash>,
    /// A file with authorities in PEM that are trusted for the hub, beside the public ones
    #[arg(long, value_name = "FILE")]
    server_ca_file: Option<PathBuf>,
    /// The file with the registration token; it may appear and change while the agent runs
    #[arg(long, value_name = "FILE")]
    registration_token_file: Option<PathBuf>,
    /// The namespace in which the agent runs
    #[arg(long, value_name = "NAME")]
    namespace: String,
    /// The Secret for the agent's certificate; it must exist, and may be empty
    #[arg(
        long,
        value_name = "NAME",
        default_value = "standin-tunnel-agent-state"
    )]
    state_secret: String,
    /// A user that the hub may act as, or the beginning of names with `*`; names that begin with `system:` must be named so
    #[arg(long, value_name = "NAME")]
    allow_user: Vec<Pattern>,
    /// A group that these users may have
    #[arg(long, value_name = "NAME")]
    allow_group: Vec<Pattern>,
    /// A key of extra information about these users
    #[arg(long, value_name = "KEY")]
    allow_extra_key: Vec<Pattern>,
    /// The address of /healthz and /readyz
    #[arg(long, value_name = "ADDRESS", default_value = "[::]:8081")]
    listen_for_probes: SocketAddr,
    #[command(flatten)]
    log: LogArguments,
}

fn main() -> ExitCode {
    let Role::TunnelAgent(arguments) = Role::parse();
    process::exit(run(*arguments))
}

fn run(arguments: TunnelAgentArguments) -> Result<()> {
    arguments.log.start(&CRATES, None);
    let settings = settings(arguments)?;
    process::run(Some(1), async |shutdown| {
        Ok(tunnel_agent::run(settings, shutdown).await?)
    })
}

fn settings(arguments: TunnelAgentArguments) -> Result<Settings> {
    let folder = PathBuf::from(SERVICE_ACCOUNT);
    let api_server = ApiServerSettings {
        server: api_server()?,
        ca_file: folder.join("ca.crt"),
        token_file: folder.join("token"),
        namespace: arguments.namespace,
    };
    Ok(Settings {
        cluster: arguments.cluster,
        server: arguments.server_url,
        registration: arguments.registration_url,
        server_pin: arguments.server_ca_hash,
        server_ca_file: arguments.server_ca_file,
        registration_token_file: arguments.registration_token_file,
        api_server,
        state_secret: arguments.state_secret,
        allow_list: AllowList {
            users: arguments.allow_user,
            groups: arguments.allow_group,
            extra_keys: arguments.allow_extra_key,
        },
        proxy: proxy()?,
        listen_for_probes: arguments.listen_for_probes,
    })
}

fn proxy() -> Result<ProxyRules> {
    let proxy = first(environment::PROXIES);
    let exceptions = first(environment::NO_PROXIES);
    ProxyRules::new(proxy.as_deref(), exceptions.as_deref())
        .with_context(|| format!("{} cannot be used", environment::PROXIES[0]))
}

/// The first variable that is set and not empty.
fn first(names: [&str; 2]) -> Option<String> {
    let mut values = names.into_iter().filter_map(|name| env::var(name).ok());
    values.find(|value| !value.trim().is_empty())
}

fn api_server() -> Result<Endpoint> {
    let variable = |name: &str| {
        env::var(name).with_context(|| {
            format!(
                "{name} is not set: the tunnel agent runs in a pod of the cluster that it connects"
            )
        })
    };
    let host = variable(environment::API_SERVER_HOST)?;
    let port = variable(environment::API_SERVER_PORT)?;
    let port = port
        .parse()
        .with_context(|| format!("{} is no port: {port}", environment::API_SERVER_PORT))?;
    Ok(Endpoint::https(&host, port))
}
