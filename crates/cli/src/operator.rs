//! `standin operator`: the status and the sessions of a cluster's operator.

mod session;
mod status;

use std::path::PathBuf;
use std::process::ExitCode;

use anyhow::{Context, Result};
use clap::{Args, Subcommand};
use cluster::Cluster;

use crate::exec::settings::load_with;
use crate::exec::{ClusterFlags, Progress, access};

#[derive(Debug, Args)]
#[command(arg_required_else_help = true, after_help = EXAMPLES)]
pub(crate) struct OperatorArguments {
    #[command(subcommand)]
    command: OperatorCommand,
}

const EXAMPLES: &str = "\
Examples:
  # show whether there is an operator, its version, and who uses it
  standin operator status

  # list all sessions, for another program to read
  standin operator session list --json

  # end a session; its agents end with it
  standin operator session kill 5eed0000c0ffee01";

#[derive(Debug, Subcommand)]
enum OperatorCommand {
    /// Show which operator the cluster has, its health, and who uses it
    Status(status::StatusArguments),
    /// List sessions, and end them
    #[command(subcommand, arg_required_else_help = true)]
    Session(session::SessionCommand),
}

/// Selects the cluster, with the same settings as `standin exec`.
#[derive(Debug, Args)]
struct ClusterArguments {
    #[command(flatten)]
    cluster: ClusterFlags,
    /// The configuration file, as for `standin exec`
    #[arg(short = 'f', long = "config-file", value_name = "FILE")]
    config_file: Option<PathBuf>,
}

pub(crate) fn run(arguments: &OperatorArguments) -> Result<ExitCode> {
    match &arguments.command {
        OperatorCommand::Status(arguments) => status::run(arguments),
        OperatorCommand::Session(command) => session::run(command),
    }
}

impl ClusterArguments {
    /// Connects to the cluster and runs a request to its operator.
    fn with_operator<T>(
        &self,
        request: impl AsyncFnOnce(&Cluster) -> cluster::Result<T>,
    ) -> Result<T> {
        let progress = Progress::new(true);
        let add_flags = |layers| self.cluster.add_to(layers);
        let settings = load_with(self.config_file.as_deref(), add_flags, &progress)?.settings;
        let runtime = tokio::runtime::Builder::new_current_thread()
            .enable_all()
            .build()
            .context("the runtime does not start")?;
        runtime.block_on(async {
            let cluster = Cluster::connect(&access(&settings)).await?;
            // Without this check, a user without rights would get an error about rights, even if there is no operator.
            if !cluster::has_operator(&cluster).await? {
                return Err(cluster::Error::NoOperator.into());
            }
            Ok(request(&cluster).await?)
        })
    }
}
