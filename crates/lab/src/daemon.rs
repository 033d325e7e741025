//! The daemon of a lab: one process that owns the lab's bridge and all of its nodes.
//!
//! It runs in its own network namespace, which contains the lab's bridge, and it is the parent of every node. So the
//! kernel releases all of it when this process exits for any reason: the nodes see their standard input close, and the
//! bridge and all veth pairs are removed with the namespace. The kernel does not remove control groups and files. An
//! orderly shutdown does that, and otherwise the next command for the lab.
//!
//! The daemon exits on request, or when its owner exits before it has released the lab: its standard input is a pipe from
//! the owner.

mod faults;
mod nodes;
mod switch;

use std::collections::BTreeSet;
use std::fs;
use std::io::Read as _;
use std::os::unix::net::UnixListener;
use std::path::Path;
use std::sync::{Arc, mpsc};
use std::thread;

use parking_lot::{Condvar, Mutex};
use serde::{Deserialize, Serialize};

use crate::cgroup::{Group, Layout};
use crate::control;
use crate::error::{Error, ErrorContext as _, Result};
use crate::lab::LabRecord;
use crate::paths::LabPaths;
use crate::plan::{ClusterPlan, Network};
use crate::wire::Conditions;
use faults::Faults;
pub use faults::LinkStatus;
use nodes::Nodes;
use switch::Switch;

pub(crate) const ROLE: &str = "daemon";

/// A request to the daemon.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(crate) enum Request {
    Status,
    /// Keeps the lab running when its owner exits.
    Release,
    StartNode {
        cluster: ClusterPlan,
        node: String,
    },
    StopNode {
        node: String,
    },
    FreezeNode {
        node: String,
        frozen: bool,
    },
    SetConditions {
        from: String,
        to: String,
        conditions: Conditions,
    },
    SetDialling {
        from: String,
        to: String,
        allowed: bool,
    },
    Heal,
    Down,
}

/// The status of the lab, which is the response to every request.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(crate) struct Status {
    pub(crate) network: Network,
    pub(crate) released: bool,
    /// It is shutting down and starts no more nodes.
    pub(crate) shutting_down: bool,
    pub(crate) nodes: Vec<NodeStatus>,
    pub(crate) links: Vec<LinkStatus>,
}

#[derive(Clone, Debug, Serialize, Deserialize)]
pub(crate) struct NodeStatus {
    pub(crate) cluster: String,
    pub(crate) node: String,
    /// The process id of the node's process 1 on the host.
    pub(crate) pid: i32,
    pub(crate) frozen: bool,
}

/// The control group of a lab. It is named after the lab's network, which is unique on the machine.
pub(crate) fn lab_group(network: Network) -> Result<Group> {
    Ok(Group::of_lab(Layout::detect()?, &network.device()))
}

pub(crate) fn main(directory: &Path) -> Result<()> {
    // Detach from the owner's terminal, so that its Ctrl-C does not reach the lab.
    nix::unistd::setsid().with_context(|| "start a session".to_owned())?;
    tracing_subscriber::fmt()
        .with_writer(std::io::stderr)
        .with_ansi(false)
        .init();
    let paths = LabPaths::at(directory);
    let switch = Switch::create()?;
    let group = lab_group(switch.network())?;
    // The previous lab with this network may have been killed.
    group.kill_processes();
    group.remove()?;
    LabRecord {
        network: switch.network(),
        clusters: Vec::new(),
    }
    .write(&paths)?;
    let daemon = Arc::new(Daemon {
        paths: paths.clone(),
        group,
        switch,
        state: Mutex::default(),
        start_finished: Condvar::new(),
    });
    let socket = paths.daemon_socket();
    let listener =
        UnixListener::bind(&socket).with_context(|| format!("listen on {}", socket.display()))?;
    let (shutdown, shutdown_requests) = mpsc::channel();
    let shutdown_on_request = shutdown.clone();
    let handler = Arc::clone(&daemon);
    control::serve(listener, move |request| {
        handler.handle(request, &shutdown_on_request)
    });
    let owner_watch = Arc::clone(&daemon);
    thread::spawn(move || {
        let _ = std::io::stdin().read(&mut [0]);
        if !owner_watch.state.lock().released {
            let _ = shutdown.send(());
        }
    });
    let _ = shutdown_requests.recv();
    daemon.tear_down();
    Ok(())
}

