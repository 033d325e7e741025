//! Custom resources, aggregated APIs and Helm charts.

use std::fs;
use std::io::{BufRead as _, BufReader};
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::sync::Arc;

use anyhow::{Context as _, Result, ensure};
use e2e::{LazyEnvironment, Needs, Scenario, TestNamespace, scenario, until};
use lab::base64;
use libtest_mimic::Trial;

const SERVER: &str = include_str!("../../fixtures/aggregated_api.py");
const DEFINITION: &str = include_str!("../../fixtures/widgets.yaml");

pub(crate) fn scenarios(environment: &Arc<LazyEnvironment>) -> Vec<Trial> {
    vec![
        scenario(
            environment,
            "a_custom_resource_is_stored_and_validated",
            Needs::Clusters,
            a_custom_resource_is_stored,
        ),
        scenario(
            environment,
            "an_aggregated_api_is_served_from_outside_the_cluster",
            Needs::Lab,
            an_aggregated_api_is_served_from_outside_the_cluster,
        ),
        scenario(
            environment,
            "an_aggregated_api_is_served_by_a_pod",
            Needs::Clusters,
            an_aggregated_api_is_served_by_a_pod,
        ),
        scenario(
            environment,
            "a_chart_is_installed_and_leaves_nothing",
            Needs::Clusters,
            a_chart_is_installed_and_leaves_nothing,
        ),
    ]
}

