//! The command line of `standin exec`, and the settings that its flags set.

use std::ffi::OsString;
use std::path::PathBuf;

use clap::{ArgAction, Args};
use config::Layers;

use super::agent::AgentFlags;

const SETTINGS: &str = "Settings (flags override environment variables and the configuration file)";

#[derive(Debug, Args)]
#[command(after_help = include_str!("examples.txt"), after_long_help = include_str!("details.txt"))]
pub(crate) struct ExecArguments {
    /// What to stand in for: <kind>/<name> in a cluster, process/<pid> or container/<name> on this machine
    ///
    /// Kinds are deployment, statefulset, daemonset, replicaset, rollout, cronjob, job, service and pod, and selector with
    /// a label selector as name (selector/app=checkout). Append /container/<name> to choose one of several containers.
    /// `targetless` uses the network of a namespace without a target. `standin ls` lists possible targets.
    #[arg(short, long)]
    pub(super) target: Option<String>,
    #[command(flatten)]
    pub(super) cluster: ClusterFlags,
    #[command(flatten)]
    pub(super) access: AccessFlags,
    /// The configuration file: JSON, YAML or TOML
    ///
    /// The default is the file in STANDIN_CONFIG_FILE, or else the first of .standin/standin.*, standin.* and
    /// .mirrord/mirrord.* (.json, .yaml, .yml, .toml) in the working directory.
    #[arg(short = 'f', long = "config-file", value_name = "FILE")]
    pub(super) config_file: Option<PathBuf>,
    /// Print every setting with its value and origin, and exit. Secrets are not shown
    #[arg(long)]
    pub(super) print_config: bool,
    /// Print only warnings and errors
    #[arg(short, long)]
    pub(super) quiet: bool,
    /// Write a log; -vv and -vvv log more
    ///
    /// The log is a new file in $XDG_STATE_HOME/standin (~/.local/state/standin). Its name is printed.
    #[arg(short, long, action = ArgAction::Count)]
    pub(super) verbose: u8,
    /// Write the log to this file
    #[arg(long, value_name = "FILE")]
    pub(super) log_file: Option<PathBuf>,
    /// Record all events of the session to this file, for `standin ui --replay`
    ///
    /// The recording contains names of environment variables, but not their values.
    #[arg(long, value_name = "FILE")]
    pub(super) record: Option<PathBuf>,
    #[command(flatten)]
    pub(super) flags: SettingFlags,
    #[command(flatten)]
    pub(super) agent: AgentFlags,
    /// The program of this machine to run, and its arguments
    #[arg(
        last = true,
        help_heading = "Program",
        required_unless_present = "print_config",
        value_name = "COMMAND"
    )]
    pub(super) command: Vec<OsString>,
}

/// The cluster and the namespace. The defaults are those of `kubectl`.
#[derive(Debug, Default, Args)]
#[command(next_help_heading = "Cluster")]
pub(crate) struct ClusterFlags {
    /// The namespace of the target
    #[arg(short, long, value_name = "NAME")]
    namespace: Option<String>,
    /// The kubeconfig file
    #[arg(long, value_name = "FILE")]
    kubeconfig: Option<String>,
    /// The context of the kubeconfig
    #[arg(long, visible_alias = "kube-context", value_name = "NAME")]
    context: Option<String>,
}

/// Whether a cluster is accessed through its operator or with the user's own rights.
#[derive(Debug, Default, Args)]
#[command(next_help_heading = "Cluster")]
pub(crate) struct AccessFlags {
    /// Require the operator of the cluster. By default, it is used if there is one
    #[arg(long, conflicts_with = "no_operator")]
    operator: bool,
    /// Use your own rights, even if there is an operator
    #[arg(long)]
    no_operator: bool,
}

