//! `cargo xtask demo`: demonstrates Standin on this machine.

mod clusters;
mod machine;
mod session;

use std::process::ExitCode;

use anyhow::Result;
use clap::Args;

pub(crate) use self::machine::run as on_this_machine;

/// Without options: a session on this machine alone, without root where the kernel allows it.
#[derive(Debug, Args)]
pub(crate) struct DemoArguments {
    /// Show sessions on so many clusters, which are started on this machine with the sample shop
    #[arg(long, value_name = "N", conflicts_with = "contexts")]
    clusters: Option<usize>,
    /// Show sessions on existing clusters, as contexts of your kubeconfig, with the sample shop
    #[arg(long, value_name = "CONTEXT", value_delimiter = ',')]
    contexts: Vec<String>,
    /// Leave the clusters running afterwards
    #[arg(long)]
    keep: bool,
}

pub(crate) fn run(arguments: &DemoArguments) -> Result<ExitCode> {
    match arguments.clusters {
        Some(clusters) => clusters::run(arguments, clusters),
        None if !arguments.contexts.is_empty() => clusters::run(arguments, 0),
        None => on_this_machine(None),
    }
}
