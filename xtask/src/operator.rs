//! Installs operators with their chart, like users: standalone, as a member, or as a Primary.

use std::io::Write as _;
use std::thread;
use std::time::{Duration, Instant};

use anyhow::{Context as _, Result, ensure};
use lab::{Client, standind};
use serde_json::{Value, json};

use crate::{process, workspace};

/// The service account of the Primary in a member cluster.
pub(crate) const ACCOUNT: &str = "mirrord-operator-envoy";
const API_SERVICE: &str = "apiservice/v1.operator.metalbear.co";
/// The longest time until all members are connected.
const MEMBERS_TIMEOUT: Duration = Duration::from_secs(60);
const POLL_INTERVAL: Duration = Duration::from_millis(300);

/// Installs the operator, or changes how it is installed (`install` or `upgrade`), and waits until it is available.
pub(crate) fn install(client: &Client, namespace: &str, verb: &str, values: &Value) -> Result<()> {
    let (repository, tag) = standind::REFERENCE.rsplit_once(':').context("no tag")?;
    let chart = workspace::root()?.join("charts/standin-operator");
    // Tokens are not passed as arguments, which every user of this machine can read.
    let mut file = tempfile::NamedTempFile::new()?;
    file.write_all(values.to_string().as_bytes())?;
    process::output(
        client
            .helm()
            .args([verb, "standin"])
            .arg(chart)
            .args(["--namespace", namespace])
            .args((verb == "install").then_some("--create-namespace"))
            .args(["--wait", "--timeout=180s", "--values"])
            .arg(file.path())
            .args(["--set", &format!("operator.image.repository={repository}")])
            .args(["--set-string", &format!("operator.image.tag={tag}")]),
    )?;
    wait(client)
}

/// Waits until the API server considers the operator available.
pub(crate) fn wait(client: &Client) -> Result<()> {
    process::output(client.kubectl().args([
        "wait",
        "--for=condition=Available",
        API_SERVICE,
        "--timeout=60s",
    ]))
    .map(drop)
}

/// Waits until the node agents run, for an operator whose agent mode is `node`.
pub(crate) fn wait_for_nodes(client: &Client, namespace: &str) -> Result<()> {
    process::output(client.kubectl().args([
        "--namespace",
        namespace,
        "rollout",
        "status",
        "daemonset/mirrord-node-agent",
        "--timeout=120s",
    ]))
    .map(drop)
}

/// The chart values with which a Primary reaches a member.
pub(crate) fn access(member: &Client, namespace: &str) -> Result<Value> {
    let of_kubeconfig = |key: &str| {
        let path = format!("jsonpath={{.clusters[0].cluster.{key}}}");
        let mut view = member.kubectl();
        view.args(["config", "view", "--raw", "--minify", "--flatten"])
            .args(["--context", member.name(), "--output", &path]);
        process::output(&mut view)
    };
    let mut token = member.kubectl();
    let token = process::output(token.args([
        "create",
        "token",
        ACCOUNT,
        "--namespace",
        namespace,
        "--duration=24h",
    ]))?;
    Ok(json!({
        "authType": "bearerToken",
        "server": of_kubeconfig("server")?.trim(),
        "caData": of_kubeconfig("certificate-authority-data")?.trim(),
        "bearerToken": token.trim(),
    }))
}

/// Waits until the Primary is connected to all members.
pub(crate) fn wait_for_members(primary: &Client, members: &[&str]) -> Result<()> {
    let deadline = Instant::now() + MEMBERS_TIMEOUT;
    loop {
        let mut object = primary.kubectl();
        object.args(["get", "mirrordoperators", "operator", "--output=json"]);
        let object: Value = serde_json::from_str(&process::output(&mut object)?)?;
        let connected = connected(&object);
        if members.iter().all(|member| connected.contains(member)) {
            return Ok(());
        }
        ensure!(
            Instant::now() < deadline,
            "the Primary does not reach its members: {}",
            object["status"]["connected_clusters"]
        );
        thread::sleep(POLL_INTERVAL);
    }
}

/// The connected members.
fn connected(object: &Value) -> Vec<&str> {
    let clusters = object["status"]["connected_clusters"].as_array();
    let connected = clusters.into_iter().flatten();
    connected
        .filter(|cluster| cluster["connected"].is_object())
        .filter_map(|cluster| cluster["name"].as_str())
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn members_are_connected_when_their_operators_respond() {
        let object = json!({"status": {"connected_clusters": [
            {"name": "west", "connected": {"operator_version": "1"}},
            {"name": "north", "error": "no"},
        ]}});
        assert_eq!(connected(&object), ["west"]);
    }
}
