//! `standind agent`: serves one target to whoever can prove to be its client, over links that survive the network.

mod arrival;
mod life;
pub(crate) mod node;
mod orders;
mod telling;

use std::future::Future;
use std::io::Read as _;
use std::net::{Ipv4Addr, Ipv6Addr, SocketAddr};
use std::time::Duration;
use std::{env, thread};

use ::agent::{
    Agent, Presence, Reachable, enter_user_namespace_of, process_of_container,
    raise_descriptor_limit,
};
use anyhow::{Context, Result};
use clap::Args;
use link::tls::Fingerprint;
use link::{Link, LinkError, ServerSettings, Status};
use protocol::grant::Grant;
use tokio::net::TcpListener;
use tokio::runtime::Runtime;
use tokio::signal::unix::{SignalKind, signal};
use tokio::sync::{mpsc, oneshot, watch};
use tokio::time::{Instant, timeout};
use tokio_util::sync::CancellationToken;
use tracing_subscriber::filter::{LevelFilter, Targets};
use tracing_subscriber::layer::SubscriberExt as _;
use tracing_subscriber::util::SubscriberInitExt as _;

use arrival::{Door, Proof, Purpose};
use life::Sessions;

/// The secret that clients show. In the environment, because arguments are seen by everyone on the machine.
const TOKEN: &str = "STANDIN_AGENT_TOKEN";
/// How long connections may take that others have through us. Whoever started us waits for our end.
const ENDS_WITHIN: Duration = Duration::from_millis(1500);

#[derive(Debug, Args)]
pub(crate) struct AgentArguments {
    #[command(flatten)]
    target: TargetArguments,
    /// Where to listen; port 0 is any
    #[arg(long, value_name = "ADDRESS", default_value = "127.0.0.1:0")]
    listen: SocketAddr,
    /// Speak TLS, with a certificate of this run alone, whose SHA-256 is printed
    #[arg(long)]
    tls: bool,
    /// Speak TLS with the client alone that has the certificate with this SHA-256, in place of a token
    #[arg(long, value_name = "SHA256")]
    client_certificate: Option<Fingerprint>,
    /// Take orders from whoever has the certificate with this SHA-256: to end, and what sessions may do
    #[arg(long, value_name = "SHA256", requires = "client_certificate")]
    ended_by_certificate: Option<Fingerprint>,
    /// How much is said on standard error: off, error, warn, info, debug or trace
    #[arg(long, value_name = "LEVEL", default_value = "info")]
    log: LevelFilter,
    /// The longest time that a client may be away before its session is over
    #[arg(long, value_name = "SECONDS", default_value = "600")]
    resume_window: u64,
    /// End when standard input is closed, which is when whoever started the agent is gone
    #[arg(long)]
    end_with_input: bool,
    /// End when the session is over, or when none begins in time
    #[arg(long)]
    end_with_session: bool,
    /// What sessions may do, as JSON, whatever their client asks for
    #[arg(long, value_name = "JSON", requires = "client_certificate", value_parser = read_grant)]
    grant: Option<Grant>,
    /// How long to wait for a session to begin
    #[arg(
        long,
        value_name = "SECONDS",
        default_value = "60",
        requires = "end_with_session"
    )]
    patience: u64,
}

#[derive(Debug, Args)]
#[group(required = true, multiple = false)]
struct TargetArguments {
    /// The target: a process of this machine
    #[arg(long, value_name = "PID")]
    process: Option<u32>,
    /// The target: a container of this pod or of this node, by its id
    #[arg(long, value_name = "ID")]
    container: Option<String>,
    /// No target: the agent's own place
    #[arg(long)]
    targetless: bool,
}

impl TargetArguments {
    fn process(&self) -> Result<u32> {
        match (self.process, &self.container) {
            (Some(process), _) => Ok(process),
            (None, Some(container)) => Ok(process_of_container(container)?),
            (None, None) => Ok(std::process::id()),
        }
    }
}

