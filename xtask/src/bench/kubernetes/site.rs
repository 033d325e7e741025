//! A cluster with an application, servers beside it, and a worker in the network of its node.

use std::fs::{self, File};
use std::path::Path;
use std::process::{self, Command, Stdio};

use anyhow::{Context as _, Result};
use lab::standind;
use lab::{Client, Cluster, Lab, LabRequest, Lifetime, Paths, Progress, Shape};

use super::operator::Operator;
use crate::bench::Extent;
use crate::bench::images::ImagePrograms;
use crate::bench::load::{Hop, Load, LoadSite, MATCHED_HEADER, Route, UNMATCHED_HEADER};
use crate::bench::server::{Mode, ServerBehavior, Session};
use crate::bench::session::programs::{Programs, Worker, log, log_path};
use crate::bench::session::site::Folder;

pub(in crate::bench) const NAMESPACE: &str = "bench";
/// The target of sessions.
pub(in crate::bench) const TARGET: &str = "deployment/application";
const MANIFESTS: &str = include_str!("site.yaml");

/// The application's port that sessions steal, and a second port without a session.
const APPLICATION: u16 = 8080;
pub(in crate::bench) const DIRECT: u16 = 8081;

/// Services whose DNS names are each resolved for the first time.
const NAMES: usize = 40;

/// The site. What was started in it ends with it.
#[derive(Debug)]
pub(in crate::bench) struct Site {
    programs: Programs,
    folder: Folder,
    worker: Worker,
    /// The address of the application's pod.
    application: String,
    /// The address of the Service of the servers.
    servers: String,
    /// Set when it is installed.
    operator: Option<Operator>,
    lab: Lab,
}

/// How sessions access the cluster.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(in crate::bench) enum AccessPath {
    /// With the user's own Kubernetes permissions.
    OwnRights,
    Operator,
}

impl Site {
    pub(in crate::bench) fn build(programs: Programs, extent: &Extent) -> Result<Self> {
        let folder = Folder::new()?;
        // Discards the log of the previous run.
        File::create(log_path()?)?;
        let (paths, progress) = (Paths::from_environment(), Progress::to_stderr());
        let name = format!("bench-{}", process::id());
        let request = LabRequest::new(&name, 1, 1, Shape::Full)?;
        let lab = Lab::up(&paths, &request, Lifetime::Owned, &progress)?;
        let images = ImagePrograms::find(&programs, extent)?;
        images.load(&lab, &paths, &folder, &progress, 0)?;
        let cluster = first(&lab)?;
        let client = cluster.client();
        client.create_namespace(NAMESPACE)?;
        client.apply(NAMESPACE, &manifests())?;
        for deployment in ["application", "servers"] {
            let deployment = format!("deployment/{deployment}");
            kubectl(
                &client,
                &["rollout", "status", &deployment, "--timeout=120s"],
            )?;
        }
        let application = kubectl(
            &client,
            &[
                "get",
                "pods",
                "--selector=app=application",
                "--output=jsonpath={.items[0].status.podIP}",
            ],
        )?;
        let servers = kubectl(
            &client,
            &[
                "get",
                "service",
                "servers",
                "--output=jsonpath={.spec.clusterIP}",
            ],
        )?;
        let mut worker = in_node_network(&lab, &programs)?;
        worker.arg("worker");
        let worker = Worker::start(worker)?;
        Ok(Self {
            programs,
            folder,
            worker,
            application,
            servers,
            operator: None,
            lab,
        })
    }

    pub(in crate::bench) fn programs(&self) -> &Programs {
        &self.programs
    }

    pub(in crate::bench) fn cluster(&self) -> Result<&Cluster> {
        first(&self.lab)
    }

    /// The operator, which is installed at the first call.
    pub(in crate::bench) fn operator(&mut self) -> Result<&Operator> {
        if self.operator.is_none() {
            self.operator = Some(Operator::install(&self.client()?)?);
        }
        self.operator.as_ref().context("there is no operator")
    }

    /// The processes of the lab that run `standind` in a role.
    pub(in crate::bench) fn processes(&self, role: &str) -> Result<Vec<u32>> {
        let has_role = |pid: &u32| {
            let line = fs::read(format!("/proc/{pid}/cmdline")).unwrap_or_default();
            let mut words = line.split(|byte| *byte == 0);
            words
                .next()
                .is_some_and(|program| program.ends_with(b"standind"))
                && words.next() == Some(role.as_bytes())
        };
        let all = self.lab.processes()?.into_iter();
        let all = all.filter_map(|pid| u32::try_from(pid).ok());
        Ok(all.filter(has_role).collect())
    }

    /// The program of the bench, in the network of the node.
    pub(in crate::bench) fn in_node_network(&self) -> Result<Command> {
        in_node_network(&self.lab, &self.programs)
    }

