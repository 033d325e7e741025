//! Custom resources, aggregated APIs and Helm charts.

use std::fs;
use std::io::{BufRead as _, BufReader};
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::sync::Arc;

use anyhow::{Context as _, Result, ensure};
use e2e::{LaterWorld, Needs, Stage, Story, tell, until};
use lab::base64;
use libtest_mimic::Trial;

const SERVER: &str = include_str!("../../fixtures/aggregated_api.py");
const DEFINITION: &str = include_str!("../../fixtures/widgets.yaml");

pub(crate) fn stories(world: &Arc<LaterWorld>) -> Vec<Trial> {
    vec![
        tell(
            world,
            "a_custom_resource_is_stored_and_validated",
            Needs::Clusters,
            a_custom_resource_is_stored,
        ),
        tell(
            world,
            "an_api_is_answered_by_a_process_outside",
            Needs::Lab,
            an_api_is_answered_by_a_process_outside,
        ),
        tell(
            world,
            "an_api_is_answered_by_a_pod",
            Needs::Clusters,
            an_api_is_answered_by_a_pod,
        ),
        tell(
            world,
            "a_chart_is_installed_and_leaves_nothing",
            Needs::Clusters,
            a_chart_is_installed_and_leaves_nothing,
        ),
    ]
}

async fn a_custom_resource_is_stored(story: &Story<'_>) -> Result<()> {
    let stage = story.stage().await?;
    // Definitions are the cluster's, so the group carries the story's namespace.
    let group = format!("{}.example", stage.namespace);
    stage.apply(&DEFINITION.replace("GROUP", &group))?;
    stage.kubectl(&[
        "wait",
        "--for=condition=Established",
        &format!("crd/widgets.{group}"),
        "--timeout=60s",
    ])?;
    let widget = |name: &str, size: i32| {
        format!(
            "apiVersion: {group}/v1\nkind: Widget\nmetadata: {{name: {name}}}\nspec: {{size: {size}}}\n"
        )
    };
    stage.apply(&widget("good", 3))?;
    let size = stage.kubectl(&[
        "get",
        &format!("widgets.{group}"),
        "good",
        "--output=jsonpath={.spec.size}",
    ])?;
    ensure!(size == "3", "{size}");
    let refused = stage
        .apply(&widget("bad", 0))
        .err()
        .context("a wrong object was accepted")?;
    ensure!(
        refused.to_string().contains("greater than or equal to 1"),
        "{refused}"
    );
    stage.kubectl(&["delete", "crd", &format!("widgets.{group}")])?;
    Ok(())
}

async fn an_api_is_answered_by_a_process_outside(story: &Story<'_>) -> Result<()> {
    let stage = story.stage().await?;
    let api = AggregatedApi::new(&stage, "outside")?;
    let folder = tempfile::tempdir()?;
    for (name, text) in [("tls.crt", &api.certificate), ("tls.key", &api.key)] {
        fs::write(folder.path().join(name), text)?;
    }
    let host = story.lab()?.network().host().to_string();
    let server = OutsideServer::start(&host, folder.path(), &api.group)?;
    stage.apply(&format!(
        "apiVersion: v1\nkind: Service\nmetadata: {{name: outside}}\nspec: {{ports: [{{name: https, port: 443, \
         targetPort: {port}}}]}}\n---\napiVersion: discovery.k8s.io/v1\nkind: EndpointSlice\nmetadata: {{name: \
         outside, labels: {{kubernetes.io/service-name: outside}}}}\naddressType: IPv4\nports: [{{name: https, port: \
         {port}, protocol: TCP}}]\nendpoints: [{{addresses: ['{host}'], conditions: {{ready: true}}}}]\n",
        port = server.port
    ))?;
    api.check(&stage).await
}

async fn an_api_is_answered_by_a_pod(story: &Story<'_>) -> Result<()> {
    let stage = story.stage().await?;
    let api = AggregatedApi::new(&stage, "inside")?;
    let indented = SERVER
        .lines()
        .map(|line| format!("    {line}\n"))
        .collect::<String>();
    stage.apply(&format!(
        "apiVersion: v1\nkind: Secret\nmetadata: {{name: tls}}\ntype: kubernetes.io/tls\ndata: {{tls.crt: {}, tls.key: \
         {}}}\n---\napiVersion: v1\nkind: ConfigMap\nmetadata: {{name: server}}\ndata:\n  server.py: |\n{indented}---\n{}",
        base64(api.certificate.as_bytes()),
        base64(api.key.as_bytes()),
        include_str!("../../fixtures/aggregated_api.yaml").replace("GROUP", &api.group),
    ))?;
    stage.wait_until_ready("server").await?;
    api.check(&stage).await
}

