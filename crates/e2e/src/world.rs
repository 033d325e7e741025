//! The clusters that all stories share.

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

/// A world that is started when the first story asks for it, so that listing the stories starts nothing.
#[derive(Debug, Default)]
pub struct LaterWorld {
    started: OnceLock<Result<World, String>>,
}

impl LaterWorld {
    pub fn get(&self) -> Result<&World> {
        let start = || World::start(&Progress::to_stderr()).map_err(|error| format!("{error:#}"));
        self.started
            .get_or_init(start)
            .as_ref()
            .map_err(|error| anyhow!("the clusters for the stories could not be started: {error}"))
    }

    /// Takes down what was started.
    pub fn end(self) -> Result<()> {
        match self.started.into_inner() {
            Some(Ok(world)) => world.end(),
            _ => Ok(()),
        }
    }
}

/// Whether the stories are told on a lab, which can be broken, or on clusters of someone else.
pub(crate) fn is_lab() -> bool {
    contexts().is_none()
}

fn contexts() -> Option<String> {
    env::var(environment::CONTEXTS)
        .ok()
        .filter(|contexts| !contexts.is_empty())
}

/// Started once, before the first story.
#[derive(Debug)]
pub struct World {
    clusters: Vec<PlayCluster>,
    lab: Option<Lab>,
    runtime: Runtime,
}

/// One of the clusters.
#[derive(Clone)]
pub struct PlayCluster {
    pub name: String,
    pub kube: kube::Client,
    pub client: lab::Client,
}

impl World {
    /// Existing clusters when the environment names some, a lab of two clusters otherwise.
    fn start(progress: &Progress) -> Result<World> {
        let paths = Paths::from_environment();
        match contexts() {
            Some(contexts) => World::on_contexts(&paths, &contexts, progress),
            None => World::on_lab(&paths, progress),
        }
    }

    fn on_lab(paths: &Paths, progress: &Progress) -> Result<World> {
        let cluster = |name: &str, nodes| ClusterRequest {
            name: name.to_owned(),
            nodes,
            shape: Shape::Full,
        };
        let request = LabRequest {
            name: format!("e2e-{}", process::id()),
            // Two nodes in one of them, for what happens between nodes.
            clusters: vec![cluster("east", 2), cluster("west", 1)],
        };
        let lab = Lab::up(paths, &request, Lifetime::Owned, progress)?;
        for archive in first_images(paths, progress)? {
            lab.load_image(&archive)?;
        }
        progress.step("the images of the stories are loaded");
        let clients = lab.clusters().iter().map(lab::Cluster::client).collect();
        World::new(clients, Some(lab))
    }

    fn on_contexts(paths: &Paths, contexts: &str, progress: &Progress) -> Result<World> {
        let binaries = Binaries::ensure(paths, progress)?;
        let clients = contexts
            .split(',')
            .map(|context| lab::Client::of_context(context.trim(), paths, &binaries))
            .collect::<lab::Result<Vec<_>>>()?;
        ensure!(
            clients.len() >= 2,
            "the stories need two clusters: {} names one",
            environment::CONTEXTS
        );
        for archive in first_images(paths, progress)? {
            for client in &clients {
                client.load_image_into_existing(&archive)?;
            }
        }
        World::new(clients, None)
    }

    fn new(clients: Vec<lab::Client>, lab: Option<Lab>) -> Result<World> {
        let runtime = Runtime::new().context("cannot start the runtime")?;
        let clusters = clients
            .into_iter()
            .map(|client| {
                let kube = runtime.block_on(connect(client.kubeconfig(), client.name()))?;
                Ok(PlayCluster {
                    name: client.name().to_owned(),
                    kube,
                    client,
                })
            })
            .collect::<Result<Vec<_>>>()?;
        Ok(World {
            clusters,
            lab,
            runtime,
        })
    }

    /// The clusters in the order of their names' appearance; there are at least two.
    pub fn clusters(&self) -> &[PlayCluster] {
        &self.clusters
    }

    /// The lab, unless the stories are told on clusters of someone else.
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

/// Clusters for one story, beside those that all share. They go with this value.
#[derive(Debug)]
pub struct OwnClusters {
    clusters: Vec<PlayCluster>,
    lab: Lab,
}

impl OwnClusters {
    /// One node in each.
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
        for archive in first_images(&paths, progress)? {
            own.lab.load_image(&archive)?;
        }
        for client in own.lab.clusters().iter().map(lab::Cluster::client) {
            let kube = connect(client.kubeconfig(), client.name()).await?;
            own.clusters.push(PlayCluster {
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

    pub fn get(&self, name: &str) -> Result<&PlayCluster> {
        let found = self.clusters.iter().find(|cluster| cluster.name == name);
        found.with_context(|| format!("there is no cluster {name}"))
    }
}

impl Drop for OwnClusters {
    fn drop(&mut self) {
        // What cannot be taken down now goes with this process.
        let _ = Lab::down(&Paths::from_environment(), self.lab.name());
    }
}

impl std::fmt::Debug for PlayCluster {
    fn fmt(&self, formatter: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        formatter
            .debug_struct("PlayCluster")
            .field("name", &self.name)
            .finish_non_exhaustive()
    }
}

fn first_images(paths: &Paths, progress: &Progress) -> Result<Vec<std::path::PathBuf>> {
    let say = |text: &str| progress.step(text);
    let cache = paths.images();
    let images = [
        recipes::tools(&cache, &say)?,
        recipes::python(&cache, &say)?,
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
    let on_lab = kubeconfig_path.is_some();
    let mut config = kube::Config::from_custom_kubeconfig(kubeconfig, &options)
        .await
        .with_context(|| format!("the kubeconfig has no usable context `{context}`"))?;
    if on_lab {
        // The lab's addresses are on this machine, where no proxy can reach them.
        config.proxy_url = None;
    }
    Ok(kube::Client::try_from(config)?)
}
