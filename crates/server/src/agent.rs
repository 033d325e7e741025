//! `standind agent`: serves one target to its authenticated client, over links that survive network failures.

mod listener;
pub(crate) mod node;
mod operator_listener;
mod operator_requests;
mod port_reports;
mod sessions;

use std::future::Future;
use std::io::Read as _;
use std::net::SocketAddr;
use std::time::Duration;
use std::{env, thread};

use ::agent::{
    Agent, ClientReachability, Memory, ReachabilityWatch, enter_user_namespace_of,
    process_of_container,
};
use admission::{Admission, raise_descriptor_limit};
use anyhow::{Context, Result};
use clap::Args;
use link::tls::{Fingerprint, Identity, acceptor_for_clients};
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

use listener::{AgentListener, ClientAuth, ConnectionPurpose, LIMITS};
use operator_listener::OperatorListener;
use sessions::Sessions;

/// The secret that clients present. In the environment, because all users of the machine can see arguments.
const TOKEN: &str = "STANDIN_AGENT_TOKEN";
/// How long the agent restores redirected traffic when it ends. The process that started the agent waits for its exit.
const SHUTDOWN_TIMEOUT: Duration = Duration::from_millis(1500);

#[derive(Debug, Args)]
pub(crate) struct AgentArguments {
    #[command(flatten)]
    target: TargetArguments,
    /// The address to listen on; port 0 picks a free one
    #[arg(long, value_name = "ADDRESS", default_value = "127.0.0.1:0")]
    listen: SocketAddr,
    /// Use TLS, with a certificate for this run only, whose SHA-256 is printed
    #[arg(long)]
    tls: bool,
    /// Use TLS and accept only the client with the certificate of this SHA-256, instead of a token
    #[arg(long, value_name = "SHA256")]
    client_certificate: Option<Fingerprint>,
    /// Accept requests of the operator, which has the certificate with this SHA-256: to end, and to change the grant
    #[arg(long, value_name = "SHA256", requires_all = ["client_certificate", "listen_for_operator"])]
    ended_by_certificate: Option<Fingerprint>,
    /// The address to listen on for requests of the operator
    #[arg(long, value_name = "ADDRESS", requires = "ended_by_certificate")]
    listen_for_operator: Option<SocketAddr>,
    /// The log level on standard error: off, error, warn, info, debug or trace
    #[arg(long, value_name = "LEVEL", default_value = "info")]
    log: LevelFilter,
    /// The longest time that a client may be disconnected before its session ends
    #[arg(long, value_name = "SECONDS", default_value = "600")]
    resume_window: u64,
    /// End when standard input is closed, that is, when the parent process has ended
    #[arg(long)]
    end_with_input: bool,
    /// End when the session ends, or when none begins in time
    #[arg(long)]
    end_with_session: bool,
    /// The grant, as JSON: what sessions may do, regardless of what their client requests
    #[arg(long, value_name = "JSON", requires = "client_certificate", value_parser = read_grant)]
    grant: Option<Grant>,
    /// How long to wait for a session to begin
    #[arg(
        long,
        value_name = "SECONDS",
        default_value = "60",
        requires = "end_with_session"
    )]
    startup_timeout: u64,
    /// How much the agent may buffer for clients and sessions, in MiB
    #[arg(long, value_name = "MIB", default_value_t = 64)]
    buffer_memory: usize,
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
    /// No target: the agent's own files and network
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
    let auth = arguments.client_auth()?;
    let process = arguments.target.process()?;
    // Before the runtime starts: it is only allowed while the process has one thread.
    enter_user_namespace_of(process)?;
    let agent = match &arguments.grant {
        Some(grant) => Agent::for_process_with_grant(process, grant)?,
        None => Agent::for_process_with_token(process, auth.token())?,
    };
    let agent = agent.with_memory(Memory::of_mebibytes(arguments.buffer_memory));
    let runtime = tokio::runtime::Builder::new_multi_thread()
        .worker_threads(link::worker_threads())
        .enable_all()
        .build()
        .context("the runtime does not start")?;
    let sessions = Sessions::default();
    let input_end = end_of_input(arguments.end_with_input, &runtime);
    let startup_timeout = Duration::from_secs(arguments.startup_timeout);
    runtime.block_on(async {
        // The first process of a container ignores the signal unless it has a handler.
        let mut terminated = signal(SignalKind::terminate())?;
        let shutdown = async {
            tokio::select! {
                () = sessions.ended(startup_timeout), if arguments.end_with_session => {}
                _ = input_end => {}
                _ = terminated.recv() => {}
            }
        };
        let serving = serve(arguments, &agent, &auth, &sessions);
        serve_until(serving, shutdown, agent.end()).await
    })
}