async fn a_chart_is_installed_and_leaves_nothing(story: &Story<'_>) -> Result<()> {
    let stage = story.stage().await?;
    let chart = Path::new(env!("CARGO_MANIFEST_DIR")).join("fixtures/chart");
    let helm = |arguments: &[&str]| -> Result<String> {
        let mut command = stage.cluster.client.helm();
        Ok(lab::output_of(
            command
                .args(["--namespace", &stage.namespace])
                .args(arguments),
        )?)
    };
    let chart = chart.to_str().context("the path of the chart")?;
    let greeting = || {
        stage.kubectl(&[
            "get",
            "configmap",
            "greeting",
            "--output=jsonpath={.data.text}",
        ])
    };
    helm(&["install", "release", chart, "--set", "text=hello"])?;
    ensure!(greeting()? == "hello", "the value did not arrive");
    helm(&["upgrade", "release", chart, "--set", "text=again"])?;
    ensure!(greeting()? == "again", "the upgrade did not arrive");
    helm(&["uninstall", "release", "--wait"])?;
    let left = stage.kubectl(&["get", "configmaps,secrets", "--output=name"])?;
    ensure!(
        left.trim() == "configmap/kube-root-ca.crt",
        "left behind: {left}"
    );
    Ok(())
}

/// A group of APIs that something other than the API server answers.
struct AggregatedApi {
    group: String,
    service: &'static str,
    certificate: String,
    key: String,
}

impl AggregatedApi {
    fn new(stage: &Stage, service: &'static str) -> Result<Self> {
        let name = format!("{service}.{}.svc", stage.namespace);
        let made = rcgen::generate_simple_self_signed(vec![name])?;
        Ok(AggregatedApi {
            group: format!("{service}-{}.example", stage.namespace),
            service,
            certificate: made.cert.pem(),
            key: made.signing_key.serialize_pem(),
        })
    }

    /// Registers the group, asks for an object through the API server, and takes the group away again.
    async fn check(&self, stage: &Stage) -> Result<()> {
        let name = format!("v1.{}", self.group);
        stage.apply(&format!(
            "apiVersion: apiregistration.k8s.io/v1\nkind: APIService\nmetadata: {{name: {name}}}\nspec: {{group: {group}, \
             version: v1, groupPriorityMinimum: 1000, versionPriority: 10, caBundle: {bundle}, service: {{name: \
             {service}, namespace: {namespace}, port: 443}}}}\n",
            group = self.group,
            bundle = base64(self.certificate.as_bytes()),
            service = self.service,
            namespace = stage.namespace,
        ))?;
        let asked = async {
            stage.kubectl(&[
                "wait",
                "--for=condition=Available",
                &format!("apiservice/{name}"),
                "--timeout=60s",
            ])?;
            let path = format!(
                "/apis/{}/v1/namespaces/{}/gadgets",
                self.group, stage.namespace
            );
            until("the API to answer", async || {
                let answer = stage.kubectl(&["get", "--raw", &path])?;
                // The front proxy passes on who asks, which is what later authorization rests on.
                Ok(answer.contains("seen-by-admin").then_some(()))
            })
            .await
        };
        let result = asked.await;
        stage.kubectl(&["delete", "apiservice", &name])?;
        result
    }
}

/// The same server as in the pod, as a process of the developer's machine.
struct OutsideServer {
    process: Child,
    port: u16,
}

impl OutsideServer {
    fn start(host: &str, certificates: &Path, group: &str) -> Result<Self> {
        let mut process = Command::new("python3")
            .args(["-c", SERVER, host, "0"])
            .arg(certificates)
            .arg(group)
            .stdout(Stdio::piped())
            .spawn()
            .context("cannot start python3")?;
        let mut line = String::new();
        BufReader::new(process.stdout.take().context("no output")?).read_line(&mut line)?;
        let port = line
            .trim()
            .parse()
            .with_context(|| format!("the server said {line:?}"))?;
        Ok(OutsideServer { process, port })
    }
}

impl Drop for OutsideServer {
    fn drop(&mut self) {
        let _ = self.process.kill();
        let _ = self.process.wait();
    }
}
