//! One story: its stages, and what is printed when it goes wrong.

use std::any::Any;
use std::io;
use std::os::fd::AsFd as _;
use std::panic::{self, AssertUnwindSafe};
use std::process::Command;
use std::sync::{Arc, Mutex, PoisonError};

use anyhow::{Context as _, Result, anyhow};
use lab::Lab;
use libtest_mimic::{Failed, Trial};
use nix::fcntl::{FcntlArg, OFlag, fcntl};
use nix::unistd::geteuid;
use tokio::runtime::Runtime;

use crate::stage::Stage;
use crate::world::{self, LaterWorld, PlayCluster, World};

/// What a story cannot be told without.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Needs {
    /// Root on this machine, and no cluster.
    Machine,
    /// Any clusters.
    Clusters,
    /// Clusters whose network, nodes and programs can be broken.
    Lab,
}

/// The context of one story.
#[derive(Debug)]
pub struct Story<'world> {
    name: &'static str,
    world: Option<&'world World>,
    stages: Mutex<Vec<Stage>>,
}

/// A story as a test. Where its needs are not met it is shown as ignored.
pub fn tell<Told>(world: &Arc<LaterWorld>, name: &'static str, needs: Needs, story: Told) -> Trial
where
    Told: AsyncFnOnce(&Story<'_>) -> Result<()> + Send + 'static,
{
    let world = Arc::clone(world);
    Trial::test(name, move || {
        let failed = |error: anyhow::Error| Failed::from(error.to_string());
        let world = match needs {
            Needs::Machine => None,
            Needs::Clusters | Needs::Lab => Some(world.get().map_err(failed)?),
        };
        let own_runtime = match world {
            None => Some(Runtime::new().map_err(|error| failed(error.into()))?),
            Some(_) => None,
        };
        let context = Story {
            name,
            world,
            stages: Mutex::default(),
        };
        let told = AssertUnwindSafe(|| match (world, &own_runtime) {
            (Some(world), _) => world.runtime().block_on(story(&context)),
            (None, Some(runtime)) => runtime.block_on(story(&context)),
            (None, None) => Err(anyhow!("there is nothing to run the story on")),
        });
        // A story that panics is as much in need of its scene as one that returns an error.
        let result =
            panic::catch_unwind(told).unwrap_or_else(|cause| Err(anyhow!(words_of(&*cause))));
        let report =
            result.map_err(|error| Failed::from(format!("{error:#}\n{}", context.scene())));
        if report.is_err() {
            context.uninstall();
        }
        context.clear();
        let_output_wait();
        report
    })
    .with_ignored_flag(match needs {
        Needs::Machine => !geteuid().is_root(),
        Needs::Clusters => false,
        Needs::Lab => !world::is_lab(),
    })
}

/// Programs that a story starts may make the pipe to which all print non-blocking, as Node.js does. A result that does not
/// fit into it at once would then end this program, and the result would be lost.
fn let_output_wait() {
    for output in [io::stdout().as_fd(), io::stderr().as_fd()] {
        let flags = fcntl(output, FcntlArg::F_GETFL).map(OFlag::from_bits_retain);
        let waiting = flags.map(|flags| flags - OFlag::O_NONBLOCK);
        let _ = waiting.and_then(|flags| fcntl(output, FcntlArg::F_SETFL(flags)));
    }
}

fn words_of(cause: &(dyn Any + Send)) -> String {
    let text = cause.downcast_ref::<String>().map(String::as_str);
    text.or_else(|| cause.downcast_ref::<&str>().copied())
        .unwrap_or("the story panicked")
        .to_owned()
}

impl<'world> Story<'world> {
    /// A namespace of the story's own in the first cluster.
    pub async fn stage(&self) -> Result<Stage> {
        self.stage_in(0).await
    }

    /// A namespace of the story's own in another cluster, counted from 0.
    pub async fn stage_in(&self, cluster: usize) -> Result<Stage> {
        let cluster = self
            .world()?
            .clusters()
            .get(cluster)
            .context("there are not that many clusters")?;
        self.stage_of(cluster).await
    }

    /// A namespace of the story's own in any cluster.
    pub async fn stage_of(&self, cluster: &PlayCluster) -> Result<Stage> {
        let stage = Stage::set_up(cluster, self.name).await?;
        self.stages
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
            .push(stage.clone());
        Ok(stage)
    }

    /// The clusters of a story that [`Needs::Clusters`].
    pub fn world(&self) -> Result<&'world World> {
        self.world.context("this story is told without clusters")
    }

    /// The lab of a story that [`Needs::Lab`].
    pub fn lab(&self) -> Result<&'world Lab> {
        self.world()?.lab().context("this story needs a lab")
    }

    /// Objects, events and logs of every stage.
    fn scene(&self) -> String {
        let stages = self.stages.lock().unwrap_or_else(PoisonError::into_inner);
        stages.iter().map(show).collect()
    }

    /// What charts put outside of their namespaces would be in the way of the next story.
    fn uninstall(&self) {
        let stages = self.stages.lock().unwrap_or_else(PoisonError::into_inner);
        for stage in stages.iter() {
            let helm = |arguments: &[&str]| {
                let mut command = stage.cluster.client.helm();
                command.args(["--namespace", &stage.namespace]);
                lab::output_of(command.args(arguments)).unwrap_or_default()
            };
            for release in helm(&["list", "--all", "--short"]).lines() {
                helm(&["uninstall", release, "--timeout=60s"]);
            }
        }
    }

    /// Nobody waits for the namespaces to be gone: nothing else ever uses their names.
    fn clear(&self) {
        for stage in self
            .stages
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
            .iter()
        {
            let arguments = [
                "delete",
                "namespace",
                &stage.namespace,
                "--wait=false",
                "--request-timeout=5s",
            ];
            let _ = lab::output_of(stage.cluster.client.kubectl().args(arguments));
        }
    }
}

fn show(stage: &Stage) -> String {
    let namespace = stage.namespace.as_str();
    let kubectl = |arguments: &[&str]| {
        let mut command: Command = stage.cluster.client.kubectl();
        command
            .args(["--namespace", namespace, "--request-timeout=5s"])
            .args(arguments);
        lab::output_of(&mut command).unwrap_or_else(|error| error.to_string())
    };
    let mut text = format!("\n--- {namespace} in {} ---\n", stage.cluster.name);
    text += &kubectl(&["get", "all,endpointslices", "--output=wide"]);
    text += "\nevents:\n";
    text += &kubectl(&["get", "events", "--sort-by=.lastTimestamp"]);
    for pod in kubectl(&["get", "pods", "--output=name"]).lines() {
        text += &format!("\nlog of {pod}:\n");
        text += &kubectl(&["logs", pod, "--all-containers", "--prefix", "--tail=30"]);
    }
    text
}
