//! What is known of each process that the kernel does not know: whether it is left alone, and its working directory if
//! that is the target's.
//!
//! A child starts with what its parent has, and we do not see it being born. So a process that is not in the table has
//! what its parent has, and before that changes, or the parent ends, its children are put into the table.

use std::collections::{HashMap, HashSet};
use std::path::{Path, PathBuf};
use std::sync::Mutex;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use super::status::{children_of, group_of, parent_and_start};
use crate::sys::process::{is_thread_of, own_id};
use crate::workers::lock;

/// How deep the tree of processes is looked at to find one that is known.
const DEPTH: u32 = 64;
/// How long a process is taken for the one that had its number before. Numbers are not reused that soon.
const TRUSTED: Duration = Duration::from_millis(50);
/// From this many processes on, those that have ended are looked for now and then.
const MANY: usize = 256;

#[derive(Debug, Clone, Default, PartialEq, Eq)]
struct State {
    left_alone: bool,
    /// `None` is the one that the kernel knows.
    directory: Option<PathBuf>,
}

#[derive(Debug)]
struct Known {
    started: u64,
    checked: Instant,
    state: State,
}

#[derive(Debug, Default)]
struct Table {
    processes: HashMap<libc::pid_t, Known>,
    /// The processes of threads. Checked before it is believed.
    groups: HashMap<libc::pid_t, libc::pid_t>,
    clean_at: usize,
}

#[derive(Debug, Default)]
pub(crate) struct Processes {
    /// Whether anything was ever changed, so that the common case costs nothing.
    any: AtomicBool,
    any_directory: AtomicBool,
    any_root: AtomicBool,
    table: Mutex<Table>,
    /// Processes of which the user was told.
    told: Mutex<HashSet<libc::pid_t>>,
}

impl Processes {
    /// Calls `say` the first time for each process, or once more for one that came long before many others.
    pub(crate) fn say_once(&self, thread: libc::pid_t, say: impl FnOnce(libc::pid_t)) {
        let process = group_of(thread).unwrap_or(thread);
        let mut told = lock(&self.told);
        if told.len() >= 4 * MANY {
            told.clear();
        }
        let is_new = told.insert(process);
        drop(told);
        if is_new {
            say(process);
        }
    }

    pub(crate) fn is_left_alone(&self, thread: libc::pid_t) -> bool {
        self.any.load(Ordering::Relaxed)
            && lock(&self.table)
                .state_of(thread)
                .is_some_and(|state| state.left_alone)
    }

    /// A program is executed.
    pub(super) fn set_left_alone(&self, thread: libc::pid_t, left_alone: bool) {
        if left_alone || self.any.load(Ordering::Relaxed) {
            self.change(thread, |state| state.left_alone = left_alone);
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
        lock(&self.table).state_of(thread)?.directory.clone()
    }

    pub(crate) fn set_directory(&self, thread: libc::pid_t, directory: Option<PathBuf>) {
        if directory.is_none() && !self.any_directory() {
            return;
        }
        self.any_directory.store(true, Ordering::Relaxed);
        self.change(thread, |state| state.directory = directory);
    }

    /// A directory of the target has another name now.
    pub(crate) fn rename(&self, from: &Path, to: &Path) {
        if !self.any_directory() {
            return;
        }
        for known in lock(&self.table).processes.values_mut() {
            if let Some(directory) = &mut known.state.directory
                && let Ok(rest) = directory.strip_prefix(from)
            {
                *directory = joined(to, rest);
            }
        }
    }

    /// A process may from now on see another tree of files than we do.
    pub(crate) fn expect_other_roots(&self) {
        self.any_root.store(true, Ordering::Relaxed);
    }

    /// Whether absolute paths of this process start somewhere else than ours.
    pub(crate) fn has_other_root(&self, thread: libc::pid_t) -> bool {
        use std::os::unix::fs::MetadataExt;
        if !self.any_root.load(Ordering::Relaxed) {
            return false;
        }
        let root = |path: &str| {
            let metadata = std::fs::metadata(path).ok()?;
            Some((metadata.dev(), metadata.ino()))
        };
        root(&format!("/proc/{thread}/root")) != root("/")
    }

    fn change(&self, thread: libc::pid_t, change: impl FnOnce(&mut State)) {
        self.any.store(true, Ordering::Relaxed);
        lock(&self.table).change(thread, change);
    }

    /// The process ends: its children must inherit now, or never.
    pub(super) fn ends(&self, thread: libc::pid_t) {
        if !self.any.load(Ordering::Relaxed) {
            return;
        }
        let mut table = lock(&self.table);
        let Some(process) = table.group_of(thread) else {
            return;
        };
        table.settle_children(process);
        table.processes.remove(&process);
    }
}

/// `Path::join` without the slash that it adds when nothing is added.
pub(crate) fn joined(path: &Path, rest: &Path) -> PathBuf {
    if rest.as_os_str().is_empty() {
        path.to_path_buf()
    } else {
        path.join(rest)
    }
}

impl Table {
    fn group_of(&mut self, thread: libc::pid_t) -> Option<libc::pid_t> {
        if let Some(group) = self.groups.get(&thread)
            && is_thread_of(*group, thread)
        {
            return Some(*group);
        }
        let group = group_of(thread).ok()?;
        if group != thread {
            if self.groups.len() > 4 * MANY {
                self.groups.clear();
            }
            self.groups.insert(thread, group);
        }
        Some(group)
    }

