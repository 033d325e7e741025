//! The lab's long-lived processes are this same program, started again with a role as its first argument.
//!
//! A program that uses the lab calls [`run_if_asked`] first thing in `main`. So the demo, the tests and the
//! benchmarks each bring their own keeper and need no other program built or installed.

use std::env;
use std::path::{Path, PathBuf};
use std::process::{self, Command};

use crate::error::{Doing as _, Result};
use crate::{keeper, node};

/// Unlikely enough to never be a word of the host program's own command line.
pub(crate) const MARKER: &str = "standin-lab-role";

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Role {
    /// Holds one lab: its network, its nodes, its faults.
    Keeper,
    /// Process 1 of one node.
    Node,
}

impl Role {
    fn name(self) -> &'static str {
        match self {
            Role::Keeper => "keeper",
            Role::Node => "node",
        }
    }

    fn from_name(name: &str) -> Option<Self> {
        [Role::Keeper, Role::Node]
            .into_iter()
            .find(|role| role.name() == name)
    }
}

/// Becomes a process of the lab when that is what this program was started for; returns otherwise.
#[expect(
    clippy::print_stderr,
    clippy::disallowed_methods,
    reason = "this is the `main` of the lab's own processes: it prints to their log and ends them"
)]
pub fn run_if_asked() {
    let mut arguments = env::args_os().skip(1);
    if arguments.next().is_none_or(|first| first != MARKER) {
        return;
    }
    let role = arguments
        .next()
        .and_then(|name| Role::from_name(&name.to_string_lossy()));
    let directory = arguments.next().map(PathBuf::from);
    let result = match (role, directory) {
        (Some(Role::Keeper), Some(directory)) => keeper::main(&directory),
        (Some(Role::Node), Some(directory)) => node::main(&directory),
        _ => {
            eprintln!("usage: {MARKER} keeper|node DIRECTORY");
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
    // The programs for administrators are not on the path of every user who becomes root.
    let path = env::var("PATH").unwrap_or_default();
    command.env("PATH", format!("{path}:/usr/local/sbin:/usr/sbin:/sbin"));
    Ok(command)
}

/// This program in another role, as the arguments of a program that starts programs.
pub(crate) fn command_line(role: Role, directory: &Path) -> Result<Vec<String>> {
    let mut line = vec![executable()?.display().to_string()];
    line.extend(arguments(role, directory));
    Ok(line)
}

fn executable() -> Result<PathBuf> {
    // The link in /proc names the file that runs, also when a new build has replaced it on disk.
    Path::new("/proc/self/exe")
        .read_link()
        .doing(|| "find this program".to_owned())
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
