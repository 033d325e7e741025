//! The processes of a session: all descendants of the watcher, which is the program's parent.

use std::collections::HashMap;
use std::fs;
use std::sync::Arc;
use std::time::Duration;

use monitor::{Event, ProcessInfo};
use tokio::time::interval;

use super::SessionContext;

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

pub(super) fn name(process: u32) -> String {
    let name = fs::read_to_string(format!("/proc/{process}/comm"));
    name.unwrap_or_default().trim_end().to_owned()
}

/// Emits events about processes that start and end, as long as there are subscribers.
pub(super) fn watch(context: Arc<SessionContext>) {
    let mut ended = context.ended.subscribe();
    tokio::spawn(async move {
        let Some(program) = context.program.get().map(|program| program.process) else {
            return;
        };
        let mut previous: HashMap<u32, String> = HashMap::from([(program, String::new())]);
        let mut poll = interval(POLL_INTERVAL);
        loop {
            tokio::select! {
                _ = poll.tick() => {}
                _ = ended.wait_for(|ended| *ended) => return,
            }
            if !context.monitor.has_subscribers() {
                continue;
            }
            let now: HashMap<u32, String> = of_session(program)
                .into_iter()
                .map(|process| (process.pid, process.process_name))
                .collect();
            for (pid, process_name) in &now {
                if !previous.contains_key(pid) {
                    context.monitor.emit(Event::LayerConnected {
                        pid: *pid,
                        process_name: process_name.clone(),
                    });
                }
            }
            for pid in previous.keys().copied() {
                // The end of the program itself is reported with the end of the session.
                if !now.contains_key(&pid) && pid != program {
                    context.monitor.emit(Event::LayerDisconnected { pid });
                }
            }
            previous = now;
            previous.entry(program).or_default();
        }
    });
}

fn children(process: u32) -> Vec<u32> {
    let Ok(tasks) = fs::read_dir(format!("/proc/{process}/task")) else {
        return Vec::new();
    };
    let lists = tasks
        .flatten()
        .filter_map(|task| fs::read_to_string(task.path().join("children")).ok());
    lists
        .flat_map(|list| {
            let numbers = list.split_whitespace().filter_map(|text| text.parse().ok());
            numbers.collect::<Vec<u32>>()
        })
        .collect()
}

/// The format is "pid (name) state parent …", and the name may contain any characters.
fn parent(process: u32) -> Option<u32> {
    let stat = fs::read_to_string(format!("/proc/{process}/stat")).ok()?;
    let (_, rest) = stat.rsplit_once(") ")?;
    rest.split_whitespace().nth(1)?.parse().ok()
}
