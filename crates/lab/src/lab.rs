//! A lab as a whole: bring it up, find it again, break its network, take it down.

use std::fs::{self, File};
use std::path::Path;
use std::process::{ChildStdin, Stdio};
use std::thread;
use std::time::{Duration, Instant};

use nix::fcntl::{Flock, FlockArg};
use serde::{Deserialize, Serialize};

use crate::binaries::Binaries;
use crate::cluster::{Cluster, stopped_thread};
use crate::command::tail;
use crate::control;
use crate::dns;
use crate::error::{Doing as _, Error, Result};
use crate::image::recipes;
use crate::keeper::{self, LinkStatus, ROLE};
use crate::node::components::{self, CONTAINERD, MachinePrograms};
use crate::node::{self, ComponentStatus};
use crate::paths::{LabPaths, Paths};
use crate::pki;
use crate::plan::{ClusterPlan, LabRequest, Network, NodePlan, Shape};
use crate::progress::Progress;
use crate::role::{self, Role};
use crate::surroundings::{self, Demand, Facts};
use crate::usage::{self, Usage};
use crate::wire::Conditions;

const PATIENCE: Duration = Duration::from_secs(30);

/// How long a lab lives.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Lifetime {
    /// Until this process ends, however it ends.
    Owned,
    /// Until someone takes it down. While it is still coming up it is owned.
    Detached,
}

/// A running lab.
#[derive(Debug)]
pub struct Lab {
    name: String,
    paths: LabPaths,
    network: Network,
    clusters: Vec<Cluster>,
    /// The keeper ends the lab when this closes, unless the lab was released.
    _keeper_input: Option<ChildStdin>,
}

/// What a lab writes down so that other processes find its parts.
#[derive(Clone, Debug, Serialize, Deserialize)]
struct Record {
    network: Network,
    clusters: Vec<ClusterPlan>,
}

/// What runs and what is broken.
#[derive(Clone, Debug, Serialize)]
pub struct LabStatus {
    pub name: String,
    pub network: String,
    pub detached: bool,
    pub nodes: Vec<NodeOverview>,
    pub links: Vec<LinkStatus>,
}

#[derive(Clone, Debug, Serialize)]
pub struct NodeOverview {
    pub cluster: String,
    pub node: String,
    pub address: String,
    pub power: Power,
    pub components: Vec<ComponentStatus>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "kebab-case")]
pub enum Power {
    On,
    Off,
    Frozen,
}

impl Lab {
    /// Brings up what is asked for. What already runs under this name is kept and used.
    pub fn up(
        paths: &Paths,
        request: &LabRequest,
        lifetime: Lifetime,
        progress: &Progress,
    ) -> Result<Lab> {
        request.check()?;
        check_surroundings(paths, request)?;
        let binaries = Binaries::ensure(paths, progress)?;
        let lab_paths = paths.lab(&request.name);
        let _lock = lock(&lab_paths)?;
        let (record, input) = match find(&lab_paths)? {
            Some(record) => (record, None),
            None => start_keeper(&lab_paths, progress)?,
        };
        let mut lab = Lab {
            name: request.name.clone(),
            network: record.network,
            clusters: clusters(&lab_paths, &binaries, &record),
            paths: lab_paths,
            _keeper_input: input,
        };
        let wanted = lab.plan(request)?;
        lab.clusters = clusters(&lab.paths, &binaries, &wanted);
        write_record(&lab.paths, &wanted)?;
        let asked: Vec<&Cluster> = lab
            .clusters
            .iter()
            .filter(|cluster| {
                request
                    .clusters
                    .iter()
                    .any(|request| request.name == cluster.name())
            })
            .collect();
        let running = lab.ask(&keeper::Request::Status)?.nodes;
        let (complete, incomplete): (Vec<&Cluster>, Vec<&Cluster>) =
            asked.into_iter().partition(|cluster| {
                cluster
                    .plan
                    .nodes
                    .iter()
                    .all(|node| running.iter().any(|running| running.node == node.name))
            });
        for cluster in complete {
            progress.step(format!("{}: already running", cluster.name()));
        }
        if !incomplete.is_empty() {
            let images = [
                recipes::pause(&paths.images(), &|text| progress.step(text))?,
                dns::image(&paths.images(), &binaries)?,
            ];
            in_parallel(&incomplete, |cluster| {
                lab.start_cluster(cluster, &images, progress)
            })?;
        }
        lab.write_kubeconfig()?;
        if lifetime == Lifetime::Detached {
            lab.ask(&keeper::Request::Release)?;
        }
        Ok(lab)
    }