pub(crate) fn run(arguments: &AgentArguments) -> Result<()> {
    start_log(arguments.log);
    raise_descriptor_limit().context("the limit of open files cannot be raised")?;
    let proof = arguments.proof()?;
    let process = arguments.target.process()?;
    // Before the runtime: it may only be done while there is one thread.
    enter_user_namespace_of(process)?;
    let agent = match &arguments.grant {
        Some(grant) => Agent::for_process_with_grant(process, grant)?,
        None => Agent::for_process_with_token(process, proof.token())?,
    };
    let runtime = tokio::runtime::Builder::new_multi_thread()
        .worker_threads(link::worker_threads())
        .enable_all()
        .build()
        .context("the runtime does not start")?;
    let sessions = Sessions::default();
    let end = end_of_input(arguments.end_with_input, &runtime);
    let patience = Duration::from_secs(arguments.patience);
    runtime.block_on(async {
        // As the first process of a container we would ignore it otherwise.
        let mut terminated = signal(SignalKind::terminate())?;
        let ending = async {
            tokio::select! {
                () = sessions.over(patience), if arguments.end_with_session => {}
                _ = end => {}
                _ = terminated.recv() => {}
            }
        };
        let serving = serve(arguments, &agent, &proof, &sessions);
        until_the_end(serving, ending, agent.end()).await
    })
}

/// However the end comes, what others have through us is given back before it. The order is what matters here.
async fn until_the_end(
    serving: impl Future<Output = Result<()>>,
    ending: impl Future<Output = ()>,
    giving_back: impl Future<Output = ()>,
) -> Result<()> {
    tokio::select! {
        result = serving => result?,
        () = ending => {}
    }
    let _ = timeout(ENDS_WITHIN, giving_back).await;
    Ok(())
}

impl AgentArguments {
    fn proof(&self) -> Result<Proof> {
        if let Some(client) = self.client_certificate {
            let ended_by = self.ended_by_certificate;
            return Ok(Proof::Certificate { client, ended_by });
        }
        let token = env::var(TOKEN)
            .with_context(|| format!("{TOKEN} is not set: it is the secret that clients show"))?;
        let tls = self.tls;
        Ok(Proof::Token { token, tls })
    }
}

fn read_grant(text: &str) -> Result<Grant, serde_json::Error> {
    serde_json::from_str(text)
}

fn start_log(level: LevelFilter) {
    // What others log may contain what the target and its clients say.
    let ours = ["agent", "link", "protocol", "splitter", "standind"].map(|name| (name, level));
    let others = level.min(LevelFilter::WARN);
    tracing_subscriber::registry()
        .with(
            tracing_subscriber::fmt::layer()
                .with_writer(std::io::stderr)
                .with_ansi(false),
        )
        .with(Targets::new().with_default(others).with_targets(ours))
        .init();
}

/// Is there when standard input is closed, if that is asked for.
fn end_of_input(wanted: bool, runtime: &Runtime) -> oneshot::Receiver<()> {
    let (ended, end) = oneshot::channel();
    if wanted {
        thread::spawn(move || {
            let _ = std::io::stdin().read(&mut [0]);
            let _ = ended.send(());
        });
    } else {
        // Never sent: the agent serves until it is stopped.
        runtime.spawn(async move {
            std::future::pending::<()>().await;
            let _ = ended.send(());
        });
    }
    end
}

/// Where there is no IPv6, all addresses are those of IPv4.
async fn listen(address: SocketAddr) -> Result<TcpListener> {
    let is_taken = |error: &std::io::Error| error.kind() == std::io::ErrorKind::AddrInUse;
    let listening = match TcpListener::bind(address).await {
        Err(error) if address.ip() == Ipv6Addr::UNSPECIFIED && !is_taken(&error) => {
            TcpListener::bind((Ipv4Addr::UNSPECIFIED, address.port())).await
        }
        listening => listening,
    };
    listening.with_context(|| format!("cannot listen on {address}"))
}

async fn serve(
    arguments: &AgentArguments,
    agent: &Agent,
    proof: &Proof,
    sessions: &Sessions,
) -> Result<()> {
    agent.check().await?;
    let settings = ServerSettings {
        longest_resume_window: Duration::from_secs(arguments.resume_window),
        ..ServerSettings::default()
    };
    let door = Door::open(arguments.listen, proof, settings).await?;
    let address = door.address;
    match door.certificate {
        None => println!("listening on {address}"),
        Some(certificate) => println!("listening on {address} with certificate {certificate}"),
    }
    serve_at(&door, agent, sessions, &CancellationToken::new()).await
}

