//! One running cluster: access to it, its images, and faults of its components and nodes.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::thread;
use std::time::{Duration, Instant};

use crate::api::ApiServer;
use crate::binaries::Binaries;
use crate::client::Client;
use crate::command::{run, tail};
use crate::control;
use crate::daemon;
use crate::error::{Error, ErrorContext as _, Result};
use crate::lab::in_parallel;
use crate::node::components::{API_SERVER, KUBELET};
use crate::node::{self, ComponentState, ComponentStatus, pid_file};
use crate::paths::LabPaths;
use crate::plan::{ClusterPlan, NodePlan, Shape};

/// How long a component may take to become ready before the start fails with its log.
const READY_TIMEOUT: Duration = Duration::from_secs(180);
const POLL_INTERVAL: Duration = Duration::from_millis(100);
/// A component that crashes this often while the lab waits for it is considered failed.
const MAX_CRASHES: u32 = 5;
const LOG_LINES: usize = 20;

#[derive(Clone, Debug)]
pub struct Cluster {
    pub(crate) plan: ClusterPlan,
    pub(crate) paths: LabPaths,
    pub(crate) binaries: Binaries,
}

impl Cluster {
    pub fn name(&self) -> &str {
        &self.plan.name
    }

    pub fn plan(&self) -> &ClusterPlan {
        &self.plan
    }

    /// The address of the API server as the developer's machine and other clusters reach it.
    pub fn api_server(&self) -> String {
        self.plan.api_server()
    }

    /// The administrator's kubeconfig, with one context named like the cluster.
    pub fn kubeconfig(&self) -> PathBuf {
        self.pki().join("admin.kubeconfig")
    }

    /// The certificate of the cluster's certificate authority and its key, in PEM, to sign certificates in tests.
    pub fn authority(&self) -> Result<(String, String)> {
        let read = |name: &str| {
            let path = self.pki().join(name);
            fs::read_to_string(&path).with_context(|| format!("read {}", path.display()))
        };
        Ok((read("ca.crt")?, read("ca.key")?))
    }

    /// The `kubectl` and `helm` client of this cluster.
    pub fn client(&self) -> Client {
        Client::of_lab(
            self.name(),
            self.kubeconfig(),
            self.paths.directory.join("clients"),
            &self.binaries,
        )
    }

    /// A command inside a node, in all of its namespaces.
    pub fn in_node(&self, node: &str) -> Result<Command> {
        let mut command = self.enter(node)?;
        command.args([
            "--pid", "--mount", "--net", "--uts", "--ipc", "--root", "--",
        ]);
        Ok(command)
    }

    /// A command in the network namespace of a node, with the files of the host.
    pub fn in_network_of(&self, node: &str) -> Result<Command> {
        let mut command = self.enter(node)?;
        command.args(["--net", "--"]);
        Ok(command)
    }

    fn enter(&self, node: &str) -> Result<Command> {
        let file = pid_file(&self.paths.node(&self.node(node)?.name));
        let pid = fs::read_to_string(&file).map_err(|_| {
            Error::Refused(format!(
                "node {node} is off; `cargo xtask lab power start {node}` starts it"
            ))
        })?;
        let mut command = Command::new("nsenter");
        command.args(["--target", pid.trim()]);
        Ok(command)
    }

    /// Loads an image archive into every node.
    pub fn load_image(&self, archive: &Path) -> Result<()> {
        if self.plan.shape == Shape::ControlPlaneOnly {
            return Ok(());
        }
        in_parallel(&self.plan.nodes, |node| {
            self.load_into_node(&node.name, archive)
        })
    }

    pub fn start_component(&self, node: &str, component: &str) -> Result<()> {
        self.call_node(node, &node::Request::Start(component.to_owned()))
            .map(drop)
    }

    /// Stops a component of a node until it is started again.
    pub fn stop_component(&self, node: &str, component: &str) -> Result<()> {
        self.call_node(node, &node::Request::Stop(component.to_owned()))
            .map(drop)
    }

