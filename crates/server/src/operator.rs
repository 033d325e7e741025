//! `standind-operator`, the program of the operator, which `standind operator` executes: arguments, logging and signals.
#![allow(clippy::print_stderr, reason = "a program: stderr carries messages")]

mod process;

use std::net::SocketAddr;
use std::process::ExitCode;
use std::time::Duration;

use anyhow::{Context, Result};
use clap::{Args, Parser, ValueEnum};
use operator::{
    AgentMode, AgentSettings, MemberAuthorization, PodSettings, PrimarySettings, SessionSettings,
    Settings,
};
use tracing_subscriber::filter::LevelFilter;

use process::LogArguments;

/// Our crates in this program.
const CRATES: [&str; 5] = ["api", "audit", "cluster", "link", "operator"];

/// The minimum time in seconds that a session waits for its client. A link needs this long to detect a dead connection.
const MIN_SESSION_TTL: u64 = 15;

#[derive(Debug, Parser)]
#[command(name = "standind", version, arg_required_else_help = true)]
enum Role {
    /// Serve sessions to authorized users through the cluster's API server
    Operator(Box<OperatorArguments>),
    /// Remove the operator's API and end its sessions, before the operator is uninstalled
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
    /// The name of this replica, which is the name of its pod
    #[arg(long, value_name = "NAME")]
    replica: String,
    /// The Service in front of all replicas
    #[arg(long, value_name = "NAME", default_value = "mirrord-operator")]
    service: String,
    /// The Secret for the operator's certificates; it must exist, and may be empty
    #[arg(long, value_name = "NAME", default_value = "mirrord-operator-tls")]
    secret: String,
    /// The Lease by which replicas agree on a leader
    #[arg(long, value_name = "NAME", default_value = "mirrord-operator")]
    lease: String,
    /// The Secret with licence data
    #[arg(long, value_name = "NAME")]
    license_secret: Option<String>,
    /// The address to listen on for the API server
    #[arg(long, value_name = "ADDRESS", default_value = "[::]:8443")]
    listen: SocketAddr,
    /// The address of /healthz and /readyz
    #[arg(long, value_name = "ADDRESS", default_value = "[::]:8081")]
    listen_for_probes: SocketAddr,
    // The default is not 8080, where the first version of the chart has its probes.
    /// The address of /metrics
    #[arg(long, value_name = "ADDRESS", default_value = "[::]:8082")]
    listen_for_metrics: SocketAddr,
    /// The namespace of targets that are named without one
    #[arg(long, value_name = "NAME", default_value = "default")]
    default_namespace: String,
    /// How long a session waits for its client by default
    #[arg(long, value_name = "SECONDS", default_value = "60", value_parser = clap::value_parser!(u64).range(MIN_SESSION_TTL..))]
    session_ttl: u64,
    /// The longest time that a session waits for its client
    #[arg(long, value_name = "SECONDS", default_value = "900", value_parser = clap::value_parser!(u64).range(MIN_SESSION_TTL..))]
    session_max_resume: u64,
    /// The maximum age of a session; without it, a session lasts as long as its client
    #[arg(long, value_name = "SECONDS", value_parser = clap::value_parser!(u64).range(1..))]
    session_max_age: Option<u64>,
    /// How often the rights of connected users are reviewed
    #[arg(long, value_name = "SECONDS", default_value = "300", value_parser = clap::value_parser!(u64).range(1..))]
    rights_review_interval: u64,
    /// How long an agent may take to confirm changed policies before its session's traffic to it is stopped
    #[arg(long, value_name = "SECONDS", default_value = "10", value_parser = clap::value_parser!(u64).range(1..))]
    policy_confirmation_timeout: u64,
    /// Where agents run: in the target's pod, in a pod on its node, or permanently on every node
    #[arg(long, value_name = "MODE", default_value = "ephemeral")]
    agent_mode: Mode,
    /// Refuse sessions without a target, whose agents are pods in the namespaces of users
    #[arg(long)]
    no_targetless: bool,
    /// Show and log only which part of a request a filter matches, such as a header's name, and not the pattern
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
    /// The log level of agents
    #[arg(long, value_name = "LEVEL", default_value = "info")]
    agent_log: LevelFilter,
    /// The ConfigMap with the list of clusters, for an operator with member clusters
    #[arg(long, value_name = "NAME")]
    clusters_config_map: Option<String>,
    /// How long a session over several clusters waits for its client by default, if not as long as other sessions
    #[arg(long, value_name = "SECONDS", value_parser = clap::value_parser!(u64).range(MIN_SESSION_TTL..))]
    multi_cluster_session_ttl: Option<u64>,
    /// How long the parts of such a session in the clusters may take to become ready
    #[arg(long, value_name = "SECONDS", default_value = "75", value_parser = clap::value_parser!(u64).range(1..))]
    remote_session_timeout: u64,
    /// Require that users of a Primary are also authorized for the target by the rules of this cluster
    #[arg(long)]
    member_user_authorization: bool,
    /// The prefix of the names of a Primary's users in the rules of this cluster
    #[arg(long, value_name = "PREFIX", default_value = "")]
    member_user_prefix: String,
    /// The prefix of the names of their groups
    #[arg(long, value_name = "PREFIX", default_value = "")]
    member_group_prefix: String,
    #[command(flatten)]
    log: LogArguments,
}

