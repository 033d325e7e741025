//! One scenario: its namespaces, and the diagnostics that are printed when it fails.

use std::any::Any;
use std::io;
use std::os::fd::AsFd as _;
use std::panic::{self, AssertUnwindSafe};
use std::process::Command;
use std::sync::Arc;

use anyhow::{Context as _, Result, anyhow};
use lab::Lab;
use libtest_mimic::{Failed, Trial};
use nix::fcntl::{FcntlArg, OFlag, fcntl};
use nix::unistd::geteuid;
use parking_lot::Mutex;
use tokio::runtime::Runtime;

use crate::clusters::{self, Environment, LazyEnvironment, TestCluster};
use crate::namespace::TestNamespace;
use crate::timing::Timing;

/// What a scenario cannot run without.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Needs {
    /// Root on this machine, and no cluster.
    Machine,
    /// Any clusters.
    Clusters,
    /// Clusters whose network, nodes and programs can be broken.
    Lab,
}

/// The context of one scenario.
#[derive(Debug)]
pub struct Scenario<'environment> {
    name: &'static str,
    environment: Option<&'environment Environment>,
    namespaces: Mutex<Vec<TestNamespace>>,
}

/// A scenario as a test. Where its needs are not met it is shown as ignored.
pub fn scenario<Run>(
    environment: &Arc<LazyEnvironment>,
    name: &'static str,
    needs: Needs,
    run: Run,
) -> Trial
where
    Run: AsyncFnOnce(&Scenario<'_>) -> Result<()> + Send + 'static,
{
    let environment = Arc::clone(environment);
    Trial::test(name, move || {
        let failed = |error: anyhow::Error| Failed::from(error.to_string());
        let environment = match needs {
            Needs::Machine => None,
            Needs::Clusters | Needs::Lab => Some(environment.get().map_err(failed)?),
        };
        let own_runtime = match environment {
            None => Some(Runtime::new().map_err(|error| failed(error.into()))?),
            Some(_) => None,
        };
        let context = Scenario {
            name,
            environment,
            namespaces: Mutex::default(),
        };
        let timing = Timing::start(name);
        let run = AssertUnwindSafe(|| {
            let scenario = timing.measure(run(&context));
            match (environment, &own_runtime) {
                (Some(environment), _) => environment.runtime().block_on(scenario),
                (None, Some(runtime)) => runtime.block_on(scenario),
                (None, None) => Err(anyhow!("the scenario has no runtime")),
            }
        });
        // A scenario that panics needs diagnostics as much as one that returns an error.
        let result =
            panic::catch_unwind(run).unwrap_or_else(|cause| Err(anyhow!(panic_message(&*cause))));
        let report =
            result.map_err(|error| Failed::from(format!("{error:#}\n{}", context.diagnostics())));
        if report.is_err() {
            context.uninstall_charts();
        }
        context.delete_namespaces();
        make_output_blocking();
        timing.end();
        report
    })
    .with_ignored_flag(match needs {
        Needs::Machine => !geteuid().is_root(),
        Needs::Clusters => false,
        Needs::Lab => !clusters::uses_lab(),
    })
}

/// Programs that a scenario starts may make the shared output pipe non-blocking, as Node.js does. A result that does
/// not fit into the pipe at once would then end this program, and the result would be lost.
fn make_output_blocking() {
    for output in [io::stdout().as_fd(), io::stderr().as_fd()] {
        let flags = fcntl(output, FcntlArg::F_GETFL).map(OFlag::from_bits_retain);
        let blocking = flags.map(|flags| flags - OFlag::O_NONBLOCK);
        let _ = blocking.and_then(|flags| fcntl(output, FcntlArg::F_SETFL(flags)));
    }
}

fn panic_message(cause: &(dyn Any + Send)) -> String {
    let text = cause.downcast_ref::<String>().map(String::as_str);
    text.or_else(|| cause.downcast_ref::<&str>().copied())
        .unwrap_or("the scenario panicked")
        .to_owned()
}

impl<'environment> Scenario<'environment> {
    /// Creates a namespace for this scenario in the first cluster.
    pub async fn namespace(&self) -> Result<TestNamespace> {
        self.namespace_in(0).await
    }

    /// Creates a namespace for this scenario in another cluster, counted from 0.
    pub async fn namespace_in(&self, cluster: usize) -> Result<TestNamespace> {
        let cluster = self
            .environment()?
            .clusters()
            .get(cluster)
            .context("there are not that many clusters")?;
        self.namespace_on(cluster).await
    }

    /// Creates a namespace for this scenario in any cluster.
    pub async fn namespace_on(&self, cluster: &TestCluster) -> Result<TestNamespace> {
        let namespace = TestNamespace::create(cluster, self.name).await?;
        self.namespaces.lock().push(namespace.clone());
        Ok(namespace)
    }

    /// The clusters of a scenario that [`Needs::Clusters`].
    pub fn environment(&self) -> Result<&'environment Environment> {
        self.environment
            .context("this scenario runs without clusters")
    }

    /// The lab of a scenario that [`Needs::Lab`].
    pub fn lab(&self) -> Result<&'environment Lab> {
        self.environment()?
            .lab()
            .context("this scenario needs a lab")
    }

    /// Objects, events and logs of every namespace.
    fn diagnostics(&self) -> String {
        self.namespaces.lock().iter().map(describe).collect()
    }

    /// Uninstalls all charts. Their cluster-wide objects would disturb the next scenario.
    fn uninstall_charts(&self) {
        for namespace in self.namespaces.lock().iter() {
            let helm = |arguments: &[&str]| {
                let mut command = namespace.cluster.client.helm();
                command.args(["--namespace", &namespace.name]);
                lab::output_of(command.args(arguments)).unwrap_or_default()
            };
            for release in helm(&["list", "--all", "--short"]).lines() {
                helm(&["uninstall", release, "--timeout=60s"]);
            }
        }
    }

    /// Deletes all namespaces, without waiting: their names are never used again.
    fn delete_namespaces(&self) {
        for namespace in self.namespaces.lock().iter() {
            let arguments = [
                "delete",
                "namespace",
                &namespace.name,
                "--wait=false",
                "--request-timeout=5s",
            ];
            let _ = lab::output_of(namespace.cluster.client.kubectl().args(arguments));
        }
    }
}

fn describe(namespace: &TestNamespace) -> String {
    let name = namespace.name.as_str();
    let kubectl = |arguments: &[&str]| {
        let mut command: Command = namespace.cluster.client.kubectl();
        command
            .args(["--namespace", name, "--request-timeout=5s"])
            .args(arguments);
        lab::output_of(&mut command)
    };
    let mut text = format!("\n--- {name} in {} ---\n", namespace.cluster.name);
    match kubectl(&["get", "all,endpointslices", "--output=wide"]) {
        Ok(objects) => text += &objects,
        // A scenario stops its own clusters when it ends.
        Err(error) => return format!("{text}unreachable: {error}\n"),
    }
    let kubectl = |arguments: &[&str]| kubectl(arguments).unwrap_or_else(|error| error.to_string());
    text += "\nevents:\n";
    text += &kubectl(&["get", "events", "--sort-by=.lastTimestamp"]);
    for pod in kubectl(&["get", "pods", "--output=name"]).lines() {
        text += &format!("\nlog of {pod}:\n");
        text += &kubectl(&["logs", pod, "--all-containers", "--prefix", "--tail=30"]);
    }
    text
}
