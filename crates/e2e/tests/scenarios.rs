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
    // Network faults between clusters.
    pub(crate) mod network;
    // Programs and nodes that stop, hang and recover.
    pub(crate) mod outages;
    // Start and stop of labs.
    pub(crate) mod lifecycle;
}

use std::process::ExitCode;
use std::sync::Arc;

use e2e::LazyEnvironment;
use libtest_mimic::{Arguments, Trial};
use scenarios::{
    cluster_replicas, cluster_sessions, clusters, extensions, faults, incoming, kubernetes,
    lifecycle, load, members, network, operator, operator_sessions, outages, programs, resume,
    servers, sessions, shop,
};

/// Scenarios that run concurrently: enough to hide their waiting, not so many that two cores are overloaded.
const CONCURRENT_SCENARIOS: usize = 3;

fn main() -> ExitCode {
    lab::role::run_if_requested();
    e2e::machine::run_role_if_requested();
    lifecycle::run_owner_if_requested();
    let mut arguments = Arguments::from_args();
    let environment = Arc::new(LazyEnvironment::default());
    let concurrent: Vec<Trial> = [
        kubernetes::scenarios,
        extensions::scenarios,
        clusters::scenarios,
        shop::scenarios,
        sessions::scenarios,
        programs::scenarios,
        incoming::scenarios,
        servers::scenarios,
        load::scenarios,
        faults::scenarios,
        resume::scenarios,
        cluster_sessions::scenarios,
        cluster_replicas::scenarios,
    ]
    .iter()
    .flat_map(|scenarios| scenarios(&environment))
    .collect();
    // These change cluster-wide objects or break shared parts, so they run one at a time.
    let exclusive: Vec<Trial> = [
        scenarios::chart::scenarios,
        network::scenarios,
        outages::scenarios,
        lifecycle::scenarios,
        cluster_sessions::exclusive_scenarios,
        operator::scenarios,
        operator_sessions::scenarios,
        scenarios::soak::scenarios,
        members::scenarios,
    ]
    .iter()
    .flat_map(|scenarios| scenarios(&environment))
    .collect();
    arguments.test_threads.get_or_insert(CONCURRENT_SCENARIOS);
    let first = libtest_mimic::run(&arguments, concurrent);
    arguments.test_threads = Some(1);
    let second = libtest_mimic::run(&arguments, exclusive);
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
