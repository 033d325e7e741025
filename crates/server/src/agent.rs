//! `standind agent`: serves one target to whoever knows the token, over links that survive the network.

mod tls;

use std::io::Read as _;
use std::net::SocketAddr;
use std::time::Duration;
use std::{env, thread};

use ::agent::{Agent, Reachable, enter_user_namespace_of, raise_descriptor_limit};
use anyhow::{Context, Result};
use clap::Args;
use link::tls::TlsAcceptor;
use link::{
    Accepted, Link, LinkError, LinkServer, Pipe, ServerSettings, SharedToken, Status, Token,
};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::{oneshot, watch};
use tokio::time::{sleep, timeout};
use tracing_subscriber::filter::{LevelFilter, Targets};
use tracing_subscriber::layer::SubscriberExt as _;
use tracing_subscriber::util::SubscriberInitExt as _;

/// The secret that clients show. In the environment, because arguments are seen by everyone on the machine.
const TOKEN: &str = "STANDIN_AGENT_TOKEN";

/// Before the next connection is accepted, when one could not be.
const PAUSE: Duration = Duration::from_millis(100);
/// How long a client may take to speak TLS.
const TLS_PATIENCE: Duration = Duration::from_secs(10);
/// How long connections may take that others have through us. Whoever started us waits for our end.
const ENDS_WITHIN: Duration = Duration::from_millis(1500);

#[derive(Debug, Args)]
pub(crate) struct AgentArguments {
    /// The target: a process of this machine
    #[arg(long, value_name = "PID")]
    process: u32,
    /// Where to listen; port 0 is any
    #[arg(long, value_name = "ADDRESS", default_value = "127.0.0.1:0")]
    listen: SocketAddr,
    /// Speak TLS, with a certificate of this run alone, whose SHA-256 is printed
    #[arg(long)]
    tls: bool,
    /// How much is said on standard error: off, error, warn, info, debug or trace
    #[arg(long, value_name = "LEVEL", default_value = "info")]
    log: LevelFilter,
    /// End when standard input is closed, which is when whoever started the agent is gone
    #[arg(long)]
    end_with_input: bool,
}

pub(crate) fn run(arguments: &AgentArguments) -> Result<()> {
    // What others log may contain what the target and its clients say.
    let ours =
        ["agent", "link", "protocol", "splitter", "standind"].map(|name| (name, arguments.log));
    let others = arguments.log.min(LevelFilter::WARN);
    tracing_subscriber::registry()
        .with(
            tracing_subscriber::fmt::layer()
                .with_writer(std::io::stderr)
                .with_ansi(false),
        )
        .with(Targets::new().with_default(others).with_targets(ours))
        .init();
    raise_descriptor_limit().context("the limit of open files cannot be raised")?;
    let token = env::var(TOKEN)
        .with_context(|| format!("{TOKEN} is not set: it is the secret that clients show"))?;
    // Before the runtime: it may only be done while there is one thread.
    enter_user_namespace_of(arguments.process)?;
    let agent = Agent::for_process_with_token(arguments.process, token.clone())?;
    let runtime = tokio::runtime::Builder::new_multi_thread()
        .worker_threads(link::worker_threads())
        .enable_all()
        .build()
        .context("the runtime does not start")?;
    let (ended, end) = oneshot::channel();
    if arguments.end_with_input {
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
    runtime.block_on(async {
        tokio::select! {
            result = serve(arguments, &agent, &token) => result,
            _ = end => {
                let _ = timeout(ENDS_WITHIN, agent.end()).await;
                Ok(())
            }
        }
    })
}

async fn serve(arguments: &AgentArguments, agent: &Agent, token: &str) -> Result<()> {
    agent.check().await?;
    let listen = arguments.listen;
    let listener = TcpListener::bind(listen)
        .await
        .with_context(|| format!("cannot listen on {listen}"))?;
    let address = listener.local_addr()?;
    let tls = arguments.tls.then(tls::acceptor).transpose()?;
    match &tls {
        None => println!("listening on {address}"),
        Some((_, certificate)) => {
            println!("listening on {address} with certificate {certificate}");
        }
    }
    let server = LinkServer::new(
        ServerSettings::default(),
        SharedToken(Token::new(token.as_bytes())?),
    );
    loop {
        let (pipe, from) = match listener.accept().await {
            Ok(accepted) => accepted,
            // No descriptor is left, or the client is gone already. Both pass, and sessions go on meanwhile.
            Err(error) => {
                tracing::warn!(%error, "a connection could not be accepted");
                sleep(PAUSE).await;
                continue;
            }
        };
        let (server, agent) = (server.clone(), agent.clone());
        let acceptor = tls.as_ref().map(|(acceptor, _)| acceptor.clone());
        tokio::spawn(async move {
            if let Err(error) = serve_connection(&server, &agent, acceptor, pipe).await {
                tracing::warn!(error = format!("{error:#}"), %from, "a connection ended");
            }
        });
    }
}

async fn serve_connection(
    server: &LinkServer<SharedToken>,
    agent: &Agent,
    acceptor: Option<TlsAcceptor>,
    connection: TcpStream,
) -> Result<()> {
    link::set_tcp_options(&connection)?;
    let Some(acceptor) = acceptor else {
        return serve_pipe(server, agent, connection).await;
    };
    let pipe = timeout(TLS_PATIENCE, acceptor.accept(connection))
        .await
        .context("the client is silent")?
        .context("no TLS")?;
    serve_pipe(server, agent, pipe).await
}

async fn serve_pipe(
    server: &LinkServer<SharedToken>,
    agent: &Agent,
    pipe: impl Pipe,
) -> Result<()> {
    match server.accept(pipe).await.context("refused")? {
        Accepted::New(link) => {
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
        _ => {
            tracing::debug!("a session continues");
            Ok(())
        }
    }
}

/// Whether there is a connection under the link at the moment.
fn watch_link(link: &Link) -> Reachable {
    let (is_connected, reachable) = watch::channel(true);
    let mut status = link.status();
    tokio::spawn(async move {
        // Until the link is gone, and everything that could ask with it.
        while status.changed().await.is_ok() {
            let connected = matches!(*status.borrow_and_update(), Status::Connected);
            is_connected.send_replace(connected);
        }
    });
    Reachable::new(reachable)
}
