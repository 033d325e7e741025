//! `standind-operator`: what `standind` becomes in the roles of the operator. Arguments to settings, and signals to the end.
#![allow(clippy::print_stderr, reason = "a program: stderr carries talk")]

use std::fs;
use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::time::Duration;

use anyhow::{Context, Result};
use clap::{Args, Parser, ValueEnum};
use operator::{
    AgentMode, AgentSettings, MemberAuthorization, MultiCluster, PodSettings, SessionSettings,
    Settings,
};
use tokio::signal::unix::{SignalKind, signal};
use tokio_util::sync::CancellationToken;
use tracing_subscriber::filter::{LevelFilter, Targets};
use tracing_subscriber::layer::SubscriberExt as _;
use tracing_subscriber::util::SubscriberInitExt as _;

/// The shortest time that a session waits for its client. A link takes so long to notice that a connection is dead.
const SHORTEST: u64 = 15;

#[derive(Debug, Parser)]
#[command(name = "standind", version, arg_required_else_help = true)]
enum Role {
    /// Serve sessions to everybody who may have them, through the cluster's API server
    Operator(Box<OperatorArguments>),
    /// Take the operator's API away and end its sessions, before it is removed
    OperatorUninstall,
}

#[derive(Clone, Copy, Debug, ValueEnum)]
enum Mode {
    Ephemeral,
    Pod,
    Node,
}

impl From<Mode> for AgentMode {
    fn from(mode: Mode) -> Self {
        match mode {
            Mode::Ephemeral => Self::Ephemeral,
            Mode::Pod => Self::Pod,
            Mode::Node => Self::Node,
        }
    }
}

#[derive(Debug, Args)]
struct OperatorArguments {
    /// The namespace in which the operator runs
    #[arg(long, value_name = "NAME")]
    namespace: String,
    /// The name of this replica, which is its pod's
    #[arg(long, value_name = "NAME")]
    replica: String,
    /// The Service in front of all replicas
    #[arg(long, value_name = "NAME", default_value = "mirrord-operator")]
    service: String,
    /// The Secret for the operator's certificates; it must be there, and may be empty
    #[arg(long, value_name = "NAME", default_value = "mirrord-operator-tls")]
    secret: String,
    /// The Lease by which replicas agree on a leader
    #[arg(long, value_name = "NAME", default_value = "mirrord-operator")]
    lease: String,
    /// The Secret with licence data
    #[arg(long, value_name = "NAME")]
    license_secret: Option<String>,
    /// Where the API server connects to
    #[arg(long, value_name = "ADDRESS", default_value = "[::]:8443")]
    listen: SocketAddr,
    /// Where /healthz, /readyz and /metrics are
    #[arg(long, value_name = "ADDRESS", default_value = "[::]:8080")]
    listen_for_probes: SocketAddr,
    /// The namespace of targets that are named without one
    #[arg(long, value_name = "NAME", default_value = "default")]
    default_namespace: String,
    /// How long a session waits for a client that asks for nothing else
    #[arg(long, value_name = "SECONDS", default_value = "60", value_parser = clap::value_parser!(u64).range(SHORTEST..))]
    session_ttl: u64,
    /// The longest time that a session waits for its client
    #[arg(long, value_name = "SECONDS", default_value = "900", value_parser = clap::value_parser!(u64).range(SHORTEST..))]
    session_max_resume: u64,
    /// Where agents are: in the target's pod, in a pod on its node, or waiting on every node
    #[arg(long, value_name = "MODE", default_value = "ephemeral")]
    agent_mode: Mode,
    /// Refuse sessions without a target, whose agents are pods in the namespaces of users
    #[arg(long)]
    no_targetless: bool,
    /// Show and log of the filters of sessions only where they look, such as the names of headers, and not what for
    #[arg(long)]
    hide_filter_patterns: bool,
    /// The image of agents, which is the operator's own
    #[arg(long, value_name = "REFERENCE")]
    agent_image: String,
    #[arg(long, value_name = "POLICY", default_value = "IfNotPresent")]
    agent_image_pull_policy: String,
    /// A Secret in the operator's namespace for the registry of that image, for agents that are pods there
    #[arg(long, value_name = "NAME")]
    agent_image_pull_secret: Vec<String>,
    /// What agents that are pods reserve, such as cpu=50m
    #[arg(long, value_name = "RESOURCE=QUANTITY", value_parser = quantity)]
    agent_request: Vec<(String, String)>,
    /// What agents that are pods may use at most, such as memory=256Mi
    #[arg(long, value_name = "RESOURCE=QUANTITY", value_parser = quantity)]
    agent_limit: Vec<(String, String)>,
    /// How much agents say in their logs
    #[arg(long, value_name = "LEVEL", default_value = "info")]
    agent_log: LevelFilter,
    /// The file that says which clusters there are, for an operator that has members
    #[arg(long, value_name = "FILE")]
    clusters_config: Option<PathBuf>,
    /// Whether sessions that a Primary makes here need the user to have the right to the target by the rules of this
    /// cluster, too
    #[arg(long)]
    member_user_authorization: bool,
    /// What the names of a Primary's users begin with in the rules of this cluster
    #[arg(long, value_name = "PREFIX", default_value = "")]
    member_user_prefix: String,
    /// What the names of their groups begin with
    #[arg(long, value_name = "PREFIX", default_value = "")]
    member_group_prefix: String,
    /// How much is said on standard error: off, error, warn, info, debug or trace
    #[arg(long, value_name = "LEVEL", default_value = "info")]
    log: LevelFilter,
    /// Write each line of the log as a JSON object
    #[arg(long)]
    log_json: bool,
}

