//! `standind`, the server program: one role per process.
//!
//! Agents run for every session and often on every node, so this program contains only what agents need. The operator, with
//! its Kubernetes clients, is a separate program, `standind-operator`, which replaces this process with `exec`.
//!
//! | module | what it does |
//! |---|---|
//! | `agent` | `standind agent`: serves one target to one client |
//! | `agent::node` | `standind node-agent`: serves the containers of a node at the operator's request |
//! | `operator.rs` | the program `standind-operator`: arguments, logging and signals of the operator |
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
    Operator(OperatorArguments),
    /// Remove the operator's API and end its sessions, before the operator is uninstalled
    OperatorUninstall(OperatorArguments),
}

/// The arguments are parsed by `standind-operator`.
#[derive(Debug, Args)]
#[command(disable_help_flag = true)]
struct OperatorArguments {
    #[arg(trailing_var_arg = true, allow_hyphen_values = true, hide = true)]
    _all: Vec<OsString>,
}

fn main() -> ExitCode {
    let result = match Role::parse() {
        Role::Agent(arguments) => agent::run(&arguments),
        Role::NodeAgent(arguments) => agent::node::run(&arguments),
        Role::Operator(_) | Role::OperatorUninstall(_) => exec_operator(),
    };
    match result {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("standind: {error:#}");
            ExitCode::FAILURE
        }
    }
}

/// Replaces this process with `standind-operator`. Returns only on failure.
fn exec_operator() -> Result<()> {
    let own = env::current_exe().context("the path of this program is unknown")?;
    let operator = own.with_file_name("standind-operator");
    let error = Command::new(&operator)
        .arg0("standind")
        .args(env::args_os().skip(1))
        .exec();
    Err(error).with_context(|| {
        format!(
            "{} does not start: use the container image, which has it, or put it beside standind",
            operator.display()
        )
    })
}
