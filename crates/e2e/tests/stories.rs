//! All stories, in one program: the clusters are started once, then each story plays in a namespace of its own.
//!
//! `cargo test -p e2e -- NAME` tells the stories whose name contains NAME; `--list` names them all. They need root,
//! or `STANDIN_CONTEXTS=a,b` for clusters that exist already.

#![allow(
    clippy::print_stdout,
    clippy::print_stderr,
    reason = "a program: stdout carries the results of the stories, stderr carries talk"
)]

mod stories {
    // What Kubernetes itself must do, before anything is built on it.
    pub(crate) mod kubernetes;
    // APIs that others add to a cluster: custom resources and aggregated servers.
    pub(crate) mod extensions;
    // The operator's chart, from version to version.
    pub(crate) mod chart;
    // More than one cluster.
    pub(crate) mod clusters;
    // The sample services.
    pub(crate) mod shop;
    // Programs that stand in for a process of this machine.
    pub(crate) mod sessions;
    // Every kind of program in a session.
    pub(crate) mod programs;
    // The target's traffic.
    pub(crate) mod incoming;
    // Every kind of server.
    pub(crate) mod servers;
    // Many connections and many bytes.
    pub(crate) mod crowds;
    // What goes wrong in sessions.
    pub(crate) mod faults;
    // Connections to an agent that are cut.
    pub(crate) mod resume;
    // Programs that stand in for something in a cluster, without an operator.
    pub(crate) mod cluster_sessions;
    // All pods of a target at once, and pods that come and go.
    pub(crate) mod cluster_replicas;
    // What the stories of sessions share.
    pub(crate) mod surroundings;
    // The operator and its chart.
    pub(crate) mod operator;
    // Programs that stand in for something in a cluster, through the operator.
    pub(crate) mod operator_sessions;
    // Sessions that are started and killed many times.
    pub(crate) mod soak;
    // An operator that coordinates those of other clusters.
    pub(crate) mod members;
    // Faults of the network between clusters.
    pub(crate) mod network;
    // Programs and nodes that stop, hang and come back.
    pub(crate) mod power;
    // Labs that come and go, and what they leave.
    pub(crate) mod lifecycle;
}

use std::process::ExitCode;
use std::sync::Arc;

use e2e::LaterWorld;
use libtest_mimic::{Arguments, Trial};
use stories::{
    cluster_replicas, cluster_sessions, clusters, crowds, extensions, faults, incoming, kubernetes,
    lifecycle, members, network, operator, operator_sessions, power, programs, resume, servers,
    sessions, shop,
};

/// Stories beside one another: enough to hide their waiting, not so many that two cores drown.
const AT_ONCE: usize = 3;

fn main() -> ExitCode {
    lab::role::run_if_asked();
    e2e::machine::run_if_asked();
    lifecycle::own_a_lab_if_asked();
    let mut arguments = Arguments::from_args();
    let world = Arc::new(LaterWorld::default());
    let beside: Vec<Trial> = [
        kubernetes::stories,
        extensions::stories,
        clusters::stories,
        shop::stories,
        sessions::stories,
        programs::stories,
        incoming::stories,
        servers::stories,
        crowds::stories,
        faults::stories,
        resume::stories,
        cluster_sessions::stories,
        cluster_replicas::stories,
    ]
    .iter()
    .flat_map(|stories| stories(&world))
    .collect();
    // These change what all clusters share, so each has it for itself.
    let alone: Vec<Trial> = [
        stories::chart::stories,
        network::stories,
        power::stories,
        lifecycle::stories,
        cluster_sessions::stories_alone,
        operator::stories,
        operator_sessions::stories,
        stories::soak::stories,
        members::stories,
    ]
    .iter()
    .flat_map(|stories| stories(&world))
    .collect();
    arguments.test_threads.get_or_insert(AT_ONCE);
    let first = libtest_mimic::run(&arguments, beside);
    arguments.test_threads = Some(1);
    let second = libtest_mimic::run(&arguments, alone);
    if let Some(world) = Arc::into_inner(world)
        && let Err(error) = world.end()
    {
        eprintln!("the lab could not be taken down: {error:#}");
        return ExitCode::FAILURE;
    }
    if first.has_failed() || second.has_failed() {
        ExitCode::FAILURE
    } else {
        ExitCode::SUCCESS
    }
}
