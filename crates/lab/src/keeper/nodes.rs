//! The nodes of a lab: starting their namespaces, and ending them.

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
use crate::error::{Doing as _, Error, Result};
use crate::node;
use crate::paths::LabPaths;
use crate::plan::{ClusterPlan, NodePlan};
use crate::role::{self, Role};

const PATIENCE: Duration = Duration::from_secs(30);

#[derive(Default)]
pub(super) struct Nodes {
    running: BTreeMap<String, RunningNode>,
    /// Every cluster of which a node was ever started: those whose nodes are off are still endpoints of faults.
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
    /// Its standard input, which this process holds, keeps the node alive.
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

    fn end(&mut self) {
        // Frozen processes die only when they continue.
        let _ = self.group.freeze(false);
        // While its parent has not been waited for, the number cannot belong to anyone else.
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
    /// Keeps in mind which addresses a cluster has, also while its nodes are off.
    pub(super) fn remember(&mut self, cluster: &ClusterPlan) {
        self.plans.insert(cluster.name.clone(), cluster.clone());
    }

    pub(super) fn knows(&self, cluster: &str) -> bool {
        self.plans.contains_key(cluster)
    }

    /// The addresses of all nodes of a cluster, whether they run or not.
    pub(super) fn addresses(&self, cluster: &str) -> Vec<Ipv4Addr> {
        let nodes = self
            .plans
            .get(cluster)
            .into_iter()
            .flat_map(|plan| &plan.nodes);
        nodes.map(|node| node.address).collect()
    }

    /// Nodes whose process 1 has ended by itself do not run.
    pub(super) fn forget_dead(&mut self) {
        self.running.retain(|_, node| {
            let alive = node.is_alive();
            if !alive {
                node.end();
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

    /// Takes a started node in, and tells it and the other nodes of its cluster the way to each other's pods.
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
            node.end();
        }
        Ok(())
    }

    pub(super) fn stop_all(&mut self) {
        thread::scope(|scope| {
            for (_, mut node) in std::mem::take(&mut self.running) {
                scope.spawn(move || node.end());
            }
        });
    }

    /// Stops or continues every process of a node. On return, it is done.
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

/// Starts the namespaces of a node whose folder is prepared, and connects it.
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
        network_namespace: File::open(&path).doing(|| format!("open {path}"))?,
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
        .doing(|| format!("open {}", log.display()))?;
    let errors = output
        .try_clone()
        .doing(|| format!("open {}", log.display()))?;
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
        .doing(|| "start `unshare` for a node's namespaces".to_owned())
}

/// Waits until process 1 listens, which is the last thing it does before it waits itself.
fn wait_for_process_one(directory: &Path, parent: &mut Child) -> Result<i32> {
    let deadline = Instant::now() + PATIENCE;
    let socket = node::socket(directory);
    loop {
        if UnixStream::connect(&socket).is_ok() {
            let file = node::pid_file(directory);
            let text = fs::read_to_string(&file).doing(|| format!("read {}", file.display()))?;
            return text.trim().parse().map_err(|_| {
                Error::Refused(format!(
                    "{} does not hold a process id: {text}",
                    file.display()
                ))
            });
        }
        let exited = parent.try_wait().doing(|| "wait for a node".to_owned())?;
        if exited.is_some() || Instant::now() > deadline {
            let log = node::log_file(directory, "init");
            return Err(Error::Component {
                node: directory
                    .file_name()
                    .unwrap_or_default()
                    .to_string_lossy()
                    .into_owned(),
                trouble: "the node's namespaces did not start".to_owned(),
                tail: tail(&fs::read_to_string(&log).unwrap_or_default(), 15),
                log,
            });
        }
        thread::sleep(Duration::from_millis(5));
    }
}
