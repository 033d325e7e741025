//! The processes of a session: all descendants of the watcher, which is the program's parent.

use std::sync::Arc;
use std::time::Duration;

use monitor::ProcessInfo;
use tokio::time::interval;

use super::SessionContext;
use crate::process::{self, children, name, parent};

/// How often the processes are listed.
const POLL_INTERVAL: Duration = Duration::from_secs(1);

/// All processes of the session whose program this is, the program first.
pub(super) fn of_session(program: u32) -> Vec<ProcessInfo> {
    let roots = match parent(program) {
        Some(watcher) => children(watcher),
        None => Vec::new(),
    };
    let mut found: Vec<u32> = Vec::new();
    let mut pending = roots;
    while let Some(process) = pending.pop() {
        if !found.contains(&process) {
            found.push(process);
            pending.extend(children(process));
        }
    }
    found.sort_by_key(|process| (*process != program, *process));
    found
        .into_iter()
        .map(|pid| ProcessInfo {
            pid,
            process_name: name(pid),
        })
        .collect()
}

/// Reports what no event of the interceptor reports: processes that run without ever having executed a program, as long as
/// there are subscribers, and the end of processes that were killed.
pub(super) fn watch(context: Arc<SessionContext>) {
    let mut ended = context.ended.subscribe();
    tokio::spawn(async move {
        let Some(program) = context.program.get().map(|program| program.process) else {
            return;
        };
        let mut poll = interval(POLL_INTERVAL);
        let mut previous: Vec<u32> = Vec::new();
        loop {
            tokio::select! {
                _ = poll.tick() => {}
                _ = ended.wait_for(|ended| *ended) => return,
            }
            let monitor = &context.monitor;
            for pid in monitor.processes() {
                if !is_alive(pid) {
                    monitor.process_ended(pid);
                }
            }
            if !monitor.has_subscribers() {
                continue;
            }
            let found = of_session(program);
            let pids = found.iter().map(|process| process.pid).collect();
            for process in found {
                // One that is just about to exit was reported, and is not found twice.
                if previous.contains(&process.pid) && is_alive(process.pid) {
                    monitor.process_started(process.pid, || process.process_name);
                }
            }
            previous = pids;
        }
    });
}

fn is_alive(pid: u32) -> bool {
    process::state(pid).is_some_and(|state| state != 'Z')
}
