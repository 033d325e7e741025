//! What ends, and what goes on: pods, sessions, API servers.

use anyhow::{Context as _, Result, ensure};
use e2e::{Story, until};
use kube::ResourceExt as _;

use super::super::surroundings::exec_for;
use super::{Waiting, agent_pods, ephemeral_agents, start_checkout};

/// Asks the service through the target's network.
const ASK: &str = "curl --silent --show-error --max-time 20 http://web/ 2>&1";

pub(crate) async fn a_session_goes_on_when_its_pod_is_deleted(story: &Story<'_>) -> Result<()> {
    let stage = story.stage().await?;
    start_checkout(&stage)?;
    stage.web().await?;
    let mut session = Waiting::start(&mut exec_for(story, &stage, "deployment/checkout")?)?;
    let first = session.ask(ASK)?;
    ensure!(first.starts_with("web-"), "{first}");
    let pod = session.ask("hostname")?;
    stage.kubectl(&["delete", "pod", &pod, "--wait=true", "--timeout=60s"])?;
    until("an agent in another pod", async || {
        let agents = ephemeral_agents(&stage).await?;
        let other = agents
            .iter()
            .any(|(of, _, runs)| *runs && of.name_any() != pod);
        Ok(other.then_some(()))
    })
    .await?;
    let second = session.ask(ASK)?;
    ensure!(second.starts_with("web-"), "{second}");
    let ended = session.end()?;
    ensure!(
        ended.stderr.contains("goes on with another agent"),
        "{ended}"
    );
    Ok(())
}

/// A session whose client is killed is over when its client may not come back any more, here after two seconds.
pub(crate) async fn killed_sessions_leave_nothing(story: &Story<'_>) -> Result<()> {
    let stage = story.stage().await?;
    start_checkout(&stage)?;
    let folder = tempfile::tempdir()?;
    let file = folder.path().join("standin.yaml");
    std::fs::write(&file, "agent:\n  communication_timeout: 2\n")?;
    for mode in ["--ephemeral-container", "--no-ephemeral-container"] {
        let mut session = exec_for(story, &stage, "deployment/checkout")?;
        session.arg(mode).arg("--config-file").arg(&file);
        let mut session = Waiting::start(&mut session)?;
        ensure!(session.ask("echo $GREETING")? == "from the pod");
        session.kill()?;
    }
    ensure!(agent_pods(&stage).await?.len() == 1, "no agent is a pod");
    until("the ephemeral agent to end", async || {
        let agents = ephemeral_agents(&stage).await?;
        let over = agents.len() == 1 && agents.iter().all(|(_, _, runs)| !runs);
        Ok(over.then_some(()))
    })
    .await?;
    until("the agent's pod and its Job to be removed", async || {
        let jobs = stage.kubectl(&["get", "jobs", "--output=name"])?;
        Ok((jobs.is_empty() && agent_pods(&stage).await?.is_empty()).then_some(()))
    })
    .await
}

/// A connection that is open through the target stays open while nobody can reach the API server.
pub(crate) async fn a_session_outlives_the_api_server(story: &Story<'_>) -> Result<()> {
    let stage = story.stage().await?;
    start_checkout(&stage)?;
    stage.web().await?;
    let mut session = Waiting::start(&mut exec_for(story, &stage, "deployment/checkout")?)?;
    let opened = session.ask("exec 3<>/dev/tcp/web/80 && echo opened")?;
    ensure!(opened == "opened", "{opened}");
    let cluster = story.lab()?.cluster(&stage.cluster.name)?;
    let node = cluster
        .plan()
        .nodes
        .first()
        .context("no node")?
        .name
        .clone();
    cluster.restart_component(&node, lab::component::API_SERVER)?;
    cluster.wait_for_api_server()?;
    let answer = session.ask(r"printf 'GET / HTTP/1.0\r\n\r\n' >&3 && head -n 1 <&3")?;
    ensure!(answer.contains("200 OK"), "{answer:?}");
    let ended = session.end()?;
    ensure!(ended.code == Some(0), "{ended}");
    ensure!(!ended.stderr.contains("another agent"), "{ended}");
    Ok(())
}