    /// Finds a running lab.
    pub fn attach(paths: &Paths, name: &str) -> Result<Lab> {
        let lab_paths = paths.lab(name);
        let record = find(&lab_paths)?.ok_or_else(|| Error::NotRunning(name.to_owned()))?;
        let binaries = Binaries::find(paths).ok_or_else(|| {
            Error::Refused(
                "the lab's programs are not built any more; take the lab down and up again"
                    .to_owned(),
            )
        })?;
        Ok(Lab {
            name: name.to_owned(),
            network: record.network,
            clusters: clusters(&lab_paths, &binaries, &record),
            paths: lab_paths,
            _keeper_input: None,
        })
    }

    /// The names of the labs that run, or that left something behind.
    pub fn list(paths: &Paths) -> Vec<String> {
        let mut names: Vec<String> = fs::read_dir(paths.run())
            .into_iter()
            .flatten()
            .flatten()
            .filter(|entry| entry.path().is_dir())
            .map(|entry| entry.file_name().to_string_lossy().into_owned())
            .collect();
        names.sort();
        names
    }

    /// Takes a lab down, also one whose keeper was killed. Returns whether there was anything.
    pub fn down(paths: &Paths, name: &str) -> Result<bool> {
        let lab_paths = paths.lab(name);
        if !lab_paths.directory.exists() {
            return Ok(false);
        }
        let _lock = lock(&lab_paths)?;
        if control::call::<_, keeper::Status>(
            ROLE,
            &lab_paths.keeper_socket(),
            &keeper::Request::Down,
        )
        .is_err()
        {
            sweep(&lab_paths)?;
        }
        let _ = fs::remove_file(&lab_paths.lock);
        Ok(true)
    }

    pub fn name(&self) -> &str {
        &self.name
    }

    pub fn network(&self) -> Network {
        self.network
    }

    pub fn clusters(&self) -> &[Cluster] {
        &self.clusters
    }

    pub fn cluster(&self, name: &str) -> Result<&Cluster> {
        self.clusters
            .iter()
            .find(|cluster| cluster.name() == name)
            .ok_or_else(|| {
                let known: Vec<&str> = self.clusters.iter().map(Cluster::name).collect();
                Error::Refused(format!(
                    "lab {} has no cluster `{name}`; it has {}",
                    self.name,
                    known.join(", ")
                ))
            })
    }

    /// The cluster that a node belongs to.
    pub fn cluster_of_node(&self, node: &str) -> Result<&Cluster> {
        self.clusters
            .iter()
            .find(|cluster| cluster.plan().nodes.iter().any(|plan| plan.name == node))
            .ok_or_else(|| Error::Refused(format!("lab {} has no node `{node}`", self.name)))
    }

    /// A kubeconfig with a context for each cluster.
    pub fn kubeconfig(&self) -> std::path::PathBuf {
        self.paths.kubeconfig()
    }

    /// Loads an image archive into every node of every cluster.
    pub fn load_image(&self, archive: &Path) -> Result<()> {
        let all: Vec<&Cluster> = self.clusters.iter().collect();
        in_parallel(&all, |cluster| cluster.load_image(archive))
    }

    /// Sets what happens to packets between two endpoints, in both directions. An endpoint is a cluster or
    /// [`HOST`](crate::HOST).
    pub fn set_link(&self, one: &str, other: &str, conditions: &Conditions) -> Result<()> {
        self.set_direction(one, other, conditions)?;
        self.set_direction(other, one, conditions)
    }

    /// Sets what happens to packets in one direction.
    pub fn set_direction(&self, from: &str, to: &str, conditions: &Conditions) -> Result<()> {
        self.ask(&keeper::Request::SetConditions {
            from: from.to_owned(),
            to: to.to_owned(),
            conditions: conditions.clone(),
        })
        .map(drop)
    }

    /// No packet passes between two endpoints, and nobody is told.
    pub fn cut(&self, one: &str, other: &str) -> Result<()> {
        self.set_link(
            one,
            other,
            &Conditions {
                cut: true,
                ..Conditions::default()
            },
        )
    }

