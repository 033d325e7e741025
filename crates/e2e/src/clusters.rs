//! The clusters that the scenarios run on.

use std::env;
use std::path::Path;
use std::process;
use std::sync::OnceLock;

use anyhow::{Context as _, Result, anyhow, ensure};
use kube::config::{KubeConfigOptions, Kubeconfig};
use lab::binaries::Binaries;
use lab::image::recipes;
use lab::{ClusterRequest, Lab, LabRequest, Lifetime, Paths, Progress, Shape};
use tokio::runtime::Runtime;

use crate::environment;

/// An environment that is started when the first scenario needs it, so that listing the scenarios starts nothing.
#[derive(Debug, Default)]
pub struct LazyEnvironment {
    started: OnceLock<Result<Environment, String>>,
}

impl LazyEnvironment {
    pub fn get(&self) -> Result<&Environment> {
        let start =
            || Environment::start(&Progress::to_stderr()).map_err(|error| format!("{error:#}"));
        self.started
            .get_or_init(start)
            .as_ref()
            .map_err(|error| anyhow!("the clusters of the scenarios could not be started: {error}"))
    }

    /// Stops the environment if it was started.
    pub fn end(self) -> Result<()> {
        match self.started.into_inner() {
            Some(Ok(environment)) => environment.end(),
            _ => Ok(()),
        }
    }
}

/// Whether the scenarios run on a lab, whose parts can be broken, and not on existing clusters.
pub(crate) fn uses_lab() -> bool {
    contexts().is_none()
}

fn contexts() -> Option<String> {
    env::var(environment::CONTEXTS)
        .ok()
        .filter(|contexts| !contexts.is_empty())
}

/// The clusters that all scenarios share. Started once, before the first scenario.
#[derive(Debug)]
pub struct Environment {
    clusters: Vec<TestCluster>,
    lab: Option<Lab>,
    runtime: Runtime,
}

/// One of the clusters.
#[derive(Clone)]
pub struct TestCluster {
    pub name: String,
    pub kube: kube::Client,
    pub client: lab::Client,
}

impl Environment {
    /// Connects to the contexts of [`environment::CONTEXTS`] if it is set, and starts a lab of two clusters otherwise.
    fn start(progress: &Progress) -> Result<Environment> {
        let paths = Paths::from_environment();
        match contexts() {
            Some(contexts) => Environment::connect_to_contexts(&paths, &contexts, progress),
            None => Environment::start_lab(&paths, progress),
        }
    }

    fn start_lab(paths: &Paths, progress: &Progress) -> Result<Environment> {
        let cluster = |name: &str, nodes| ClusterRequest {
            name: name.to_owned(),
            nodes,
            shape: Shape::Full,
        };
        let request = LabRequest {
            name: format!("e2e-{}", process::id()),
            // One cluster has two nodes, for the scenarios that need traffic between nodes.
            clusters: vec![cluster("east", 2), cluster("west", 1)],
        };
        let lab = Lab::up(paths, &request, Lifetime::Owned, progress)?;
        for archive in base_images(paths, progress)? {
            lab.load_image(&archive)?;
        }
        progress.step("loaded the images of the scenarios");
        let clients = lab.clusters().iter().map(lab::Cluster::client).collect();
        Environment::new(clients, Some(lab))
    }

    fn connect_to_contexts(
        paths: &Paths,
        contexts: &str,
        progress: &Progress,
    ) -> Result<Environment> {
        let binaries = Binaries::ensure(paths, progress)?;
        let clients = contexts
            .split(',')
            .map(|context| lab::Client::of_context(context.trim(), paths, &binaries))
            .collect::<lab::Result<Vec<_>>>()?;
        ensure!(
            clients.len() >= 2,
            "the scenarios need two clusters: {} names one",
            environment::CONTEXTS
        );
        for archive in base_images(paths, progress)? {
            for client in &clients {
                client.load_image_into_existing(&archive)?;
            }
        }
        Environment::new(clients, None)
    }

    fn new(clients: Vec<lab::Client>, lab: Option<Lab>) -> Result<Environment> {
        let runtime = Runtime::new().context("cannot start the runtime")?;
        let clusters = clients
            .into_iter()
            .map(|client| {
                let kube = runtime.block_on(connect(client.kubeconfig(), client.name()))?;
                Ok(TestCluster {
                    name: client.name().to_owned(),
                    kube,
                    client,
                })
            })
            .collect::<Result<Vec<_>>>()?;
        Ok(Environment {
            clusters,
            lab,
            runtime,
        })
    }

