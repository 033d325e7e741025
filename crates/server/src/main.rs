//! `standind`, the program that runs beside services: one program, one role per process.
#![allow(
    clippy::print_stdout,
    clippy::print_stderr,
    reason = "a program: stdout carries results, stderr carries talk"
)]

mod agent;
mod operator;

use std::process::ExitCode;

use clap::Parser;

/// The server side of Standin: one program, one role per process.
#[derive(Debug, Parser)]
#[command(name = "standind", version, arg_required_else_help = true)]
enum Role {
    /// Work beside a target: its environment, files, names and connections, for one session
    Agent(agent::AgentArguments),
    /// Wait on a node, and work beside those of its containers that the operator names
    NodeAgent(agent::node::NodeArguments),
    /// Serve sessions to everybody who may have them, through the cluster's API server
    Operator(operator::OperatorArguments),
    /// Take the operator's API away and end its sessions, before it is removed
    OperatorUninstall,
}

fn main() -> ExitCode {
    let result = match Role::parse() {
        Role::Agent(arguments) => agent::run(&arguments),
        Role::NodeAgent(arguments) => agent::node::run(&arguments),
        Role::Operator(arguments) => operator::run(arguments),
        Role::OperatorUninstall => operator::uninstall(),
    };
    match result {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("standind: {error:#}");
            ExitCode::FAILURE
        }
    }
}
