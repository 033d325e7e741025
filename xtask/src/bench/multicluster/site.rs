//! Three clusters with an application each, operators with node agents, and a worker in each node's network.

use std::collections::BTreeMap;
use std::fs::{self, File};
use std::process::{self, Command, Stdio};
use std::thread;
use std::time::{Duration, Instant};

use anyhow::{Context as _, Result, ensure};
use lab::wire::Conditions;
use lab::{Client, Cluster, HOST, Lab, LabRequest, Lifetime, Paths, Progress, Shape};
use serde_json::{Value, json};

use crate::bench::Extent;
use crate::bench::images::ImagePrograms;
use crate::bench::load::{Hop, Load, LoadSite, MATCHED_HEADER, Route};
use crate::bench::server::{Mode, ServerBehavior, Session};
use crate::bench::session::programs::{Programs, Worker, log, log_path};
use crate::bench::session::site::Folder;
use crate::operator;

/// All have targets. The one that is cut off is the last.
pub(super) const CLUSTERS: [&str; 3] = [PRIMARY, DEFAULT, OTHER];
pub(super) const PRIMARY: &str = "east";
/// A member, so operations of a session go through the Primary.
pub(super) const DEFAULT: &str = "west";
/// A member that only contributes traffic.
pub(super) const OTHER: &str = "north";
pub(super) const MEMBERS: [&str; 2] = [DEFAULT, OTHER];

const NAMESPACE: &str = "bench";
const TARGET: &str = "deployment/application";
const OPERATOR_NAMESPACE: &str = "mirrord";
const MANIFESTS: &str = include_str!("../kubernetes/site.yaml");
/// The application's port that sessions steal.
const APPLICATION: u16 = 8080;
/// Files in each pod. Each is used once where a cache would distort the result.
pub(super) const SMALL_FILES: usize = 1000;
/// The longest time to wait for a condition.
const TIMEOUT: Duration = Duration::from_secs(60);

/// The site. What was started in it ends with it.
#[derive(Debug)]
pub(super) struct Site {
    programs: Programs,
    folder: Folder,
    /// In the order of [`CLUSTERS`].
    pub(super) cluster_sites: Vec<ClusterSite>,
    /// How the Primary reaches each member.
    access: BTreeMap<&'static str, Value>,
    pub(super) lab: Lab,
}

/// One cluster, with a worker that sends requests in it.
#[derive(Debug)]
pub(super) struct ClusterSite {
    pub(super) name: &'static str,
    worker: Worker,
    /// The address of the application's pod.
    application: String,
}

/// Which clusters a session covers.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum SessionScope {
    /// All of them, through the Primary.
    All,
    /// This one alone, through its own operator.
    One(&'static str),
}

impl SessionScope {
    /// The cluster that the client connects to.
    fn cluster(self) -> &'static str {
        match self {
            Self::All => PRIMARY,
            Self::One(cluster) => cluster,
        }
    }
}

impl Site {
    pub(super) fn build(programs: Programs, extent: &Extent) -> Result<Self> {
        let folder = Folder::new()?;
        // Discards the log of the previous run.
        File::create(log_path()?)?;
        let (paths, progress) = (Paths::from_environment(), Progress::to_stderr());
        let name = format!("bench-{}", process::id());
        let request = LabRequest::new(&name, CLUSTERS.len(), 1, Shape::Full)?;
        let lab = Lab::up(&paths, &request, Lifetime::Owned, &progress)?;
        let images = ImagePrograms::find(&programs, extent)?;
        images.load(&lab, &paths, &folder, &progress, SMALL_FILES)?;
        let mut cluster_sites = Vec::new();
        for name in CLUSTERS {
            cluster_sites.push(ClusterSite::build(name, lab.cluster(name)?, &programs)?);
        }
        let mut access = BTreeMap::new();
        for member in MEMBERS {
            let client = lab.cluster(member)?.client();
            let values =
                json!({"operator": {"multiClusterMember": true, "agent": {"mode": "node"}}});
            operator::install(&client, OPERATOR_NAMESPACE, "install", &values)?;
            operator::wait_for_nodes(&client, OPERATOR_NAMESPACE)?;
            access.insert(member, operator::access(&client, OPERATOR_NAMESPACE)?);
            progress.step(format!("{member}: its operator is ready"));
        }
        let site = Self {
            programs,
            folder,
            cluster_sites,
            access,
            lab,
        };
        site.configure("install", &MEMBERS.map(|name| (name.to_owned(), name)))?;
        progress.step("the Primary is connected to its members");
        Ok(site)
    }

