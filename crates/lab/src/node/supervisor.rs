//! Starts, stops and reaps the programs of a node.

use std::collections::HashMap;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::thread;
use std::time::{Duration, Instant};

use nix::errno::Errno;
use nix::sys::signal::{Signal, kill};
use nix::sys::wait::{Id, WaitPidFlag, WaitStatus, waitid, waitpid};
use nix::unistd::Pid;

use super::{Component, ComponentState, ComponentStatus, PROGRAMS_INSIDE, Request, log_file};
use crate::error::{Doing as _, Error, Result};

/// What a program that ends by itself waits before it is started again.
const PAUSE_BEFORE_RESTART: Duration = Duration::from_millis(500);
/// What a program gets to end politely.
const PATIENCE: Duration = Duration::from_secs(10);

pub(super) struct Supervisor {
    directory: PathBuf,
    components: Vec<Component>,
    processes: Mutex<HashMap<String, Process>>,
    /// Signalled whenever a process has ended.
    ended: Condvar,
}

#[derive(Debug, Default)]
struct Process {
    pid: Option<Pid>,
    /// Stays true while a crashed program waits for its restart.
    wanted: bool,
    paused: bool,
    /// What it is told beside what it is told usually.
    more_arguments: Vec<String>,
    restarts: u32,
    last_exit: Option<String>,
}

impl Supervisor {
    pub(super) fn new(directory: &Path, components: Vec<Component>) -> Self {
        Supervisor {
            directory: directory.to_owned(),
            components,
            processes: Mutex::default(),
            ended: Condvar::new(),
        }
    }

    pub(super) fn answer(&self, request: Request) -> Result<Vec<ComponentStatus>> {
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

    /// Reaps every process of the node, its own children and orphans alike.
    pub(super) fn reap_for_ever(self: &Arc<Self>) -> Result<()> {
        loop {
            // Only looked at here and collected under the lock, so that `spawn` never loses a child that could not
            // be started to this loop.
            match waitid(Id::All, WaitPidFlag::WEXITED | WaitPidFlag::WNOWAIT) {
                Ok(status) => {
                    if let Some(pid) = status.pid() {
                        self.collect(pid);
                    }
                }
                Err(Errno::EINTR) => {}
                // No child yet. One is started by request at any time.
                Err(Errno::ECHILD) => thread::sleep(Duration::from_millis(20)),
                Err(error) => return Err(error).doing(|| "wait for processes".to_owned()),
            }
        }
    }

    fn start_with(&self, name: &str, arguments: Vec<String>) -> Result<()> {
        self.component(name)?;
        let mut processes = self.lock();
        let process = processes.entry(name.to_owned()).or_default();
        if process.pid.is_some() {
            return Err(Error::Refused(format!("{name} is running; stop it first")));
        }
        process.more_arguments = arguments;
        drop(processes);
        self.start(name)
    }

    fn start(&self, name: &str) -> Result<()> {
        let component = self.component(name)?;
        let mut processes = self.lock();
        let process = processes.entry(name.to_owned()).or_default();
        if process.pid.is_none() {
            process.wanted = false;
            process.pid = Some(self.spawn(component, &process.more_arguments)?);
            process.paused = false;
        }
        process.wanted = true;
        Ok(())
    }

    fn stop(&self, name: &str) -> Result<()> {
        self.component(name)?;
        let mut processes = self.lock();
        let Some(process) = processes.get_mut(name) else {
            return Ok(());
        };
        process.wanted = false;
        process.more_arguments.clear();
        let Some(pid) = process.pid else {
            return Ok(());
        };
        let _ = kill(pid, Signal::SIGTERM);
        // A paused program hears nothing until it continues.
        let _ = kill(pid, Signal::SIGCONT);
        let deadline = Instant::now() + PATIENCE;
        while processes
            .get(name)
            .is_some_and(|process| process.pid == Some(pid))
        {
            if Instant::now() >= deadline {
                let _ = kill(pid, Signal::SIGKILL);
            }
            processes = self
                .ended
                .wait_timeout(processes, Duration::from_millis(200))
                .unwrap_or_else(PoisonError::into_inner)
                .0;
        }
        Ok(())
    }

    fn signal(&self, name: &str, signal: Signal, paused: bool) -> Result<()> {
        self.component(name)?;
        let mut processes = self.lock();
        match processes.get_mut(name) {
            Some(process) => match process.pid {
                Some(pid) => {
                    process.paused = paused;
                    kill(pid, signal).doing(|| format!("send {signal} to {name}"))
                }
                None => Err(Error::Refused(format!("{name} is not running"))),
            },
            None => Err(Error::Refused(format!("{name} is not running"))),
        }
    }

    fn status(&self) -> Vec<ComponentStatus> {
        let processes = self.lock();
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

    fn collect(self: &Arc<Self>, pid: Pid) {
        let mut processes = self.lock();
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
        if process.wanted {
            process.restarts += 1;
            let (supervisor, name) = (Arc::clone(self), name.clone());
            thread::spawn(move || supervisor.restart_soon(&name));
        }
        self.ended.notify_all();
    }

    fn restart_soon(&self, name: &str) {
        thread::sleep(PAUSE_BEFORE_RESTART);
        let wanted = self.lock().get(name).is_some_and(|process| process.wanted);
        if wanted
            && let Err(error) = self.start(name)
            && let Some(process) = self.lock().get_mut(name)
        {
            process.last_exit = Some(error.to_string());
        }
    }

    /// Called under the lock, see [`Supervisor::reap_for_ever`].
    fn spawn(&self, component: &Component, more_arguments: &[String]) -> Result<Pid> {
        let log = log_file(&self.directory, &component.name);
        let output = fs::OpenOptions::new()
            .create(true)
            .append(true)
            .open(&log)
            .doing(|| format!("open {}", log.display()))?;
        let errors = output
            .try_clone()
            .doing(|| format!("open {}", log.display()))?;
        let child = Command::new(&component.program)
            .args(&component.arguments)
            .args(more_arguments)
            .env_clear()
            .env(
                "PATH",
                format!(
                    "{PROGRAMS_INSIDE}:/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"
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
            .doing(|| format!("start {}", component.program))?;
        i32::try_from(child.id())
            .map(Pid::from_raw)
            .map_err(|_| Error::Refused("the process id does not fit".to_owned()))
    }

    fn component(&self, name: &str) -> Result<&Component> {
        self.components
            .iter()
            .find(|component| component.name == name)
            .ok_or_else(|| {
                let known: Vec<&str> = self
                    .components
                    .iter()
                    .map(|component| component.name.as_str())
                    .collect();
                Error::Refused(format!(
                    "this node has no {name}; it has {}",
                    known.join(", ")
                ))
            })
    }

    fn lock(&self) -> MutexGuard<'_, HashMap<String, Process>> {
        self.processes
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
    }
}

impl Process {
    fn state(&self) -> ComponentState {
        match (self.pid, self.wanted, self.paused) {
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
