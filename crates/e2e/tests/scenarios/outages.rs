//! Programs and nodes of the lab that stop, hang, crash and recover.

use std::process::Stdio;
use std::sync::Arc;

use anyhow::{Context as _, Result, ensure};
use e2e::{LazyEnvironment, Needs, Scenario, TestNamespace, scenario, until};
use lab::component::{API_SERVER, CONTAINERD, KUBELET};
use lab::{Cluster, ComponentState, Lab, Power};
use libtest_mimic::Trial;

pub(crate) fn scenarios(environment: &Arc<LazyEnvironment>) -> Vec<Trial> {
    vec![
        scenario(
            environment,
            "pods_run_without_their_api_server",
            Needs::Lab,
            pods_run_without_their_api_server,
        ),
        scenario(
            environment,
            "a_paused_api_server_does_not_respond_and_recovers",
            Needs::Lab,
            a_paused_api_server_recovers,
        ),
        scenario(
            environment,
            "containers_survive_a_runtime_restart",
            Needs::Lab,
            containers_survive_a_runtime_restart,
        ),
        scenario(
            environment,
            "a_crashed_program_is_restarted",
            Needs::Lab,
            a_crashed_program_is_restarted,
        ),
        scenario(
            environment,
            "a_node_recovers_after_a_power_loss",
            Needs::Lab,
            a_node_recovers_after_a_power_loss,
        ),
        scenario(
            environment,
            "a_paused_node_does_not_respond_and_recovers",
            Needs::Lab,
            a_paused_node_recovers,
        ),
        scenario(
            environment,
            "wrong_names_are_reported_with_the_right_ones",
            Needs::Lab,
            wrong_names_are_reported,
        ),
    ]
}

async fn pods_run_without_their_api_server(scenario: &Scenario<'_>) -> Result<()> {
    let west = scenario.lab()?.cluster("west")?;
    let namespace = scenario.namespace_in(1).await?;
    namespace.web().await?;
    let address = namespace.kubectl(&[
        "get",
        "service",
        "web",
        "--output=jsonpath={.spec.clusterIP}",
    ])?;
    ensure!(
        accepts(west, "west-1", &address, 80)?,
        "the Service does not respond"
    );
    west.stop_component("west-1", API_SERVER)?;
    let refused = namespace
        .kubectl(&["get", "pods", "--request-timeout=3s"])
        .is_err();
    let served = accepts(west, "west-1", &address, 80);
    west.start_component("west-1", API_SERVER)?;
    west.wait_for_api_server()?;
    let served = served?;
    ensure!(refused, "the API server responds although it was stopped");
    ensure!(served, "the Service stopped with the API server");
    until("the API server to list the pods", async || {
        Ok(namespace
            .kubectl(&["get", "pods"])?
            .contains("Running")
            .then_some(()))
    })
    .await
}

async fn a_paused_api_server_recovers(scenario: &Scenario<'_>) -> Result<()> {
    let west = scenario.lab()?.cluster("west")?;
    let namespace = scenario.namespace_in(1).await?;
    west.pause_component("west-1", API_SERVER)?;
    let state = west
        .components("west-1")?
        .into_iter()
        .find(|component| component.name == API_SERVER);
    // Its port still accepts connections, unlike that of a stopped server.
    let is_accepting = accepts(west, "west-1", "127.0.0.1", 6443);
    let silent = namespace
        .kubectl(&["get", "pods", "--request-timeout=2s"])
        .is_err();
    west.continue_component("west-1", API_SERVER)?;
    let is_accepting = is_accepting?;
    ensure!(
        state.is_some_and(|state| state.state == ComponentState::Paused),
        "it is not shown as paused"
    );
    ensure!(
        is_accepting && silent,
        "accepts: {is_accepting}, silent: {silent}"
    );
    west.wait_for_api_server()?;
    namespace.kubectl(&["get", "pods"]).map(drop)
}

async fn containers_survive_a_runtime_restart(scenario: &Scenario<'_>) -> Result<()> {
    let west = scenario.lab()?.cluster("west")?;
    let namespace = scenario.namespace_in(1).await?;
    namespace.client_pod("client").await?;
    let container = || {
        namespace.kubectl(&[
            "get",
            "pod",
            "client",
            "--output=jsonpath={.status.containerStatuses[0].containerID}",
        ])
    };
    let before = container()?;
    west.restart_component("west-1", CONTAINERD)?;
    namespace.client_pod("another").await?;
    until("the first pod to take commands", async || {
        let output = namespace.exec("client", &["echo", "alive"], None).await?;
        Ok((output.stdout == "alive\n").then_some(()))
    })
    .await?;
    ensure!(container()? == before, "the container was restarted");
    Ok(())
}

