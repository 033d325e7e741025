//! What is known of the application's processes: which are left alone, and where those are whose working directory
//! is only ours to know.

use std::collections::{HashMap, HashSet};
use std::os::fd::{AsFd, OwnedFd, RawFd};
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};
use std::sync::Mutex;
use std::sync::atomic::{AtomicBool, Ordering};

use crate::Errno;
use crate::notification::{Notification, errno_of};
use crate::supervisor::{Decision, Supervisor};
use crate::sys::files::ticks_since_start;
use crate::sys::process;
use crate::syscalls::Call;
use crate::workers::lock;

/// The working directory of a process over time, oldest first: `None` is the one that the kernel knows.
type History = Vec<(u64, Option<PathBuf>)>;

#[derive(Debug, Default)]
pub(crate) struct Processes {
    /// Whether anything is in the tables, so that the common case costs nothing.
    any_directory: AtomicBool,
    any_left_alone: AtomicBool,
    directories: Mutex<HashMap<libc::pid_t, History>>,
    left_alone: Mutex<HashSet<libc::pid_t>>,
    told: Mutex<HashSet<libc::pid_t>>,
}

impl Processes {
    /// Calls `say` the first time for each process.
    pub(crate) fn say_once(&self, thread: libc::pid_t, say: impl FnOnce(libc::pid_t)) {
        let process = group_of(thread).unwrap_or(thread);
        if lock(&self.told).insert(process) {
            say(process);
        }
    }

    pub(crate) fn is_left_alone(&self, thread: libc::pid_t) -> bool {
        self.any_left_alone.load(Ordering::Relaxed)
            && group_of(thread).is_ok_and(|process| lock(&self.left_alone).contains(&process))
    }

    fn set_left_alone(&self, thread: libc::pid_t, alone: bool) {
        if !alone && !self.any_left_alone.load(Ordering::Relaxed) {
            return;
        }
        let Ok(process) = group_of(thread) else {
            return;
        };
        let mut left_alone = lock(&self.left_alone);
        if alone {
            left_alone.insert(process);
            self.any_left_alone.store(true, Ordering::Relaxed);
        } else {
            left_alone.remove(&process);
        }
    }

    /// Whether the directory of any process is only ours to know.
    pub(crate) fn any_directory(&self) -> bool {
        self.any_directory.load(Ordering::Relaxed)
    }

    /// The directory in which the process is, if only we know it.
    pub(crate) fn directory_of(&self, thread: libc::pid_t) -> Option<PathBuf> {
        if !self.any_directory() {
            return None;
        }
        let process = group_of(thread).ok()?;
        self.latest_directory(&mut lock(&self.directories), process)
    }

    fn latest_directory(
        &self,
        directories: &mut HashMap<libc::pid_t, History>,
        process: libc::pid_t,
    ) -> Option<PathBuf> {
        self.know(directories, process, 64);
        directories.get(&process)?.last()?.1.clone()
    }

    /// Finds out where a process that was not seen before was born: where its parent was at that moment.
    fn know(
        &self,
        directories: &mut HashMap<libc::pid_t, History>,
        process: libc::pid_t,
        depth: u32,
    ) {
        let Some((parent, started)) = parent_and_start(process) else {
            return;
        };
        // An entry from before the process started is of another one with its number.
        let known = directories
            .get(&process)
            .and_then(|history| history.first())
            .is_some_and(|(since, _)| *since >= started);
        if known {
            return;
        }
        let mut inherited = None;
        if parent > 1 && depth > 0 && parent != crate::sys::process::own_id() {
            self.know(directories, parent, depth - 1);
            inherited = directories.get(&parent).and_then(|history| {
                let before = history.iter().rev().find(|(since, _)| *since <= started);
                before.and_then(|(_, directory)| directory.clone())
            });
        }
        directories.insert(process, vec![(started, inherited)]);
    }

    pub(crate) fn set_directory(&self, thread: libc::pid_t, directory: Option<PathBuf>) {
        if directory.is_none() && !self.any_directory.load(Ordering::Relaxed) {
            return;
        }
        let Ok(process) = group_of(thread) else {
            return;
        };
        self.any_directory.store(true, Ordering::Relaxed);
        let mut directories = lock(&self.directories);
        self.know(&mut directories, process, 64);
        let history = directories.entry(process).or_default();
        history.push((ticks_since_start(), directory));
        // Children are seen soon after they are born; they need no older entries.
        if history.len() > 16 {
            history.remove(1);
        }
    }

    /// The process ends: its children must inherit now, or never.
    fn ends(&self, thread: libc::pid_t) {
        if !self.any_directory.load(Ordering::Relaxed)
            && !self.any_left_alone.load(Ordering::Relaxed)
        {
            return;
        }
        let Ok(process) = group_of(thread) else {
            return;
        };
        lock(&self.left_alone).remove(&process);
        let mut directories = lock(&self.directories);
        if directories.contains_key(&process) {
            for child in children_of(process) {
                self.know(&mut directories, child, 64);
            }
            directories.remove(&process);
        }
    }
}

