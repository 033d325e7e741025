//! The nodes of a lab: starting and stopping their namespaces.

use std::collections::BTreeMap;
use std::fs::{self, File};
use std::net::Ipv4Addr;
use std::os::fd::{AsFd as _, BorrowedFd};
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::thread;
use std::time::{Duration, Instant};

use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;

use super::NodeStatus;
use super::switch::{Switch, ip};
use crate::cgroup::Group;
use crate::command::tail;
use crate::error::{Error, ErrorContext as _, Result};
use crate::node;
use crate::paths::LabPaths;
use crate::plan::{ClusterPlan, NodePlan};
use crate::role::{self, Role};

const START_TIMEOUT: Duration = Duration::from_secs(30);
const POLL_INTERVAL: Duration = Duration::from_millis(5);

#[derive(Default)]
pub(super) struct Nodes {
    running: BTreeMap<String, RunningNode>,
    /// Every cluster of which a node was ever started. Clusters whose nodes are stopped can still have faults.
    plans: BTreeMap<String, ClusterPlan>,
}

pub(super) struct RunningNode {
    pub(super) cluster: String,
    pub(super) plan: NodePlan,
    pid: Pid,
    network_namespace: File,
    frozen: bool,
    group: Group,
    directory: PathBuf,
    /// The `unshare` process. The node exits when its standard input, a pipe from this process, closes.
    namespace_parent: Child,
}

impl RunningNode {
    pub(super) fn network_namespace(&self) -> BorrowedFd<'_> {
        self.network_namespace.as_fd()
    }

    /// The node's network namespace as a path.
    pub(super) fn network_namespace_path(&self) -> String {
        format!("/proc/{}/ns/net", self.pid)
    }

    fn kill(&mut self) {
        // A frozen process does not exit until it is thawed.
        let _ = self.group.freeze(false);
        // The process id cannot have been reused, because its parent has not been reaped.
        if self.is_alive() {
            let _ = kill(self.pid, Signal::SIGKILL);
            let _ = self.namespace_parent.wait();
        }
        for file in [
            node::pid_file(&self.directory),
            node::socket(&self.directory),
        ] {
            let _ = fs::remove_file(file);
        }
    }

    fn is_alive(&mut self) -> bool {
        self.namespace_parent
            .try_wait()
            .is_ok_and(|ended| ended.is_none())
    }
}

impl Nodes {
    /// Stores the addresses of a cluster, which are needed while its nodes are stopped.
    pub(super) fn add_plan(&mut self, cluster: &ClusterPlan) {
        self.plans.insert(cluster.name.clone(), cluster.clone());
    }

    pub(super) fn has_plan(&self, cluster: &str) -> bool {
        self.plans.contains_key(cluster)
    }

    /// The addresses of all nodes of a cluster, including stopped nodes.
    pub(super) fn addresses(&self, cluster: &str) -> Vec<Ipv4Addr> {
        let nodes = self
            .plans
            .get(cluster)
            .into_iter()
            .flat_map(|plan| &plan.nodes);
        nodes.map(|node| node.address).collect()
    }

    /// Removes nodes whose process 1 has exited by itself.
    pub(super) fn remove_exited(&mut self) {
        self.running.retain(|_, node| {
            let alive = node.is_alive();
            if !alive {
                node.kill();
            }
            alive
        });
    }

    pub(super) fn get(&self, name: &str) -> Result<&RunningNode> {
        self.running.get(name).ok_or_else(|| {
            Error::Refused(format!(
                "node {name} is off; `cargo xtask lab power start {name}` starts it"
            ))
        })
    }