    /// Whether `from` may open connections to the cluster `to`. Open ones go on either way, and `to` may always dial.
    pub fn set_dialling(&self, from: &str, to: &str, allowed: bool) -> Result<()> {
        self.ask(&keeper::Request::SetDialling {
            from: from.to_owned(),
            to: to.to_owned(),
            allowed,
        })
        .map(drop)
    }

    /// Makes every link perfect again.
    pub fn heal(&self) -> Result<()> {
        self.ask(&keeper::Request::Heal).map(drop)
    }

    pub fn status(&self) -> Result<LabStatus> {
        let status = self.ask(&keeper::Request::Status)?;
        let overview = |cluster: &Cluster, node: &NodePlan| {
            let running = status
                .nodes
                .iter()
                .find(|running| running.node == node.name);
            let power = match running {
                None => Power::Off,
                Some(running) if running.frozen => Power::Frozen,
                Some(_) => Power::On,
            };
            let components = if power == Power::On {
                cluster.components(&node.name).unwrap_or_default()
            } else {
                Vec::new()
            };
            NodeOverview {
                cluster: cluster.name().to_owned(),
                node: node.name.clone(),
                address: node.address.to_string(),
                power,
                components,
            }
        };
        Ok(LabStatus {
            name: self.name.clone(),
            network: self.network.subnet(),
            detached: status.released,
            nodes: self
                .clusters
                .iter()
                .flat_map(|cluster| {
                    cluster
                        .plan()
                        .nodes
                        .iter()
                        .map(move |node| overview(cluster, node))
                })
                .collect(),
            links: status.links,
        })
    }

    /// Every process of the lab's nodes, for measurements.
    pub fn processes(&self) -> Result<Vec<i32>> {
        Ok(keeper::lab_group(self.network)?.processes())
    }

    /// What the lab uses of the machine now: every process of its nodes, and its keeper.
    pub fn usage(&self) -> Result<Usage> {
        let group = keeper::lab_group(self.network)?;
        let mut processes = group.processes();
        processes.extend(usage::processes_mentioning(&self.paths.directory));
        processes.sort_unstable();
        processes.dedup();
        Ok(Usage {
            memory: usage::memory_of(&processes),
            processor_time: group.processor_time()?,
        })
    }

    /// The clusters that run, and after them those that are asked for and do not run yet.
    fn plan(&self, request: &LabRequest) -> Result<Record> {
        let mut plans: Vec<ClusterPlan> = self
            .clusters
            .iter()
            .map(|cluster| cluster.plan.clone())
            .collect();
        for asked in &request.clusters {
            if let Some(running) = plans.iter().find(|plan| plan.name == asked.name) {
                if running.shape != asked.shape || running.nodes.len() != asked.nodes {
                    return Err(Error::Refused(format!(
                        "cluster {} already runs with {} node(s) in another shape; take the lab down first \
                         (`cargo xtask lab down --name {}`) or use another --name",
                        running.name,
                        running.nodes.len(),
                        self.name
                    )));
                }
                continue;
            }
            let number = u8::try_from(plans.len() + 1).unwrap_or(u8::MAX);
            plans.push(ClusterPlan::new(self.network, number, asked));
        }
        if plans.len() > crate::plan::MOST_CLUSTERS {
            return Err(Error::Refused(format!(
                "lab {} would have {} clusters, and a lab has at most {}",
                self.name,
                plans.len(),
                crate::plan::MOST_CLUSTERS
            )));
        }
        Ok(Record {
            network: self.network,
            clusters: plans,
        })
    }

    fn start_cluster(
        &self,
        cluster: &Cluster,
        images: &[crate::image::ImageArchive],
        progress: &Progress,
    ) -> Result<()> {
        let running = self.ask(&keeper::Request::Status)?;
        let missing: Vec<&NodePlan> = cluster
            .plan
            .nodes
            .iter()
            .filter(|node| {
                !running
                    .nodes
                    .iter()
                    .any(|running| running.node == node.name)
            })
            .collect();
        self.prepare_folders(cluster, &missing)?;
        in_parallel(&missing, |node| {
            self.ask(&keeper::Request::StartNode {
                cluster: cluster.plan.clone(),
                node: node.name.clone(),
            })?;
            start_components(cluster, node, images, progress)
        })?;
        if cluster.plan.shape == Shape::ControlPlaneOnly {
            return cluster.wait_for(
                &cluster.plan.first_node().name,
                components::CONTROLLER_MANAGER,
                "the default service account is missing",
                || default_account_exists(cluster),
            );
        }
        dns::install(cluster)?;
        cluster.wait_for_nodes()?;
        progress.step(format!(
            "{}: {} node(s) Ready",
            cluster.name(),
            cluster.plan.nodes.len()
        ));
        dns::wait(cluster)?;
        progress.step(format!(
            "{}: pods can run and names resolve",
            cluster.name()
        ));
        Ok(())
    }

