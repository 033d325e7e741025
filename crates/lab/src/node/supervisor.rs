//! Starts, stops, restarts and reaps the components of a node.

use std::collections::HashMap;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::sync::Arc;
use std::thread;
use std::time::{Duration, Instant};

use nix::errno::Errno;
use nix::sys::signal::{Signal, kill};
use nix::sys::wait::{Id, WaitPidFlag, WaitStatus, waitid, waitpid};
use nix::unistd::Pid;
use parking_lot::{Condvar, Mutex};

use super::{Component, ComponentState, ComponentStatus, PROGRAMS_MOUNT, Request, log_file};
use crate::error::{Error, ErrorContext as _, Result};

/// The delay before a component that exited by itself is restarted.
const RESTART_DELAY: Duration = Duration::from_millis(500);
/// The time between SIGTERM and SIGKILL.
const STOP_GRACE_PERIOD: Duration = Duration::from_secs(10);

pub(super) struct Supervisor {
    directory: PathBuf,
    components: Vec<Component>,
    processes: Mutex<HashMap<String, Process>>,
    /// Signalled whenever a process has exited.
    exited: Condvar,
}

#[derive(Debug, Default)]
struct Process {
    pid: Option<Pid>,
    /// Stays true while a crashed component waits for its restart.
    should_run: bool,
    paused: bool,
    /// Arguments in addition to those of the [`Component`].
    extra_arguments: Vec<String>,
    restarts: u32,
    last_exit: Option<String>,
}

impl Supervisor {
    pub(super) fn new(directory: &Path, components: Vec<Component>) -> Self {
        Supervisor {
            directory: directory.to_owned(),
            components,
            processes: Mutex::default(),
            exited: Condvar::new(),
        }
    }

    pub(super) fn handle(&self, request: Request) -> Result<Vec<ComponentStatus>> {
        match request {
            Request::Start(name) => self.start(&name)?,
            Request::StartWith(name, arguments) => self.start_with(&name, arguments)?,
            Request::Stop(name) => self.stop(&name)?,
            Request::Pause(name) => self.signal(&name, Signal::SIGSTOP, true)?,
            Request::Continue(name) => self.signal(&name, Signal::SIGCONT, false)?,
            Request::Status => {}
        }
        Ok(self.status())
    }

    /// Reaps every process of the node, own children and orphans alike. Returns only on an error.
    pub(super) fn run_reaper(self: &Arc<Self>) -> Result<()> {
        loop {
            // The process is only peeked at here and reaped under the lock, so that this loop never reaps a child that
            // `spawn` failed to start and still waits for.
            match waitid(Id::All, WaitPidFlag::WEXITED | WaitPidFlag::WNOWAIT) {
                Ok(status) => {
                    if let Some(pid) = status.pid() {
                        self.reap(pid);
                    }
                }
                Err(Errno::EINTR) => {}
                // There is no child yet. A request can start one at any time.
                Err(Errno::ECHILD) => thread::sleep(Duration::from_millis(20)),
                Err(error) => return Err(error).with_context(|| "wait for processes".to_owned()),
            }
        }
    }

    fn start_with(&self, name: &str, arguments: Vec<String>) -> Result<()> {
        self.component(name)?;
        let mut processes = self.processes.lock();
        let process = processes.entry(name.to_owned()).or_default();
        if process.pid.is_some() {
            return Err(Error::Refused(format!("{name} is running; stop it first")));
        }
        process.extra_arguments = arguments;
        drop(processes);
        self.start(name)
    }

    fn start(&self, name: &str) -> Result<()> {
        let component = self.component(name)?;
        let mut processes = self.processes.lock();
        let process = processes.entry(name.to_owned()).or_default();
        if process.pid.is_none() {
            process.should_run = false;
            process.pid = Some(self.spawn(component, &process.extra_arguments)?);
            process.paused = false;
        }
        process.should_run = true;
        Ok(())
    }

    fn stop(&self, name: &str) -> Result<()> {
        self.component(name)?;
        let mut processes = self.processes.lock();
        let Some(process) = processes.get_mut(name) else {
            return Ok(());
        };
        process.should_run = false;
        process.extra_arguments.clear();
        let Some(pid) = process.pid else {
            return Ok(());
        };
        let _ = kill(pid, Signal::SIGTERM);
        // A stopped process handles SIGTERM only after SIGCONT.
        let _ = kill(pid, Signal::SIGCONT);
        let deadline = Instant::now() + STOP_GRACE_PERIOD;
        while processes
            .get(name)
            .is_some_and(|process| process.pid == Some(pid))
        {
            if Instant::now() >= deadline {
                let _ = kill(pid, Signal::SIGKILL);
            }
            self.exited
                .wait_for(&mut processes, Duration::from_millis(200));
        }
        Ok(())
    }

