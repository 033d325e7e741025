//! Process 1 of a node.
//!
//! A node is one private pid, mount, network, UTS and IPC namespace. This process gives it a root file system of
//! its own, then starts, stops and reaps the programs that it is told to. It decides nothing: which programs there
//! are is written in `node.json`, when they run is asked for over its socket. When the lab's keeper goes away,
//! however it goes, this process ends, and the kernel ends everything else in the node with it.

pub(crate) mod components;
mod root;
mod supervisor;

use std::fs;
use std::io::Read as _;
use std::os::unix::net::UnixListener;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::thread;

use serde::{Deserialize, Serialize};

use crate::cgroup::{Group, Layout};
use crate::control;
use crate::error::{Doing as _, Error, Result};
pub(crate) use components::Component;
use supervisor::Supervisor;

/// Where a node's own folder appears inside the node.
pub(crate) const INSIDE: &str = "/node";
/// Where the lab's programs appear inside the node.
pub(crate) const PROGRAMS_INSIDE: &str = "/kubernetes";

/// What process 1 reads when it starts.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(crate) struct Description {
    pub(crate) name: String,
    /// The lab's part of the name of the node's control group.
    pub(crate) lab_group: String,
    pub(crate) programs: PathBuf,
    pub(crate) components: Vec<Component>,
}

/// A request to process 1.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(crate) enum Request {
    Start(String),
    /// With more arguments than it has usually, until it is stopped.
    StartWith(String, Vec<String>),
    Stop(String),
    Pause(String),
    Continue(String),
    Status,
}

/// What one program of a node is doing.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct ComponentStatus {
    pub name: String,
    pub state: ComponentState,
    /// How often it ended by itself and was started again.
    pub restarts: u32,
    pub last_exit: Option<String>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum ComponentState {
    /// Never started, or stopped on request.
    Stopped,
    Running,
    Paused,
    /// It ended by itself and is started again in a moment.
    Crashed,
}

pub(crate) fn description_file(node: &Path) -> PathBuf {
    node.join("node.json")
}

pub(crate) fn socket(node: &Path) -> PathBuf {
    node.join("init.sock")
}

/// The process id of process 1 as the rest of the machine sees it.
pub(crate) fn pid_file(node: &Path) -> PathBuf {
    node.join("init.pid")
}

pub(crate) fn log_file(node: &Path, component: &str) -> PathBuf {
    node.join("log").join(format!("{component}.log"))
}

pub(crate) fn main(directory: &Path) -> Result<()> {
    let file = description_file(directory);
    let text = fs::read_to_string(&file).doing(|| format!("read {}", file.display()))?;
    let description: Description = serde_json::from_str(&text).map_err(|source| Error::Json {
        what: file.display().to_string(),
        source,
    })?;
    Group::of_lab(Layout::detect()?, &description.lab_group)
        .of_node(&description.name)
        .enter()?;
    write_pid(directory)?;
    nix::unistd::sethostname(&description.name).doing(|| "set the host name".to_owned())?;
    root::enter(directory, &description.programs)?;

    let inside = Path::new(INSIDE);
    let supervisor = Arc::new(Supervisor::new(inside, description.components));
    let socket = socket(inside);
    let _ = fs::remove_file(&socket);
    let listener =
        UnixListener::bind(&socket).doing(|| format!("listen on {}", socket.display()))?;
    let answering = Arc::clone(&supervisor);
    control::serve(listener, move |request| answering.answer(request));
    thread::spawn(end_with_the_keeper);
    supervisor.reap_for_ever()
}

/// Read before the node has a `/proc` of its own, which knows only the node's numbers.
fn write_pid(directory: &Path) -> Result<()> {
    let link = fs::read_link("/proc/self").doing(|| "read /proc/self".to_owned())?;
    let file = pid_file(directory);
    let unfinished = file.with_extension("new");
    fs::write(&unfinished, link.as_os_str().as_encoded_bytes())
        .and_then(|()| fs::rename(&unfinished, &file))
        .doing(|| format!("write {}", file.display()))
}

/// The keeper holds the other end of standard input and never writes to it.
#[expect(
    clippy::disallowed_methods,
    reason = "process 1 ends the node by ending itself"
)]
fn end_with_the_keeper() {
    let _ = std::io::stdin().read(&mut [0]);
    std::process::exit(0);
}
