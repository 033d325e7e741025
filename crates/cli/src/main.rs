//! `standin`, the developer's program.
#![allow(
    clippy::print_stdout,
    clippy::print_stderr,
    reason = "a program: stdout carries results, stderr carries talk"
)]

mod diagnose;
mod environment;
mod exec;
mod exit;
mod ls;
mod sys;
mod verify;

use std::process::ExitCode;

use clap::{CommandFactory as _, Parser};
use clap_complete::Shell;

/// Run a process on your machine as the stand-in for a service, wherever that service runs
///
/// The process sees the environment, files, names and network of the service. Nothing is rebuilt, pushed or deployed.
#[derive(Debug, Parser)]
#[command(name = "standin", version, arg_required_else_help = true)]
#[command(after_help = "Start with `standin diagnose` and `standin exec --help`.")]
enum Command {
    /// Run a program as the stand-in for a target
    Exec(Box<exec::ExecArguments>),
    /// List what there is to stand in for in a cluster
    Ls(ls::LsArguments),
    /// Explain every problem of a configuration file
    VerifyConfig(verify::VerifyArguments),
    /// Say what this machine can do, and what to do about the rest
    Diagnose(diagnose::DiagnoseArguments),
    /// Print completions for a shell
    ///
    /// For bash: `standin completions bash > ~/.local/share/bash-completion/completions/standin`
    #[command(verbatim_doc_comment)]
    Completions { shell: Shell },
}

fn main() -> ExitCode {
    let result = match Command::parse() {
        Command::Exec(arguments) => exec::run(&arguments),
        Command::Ls(arguments) => ls::run(&arguments),
        Command::VerifyConfig(arguments) => verify::run(&arguments),
        Command::Diagnose(arguments) => diagnose::run(&arguments),
        Command::Completions { shell } => {
            clap_complete::generate(
                shell,
                &mut Command::command(),
                "standin",
                &mut std::io::stdout(),
            );
            Ok(ExitCode::SUCCESS)
        }
    };
    result.unwrap_or_else(|error| {
        eprintln!("standin: {error:#}");
        if let Some(error) = error.downcast_ref::<proxy::LaunchError>() {
            eprintln!("  {}", error.hint());
        }
        exit::of(&error)
    })
}
