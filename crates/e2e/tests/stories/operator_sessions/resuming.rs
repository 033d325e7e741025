//! Faults between a client and its agents, and connections through the target that outlive them.

use anyhow::{Context as _, Result, ensure};
use e2e::{Stage, Story};
use lab::HOST;

use super::super::cluster_sessions::start_checkout;
use super::super::operator::Operator;
use super::{Shell, listed_sessions, nothing_is_left, session_for, with_operator};

/// Opened before the faults, one for each: the server ends a connection after one answer.
const OPEN: &str = "exec 3<>/dev/tcp/web/80 4<>/dev/tcp/web/80 5<>/dev/tcp/web/80 && echo opened";

pub(super) async fn sessions_outlive_cuts_and_restarts(story: &Story<'_>) -> Result<()> {
    let shop = story.stage_in(0).await?;
    start_checkout(&shop)?;
    shop.web().await?;
    with_operator(story, async |operator| {
        // One that is killed has nobody who says goodbye. The operator finds out while the rest is told.
        let folder = tempfile::tempdir()?;
        let file = folder.path().join("standin.yaml");
        std::fs::write(&file, "agent:\n  communication_timeout: 2\n")?;
        let mut killed = session_for(story, &shop, "deployment/checkout")?;
        killed.arg("--config-file").arg(&file);
        let mut killed = Shell::start(killed)?;
        ensure!(killed.ask("echo $GREETING").await? == "from the pod");
        killed.kill()?;
        outlive(story, &shop, operator).await?;
        nothing_is_left(&shop).await?;
        ensure!(listed_sessions(story, &shop)?.is_empty());
        Ok(())
    })
    .await
}

async fn outlive(story: &Story<'_>, shop: &Stage, operator: &Operator) -> Result<()> {
    let mut session = Shell::start(session_for(story, shop, "deployment/checkout")?)?;
    ensure!(session.ask(OPEN).await? == "opened");

    let lab = story.lab()?;
    let name = &shop.cluster.name;
    lab.cut(HOST, name)?;
    let lost = session.says("is lost and is being made again").await;
    lab.heal_link(HOST, name)?;
    lost?;
    session.says("the connection to the agent is back").await?;
    still_open(&mut session, 3).await.context("after a cut")?;

    let cluster = lab.cluster(name)?;
    let node = cluster.plan().nodes.first().context("no node")?;
    cluster.restart_component(&node.name, lab::component::API_SERVER)?;
    cluster.wait_for_api_server()?;
    still_open(&mut session, 4)
        .await
        .context("after a restart of the API server")?;

    // All replicas at once, without a word.
    let gone = operator.stage.kubectl(&[
        "delete",
        "pod",
        "--selector=app.kubernetes.io/component=operator",
        "--force",
        "--grace-period=0",
    ])?;
    ensure!(gone.matches("deleted").count() == 2, "{gone}");
    still_open(&mut session, 5)
        .await
        .context("after the end of the operator's replicas")?;

    let ended = session.end()?;
    ensure!(ended.code == Some(0), "{ended}");
    ensure!(!ended.stderr.contains("another agent"), "{ended}");
    Ok(())
}

/// A connection from before carries a request and its answer, and a new one can be made.
async fn still_open(session: &mut Shell, descriptor: u32) -> Result<()> {
    let request = format!(
        r"printf 'GET / HTTP/1.0\r\n\r\n' >&{descriptor}; head -n 1 <&{descriptor} | grep . || echo nothing"
    );
    let answer = session.ask(&request).await?;
    ensure!(answer.contains("200 OK"), "{answer:?}");
    let new = "curl --silent --max-time 60 http://web/ || echo failed";
    let answer = session.ask(new).await?;
    ensure!(answer.starts_with("web-"), "{answer:?}");
    Ok(())
}
