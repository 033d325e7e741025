//! The processes of a session, on this machine and in the cluster.

use std::fs;
use std::path::Path;

use anyhow::Result;
use lab::Lab;
use nix::errno::Errno;
use nix::sys::signal::{Signal, kill as send};
use nix::unistd::Pid;

use crate::scenarios::support::lab_processes;

/// The role of the process that is killed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Role {
    /// `standin`: each of its processes.
    Client,
    /// The developer's program.
    Program,
    Agent,
    Operator,
    /// No process is killed, and the session ends normally.
    None,
}

#[derive(Debug)]
pub(super) struct Victim {
    pub(super) pid: u32,
}

/// Kills a process as the kernel does when memory is exhausted.
pub(super) fn kill(pid: u32) -> Result<()> {
    match send(Pid::from_raw(i32::try_from(pid)?), Signal::SIGKILL) {
        // It has exited already.
        Ok(()) | Err(Errno::ESRCH) => Ok(()),
        Err(error) => Err(error.into()),
    }
}

/// Whether a process exists and is not a zombie.
pub(super) fn is_alive(pid: u32) -> bool {
    let Ok(text) = fs::read_to_string(format!("/proc/{pid}/stat")) else {
        return false;
    };
    let state = text.rsplit(')').next().unwrap_or_default().trim_start();
    !state.starts_with('Z')
}

/// A process and all its descendants.
pub(super) fn process_tree(pid: u32) -> Vec<u32> {
    let mut found = vec![pid];
    let mut next = 0;
    while let Some(pid) = found.get(next).copied() {
        let threads = fs::read_dir(format!("/proc/{pid}/task"))
            .into_iter()
            .flatten();
        for thread in threads.flatten() {
            let children = fs::read_to_string(thread.path().join("children")).unwrap_or_default();
            found.extend(
                children
                    .split_whitespace()
                    .filter_map(|pid| pid.parse::<u32>().ok()),
            );
        }
        next += 1;
    }
    found
}

/// The processes that run `standin` itself, or those that do not.
pub(super) fn standin_processes(family: &[u32], is_standin: bool) -> Vec<u32> {
    let runs_standin = |pid: &u32| {
        let program = fs::read_link(format!("/proc/{pid}/exe")).unwrap_or_default();
        program.file_name() == Path::new("standin").file_name()
    };
    let family = family.iter().copied();
    family
        .filter(|pid| runs_standin(pid) == is_standin)
        .collect()
}

/// The processes of the lab that run `standind` in this role.
pub(super) fn standind_processes(lab: &Lab, role: &str) -> Result<Vec<u32>> {
    lab_processes(lab, |pid| {
        let line = fs::read(format!("/proc/{pid}/cmdline")).unwrap_or_default();
        let mut arguments = line.split(|byte| *byte == 0);
        let program = arguments.next().unwrap_or_default();
        is_alive(pid) && program.ends_with(b"standind") && arguments.next() == Some(role.as_bytes())
    })
}

/// Whether a process runs on a node. Every process of a node is in a control group with the node's name.
pub(super) fn is_on_node(pid: u32, node: &str) -> bool {
    let groups = fs::read_to_string(format!("/proc/{pid}/cgroup")).unwrap_or_default();
    groups.split(['/', '\n']).any(|part| part == node)
}
