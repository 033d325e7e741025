//! `standin ui`: shows the sessions of this machine in a browser.
//!
//! | module | what it does |
//! |---|---|
//! | `follow`, `hub` | find the sessions, follow their events, and publish them to all browsers |
//! | `rest`, `websocket` | the HTTP API and the event stream of the page |
//! | `guard`, `peer` | authenticate requests |
//! | `operator` | whether the user's cluster has an operator |
//! | `assets`, `dev` | the page: built in, or from a development server |
//! | `open`, `replay` | open the browser; read recordings |

mod assets;
mod dev;
mod follow;
mod guard;
mod hub;
mod open;
mod operator;
mod peer;
mod replay;
mod rest;
mod websocket;

use std::net::{Ipv4Addr, SocketAddr};
use std::path::PathBuf;
use std::process::ExitCode;
use std::sync::Arc;

use anyhow::{Context, Result};
use axum::Router;
use axum::middleware::from_fn_with_state;
use axum::routing::{any, get, post};
use clap::Args;
use tokio::net::TcpListener;

use self::guard::Guard;
use self::hub::Hub;
use self::operator::OperatorCache;
use crate::sessions::{SessionsDir, runtime};

/// The default port, unless it is in use.
const PORT: u16 = 59281;
/// The default address of the development server.
const VITE: &str = "http://localhost:5173";

const EXAMPLES: &str = "\
Examples:
  standin ui
  standin ui --no-open --port 8080

  # show a recording of `standin exec --record session.jsonl -- COMMAND`
  standin ui --replay session.jsonl";

#[derive(Debug, Args)]
#[command(after_help = EXAMPLES)]
pub(crate) struct UiArguments {
    /// Do not open a browser; the address is printed
    #[arg(long)]
    no_open: bool,
    /// The port on localhost. The default is 59281, or a free port if that is in use
    #[arg(long, value_name = "PORT")]
    port: Option<u16>,
    #[command(flatten)]
    sessions_dir: SessionsDir,
    /// Show the values of the target's environment variables, which may be secrets
    #[arg(long)]
    show_env_values: bool,
    /// Also show a recording of `standin exec --record`
    #[arg(long, value_name = "FILE")]
    replay: Vec<PathBuf>,
    /// Serve the page from a development server (`npm run dev` in web/monitor)
    #[arg(long, value_name = "URL", num_args = 0..=1, default_missing_value = VITE)]
    dev: Option<String>,
}

/// The state of all requests.
#[derive(Debug, Clone)]
struct Shared {
    hub: Arc<Hub>,
    guard: Arc<Guard>,
    operator: Arc<OperatorCache>,
    dev: Option<Arc<str>>,
}

pub(crate) fn run(arguments: &UiArguments) -> Result<ExitCode> {
    let folder = arguments.sessions_dir.folder()?;
    folder.create()?;
    let recordings = arguments
        .replay
        .iter()
        .map(|file| replay::read(file))
        .collect::<Result<Vec<_>>>()?;
    runtime()?.block_on(async {
        let listener = listen(arguments.port).await?;
        let address = listener.local_addr()?;
        let hub = Arc::new(Hub::new(arguments.show_env_values));
        for recording in recordings {
            hub.add_recording(recording);
        }
        follow::start(Arc::clone(&hub), folder.clone());
        let guard = Guard::new(address, arguments.dev.is_some());
        println!("Session Monitor: {}", guard.url());
        if assets::is_missing() && arguments.dev.is_none() {
            eprintln!("standin: this build has no page: run `cargo xtask web` and build again. The API works without it");
        }
        if !arguments.no_open {
            open::browser(&guard.url_with_code(), guard.url());
        }
        let shared = Shared {
            hub,
            guard: Arc::new(guard),
            operator: Arc::new(OperatorCache::new()),
            dev: arguments.dev.as_deref().map(Arc::from),
        };
        let service = router(shared).into_make_service_with_connect_info::<SocketAddr>();
        tokio::select! {
            served = axum::serve(listener, service) => served.context("the server has failed"),
            () = open::termination() => Ok(()),
        }
    })?;
    Ok(ExitCode::SUCCESS)
}

/// Listens on this machine only.
async fn listen(port: Option<u16>) -> Result<TcpListener> {
    let bind = |port| TcpListener::bind((Ipv4Addr::LOCALHOST, port));
    let listener = match port {
        Some(port) => bind(port).await,
        None => match bind(PORT).await {
            Err(_) => bind(0).await,
            listener => listener,
        },
    };
    let port = port.unwrap_or_default();
    listener.with_context(|| format!("port {port} is not available; choose another with --port"))
}

fn router(shared: Shared) -> Router {
    Router::new()
        .route("/api/sessions", get(rest::list))
        .route("/api/sessions/{id}", get(rest::detail))
        .route("/api/sessions/{id}/kill", post(rest::kill))
        .route("/api/version", get(rest::version))
        .route("/ws", any(websocket::all))
        .route("/ws/{id}", any(websocket::one))
        .fallback(get(assets::serve))
        .layer(from_fn_with_state(shared.clone(), guard::check))
        .with_state(shared)
}