    /// Suspends a component with SIGSTOP. Its connections stay open and silent.
    pub fn pause_component(&self, node: &str, component: &str) -> Result<()> {
        self.call_node(node, &node::Request::Pause(component.to_owned()))
            .map(drop)
    }

    pub fn continue_component(&self, node: &str, component: &str) -> Result<()> {
        self.call_node(node, &node::Request::Continue(component.to_owned()))
            .map(drop)
    }

    pub fn restart_component(&self, node: &str, component: &str) -> Result<()> {
        self.stop_component(node, component)?;
        self.start_component(node, component)
    }

    /// Restarts a component with additional arguments. The next restart is without them.
    pub fn restart_component_with(
        &self,
        node: &str,
        component: &str,
        arguments: &[&str],
    ) -> Result<()> {
        self.stop_component(node, component)?;
        let arguments = arguments.iter().map(|&argument| argument.to_owned());
        let request = node::Request::StartWith(component.to_owned(), arguments.collect());
        self.call_node(node, &request).map(drop)
    }

    /// Kills all processes of a node, like a power failure.
    pub fn stop_node(&self, node: &str) -> Result<()> {
        let node = self.node(node)?.name.clone();
        self.call_daemon(&daemon::Request::StopNode { node })
            .map(drop)
    }

    /// Starts a node that was stopped. Its disk is unchanged.
    pub fn start_node(&self, node: &str) -> Result<()> {
        let plan = self.node(node)?;
        let request = daemon::Request::StartNode {
            cluster: self.plan.clone(),
            node: plan.name.clone(),
        };
        self.call_daemon(&request)?;
        for component in node::components::components(&self.plan, plan) {
            if component.name == KUBELET {
                self.wait_for_api_server()?;
            }
            self.start_component(node, &component.name)?;
        }
        Ok(())
    }

    /// Freezes every process of a node, pods included.
    pub fn pause_node(&self, node: &str) -> Result<()> {
        self.freeze(node, true)
    }

    pub fn continue_node(&self, node: &str) -> Result<()> {
        self.freeze(node, false)
    }

    /// The state of the components of a node.
    pub fn components(&self, node: &str) -> Result<Vec<ComponentStatus>> {
        self.call_node(node, &node::Request::Status)
    }

    /// The log file of a component of a node.
    pub fn log(&self, node: &str, component: &str) -> Result<PathBuf> {
        let log = node::log_file(&self.paths.node(&self.node(node)?.name), component);
        if log.exists() {
            Ok(log)
        } else {
            let names: Vec<String> = self
                .components(node)?
                .into_iter()
                .map(|component| component.name)
                .collect();
            Err(Error::Refused(format!(
                "{node} has no log of `{component}`; its programs are {}",
                names.join(", ")
            )))
        }
    }

    /// Whether the cluster has started completely once. A cluster whose start was interrupted is started from scratch.
    pub(crate) fn is_complete(&self) -> bool {
        self.paths.complete_mark(self.name()).exists()
    }

    pub(crate) fn mark_complete(&self) -> Result<()> {
        let mark = self.paths.complete_mark(self.name());
        fs::write(&mark, "").with_context(|| format!("write {}", mark.display()))
    }

    pub fn wait_for_api_server(&self) -> Result<()> {
        let api = self.api()?;
        self.wait_for(
            &self.plan.first_node().name,
            API_SERVER,
            "the API server is not ready",
            || api.is_ready(),
        )
    }

    pub(crate) fn wait_for_nodes(&self) -> Result<()> {
        let api = self.api()?;
        for node in &self.plan.nodes {
            let path = format!("/api/v1/nodes/{}", node.name);
            self.wait_for(&node.name, KUBELET, "the node is not Ready", || {
                api.has_condition(&path, "Ready")
            })?;
        }
        Ok(())
    }

