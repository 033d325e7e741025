//! Faults between a client and its agents, and a connection through the target that outlives all of them.

use anyhow::{Context as _, Result, ensure};
use e2e::Story;
use lab::HOST;

use super::super::cluster_sessions::start_checkout;
use super::super::operator::Operator;
use super::{Shell, listed_sessions, nothing_is_left, session_for};

pub(super) async fn sessions_outlive_cuts_and_restarts(story: &Story<'_>) -> Result<()> {
    let operator = Operator::install(story, 0).await?;
    let shop = story.stage_in(0).await?;
    start_checkout(&shop)?;
    shop.web().await?;
    // One that is killed has nobody who says goodbye. The operator finds out while the rest is told.
    let mut killed = Shell::start(session_for(story, &shop, "deployment/checkout")?)?;
    ensure!(killed.ask("echo $GREETING")? == "from the pod");
    killed.kill()?;

    let mut session = Connected::start(story, &shop)?;
    let lab = story.lab()?;
    let cluster = shop.cluster.name.clone();
    lab.cut(HOST, &cluster)?;
    let lost = session.shell.says("is lost and is being made again").await;
    lab.heal_link(HOST, &cluster)?;
    lost?;
    session
        .shell
        .says("the connection to the agent is back")
        .await?;
    session.still_works().context("after a cut")?;

    let cluster = lab.cluster(&cluster)?;
    let node = cluster
        .plan()
        .nodes
        .first()
        .context("no node")?
        .name
        .clone();
    cluster.restart_component(&node, lab::component::API_SERVER)?;
    cluster.wait_for_api_server()?;
    session
        .still_works()
        .context("after a restart of the API server")?;

    // All replicas at once, without a word.
    let kill = [
        "delete",
        "pod",
        "--selector=app.kubernetes.io/component=operator",
        "--force",
        "--grace-period=0",
    ];
    let gone = operator.stage.kubectl(&kill)?;
    ensure!(gone.matches("deleted").count() == 2, "{gone}");
    session
        .still_works()
        .context("after the operator was killed")?;

    let ended = session.shell.end()?;
    ensure!(ended.code == Some(0), "{ended}");
    ensure!(!ended.stderr.contains("another agent"), "{ended}");
    nothing_is_left(&shop).await?;
    ensure!(listed_sessions(story, &shop)?.is_empty());
    operator.uninstall()
}

/// A session with a connection that is open through the target the whole time.
struct Connected {
    shell: Shell,
}

impl Connected {
    fn start(story: &Story<'_>, shop: &e2e::Stage) -> Result<Self> {
        let mut shell = Shell::start(session_for(story, shop, "deployment/checkout")?)?;
        let opened = shell.ask("exec 3<>/dev/tcp/web/80 && echo opened")?;
        ensure!(opened == "opened", "{opened}");
        Ok(Connected { shell })
    }

    /// One more request in the same connection, and something new.
    fn still_works(&mut self) -> Result<()> {
        let request =
            r"printf 'GET / HTTP/1.1\r\nHost: web\r\n\r\n' >&3 && read -r line <&3 && echo $line";
        let answer = self.shell.ask(request)?;
        ensure!(
            answer.contains("200 OK"),
            "{answer:?}: {}",
            self.shell.said()?
        );
        // The rest of the answer, up to the pod's name.
        let rest = self
            .shell
            .ask("while read -r line <&3 && [[ $line != web-* ]]; do :; done; echo $line")?;
        ensure!(rest.starts_with("web-"), "{rest:?}");
        let new = self
            .shell
            .ask("curl --silent --max-time 60 http://web/ || echo failed")?;
        ensure!(new.starts_with("web-"), "{new:?}");
        Ok(())
    }
}