struct Daemon {
    paths: LabPaths,
    group: Group,
    switch: Switch,
    state: Mutex<State>,
    /// Signalled when the start of a node has succeeded or failed.
    start_finished: Condvar,
}

#[derive(Default)]
struct State {
    nodes: Nodes,
    faults: Faults,
    /// Nodes that are being started. A second start of the same node is rejected.
    starting: BTreeSet<String>,
    released: bool,
    shutting_down: bool,
}

impl Daemon {
    fn handle(&self, request: Request, shutdown: &mpsc::Sender<()>) -> Result<Status> {
        self.state.lock().nodes.remove_exited();
        match request {
            Request::Status => {}
            Request::Release => self.state.lock().released = true,
            Request::StartNode { cluster, node } => self.start_node(&cluster, &node)?,
            Request::Down => {
                self.state.lock().shutting_down = true;
                let _ = shutdown.send(());
            }
            other => self.apply(other)?,
        }
        let state = self.state.lock();
        Ok(Status {
            network: self.switch.network(),
            released: state.released,
            shutting_down: state.shutting_down,
            nodes: state.nodes.status(),
            links: state.faults.status(),
        })
    }

    /// Handles the requests that run entirely under the lock.
    fn apply(&self, request: Request) -> Result<()> {
        let mut state = self.state.lock();
        let State { nodes, faults, .. } = &mut *state;
        match request {
            Request::StopNode { node } => nodes.stop(&node),
            Request::FreezeNode { node, frozen } => nodes.freeze(&node, frozen),
            Request::SetConditions {
                from,
                to,
                conditions,
            } => faults.set_conditions(&self.switch, nodes, &from, &to, conditions),
            Request::SetDialling { from, to, allowed } => {
                faults.set_dialling(&self.switch, nodes, &from, &to, allowed)
            }
            Request::Heal => faults.heal(&self.switch, nodes),
            Request::Status | Request::Release | Request::StartNode { .. } | Request::Down => {
                Ok(())
            }
        }
    }

    /// Starts a node. The lock is not held while waiting for the node's process 1, so that nodes start concurrently.
    fn start_node(&self, cluster: &ClusterPlan, name: &str) -> Result<()> {
        {
            let mut state = self.state.lock();
            if state.shutting_down {
                return Err(Error::Refused("the lab is being taken down".to_owned()));
            }
            if state.nodes.get(name).is_ok() {
                return Ok(());
            }
            if !state.starting.insert(name.to_owned()) {
                return Err(Error::Refused(format!(
                    "node {name} is already being started"
                )));
            }
            state.nodes.add_plan(cluster);
        }
        let started = nodes::start(&self.paths, &self.group, &self.switch, cluster, name);
        let mut state = self.state.lock();
        state.starting.remove(name);
        self.start_finished.notify_all();
        let State { nodes, faults, .. } = &mut *state;
        nodes.add(started?)?;
        faults.apply_to_new_node(&self.switch, nodes, &cluster.name, name)
    }

    /// Removes everything. A failure is logged and does not stop the rest.
    #[expect(clippy::print_stderr, reason = "standard error is the daemon's log")]
    fn tear_down(&self) {
        let mut state = self.state.lock();
        state.shutting_down = true;
        // A node that is still starting cannot be stopped. Each start takes a bounded time.
        while !state.starting.is_empty() {
            self.start_finished.wait(&mut state);
        }
        state.faults.drop_wire();
        state.nodes.stop_all();
        for result in [self.group.remove(), self.switch.remove()] {
            if let Err(error) = result {
                eprintln!("{error}");
            }
        }
        if let Err(error) = fs::remove_dir_all(&self.paths.directory) {
            eprintln!("cannot remove {}: {error}", self.paths.directory.display());
        }
    }
}
