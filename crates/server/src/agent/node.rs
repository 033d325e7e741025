//! `standind node-agent`: runs on a node and serves the containers that the operator requests, each to one client, on its
//! own port. A session starts no process, so it begins within a round trip.
//!
//! It accepts requests only from the operator. Both authenticate with certificates. The response names the certificate that
//! the client must expect at the session's port, so no intermediary can impersonate the agent.

mod served;

use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::time::Duration;

use ::agent::{AllClaims, Memory, PatternVisibility};
use admission::{accept, raise_descriptor_limit};
use anyhow::{Context, Result};
use api::node::{NodeRequest, NodeResponse, ServedTarget, encode_message};
use clap::Args;
use link::tls::rustls::pki_types::pem::PemObject as _;
use link::tls::rustls::pki_types::{CertificateDer, PrivatePkcs8KeyDer};
use link::tls::{Fingerprint, Identity, TlsAcceptor, acceptor_for_clients};
use tokio::io::AsyncWriteExt as _;
use tokio::net::TcpListener;
use tokio::signal::unix::{SignalKind, signal};
use tokio::sync::watch;
use tokio::time::timeout;
use tracing_subscriber::filter::LevelFilter;

use self::served::ServedTargets;
use super::operator_listener::{OperatorConnection, OperatorListener};
use super::operator_requests::read_request;
use super::port_reports::{filter_patterns, report_ports};

/// Twice the default of an agent with one target.
const BUFFER_MEMORY: usize = 128;
/// How long a request and its response may take.
const REQUEST_TIMEOUT: Duration = Duration::from_secs(5);

#[derive(Debug, Args)]
pub(crate) struct NodeArguments {
    /// The address to listen on for the operator
    #[arg(long, value_name = "ADDRESS", default_value = "[::]:20000")]
    listen: SocketAddr,
    /// The address to listen on for the kubelet, which only connects
    #[arg(long, value_name = "ADDRESS", default_value = "[::]:8081")]
    listen_for_probes: SocketAddr,
    /// The folder with this agent's `node.crt` and `node.key` and the operator's `agents.crt`
    #[arg(long, value_name = "FOLDER")]
    identity: PathBuf,
    /// The log level on standard error: off, error, warn, info, debug or trace
    #[arg(long, value_name = "LEVEL", default_value = "info")]
    log: LevelFilter,
    /// How much all agents of this node may buffer together, in MiB
    #[arg(long, value_name = "MIB", default_value_t = BUFFER_MEMORY)]
    buffer_memory: usize,
}

pub(crate) fn run(arguments: &NodeArguments) -> Result<()> {
    super::start_log(arguments.log);
    raise_descriptor_limit().context("the limit of open files cannot be raised")?;
    let acceptor = acceptor(&arguments.identity)?;
    let runtime = tokio::runtime::Builder::new_multi_thread()
        .worker_threads(link::worker_threads())
        .enable_all()
        .build()
        .context("the runtime does not start")?;
    runtime.block_on(async {
        // The first process of a container ignores the signal unless it has a handler.
        let mut terminated = signal(SignalKind::terminate())?;
        let listener = OperatorListener::bind(arguments.listen, acceptor).await?;
        let probes = super::listen(arguments.listen_for_probes).await?;
        let address = listener.address()?;
        println!("listening on {address}");
        let served = ServedTargets::at(address.ip(), Memory::of_mebibytes(arguments.buffer_memory));
        tokio::select! {
            () = serve(&listener, &served) => {}
            () = accept_probes(&probes) => {}
            _ = terminated.recv() => {}
        }
        served.end_all().await;
        Ok(())
    })
}

/// Accepts only the operator's certificate.
fn acceptor(folder: &Path) -> Result<TlsAcceptor> {
    let read = |name: &str| {
        let path = folder.join(name);
        std::fs::read(&path).with_context(|| format!("{} cannot be read", path.display()))
    };
    let certificate = CertificateDer::from_pem_slice(&read("node.crt")?)?;
    let key = PrivatePkcs8KeyDer::from_pem_slice(&read("node.key")?)?;
    let operator = CertificateDer::from_pem_slice(&read("agents.crt")?)?;
    let identity = Identity::from_parts(certificate, key);
    Ok(acceptor_for_clients(
        &identity,
        &[Fingerprint::of(&operator)],
    )?)
}

/// Accepts the kubelet's probes, which need no response. It never returns.
async fn accept_probes(listener: &TcpListener) {
    loop {
        drop(accept(listener).await);
    }
}

/// Serves requests. It never returns.
async fn serve(listener: &OperatorListener, served: &ServedTargets) {
    let served = served.clone();
    let serve_request = move |connection| {
        let served = served.clone();
        async move {
            let handled = timeout(REQUEST_TIMEOUT, handle(connection, &served));
            match handled.await?? {
                Some(subscriber) => subscriber.report().await,
                None => Ok(()),
            }
        }
    };
    listener.serve(serve_request).await;
}

/// A connection on which the operator receives reports of a session's ports.
struct PortSubscriber {
    pipe: OperatorConnection,
    claims: watch::Receiver<AllClaims>,
    patterns: PatternVisibility,
}

impl PortSubscriber {
    async fn report(self) -> Result<()> {
        report_ports(self.pipe, self.claims, self.patterns).await
    }
}

async fn handle(
    mut pipe: OperatorConnection,
    served: &ServedTargets,
) -> Result<Option<PortSubscriber>> {
    let request = read_request(&mut pipe).await?;
    let response = match serde_json::from_slice(&request) {
        Ok(NodeRequest::Serve(request)) => match served.serve(&request).await {
            Ok(served) => serving(vec![served]),
            Err(error) => failed(format!("{error:#}")),
        },
        Ok(NodeRequest::List { prefix }) => serving(served.list(&prefix)),
        Ok(NodeRequest::Grant { name, grant }) => match served.regrant(&name, grant).await {
            Ok(()) => NodeResponse::default(),
            Err(error) => failed(format!("{error:#}")),
        },
        Ok(NodeRequest::Ports { name, patterns }) => match served.ports(&name) {
            Some(claims) => {
                let patterns = filter_patterns(patterns);
                return Ok(Some(PortSubscriber {
                    pipe,
                    claims,
                    patterns,
                }));
            }
            None => failed(format!("{name} is not served")),
        },
        Ok(NodeRequest::End { name }) => {
            served.end(&name);
            NodeResponse::default()
        }
        Err(error) => failed(format!("the node agent cannot parse the request: {error}")),
    };
    pipe.write_all(&encode_message(&response)?).await?;
    pipe.shutdown().await?;
    Ok(None)
}

fn serving(served: Vec<ServedTarget>) -> NodeResponse {
    NodeResponse {
        served,
        ..NodeResponse::default()
    }
}

fn failed(reason: String) -> NodeResponse {
    NodeResponse {
        error: Some(reason),
        ..NodeResponse::default()
    }
}

#[cfg(test)]
mod tests;
