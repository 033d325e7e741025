//! `standin exec`: the story of a session, from the settings to the exit code.

mod agent;
mod settings;

use std::env;
use std::ffi::OsString;
use std::os::unix::ffi::OsStringExt as _;
use std::os::unix::process::ExitStatusExt as _;
use std::path::PathBuf;
use std::process::{ExitCode, ExitStatus};
use std::sync::Arc;
use std::time::Instant;

use anyhow::{Context, Result, anyhow, bail};
use clap::Args;
use config::{Settings, Target};
use proxy::{Launch, Session};
use tokio::signal::unix::{SignalKind, signal};

use agent::{Agent, GivenAgent};

/// Examples:
///
///   standin exec -t process/4711 -- python3 server.py
///
///   standin exec -f standin.yaml -- npm start
#[derive(Debug, Args)]
#[command(verbatim_doc_comment)]
pub(crate) struct ExecArguments {
    /// What to stand in for: process/<pid>
    #[arg(short, long)]
    target: Option<String>,
    /// A configuration file: JSON, YAML or TOML
    #[arg(short = 'f', long = "config-file", value_name = "FILE")]
    config_file: Option<PathBuf>,
    #[command(flatten)]
    agent: GivenAgent,
    /// The program and its arguments
    #[arg(last = true, required = true, value_name = "COMMAND")]
    command: Vec<OsString>,
}

pub(crate) fn run(arguments: &ExecArguments) -> Result<ExitCode> {
    let started = Instant::now();
    let settings = settings::load(arguments)?;
    let runtime = tokio::runtime::Builder::new_multi_thread()
        .worker_threads(link::worker_threads())
        .enable_all()
        .build()
        .context("the runtime does not start")?;
    let agent = match Agent::given(&arguments.agent)? {
        Some(agent) => agent,
        None => start_agent(&settings)?,
    };
    let session = runtime.block_on(start_session(&agent, &settings, &arguments.command))?;
    let local = env::vars_os()
        .map(|(name, value)| (name.into_vec(), value.into_vec()))
        .collect();
    let environment = runtime.block_on(session.environment(local))?;
    let (program, rest) = arguments.command.split_first().context("name a program")?;
    let mut supervised = Launch::new(program)
        .arguments(rest)
        .environment(environment)
        .start(Arc::new(session))
        .with_context(|| format!("cannot run {}", program.display()))?;
    eprintln!(
        "standin: the session is up after {} ms",
        started.elapsed().as_millis()
    );
    let signaller = supervised
        .signaller()
        .map_err(|errno| anyhow!("the program cannot be watched: {errno}"))?;
    runtime.spawn(async move {
        // Ctrl-C reaches the program by itself, through the terminal. We live on to see how it ends.
        let (Ok(mut interrupt), Ok(mut terminate)) = (
            signal(SignalKind::interrupt()),
            signal(SignalKind::terminate()),
        ) else {
            return;
        };
        loop {
            tokio::select! {
                _ = interrupt.recv() => {}
                _ = terminate.recv() => { let _ = signaller.signal(libc::SIGTERM); }
            }
        }
    });
    let status = supervised.wait().context("the program was lost")?;
    drop(supervised);
    drop(agent);
    runtime.shutdown_background();
    Ok(exit_code(status))
}

fn start_agent(settings: &Settings) -> Result<Agent> {
    let target = settings.target.as_ref();
    match target.and_then(|target| target.path.as_ref()) {
        Some(Target::Process(pid)) => Agent::beside_process(*pid),
        Some(_) => bail!("only targets of the form process/<pid> work so far"),
        None => bail!("name a target: `standin exec -t process/<pid> -- COMMAND`"),
    }
}

async fn start_session(
    agent: &Agent,
    settings: &Settings,
    command: &[OsString],
) -> Result<Session> {
    let link = agent.connect().await?;
    let env_file = settings::env_file(settings)?;
    let surroundings = settings::surroundings(command);
    Ok(Session::start(link, agent.token(), settings, &env_file, &surroundings).await?)
}

/// As a shell tells it: the program's own code, or 128 and the signal that ended it.
fn exit_code(status: ExitStatus) -> ExitCode {
    let code = status
        .code()
        .or_else(|| status.signal().map(|signal| 128 + signal))
        .unwrap_or(1);
    ExitCode::from(u8::try_from(code).unwrap_or(1))
}