pub(crate) fn decide(supervisor: &Supervisor, call: Call, notification: &Notification) -> Decision {
    let thread = notification.thread();
    match call {
        Call::ExitGroup => supervisor.processes.ends(thread),
        // Programs are always started from this machine's files.
        Call::Execve => {
            if let Ok(path) = notification.read_string(notification.argument(0)) {
                let path = Path::new(std::ffi::OsStr::from_bytes(&path));
                let relative = !path.is_absolute();
                if relative && supervisor.processes.directory_of(thread).is_some() {
                    return Decision::Answer(Err(Errno::ENOENT));
                }
                let alone = supervisor.host.leaves_alone(path);
                supervisor.processes.set_left_alone(thread, alone);
            }
        }
        _ => {}
    }
    Decision::Pass
}

/// Our own copy of a descriptor of a thread.
pub(crate) fn copy_descriptor_of(thread: libc::pid_t, number: RawFd) -> Result<OwnedFd, Errno> {
    let process = match process::open_thread(thread) {
        Err(Errno::EINVAL) => process::open(group_of(thread)?),
        result => result,
    }?;
    process::copy_descriptor(process.as_fd(), number)
}

/// The process of a thread.
pub(crate) fn group_of(thread: libc::pid_t) -> Result<libc::pid_t, Errno> {
    let status = read(&format!("/proc/{thread}/status"))?;
    field(&status, "Tgid:")
        .and_then(|text| text.parse().ok())
        .ok_or(Errno::ESRCH)
}

/// The mode bits that the process takes away from files that it creates.
pub(crate) fn creation_mask_of(thread: libc::pid_t) -> u32 {
    read(&format!("/proc/{thread}/status"))
        .ok()
        .and_then(|status| u32::from_str_radix(field(&status, "Umask:")?, 8).ok())
        .unwrap_or(0o022)
}

/// Whether a signal waits that would interrupt a call of this thread.
pub(crate) fn has_signal(thread: libc::pid_t) -> bool {
    let Ok(status) = read(&format!("/proc/{thread}/status")) else {
        return false;
    };
    signal_interrupts(&status)
}

/// A signal to the thread itself always interrupts it. One to the whole process is given to one thread, and the first
/// is preferred: for any other we cannot know, and answering would be wrong if it is not the one.
fn signal_interrupts(status: &str) -> bool {
    let set = |name| {
        field(status, name)
            .and_then(|text| u64::from_str_radix(text, 16).ok())
            .unwrap_or(0)
    };
    let unblocked = !set("SigBlk:");
    let first = field(status, "Tgid:") == field(status, "Pid:");
    set("SigPnd:") & unblocked != 0 || first && set("ShdPnd:") & unblocked != 0
}

fn field<'a>(status: &'a str, name: &str) -> Option<&'a str> {
    status
        .lines()
        .find_map(|line| line.strip_prefix(name))
        .map(str::trim)
}

fn read(path: &str) -> Result<String, Errno> {
    // A process's name may be any bytes.
    let bytes = std::fs::read(path).map_err(|error| errno_of(&error))?;
    Ok(String::from_utf8_lossy(&bytes).into_owned())
}

fn parent_and_start(process: libc::pid_t) -> Option<(libc::pid_t, u64)> {
    let stat = read(&format!("/proc/{process}/stat")).ok()?;
    let (_, after_name) = stat.rsplit_once(')')?;
    let mut fields = after_name.split_whitespace();
    let parent = fields.nth(1)?.parse().ok()?;
    let start = fields.nth(17)?.parse().ok()?;
    Some((parent, start))
}

fn children_of(process: libc::pid_t) -> Vec<libc::pid_t> {
    let threads = std::fs::read_dir(format!("/proc/{process}/task"));
    threads
        .into_iter()
        .flatten()
        .flatten()
        .filter_map(|thread| std::fs::read_to_string(thread.path().join("children")).ok())
        .flat_map(|children| {
            let numbers = children
                .split_whitespace()
                .filter_map(|text| text.parse().ok());
            numbers.collect::<Vec<libc::pid_t>>()
        })
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn which_signals_interrupt() {
        #[rustfmt::skip] // A table is read by its columns.
        let table = [
            ("none",                              10, 10, 0,     0,     0,     false),
            ("to the thread",                     10, 10, 0x200, 0,     0,     true),
            ("to the thread, blocked",            10, 10, 0x200, 0,     0x200, false),
            ("to the process, first thread",      10, 10, 0,     0x200, 0,     true),
            ("to the process, another thread",    10, 11, 0,     0x200, 0,     false),
            ("to another thread's, own as well",  10, 11, 0x200, 0x200, 0,     true),
        ];
        for (what, group, thread, own, shared, blocked, expected) in table {
            let status = format!(
                "Name:\tx\nTgid:\t{group}\nPid:\t{thread}\nSigPnd:\t{own:016x}\nShdPnd:\t{shared:016x}\nSigBlk:\t{blocked:016x}\n"
            );
            assert_eq!(signal_interrupts(&status), expected, "{what}");
        }
    }

    #[test]
    fn our_own_process_is_known() {
        let us = crate::sys::process::own_id();
        assert_eq!(group_of(us), Ok(us));
        assert!(parent_and_start(us).is_some_and(|(parent, start)| parent > 0 && start > 0));
    }
}
