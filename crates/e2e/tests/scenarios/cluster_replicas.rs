//! One session with every replica of a deployment, whose pods are added and removed.

mod pod_changes;
mod traffic;

use std::collections::BTreeSet;
use std::process::Command;
use std::sync::Arc;

use anyhow::{Context as _, Result, ensure};
use e2e::fixture::Program;
use e2e::{LazyEnvironment, Needs, Scenario, TestNamespace, scenario, until};
use k8s_openapi::api::core::v1::Pod;
use kube::ResourceExt as _;
use kube::api::ListParams;
use libtest_mimic::Trial;
use tokio::sync::Mutex;

use super::support::{SessionProcess, exec_for};

/// The header of the requests that the program steals.
const MINE: &str = "x-session: mine";
const HEADER: [(&str, &str); 2] = [
    ("INCOMING", "steal"),
    ("INCOMING_HEADER_FILTER", "^x-session: mine$"),
];

pub(crate) fn scenarios(environment: &Arc<LazyEnvironment>) -> Vec<Trial> {
    let clusters = Needs::Clusters;
    vec![
        scenario(
            environment,
            "cluster_replicas_are_all_stolen_from",
            clusters,
            traffic::all_pods_are_stolen_from,
        ),
        scenario(
            environment,
            "cluster_replicas_are_all_mirrored_and_serve_datagrams",
            clusters,
            traffic::all_pods_are_mirrored_and_serve_datagrams,
        ),
        scenario(
            environment,
            "cluster_replicas_with_a_claim_are_reported",
            clusters,
            traffic::conflicts_are_reported_by_pod,
        ),
        scenario(
            environment,
            "cluster_replicas_join_and_leave_a_session",
            clusters,
            pod_changes::pods_join_and_leave,
        ),
        scenario(
            environment,
            "cluster_replicas_replace_the_first",
            clusters,
            pod_changes::another_pod_replaces_the_first,
        ),
        scenario(
            environment,
            "cluster_replicas_are_rolled_out_without_a_lost_request",
            clusters,
            pod_changes::a_rollout_loses_no_request,
        ),
        scenario(
            environment,
            "cluster_replicas_respond_after_a_killed_session",
            clusters,
            pod_changes::a_killed_session_leaves_nothing,
        ),
    ]
}

/// Starts three pods of `menu`, and a pod for its client.
async fn start_menu(scenario: &Scenario<'_>) -> Result<TestNamespace> {
    let namespace = scenario.namespace().await?;
    namespace.apply(include_str!("../../fixtures/menu.yaml"))?;
    namespace.client_pod("client").await?;
    namespace.kubectl(&["rollout", "status", "deployment/menu", "--timeout=120s"])?;
    Ok(namespace)
}

/// All programs listen on the same local port. A second program gets another port, unless both start concurrently.
static LOCAL_PORT: Mutex<()> = Mutex::const_new(());

/// Starts a session whose program listens on port 8080, and waits until the session reports the port.
async fn listen(command: Command, settings: &[(&str, &str)]) -> Result<SessionProcess> {
    let _one_at_a_time = LOCAL_PORT.lock().await;
    let session = SessionProcess::start(command, settings)?;
    session.wait_for_message("port 8080 of ").await?;
    Ok(session)
}

/// Starts a session with the server in Python, on all pods of `menu`.
async fn serve(
    scenario: &Scenario<'_>,
    namespace: &TestNamespace,
    settings: &[(&str, &str)],
    arguments: &[&str],
) -> Result<SessionProcess> {
    let mut command = exec_for(scenario, namespace, "deployment/menu")?;
    command.args(arguments);
    let server = Program::script("python3", "servers/python/http_server.py").argument("8080");
    command.arg("--").args(&server.command);
    listen(command, settings).await
}

/// Ends the session with SIGTERM. After SIGKILL its agents would wait for it to resume.
fn stop(session: SessionProcess) -> Result<()> {
    let pid = session.pid().to_string();
    lab::output_of(Command::new("kill").arg(pid))?;
    session.end().map(drop)
}

/// A pod of `menu` that is ready and is not being deleted.
#[derive(Debug, Clone)]
struct Replica {
    name: String,
    address: String,
    node: String,
}

impl Replica {
    fn of(pod: &Pod) -> Option<Self> {
        let status = pod.status.as_ref()?;
        let is_ready = status
            .conditions
            .iter()
            .flatten()
            .any(|condition| condition.type_ == "Ready" && condition.status == "True");
        if pod.metadata.deletion_timestamp.is_some() || !is_ready {
            return None;
        }
        Some(Self {
            name: pod.name_any(),
            address: status.pod_ip.clone()?,
            node: pod.spec.as_ref()?.node_name.clone()?,
        })
    }

    /// The response of the pod's own application.
    fn original(&self) -> String {
        format!("original {}\n", self.name)
    }

    /// Sends a request from the client pod, and returns the response.
    async fn request(&self, namespace: &TestNamespace, arguments: &[&str]) -> Result<String> {
        let url = format!("http://{}:8080/menu", self.address);
        let mut curl = vec!["curl", "-sS", "--max-time", "10", &url];
        curl.extend(arguments);
        namespace.run("client", &curl).await
    }
}

async fn replicas(namespace: &TestNamespace) -> Result<Vec<Replica>> {
    let pods = ListParams::default().labels("app=menu");
    let pods = namespace.pods().list(&pods).await?;
    Ok(pods.iter().filter_map(Replica::of).collect())
}

async fn wait_for_replicas(namespace: &TestNamespace, count: usize) -> Result<Vec<Replica>> {
    until(&format!("{count} pods"), async || {
        let replicas = replicas(namespace).await?;
        Ok((replicas.len() == count).then_some(replicas))
    })
    .await
}

/// The response of the local program to the client pod.
async fn program_response(namespace: &TestNamespace) -> Result<String> {
    let client = namespace.pods().get("client").await?;
    let address = client.status.and_then(|status| status.pod_ip);
    let address = address.context("the client has no address")?;
    Ok(format!("python-http serves {address}\n"))
}

/// Waits until the program serves the requests with the header to each of these pods, and sees the client's address.
/// The pod serves all other requests itself.
async fn wait_until_all_are_stolen(
    namespace: &TestNamespace,
    session: &SessionProcess,
    all: &[Replica],
) -> Result<()> {
    let expected = program_response(namespace).await?;
    for replica in all {
        let what = format!("requests of {}", replica.name);
        let stolen = until(&what, async || {
            let response = replica.request(namespace, &["-H", MINE]).await?;
            ensure!(response == expected, "the response is {response:?}");
            Ok(Some(()))
        });
        stolen.await.with_context(|| session.report())?;
        let response = replica.request(namespace, &[]).await?;
        ensure!(response == replica.original(), "{response:?}");
    }
    Ok(())
}

fn nodes(replicas: &[Replica]) -> BTreeSet<&str> {
    replicas
        .iter()
        .map(|replica| replica.node.as_str())
        .collect()
}
