//! `standin diagnose`: checks what this machine supports, with a remedy for each missing part.

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
    after_help = "Exit code: 0 if sessions work on this machine, even with limitations; 1 if they do not."
)]
pub(crate) struct DiagnoseArguments {
    /// Print JSON
    #[arg(long)]
    json: bool,
}

/// The result of one check.
#[derive(Debug, PartialEq, Eq, Serialize)]
struct Check {
    name: &'static str,
    state: State,
    /// The result as text.
    found: String,
    /// What the user can do, if anything.
    #[serde(skip_serializing_if = "Option::is_none")]
    remedy: Option<String>,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(rename_all = "lowercase")]
enum State {
    Ok,
    /// Sessions work, but something is slower, less exact or impossible.
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
    checks.extend(system_call_checks(&proxy::diagnose()));
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
                "Sessions do not work on this machine yet: see the missing parts above."
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

    fn failed(
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
        let (label, paint) = match self.state {
            State::Ok => ("ok     ", "\x1b[32m"),
            State::Limited => ("limited", "\x1b[33m"),
            State::Missing => ("missing", "\x1b[31m"),
        };
        let label = if color {
            format!("{paint}{label}\x1b[0m")
        } else {
            label.to_owned()
        };
        let remedy = self
            .remedy
            .as_ref()
            .map_or_else(String::new, |remedy| format!(". {remedy}"));
        format!("{label}  {}: {}{remedy}", self.name, self.found)
    }
}

/// The interception of system calls.
fn system_call_checks(diagnosis: &Diagnosis) -> Vec<Check> {
    if let Err(error) = &diagnosis.user_notification {
        let name = "system call interception";
        return vec![Check::failed(
            State::Missing,
            name,
            error.to_string(),
            error.hint(),
        )];
    }
    const TRACE: &str = "The right to trace child processes is missing: set kernel.yama.ptrace_scope to 1 or less, or, in a \
                         container, add the capability SYS_PTRACE";
    let mut checks = vec![Check::ok(
        "system call interception",
        "seccomp user notification works",
    )];
    #[rustfmt::skip] // A table is read by its columns.
    let required = [
        ("memory of the program",  diagnosis.read_memory,      "it can be read",        "it cannot be read",   TRACE),
        ("sockets of the program", diagnosis.copy_descriptors, "they can be connected", "they cannot be connected", TRACE),
    ];
    #[rustfmt::skip]
    let better = [
        ("replies with descriptors", diagnosis.reply_with_descriptor, "in one step", "in two steps: a signal may interrupt them", "Linux 5.14 does it in one step"),
        ("signals", diagnosis.wait_killable, "they wait for replies", "some calls of programs may fail with EINTR", "Linux 5.19 lets signals wait"),
        ("reply latency", diagnosis.same_processor_wake_up, "replies need no switch of the processor", "each call takes some microseconds longer", "Linux 6.6 is faster"),
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
                Check::failed(state, name, *bad, *remedy)
            });
        }
    }
    checks
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_line_has_the_result_and_the_remedy() {
        let fine = Check::ok("podman", "podman version 5");
        assert_eq!(fine.line(false), "ok       podman: podman version 5");
        let wrong = Check::failed(State::Missing, "agent", "no program", "Set its path");
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
