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

use std::fs;
use std::io::Read as _;
use std::os::unix::net::UnixListener;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, mpsc};
use std::thread;

use serde::{Deserialize, Serialize};

use crate::cgroup::{Group, Layout};
use crate::control;
use crate::error::{Doing as _, Result};
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
    let paths = LabPaths {
        directory: directory.to_owned(),
        lock: PathBuf::new(),
    };
    let switch = Switch::create()?;
    let group = lab_group(switch.network())?;
    // A lab that held this network before may have been killed.
    group.remove()?;
    let keeper = Arc::new(Keeper {
        paths: paths.clone(),
        group,
        switch,
        released: AtomicBool::new(false),
        state: Mutex::new(State {
            nodes: Nodes::default(),
            faults: Faults::default(),
        }),
    });
    let (down, ended) = mpsc::channel();
    let socket = paths.keeper_socket();
    let listener =
        UnixListener::bind(&socket).doing(|| format!("listen on {}", socket.display()))?;
    let answering = Arc::clone(&keeper);
    let asked_down = down.clone();
    control::serve(listener, move |request| {
        answering.answer(request, &asked_down)
    });
    let watching = Arc::clone(&keeper);
    thread::spawn(move || {
        let _ = std::io::stdin().read(&mut [0]);
        if !watching.released.load(Ordering::SeqCst) {
            let _ = down.send(None);
        }
    });
    let answered: Option<mpsc::Sender<()>> = ended.recv().unwrap_or_default();
    keeper.tear_down();
    if let Some(answered) = answered {
        let _ = answered.send(());
        // Gives the answer the time to leave through the socket; the caller hangs up once it has it.
        thread::sleep(std::time::Duration::from_millis(50));
    }
    Ok(())
}

struct Keeper {
    paths: LabPaths,
    group: Group,
    switch: Switch,
    released: AtomicBool,
    state: Mutex<State>,
}

struct State {
    nodes: Nodes,
    faults: Faults,
}

impl Keeper {
    fn answer(
        &self,
        request: Request,
        down: &mpsc::Sender<Option<mpsc::Sender<()>>>,
    ) -> Result<Status> {
        match request {
            Request::Status => {}
            Request::Release => self.released.store(true, Ordering::SeqCst),
            Request::StartNode { cluster, node } => self.start_node(&cluster, &node)?,
            Request::StopNode { node } => self.lock().nodes.stop(&node)?,
            Request::FreezeNode { node, frozen } => {
                self.lock().nodes.get(&node)?;
                self.group.of_node(&node).freeze(frozen)?;
                self.lock().nodes.set_frozen(&node, frozen);
            }
            Request::SetConditions {
                from,
                to,
                conditions,
            } => {
                let mut state = self.lock();
                let State { nodes, faults } = &mut *state;
                faults.set_conditions(&self.switch, nodes, &from, &to, conditions)?;
            }
            Request::SetDialling { from, to, allowed } => {
                let mut state = self.lock();
                let State { nodes, faults } = &mut *state;
                faults.set_dialling(&self.switch, nodes, &from, &to, allowed)?;
            }
            Request::Heal => {
                let mut state = self.lock();
                let State { nodes, faults } = &mut *state;
                faults.heal(&self.switch, nodes)?;
            }
            Request::Down => {
                let (done, finished) = mpsc::channel();
                let _ = down.send(Some(done));
                let _ = finished.recv();
                return Ok(Status {
                    network: self.switch.network(),
                    released: false,
                    nodes: Vec::new(),
                    links: Vec::new(),
                });
            }
        }
        let state = self.lock();
        Ok(Status {
            network: self.switch.network(),
            released: self.released.load(Ordering::SeqCst),
            nodes: state.nodes.status(),
            links: state.faults.status(),
        })
    }

    /// The slow part, waiting for the node's process 1, happens without the lock, so that nodes start side by side.
    fn start_node(&self, cluster: &ClusterPlan, name: &str) -> Result<()> {
        if self.lock().nodes.get(name).is_ok() {
            return Ok(());
        }
        let started = nodes::start(&self.paths, &self.group, &self.switch, cluster, name)?;
        let mut state = self.lock();
        let State { nodes, faults } = &mut *state;
        nodes.add(started)?;
        faults.apply_to_new_node(&self.switch, nodes, &cluster.name)
    }

    /// Removes everything; what fails is said in the log and does not keep the rest.
    #[expect(clippy::print_stderr, reason = "standard error is the keeper's log")]
    fn tear_down(&self) {
        let mut state = self.lock();
        let State { nodes, faults } = &mut *state;
        faults.drop_wire();
        nodes.stop_all();
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