    pub(in crate::bench) fn client(&self) -> Result<Client> {
        Ok(first(&self.lab)?.client())
    }

    pub(in crate::bench) fn load_image(&self, archive: &Path) -> Result<()> {
        Ok(self.lab.load_image(archive)?)
    }

    /// Runs `kubectl` in the namespace, and returns its output.
    pub(in crate::bench) fn kubectl(&self, arguments: &[&str]) -> Result<String> {
        kubectl(&self.client()?, arguments)
    }

    /// A server of the Service.
    pub(in crate::bench) fn server(&self, port: u16) -> String {
        format!("{}:{port}", self.servers)
    }

    /// DNS names that have not been resolved yet.
    pub(in crate::bench) fn names() -> Vec<String> {
        (0..NAMES).map(|number| format!("name-{number}")).collect()
    }

    /// `standin exec` for the application.
    pub(in crate::bench) fn exec(&self, access: AccessPath) -> Result<Command> {
        let client = self.client()?;
        let mut command = Command::new(&self.programs.standin);
        if let Some(kubeconfig) = client.kubeconfig() {
            command.env("KUBECONFIG", kubeconfig);
        }
        // The lab's addresses are on this machine, where no proxy can reach them.
        for variable in ["HTTPS_PROXY", "https_proxy", "HTTP_PROXY", "http_proxy"] {
            command.env_remove(variable);
        }
        match access {
            AccessPath::OwnRights => command
                .env("STANDIN_OPERATOR", "false")
                .env("STANDIN_AGENT_IMAGE", standind::REFERENCE),
            AccessPath::Operator => command.env("STANDIN_OPERATOR", "true"),
        };
        command
            .env("STANDIN_KUBE_CONTEXT", client.name())
            .args(["exec", "-t", TARGET, "-n", NAMESPACE])
            .stdin(Stdio::null())
            .stderr(log()?);
        Ok(command)
    }

    /// A session with a server that receives traffic of the application's port.
    pub(in crate::bench) fn session(&mut self, mode: Mode, access: AccessPath) -> Result<Session> {
        let session = Session::start(
            self.exec(access)?,
            &self.programs,
            &self.folder.0,
            mode,
            ServerBehavior::Healthy,
            APPLICATION,
        )?;
        let route = match mode {
            Mode::Steal | Mode::StealAll => self.stolen(),
            Mode::Mirror => self.passing(),
        };
        session.wait_for_traffic(|| Load::touch().run(self, &route).map(drop))?;
        Ok(session)
    }

    /// A worker in a session.
    pub(in crate::bench) fn session_worker(&self) -> Result<Worker> {
        let mut command = self.exec(AccessPath::OwnRights)?;
        command.arg("--").arg(&self.programs.workload).arg("worker");
        Worker::start(command)
    }

    /// The route to the application without a session.
    pub(in crate::bench) fn direct(&self) -> Route {
        self.route(DIRECT, UNMATCHED_HEADER, "original")
    }

    /// The route to the application through a session that does not match it, or that mirrors it.
    pub(in crate::bench) fn passing(&self) -> Route {
        self.route(APPLICATION, UNMATCHED_HEADER, "original")
    }

    pub(in crate::bench) fn stolen(&self) -> Route {
        self.route(APPLICATION, MATCHED_HEADER, "developer")
    }

    fn route(&self, port: u16, header: &'static str, from: &'static str) -> Route {
        let address = format!("{}:{port}", self.application);
        Route::new(address, header, from, Hop::Nothing)
    }
}

impl LoadSite for Site {
    fn worker(&mut self) -> &mut Worker {
        &mut self.worker
    }

    fn processor_seconds(&self, _: Hop) -> Result<f64> {
        Ok(0.0)
    }
}

fn first(lab: &Lab) -> Result<&Cluster> {
    lab.clusters().first().context("the lab has no cluster")
}

fn kubectl(client: &Client, arguments: &[&str]) -> Result<String> {
    let mut command = client.kubectl();
    command.args(["--namespace", NAMESPACE]).args(arguments);
    Ok(lab::output_of(&mut command)?)
}

fn manifests() -> String {
    let names = Site::names().into_iter().map(|name| {
        format!(
            "---\napiVersion: v1\nkind: Service\nmetadata: {{name: {name}}}\n\
             spec: {{selector: {{app: servers}}, ports: [{{port: 80}}]}}\n"
        )
    });
    std::iter::once(MANIFESTS.to_owned()).chain(names).collect()
}

fn in_node_network(lab: &Lab, programs: &Programs) -> Result<Command> {
    let cluster = first(lab)?;
    let mut command = cluster.in_network_of(&cluster.plan().first_node().name)?;
    command.arg(&programs.workload);
    Ok(command)
}
