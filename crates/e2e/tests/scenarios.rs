//! All scenarios, in one program: the clusters are started once, then each scenario runs in its own namespace.
//!
//! `cargo test -p e2e -- NAME` runs the scenarios whose name contains NAME; `--list` lists them all. They need root,
//! or `STANDIN_CONTEXTS=a,b` for clusters that exist already.

#![allow(
    clippy::print_stdout,
    clippy::print_stderr,
    reason = "a program: stdout carries the results of the scenarios, stderr carries progress"
)]

mod scenarios {
    // What the lab's Kubernetes itself must do.
    pub(crate) mod kubernetes;
    // API extensions: custom resources and aggregated API servers.
    pub(crate) mod extensions;
    // Installation, upgrade and removal of the operator's chart.
    pub(crate) mod chart;
    // More than one cluster.
    pub(crate) mod clusters;
    // The sample services.
    pub(crate) mod shop;
    // Sessions whose target is a process of this machine.
    pub(crate) mod sessions;
    // Sessions with programs in every language.
    pub(crate) mod programs;
    // Incoming traffic of the target.
    pub(crate) mod incoming;
    // Incoming traffic with servers in every language.
    pub(crate) mod servers;
    // Many connections and much data.
    pub(crate) mod load;
    // Faults in sessions.
    pub(crate) mod faults;
    // Sessions that resume after the connection to the agent was cut.
    pub(crate) mod resume;
    // Sessions with targets in a cluster, without an operator.
    pub(crate) mod cluster_sessions;
    // Sessions with all pods of a target, and pods that are added and removed.
    pub(crate) mod cluster_replicas;
    // Functions that the scenarios of sessions share.
    pub(crate) mod support;
    // The operator and its chart.
    pub(crate) mod operator;
    // Sessions with targets in a cluster, through the operator.
    pub(crate) mod operator_sessions;
    // Many sessions whose processes are killed.
    pub(crate) mod soak;
    // A Primary operator and its member clusters.
    pub(crate) mod members;
    // A hub, and clusters that can only dial out.
    pub(crate) mod tunnel;
    // Network faults between clusters.
    pub(crate) mod network;
    // Programs and nodes that stop, hang and recover.
    pub(crate) mod outages;
    // Start and stop of labs.
    pub(crate) mod lifecycle;
}

use std::env;
use std::process::ExitCode;
use std::sync::Arc;

use anyhow::{Result, bail};
use e2e::{LazyEnvironment, environment};
use libtest_mimic::{Arguments, Trial};
use scenarios::{
    cluster_replicas, cluster_sessions, clusters, extensions, faults, incoming, kubernetes,
    lifecycle, load, members, network, operator, operator_sessions, outages, programs, resume,
    servers, sessions, shop, tunnel,
};

/// Scenarios that can run in a process of their own. `cargo xtask test` runs the first two groups at the same time.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Group {
    /// Scenarios on this machine and on the clusters that all of them share.
    SharedClusters,
    /// Scenarios that start clusters for themselves.
    OwnClusters,
    /// Scenarios that start and stop labs and count what is left on this machine. No other lab may change meanwhile.
    Labs,
}

impl Group {
    /// The groups to run.
    fn selected() -> Result<Vec<Group>> {
        Ok(match env::var(environment::GROUP).as_deref() {
            Err(_) => vec![Group::SharedClusters, Group::OwnClusters, Group::Labs],
            Ok("shared-clusters") => vec![Group::SharedClusters],
            Ok("own-clusters") => vec![Group::OwnClusters],
            Ok("labs") => vec![Group::Labs],
            Ok(other) => bail!("{} names no group: {other}", environment::GROUP),
        })
    }
}

/// Scenarios that run concurrently: enough to hide their waiting, not so many that two cores are overloaded.
const CONCURRENT_SCENARIOS: usize = 3;

type Scenarios = fn(&Arc<LazyEnvironment>) -> Vec<Trial>;

const CONCURRENT: &[(Group, Scenarios)] = &[
    (Group::SharedClusters, kubernetes::scenarios),
    (Group::SharedClusters, extensions::scenarios),
    (Group::SharedClusters, clusters::scenarios),
    (Group::SharedClusters, shop::scenarios),
    (Group::SharedClusters, sessions::scenarios),
    (Group::SharedClusters, programs::scenarios),
    (Group::SharedClusters, incoming::scenarios),
    (Group::SharedClusters, servers::scenarios),
    (Group::SharedClusters, load::scenarios),
    (Group::SharedClusters, faults::scenarios),
    (Group::SharedClusters, resume::scenarios),
    (Group::SharedClusters, cluster_sessions::scenarios),
    (Group::SharedClusters, cluster_replicas::scenarios),
];

/// These change cluster-wide objects or break shared parts, so they run one at a time.
const EXCLUSIVE: &[(Group, Scenarios)] = &[
    (Group::SharedClusters, scenarios::chart::scenarios),
    (Group::SharedClusters, network::scenarios),
    (Group::SharedClusters, outages::scenarios),
    (Group::Labs, lifecycle::scenarios),
    (Group::SharedClusters, cluster_sessions::exclusive_scenarios),
    (Group::SharedClusters, operator::scenarios),
    (Group::SharedClusters, operator_sessions::scenarios),
    (Group::SharedClusters, scenarios::soak::scenarios),
    (Group::OwnClusters, members::scenarios),
    (Group::OwnClusters, tunnel::scenarios),
];

fn main() -> ExitCode {
    lab::role::run_if_requested();
    e2e::machine::run_role_if_requested();
    lifecycle::run_owner_if_requested();
    let mut arguments = Arguments::from_args();
    let environment = Arc::new(LazyEnvironment::default());
    let groups = match Group::selected() {
        Ok(groups) => groups,
        Err(error) => {
            eprintln!("{error}");
            return ExitCode::FAILURE;
        }
    };
    let is_selected = |(group, _): &&(Group, Scenarios)| groups.contains(group);
    let trials = |scenarios: &[(Group, Scenarios)]| -> Vec<Trial> {
        scenarios
            .iter()
            .filter(is_selected)
            .flat_map(|(_, scenarios)| scenarios(&environment))
            .collect()
    };
    arguments.test_threads.get_or_insert(CONCURRENT_SCENARIOS);
    let first = libtest_mimic::run(&arguments, trials(CONCURRENT));
    arguments.test_threads = Some(1);
    let second = libtest_mimic::run(&arguments, trials(EXCLUSIVE));
    e2e::print_timings();
    if let Some(environment) = Arc::into_inner(environment)
        && let Err(error) = environment.end()
    {
        eprintln!("the lab could not be stopped: {error:#}");
        return ExitCode::FAILURE;
    }
    if first.has_failed() || second.has_failed() {
        ExitCode::FAILURE
    } else {
        ExitCode::SUCCESS
    }
}
