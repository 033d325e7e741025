//! Information about processes from `/proc`.

use std::time::{Duration, Instant};

use crate::Errno;
use crate::notification::errno_of;
use crate::sys::process::is_thread_of;

/// The process (thread group) of a thread.
pub(crate) fn group_of(thread: libc::pid_t) -> Result<libc::pid_t, Errno> {
    // Most calls are made by the first thread, and this check costs a tenth of reading `/proc`.
    if is_thread_of(thread, thread) {
        return Ok(thread);
    }
    let status = read(&format!("/proc/{thread}/status"))?;
    field(&status, "Tgid:")
        .and_then(|text| text.parse().ok())
        .ok_or(Errno::ESRCH)
}

/// The umask of the process.
pub(crate) fn umask_of(thread: libc::pid_t) -> u32 {
    read(&format!("/proc/{thread}/status"))
        .ok()
        .and_then(|status| u32::from_str_radix(field(&status, "Umask:")?, 8).ok())
        .unwrap_or(0o022)
}

/// Whether the process has `no_new_privs` set.
pub(super) fn has_no_new_privileges(thread: libc::pid_t) -> bool {
    read(&format!("/proc/{thread}/status"))
        .is_ok_and(|status| field(&status, "NoNewPrivs:") == Some("1"))
}

/// Whether the thread has a capability, by its number, in its own user namespace.
pub(crate) fn has_capability(thread: libc::pid_t, capability: u32) -> bool {
    let status = read(&format!("/proc/{thread}/status"));
    status.is_ok_and(|status| {
        let effective = field(&status, "CapEff:");
        let effective = effective.and_then(|text| u64::from_str_radix(text, 16).ok());
        effective.unwrap_or(0) >> capability & 1 == 1
    })
}

/// How often a suspended call is polled for the end of its caller and for signals. The interval grows with the time
/// that the call has been suspended, so that a thousand waiting calls cost little.
#[derive(Debug)]
pub(crate) struct PollInterval {
    since: Instant,
}

impl PollInterval {
    pub(crate) fn new() -> Self {
        Self {
            since: Instant::now(),
        }
    }

    /// How long to wait until the next poll.
    pub(crate) fn next_delay(&mut self) -> Duration {
        interval_after(self.since.elapsed())
    }
}

fn interval_after(waited: Duration) -> Duration {
    (waited / 16).clamp(Duration::from_millis(5), Duration::from_millis(200))
}

/// Whether a signal is pending that would interrupt a call of this thread.
pub(crate) fn has_signal(thread: libc::pid_t) -> bool {
    let Ok(status) = read(&format!("/proc/{thread}/status")) else {
        return false;
    };
    signal_interrupts(&status)
}

/// A signal for the thread itself always interrupts it. The kernel delivers a signal for the whole process to one
/// thread, preferably the first. For any other thread we cannot know whether it is the one, and interrupting the wrong
/// thread would be an error.
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
    // The name of a process may contain arbitrary bytes.
    let bytes = std::fs::read(path).map_err(|error| errno_of(&error))?;
    Ok(String::from_utf8_lossy(&bytes).into_owned())
}

pub(super) fn parent_and_start(process: libc::pid_t) -> Option<(libc::pid_t, u64)> {
    let stat = read(&format!("/proc/{process}/stat")).ok()?;
    let (_, after_name) = stat.rsplit_once(')')?;
    let mut fields = after_name.split_whitespace();
    let parent = fields.nth(1)?.parse().ok()?;
    let start = fields.nth(17)?.parse().ok()?;
    Some((parent, start))
}

pub(super) fn children_of(process: libc::pid_t) -> Vec<libc::pid_t> {
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
    fn interval_grows_with_waiting_time() {
        let interval =
            |milliseconds| interval_after(Duration::from_millis(milliseconds)).as_millis();
        assert_eq!([0, 80, 800, 60_000].map(interval), [5, 5, 50, 200]);
    }

    #[test]
    fn own_process_status_is_readable() {
        let us = crate::sys::process::own_id();
        assert_eq!(group_of(us), Ok(us));
        assert!(parent_and_start(us).is_some_and(|(parent, start)| parent > 0 && start > 0));
    }
}