fn main() -> ExitCode {
    let result = match Role::parse() {
        Role::Operator(arguments) => run(*arguments),
        Role::OperatorUninstall => uninstall(),
    };
    match result {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("standind: {error:#}");
            ExitCode::FAILURE
        }
    }
}

fn run(arguments: OperatorArguments) -> Result<()> {
    start_log(arguments.log, arguments.log_json);
    let runtime = tokio::runtime::Builder::new_multi_thread()
        .enable_all()
        .build()
        .context("the runtime does not start")?;
    runtime.block_on(async {
        let shutdown = CancellationToken::new();
        end_with_signals(shutdown.clone())?;
        operator::run(settings(arguments)?, shutdown).await?;
        Ok(())
    })
}

fn uninstall() -> Result<()> {
    start_log(LevelFilter::INFO, true);
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build()
        .context("the runtime does not start")?;
    Ok(runtime.block_on(operator::uninstall())?)
}

fn settings(arguments: OperatorArguments) -> Result<Settings> {
    Ok(Settings {
        multi_cluster: arguments
            .clusters_config
            .as_deref()
            .map(clusters)
            .transpose()?,
        member_authorization: arguments
            .member_user_authorization
            .then_some(MemberAuthorization {
                user_prefix: arguments.member_user_prefix,
                group_prefix: arguments.member_group_prefix,
            }),
        namespace: arguments.namespace,
        service: arguments.service,
        secret: arguments.secret,
        lease: arguments.lease,
        replica: arguments.replica,
        license_secret: arguments.license_secret,
        listen: arguments.listen,
        listen_for_probes: arguments.listen_for_probes,
        default_namespace: arguments.default_namespace,
        session: SessionSettings {
            time_to_live: Duration::from_secs(arguments.session_ttl),
            most_resume: Duration::from_secs(arguments.session_max_resume),
        },
        agent_mode: arguments.agent_mode.into(),
        targetless: !arguments.no_targetless,
        shows_filter_patterns: !arguments.hide_filter_patterns,
        agent_image_pull_secrets: arguments.agent_image_pull_secret,
        agent: AgentSettings {
            image: arguments.agent_image,
            image_pull_policy: arguments.agent_image_pull_policy,
            image_pull_secrets: Vec::new(),
            log_level: arguments.agent_log.to_string(),
            ephemeral: Some(true),
            startup_timeout: Duration::from_secs(60),
            resume_window: Duration::from_secs(arguments.session_ttl),
            pod: PodSettings {
                requests: arguments.agent_request.into_iter().collect(),
                limits: arguments.agent_limit.into_iter().collect(),
                ..PodSettings::default()
            },
        },
    })
}

