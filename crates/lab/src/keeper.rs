//! The process that holds a lab.
//!
//! It lives in a network namespace of its own, where the lab's bridge is, and it is the parent of every node. So the
//! kernel takes all of it away when this process ends, however it ends: the nodes see their standard input close,
//! the bridge and all cables go with the namespace. What the kernel does not take (control groups and files) is
//! removed by an orderly end, and otherwise by the next command that meets the remains.
//!
//! The keeper ends when it is told to, or when its owner goes away before handing the lab over: its standard input
//! is a pipe from the owner.

mod faults;
mod nodes;
mod switch;

use std::collections::BTreeSet;
use std::fs;
use std::io::Read as _;
use std::os::unix::net::UnixListener;
use std::path::Path;
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError, mpsc};
use std::thread;

use serde::{Deserialize, Serialize};

use crate::cgroup::{Group, Layout};
use crate::control;
use crate::error::{Doing as _, Error, Result};
use crate::lab::Record;
use crate::paths::LabPaths;
use crate::plan::{ClusterPlan, Network};
use crate::wire::Conditions;
use faults::Faults;
pub use faults::LinkStatus;
use nodes::Nodes;
use switch::Switch;

pub(crate) const ROLE: &str = "keeper";

/// A request to the keeper.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(crate) enum Request {
    Status,
    /// The lab stays when its owner goes.
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

/// What the keeper says of its lab after every request.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(crate) struct Status {
    pub(crate) network: Network,
    pub(crate) released: bool,
    /// It is being taken down and takes no more nodes.
    pub(crate) ending: bool,
    pub(crate) nodes: Vec<NodeStatus>,
    pub(crate) links: Vec<LinkStatus>,
}

#[derive(Clone, Debug, Serialize, Deserialize)]
pub(crate) struct NodeStatus {
    pub(crate) cluster: String,
    pub(crate) node: String,
    /// The machine's number of the node's process 1.
    pub(crate) pid: i32,
    pub(crate) frozen: bool,
}

/// The control group of a lab is named after its network, of which there is only one on the machine.
pub(crate) fn lab_group(network: Network) -> Result<Group> {
    Ok(Group::of_lab(Layout::detect()?, &network.device()))
}

pub(crate) fn main(directory: &Path) -> Result<()> {
    // Away from the owner's terminal: its Ctrl-C is not for the lab.
    nix::unistd::setsid().doing(|| "start a session".to_owned())?;
    tracing_subscriber::fmt()
        .with_writer(std::io::stderr)
        .with_ansi(false)
        .init();
    let paths = LabPaths::at(directory);
    let switch = Switch::create()?;
    let group = lab_group(switch.network())?;
    // A lab that held this network before may have been killed.
    group.end_processes();
    group.remove()?;
    Record {
        network: switch.network(),
        clusters: Vec::new(),
    }
    .write(&paths)?;
    let keeper = Arc::new(Keeper {
        paths: paths.clone(),
        group,
        switch,
        state: Mutex::default(),
        settled: Condvar::new(),
    });
    let socket = paths.keeper_socket();
    let listener =
        UnixListener::bind(&socket).doing(|| format!("listen on {}", socket.display()))?;
    let (end, ended) = mpsc::channel();
    let asked = end.clone();
    let answering = Arc::clone(&keeper);
    control::serve(listener, move |request| answering.answer(request, &asked));
    let watching = Arc::clone(&keeper);
    thread::spawn(move || {
        let _ = std::io::stdin().read(&mut [0]);
        if !watching.lock().released {
            let _ = end.send(());
        }
    });
    let _ = ended.recv();
    keeper.tear_down();
    Ok(())
}

struct Keeper {
    paths: LabPaths,
    group: Group,
    switch: Switch,
    state: Mutex<State>,
    /// Signalled when a node that was starting runs, or does not.
    settled: Condvar,
}

#[derive(Default)]
struct State {
    nodes: Nodes,
    faults: Faults,
    /// Nodes that are on their way, which nobody may start a second time.
    starting: BTreeSet<String>,
    released: bool,
    ending: bool,
}

impl Keeper {
    fn answer(&self, request: Request, end: &mpsc::Sender<()>) -> Result<Status> {
        self.lock().nodes.forget_dead();
        match request {
            Request::Status => {}
            Request::Release => self.lock().released = true,
            Request::StartNode { cluster, node } => self.start_node(&cluster, &node)?,
            Request::Down => {
                self.lock().ending = true;
                let _ = end.send(());
            }
            other => self.change(other)?,
        }
        let state = self.lock();
        Ok(Status {
            network: self.switch.network(),
            released: state.released,
            ending: state.ending,
            nodes: state.nodes.status(),
            links: state.faults.status(),
        })
    }

    /// What is done under the lock.
    fn change(&self, request: Request) -> Result<()> {
        let mut state = self.lock();
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

    /// The slow part, waiting for the node's process 1, happens without the lock, so that nodes start side by side.
    fn start_node(&self, cluster: &ClusterPlan, name: &str) -> Result<()> {
        {
            let mut state = self.lock();
            if state.ending {
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
            state.nodes.remember(cluster);
        }
        let started = nodes::start(&self.paths, &self.group, &self.switch, cluster, name);
        let mut state = self.lock();
        state.starting.remove(name);
        self.settled.notify_all();
        let State { nodes, faults, .. } = &mut *state;
        nodes.add(started?)?;
        faults.apply_to_new_node(&self.switch, nodes, &cluster.name, name)
    }

    /// Removes everything; what fails is said in the log and does not keep the rest.
    #[expect(clippy::print_stderr, reason = "standard error is the keeper's log")]
    fn tear_down(&self) {
        let mut state = self.lock();
        state.ending = true;
        // A node that is half started cannot be ended; each takes a bounded time to become one that can.
        while !state.starting.is_empty() {
            state = self
                .settled
                .wait(state)
                .unwrap_or_else(PoisonError::into_inner);
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

    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