/// Serves until `shutdown` or until serving ends by itself, and restores redirected traffic after it in both cases.
async fn serve_until(
    serving: impl Future<Output = Result<()>>,
    shutdown: impl Future<Output = ()>,
    restore: impl Future<Output = ()>,
) -> Result<()> {
    tokio::select! {
        result = serving => result?,
        () = shutdown => {}
    }
    let _ = timeout(SHUTDOWN_TIMEOUT, restore).await;
    Ok(())
}

impl AgentArguments {
    /// The listener for the operator, with a certificate for this run only.
    async fn operator_listener(&self) -> Result<Option<OperatorListener>> {
        let arguments = self.listen_for_operator.zip(self.ended_by_certificate);
        let Some((listen, operator)) = arguments else {
            return Ok(None);
        };
        let identity = Identity::generate().context("cannot generate a certificate")?;
        let acceptor = acceptor_for_clients(&identity, &[operator])?;
        Ok(Some(OperatorListener::bind(listen, acceptor).await?))
    }

    fn client_auth(&self) -> Result<ClientAuth> {
        if let Some(client) = self.client_certificate {
            return Ok(ClientAuth::Certificate(client));
        }
        let token = env::var(TOKEN).with_context(|| {
            format!("{TOKEN} is not set: it is the secret that clients present")
        })?;
        let tls = self.tls;
        Ok(ClientAuth::Token { token, tls })
    }
}

fn read_grant(text: &str) -> Result<Grant, serde_json::Error> {
    serde_json::from_str(text)
}

