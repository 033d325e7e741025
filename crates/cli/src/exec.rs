//! `standin exec`: runs a session, from the settings to the exit code.
//!
//! | module | what it does |
//! |---|---|
//! | `arguments`, `settings`, `magic` | the command line, and the settings of the session |
//! | `target`, `podman` | targets of this machine |
//! | `agent` | the agents of the session: existing, local, in a cluster, or through an operator |
//! | `environment`, `signals`, `exit_status` | the program: its variables, signals and exit status |
//! | `progress`, `notices`, `terminal`, `log` | messages to the user, and the log |
//! | `holder` | the name of the session for other users who want the same traffic |
//! | `local_api` | the socket by which the session can be monitored, recorded and ended |

mod agent;
mod arguments;
mod environment;
mod exit_status;
mod holder;
mod local_api;
mod log;
mod magic;
mod notices;
pub(crate) mod podman;
mod progress;
pub(crate) mod settings;
mod signals;
mod target;
mod terminal;

use std::path::Path;
use std::process::{ExitCode, ExitStatus};
use std::sync::Arc;

use anyhow::{Context, Result, anyhow};
use config::{Resolved, Settings};
use proxy::{EventSink, Launch, Monitor, Session};

pub(crate) use agent::{access, coordinated_clusters, program as agent_program};
pub(crate) use arguments::{AccessFlags, ClusterFlags, ExecArguments};
pub(crate) use progress::{Progress, colors};

use agent::{AccessPath, AgentProvider, ClusterAgents};
use local_api::{LocalApi, SessionDetails};
use log::Verbosity;
use magic::Magic;
use signals::SignalForwarder;
use target::LocalTarget;

pub(crate) fn run(arguments: &ExecArguments) -> Result<ExitCode> {
    let progress = Progress::new(arguments.quiet);
    let result = match arguments.print_config {
        true => print_config(arguments, &progress).map(|()| None),
        false => run_session(arguments, &progress).map(Some),
    };
    // Errors replace the progress line.
    progress.clear();
    // This may raise a signal that ends the process at once, so all resources of the session must be released before.
    Ok(result?.map_or(ExitCode::SUCCESS, exit_status::exit_like))
}

fn print_config(arguments: &ExecArguments, progress: &Progress) -> Result<()> {
    let mut resolved = load_settings(arguments, progress)?;
    magic::add_preview(&mut resolved, &arguments.command);
    print!("{}", settings::describe(&resolved));
    Ok(())
}

fn load_settings(arguments: &ExecArguments, progress: &Progress) -> Result<Resolved> {
    let mut resolved = settings::load(arguments, progress)?;
    let settings = &resolved.settings;
    if arguments.agent.address.is_none()
        && local_target(settings).is_none()
        && agent::ensure_cluster_intended(settings).is_ok()
        && agent::is_targetless(settings)
    {
        resolved.remove_target();
    }
    Ok(resolved)
}

/// Returns the exit status of the program.
fn run_session(arguments: &ExecArguments, progress: &Progress) -> Result<ExitStatus> {
    let verbosity = Verbosity(arguments.verbose);
    if let Some(log) = log::start(verbosity, arguments.log_file.clone())? {
        progress.note(&format!("the log is {}", log.display()));
    }
    proxy::check()?;
    progress.step("reading the configuration");
    let mut resolved = load_settings(arguments, progress)?;
    let (has_api, recording) = (resolved.settings.api, arguments.record.as_deref());
    let monitor = local_api::monitor(has_api, recording.is_some());
    let (program, rest) = arguments.command.split_first().context("name a program")?;
    // Forks before there are threads and much memory, because both make a fork slow.
    let prepared = Launch::new(program).arguments(rest).prepare()?;
    let runtime = tokio::runtime::Builder::new_multi_thread()
        .worker_threads(link::worker_threads())
        .enable_all()
        .build()
        .context("the runtime does not start")?;
    runtime.spawn(progress.clone().print_collected());
    let chosen = choose_agents(arguments, &resolved.settings, verbosity, progress);
    let (agents, target) = runtime.block_on(chosen)?;
    let started = start(&agents, &mut resolved, arguments, &monitor, progress);
    let started = runtime.block_on(started);
    // Resources of magic live as long as the session.
    let (session, _magic) = started.inspect_err(|_| runtime.block_on(agents.end()))?;
    let local_api = LocalApi::start(
        runtime.handle(),
        details(arguments, &agents, &target),
        &resolved.effective(),
        monitor,
        has_api,
        recording,
        progress,
    );
    let local_api = local_api.inspect_err(|_| runtime.block_on(agents.end()))?;
    let variables = session.environment(environment::own());
    let variables = environment::without_oversized(variables, |text| progress.warn(text));
    // From here on the terminal belongs to the program.
    progress.finish(&agents.describe(&target));
    let signals = SignalForwarder::start()?;
    let session = Arc::new(session);
    let mut supervised = prepared.start(variables, Arc::<Session>::clone(&session))?;
    let signaller = supervised
        .signaller()
        .map_err(|errno| anyhow!("the program cannot be signalled: {errno}"))?;
    signals.forward_to(signaller, supervised.process());
    if let Ok(signaller) = supervised.signaller() {
        let _on_runtime = runtime.enter();
        local_api.program_started(signaller, supervised.process());
    }
    let status = supervised.wait().context("cannot wait for the program")?;
    tracing::info!(%status, "program exited");
    drop(supervised);
    session.end();
    progress.print_all_collected();
    runtime.block_on(local_api.end());
    runtime.block_on(agents.end());
    runtime.shutdown_background();
    Ok(status)
}

