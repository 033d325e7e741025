//! A lab as a whole: start it, find it again, inject network faults, remove it.

mod lifecycle;
mod startup;
mod status;

use std::fs;
use std::path::{Path, PathBuf};
use std::process::ChildStdin;
use std::thread;

pub(crate) use self::lifecycle::LabRecord;
pub(crate) use self::startup::wait_for_default_account;
pub use self::status::{LabStatus, NodeOverview, Power};
use crate::binaries::Binaries;
use crate::cluster::{Cluster, stopped_thread};
use crate::control;
use crate::daemon::{self, ROLE};
use crate::dns;
use crate::error::{Error, Result};
use crate::host_checks::{self, ResourceDemand};
use crate::image::recipes;
use crate::paths::{LabPaths, Paths};
use crate::pki;
use crate::plan::{ClusterPlan, HOST, LabRequest, MAX_CLUSTERS, Network};
use crate::progress::Progress;
use crate::usage::{self, Usage};
use crate::wire::Conditions;

/// How long a lab lives.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Lifetime {
    /// Until this process ends, however it ends.
    Owned,
    /// Until it is taken down explicitly. While it is still starting, it is owned.
    Detached,
}

/// A running lab.
#[derive(Debug)]
pub struct Lab {
    name: String,
    paths: LabPaths,
    network: Network,
    clusters: Vec<Cluster>,
    /// The daemon shuts the lab down when this pipe closes, unless the lab was released.
    _daemon_stdin: Option<ChildStdin>,
}

impl Lab {
    /// Starts the requested clusters. Clusters of this name that already run are kept and used.
    pub fn up(
        paths: &Paths,
        request: &LabRequest,
        lifetime: Lifetime,
        progress: &Progress,
    ) -> Result<Lab> {
        request.check()?;
        host_checks::check_root()?;
        let lab_paths = paths.lab(&request.name)?;
        check_socket_paths(&lab_paths, request)?;
        let _lock = lifecycle::lock(&lab_paths)?;
        let found = lifecycle::find_or_clean_up(&lab_paths)?;
        let running: Vec<&ClusterPlan> = found.iter().flat_map(|record| &record.clusters).collect();
        host_checks::check(paths, ResourceDemand::of(request, &running))?;
        let binaries = Binaries::ensure(paths, progress)?;
        let (record, input) = match found {
            Some(record) => (record, None),
            None => lifecycle::start_daemon(&lab_paths, progress)?,
        };
        let record = plan_clusters(record, request)?;
        record.write(&lab_paths)?;
        let lab = Lab {
            name: request.name.clone(),
            network: record.network,
            clusters: clusters(&lab_paths, &binaries, &record),
            paths: lab_paths,
            _daemon_stdin: input,
        };
        lab.start_missing(paths, request, progress)
            .map_err(|error| lab.save_logs(&paths.failed(&lab.name), error))?;
        lab.write_kubeconfig()?;
        if lifetime == Lifetime::Detached {
            lab.call_daemon(&daemon::Request::Release)?;
        }
        Ok(lab)
    }