fn main() -> ExitCode {
    process::exit(match Role::parse() {
        Role::Operator(arguments) => run(*arguments),
        Role::OperatorUninstall => uninstall(),
    })
}

fn run(arguments: OperatorArguments) -> Result<()> {
    arguments.log.start(&CRATES, None);
    process::run(None, async |shutdown| {
        Ok(operator::run(settings(arguments), shutdown).await?)
    })
}

fn uninstall() -> Result<()> {
    process::start_log(LevelFilter::INFO, true, &CRATES, None);
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build()
        .context("the runtime does not start")?;
    Ok(runtime.block_on(operator::uninstall())?)
}

fn settings(arguments: OperatorArguments) -> Settings {
    let session = SessionSettings {
        time_to_live: Duration::from_secs(arguments.session_ttl),
        max_resume: Duration::from_secs(arguments.session_max_resume),
        max_age: arguments.session_max_age.map(Duration::from_secs),
        review_interval: Duration::from_secs(arguments.rights_review_interval),
    };
    Settings {
        primary: arguments
            .clusters_config_map
            .map(|config_map| PrimarySettings {
                config_map,
                session: SessionSettings {
                    time_to_live: Duration::from_secs(
                        arguments
                            .multi_cluster_session_ttl
                            .unwrap_or(arguments.session_ttl),
                    ),
                    ..session
                },
                startup_timeout: Duration::from_secs(arguments.remote_session_timeout),
            }),
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
        listen_for_metrics: arguments.listen_for_metrics,
        default_namespace: arguments.default_namespace,
        session,
        policy_confirmation_timeout: Duration::from_secs(arguments.policy_confirmation_timeout),
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
    }
}

/// The quantity itself is validated by the chart, and by the API server when a pod is created.
fn quantity(text: &str) -> Result<(String, String), String> {
    match text.split_once('=') {
        Some((name, quantity)) if !name.is_empty() && !quantity.is_empty() => {
            Ok((name.to_owned(), quantity.to_owned()))
        }
        _ => Err("write it as RESOURCE=QUANTITY, such as cpu=50m".to_owned()),
    }
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
    fn agent_resources_are_parsed() {
        let with = |more: &[&'static str]| {
            let required = ["", "--namespace=a", "--replica=b", "--agent-image=c"];
            Program::try_parse_from(required.iter().chain(more))
        };
        let parsed = with(&[
            "--agent-request=cpu=50m",
            "--agent-request=memory=32Mi",
            "--agent-limit=memory=1e+09",
        ]);
        let pod = settings(parsed.unwrap().arguments).agent.pod;
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
            let error = with(&[wrong]).unwrap_err().to_string();
            assert!(error.contains("RESOURCE=QUANTITY, such as"), "{error}");
        }
    }

    #[test]
    fn sessions_over_several_clusters_may_have_another_ttl() {
        let with = |more: &[&'static str]| {
            let required = ["", "--namespace=a", "--replica=b", "--agent-image=c"];
            let required = required.iter().chain(&["--session-ttl=20"]).chain(more);
            settings(Program::try_parse_from(required).unwrap().arguments).primary
        };
        assert!(with(&[]).is_none());
        let usual = with(&["--clusters-config-map=a"]).unwrap();
        assert_eq!(usual.session.time_to_live.as_secs(), 20);
        assert_eq!(usual.startup_timeout.as_secs(), 75);
        let other = with(&[
            "--clusters-config-map=a",
            "--multi-cluster-session-ttl=30",
            "--remote-session-timeout=300",
        ]);
        let other = other.unwrap();
        assert_eq!(other.session.time_to_live.as_secs(), 30);
        assert_eq!(other.startup_timeout.as_secs(), 300);
    }

    #[test]
    fn session_ttl_has_a_minimum() {
        let with = |seconds: &str| {
            let required = ["", "--namespace=a", "--replica=b", "--agent-image=c"];
            let more = format!("--session-ttl={seconds}");
            Program::try_parse_from(required.into_iter().chain([more.as_str()]))
        };
        assert!(with("14").is_err());
        assert_eq!(with("15").unwrap().arguments.session_ttl, 15);
    }
}
