//! `standind-hub`, the program of the hub, which `standind hub` executes: arguments and logging.
#![allow(clippy::print_stderr, reason = "a program: stderr carries messages")]

mod process;

use std::net::SocketAddr;
use std::path::PathBuf;
use std::process::ExitCode;

use anyhow::Result;
use clap::{Args, Parser};
use hub::{PublicCertificate, Settings};

use process::LogArguments;

/// Our crates in this program.
const CRATES: [&str; 5] = ["api", "authority", "hub", "link", "tunnel"];
/// The target of audit rows.
const AUDIT: &str = "audit";

#[derive(Debug, Parser)]
#[command(name = "standind", version, arg_required_else_help = true)]
enum Role {
    /// Accept clusters that dial in, and serve their API servers to authorized users
    Hub(Box<HubArguments>),
}

#[derive(Debug, Args)]
struct HubArguments {
    /// The namespace in which the hub runs
    #[arg(long, value_name = "NAME")]
    namespace: String,
    /// The name of this replica, which is the name of its pod
    #[arg(long, value_name = "NAME")]
    replica: String,
    /// The Service in front of all replicas
    #[arg(long, value_name = "NAME", default_value = "standin-hub")]
    service: String,
    /// The file with the clusters and settings, which may change while the hub runs
    #[arg(long, value_name = "FILE")]
    configuration: PathBuf,
    /// The Secret of the certificate authority; it must exist, and may be empty
    #[arg(long, value_name = "NAME", default_value = "standin-hub-ca")]
    ca_secret: String,
    /// The Secret of the key that all replicas serve with; it must exist, and may be empty
    #[arg(long, value_name = "NAME", default_value = "standin-hub-server")]
    server_secret: String,
    /// The Secret of registration tokens; it must exist, and may be empty
    #[arg(long, value_name = "NAME", default_value = "standin-hub-tokens")]
    tokens_secret: String,
    /// A certificate in PEM that public authorities have signed, for the agents' address
    #[arg(long, value_name = "FILE", requires = "public_key")]
    public_certificate: Option<PathBuf>,
    /// The key of that certificate
    #[arg(long, value_name = "FILE", requires = "public_certificate")]
    public_key: Option<PathBuf>,
    /// The address to listen on for administrators, in plain HTTP
    #[arg(long, value_name = "ADDRESS", default_value = "[::]:8080")]
    listen: SocketAddr,
    /// The address to listen on for agents
    #[arg(long, value_name = "ADDRESS", default_value = "[::]:8443")]
    listen_for_agents: SocketAddr,
    /// The address to listen on for Kubernetes clients
    #[arg(long, value_name = "ADDRESS", default_value = "[::]:6443")]
    listen_for_clients: SocketAddr,
    /// The address to listen on for other replicas
    #[arg(long, value_name = "ADDRESS", default_value = "[::]:8444")]
    listen_for_peers: SocketAddr,
    /// The address of /healthz and /readyz
    #[arg(long, value_name = "ADDRESS", default_value = "[::]:8081")]
    listen_for_probes: SocketAddr,
    /// The address of /metrics
    #[arg(long, value_name = "ADDRESS", default_value = "[::]:8082")]
    listen_for_metrics: SocketAddr,
    #[command(flatten)]
    log: LogArguments,
}

fn main() -> ExitCode {
    let Role::Hub(arguments) = Role::parse();
    process::exit(run(*arguments))
}

fn run(arguments: HubArguments) -> Result<()> {
    arguments.log.start(&CRATES, Some(AUDIT));
    process::run(None, async |shutdown| {
        Ok(hub::run(settings(arguments), shutdown).await?)
    })
}

fn settings(arguments: HubArguments) -> Settings {
    let public = arguments.public_certificate.zip(arguments.public_key);
    Settings {
        namespace: arguments.namespace,
        replica: arguments.replica,
        service: arguments.service,
        configuration: arguments.configuration,
        authority_secret: arguments.ca_secret,
        server_secret: arguments.server_secret,
        tokens_secret: arguments.tokens_secret,
        public_certificate: public.map(|(certificate, key)| PublicCertificate { certificate, key }),
        listen: arguments.listen,
        listen_for_agents: arguments.listen_for_agents,
        listen_for_clients: arguments.listen_for_clients,
        listen_for_peers: arguments.listen_for_peers,
        listen_for_probes: arguments.listen_for_probes,
        listen_for_metrics: arguments.listen_for_metrics,
    }
}
