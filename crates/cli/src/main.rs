//! `standin`, the developer's program.
#![allow(
    clippy::print_stdout,
    clippy::print_stderr,
    reason = "a program: stdout carries results, stderr carries talk"
)]

mod diagnose;
mod environment;
mod exec;
mod verify;

use std::process::ExitCode;

use clap::Parser;

/// Run a process on your machine as the stand-in for a service, wherever that service runs.
#[derive(Debug, Parser)]
#[command(name = "standin", version, arg_required_else_help = true)]
enum Command {
    /// Run a program as the stand-in for a target
    Exec(exec::ExecArguments),
    /// Explain every problem of a configuration file
    VerifyConfig(verify::VerifyArguments),
    /// Say what this machine can do
    Diagnose,
}

fn main() -> ExitCode {
    let result = match Command::parse() {
        Command::Exec(arguments) => exec::run(&arguments),
        Command::VerifyConfig(arguments) => verify::run(&arguments),
        Command::Diagnose => Ok(diagnose::run()),
    };
    result.unwrap_or_else(|error| {
        eprintln!("standin: {error:#}");
        ExitCode::FAILURE
    })
}
