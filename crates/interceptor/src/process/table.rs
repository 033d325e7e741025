//! State of each process that the kernel does not have: whether its program is skipped, and its working directory if
//! that is on the target.
//!
//! A child inherits the state of its parent, but we do not see its creation. So a process that is not in the table has
//! the state of its parent. Before the state of a parent changes, or the parent ends, its children are added to the
//! table.

use std::collections::{HashMap, HashSet};
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use parking_lot::Mutex;

use super::status::{children_of, group_of, parent_and_start};
use crate::sys::process::{is_thread_of, own_id};

/// How many ancestors of a process are searched for one in the table.
const MAX_DEPTH: u32 = 64;
/// How long a process ID is assumed to belong to the same process. IDs are not reused that soon.
const IDENTITY_TTL: Duration = Duration::from_millis(50);
/// When the table has this many processes, ended ones are removed.
const CLEANUP_THRESHOLD: usize = 256;

#[derive(Debug, Clone, Default, PartialEq, Eq)]
struct State {
    skipped: bool,
    /// Always `None` for a skipped process. `None` means the directory that the kernel has.
    directory: Option<PathBuf>,
}

#[derive(Debug)]
struct ProcessEntry {
    started: u64,
    checked: Instant,
    state: State,
}

#[derive(Debug, Default)]
struct Table {
    processes: HashMap<libc::pid_t, ProcessEntry>,
    /// The process of each thread; verified before use.
    groups: HashMap<libc::pid_t, libc::pid_t>,
    clean_at: usize,
}

#[derive(Debug, Default)]
pub(crate) struct Processes {
    /// Whether any state was ever changed, so that the common case costs nothing.
    any: AtomicBool,
    any_directory: AtomicBool,
    any_root: AtomicBool,
    table: Mutex<Table>,
    /// Processes that were already reported to the user.
    notified: Mutex<HashSet<libc::pid_t>>,
}

impl Processes {
    /// Calls `notify` once for each process. It may be called again for a process when many others have been reported
    /// since.
    pub(crate) fn notify_once(&self, thread: libc::pid_t, notify: impl FnOnce(libc::pid_t)) {
        let process = group_of(thread).unwrap_or(thread);
        let mut notified = self.notified.lock();
        if notified.len() >= 4 * CLEANUP_THRESHOLD {
            notified.clear();
        }
        let is_new = notified.insert(process);
        drop(notified);
        if is_new {
            notify(process);
        }
    }

    pub(crate) fn is_skipped(&self, thread: libc::pid_t) -> bool {
        self.any.load(Ordering::Relaxed)
            && self
                .table
                .lock()
                .state_of(thread)
                .is_some_and(|state| state.skipped)
    }

    /// Sets whether the program that the process executes is skipped.
    pub(super) fn set_skipped(&self, thread: libc::pid_t, skipped: bool) {
        if skipped || self.any.load(Ordering::Relaxed) {
            self.change(thread, |state| state.skipped = skipped);
        }
    }

    /// Whether any process has a working directory that the kernel does not know.
    pub(crate) fn any_directory(&self) -> bool {
        self.any_directory.load(Ordering::Relaxed)
    }

    /// The working directory of the process, if it is on the target.
    pub(crate) fn directory_of(&self, thread: libc::pid_t) -> Option<PathBuf> {
        if !self.any_directory() {
            return None;
        }
        self.table.lock().state_of(thread)?.directory.clone()
    }

    pub(crate) fn set_directory(&self, thread: libc::pid_t, directory: Option<PathBuf>) {
        if directory.is_none() && !self.any_directory() {
            return;
        }
        self.any_directory.store(true, Ordering::Relaxed);
        self.change(thread, |state| state.directory = directory);
    }

    /// Updates working directories after a directory of the target was renamed.
    pub(crate) fn rename(&self, from: &Path, to: &Path) {
        if !self.any_directory() {
            return;
        }
        for entry in self.table.lock().processes.values_mut() {
            if let Some(directory) = &mut entry.state.directory
                && let Ok(rest) = directory.strip_prefix(from)
            {
                *directory = join_path(to, rest);
            }
        }
    }

