//! The namespace of a scenario in a cluster.

use std::sync::atomic::{AtomicU32, Ordering};

use anyhow::{Context as _, Result, bail, ensure};
use k8s_openapi::api::core::v1::{Namespace, Pod, ServiceAccount};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::ObjectMeta;
use kube::api::{AttachParams, ListParams, PostParams};
use kube::{Api, ResourceExt as _};
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};

use crate::clusters::TestCluster;
use crate::wait::until;

/// Makes the names of a process's namespaces unique.
static NUMBER: AtomicU32 = AtomicU32::new(0);

#[derive(Clone, Debug)]
pub struct TestNamespace {
    pub cluster: TestCluster,
    pub name: String,
}

/// The output and exit code of a command in a pod.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct CommandOutput {
    pub stdout: String,
    pub stderr: String,
    pub code: i32,
}

impl TestNamespace {
    pub(crate) async fn create(cluster: &TestCluster, scenario: &str) -> Result<TestNamespace> {
        let prefix = scenario.replace('_', "-");
        let prefix = &prefix[..prefix.len().min(40)];
        let number = NUMBER.fetch_add(1, Ordering::Relaxed);
        let name = format!(
            "{}-{}-{number}",
            prefix.trim_end_matches('-'),
            std::process::id()
        );
        let object = Namespace {
            metadata: ObjectMeta {
                name: Some(name.clone()),
                ..ObjectMeta::default()
            },
            ..Namespace::default()
        };
        Api::<Namespace>::all(cluster.kube.clone())
            .create(&PostParams::default(), &object)
            .await
            .with_context(|| format!("cannot create a namespace in {}", cluster.name))?;
        let namespace = TestNamespace {
            cluster: cluster.clone(),
            name,
        };
        let accounts: Api<ServiceAccount> = Api::namespaced(cluster.kube.clone(), &namespace.name);
        until("the namespace's service account", async || {
            Ok(accounts.get_opt("default").await?)
        })
        .await?;
        Ok(namespace)
    }

    pub fn pods(&self) -> Api<Pod> {
        Api::namespaced(self.cluster.kube.clone(), &self.name)
    }

    pub fn apply(&self, manifests: &str) -> Result<()> {
        Ok(self.cluster.client.apply(&self.name, manifests)?)
    }

    /// Runs `kubectl` in the namespace and returns its output.
    pub fn kubectl(&self, arguments: &[&str]) -> Result<String> {
        let mut command = self.cluster.client.kubectl();
        Ok(lab::output_of(
            command.args(["--namespace", &self.name]).args(arguments),
        )?)
    }

    /// Starts a pod with common network tools that sleeps, for commands to run in.
    pub async fn client_pod(&self, name: &str) -> Result<()> {
        self.apply(&format!(
            "apiVersion: v1\nkind: Pod\nmetadata: {{name: {name}}}\nspec:\n  terminationGracePeriodSeconds: 0\n  \
             containers: [{{name: tools, image: 'registry.lab/tools:1', command: [sleep, infinity]}}]\n"
        ))?;
        self.wait_until_ready(name).await
    }

    /// Starts two pods behind a Service `web` on port 80. Each responds with its name.
    pub async fn web(&self) -> Result<()> {
        self.apply(include_str!("../fixtures/web.yaml"))?;
        self.kubectl(&["rollout", "status", "deployment/web", "--timeout=120s"])?;
        // Each nameserver and node learns of a Service by its own watch, with some delay.
        let request = "import urllib.request; urllib.request.urlopen('http://web/', timeout=5)";
        let labelled = ListParams::default().labels("app=web");
        for pod in self.pods().list(&labelled).await? {
            let pod = pod.name_any();
            let what = format!("the Service web to respond to {pod}");
            until(&what, async || {
                self.run(&pod, &["python3", "-c", request]).await.map(Some)
            })
            .await?;
        }
        Ok(())
    }

    pub async fn wait_until_ready(&self, pod: &str) -> Result<()> {
        let pods = self.pods();
        until(&format!("pod {pod} to be ready"), async || {
            let status = pods.get(pod).await?.status.unwrap_or_default();
            let ready = status
                .conditions
                .unwrap_or_default()
                .iter()
                .any(|condition| condition.type_ == "Ready" && condition.status == "True");
            Ok(ready.then_some(()))
        })
        .await
    }

    /// Waits until a pod has ended and returns its phase.
    pub async fn wait_until_ended(&self, pod: &str) -> Result<String> {
        let pods = self.pods();
        until(&format!("pod {pod} to end"), async || {
            let phase = pods
                .get(pod)
                .await?
                .status
                .and_then(|status| status.phase)
                .unwrap_or_default();
            Ok(matches!(phase.as_str(), "Succeeded" | "Failed").then_some(phase))
        })
        .await
    }

    /// Runs a command in a pod, with `input` as its standard input.
    pub async fn exec(
        &self,
        pod: &str,
        command: &[&str],
        input: Option<&str>,
    ) -> Result<CommandOutput> {
        let parameters = AttachParams::default()
            .stdin(input.is_some())
            .stdout(true)
            .stderr(true);
        let mut process = self
            .pods()
            .exec(pod, command.to_vec(), &parameters)
            .await
            .with_context(|| format!("cannot run {command:?} in {pod}"))?;
        if let Some(input) = input {
            let mut stdin = process.stdin().context("no standard input")?;
            stdin.write_all(input.as_bytes()).await?;
            stdin.shutdown().await?;
        }
        let mut stdout = process.stdout().context("no standard output")?;
        let mut stderr = process.stderr().context("no standard error")?;
        let status = process.take_status().context("no status")?;
        let (mut out, mut err) = (Vec::new(), Vec::new());
        tokio::try_join!(stdout.read_to_end(&mut out), stderr.read_to_end(&mut err))?;
        let status = status
            .await
            .context("the connection ended before the command")?;
        Ok(CommandOutput {
            stdout: String::from_utf8_lossy(&out).into_owned(),
            stderr: String::from_utf8_lossy(&err).into_owned(),
            code: exit_code(&status)?,
        })
    }

    /// Runs a command in a pod that must succeed, and returns its output.
    pub async fn run(&self, pod: &str, command: &[&str]) -> Result<String> {
        let output = self.exec(pod, command, None).await?;
        ensure!(
            output.code == 0,
            "{command:?} in {pod} ended with {}: {}{}",
            output.code,
            output.stdout,
            output.stderr
        );
        Ok(output.stdout)
    }
}

fn exit_code(status: &k8s_openapi::apimachinery::pkg::apis::meta::v1::Status) -> Result<i32> {
    if status.status.as_deref() == Some("Success") {
        return Ok(0);
    }
    let causes = status
        .details
        .as_ref()
        .and_then(|details| details.causes.clone())
        .unwrap_or_default();
    match causes
        .iter()
        .find(|cause| cause.reason.as_deref() == Some("ExitCode"))
    {
        Some(cause) => Ok(cause.message.as_deref().unwrap_or_default().parse()?),
        None => bail!(
            "the command could not run: {}",
            status.message.as_deref().unwrap_or("no reason given")
        ),
    }
}