async fn a_custom_resource_is_stored(scenario: &Scenario<'_>) -> Result<()> {
    let namespace = scenario.namespace().await?;
    // Definitions are cluster-wide, so the group contains the name of the scenario's namespace.
    let group = format!("{}.example", namespace.name);
    namespace.apply(&DEFINITION.replace("GROUP", &group))?;
    namespace.kubectl(&[
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
    namespace.apply(&widget("good", 3))?;
    let size = namespace.kubectl(&[
        "get",
        &format!("widgets.{group}"),
        "good",
        "--output=jsonpath={.spec.size}",
    ])?;
    ensure!(size == "3", "{size}");
    let refused = namespace
        .apply(&widget("bad", 0))
        .err()
        .context("a wrong object was accepted")?;
    ensure!(
        refused.to_string().contains("greater than or equal to 1"),
        "{refused}"
    );
    namespace.kubectl(&["delete", "crd", &format!("widgets.{group}")])?;
    Ok(())
}

async fn an_aggregated_api_is_served_from_outside_the_cluster(
    scenario: &Scenario<'_>,
) -> Result<()> {
    let namespace = scenario.namespace().await?;
    let api = AggregatedApi::new(&namespace, "outside")?;
    let folder = tempfile::tempdir()?;
    for (name, text) in [("tls.crt", &api.certificate), ("tls.key", &api.key)] {
        fs::write(folder.path().join(name), text)?;
    }
    let host = scenario.lab()?.network().host().to_string();
    let server = OutsideServer::start(&host, folder.path(), &api.group)?;
    namespace.apply(&format!(
        "apiVersion: v1\nkind: Service\nmetadata: {{name: outside}}\nspec: {{ports: [{{name: https, port: 443, \
         targetPort: {port}}}]}}\n---\napiVersion: discovery.k8s.io/v1\nkind: EndpointSlice\nmetadata: {{name: \
         outside, labels: {{kubernetes.io/service-name: outside}}}}\naddressType: IPv4\nports: [{{name: https, port: \
         {port}, protocol: TCP}}]\nendpoints: [{{addresses: ['{host}'], conditions: {{ready: true}}}}]\n",
        port = server.port
    ))?;
    api.check(&namespace).await
}

async fn an_aggregated_api_is_served_by_a_pod(scenario: &Scenario<'_>) -> Result<()> {
    let namespace = scenario.namespace().await?;
    let api = AggregatedApi::new(&namespace, "inside")?;
    let indented = SERVER
        .lines()
        .map(|line| format!("    {line}\n"))
        .collect::<String>();
    namespace.apply(&format!(
        "apiVersion: v1\nkind: Secret\nmetadata: {{name: tls}}\ntype: kubernetes.io/tls\ndata: {{tls.crt: {}, tls.key: \
         {}}}\n---\napiVersion: v1\nkind: ConfigMap\nmetadata: {{name: server}}\ndata:\n  server.py: |\n{indented}---\n{}",
        base64(api.certificate.as_bytes()),
        base64(api.key.as_bytes()),
        include_str!("../../fixtures/aggregated_api.yaml").replace("GROUP", &api.group),
    ))?;
    namespace.wait_until_ready("server").await?;
    api.check(&namespace).await
}

async fn a_chart_is_installed_and_leaves_nothing(scenario: &Scenario<'_>) -> Result<()> {
    let namespace = scenario.namespace().await?;
    let chart = Path::new(env!("CARGO_MANIFEST_DIR")).join("fixtures/chart");
    let helm = |arguments: &[&str]| -> Result<String> {
        let mut command = namespace.cluster.client.helm();
        Ok(lab::output_of(
            command
                .args(["--namespace", &namespace.name])
                .args(arguments),
        )?)
    };
    let chart = chart.to_str().context("the path of the chart")?;
    let greeting = || {
        namespace.kubectl(&[
            "get",
            "configmap",
            "greeting",
            "--output=jsonpath={.data.text}",
        ])
    };
    helm(&["install", "release", chart, "--set", "text=hello"])?;
    ensure!(greeting()? == "hello", "the value was not applied");
    helm(&["upgrade", "release", chart, "--set", "text=again"])?;
    ensure!(greeting()? == "again", "the upgrade was not applied");
    helm(&["uninstall", "release", "--wait"])?;
    let left = namespace.kubectl(&["get", "configmaps,secrets", "--output=name"])?;
    ensure!(
        left.trim() == "configmap/kube-root-ca.crt",
        "left behind: {left}"
    );
    Ok(())
}

/// An API group that an aggregated API server serves.
struct AggregatedApi {
    group: String,
    service: &'static str,
    certificate: String,
    key: String,
}

impl AggregatedApi {
    fn new(namespace: &TestNamespace, service: &'static str) -> Result<Self> {
        let name = format!("{service}.{}.svc", namespace.name);
        let certified = rcgen::generate_simple_self_signed(vec![name])?;
        Ok(AggregatedApi {
            group: format!("{service}-{}.example", namespace.name),
            service,
            certificate: certified.cert.pem(),
            key: certified.signing_key.serialize_pem(),
        })
    }

    /// Registers the group, requests an object through the API server, and removes the group again.
    async fn check(&self, namespace: &TestNamespace) -> Result<()> {
        let name = format!("v1.{}", self.group);
        namespace.apply(&format!(
            "apiVersion: apiregistration.k8s.io/v1\nkind: APIService\nmetadata: {{name: {name}}}\nspec: {{group: {group}, \
             version: v1, groupPriorityMinimum: 1000, versionPriority: 10, caBundle: {bundle}, service: {{name: \
             {service}, namespace: {namespace}, port: 443}}}}\n",
            group = self.group,
            bundle = base64(self.certificate.as_bytes()),
            service = self.service,
            namespace = namespace.name,
        ))?;
        let request = async {
            namespace.kubectl(&[
                "wait",
                "--for=condition=Available",
                &format!("apiservice/{name}"),
                "--timeout=60s",
            ])?;
            let path = format!(
                "/apis/{}/v1/namespaces/{}/gadgets",
                self.group, namespace.name
            );
            until("the API to respond", async || {
                let response = namespace.kubectl(&["get", "--raw", &path])?;
                // The API server's front proxy passes on the user, on which authorization relies.
                Ok(response.contains("seen-by-admin").then_some(()))
            })
            .await
        };
        let result = request.await;
        namespace.kubectl(&["delete", "apiservice", &name])?;
        result
    }
}

/// The same server as in the pod, as a process on the developer's machine.
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
            .with_context(|| format!("the server printed {line:?}"))?;
        Ok(OutsideServer { process, port })
    }
}

impl Drop for OutsideServer {
    fn drop(&mut self) {
        let _ = self.process.kill();
        let _ = self.process.wait();
    }
}
