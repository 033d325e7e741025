//! `standin`, the command line program for developers.
//!
//! | module | what it does |
//! |---|---|
//! | `exec` | `standin exec`: runs a program in a session |
//! | `ls`, `operator` | `standin ls` and `standin operator`: targets and operators of a cluster |
//! | `cluster` | `standin cluster`: the clusters of a hub |
//! | `api` | the client of the local API of sessions |
//! | `sessions`, `ui`, `mcp` | `standin sessions`, `session`, `ui` and `mcp`: monitor and end sessions of this machine |
//! | `verify`, `diagnose` | `standin verify-config` and `standin diagnose` |
//! | `environment`, `exit`, `process`, `sys`, `table` | names of environment variables, exit codes, facts about processes, signal handlers, text tables |
#![allow(
    clippy::print_stdout,
    clippy::print_stderr,
    reason = "a program: stdout is for results, stderr for messages"
)]

mod api;
mod cluster;
mod diagnose;
#[cfg(test)]
mod documents;
mod environment;
mod exec;
mod exit;
mod ls;
mod mcp;
mod operator;
mod process;
mod sessions;
mod sys;
mod table;
mod ui;
mod verify;

use std::env;
use std::ffi::OsString;
use std::process::ExitCode;

use clap::error::{ContextKind, ContextValue, ErrorKind};
use clap::{CommandFactory as _, Parser};
use clap_complete::Shell;
use error_chain::error_chain;

/// Run a process on your machine as the stand-in for a service, wherever that service runs
///
/// The process sees the environment, files, DNS and network of the service. Nothing is rebuilt, pushed or deployed.
#[derive(Debug, Parser)]
#[command(name = "standin", version, arg_required_else_help = true)]
#[command(after_help = "Start with `standin diagnose` and `standin exec --help`.")]
enum Command {
    /// Run a program as the stand-in for a target
    Exec(Box<exec::ExecArguments>),
    /// List the possible targets in a cluster
    Ls(ls::LsArguments),
    /// Show the status and the sessions of a cluster's operator, and end sessions
    Operator(operator::OperatorArguments),
    /// Use and administer clusters that only a hub reaches
    Cluster(cluster::ClusterArguments),
    /// List the sessions of this machine
    Sessions(sessions::SessionsArguments),
    /// Show a session of this machine, or end it
    Session(sessions::SessionArguments),
    /// Show the sessions of this machine in a browser
    Ui(ui::UiArguments),
    /// Give coding agents access to sessions: a Model Context Protocol server on standard input and output
    ///
    /// An MCP client starts it with the command `standin mcp`.
    #[command(verbatim_doc_comment)]
    Mcp(mcp::McpArguments),
    /// Explain every problem of a configuration file
    VerifyConfig(verify::VerifyArguments),
    /// Check what this machine supports, and how to fix what is missing
    Diagnose(diagnose::DiagnoseArguments),
    /// Print completions for a shell
    ///
    /// For bash: `standin completions bash > ~/.local/share/bash-completion/completions/standin`
    #[command(verbatim_doc_comment)]
    Completions { shell: Shell },
}

/// Adds a tip if the program is named without `--` before it.
fn with_tip(mut error: clap::Error, arguments: &[OsString]) -> clap::Error {
    let is_exec = arguments.get(1).is_some_and(|command| command == "exec");
    let has_dashes = arguments.iter().any(|argument| argument == "--");
    let unknown = match error.get(ContextKind::InvalidArg) {
        Some(ContextValue::String(unknown)) if error.kind() == ErrorKind::UnknownArgument => {
            unknown.clone()
        }
        _ => return error,
    };
    if is_exec && !has_dashes && !unknown.starts_with('-') {
        let tip = format!("the program comes after `--`: standin exec … -- {unknown} …");
        let tips = ContextValue::StyledStrs(vec![tip.into()]);
        error.insert(ContextKind::Suggested, tips);
    }
    error
}

fn main() -> ExitCode {
    let arguments: Vec<OsString> = env::args_os().collect();
    let command = Command::try_parse_from(&arguments).unwrap_or_else(|error| {
        with_tip(error, &arguments).exit();
    });
    let result = match command {
        Command::Exec(arguments) => exec::run(&arguments),
        Command::Ls(arguments) => ls::run(&arguments),
        Command::Operator(arguments) => operator::run(&arguments),
        Command::Cluster(arguments) => cluster::run(&arguments),
        Command::Sessions(arguments) => sessions::list(&arguments),
        Command::Session(arguments) => sessions::run(&arguments),
        Command::Ui(arguments) => ui::run(&arguments),
        Command::Mcp(arguments) => mcp::run(&arguments),
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
        eprintln!("standin: {}", error_chain(error.as_ref()));
        if let Some(error) = error.downcast_ref::<proxy::LaunchError>() {
            eprintln!("  {}", error.hint());
        }
        exit::of(&error)
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_missing_separator_has_a_tip() {
        let error_of = |line: &str| {
            let arguments: Vec<OsString> = line.split(' ').map(OsString::from).collect();
            let error = Command::try_parse_from(&arguments).unwrap_err();
            with_tip(error, &arguments).to_string()
        };
        let tip = "tip: the program comes after `--`: standin exec … -- ls …";
        assert!(error_of("standin exec -t process/1 ls -l").contains(tip));
        let other = error_of("standin exec -t process/1 --unknown -- ls");
        assert!(!other.contains("the program comes"));
        assert!(!error_of("standin diagnose ls").contains("the program comes"));
    }
}
