//! The folders and files of the lab. All of them are below one folder outside the repository.

use std::env;
use std::path::{self, Path, PathBuf};

use crate::environment;
use crate::error::Result;
use crate::image::Cache;
use crate::plan;

/// The folders of the lab on this machine.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Paths {
    base: PathBuf,
}

impl Paths {
    /// `$STANDIN_LAB_DIR`, or `standin/lab` in the user's cache folder.
    pub fn from_environment() -> Self {
        let folder = |name: &str| {
            env::var_os(name)
                .filter(|value| !value.is_empty())
                .map(PathBuf::from)
        };
        let base = folder(environment::LAB_DIRECTORY)
            .or_else(|| folder("XDG_CACHE_HOME").map(|cache| cache.join("standin/lab")))
            .or_else(|| folder("HOME").map(|home| home.join(".cache/standin/lab")))
            .unwrap_or_else(|| PathBuf::from("/var/cache/standin/lab"));
        Paths::at(path::absolute(&base).unwrap_or(base))
    }

    pub fn at(base: impl Into<PathBuf>) -> Self {
        Paths { base: base.into() }
    }

    pub fn base(&self) -> &Path {
        &self.base
    }

    /// Built programs, one folder for each hash of their sources.
    pub fn binaries(&self) -> PathBuf {
        self.base.join("bin")
    }

    /// Image archives and the root file systems that they are built from.
    pub fn images(&self) -> Cache {
        Cache::new(self.base.join("images"))
    }

    /// One folder for each running lab.
    pub fn run(&self) -> PathBuf {
        self.base.join("run")
    }

    /// The logs of a lab whose start has failed.
    pub(crate) fn failed(&self, name: &str) -> PathBuf {
        self.base.join("failed").join(name)
    }

    /// The files of a lab. The name is checked here, because root removes folders with this name.
    pub(crate) fn lab(&self, name: &str) -> Result<LabPaths> {
        plan::check_name("lab", name)?;
        Ok(LabPaths::at(&self.run().join(name)))
    }
}

/// The files of one running lab.
#[derive(Clone, Debug)]
pub(crate) struct LabPaths {
    pub(crate) directory: PathBuf,
    /// Locked while a command changes the lab. It is not in the folder, because the folder is created and removed.
    pub(crate) lock: PathBuf,
}

impl LabPaths {
    pub(crate) fn at(directory: &Path) -> Self {
        LabPaths {
            directory: directory.to_owned(),
            lock: directory.with_extension("lock"),
        }
    }

    pub(crate) fn record(&self) -> PathBuf {
        self.directory.join("lab.json")
    }

    pub(crate) fn daemon_socket(&self) -> PathBuf {
        self.directory.join("daemon.sock")
    }

    pub(crate) fn daemon_log(&self) -> PathBuf {
        self.directory.join("daemon.log")
    }

    pub(crate) const KUBECONFIG: &str = "kubeconfig";

    pub(crate) fn kubeconfig(&self) -> PathBuf {
        self.directory.join(LabPaths::KUBECONFIG)
    }

    pub(crate) fn node(&self, node: &str) -> PathBuf {
        self.directory.join(node)
    }

    pub(crate) fn authority(&self, cluster: &str) -> PathBuf {
        self.directory.join(format!("{cluster}.pki"))
    }

    pub(crate) fn complete_mark(&self, cluster: &str) -> PathBuf {
        self.directory.join(format!("{cluster}.complete"))
    }
}
