//! The lab's long-running processes are this same program, started again with a role as its first argument.
//!
//! A program that uses the lab calls [`run_if_requested`] as the first statement of `main`. So the demo, the tests and the
//! benchmarks need no separate daemon program that is built or installed.

use std::env;
use std::path::{Path, PathBuf};
use std::process::{self, Command};

use crate::error::{ErrorContext as _, Result};
use crate::{daemon, node};

/// The first argument of the lab's processes. The calling program has no argument of this name.
pub(crate) const MARKER: &str = "standin-lab-role";

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Role {
    /// Owns one lab: its network, its nodes, its faults.
    Daemon,
    /// Process 1 of one node.
    Node,
}

impl Role {
    fn name(self) -> &'static str {
        match self {
            Role::Daemon => "daemon",
            Role::Node => "node",
        }
    }

    fn from_name(name: &str) -> Option<Self> {
        [Role::Daemon, Role::Node]
            .into_iter()
            .find(|role| role.name() == name)
    }
}

/// Runs as a process of the lab if this program was started as one, and never returns then. Returns otherwise.
#[expect(
    clippy::print_stderr,
    clippy::disallowed_methods,
    reason = "this is the `main` of the lab's own processes: it prints to their log and exits"
)]
pub fn run_if_requested() {
    let mut arguments = env::args_os().skip(1);
    if arguments.next().is_none_or(|first| first != MARKER) {
        return;
    }
    let role = arguments
        .next()
        .and_then(|name| Role::from_name(&name.to_string_lossy()));
    let directory = arguments.next().map(PathBuf::from);
    let result = match (role, directory) {
        (Some(Role::Daemon), Some(directory)) => daemon::main(&directory),
        (Some(Role::Node), Some(directory)) => node::main(&directory),
        _ => {
            eprintln!("usage: {MARKER} daemon|node DIRECTORY");
            process::exit(2);
        }
    };
    if let Err(error) = result {
        let mut cause: Option<&dyn std::error::Error> = Some(&error);
        while let Some(error) = cause {
            eprintln!("{error}");
            cause = error.source();
        }
        process::exit(1);
    }
    process::exit(0);
}

/// This program in another role.
pub(crate) fn command(role: Role, directory: &Path) -> Result<Command> {
    let mut command = Command::new(executable()?);
    command.args(arguments(role, directory));
    // The PATH of a user who becomes root does not always have the directories for administrators.
    let path = env::var("PATH").unwrap_or_default();
    command.env("PATH", format!("{path}:/usr/local/sbin:/usr/sbin:/sbin"));
    Ok(command)
}

/// This program in another role, as arguments for a program such as `unshare` that starts another.
pub(crate) fn command_line(role: Role, directory: &Path) -> Result<Vec<String>> {
    let mut line = vec![executable()?.display().to_string()];
    line.extend(arguments(role, directory));
    Ok(line)
}

fn executable() -> Result<PathBuf> {
    // A new build may have replaced the file on disk. The link in /proc still leads to the running program.
    Path::new("/proc/self/exe")
        .read_link()
        .with_context(|| "find this program".to_owned())
        .map(|path| {
            if path.exists() {
                path
            } else {
                PathBuf::from(format!("/proc/{}/exe", process::id()))
            }
        })
}

fn arguments(role: Role, directory: &Path) -> [String; 3] {
    [
        MARKER.to_owned(),
        role.name().to_owned(),
        directory.display().to_string(),
    ]
}