    pub(super) fn of_cluster<'a>(
        &'a self,
        cluster: &'a str,
    ) -> impl Iterator<Item = &'a RunningNode> {
        self.running
            .values()
            .filter(move |node| node.cluster == cluster)
    }

    /// Adds a started node, and adds routes between its pods and those of the other nodes of its cluster.
    pub(super) fn add(&mut self, node: RunningNode) -> Result<()> {
        for other in self.of_cluster(&node.cluster) {
            for (here, there) in [(&node, other), (other, &node)] {
                ip(
                    Some(&here.network_namespace_path()),
                    &format!(
                        "route replace {} via {}\n",
                        there.plan.pod_subnet, there.plan.address
                    ),
                )?;
            }
        }
        self.running.insert(node.plan.name.clone(), node);
        Ok(())
    }

    pub(super) fn stop(&mut self, name: &str) -> Result<()> {
        self.get(name)?;
        if let Some(mut node) = self.running.remove(name) {
            node.kill();
        }
        Ok(())
    }

    pub(super) fn stop_all(&mut self) {
        thread::scope(|scope| {
            for (_, mut node) in std::mem::take(&mut self.running) {
                scope.spawn(move || node.kill());
            }
        });
    }

    /// Freezes or thaws every process of a node. Returns when the kernel has done so.
    pub(super) fn freeze(&mut self, name: &str, frozen: bool) -> Result<()> {
        self.get(name)?;
        if let Some(node) = self.running.get_mut(name) {
            node.group.freeze(frozen)?;
            node.frozen = frozen;
        }
        Ok(())
    }

    pub(super) fn status(&self) -> Vec<NodeStatus> {
        self.running
            .values()
            .map(|node| NodeStatus {
                cluster: node.cluster.clone(),
                node: node.plan.name.clone(),
                pid: node.pid.as_raw(),
                frozen: node.frozen,
            })
            .collect()
    }
}

/// Starts the namespaces of a node whose folder is prepared, and connects the node to the bridge.
pub(super) fn start(
    paths: &LabPaths,
    lab_group: &Group,
    switch: &Switch,
    cluster: &ClusterPlan,
    name: &str,
) -> Result<RunningNode> {
    let plan = cluster
        .nodes
        .iter()
        .find(|node| node.name == name)
        .ok_or_else(|| Error::Refused(format!("cluster {} has no node {name}", cluster.name)))?;
    let directory = paths.node(name);
    let group = lab_group.of_node(name);
    group.create()?;
    for file in [node::pid_file(&directory), node::socket(&directory)] {
        let _ = fs::remove_file(file);
    }
    let mut namespace_parent = spawn(&directory)?;
    let pid = match wait_for_process_one(&directory, &mut namespace_parent) {
        Ok(pid) => pid,
        Err(error) => {
            let _ = namespace_parent.kill();
            let _ = namespace_parent.wait();
            return Err(error);
        }
    };
    let path = format!("/proc/{pid}/ns/net");
    let running = RunningNode {
        cluster: cluster.name.clone(),
        plan: plan.clone(),
        pid: Pid::from_raw(pid),
        network_namespace: File::open(&path).with_context(|| format!("open {path}"))?,
        frozen: false,
        group,
        directory,
        namespace_parent,
    };
    switch.connect(pid, plan, &cluster.pod_range)?;
    Ok(running)
}

fn spawn(directory: &Path) -> Result<Child> {
    let log = node::log_file(directory, "init");
    let output = fs::OpenOptions::new()
        .create(true)
        .append(true)
        .open(&log)
        .with_context(|| format!("open {}", log.display()))?;
    let errors = output
        .try_clone()
        .with_context(|| format!("open {}", log.display()))?;
    Command::new("unshare")
        .args([
            "--pid",
            "--mount",
            "--net",
            "--uts",
            "--ipc",
            "--fork",
            "--kill-child",
        ])
        .args(["--propagation", "private", "--"])
        .args(role::command_line(Role::Node, directory)?)
        .stdin(Stdio::piped())
        .stdout(output)
        .stderr(errors)
        .spawn()
        .with_context(|| "start `unshare` for a node's namespaces".to_owned())
}

/// Waits until process 1 listens on its socket, which is the last step of its startup.
fn wait_for_process_one(directory: &Path, parent: &mut Child) -> Result<i32> {
    let deadline = Instant::now() + START_TIMEOUT;
    let socket = node::socket(directory);
    loop {
        if UnixStream::connect(&socket).is_ok() {
            let file = node::pid_file(directory);
            let text =
                fs::read_to_string(&file).with_context(|| format!("read {}", file.display()))?;
            return text.trim().parse().map_err(|_| {
                Error::Refused(format!(
                    "{} does not hold a process id: {text}",
                    file.display()
                ))
            });
        }
        let exited = parent
            .try_wait()
            .with_context(|| "wait for a node".to_owned())?;
        if exited.is_some() || Instant::now() > deadline {
            let log = node::log_file(directory, "init");
            return Err(Error::Component {
                node: directory
                    .file_name()
                    .unwrap_or_default()
                    .to_string_lossy()
                    .into_owned(),
                problem: "the node's namespaces did not start".to_owned(),
                tail: tail(&fs::read_to_string(&log).unwrap_or_default(), 15),
                log,
            });
        }
        thread::sleep(POLL_INTERVAL);
    }
}
