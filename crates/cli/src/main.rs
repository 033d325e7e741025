//! `standin`, the developer's program.
#![allow(
    clippy::print_stdout,
    clippy::print_stderr,
    reason = "a program: stdout carries results, stderr carries talk"
)]

mod api;
mod diagnose;
#[cfg(test)]
mod documents;
mod environment;
mod exec;
mod exit;
mod ls;
mod mcp;
mod operator;
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
    /// Ask the operator of a cluster what it is and who uses it, and end sessions
    Operator(operator::OperatorArguments),
    /// List the sessions of this machine
    Sessions(sessions::SessionsArguments),
    /// Look at a session of this machine, or end it
    Session(sessions::SessionArguments),
    /// Show the sessions of this machine in a browser
    Ui(ui::UiArguments),
    /// Let coding agents ask about sessions: a server of the Model Context Protocol on standard input and output
    ///
    /// A client starts it by the command `standin mcp`.
    #[command(verbatim_doc_comment)]
    Mcp(mcp::McpArguments),
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

/// Says what is missing when a program is named without `--` before it.
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
        eprintln!("standin: {}", chain(&error));
        if let Some(error) = error.downcast_ref::<proxy::LaunchError>() {
            eprintln!("  {}", error.hint());
        }
        exit::of(&error)
    })
}

/// An error with its causes, in one line. Some of them repeat what is behind them.
fn chain(error: &anyhow::Error) -> String {
    let mut text = String::new();
    for cause in error.chain().map(ToString::to_string) {
        if text.is_empty() {
            text = cause;
        } else if !text.ends_with(&cause) {
            text = format!("{text}: {cause}");
        }
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_a_cause_repeats_is_said_once() {
        let error = |causes: &[&'static str]| {
            let (last, others) = causes.split_last().unwrap();
            let others = others.iter().rev();
            chain(&others.fold(anyhow::Error::msg(*last), |error, text| {
                error.context(*text)
            }))
        };
        assert_eq!(error(&["a", "b", "c"]), "a: b: c");
        assert_eq!(error(&["a", "cannot b: c", "c"]), "a: cannot b: c");
    }

    #[test]
    fn who_forgets_the_dashes_is_told() {
        let said = |line: &str| {
            let arguments: Vec<OsString> = line.split(' ').map(OsString::from).collect();
            let error = Command::try_parse_from(&arguments).unwrap_err();
            with_tip(error, &arguments).to_string()
        };
        let tip = "tip: the program comes after `--`: standin exec … -- ls …";
        assert!(said("standin exec -t process/1 ls -l").contains(tip));
        assert!(!said("standin exec -t process/1 --unknown -- ls").contains("the program comes"));
        assert!(!said("standin diagnose ls").contains("the program comes"));
    }
}
