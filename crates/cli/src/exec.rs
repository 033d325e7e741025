//! `standin exec`: the story of a session, from the settings to the exit code.

mod agent;
mod arguments;
mod ending;
mod environment;
mod holder;
mod log;
mod magic;
mod notices;
pub(crate) mod podman;
mod progress;
pub(crate) mod settings;
mod signals;
mod target;
mod watch;

use std::path::Path;
use std::process::{ExitCode, ExitStatus};
use std::sync::Arc;

use anyhow::{Context, Result, anyhow};
use config::{FileMode, Resolved, Settings};
use proxy::{Launch, Monitor, Session, Tell};

pub(crate) use agent::{access, coordinated_clusters, program as agent_program};
pub(crate) use arguments::{ClusterFlags, ExecArguments, WayFlags};
pub(crate) use progress::{Progress, colors};

use agent::{Agent, InCluster, Way};
use log::Verbosity;
use magic::Magic;
use notices::Kind;
use signals::Caught;
use target::LocalTarget;
use watch::{About, Watch};

pub(crate) fn run(arguments: &ExecArguments) -> Result<ExitCode> {
    let progress = Progress::new(arguments.quiet);
    let result = match arguments.print_config {
        true => print_config(arguments, &progress).map(|()| None),
        false => run_session(arguments, &progress).map(Some),
    };
    // Errors are shown where the line of the progress was.
    progress.clear();
    // Of a signal we die at once, so whatever a session has here must be gone before that.
    Ok(result?.map_or(ExitCode::SUCCESS, ending::end_as))
}

fn print_config(arguments: &ExecArguments, progress: &Progress) -> Result<()> {
    let mut resolved = settings::load(arguments, progress)?;
    magic::add_what_is_known(&mut resolved, &arguments.command);
    print!("{}", settings::describe(&resolved));
    Ok(())
}

/// Answers how the program has ended.
fn run_session(arguments: &ExecArguments, progress: &Progress) -> Result<ExitStatus> {
    let verbosity = Verbosity(arguments.verbose);
    if let Some(log) = log::start(verbosity, arguments.log_file.clone())? {
        progress.note(&format!("the log is {}", log.display()));
    }
    proxy::check()?;
    progress.step("reading the configuration");
    let mut resolved = settings::load(arguments, progress)?;
    let (has_api, recording) = (resolved.settings.api, arguments.record.as_deref());
    let monitor = watch::monitor(has_api, recording.is_some());
    let (program, rest) = arguments.command.split_first().context("name a program")?;
    // Before there are threads and much memory, because both make a fork slow.
    let prepared = Launch::new(program).arguments(rest).prepare()?;
    let runtime = tokio::runtime::Builder::new_multi_thread()
        .worker_threads(link::worker_threads())
        .enable_all()
        .build()
        .context("the runtime does not start")?;
    let chosen = choose_agent(arguments, &mut resolved.settings, verbosity, progress);
    let (agent, target) = runtime.block_on(chosen)?;
    let started = start(&agent, &mut resolved, arguments, &monitor, progress);
    let started = runtime.block_on(started);
    // What magic has made lives as long as the session.
    let (session, _magic) = started.inspect_err(|_| runtime.block_on(agent.end()))?;
    let watch = Watch::start(
        runtime.handle(),
        about(arguments, &agent, &target),
        &resolved.effective(),
        monitor,
        has_api,
        recording,
        progress,
    );
    let watch = watch.inspect_err(|_| runtime.block_on(agent.end()))?;
    let variables = session.environment(environment::own());
    let variables = environment::that_fit(variables, |text| progress.say(text));
    // From here on the terminal is the program's.
    progress.finish(&agent.describe(&target));
    let signals = Caught::start()?;
    let session = Arc::new(session);
    let mut supervised = prepared.start(variables, Arc::<Session>::clone(&session))?;
    let signaller = supervised
        .signaller()
        .map_err(|errno| anyhow!("the program cannot be watched: {errno}"))?;
    signals.pass_on(signaller, supervised.process());
    if let Ok(signaller) = supervised.signaller() {
        let _on_runtime = runtime.enter();
        watch.started(signaller, supervised.process());
    }
    let status = supervised.wait().context("the program was lost")?;
    tracing::info!(%status, "the program has ended");
    drop(supervised);
    session.end();
    progress.say_what_was_left_out();
    runtime.block_on(watch.end());
    runtime.block_on(agent.end());
    runtime.shutdown_background();
    Ok(status)
}

/// The agent, and what the user calls the target.
async fn choose_agent(
    arguments: &ExecArguments,
    settings: &mut Settings,
    verbosity: Verbosity,
    progress: &Progress,
) -> Result<(Agent, String)> {
    if let Some(agent) = Agent::given(&arguments.agent)? {
        let address = arguments.agent.address.as_deref().unwrap_or_default();
        return Ok((agent, format!("the target of the agent at {address}")));
    }
    let target = settings.target.as_ref();
    if let Some(target) = target.and_then(|target| LocalTarget::of(target.path.as_ref()?)) {
        let name = target.to_string();
        return Ok((Agent::beside(target, verbosity, progress), name));
    }
    agent::ensure_meant(settings)?;
    if agent::is_targetless(settings) {
        // The agent has no files, and its name says nothing.
        settings.feature.fs.mode = FileMode::Local;
        settings.feature.hostname = false;
    }
    let cluster = agent::cluster_of(settings).await?;
    match agent::choose_way(settings, &cluster, progress).await? {
        Way::Operator(operator) => {
            let name = operator.target().to_owned();
            Ok((Agent::Operator(operator), name))
        }
        Way::Own => {
            let agent = InCluster::new(settings, cluster, progress)?;
            let name = agent.to_string();
            Ok((Agent::Cluster(Arc::new(agent)), name))
        }
    }
}

/// What the session's own words about itself are.
fn about(arguments: &ExecArguments, agent: &Agent, target: &str) -> About {
    let config_path = arguments.config_file.clone();
    let config_path = config_path.or_else(|| {
        let found = settings::discover(Path::new(""), |_| {});
        found.ok().flatten()
    });
    About {
        id: agent.session_id().unwrap_or_else(watch::new_id),
        target: target.to_owned(),
        command: arguments.command.clone(),
        config_path: config_path.map(|path| path.canonicalize().unwrap_or(path)),
        agent: agent.clone(),
    }
}

async fn start(
    agent: &Agent,
    resolved: &mut Resolved,
    arguments: &ExecArguments,
    monitor: &Monitor,
    progress: &Progress,
) -> Result<(Session, Magic)> {
    let env_file = settings::env_file(&resolved.settings)?;
    let surroundings = settings::surroundings(&arguments.command);
    let first = agent.first(tell(progress, monitor)).await?;
    let magic = Magic::add(resolved, &surroundings, first.mounts().collect());
    progress.step("reading the environment");
    let holder = holder::holder(&arguments.command);
    let (settings, monitor) = (&resolved.settings, monitor.clone());
    let session = Session::start(first, monitor, holder, settings, &env_file, &surroundings);
    Ok((session.await?, magic))
}

/// Shows the user what happens to the session.
fn tell(progress: &Progress, monitor: &Monitor) -> Tell {
    let (progress, monitor) = (progress.clone(), monitor.clone());
    Arc::new(move |event| {
        monitor.told(event);
        match Kind::of(event) {
            Some(kind) => progress.say_some(kind, &event.to_string()),
            None if event.is_reassuring() => progress.note(&event.to_string()),
            None => progress.report(&event.to_string()),
        }
    })
}