    fn prepare_folders(&self, cluster: &Cluster, nodes: &[&NodePlan]) -> Result<()> {
        let authorities = self.paths.authority(cluster.name());
        if !authorities.exists() {
            pki::create_authorities(&authorities)?;
        }
        let machine = machine_programs()?;
        let group = keeper::lab_group(self.network)?;
        for node in nodes {
            let folder = self.paths.node(&node.name);
            for part in ["log", "cni"] {
                let path = folder.join(part);
                fs::create_dir_all(&path).doing(|| format!("make {}", path.display()))?;
            }
            pki::create_node(&folder.join("pki"), &authorities, &cluster.plan, node)?;
            let group = group.of_node(&node.name).name();
            for (name, text) in components::files(&cluster.plan, node, &group, &machine) {
                let file = folder.join(name);
                fs::write(&file, text).doing(|| format!("write {}", file.display()))?;
            }
            let description = node::Description {
                name: node.name.clone(),
                lab_group: self.network.device(),
                programs: cluster.binaries.directory().to_owned(),
                components: components::components(&cluster.plan, node),
            };
            write_json(&node::description_file(&folder), &description)?;
        }
        Ok(())
    }

    fn write_kubeconfig(&self) -> Result<()> {
        let mut parts = Vec::new();
        for cluster in &self.clusters {
            let folder = self.paths.node(&cluster.plan.first_node().name).join("pki");
            let read = |name: &str| {
                fs::read_to_string(folder.join(name))
                    .doing(|| format!("read {}", folder.join(name).display()))
            };
            parts.push((
                cluster,
                read("ca.crt")?,
                read("admin.crt")?,
                read("admin.key")?,
            ));
        }
        let accesses: Vec<pki::Access<'_>> = parts
            .iter()
            .map(|(cluster, authority, certificate, key)| pki::Access {
                cluster: &cluster.plan,
                authority,
                certificate,
                key,
            })
            .collect();
        let file = self.paths.kubeconfig();
        fs::write(&file, pki::kubeconfig(&accesses)).doing(|| format!("write {}", file.display()))
    }

    fn ask(&self, request: &keeper::Request) -> Result<keeper::Status> {
        control::call(ROLE, &self.paths.keeper_socket(), request)
    }
}

/// Starts the programs of a node in their order, each as soon as what it needs is there.
fn start_components(
    cluster: &Cluster,
    node: &NodePlan,
    images: &[crate::image::ImageArchive],
    progress: &Progress,
) -> Result<()> {
    let list = components::components(&cluster.plan, node);
    let has = |name: &str| list.iter().any(|component| component.name == name);
    let start = |name: &str| {
        if has(name) {
            cluster.start_component(&node.name, name)
        } else {
            Ok(())
        }
    };
    // The container runtime and the control plane do not know each other, so they come up side by side.
    thread::scope(|scope| {
        let images = scope.spawn(|| {
            start(CONTAINERD)?;
            if has(CONTAINERD) {
                load_first_images(cluster, node, images)
            } else {
                Ok(())
            }
        });
        start(components::ETCD)?;
        start(components::API_SERVER)?;
        cluster.wait_for_api_server()?;
        if has(components::API_SERVER) {
            progress.step(format!("{}: API server ready", cluster.name()));
        }
        start(components::CONTROLLER_MANAGER)?;
        start(components::SCHEDULER)?;
        images.join().unwrap_or_else(|_| Err(stopped_thread()))?;
        start(components::KUBELET)?;
        start(components::KUBE_PROXY)
    })
}

