//! `standind node-agent`: waits on a node for the operator, and serves those of its containers that the operator names, each
//! to one client, on a port of its own. Nothing has to be started for a session, so it begins within a round trip.
//!
//! Only the operator is answered. It knows this agent by a certificate as well, and learns from it by what certificate the
//! client will know what it reaches: so nobody on the way can be mistaken for an agent.

mod served;

use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use ::agent::{AllHeld, Patterns};
use anyhow::{Context, Result, ensure};
use api::node::{MOST_BYTES, NodeAnswer, NodeRequest, Served, message};
use clap::Args;
use link::tls::rustls::pki_types::pem::PemObject as _;
use link::tls::rustls::pki_types::{CertificateDer, PrivatePkcs8KeyDer};
use link::tls::{AcceptedStream, Fingerprint, Identity, TlsAcceptor, acceptor_for_clients};
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::{TcpListener, TcpStream};
use tokio::signal::unix::{SignalKind, signal};
use tokio::sync::{Semaphore, watch};
use tokio::time::{sleep, timeout};
use tracing_subscriber::filter::LevelFilter;

use self::served::ServedTargets;
use super::telling::{self, tell_ports};

/// Before the next connection is accepted, when one could not be.
const PAUSE: Duration = Duration::from_millis(100);
/// How long somebody may take to show who it is and to ask.
const PATIENCE: Duration = Duration::from_secs(5);
/// Connections at the same time, whoever they are from. The next one waits.
const AT_ONCE: usize = 64;

#[derive(Debug, Args)]
pub(crate) struct NodeArguments {
    /// Where the operator connects to
    #[arg(long, value_name = "ADDRESS", default_value = "[::]:20000")]
    listen: SocketAddr,
    /// The folder with this agent's `node.crt` and `node.key` and the operator's `agents.crt`
    #[arg(long, value_name = "FOLDER")]
    identity: PathBuf,
    /// How much is said on standard error: off, error, warn, info, debug or trace
    #[arg(long, value_name = "LEVEL", default_value = "info")]
    log: LevelFilter,
}

pub(crate) fn run(arguments: &NodeArguments) -> Result<()> {
    super::start_log(arguments.log);
    ::agent::raise_descriptor_limit().context("the limit of open files cannot be raised")?;
    let acceptor = acceptor(&arguments.identity)?;
    let runtime = tokio::runtime::Builder::new_multi_thread()
        .worker_threads(link::worker_threads())
        .enable_all()
        .build()
        .context("the runtime does not start")?;
    runtime.block_on(async {
        // As the first process of a container we would ignore it otherwise.
        let mut terminated = signal(SignalKind::terminate())?;
        let listener = super::listen(arguments.listen).await?;
        let address = listener.local_addr()?;
        println!("listening on {address}");
        let served = ServedTargets::at(address.ip());
        tokio::select! {
            () = serve(&listener, &acceptor, &served) => {}
            _ = terminated.recv() => {}
        }
        served.end_all().await;
        Ok(())
    })
}

/// For the operator alone.
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

/// Answers for ever.
async fn serve(listener: &TcpListener, acceptor: &TlsAcceptor, served: &ServedTargets) {
    let places = Arc::new(Semaphore::new(AT_ONCE));
    // Nobody closes it.
    while let Ok(place) = Arc::clone(&places).acquire_owned().await {
        let Ok((connection, from)) = listener.accept().await else {
            sleep(PAUSE).await;
            continue;
        };
        let (acceptor, served) = (acceptor.clone(), served.clone());
        tokio::spawn(async move {
            let answered = timeout(PATIENCE, answer(connection, &acceptor, &served)).await;
            drop(place);
            let told = match answered.map_err(anyhow::Error::from).flatten() {
                Ok(Some(listener)) => listener.tell().await,
                Ok(None) => Ok(()),
                Err(error) => Err(error),
            };
            if let Err(error) = told {
                // The kubelet comes to see whether we are here, and says nothing.
                tracing::debug!(error = format!("{error:#}"), %from, "somebody was not answered");
            }
        });
    }
}

/// The operator, which has asked to be told of a session's ports as long as it has some.
struct PortListener {
    pipe: AcceptedStream<TcpStream>,
    held: watch::Receiver<AllHeld>,
    patterns: Patterns,
}

impl PortListener {
    async fn tell(self) -> Result<()> {
        tell_ports(self.pipe, self.held, self.patterns).await
    }
}

async fn answer(
    connection: TcpStream,
    acceptor: &TlsAcceptor,
    served: &ServedTargets,
) -> Result<Option<PortListener>> {
    connection.set_nodelay(true)?;
    let mut pipe = acceptor.accept(connection).await.context("no TLS")?;
    let length = pipe.read_u32().await?;
    ensure!(length <= MOST_BYTES, "the request is too long");
    let mut request = vec![0; usize::try_from(length)?];
    pipe.read_exact(&mut request).await?;
    let answer = match serde_json::from_slice(&request) {
        Ok(NodeRequest::Serve(order)) => match served.serve(&order).await {
            Ok(served) => serving(vec![served]),
            Err(error) => not_done(format!("{error:#}")),
        },
        Ok(NodeRequest::List { prefix }) => serving(served.list(&prefix)),
        Ok(NodeRequest::Grant { name, grant }) => match served.regrant(&name, grant).await {
            Ok(()) => NodeAnswer::default(),
            Err(error) => not_done(format!("{error:#}")),
        },
        Ok(NodeRequest::Ports { name, patterns }) => match served.ports(&name) {
            Some(held) => {
                let patterns = telling::patterns(patterns);
                return Ok(Some(PortListener {
                    pipe,
                    held,
                    patterns,
                }));
            }
            None => not_done(format!("{name} is not served")),
        },
        Ok(NodeRequest::End { name }) => {
            served.end(&name);
            NodeAnswer::default()
        }
        Err(error) => not_done(format!(
            "the agent on the node does not understand: {error}"
        )),
    };
    pipe.write_all(&message(&answer)?).await?;
    pipe.shutdown().await?;
    Ok(None)
}

fn serving(served: Vec<Served>) -> NodeAnswer {
    NodeAnswer {
        served,
        ..NodeAnswer::default()
    }
}

fn not_done(why: String) -> NodeAnswer {
    NodeAnswer {
        error: Some(why),
        ..NodeAnswer::default()
    }
}

#[cfg(test)]
mod tests;