#[derive(Debug, Default, Args)]
#[command(next_help_heading = SETTINGS)]
pub(crate) struct SettingFlags {
    /// Use only these environment variables of the target: patterns with * and ?
    #[arg(
        long,
        visible_alias = "override-env-vars-include",
        value_name = "PATTERN",
        value_delimiter = ','
    )]
    env_include: Vec<String>,
    /// Use none of these environment variables of the target: patterns with * and ?
    #[arg(
        long,
        visible_alias = "override-env-vars-exclude",
        value_name = "PATTERN",
        value_delimiter = ','
    )]
    env_exclude: Vec<String>,
    /// Set an environment variable. Every user of this machine can read command lines: use --env-file for secrets
    #[arg(long, value_name = "NAME=VALUE", value_parser = with_value)]
    override_env: Vec<String>,
    /// Unset environment variables: patterns with * and ?
    #[arg(long, value_name = "PATTERN", value_delimiter = ',')]
    unset_env: Vec<String>,
    /// Set the environment variables in this file, one NAME=VALUE per line
    #[arg(long, value_name = "FILE")]
    env_file: Option<String>,
    /// Use no environment variables of the target
    #[arg(long)]
    no_env: bool,
    /// Where files are accessed that no list names: local, localwithoverrides, read or write
    #[arg(long, value_name = "MODE")]
    fs_mode: Option<String>,
    /// Use only local files: short for --fs-mode local
    #[arg(long, conflicts_with = "fs_mode")]
    no_fs: bool,
    /// Steal the target's traffic instead of mirroring it, for ports on which the program listens
    #[arg(long, visible_alias = "tcp-steal", conflicts_with = "no_incoming")]
    steal: bool,
    /// Get no incoming traffic of the target
    #[arg(long)]
    no_incoming: bool,
    /// Only HTTP requests with a header that matches this regular expression, in the form "name: value"
    #[arg(long, value_name = "PATTERN")]
    header_filter: Option<String>,
    /// Only HTTP requests whose path matches this regular expression
    #[arg(long, value_name = "PATTERN", conflicts_with = "header_filter")]
    path_filter: Option<String>,
    /// Map a port of the program to another port of the target
    #[arg(long, value_name = "LOCAL:REMOTE", value_delimiter = ',', value_parser = with_two_ports)]
    port_mapping: Vec<String>,
    /// Ports of the program that get no incoming traffic of the target
    #[arg(long, value_name = "PORT", value_delimiter = ',')]
    ignore_ports: Vec<String>,
    /// If another session steals the same traffic: abort, continue (take what it leaves) or override (take it over)
    #[arg(long, value_name = "POLICY")]
    on_concurrent_steal: Option<String>,
    /// Open all outgoing connections from this machine
    #[arg(long)]
    no_outgoing: bool,
    /// Open outgoing TCP connections from this machine
    #[arg(long)]
    no_tcp_outgoing: bool,
    /// Send outgoing UDP packets from this machine
    #[arg(long)]
    no_udp_outgoing: bool,
    /// Reach only these destinations through the target: [tcp://|udp://][name|address|subnet][:port]
    #[arg(long, value_name = "FILTER", conflicts_with = "outgoing_local")]
    outgoing_remote: Vec<String>,
    /// Reach all destinations through the target except these
    #[arg(long, value_name = "FILTER")]
    outgoing_local: Vec<String>,
    /// Resolve DNS names on this machine
    #[arg(long, visible_alias = "no-remote-dns")]
    no_dns: bool,
    /// Use the host name of this machine
    #[arg(long)]
    no_hostname: bool,
    /// File names of child programs that run outside of the session
    #[arg(long, value_name = "PROGRAM", value_delimiter = ',')]
    skip_processes: Vec<String>,
    /// The container image of agents in clusters
    #[arg(long, value_name = "IMAGE")]
    agent_image: Option<String>,
    /// Require the agent to be an ephemeral container of the target's pod
    #[arg(long, conflicts_with = "no_ephemeral_container")]
    ephemeral_container: bool,
    /// Start the agent as a pod on the target's node
    #[arg(long)]
    no_ephemeral_container: bool,
    /// Require an operator that coordinates several clusters, and use all of them. By default, they are used if there are any
    #[arg(long, conflicts_with_all = ["no_multi_cluster", "no_operator"])]
    multi_cluster: bool,
    /// Use only the cluster of the context, even if its operator coordinates others
    #[arg(long)]
    no_multi_cluster: bool,
}

fn with_value(text: &str) -> Result<String, &'static str> {
    match text.split_once('=') {
        Some((name, _)) if !name.is_empty() => Ok(text.to_owned()),
        _ => Err("write NAME=VALUE; `NAME=` sets it to an empty value, and --unset-env unsets it"),
    }
}

fn with_two_ports(text: &str) -> Result<String, &'static str> {
    let is_port = |text: &str| text.trim().parse::<u16>().is_ok_and(|port| port > 0);
    match text.split_once(':') {
        Some((local, remote)) if is_port(local) && is_port(remote) => Ok(text.to_owned()),
        _ => Err("write two ports, as in 8081:8080: the program's, and that of the target"),
    }
}

