//! Programs and nodes that stop, hang, crash and come back.

use std::process::Stdio;
use std::sync::Arc;

use anyhow::{Context as _, Result, ensure};
use e2e::{LaterWorld, Needs, Stage, Story, tell, until};
use lab::component::{API_SERVER, CONTAINERD, KUBELET};
use lab::{Cluster, ComponentState, Lab, Power};
use libtest_mimic::Trial;

pub(crate) fn stories(world: &Arc<LaterWorld>) -> Vec<Trial> {
    vec![
        tell(
            world,
            "pods_go_on_without_their_api_server",
            Needs::Lab,
            pods_go_on_without_their_api_server,
        ),
        tell(
            world,
            "a_paused_api_server_is_silent_and_comes_back",
            Needs::Lab,
            a_paused_api_server_is_silent,
        ),
        tell(
            world,
            "containers_outlive_their_runtime",
            Needs::Lab,
            containers_outlive_their_runtime,
        ),
        tell(
            world,
            "a_crashed_program_is_started_again",
            Needs::Lab,
            a_crashed_program_is_started_again,
        ),
        tell(
            world,
            "a_node_comes_back_after_its_power",
            Needs::Lab,
            a_node_comes_back_after_its_power,
        ),
        tell(
            world,
            "a_paused_node_is_silent_and_comes_back",
            Needs::Lab,
            a_paused_node_is_silent_and_comes_back,
        ),
        tell(
            world,
            "wrong_names_are_answered_with_the_right_ones",
            Needs::Lab,
            wrong_names_are_answered,
        ),
    ]
}

async fn pods_go_on_without_their_api_server(story: &Story<'_>) -> Result<()> {
    let west = story.lab()?.cluster("west")?;
    let stage = story.stage_in(1).await?;
    stage.web().await?;
    let address = stage.kubectl(&[
        "get",
        "service",
        "web",
        "--output=jsonpath={.spec.clusterIP}",
    ])?;
    ensure!(
        answers(west, "west-1", &address, 80)?,
        "the Service does not answer"
    );
    west.stop_component("west-1", API_SERVER)?;
    let refused = stage
        .kubectl(&["get", "pods", "--request-timeout=3s"])
        .is_err();
    let served = answers(west, "west-1", &address, 80);
    west.start_component("west-1", API_SERVER)?;
    west.wait_for_api_server()?;
    let served = served?;
    ensure!(refused, "the API server was stopped and answered");
    ensure!(served, "the Service stopped with the API server");
    until("the API server to know the pods", async || {
        Ok(stage
            .kubectl(&["get", "pods"])?
            .contains("Running")
            .then_some(()))
    })
    .await
}

async fn a_paused_api_server_is_silent(story: &Story<'_>) -> Result<()> {
    let west = story.lab()?.cluster("west")?;
    let stage = story.stage_in(1).await?;
    west.pause_component("west-1", API_SERVER)?;
    let state = west
        .components("west-1")?
        .into_iter()
        .find(|component| component.name == API_SERVER);
    // Its port still accepts, which is what makes a hanging server different from a dead one.
    let accepts = answers(west, "west-1", "127.0.0.1", 6443);
    let silent = stage
        .kubectl(&["get", "pods", "--request-timeout=2s"])
        .is_err();
    west.continue_component("west-1", API_SERVER)?;
    let accepts = accepts?;
    ensure!(
        state.is_some_and(|state| state.state == ComponentState::Paused),
        "it is not shown as paused"
    );
    ensure!(accepts && silent, "accepts: {accepts}, silent: {silent}");
    west.wait_for_api_server()?;
    stage.kubectl(&["get", "pods"]).map(drop)
}

async fn containers_outlive_their_runtime(story: &Story<'_>) -> Result<()> {
    let west = story.lab()?.cluster("west")?;
    let stage = story.stage_in(1).await?;
    stage.client_pod("client").await?;
    let container = || {
        stage.kubectl(&[
            "get",
            "pod",
            "client",
            "--output=jsonpath={.status.containerStatuses[0].containerID}",
        ])
    };
    let before = container()?;
    west.restart_component("west-1", CONTAINERD)?;
    stage.client_pod("another").await?;
    until("the first pod to take commands", async || {
        let output = stage.exec("client", &["echo", "alive"], None).await?;
        Ok((output.stdout == "alive\n").then_some(()))
    })
    .await?;
    ensure!(container()? == before, "the container was started again");
    Ok(())
}

async fn a_crashed_program_is_started_again(story: &Story<'_>) -> Result<()> {
    let west = story.lab()?.cluster("west")?;
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

async fn a_node_comes_back_after_its_power(story: &Story<'_>) -> Result<()> {
    let lab = story.lab()?;
    let east = lab.cluster("east")?;
    let stage = story.stage_in(0).await?;
    let address = pod_on(&stage, "east-2").await?;
    ensure!(
        answers(east, "east-1", &address, 8080)?,
        "the pod does not answer"
    );
    east.stop_node("east-2")?;
    let off = has_power(lab, "east-2", Power::Off);
    let silent = answers(east, "east-1", &address, 8080).map(|answers| !answers);
    east.start_node("east-2")?;
    let (off, silent) = (off?, silent?);
    ensure!(off && silent, "off: {off}, silent: {silent}");
    until("the pod to answer again", async || {
        let address =
            stage.kubectl(&["get", "pod", "server", "--output=jsonpath={.status.podIP}"])?;
        Ok((!address.is_empty() && answers(east, "east-1", &address, 8080)?).then_some(()))
    })
    .await
}

async fn a_paused_node_is_silent_and_comes_back(story: &Story<'_>) -> Result<()> {
    let lab = story.lab()?;
    let east = lab.cluster("east")?;
    let stage = story.stage_in(0).await?;
    let address = pod_on(&stage, "east-2").await?;
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

async fn wrong_names_are_answered(story: &Story<'_>) -> Result<()> {
    let lab = story.lab()?;
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

/// A pod on one node that serves HTTP; returns its address.
async fn pod_on(stage: &Stage, node: &str) -> Result<String> {
    stage.apply(&format!(
        "apiVersion: v1\nkind: Pod\nmetadata: {{name: server}}\nspec:\n  nodeName: {node}\n  \
         terminationGracePeriodSeconds: 0\n  containers: [{{name: c, image: 'registry.lab/python:1', command: [python3, \
         -m, http.server, '8080'], readinessProbe: {{tcpSocket: {{port: 8080}}, periodSeconds: 1}}}}]\n"
    ))?;
    stage.wait_until_ready("server").await?;
    stage.kubectl(&["get", "pod", "server", "--output=jsonpath={.status.podIP}"])
}

/// Whether a connection opens, seen from a node.
fn answers(cluster: &Cluster, node: &str, address: &str, port: u16) -> Result<bool> {
    in_shell(cluster, node, &format!("exec 3<>/dev/tcp/{address}/{port}"))
}

/// Whether the program behind a connection says something. The kernel opens connections for it even when it is frozen.
fn responds(cluster: &Cluster, node: &str, address: &str) -> Result<bool> {
    let request = r"printf 'GET / HTTP/1.0\r\n\r\n' >&3; read -r -u 3 line";
    in_shell(
        cluster,
        node,
        &format!("exec 3<>/dev/tcp/{address}/8080; {request}"),
    )
}

fn in_shell(cluster: &Cluster, node: &str, script: &str) -> Result<bool> {
    let mut command = cluster.in_node(node)?;
    command
        .args(["timeout", "3", "bash", "-c", script])
        .stderr(Stdio::null());
    Ok(command.status()?.success())
}