    /// Installs the Primary (`install` or `upgrade`) with these members: their names, and the clusters that they are.
    pub(super) fn configure(&self, verb: &str, members: &[(String, &'static str)]) -> Result<()> {
        let clusters: serde_json::Map<String, Value> = members
            .iter()
            .filter_map(|(name, cluster)| Some((name.clone(), self.access.get(cluster)?.clone())))
            .collect();
        let values = json!({"operator": {
            "agent": {"mode": "node"},
            "multiCluster": {
                "enabled": true,
                "clusterName": PRIMARY,
                "defaultCluster": DEFAULT,
                "clusters": clusters,
            },
        }});
        let client = self.client(PRIMARY)?;
        operator::install(&client, OPERATOR_NAMESPACE, verb, &values)?;
        operator::wait_for_nodes(&client, OPERATOR_NAMESPACE)?;
        let names: Vec<&str> = members.iter().map(|(name, _)| name.as_str()).collect();
        operator::wait_for_members(&client, &names)
    }

    pub(super) fn programs(&self) -> &Programs {
        &self.programs
    }

    pub(super) fn cluster(&self, name: &str) -> Result<&Cluster> {
        Ok(self.lab.cluster(name)?)
    }

    pub(super) fn client(&self, name: &str) -> Result<Client> {
        Ok(self.cluster(name)?.client())
    }

    /// The round trip to both members, for the Primary and for the developer, who is beside it.
    pub(super) fn set_round_trip(&self, milliseconds: u64) -> Result<()> {
        let conditions = Conditions::delayed_by(Duration::from_micros(milliseconds * 500));
        for member in MEMBERS {
            for here in [PRIMARY, HOST] {
                self.lab.set_link(here, member, &conditions)?;
            }
        }
        Ok(())
    }

    /// The program of the bench, in the network of a cluster's node.
    pub(super) fn in_node_network(&self, cluster: &str) -> Result<Command> {
        in_node_network(self.cluster(cluster)?, &self.programs)
    }

    /// The address of a pod that has servers.
    pub(super) fn servers(&self, cluster: &str) -> Result<String> {
        pod_address(&self.client(cluster)?, "servers")
    }

    /// `standin exec` for the application.
    pub(super) fn exec(&self, scope: SessionScope) -> Result<Command> {
        let client = self.client(scope.cluster())?;
        let mut command = Command::new(&self.programs.standin);
        if let Some(kubeconfig) = client.kubeconfig() {
            command.env("KUBECONFIG", kubeconfig);
        }
        // The lab's addresses are on this machine, where no proxy can reach them.
        for variable in ["HTTPS_PROXY", "https_proxy", "HTTP_PROXY", "http_proxy"] {
            command.env_remove(variable);
        }
        command
            .env("STANDIN_OPERATOR", "true")
            .env("STANDIN_KUBE_CONTEXT", client.name())
            .args(["exec", "-t", TARGET, "-n", NAMESPACE])
            .args((scope != SessionScope::All).then_some("--no-multi-cluster"))
            .stdin(Stdio::null())
            .stderr(log()?);
        Ok(command)
    }

    /// Simulated clients. A session has started when it has a link with so many agents.
    pub(super) fn clients(&self, scope: SessionScope, agents: usize) -> Result<Worker> {
        let client = self.client(scope.cluster())?;
        let mut command = Command::new(&self.programs.workload);
        command
            .arg("clients")
            .arg("--kubeconfig")
            .arg(client.kubeconfig().context("the lab has no kubeconfig")?)
            .args(["--context", client.name()])
            .args(["--namespace", NAMESPACE, "--target", TARGET])
            .args(["--agents", &agents.to_string()])
            .args((scope != SessionScope::All).then_some("--no-multi-cluster"));
        Worker::start(command)
    }

    /// A worker in a session over all clusters.
    pub(super) fn session_worker(&self) -> Result<Worker> {
        let mut command = self.exec(SessionScope::All)?;
        command.arg("--").arg(&self.programs.workload).arg("worker");
        Worker::start(command)
    }

    /// A session over all clusters whose server serves the matching requests of every cluster.
    pub(super) fn stealing_session(&mut self) -> Result<Session> {
        let session = Session::start(
            self.exec(SessionScope::All)?,
            &self.programs,
            &self.folder.0,
            Mode::Steal,
            ServerBehavior::Healthy,
            APPLICATION,
        )?;
        for cluster_site in &mut self.cluster_sites {
            cluster_site.wait_until_stolen()?;
        }
        Ok(session)
    }

    /// Waits until no cluster has a session any more, so that none disturbs the next measurement.
    pub(super) fn wait_for_no_session(&self) -> Result<()> {
        for (cluster, kind) in [
            (
                PRIMARY,
                "mirrordmulticlustersessions.operator.metalbear.co,mirrordclustersessions.mirrord.metalbear.co",
            ),
            (DEFAULT, "mirrordclustersessions.mirrord.metalbear.co"),
            (OTHER, "mirrordclustersessions.mirrord.metalbear.co"),
        ] {
            let client = self.client(cluster)?;
            until(&format!("no session in {cluster}"), || {
                let left = lab::output_of(client.kubectl().args(["get", kind, "--output=name"]))?;
                ensure!(left.trim().is_empty(), "{left} still exists");
                Ok(())
            })?;
        }
        Ok(())
    }

    /// The processes of a cluster that run `standind` in a role.
    pub(super) fn processes(&self, cluster: &str, role: &str) -> Result<Vec<u32>> {
        let node = format!("/{}/", self.cluster(cluster)?.plan().first_node().name);
        let is_match = |pid: &u32| {
            let groups = fs::read_to_string(format!("/proc/{pid}/cgroup")).unwrap_or_default();
            let line = fs::read(format!("/proc/{pid}/cmdline")).unwrap_or_default();
            let mut words = line.split(|byte| *byte == 0);
            let is_ours = words
                .next()
                .is_some_and(|program| program.ends_with(b"standind"));
            is_ours && words.next() == Some(role.as_bytes()) && groups.contains(&node)
        };
        let all = self.lab.processes()?.into_iter();
        let all = all.filter_map(|pid| u32::try_from(pid).ok());
        Ok(all.filter(is_match).collect())
    }
}

impl ClusterSite {
    fn build(name: &'static str, cluster: &Cluster, programs: &Programs) -> Result<Self> {
        let client = cluster.client();
        client.create_namespace(NAMESPACE)?;
        client.apply(NAMESPACE, MANIFESTS)?;
        for deployment in ["deployment/application", "deployment/servers"] {
            kubectl(
                &client,
                &["rollout", "status", deployment, "--timeout=120s"],
            )?;
        }
        let mut worker = in_node_network(cluster, programs)?;
        worker.arg("worker");
        Ok(Self {
            name,
            worker: Worker::start(worker)?,
            application: pod_address(&client, "application")?,
        })
    }

    pub(super) fn stolen(&self) -> Route {
        let address = format!("{}:{APPLICATION}", self.application);
        Route::new(address, MATCHED_HEADER, "developer", Hop::Nothing)
    }

    /// Sends requests until the developer's server responds.
    pub(super) fn wait_until_stolen(&mut self) -> Result<()> {
        let (route, name) = (self.stolen(), self.name);
        until(&format!("requests in {name} to be stolen"), || {
            Load::lasting(1, 100).run(self, &route).map(drop)
        })
    }
}

impl LoadSite for ClusterSite {
    fn worker(&mut self) -> &mut Worker {
        &mut self.worker
    }

    fn processor_seconds(&self, _: Hop) -> Result<f64> {
        Ok(0.0)
    }
}

/// Retries until it succeeds.
fn until(what: &str, mut attempt: impl FnMut() -> Result<()>) -> Result<()> {
    let deadline = Instant::now() + TIMEOUT;
    loop {
        match attempt() {
            Ok(()) => return Ok(()),
            Err(error) if Instant::now() > deadline => {
                return Err(error.context(format!("waited {} s for {what}", TIMEOUT.as_secs())));
            }
            Err(_) => thread::sleep(Duration::from_millis(200)),
        }
    }
}

fn pod_address(client: &Client, application: &str) -> Result<String> {
    kubectl(
        client,
        &[
            "get",
            "pods",
            &format!("--selector=app={application}"),
            "--output=jsonpath={.items[0].status.podIP}",
        ],
    )
}

fn kubectl(client: &Client, arguments: &[&str]) -> Result<String> {
    let mut command = client.kubectl();
    command.args(["--namespace", NAMESPACE]).args(arguments);
    Ok(lab::output_of(&mut command)?)
}

fn in_node_network(cluster: &Cluster, programs: &Programs) -> Result<Command> {
    let mut command = cluster.in_network_of(&cluster.plan().first_node().name)?;
    command.arg(&programs.workload);
    Ok(command)
}