/// Which quantities there are is known to the chart, and to the API server when a pod is made.
fn quantity(text: &str) -> Result<(String, String), String> {
    match text.split_once('=') {
        Some((name, quantity)) if !name.is_empty() && !quantity.is_empty() => {
            Ok((name.to_owned(), quantity.to_owned()))
        }
        _ => Err("write it as RESOURCE=QUANTITY, such as cpu=50m".to_owned()),
    }
}

fn clusters(path: &Path) -> Result<MultiCluster> {
    let file = || format!("the clusters of {}", path.display());
    let text = fs::read_to_string(path).with_context(file)?;
    MultiCluster::read(&text).with_context(file)
}

fn start_log(level: LevelFilter, as_json: bool) {
    // What others log may contain headers, and headers may contain secrets.
    let ours = ["api", "audit", "cluster", "link", "operator"];
    let others = level.min(LevelFilter::WARN);
    let filter = Targets::new()
        .with_default(others)
        .with_targets(ours.map(|name| (name, level)));
    let layer = tracing_subscriber::fmt::layer()
        .with_writer(std::io::stderr)
        .with_ansi(false);
    let registry = tracing_subscriber::registry().with(filter);
    if as_json {
        registry.with(layer.json().flatten_event(true)).init();
    } else {
        registry.with(layer).init();
    }
}

/// As the first process of a container we would ignore signals that nobody waits for.
fn end_with_signals(shutdown: CancellationToken) -> Result<()> {
    let mut terminate = signal(SignalKind::terminate())?;
    let mut interrupt = signal(SignalKind::interrupt())?;
    tokio::spawn(async move {
        tokio::select! {
            _ = terminate.recv() => {}
            _ = interrupt.recv() => {}
        }
        shutdown.cancel();
    });
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[derive(Debug, Parser)]
    struct Program {
        #[command(flatten)]
        arguments: OperatorArguments,
    }

    #[test]
    fn agents_have_the_resources_that_are_asked_for() {
        let with = |more: &[&'static str]| {
            let needed = ["", "--namespace=a", "--replica=b", "--agent-image=c"];
            Program::try_parse_from(needed.iter().chain(more))
        };
        let given = with(&[
            "--agent-request=cpu=50m",
            "--agent-request=memory=32Mi",
            "--agent-limit=memory=1e+09",
        ]);
        let pod = settings(given.unwrap().arguments).unwrap().agent.pod;
        let map = |pairs: &[(&str, &str)]| {
            let pairs = pairs
                .iter()
                .map(|(name, quantity)| ((*name).to_owned(), (*quantity).to_owned()));
            pairs.collect()
        };
        assert_eq!(pod.requests, map(&[("cpu", "50m"), ("memory", "32Mi")]));
        assert_eq!(pod.limits, map(&[("memory", "1e+09")]));
        for wrong in [
            "--agent-limit=cpu",
            "--agent-limit=cpu=",
            "--agent-limit==1",
        ] {
            let refused = with(&[wrong]).unwrap_err().to_string();
            assert!(refused.contains("RESOURCE=QUANTITY, such as"), "{refused}");
        }
    }

    #[test]
    fn a_session_outlives_the_time_in_which_a_dead_connection_is_noticed() {
        let with = |seconds: &str| {
            let needed = ["", "--namespace=a", "--replica=b", "--agent-image=c"];
            let more = format!("--session-ttl={seconds}");
            Program::try_parse_from(needed.into_iter().chain([more.as_str()]))
        };
        assert!(with("14").is_err());
        assert_eq!(with("15").unwrap().arguments.session_ttl, 15);
    }
}