    /// Records that a process may have another root directory or mount namespace from now on.
    pub(crate) fn expect_other_roots(&self) {
        self.any_root.store(true, Ordering::Relaxed);
    }

    /// Whether the root directory of this process differs from ours.
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
        self.table.lock().change(thread, change);
    }

    /// The process is about to end: its children inherit its state now.
    pub(super) fn process_ended(&self, thread: libc::pid_t) {
        if !self.any.load(Ordering::Relaxed) {
            return;
        }
        let mut table = self.table.lock();
        let Some(process) = table.group_of(thread) else {
            return;
        };
        table.track_children(process);
        table.processes.remove(&process);
    }
}

/// Like `Path::join`, but adds no slash if `rest` is empty.
pub(crate) fn join_path(path: &Path, rest: &Path) -> PathBuf {
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
            if self.groups.len() > 4 * CLEANUP_THRESHOLD {
                self.groups.clear();
            }
            self.groups.insert(thread, group);
        }
        Some(group)
    }

    fn state_of(&mut self, thread: libc::pid_t) -> Option<&State> {
        let process = self.group_of(thread)?;
        self.track(process, MAX_DEPTH);
        Some(&self.processes.get(&process)?.state)
    }

    fn change(&mut self, thread: libc::pid_t, change: impl FnOnce(&mut State)) {
        let Some(process) = self.group_of(thread) else {
            return;
        };
        self.track(process, MAX_DEPTH);
        let Some(entry) = self.processes.get(&process) else {
            return;
        };
        let mut state = entry.state.clone();
        change(&mut state);
        if state != entry.state {
            self.track_children(process);
            if let Some(entry) = self.processes.get_mut(&process) {
                entry.state = state;
            }
        }
    }

    fn track_children(&mut self, process: libc::pid_t) {
        for child in children_of(process) {
            self.track(child, MAX_DEPTH);
        }
    }

    /// Adds a process to the table, with the state of its parent.
    fn track(&mut self, process: libc::pid_t, depth: u32) {
        let now = Instant::now();
        let entry = self.processes.get(&process);
        if entry.is_some_and(|entry| now.duration_since(entry.checked) < IDENTITY_TTL) {
            return;
        }
        let Some((parent, started)) = parent_and_start(process) else {
            return;
        };
        if let Some(entry) = self.processes.get_mut(&process)
            && entry.started == started
        {
            entry.checked = now;
            return;
        }
        let mut state = State::default();
        if parent > 1 && depth > 0 && parent != own_id() {
            self.track(parent, depth - 1);
            state = self
                .processes
                .get(&parent)
                .map_or(state, |parent| parent.state.clone());
        }
        self.clean();
        let entry = ProcessEntry {
            started,
            checked: now,
            state,
        };
        self.processes.insert(process, entry);
    }

    /// Removes processes that were killed, for which there is no event.
    fn clean(&mut self) {
        if self.processes.len() < self.clean_at.max(CLEANUP_THRESHOLD) {
            return;
        }
        self.processes.retain(|process, entry| {
            parent_and_start(*process).is_some_and(|(_, started)| started == entry.started)
        });
        self.clean_at = self.processes.len() * 2;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_process_is_reported_once_and_memory_is_bounded() {
        let processes = Processes::default();
        let mut reported = Vec::new();
        // These process IDs do not exist, so they count as their own first threads.
        for _ in 0..2 {
            processes.notify_once(-1, |process| reported.push(process));
        }
        assert_eq!(reported, [-1]);
        for process in 2..10_000 {
            processes.notify_once(-process, |process| reported.push(process));
        }
        assert_eq!(reported.len(), 9_999);
        assert!(processes.notified.lock().len() <= 4 * CLEANUP_THRESHOLD);
    }
}
