//! Sessions whose pod, client or API server ends.

use anyhow::{Context as _, Result, ensure};
use e2e::{Scenario, until};
use kube::ResourceExt as _;

use super::super::support::exec_for;
use super::{ShellSession, agent_pods, ephemeral_agents, start_checkout};

/// Sends a request to the service through the target's network.
const REQUEST: &str = "curl --silent --show-error --max-time 20 http://web/ 2>&1";

pub(crate) async fn a_session_continues_when_its_pod_is_deleted(
    scenario: &Scenario<'_>,
) -> Result<()> {
    let namespace = scenario.namespace().await?;
    start_checkout(&namespace)?;
    namespace.web().await?;
    let mut session =
        ShellSession::start(&mut exec_for(scenario, &namespace, "deployment/checkout")?)?;
    let first = session.run(REQUEST)?;
    ensure!(first.starts_with("web-"), "{first}");
    let pod = session.run("hostname")?;
    namespace.kubectl(&["delete", "pod", &pod, "--wait=true", "--timeout=60s"])?;
    until("an agent in another pod", async || {
        let agents = ephemeral_agents(&namespace).await?;
        let other = agents
            .iter()
            .any(|(agent_pod, _, is_running)| *is_running && agent_pod.name_any() != pod);
        Ok(other.then_some(()))
    })
    .await?;
    let second = session.run(REQUEST)?;
    ensure!(second.starts_with("web-"), "{second}");
    let output = session.end()?;
    ensure!(
        output.stderr.contains("continues with another agent"),
        "{output}"
    );
    Ok(())
}

/// The agents of a killed client exit when the resume window ends, here after two seconds.
pub(crate) async fn killed_sessions_leave_nothing(scenario: &Scenario<'_>) -> Result<()> {
    let namespace = scenario.namespace().await?;
    start_checkout(&namespace)?;
    let folder = tempfile::tempdir()?;
    let file = folder.path().join("standin.yaml");
    std::fs::write(&file, "agent:\n  communication_timeout: 2\n")?;
    for mode in ["--ephemeral-container", "--no-ephemeral-container"] {
        let mut session = exec_for(scenario, &namespace, "deployment/checkout")?;
        session.arg(mode).arg("--config-file").arg(&file);
        let mut session = ShellSession::start(&mut session)?;
        ensure!(session.run("echo $GREETING")? == "from the pod");
        session.kill()?;
    }
    ensure!(
        agent_pods(&namespace).await?.len() == 1,
        "no agent runs in its own pod"
    );
    until("the ephemeral agent to exit", async || {
        let agents = ephemeral_agents(&namespace).await?;
        let all_ended = agents.len() == 1 && agents.iter().all(|(_, _, is_running)| !is_running);
        Ok(all_ended.then_some(()))
    })
    .await?;
    until("the agent's pod and its Job to be removed", async || {
        let jobs = namespace.kubectl(&["get", "jobs", "--output=name"])?;
        Ok((jobs.is_empty() && agent_pods(&namespace).await?.is_empty()).then_some(()))
    })
    .await
}

/// An open connection through the target stays open while the API server is unreachable.
pub(crate) async fn a_session_survives_an_api_server_restart(
    scenario: &Scenario<'_>,
) -> Result<()> {
    let namespace = scenario.namespace().await?;
    start_checkout(&namespace)?;
    namespace.web().await?;
    let mut session =
        ShellSession::start(&mut exec_for(scenario, &namespace, "deployment/checkout")?)?;
    let opened = session.run("exec 3<>/dev/tcp/web/80 && echo opened")?;
    ensure!(opened == "opened", "{opened}");
    let cluster = scenario.lab()?.cluster(&namespace.cluster.name)?;
    let node = cluster
        .plan()
        .nodes
        .first()
        .context("no node")?
        .name
        .clone();
    cluster.restart_component(&node, lab::component::API_SERVER)?;
    cluster.wait_for_api_server()?;
    let response = session.run(r"printf 'GET / HTTP/1.0\r\n\r\n' >&3 && head -n 1 <&3")?;
    ensure!(response.contains("200 OK"), "{response:?}");
    let output = session.end()?;
    ensure!(output.code == Some(0), "{output}");
    ensure!(!output.stderr.contains("another agent"), "{output}");
    Ok(())
}