    /// Finds a running lab.
    pub fn attach(paths: &Paths, name: &str) -> Result<Lab> {
        let lab_paths = paths.lab(name)?;
        let record =
            lifecycle::find(&lab_paths)?.ok_or_else(|| Error::NotRunning(name.to_owned()))?;
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
            _daemon_stdin: None,
        })
    }

    /// The names of the labs that run, and of those that left files behind.
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

    /// Takes a lab down, also one whose daemon was killed. Returns whether there was anything to remove.
    pub fn down(paths: &Paths, name: &str) -> Result<bool> {
        let lab_paths = paths.lab(name)?;
        if !lab_paths.directory.exists() {
            return Ok(false);
        }
        let _lock = lifecycle::lock(&lab_paths)?;
        lifecycle::shut_down(&lab_paths)?;
        // Only the holder of the lock may remove the lock file.
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
                let names: Vec<&str> = self.clusters.iter().map(Cluster::name).collect();
                Error::Refused(format!(
                    "lab {} has no cluster `{name}`; it has {}",
                    self.name,
                    names.join(", ")
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
    pub fn kubeconfig(&self) -> PathBuf {
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
        self.call_daemon(&daemon::Request::SetConditions {
            from: from.to_owned(),
            to: to.to_owned(),
            conditions: conditions.clone(),
        })
        .map(drop)
    }

    /// Drops every packet between two endpoints silently.
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

    /// Sets whether `from` may open connections to the cluster `to`. Established connections continue in either case, and
    /// `to` may always dial.
    pub fn set_dialling(&self, from: &str, to: &str, allowed: bool) -> Result<()> {
        self.call_daemon(&daemon::Request::SetDialling {
            from: from.to_owned(),
            to: to.to_owned(),
            allowed,
        })
        .map(drop)
    }

    /// Removes all faults between two endpoints, including blocked dialling.
    pub fn heal_link(&self, one: &str, other: &str) -> Result<()> {
        self.set_link(one, other, &Conditions::default())?;
        for (from, to) in [(one, other), (other, one)] {
            if to != HOST {
                self.set_dialling(from, to, true)?;
            }
        }
        Ok(())
    }

    /// Removes the faults of every link.
    pub fn heal(&self) -> Result<()> {
        self.call_daemon(&daemon::Request::Heal).map(drop)
    }

    /// Every process of the lab's nodes, for measurements.
    pub fn processes(&self) -> Result<Vec<i32>> {
        Ok(daemon::lab_group(self.network)?.processes())
    }

    /// What the lab uses of the machine now: the memory of its nodes and its daemon, the processor time of its nodes.
    pub fn usage(&self) -> Result<Usage> {
        let group = daemon::lab_group(self.network)?;
        let mut processes = group.processes();
        processes.extend(usage::processes_mentioning(&self.paths.directory));
        processes.sort_unstable();
        processes.dedup();
        Ok(Usage {
            memory: usage::memory_of(&processes),
            processor_time: group.processor_time()?,
        })
    }

    fn start_missing(
        &self,
        paths: &Paths,
        request: &LabRequest,
        progress: &Progress,
    ) -> Result<()> {
        let is_requested = |cluster: &&Cluster| {
            request
                .clusters
                .iter()
                .any(|requested| requested.name == cluster.name())
        };
        let (complete, missing): (Vec<&Cluster>, Vec<&Cluster>) = self
            .clusters
            .iter()
            .filter(is_requested)
            .partition(|cluster| cluster.is_complete());
        for cluster in complete {
            progress.step(format!("{}: already running", cluster.name()));
            startup::restart_stopped_nodes(self, cluster, progress)?;
        }
        let Some(first) = missing.first() else {
            return Ok(());
        };
        let images = [
            recipes::sandbox(&paths.images(), &|text| progress.step(text))?,
            dns::image(&paths.images(), &first.binaries)?,
        ];
        in_parallel(&missing, |cluster| {
            startup::start_cluster(self, cluster, &images, progress)
        })
    }

    /// Clusters whose start failed have no certificates and are left out.
    fn write_kubeconfig(&self) -> Result<()> {
        let mut parts = Vec::new();
        for cluster in self.clusters.iter().filter(|cluster| cluster.is_complete()) {
            let folder = self.paths.node(&cluster.plan.first_node().name).join("pki");
            let read = |name: &str| pki::read(&folder, name);
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
        pki::write(
            &self.paths.directory,
            LabPaths::KUBECONFIG,
            &pki::kubeconfig(&accesses),
        )
    }

    /// Copies the logs of a lab whose start has failed, before its files are removed, and returns the error with the path
    /// of the copy.
    fn save_logs(&self, folder: &Path, error: Error) -> Error {
        let Error::Component {
            node,
            problem,
            log,
            tail,
        } = error
        else {
            return error;
        };
        let _ = fs::remove_dir_all(folder);
        for plan in self.clusters.iter().flat_map(|cluster| &cluster.plan.nodes) {
            let logs = fs::read_dir(self.paths.node(&plan.name).join("log"));
            for entry in logs.into_iter().flatten().flatten() {
                let copies = folder.join(&plan.name);
                let _ = fs::create_dir_all(&copies)
                    .and_then(|()| fs::copy(entry.path(), copies.join(entry.file_name())));
            }
        }
        let copy = folder.join(&node).join(log.file_name().unwrap_or_default());
        Error::Component {
            node,
            problem,
            log: if copy.exists() { copy } else { log },
            tail,
        }
    }

    fn call_daemon(&self, request: &daemon::Request) -> Result<daemon::Status> {
        control::call(ROLE, &self.paths.daemon_socket(), request)
    }
}

/// Appends the requested clusters that do not run yet to those that do.
fn plan_clusters(mut record: LabRecord, request: &LabRequest) -> Result<LabRecord> {
    for requested in &request.clusters {
        if let Some(running) = record
            .clusters
            .iter()
            .find(|plan| plan.name == requested.name)
        {
            if running.shape != requested.shape || running.nodes.len() != requested.nodes {
                return Err(Error::Refused(format!(
                    "cluster {} already runs as {:?} with {} node(s), which differs from this request; take the lab \
                     down first (`cargo xtask lab down --name {}`) or use another --name",
                    running.name,
                    running.shape,
                    running.nodes.len(),
                    request.name
                )));
            }
            continue;
        }
        let number = u8::try_from(record.clusters.len() + 1).unwrap_or(u8::MAX);
        record
            .clusters
            .push(ClusterPlan::new(record.network, number, requested));
    }
    if record.clusters.len() > MAX_CLUSTERS {
        return Err(Error::Refused(format!(
            "lab {} would have {} clusters, and a lab has at most {MAX_CLUSTERS}",
            request.name,
            record.clusters.len(),
        )));
    }
    Ok(record)
}

fn clusters(paths: &LabPaths, binaries: &Binaries, record: &LabRecord) -> Vec<Cluster> {
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

/// Checks the length of the socket paths: the kernel's own error for a path that is too long is not helpful.
fn check_socket_paths(paths: &LabPaths, request: &LabRequest) -> Result<()> {
    const MAX_SOCKET_PATH: usize = 107;
    let longest_node = request
        .clusters
        .iter()
        .map(|cluster| cluster.name.len() + 2)
        .max();
    let socket = crate::node::socket(&paths.node(&"x".repeat(longest_node.unwrap_or(0))));
    if socket.as_os_str().len() <= MAX_SOCKET_PATH {
        return Ok(());
    }
    Err(Error::Refused(format!(
        "the path {} is too long for a socket; use a shorter --name, or set {} to a shorter folder",
        paths.directory.display(),
        crate::environment::LAB_DIRECTORY
    )))
}

/// Runs `work` for every item in a thread of its own and returns the first error.
pub(crate) fn in_parallel<T: Sync>(
    items: &[T],
    work: impl Fn(&T) -> Result<()> + Sync,
) -> Result<()> {
    thread::scope(|scope| {
        let work = &work;
        let running: Vec<_> = items
            .iter()
            .map(|item| scope.spawn(move || work(item)))
            .collect();
        running
            .into_iter()
            .map(|thread| thread.join().unwrap_or_else(|_| Err(stopped_thread())))
            .reduce(Result::and)
            .unwrap_or(Ok(()))
    })
}

#[cfg(test)]
mod tests {
    use parking_lot::Mutex;

    use super::*;

    #[test]
    fn a_lab_that_was_never_started_is_not_running() {
        let folder = tempfile::tempdir().unwrap();
        let paths = Paths::at(folder.path());
        let error = Lab::attach(&paths, "nothing").unwrap_err();
        assert_eq!(error.to_string(), "no lab named `nothing` is running");
        assert!(error.hint().unwrap().contains("lab up --name nothing"));
        assert!(!Lab::down(&paths, "nothing").unwrap());
        assert!(Lab::list(&paths).is_empty());
    }

    #[test]
    fn a_name_that_is_a_path_is_refused_before_anything_is_removed() {
        let folder = tempfile::tempdir().unwrap();
        let paths = Paths::at(folder.path());
        fs::create_dir_all(paths.run().join("other")).unwrap();
        for name in ["", ".", "..", "/etc", "../x", "a/b"] {
            assert!(Lab::attach(&paths, name).is_err(), "{name}");
            let error = Lab::down(&paths, name).unwrap_err().to_string();
            assert!(error.contains("cannot be the name of a lab"), "{error}");
        }
        assert!(paths.run().join("other").exists());
    }

    #[test]
    fn a_path_that_is_too_long_for_a_socket_is_refused() {
        let request = LabRequest::new("lab", 1, 1, crate::plan::Shape::Full).unwrap();
        let at =
            |folder: &str| check_socket_paths(&Paths::at(folder).lab("lab").unwrap(), &request);
        assert!(at("/var/cache/standin/lab").is_ok());
        let error = at(&format!("/{}", "long".repeat(25)))
            .unwrap_err()
            .to_string();
        assert!(error.contains("STANDIN_LAB_DIR"), "{error}");
    }

    #[test]
    fn files_of_a_killed_daemon_are_removed() {
        let folder = tempfile::tempdir().unwrap();
        let paths = Paths::at(folder.path());
        let lab = paths.lab("dead").unwrap();
        fs::create_dir_all(&lab.directory).unwrap();
        fs::write(lab.record(), "{").unwrap();
        assert_eq!(Lab::list(&paths), ["dead"]);
        assert!(Lab::down(&paths, "dead").unwrap());
        assert!(!lab.directory.exists());
        assert!(!lab.lock.exists());
    }

    #[test]
    fn the_first_error_is_returned_after_all_work_has_finished() {
        let done = Mutex::new(0);
        let result = in_parallel(&[1, 2, 3], |number| {
            *done.lock() += 1;
            if *number == 2 {
                Err(Error::Refused("two".to_owned()))
            } else {
                Ok(())
            }
        });
        assert_eq!(result.unwrap_err().to_string(), "two");
        assert_eq!(*done.lock(), 3);
    }
}
