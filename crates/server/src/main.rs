//! `standind`, the program that runs beside services: one role per process.
//!
//! There is an agent for every session, and often on every node, so this program has only what agents need. The operator,
//! with all that it knows of Kubernetes, is a program of its own, which takes our place.
#![allow(
    clippy::print_stdout,
    clippy::print_stderr,
    reason = "a program: stdout carries results, stderr carries talk"
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
    /// Work beside a target: its environment, files, names and connections, for one session
    Agent(Box<agent::AgentArguments>),
    /// Wait on a node, and work beside those of its containers that the operator names
    NodeAgent(agent::node::NodeArguments),
    /// Serve sessions to everybody who may have them, through the cluster's API server
    Operator(OperatorArguments),
    /// Take the operator's API away and end its sessions, before it is removed
    OperatorUninstall(OperatorArguments),
}

/// The operator's program reads them.
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
        Role::Operator(_) | Role::OperatorUninstall(_) => become_operator(),
    };
    match result {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("standind: {error:#}");
            ExitCode::FAILURE
        }
    }
}

/// Answers only if that fails.
fn become_operator() -> Result<()> {
    let own = env::current_exe().context("the way to this program is not known")?;
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
