//! `standin diagnose`: what this machine can do, one line for each part, with what to do about what is missing.

mod machine;

use std::io::{self, IsTerminal as _};
use std::process::ExitCode;

use anyhow::Result;
use clap::Args;
use proxy::Diagnosis;
use serde::Serialize;

use crate::exec::colors;

#[derive(Debug, Args)]
#[command(
    after_help = "Exit code: 0 when sessions work on this machine, if perhaps not all of their parts; 1 when they do not."
)]
pub(crate) struct DiagnoseArguments {
    /// Print JSON
    #[arg(long)]
    json: bool,
}

/// One thing that was looked at.
#[derive(Debug, PartialEq, Eq, Serialize)]
struct Check {
    name: &'static str,
    state: State,
    /// What was found.
    found: String,
    /// What to do, if anything.
    #[serde(skip_serializing_if = "Option::is_none")]
    remedy: Option<String>,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(rename_all = "lowercase")]
enum State {
    Ok,
    /// Sessions work, and something is slower, less exact or not possible in them.
    Limited,
    /// No session works.
    Missing,
}

#[derive(Serialize)]
struct Report<'a> {
    sessions_work: bool,
    checks: &'a [Check],
}

pub(crate) fn run(arguments: &DiagnoseArguments) -> Result<ExitCode> {
    let mut checks = vec![machine::kernel()];
    checks.extend(of_calls(&proxy::diagnose()));
    checks.extend(machine::all());
    let sessions_work = checks.iter().all(|check| check.state != State::Missing);
    if arguments.json {
        let report = Report {
            sessions_work,
            checks: &checks,
        };
        println!("{}", serde_json::to_string_pretty(&report)?);
    } else {
        let color = colors() && io::stdout().is_terminal();
        for check in &checks {
            println!("{}", check.line(color));
        }
        println!(
            "{}",
            if sessions_work {
                "Sessions work on this machine."
            } else {
                "Sessions do not work on this machine yet: see what is missing."
            }
        );
    }
    Ok(if sessions_work {
        ExitCode::SUCCESS
    } else {
        ExitCode::FAILURE
    })
}

impl Check {
    fn ok(name: &'static str, found: impl Into<String>) -> Self {
        Self {
            name,
            state: State::Ok,
            found: found.into(),
            remedy: None,
        }
    }

    fn not(
        state: State,
        name: &'static str,
        found: impl Into<String>,
        remedy: impl Into<String>,
    ) -> Self {
        Self {
            name,
            state,
            found: found.into(),
            remedy: Some(remedy.into()),
        }
    }

    fn line(&self, color: bool) -> String {
        let (word, paint) = match self.state {
            State::Ok => ("ok     ", "\x1b[32m"),
            State::Limited => ("limited", "\x1b[33m"),
            State::Missing => ("missing", "\x1b[31m"),
        };
        let word = if color {
            format!("{paint}{word}\x1b[0m")
        } else {
            word.to_owned()
        };
        let remedy = self
            .remedy
            .as_ref()
            .map_or_else(String::new, |remedy| format!(". {remedy}"));
        format!("{word}  {}: {}{remedy}", self.name, self.found)
    }
}

/// Catching system calls, as it was tried out.
fn of_calls(diagnosis: &Diagnosis) -> Vec<Check> {
    if let Err(error) = &diagnosis.user_notification {
        let name = "catching system calls";
        return vec![Check::not(
            State::Missing,
            name,
            error.to_string(),
            error.hint(),
        )];
    }
    const TRACE: &str = "The right to trace one's own children is missing: set kernel.yama.ptrace_scope to 1 or less, or, in a \
                         container, add the capability SYS_PTRACE";
    let mut checks = vec![Check::ok(
        "catching system calls",
        "seccomp user notification works",
    )];
    #[rustfmt::skip] // A table is read by its columns.
    let required = [
        ("memory of the program",  diagnosis.read_memory,      "it can be read",        "it cannot be read",   TRACE),
        ("sockets of the program", diagnosis.copy_descriptors, "they can be connected", "they cannot be connected", TRACE),
    ];
    #[rustfmt::skip]
    let better = [
        ("answers with descriptors", diagnosis.answer_with_descriptor, "in one step", "in two steps: a signal may come between", "Linux 5.14 does it in one"),
        ("signals", diagnosis.signals_wait, "they wait for answers", "some calls of programs may fail with EINTR", "Linux 5.19 lets signals wait"),
        ("speed of answers", diagnosis.same_processor_wake_up, "without changing the processor", "each call takes some microseconds longer", "Linux 6.6 is quicker"),
    ];
    let states = [
        (State::Missing, &required[..]),
        (State::Limited, &better[..]),
    ];
    for (state, table) in states {
        for (name, works, good, bad, remedy) in table {
            checks.push(if *works {
                Check::ok(name, *good)
            } else {
                Check::not(state, name, *bad, *remedy)
            });
        }
    }
    checks
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_line_says_what_was_found_and_what_to_do() {
        let fine = Check::ok("podman", "podman version 5");
        assert_eq!(fine.line(false), "ok       podman: podman version 5");
        let wrong = Check::not(State::Missing, "agent", "no program", "Set its path");
        assert_eq!(
            wrong.line(false),
            "missing  agent: no program. Set its path"
        );
        assert_eq!(
            wrong.line(true),
            "\x1b[31mmissing\x1b[0m  agent: no program. Set its path"
        );
    }
}