async fn a_crashed_program_is_restarted(scenario: &Scenario<'_>) -> Result<()> {
    let west = scenario.lab()?.cluster("west")?;
    let restarts = || -> Result<u32> {
        let components = west.components("west-1")?;
        let kubelet = components
            .into_iter()
            .find(|component| component.name == KUBELET)
            .context("no kubelet")?;
        Ok(if kubelet.state == ComponentState::Running {
            kubelet.restarts
        } else {
            0
        })
    };
    let before = restarts()?;
    lab::output_of(
        west.in_node("west-1")?
            .args(["pkill", "-KILL", "-x", KUBELET]),
    )?;
    until("the kubelet to run again", async || {
        Ok((restarts()? > before).then_some(()))
    })
    .await
}

async fn a_node_recovers_after_a_power_loss(scenario: &Scenario<'_>) -> Result<()> {
    let lab = scenario.lab()?;
    let east = lab.cluster("east")?;
    let namespace = scenario.namespace_in(0).await?;
    let address = pod_on(&namespace, "east-2").await?;
    ensure!(
        accepts(east, "east-1", &address, 8080)?,
        "the pod does not respond"
    );
    east.stop_node("east-2")?;
    let off = has_power(lab, "east-2", Power::Off);
    let silent = accepts(east, "east-1", &address, 8080).map(|accepts| !accepts);
    east.start_node("east-2")?;
    let (off, silent) = (off?, silent?);
    ensure!(off && silent, "off: {off}, silent: {silent}");
    until("the pod to respond again", async || {
        let address =
            namespace.kubectl(&["get", "pod", "server", "--output=jsonpath={.status.podIP}"])?;
        Ok((!address.is_empty() && accepts(east, "east-1", &address, 8080)?).then_some(()))
    })
    .await
}

async fn a_paused_node_recovers(scenario: &Scenario<'_>) -> Result<()> {
    let lab = scenario.lab()?;
    let east = lab.cluster("east")?;
    let namespace = scenario.namespace_in(0).await?;
    let address = pod_on(&namespace, "east-2").await?;
    east.pause_node("east-2")?;
    let frozen = has_power(lab, "east-2", Power::Frozen);
    let silent = responds(east, "east-1", &address).map(|responds| !responds);
    east.continue_node("east-2")?;
    let (frozen, silent) = (frozen?, silent?);
    ensure!(frozen && silent, "frozen: {frozen}, silent: {silent}");
    until("the pod to respond again", async || {
        Ok(responds(east, "east-1", &address)?.then_some(()))
    })
    .await
}

async fn wrong_names_are_reported(scenario: &Scenario<'_>) -> Result<()> {
    let lab = scenario.lab()?;
    let east = lab.cluster("east")?;
    let check = |result: lab::Result<()>, expected: &str| {
        let error = result.err().context("it was accepted")?.to_string();
        ensure!(error.contains(expected), "{error}");
        Ok(())
    };
    check(
        east.stop_component("east-1", "kubelt"),
        "it has etcd, kube-apiserver",
    )?;
    check(east.stop_node("east-7"), "it has east-1, east-2")?;
    check(lab.cluster("nowhere").map(drop), "it has east, west")?;
    check(
        east.log("east-1", "nothing").map(drop),
        "its programs are etcd",
    )
}

fn has_power(lab: &Lab, node: &str, power: Power) -> Result<bool> {
    Ok(lab
        .status()?
        .nodes
        .iter()
        .any(|found| found.node == node && found.power == power))
}

/// Starts an HTTP server in a pod on one node, and returns its address.
async fn pod_on(namespace: &TestNamespace, node: &str) -> Result<String> {
    namespace.apply(&format!(
        "apiVersion: v1\nkind: Pod\nmetadata: {{name: server}}\nspec:\n  nodeName: {node}\n  \
         terminationGracePeriodSeconds: 0\n  containers: [{{name: c, image: 'registry.lab/python:1', command: [python3, \
         -m, http.server, '8080'], readinessProbe: {{tcpSocket: {{port: 8080}}, periodSeconds: 1}}}}]\n"
    ))?;
    namespace.wait_until_ready("server").await?;
    namespace.kubectl(&["get", "pod", "server", "--output=jsonpath={.status.podIP}"])
}

/// Whether a connection from a node is accepted.
fn accepts(cluster: &Cluster, node: &str, address: &str, port: u16) -> Result<bool> {
    run_in_shell(cluster, node, &format!("exec 3<>/dev/tcp/{address}/{port}"))
}

/// Whether a server responds. The kernel accepts connections for a server even when it is frozen.
fn responds(cluster: &Cluster, node: &str, address: &str) -> Result<bool> {
    let request = r"printf 'GET / HTTP/1.0\r\n\r\n' >&3; read -r -u 3 line";
    run_in_shell(
        cluster,
        node,
        &format!("exec 3<>/dev/tcp/{address}/8080; {request}"),
    )
}

fn run_in_shell(cluster: &Cluster, node: &str, script: &str) -> Result<bool> {
    let mut command = cluster.in_node(node)?;
    command
        .args(["timeout", "3", "bash", "-c", script])
        .stderr(Stdio::null());
    Ok(command.status()?.success())
}