    /// The clusters in the order of the request or of the contexts. There are at least two.
    pub fn clusters(&self) -> &[TestCluster] {
        &self.clusters
    }

    /// The lab, unless the scenarios run on existing clusters.
    pub fn lab(&self) -> Option<&Lab> {
        self.lab.as_ref()
    }

    pub(crate) fn runtime(&self) -> &Runtime {
        &self.runtime
    }

    /// Loads one more image into every cluster.
    pub fn load_image(&self, archive: &Path) -> Result<()> {
        match &self.lab {
            Some(lab) => lab.load_image(archive)?,
            None => {
                for cluster in &self.clusters {
                    cluster.client.load_image_into_existing(archive)?;
                }
            }
        }
        Ok(())
    }

    fn end(self) -> Result<()> {
        drop(self.runtime);
        if let Some(lab) = self.lab {
            Lab::down(&Paths::from_environment(), lab.name())?;
        }
        Ok(())
    }
}

/// Clusters for one scenario, in addition to the shared ones. They are stopped when this value is dropped.
#[derive(Debug)]
pub struct OwnClusters {
    clusters: Vec<TestCluster>,
    lab: Lab,
}

impl OwnClusters {
    /// Starts clusters with one node each.
    pub async fn start(names: &[&str], progress: &Progress) -> Result<Self> {
        let cluster = |name: &&str| ClusterRequest {
            name: (*name).to_owned(),
            nodes: 1,
            shape: Shape::Full,
        };
        let request = LabRequest {
            name: format!("own-{}", process::id()),
            clusters: names.iter().map(cluster).collect(),
        };
        let paths = Paths::from_environment();
        let lab = Lab::up(&paths, &request, Lifetime::Owned, progress)?;
        let mut own = OwnClusters {
            clusters: Vec::new(),
            lab,
        };
        for archive in base_images(&paths, progress)? {
            own.lab.load_image(&archive)?;
        }
        for client in own.lab.clusters().iter().map(lab::Cluster::client) {
            let kube = connect(client.kubeconfig(), client.name()).await?;
            own.clusters.push(TestCluster {
                name: client.name().to_owned(),
                kube,
                client,
            });
        }
        Ok(own)
    }

    pub fn lab(&self) -> &Lab {
        &self.lab
    }

    pub fn get(&self, name: &str) -> Result<&TestCluster> {
        let found = self.clusters.iter().find(|cluster| cluster.name == name);
        found.with_context(|| format!("there is no cluster {name}"))
    }
}

impl Drop for OwnClusters {
    fn drop(&mut self) {
        // What cannot be stopped now ends with this process.
        let _ = Lab::down(&Paths::from_environment(), self.lab.name());
    }
}

impl std::fmt::Debug for TestCluster {
    fn fmt(&self, formatter: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        formatter
            .debug_struct("TestCluster")
            .field("name", &self.name)
            .finish_non_exhaustive()
    }
}

fn base_images(paths: &Paths, progress: &Progress) -> Result<Vec<std::path::PathBuf>> {
    let report = |text: &str| progress.step(text);
    let cache = paths.images();
    let images = [
        recipes::tools(&cache, &report)?,
        recipes::python(&cache, &report)?,
    ];
    Ok(images.iter().map(|image| image.path().to_owned()).collect())
}

async fn connect(kubeconfig_path: Option<&Path>, context: &str) -> Result<kube::Client> {
    let kubeconfig = match kubeconfig_path {
        Some(path) => Kubeconfig::read_from(path),
        None => Kubeconfig::read(),
    }
    .context("cannot read the kubeconfig")?;
    let options = KubeConfigOptions {
        context: Some(context.to_owned()),
        ..KubeConfigOptions::default()
    };
    let mut config = kube::Config::from_custom_kubeconfig(kubeconfig, &options)
        .await
        .with_context(|| format!("the kubeconfig has no usable context `{context}`"))?;
    if kubeconfig_path.is_some() {
        // The lab's addresses exist only on this machine, where no proxy can reach them.
        config.proxy_url = None;
    }
    Ok(kube::Client::try_from(config)?)
}