impl ExecArguments {
    /// The flags as a layer of the settings.
    pub(super) fn add_to(&self, mut layers: Layers) -> Layers {
        if let Some(target) = &self.target {
            layers = layers.flag("--target", "target", target);
        }
        self.flags
            .add_to(self.access.add_to(self.cluster.add_to(layers)))
    }
}

impl ClusterFlags {
    /// The flags as a layer of the settings.
    pub(crate) fn add_to(&self, mut layers: Layers) -> Layers {
        #[rustfmt::skip] // A table is read by its columns.
        let values: [(&str, &str, Option<&str>); 3] = [
            ("--namespace",  "target.namespace", self.namespace.as_deref()),
            ("--kubeconfig", "kubeconfig",       self.kubeconfig.as_deref()),
            ("--context",    "kube_context",     self.context.as_deref()),
        ];
        for (flag, key, value) in values {
            if let Some(value) = value {
                layers = layers.flag(flag, key, value);
            }
        }
        layers
    }
}

impl AccessFlags {
    pub(crate) fn add_to(&self, layers: Layers) -> Layers {
        if self.operator {
            layers.flag("--operator", "operator", "true")
        } else if self.no_operator {
            layers.flag("--no-operator", "operator", "false")
        } else {
            layers
        }
    }
}

impl SettingFlags {
    fn add_to(&self, mut layers: Layers) -> Layers {
        #[rustfmt::skip] // A table is read by its columns.
        let lists: [(&str, &str, &[String]); 9] = [
            ("--env-include",     "feature.env.include",                    &self.env_include),
            ("--env-exclude",     "feature.env.exclude",                    &self.env_exclude),
            ("--override-env",    "feature.env.override",                   &self.override_env),
            ("--unset-env",       "feature.env.unset",                      &self.unset_env),
            ("--outgoing-remote", "feature.network.outgoing.filter.remote", &self.outgoing_remote),
            ("--outgoing-local",  "feature.network.outgoing.filter.local",  &self.outgoing_local),
            ("--port-mapping",    "feature.network.incoming.port_mapping",  &self.port_mapping),
            ("--ignore-ports",    "feature.network.incoming.ignore_ports",  &self.ignore_ports),
            ("--skip-processes",  "skip_processes",                         &self.skip_processes),
        ];
        for (flag, key, values) in lists {
            for value in values {
                layers = layers.flag(flag, key, value);
            }
        }
        #[rustfmt::skip]
        let values: [(&str, &str, Option<&str>); 19] = [
            ("--env-file",        "feature.env.env_file",          self.env_file.as_deref()),
            ("--no-env",          "feature.env.enabled",           self.no_env.then_some("false")),
            ("--fs-mode",         "feature.fs.mode",               self.fs_mode.as_deref()),
            ("--no-fs",           "feature.fs.mode",               self.no_fs.then_some("local")),
            ("--steal",           "feature.network.incoming.mode", self.steal.then_some("steal")),
            ("--no-incoming",     "feature.network.incoming.mode", self.no_incoming.then_some("off")),
            ("--header-filter",   "feature.network.incoming.http_filter.header_filter", self.header_filter.as_deref()),
            ("--path-filter",     "feature.network.incoming.http_filter.path_filter", self.path_filter.as_deref()),
            ("--on-concurrent-steal", "feature.network.incoming.on_concurrent_steal", self.on_concurrent_steal.as_deref()),
            ("--no-outgoing",     "feature.network.outgoing",      self.no_outgoing.then_some("local")),
            ("--no-tcp-outgoing", "feature.network.outgoing.tcp",  self.no_tcp_outgoing.then_some("false")),
            ("--no-udp-outgoing", "feature.network.outgoing.udp",  self.no_udp_outgoing.then_some("false")),
            ("--no-dns",          "feature.network.dns.enabled",   self.no_dns.then_some("false")),
            ("--no-hostname",     "feature.hostname",              self.no_hostname.then_some("false")),
            ("--agent-image",     "agent.image",                   self.agent_image.as_deref()),
            ("--ephemeral-container",    "agent.ephemeral",        self.ephemeral_container.then_some("true")),
            ("--no-ephemeral-container", "agent.ephemeral",        self.no_ephemeral_container.then_some("false")),
            ("--multi-cluster",   "multi_cluster",                 self.multi_cluster.then_some("true")),
            ("--no-multi-cluster", "multi_cluster",                self.no_multi_cluster.then_some("false")),
        ];
        for (flag, key, value) in values {
            if let Some(value) = value {
                layers = layers.flag(flag, key, value);
            }
        }
        layers
    }
}