/// The agents, and the target as the user named it.
async fn choose_agents(
    arguments: &ExecArguments,
    settings: &Settings,
    verbosity: Verbosity,
    progress: &Progress,
) -> Result<(AgentProvider, String)> {
    if let Some(agents) = AgentProvider::existing(&arguments.agent)? {
        let address = arguments.agent.address.as_deref().unwrap_or_default();
        return Ok((agents, format!("the target of the agent at {address}")));
    }
    if let Some(target) = local_target(settings) {
        let name = target.to_string();
        return Ok((AgentProvider::local(target, verbosity, progress), name));
    }
    agent::ensure_cluster_intended(settings)?;
    let cluster = agent::connect_cluster(settings).await?;
    match agent::choose_access_path(settings, &cluster, progress).await? {
        AccessPath::Operator(agents) => {
            let name = agents.target().to_owned();
            Ok((AgentProvider::Operator(agents), name))
        }
        AccessPath::Direct => {
            let agents = ClusterAgents::new(settings, cluster, progress)?;
            let name = agents.to_string();
            Ok((AgentProvider::Cluster(Arc::new(agents)), name))
        }
    }
}

fn local_target(settings: &Settings) -> Option<LocalTarget> {
    LocalTarget::of(settings.target.as_ref()?.path.as_ref()?)
}

/// The description of the session for its local API.
fn details(arguments: &ExecArguments, agents: &AgentProvider, target: &str) -> SessionDetails {
    let config_path = arguments.config_file.clone();
    let config_path = config_path.or_else(|| {
        let found = settings::discover(Path::new(""), |_| {});
        found.ok().flatten()
    });
    SessionDetails {
        id: agents.session_id().unwrap_or_else(local_api::new_id),
        target: target.to_owned(),
        command: arguments.command.clone(),
        config_path: config_path.map(|path| path.canonicalize().unwrap_or(path)),
        agents: agents.clone(),
    }
}

async fn start(
    agents: &AgentProvider,
    resolved: &mut Resolved,
    arguments: &ExecArguments,
    monitor: &Monitor,
    progress: &Progress,
) -> Result<(Session, Magic)> {
    let env_file = settings::env_file(&resolved.settings)?;
    let surroundings = settings::surroundings(&arguments.command);
    let first = agents.connect_first(event_sink(progress, monitor)).await?;
    let magic = Magic::add(resolved, &surroundings, first.mounts().collect());
    progress.step("reading the environment");
    let holder = holder::holder(&arguments.command);
    let (settings, monitor) = (&resolved.settings, monitor.clone());
    let session = Session::start(first, monitor, holder, settings, &env_file, &surroundings);
    Ok((session.await?, magic))
}

/// Records events of the session and shows them to the user.
fn event_sink(progress: &Progress, monitor: &Monitor) -> EventSink {
    let (progress, monitor) = (progress.clone(), monitor.clone());
    Arc::new(move |event| {
        monitor.record_event(event);
        progress.event(event);
    })
}