fn load_first_images(
    cluster: &Cluster,
    node: &NodePlan,
    images: &[crate::image::ImageArchive],
) -> Result<()> {
    let answers = || {
        cluster.in_node(&node.name).is_ok_and(|mut command| {
            command
                .args([
                    "ctr",
                    "--address",
                    "/run/containerd/containerd.sock",
                    "version",
                ])
                .output()
                .is_ok_and(|output| output.status.success())
        })
    };
    cluster.wait_for(
        &node.name,
        CONTAINERD,
        "the container runtime does not answer",
        answers,
    )?;
    in_parallel(&images.iter().collect::<Vec<_>>(), |image| {
        cluster.load_into_node(&node.name, image.path())
    })
}

/// Pods are refused before this exists.
pub(crate) fn default_account_exists(cluster: &Cluster) -> bool {
    cluster
        .api()
        .and_then(|api| api.get("/api/v1/namespaces/default/serviceaccounts/default"))
        .is_ok_and(|account| account.is_some())
}

fn check_surroundings(paths: &Paths, request: &LabRequest) -> Result<()> {
    let facts = Facts::gather(paths, Binaries::find(paths).is_none());
    let demand = Demand {
        clusters: request.clusters.len() as u64,
        nodes: request
            .clusters
            .iter()
            .map(|cluster| cluster.nodes as u64)
            .sum(),
    };
    let problems = surroundings::problems(&facts, demand);
    if problems.is_empty() {
        Ok(())
    } else {
        Err(Error::Surroundings(problems))
    }
}

fn machine_programs() -> Result<MachinePrograms> {
    let missing = |what: &str| Error::Refused(format!("{what} went away while the lab started"));
    Ok(MachinePrograms {
        runc: surroundings::find_program("runc")
            .ok_or_else(|| missing("runc"))?
            .display()
            .to_string(),
        network_plugins: surroundings::network_plugins()
            .ok_or_else(|| missing("the network plugins"))?
            .display()
            .to_string(),
    })
}

fn start_keeper(paths: &LabPaths, progress: &Progress) -> Result<(Record, Option<ChildStdin>)> {
    fs::create_dir_all(&paths.directory).doing(|| format!("make {}", paths.directory.display()))?;
    let log = paths.keeper_log();
    let output = File::create(&log).doing(|| format!("write {}", log.display()))?;
    let errors = output
        .try_clone()
        .doing(|| format!("write {}", log.display()))?;
    let mut child = role::command(Role::Keeper, &paths.directory)?
        .stdin(Stdio::piped())
        .stdout(output)
        .stderr(errors)
        .spawn()
        .doing(|| "start the lab's keeper".to_owned())?;
    let input = child.stdin.take();
    let deadline = Instant::now() + PATIENCE;
    loop {
        let status = control::call::<_, keeper::Status>(
            ROLE,
            &paths.keeper_socket(),
            &keeper::Request::Status,
        );
        if let Ok(status) = status {
            // Reaped here, so that a process that outlives its lab has no dead child.
            thread::spawn(move || child.wait());
            progress.step(format!("network {} made", status.network.subnet()));
            return Ok((
                Record {
                    network: status.network,
                    clusters: Vec::new(),
                },
                input,
            ));
        }
        let exited = child
            .try_wait()
            .doing(|| "wait for the lab's keeper".to_owned())?;
        if exited.is_some() || Instant::now() > deadline {
            let _ = child.kill();
            let text = fs::read_to_string(&log).unwrap_or_default();
            let _ = fs::remove_dir_all(&paths.directory);
            return Err(Error::Component {
                node: "the lab's keeper".to_owned(),
                trouble: "did not start".to_owned(),
                tail: tail(&text, 15),
                log,
            });
        }
        thread::sleep(Duration::from_millis(10));
    }
}

/// The record of a lab whose keeper answers. What a killed one left behind is removed.
fn find(paths: &LabPaths) -> Result<Option<Record>> {
    if !paths.directory.exists() {
        return Ok(None);
    }
    let status =
        control::call::<_, keeper::Status>(ROLE, &paths.keeper_socket(), &keeper::Request::Status);
    if status.is_err() {
        sweep(paths)?;
        return Ok(None);
    }
    let file = paths.record();
    let text = fs::read_to_string(&file).doing(|| format!("read {}", file.display()))?;
    serde_json::from_str(&text)
        .map(Some)
        .map_err(|source| Error::Json {
            what: file.display().to_string(),
            source,
        })
}

