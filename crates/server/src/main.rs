//! `standind`, the server program: one role per process.
//!
//! Agents run for every session and often on every node, so this program contains only what agents need. The other roles are
//! separate programs, which replace this process with `exec`.
//!
//! | module | what it does |
//! |---|---|
//! | `agent` | `standind agent`: serves one target to one client |
//! | `agent::node` | `standind node-agent`: serves the containers of a node at the operator's request |
//! | `operator.rs` | the program `standind-operator`: arguments of the operator |
//! | `hub.rs` | the program `standind-hub`: arguments of the hub |
//! | `tunnel_agent.rs` | the program `standind-tunnel-agent`: arguments of the tunnel agent |
//! | `process.rs` | logging and signals of these programs |
#![allow(
    clippy::print_stdout,
    clippy::print_stderr,
    reason = "a program: stdout carries results, stderr carries messages"
)]

mod agent;

use std::env;
use std::ffi::OsString;
use std::os::unix::process::CommandExt as _;
use std::process::{Command, ExitCode};

use anyhow::{Context as _, Result};
use clap::{Args, Parser};

/// The server side of Standin: one role per process.
#[derive(Debug, Parser)]
#[command(name = "standind", version, arg_required_else_help = true)]
enum Role {
    /// Serve one target to one session: its environment, files, DNS and connections
    Agent(Box<agent::AgentArguments>),
    /// Run on a node, and serve the containers that the operator requests
    NodeAgent(agent::node::NodeArguments),
    /// Serve sessions to authorized users through the cluster's API server
    Operator(OtherArguments),
    /// Remove the operator's API and end its sessions, before the operator is uninstalled
    OperatorUninstall(OtherArguments),
    /// Accept clusters that dial in, and serve their API servers to authorized users
    Hub(OtherArguments),
    /// Connect this cluster to a hub, and forward the hub's requests to the API server
    TunnelAgent(OtherArguments),
}

/// The arguments are parsed by the role's own program.
#[derive(Debug, Args)]
#[command(disable_help_flag = true)]
struct OtherArguments {
    #[arg(trailing_var_arg = true, allow_hyphen_values = true, hide = true)]
    _all: Vec<OsString>,
}

fn main() -> ExitCode {
    let result = match Role::parse() {
        Role::Agent(arguments) => agent::run(&arguments),
        Role::NodeAgent(arguments) => agent::node::run(&arguments),
        Role::Operator(_) | Role::OperatorUninstall(_) => exec("standind-operator"),
        Role::Hub(_) => exec("standind-hub"),
        Role::TunnelAgent(_) => exec("standind-tunnel-agent"),
    };
    match result {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("standind: {error:#}");
            ExitCode::FAILURE
        }
    }
}

/// Replaces this process with another program of the same folder. Returns only on failure.
fn exec(program: &str) -> Result<()> {
    let own = env::current_exe().context("the path of this program is unknown")?;
    let program = own.with_file_name(program);
    let error = Command::new(&program)
        .arg0("standind")
        .args(env::args_os().skip(1))
        .exec();
    Err(error).with_context(|| {
        format!(
            "{} does not start: use the container image of this role, which has it, or put it beside standind",
            program.display()
        )
    })
}