fn start_log(level: LevelFilter) {
    // Logs of dependencies may contain data of the target and its clients.
    let ours = [
        "admission",
        "agent",
        "link",
        "protocol",
        "splitter",
        "standind",
    ]
    .map(|name| (name, level));
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

/// Resolves when standard input is closed, if `enabled`, and never otherwise.
fn end_of_input(enabled: bool, runtime: &Runtime) -> oneshot::Receiver<()> {
    let (ended, end) = oneshot::channel();
    if enabled {
        thread::spawn(move || {
            let _ = std::io::stdin().read(&mut [0]);
            let _ = ended.send(());
        });
    } else {
        // The sender is kept and never used: the agent serves until it is stopped.
        runtime.spawn(async move {
            std::future::pending::<()>().await;
            let _ = ended.send(());
        });
    }
    end
}

async fn listen(address: SocketAddr) -> Result<TcpListener> {
    let listening = admission::listen(address).await;
    listening.with_context(|| format!("cannot listen on {address}"))
}

async fn serve(
    arguments: &AgentArguments,
    agent: &Agent,
    auth: &ClientAuth,
    sessions: &Sessions,
) -> Result<()> {
    agent.check().await?;
    let settings = ServerSettings {
        max_resume_window: Duration::from_secs(arguments.resume_window),
        ..ServerSettings::default()
    };
    // Before the other listener: an agent that its client can reach obeys the operator already.
    let operator_listener = arguments.operator_listener().await?;
    let admission = Admission::new(LIMITS);
    let listener = AgentListener::bind(arguments.listen, auth, settings, admission).await?;
    let address = listener.address;
    match listener.certificate {
        None => println!("listening on {address}"),
        Some(certificate) => println!("listening on {address} with certificate {certificate}"),
    }
    let cancelled = CancellationToken::new();
    tokio::select! {
        () = serve_listener(&listener, agent, sessions, &cancelled) => {}
        () = serve_operator(operator_listener, agent) => {
            tracing::info!("shutdown requested by operator");
        }
    }
    Ok(())
}

/// Serves the operator until it requests the end. Without a listener for it, this never returns.
async fn serve_operator(listener: Option<OperatorListener>, agent: &Agent) {
    let Some(listener) = listener else {
        return std::future::pending().await;
    };
    // From an operator's connection to this function.
    let (end, mut ends) = mpsc::channel(1);
    let agent = agent.clone();
    let handle = move |pipe| {
        let (agent, end) = (agent.clone(), end.clone());
        async move { operator_requests::handle(pipe, &agent, end).await }
    };
    tokio::select! {
        () = listener.serve(handle) => {}
        _ = ends.recv() => {}
    }
}

/// Serves the connections of clients, each until `cancelled`. It never returns.
async fn serve_listener(
    listener: &AgentListener,
    agent: &Agent,
    sessions: &Sessions,
    cancelled: &CancellationToken,
) {
    loop {
        let connection = listener.accept().await;
        let (agent, sessions) = (agent.clone(), sessions.clone());
        let peer = connection.peer;
        let serving = async move {
            let purpose = match connection.authenticate().await {
                Ok(purpose) => purpose,
                // Only at debug level: anyone in the network can connect and be rejected, any number of times.
                Err(error) => {
                    tracing::debug!(error = format!("{error:#}"), %peer, "unauthorized client rejected");
                    return;
                }
            };
            let ConnectionPurpose::Session(link) = purpose else {
                return;
            };
            let _guard = sessions.begin();
            if let Err(error) = serve_session(link, &agent).await {
                tracing::warn!(error = format!("{error:#}"), %peer, "connection failed");
            }
        };
        tokio::spawn(cancelled.clone().run_until_cancelled_owned(serving));
    }
}

/// Replaces the grant of the sessions. An agent that cannot parse it must fail: it would not know what is forbidden.
async fn regrant(agent: &Agent, grant: serde_json::Value) -> Result<()> {
    let grant = serde_json::from_value(grant).context("the grant cannot be parsed")?;
    if agent.regrant(&grant).await? {
        tracing::info!("grant updated");
    }
    Ok(())
}

async fn serve_session(link: Link, agent: &Agent) -> Result<()> {
    let mut status = link.status();
    let reachable = watch_link(&link);
    let served = agent.serve_resumable_connection(link, reachable).await;
    // The link reports the reason of its end a moment later.
    let has_ended = |status: &Status| matches!(status, Status::Finished | Status::Failed(_));
    if served.is_err()
        && let Ok(status) = status.wait_for(has_ended).await
        && let Status::Failed(LinkError::Aborted(reason)) = &*status
    {
        // No warning: this is the normal end of a session.
        tracing::info!(%reason, "client disconnected");
        return Ok(());
    }
    served.context("the session")
}

/// Tracks whether the link is connected at the moment.
fn watch_link(link: &Link) -> ReachabilityWatch {
    let (reachability, reachable) = watch::channel(ClientReachability::Connected);
    let mut status = link.status();
    let window = link.resume_window();
    tokio::spawn(async move {
        // Until the link is dropped, and all users of the result with it.
        while status.changed().await.is_ok() {
            let until = match *status.borrow_and_update() {
                Status::Connected => {
                    reachability.send_replace(ClientReachability::Connected);
                    continue;
                }
                Status::Reconnecting { since, .. } => Instant::from_std(since) + window,
                Status::Finished | Status::Failed(_) => Instant::now(),
            };
            reachability.send_replace(ClientReachability::DisconnectedUntil(until));
        }
    });
    ReachabilityWatch::new(reachable)
}

#[cfg(test)]
mod tests {
    use std::cell::Cell;
    use std::future::{pending, ready};

    use super::*;

    #[tokio::test]
    async fn redirected_traffic_is_restored_however_the_agent_ends() {
        let restored = Cell::new(0);
        let restore = async || restored.set(restored.get() + 1);
        serve_until(ready(Ok(())), pending(), restore())
            .await
            .unwrap();
        assert_eq!(restored.get(), 1, "ended by the operator");
        serve_until(pending(), ready(()), restore()).await.unwrap();
        assert_eq!(restored.get(), 2, "ended by a signal");
        let failed = serve_until(ready(Err(anyhow::anyhow!("no"))), pending(), restore());
        assert!(failed.await.is_err());
    }
}
