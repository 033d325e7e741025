//! A lab as a whole: bring it up, find it again, break its network, take it down.

mod keeping;
mod starting;
mod status;

use std::fs;
use std::path::{Path, PathBuf};
use std::process::ChildStdin;
use std::thread;

pub(crate) use self::keeping::Record;
pub(crate) use self::starting::wait_for_default_account;
pub use self::status::{LabStatus, NodeOverview, Power};
use crate::binaries::Binaries;
use crate::cluster::{Cluster, stopped_thread};
use crate::control;
use crate::dns;
use crate::error::{Error, Result};
use crate::image::recipes;
use crate::keeper::{self, ROLE};
use crate::paths::{LabPaths, Paths};
use crate::pki;
use crate::plan::{ClusterPlan, HOST, LabRequest, MOST_CLUSTERS, Network};
use crate::progress::Progress;
use crate::surroundings::{self, Demand};
use crate::usage::{self, Usage};
use crate::wire::Conditions;

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

impl Lab {
    /// Brings up what is asked for. What already runs under this name is kept and used.
    pub fn up(
        paths: &Paths,
        request: &LabRequest,
        lifetime: Lifetime,
        progress: &Progress,
    ) -> Result<Lab> {
        request.check()?;
        surroundings::check_root()?;
        let lab_paths = paths.lab(&request.name)?;
        check_socket_paths(&lab_paths, request)?;
        let _lock = keeping::lock(&lab_paths)?;
        let found = keeping::find_or_sweep(&lab_paths)?;
        let running: Vec<&ClusterPlan> = found.iter().flat_map(|record| &record.clusters).collect();
        surroundings::check(paths, Demand::of(request, &running))?;
        let binaries = Binaries::ensure(paths, progress)?;
        let (record, input) = match found {
            Some(record) => (record, None),
            None => keeping::start_keeper(&lab_paths, progress)?,
        };
        let record = planned(record, request)?;
        record.write(&lab_paths)?;
        let lab = Lab {
            name: request.name.clone(),
            network: record.network,
            clusters: clusters(&lab_paths, &binaries, &record),
            paths: lab_paths,
            _keeper_input: input,
        };
        lab.start_what_is_missing(paths, request, progress)
            .map_err(|error| lab.keep_logs(&paths.failed(&lab.name), error))?;
        lab.write_kubeconfig()?;
        if lifetime == Lifetime::Detached {
            lab.ask(&keeper::Request::Release)?;
        }
        Ok(lab)
    }

    /// Finds a running lab.
    pub fn attach(paths: &Paths, name: &str) -> Result<Lab> {
        let lab_paths = paths.lab(name)?;
        let record =
            keeping::find(&lab_paths)?.ok_or_else(|| Error::NotRunning(name.to_owned()))?;
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
        let lab_paths = paths.lab(name)?;
        if !lab_paths.directory.exists() {
            return Ok(false);
        }
        let _lock = keeping::lock(&lab_paths)?;
        keeping::end(&lab_paths)?;
        // Removed while it is held, which is when it may be.
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

    /// Makes the link between two endpoints perfect again, dialling included.
    pub fn heal_link(&self, one: &str, other: &str) -> Result<()> {
        self.set_link(one, other, &Conditions::default())?;
        for (from, to) in [(one, other), (other, one)] {
            if to != HOST {
                self.set_dialling(from, to, true)?;
            }
        }
        Ok(())
    }

    /// Makes every link perfect again.
    pub fn heal(&self) -> Result<()> {
        self.ask(&keeper::Request::Heal).map(drop)
    }

    /// Every process of the lab's nodes, for measurements.
    pub fn processes(&self) -> Result<Vec<i32>> {
        Ok(keeper::lab_group(self.network)?.processes())
    }

    /// What the lab uses of the machine now: the memory of its nodes and its keeper, the processor time of its nodes.
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

    fn start_what_is_missing(
        &self,
        paths: &Paths,
        request: &LabRequest,
        progress: &Progress,
    ) -> Result<()> {
        let is_asked_for = |cluster: &&Cluster| {
            request
                .clusters
                .iter()
                .any(|asked| asked.name == cluster.name())
        };
        let (complete, missing): (Vec<&Cluster>, Vec<&Cluster>) = self
            .clusters
            .iter()
            .filter(is_asked_for)
            .partition(|cluster| cluster.is_complete());
        for cluster in complete {
            progress.step(format!("{}: already running", cluster.name()));
            starting::start_nodes_again(self, cluster, progress)?;
        }
        let Some(first) = missing.first() else {
            return Ok(());
        };
        let images = [
            recipes::pause(&paths.images(), &|text| progress.step(text))?,
            dns::image(&paths.images(), &first.binaries)?,
        ];
        in_parallel(&missing, |cluster| {
            starting::start_cluster(self, cluster, &images, progress)
        })
    }

    /// Clusters whose start failed have no certificates and no place in it.
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

    /// Copies the logs out of a lab whose start has failed and which is about to go, and lets the error name the copy.
    fn keep_logs(&self, folder: &Path, error: Error) -> Error {
        let Error::Component {
            node,
            trouble,
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
                let place = folder.join(&plan.name);
                let _ = fs::create_dir_all(&place)
                    .and_then(|()| fs::copy(entry.path(), place.join(entry.file_name())));
            }
        }
        let kept = folder.join(&node).join(log.file_name().unwrap_or_default());
        Error::Component {
            node,
            trouble,
            log: if kept.exists() { kept } else { log },
            tail,
        }
    }

    fn ask(&self, request: &keeper::Request) -> Result<keeper::Status> {
        control::call(ROLE, &self.paths.keeper_socket(), request)
    }
}

/// The clusters that run, and after them those that are asked for and do not run yet.
fn planned(mut record: Record, request: &LabRequest) -> Result<Record> {
    for asked in &request.clusters {
        if let Some(running) = record.clusters.iter().find(|plan| plan.name == asked.name) {
            if running.shape != asked.shape || running.nodes.len() != asked.nodes {
                return Err(Error::Refused(format!(
                    "cluster {} already runs as {:?} with {} node(s), which is not what was asked for; take the lab \
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
            .push(ClusterPlan::new(record.network, number, asked));
    }
    if record.clusters.len() > MOST_CLUSTERS {
        return Err(Error::Refused(format!(
            "lab {} would have {} clusters, and a lab has at most {MOST_CLUSTERS}",
            request.name,
            record.clusters.len(),
        )));
    }
    Ok(record)
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

/// The kernel takes paths of sockets up to a length, and says nothing helpful about longer ones.
fn check_socket_paths(paths: &LabPaths, request: &LabRequest) -> Result<()> {
    const LONGEST: usize = 107;
    let longest_node = request
        .clusters
        .iter()
        .map(|cluster| cluster.name.len() + 2)
        .max();
    let socket = crate::node::socket(&paths.node(&"x".repeat(longest_node.unwrap_or(0))));
    if socket.as_os_str().len() <= LONGEST {
        return Ok(());
    }
    Err(Error::Refused(format!(
        "the path {} is too long for a socket; use a shorter --name, or set {} to a shorter folder",
        paths.directory.display(),
        crate::environment::LAB_DIRECTORY
    )))
}

/// Does the same with each, side by side, and returns the first error.
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
    fn remains_of_a_killed_keeper_are_swept() {
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