/// Removes what the kernel did not take with a killed keeper.
fn sweep(paths: &LabPaths) -> Result<()> {
    let record: Option<Record> = fs::read_to_string(paths.record())
        .ok()
        .and_then(|text| serde_json::from_str(&text).ok());
    if let Some(record) = record {
        keeper::lab_group(record.network)?.remove()?;
    }
    fs::remove_dir_all(&paths.directory).doing(|| format!("remove {}", paths.directory.display()))
}

fn clusters(paths: &LabPaths, binaries: &Binaries, record: &Record) -> Vec<Cluster> {
    record
        .clusters
        .iter()
        .map(|plan| Cluster {
            plan: plan.clone(),
            paths: paths.clone(),
            binaries: binaries.clone(),
        })
        .collect()
}

fn write_record(paths: &LabPaths, record: &Record) -> Result<()> {
    write_json(&paths.record(), record)
}

fn write_json(file: &Path, value: &impl Serialize) -> Result<()> {
    let text = serde_json::to_string_pretty(value).map_err(|source| Error::Json {
        what: file.display().to_string(),
        source,
    })?;
    fs::write(file, text).doing(|| format!("write {}", file.display()))
}

/// Commands that change the same lab take turns.
fn lock(paths: &LabPaths) -> Result<Flock<File>> {
    if let Some(folder) = paths.lock.parent() {
        fs::create_dir_all(folder).doing(|| format!("make {}", folder.display()))?;
    }
    let file = File::create(&paths.lock).doing(|| format!("open {}", paths.lock.display()))?;
    Flock::lock(file, FlockArg::LockExclusive)
        .map_err(|(_, error)| error)
        .doing(|| format!("lock {}", paths.lock.display()))
}

/// Does the same with each, side by side, and returns the first error.
fn in_parallel<T: Sync>(items: &[T], work: impl Fn(&T) -> Result<()> + Sync) -> Result<()> {
    thread::scope(|scope| {
        let work = &work;
        let running: Vec<_> = items
            .iter()
            .map(|item| scope.spawn(move || work(item)))
            .collect();
        running
            .into_iter()
            .map(|thread| thread.join().unwrap_or_else(|_| Err(stopped_thread())))
            .fold(
                Ok(()),
                |first, next| if first.is_err() { first } else { next },
            )
    })
}

/// Used by tests of the lock: whether another process changes this lab now.
#[cfg(test)]
fn is_locked(paths: &LabPaths) -> bool {
    File::create(&paths.lock)
        .is_ok_and(|file| Flock::lock(file, FlockArg::LockExclusiveNonblock).is_err())
}

#[cfg(test)]
mod tests {
    use std::sync::Mutex;

    use super::*;

    #[test]
    fn a_lab_that_never_was_is_not_running() {
        let folder = tempfile::tempdir().unwrap();
        let paths = Paths::at(folder.path());
        let error = Lab::attach(&paths, "nothing").unwrap_err();
        assert_eq!(error.to_string(), "no lab named `nothing` is running");
        assert!(error.hint().unwrap().contains("lab up --name nothing"));
        assert!(!Lab::down(&paths, "nothing").unwrap());
        assert!(Lab::list(&paths).is_empty());
    }

    #[test]
    fn remains_of_a_killed_keeper_are_swept() {
        let folder = tempfile::tempdir().unwrap();
        let paths = Paths::at(folder.path());
        let lab = paths.lab("dead");
        fs::create_dir_all(&lab.directory).unwrap();
        fs::write(lab.record(), "{").unwrap();
        assert_eq!(Lab::list(&paths), ["dead"]);
        assert!(Lab::down(&paths, "dead").unwrap());
        assert!(!lab.directory.exists());
        assert!(!lab.lock.exists());
    }

    #[test]
    fn commands_on_one_lab_take_turns() {
        let folder = tempfile::tempdir().unwrap();
        let paths = Paths::at(folder.path()).lab("busy");
        let held = lock(&paths).unwrap();
        assert!(is_locked(&paths));
        drop(held);
        assert!(!is_locked(&paths));
    }

    #[test]
    fn the_first_error_is_returned_and_all_work_is_done() {
        let done = Mutex::new(0);
        let result = in_parallel(&[1, 2, 3], |number| {
            *done.lock().unwrap() += 1;
            if *number == 2 {
                Err(Error::Refused("two".to_owned()))
            } else {
                Ok(())
            }
        });
        assert_eq!(result.unwrap_err().to_string(), "two");
        assert_eq!(*done.lock().unwrap(), 3);
    }
}
