//! Process 1 of a node.
//!
//! A node is one private pid, mount, network, UTS and IPC namespace. This process sets up the node's own root file
//! system, then starts, stops and reaps its components on request. The components are listed in `node.json`, and the
//! requests arrive on a Unix socket. When the lab's daemon exits for any reason, this process exits too, and the kernel
//! kills everything else in the node with it.

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
use crate::error::{Error, ErrorContext as _, Result};
pub(crate) use components::Component;
use supervisor::Supervisor;

/// Where a node's own folder is mounted inside the node.
pub(crate) const NODE_MOUNT: &str = "/node";
/// Where the lab's programs are mounted inside the node.
pub(crate) const PROGRAMS_MOUNT: &str = "/kubernetes";

/// The specification of a node, which process 1 reads when it starts.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(crate) struct NodeSpec {
    pub(crate) name: String,
    /// The name of the lab's control group, the parent of the node's.
    pub(crate) lab_group: String,
    pub(crate) programs: PathBuf,
    pub(crate) components: Vec<Component>,
}

/// A request to process 1.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(crate) enum Request {
    Start(String),
    /// Starts a component with additional arguments, which apply until it is stopped.
    StartWith(String, Vec<String>),
    Stop(String),
    Pause(String),
    Continue(String),
    Status,
}

/// The state of one component of a node.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct ComponentStatus {
    pub name: String,
    pub state: ComponentState,
    /// How often it exited by itself and was restarted.
    pub restarts: u32,
    pub last_exit: Option<String>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum ComponentState {
    /// Never started, or stopped on request.
    Stopped,
    Running,
    Paused,
    /// It exited by itself and is about to be restarted.
    Crashed,
}

pub(crate) fn spec_file(node: &Path) -> PathBuf {
    node.join("node.json")
}

pub(crate) fn socket(node: &Path) -> PathBuf {
    node.join("init.sock")
}

/// The file with the process id of process 1 in the host's pid namespace.
pub(crate) fn pid_file(node: &Path) -> PathBuf {
    node.join("init.pid")
}

pub(crate) fn log_file(node: &Path, component: &str) -> PathBuf {
    node.join("log").join(format!("{component}.log"))
}

pub(crate) fn main(directory: &Path) -> Result<()> {
    let file = spec_file(directory);
    let text = fs::read_to_string(&file).with_context(|| format!("read {}", file.display()))?;
    let spec: NodeSpec = serde_json::from_str(&text).map_err(|source| Error::Json {
        what: file.display().to_string(),
        source,
    })?;
    Group::of_lab(Layout::detect()?, &spec.lab_group)
        .of_node(&spec.name)
        .enter()?;
    write_pid(directory)?;
    nix::unistd::sethostname(&spec.name).with_context(|| "set the host name".to_owned())?;
    root::enter(directory, &spec.programs)?;

    let inside = Path::new(NODE_MOUNT);
    let supervisor = Arc::new(Supervisor::new(inside, spec.components));
    let socket = socket(inside);
    let _ = fs::remove_file(&socket);
    let listener =
        UnixListener::bind(&socket).with_context(|| format!("listen on {}", socket.display()))?;
    let handler = Arc::clone(&supervisor);
    control::serve(listener, move |request| handler.handle(request));
    thread::spawn(exit_with_daemon);
    supervisor.run_reaper()
}

/// Writes the host's process id of process 1. It is read before the node mounts its own `/proc`, which shows only the
/// process ids of the node's namespace.
fn write_pid(directory: &Path) -> Result<()> {
    let link = fs::read_link("/proc/self").with_context(|| "read /proc/self".to_owned())?;
    let file = pid_file(directory);
    let unfinished = file.with_extension("new");
    fs::write(&unfinished, link.as_os_str().as_encoded_bytes())
        .and_then(|()| fs::rename(&unfinished, &file))
        .with_context(|| format!("write {}", file.display()))
}

/// Exits when standard input closes. The daemon holds the other end of the pipe and never writes to it.
#[expect(
    clippy::disallowed_methods,
    reason = "process 1 ends the node by ending itself"
)]
fn exit_with_daemon() {
    let _ = std::io::stdin().read(&mut [0]);
    std::process::exit(0);
}