    pub(crate) fn api(&self) -> Result<ApiServer> {
        ApiServer::new(&self.plan, &self.pki())
    }

    /// Waits for a condition that a component of a node brings about. The error on timeout shows that component's log.
    pub(crate) fn wait_for(
        &self,
        node: &str,
        component: &str,
        problem: &str,
        condition: impl Fn() -> bool,
    ) -> Result<()> {
        let deadline = Instant::now() + READY_TIMEOUT;
        loop {
            if condition() {
                return Ok(());
            }
            // A node that does not respond now may respond at the next poll.
            let crashed = self
                .components(node)
                .unwrap_or_default()
                .into_iter()
                .find(|status| {
                    status.name == component
                        && status.state == ComponentState::Crashed
                        && status.restarts >= MAX_CRASHES
                });
            let problem = match crashed {
                Some(status) => format!(
                    "{problem}: {component} exited {} times ({})",
                    status.restarts,
                    status.last_exit.unwrap_or_default()
                ),
                None if Instant::now() > deadline => {
                    format!("{problem} after {} s", READY_TIMEOUT.as_secs())
                }
                None => {
                    thread::sleep(POLL_INTERVAL);
                    continue;
                }
            };
            let log = node::log_file(&self.paths.node(node), component);
            let text = fs::read_to_string(&log).unwrap_or_default();
            return Err(Error::Component {
                node: node.to_owned(),
                problem,
                log,
                tail: tail(&text, LOG_LINES),
            });
        }
    }

    pub(crate) fn load_into_node(&self, node: &str, archive: &Path) -> Result<()> {
        // The archive is opened here and piped: the node does not see the host's folders.
        let file =
            fs::File::open(archive).with_context(|| format!("open {}", archive.display()))?;
        let mut command = self.in_node(node)?;
        command.args([
            "ctr",
            "--address",
            "/run/containerd/containerd.sock",
            "--namespace",
            "k8s.io",
        ]);
        command.args(["images", "import", "-"]);
        let output = command
            .stdin(file)
            .output()
            .with_context(|| format!("run `{}`", crate::command::shown(&command)))?;
        if output.status.success() {
            return Ok(());
        }
        Err(Error::Command {
            command: crate::command::shown(&command),
            status: output.status.to_string(),
            output: tail(&String::from_utf8_lossy(&output.stderr), LOG_LINES),
        })
    }

    fn freeze(&self, node: &str, frozen: bool) -> Result<()> {
        let node = self.node(node)?.name.clone();
        self.call_daemon(&daemon::Request::FreezeNode { node, frozen })
            .map(drop)
    }

    fn node(&self, name: &str) -> Result<&NodePlan> {
        self.plan
            .nodes
            .iter()
            .find(|node| node.name == name)
            .ok_or_else(|| {
                let names: Vec<&str> = self
                    .plan
                    .nodes
                    .iter()
                    .map(|node| node.name.as_str())
                    .collect();
                Error::Refused(format!(
                    "cluster {} has no node `{name}`; it has {}",
                    self.plan.name,
                    names.join(", ")
                ))
            })
    }

    fn pki(&self) -> PathBuf {
        self.paths.node(&self.plan.first_node().name).join("pki")
    }

    fn call_node(&self, node: &str, request: &node::Request) -> Result<Vec<ComponentStatus>> {
        control::call(
            "node",
            &node::socket(&self.paths.node(&self.node(node)?.name)),
            request,
        )
    }

    fn call_daemon(&self, request: &daemon::Request) -> Result<daemon::Status> {
        control::call(daemon::ROLE, &self.paths.daemon_socket(), request)
    }
}

pub(crate) fn stopped_thread() -> Error {
    Error::Refused("a thread of the lab panicked, which is a bug; please report it".to_owned())
}

/// Runs a command to its end and returns its standard output. Errors show what it printed.
pub fn output_of(command: &mut Command) -> Result<String> {
    run(command)
}