    fn signal(&self, name: &str, signal: Signal, paused: bool) -> Result<()> {
        self.component(name)?;
        let mut processes = self.processes.lock();
        match processes.get_mut(name) {
            Some(process) => match process.pid {
                Some(pid) => {
                    process.paused = paused;
                    kill(pid, signal).with_context(|| format!("send {signal} to {name}"))
                }
                None => Err(Error::Refused(format!("{name} is not running"))),
            },
            None => Err(Error::Refused(format!("{name} is not running"))),
        }
    }

    fn status(&self) -> Vec<ComponentStatus> {
        let processes = self.processes.lock();
        self.components
            .iter()
            .map(|component| {
                let process = processes.get(&component.name);
                ComponentStatus {
                    name: component.name.clone(),
                    state: process.map_or(ComponentState::Stopped, Process::state),
                    restarts: process.map_or(0, |process| process.restarts),
                    last_exit: process.and_then(|process| process.last_exit.clone()),
                }
            })
            .collect()
    }

    fn reap(self: &Arc<Self>, pid: Pid) {
        let mut processes = self.processes.lock();
        let Ok(status) = waitpid(pid, Some(WaitPidFlag::WNOHANG)) else {
            return;
        };
        let Some((name, process)) = processes
            .iter_mut()
            .find(|(_, process)| process.pid == Some(pid))
        else {
            return;
        };
        process.pid = None;
        process.last_exit = Some(describe(status));
        if process.should_run {
            process.restarts += 1;
            let (supervisor, name) = (Arc::clone(self), name.clone());
            thread::spawn(move || supervisor.restart_after_delay(&name));
        }
        self.exited.notify_all();
    }

    fn restart_after_delay(&self, name: &str) {
        thread::sleep(RESTART_DELAY);
        let should_run = self
            .processes
            .lock()
            .get(name)
            .is_some_and(|process| process.should_run);
        if should_run
            && let Err(error) = self.start(name)
            && let Some(process) = self.processes.lock().get_mut(name)
        {
            process.last_exit = Some(error.to_string());
        }
    }

    /// Must be called under the lock, see [`Supervisor::run_reaper`].
    fn spawn(&self, component: &Component, extra_arguments: &[String]) -> Result<Pid> {
        let log = log_file(&self.directory, &component.name);
        let output = fs::OpenOptions::new()
            .create(true)
            .append(true)
            .open(&log)
            .with_context(|| format!("open {}", log.display()))?;
        let errors = output
            .try_clone()
            .with_context(|| format!("open {}", log.display()))?;
        let child = Command::new(&component.program)
            .args(&component.arguments)
            .args(extra_arguments)
            .env_clear()
            .env(
                "PATH",
                format!(
                    "{PROGRAMS_MOUNT}:/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"
                ),
            )
            .env("HOME", "/root")
            .envs(
                component
                    .environment
                    .iter()
                    .map(|(name, value)| (name, value)),
            )
            .stdin(Stdio::null())
            .stdout(output)
            .stderr(errors)
            .spawn()
            .with_context(|| format!("start {}", component.program))?;
        i32::try_from(child.id())
            .map(Pid::from_raw)
            .map_err(|_| Error::Refused("the process id does not fit".to_owned()))
    }

    fn component(&self, name: &str) -> Result<&Component> {
        self.components
            .iter()
            .find(|component| component.name == name)
            .ok_or_else(|| {
                let names: Vec<&str> = self
                    .components
                    .iter()
                    .map(|component| component.name.as_str())
                    .collect();
                Error::Refused(format!(
                    "this node has no {name}; it has {}",
                    names.join(", ")
                ))
            })
    }
}

impl Process {
    fn state(&self) -> ComponentState {
        match (self.pid, self.should_run, self.paused) {
            (Some(_), _, true) => ComponentState::Paused,
            (Some(_), _, false) => ComponentState::Running,
            (None, true, _) => ComponentState::Crashed,
            (None, false, _) => ComponentState::Stopped,
        }
    }
}

fn describe(status: WaitStatus) -> String {
    match status {
        WaitStatus::Exited(_, code) => format!("exit code {code}"),
        WaitStatus::Signaled(_, signal, _) => format!("killed by {signal}"),
        other => format!("{other:?}"),
    }
}