    fn state_of(&mut self, thread: libc::pid_t) -> Option<&State> {
        let process = self.group_of(thread)?;
        self.know(process, DEPTH);
        Some(&self.processes.get(&process)?.state)
    }

    fn change(&mut self, thread: libc::pid_t, change: impl FnOnce(&mut State)) {
        let Some(process) = self.group_of(thread) else {
            return;
        };
        self.know(process, DEPTH);
        let Some(known) = self.processes.get(&process) else {
            return;
        };
        let mut state = known.state.clone();
        change(&mut state);
        if state != known.state {
            self.settle_children(process);
            if let Some(known) = self.processes.get_mut(&process) {
                known.state = state;
            }
        }
    }

    fn settle_children(&mut self, process: libc::pid_t) {
        for child in children_of(process) {
            self.know(child, DEPTH);
        }
    }

    /// Puts a process into the table, with what its parent has.
    fn know(&mut self, process: libc::pid_t, depth: u32) {
        let now = Instant::now();
        let known = self.processes.get(&process);
        if known.is_some_and(|known| now.duration_since(known.checked) < TRUSTED) {
            return;
        }
        let Some((parent, started)) = parent_and_start(process) else {
            return;
        };
        if let Some(known) = self.processes.get_mut(&process)
            && known.started == started
        {
            known.checked = now;
            return;
        }
        let mut state = State::default();
        if parent > 1 && depth > 0 && parent != own_id() {
            self.know(parent, depth - 1);
            state = self
                .processes
                .get(&parent)
                .map_or(state, |parent| parent.state.clone());
        }
        self.clean();
        let known = Known {
            started,
            checked: now,
            state,
        };
        self.processes.insert(process, known);
    }

    /// Forgets processes that were killed, which nobody tells us.
    fn clean(&mut self) {
        if self.processes.len() < self.clean_at.max(MANY) {
            return;
        }
        self.processes.retain(|process, known| {
            parent_and_start(*process).is_some_and(|(_, started)| started == known.started)
        });
        self.clean_at = self.processes.len() * 2;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn of_each_process_is_told_once_and_not_all_are_remembered() {
        let processes = Processes::default();
        let mut said = Vec::new();
        // There are no such processes, so they are taken for their own first threads.
        for _ in 0..2 {
            processes.say_once(-1, |process| said.push(process));
        }
        assert_eq!(said, [-1]);
        for process in 2..10_000 {
            processes.say_once(-process, |process| said.push(process));
        }
        assert_eq!(said.len(), 9_999);
        assert!(lock(&processes.told).len() <= 4 * MANY);
    }
}