/// Serves whoever arrives, until one comes who may end it. What was begun goes on until `over`.
async fn serve_at(
    door: &Door,
    agent: &Agent,
    sessions: &Sessions,
    over: &CancellationToken,
) -> Result<()> {
    // From a connection that came to end the agent to here.
    let (end, mut ends) = mpsc::channel(1);
    loop {
        let arrival = tokio::select! {
            arrival = door.next() => arrival,
            _ = ends.recv() => {
                tracing::info!("told to end");
                return Ok(());
            }
        };
        let (agent, sessions, end) = (agent.clone(), sessions.clone(), end.clone());
        let from = arrival.from;
        let serving = async move {
            let purpose = match arrival.purpose().await {
                Ok(purpose) => purpose,
                // Anybody in the network may come and be sent away, as often as he likes.
                Err(error) => {
                    tracing::debug!(error = format!("{error:#}"), %from, "somebody was not let in");
                    return;
                }
            };
            if let Err(error) = serve_client(purpose, &agent, &sessions, end).await {
                tracing::warn!(error = format!("{error:#}"), %from, "a connection ended");
            }
        };
        tokio::spawn(over.clone().run_until_cancelled_owned(serving));
    }
}

async fn serve_client(
    purpose: Purpose,
    agent: &Agent,
    sessions: &Sessions,
    end: mpsc::Sender<()>,
) -> Result<()> {
    match purpose {
        Purpose::Session(link) => {
            let _running = sessions.begin();
            serve_session(link, agent).await
        }
        Purpose::Continuation => Ok(()),
        Purpose::Orders(pipe) => orders::follow(*pipe, agent, end).await,
    }
}

/// Sessions may do this from now on. Whoever cannot understand it must not go on: he would not know what is forbidden.
async fn regrant(agent: &Agent, grant: serde_json::Value) -> Result<()> {
    let grant =
        serde_json::from_value(grant).context("what sessions may do cannot be understood")?;
    if agent.regrant(&grant).await? {
        tracing::info!("what sessions may do has changed");
    }
    Ok(())
}

async fn serve_session(link: Link, agent: &Agent) -> Result<()> {
    let mut status = link.status();
    let reachable = watch_link(&link);
    let served = agent.serve_connection_while(link, reachable).await;
    // It is known a moment later how the link itself ended.
    let is_over = |status: &Status| matches!(status, Status::Finished | Status::Failed(_));
    if served.is_err()
        && let Ok(ending) = status.wait_for(is_over).await
        && let Status::Failed(LinkError::Aborted(reason)) = &*ending
    {
        // That a client goes is how sessions end.
        tracing::info!(%reason, "a client has gone");
        return Ok(());
    }
    served.context("the session")
}

/// Whether there is a connection under the link at the moment.
fn watch_link(link: &Link) -> Reachable {
    let (presence, reachable) = watch::channel(Presence::Here);
    let mut status = link.status();
    let window = link.resume_window();
    tokio::spawn(async move {
        // Until the link is gone, and everything that could ask with it.
        while status.changed().await.is_ok() {
            let until = match *status.borrow_and_update() {
                Status::Connected => {
                    presence.send_replace(Presence::Here);
                    continue;
                }
                Status::Reconnecting { since, .. } => Instant::from_std(since) + window,
                Status::Finished | Status::Failed(_) => Instant::now(),
            };
            presence.send_replace(Presence::AwayUntil(until));
        }
    });
    Reachable::new(reachable)
}

#[cfg(test)]
mod tests {
    use std::cell::Cell;
    use std::future::{pending, ready};

    use super::*;

    #[tokio::test]
    async fn traffic_is_given_back_whoever_ends_the_agent() {
        let given_back = Cell::new(0);
        let giving_back = async || given_back.set(given_back.get() + 1);
        until_the_end(ready(Ok(())), pending(), giving_back())
            .await
            .unwrap();
        assert_eq!(given_back.get(), 1, "told to end by a certificate");
        until_the_end(pending(), ready(()), giving_back())
            .await
            .unwrap();
        assert_eq!(given_back.get(), 2, "told by a signal");
        let failed = until_the_end(ready(Err(anyhow::anyhow!("no"))), pending(), giving_back());
        assert!(failed.await.is_err());
    }
}
