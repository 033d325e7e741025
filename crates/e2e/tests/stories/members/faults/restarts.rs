//! Operators that go: killed without a word, in every phase of a session, or drained.

use anyhow::{Result, ensure};
use e2e::until;

use super::{Client, LONG, Operator, Scene};

/// Kills the one replica, and waits for the next.
pub(super) fn kill(operator: &Operator) -> Result<()> {
    let selector = "--selector=app.kubernetes.io/component=operator";
    let gone = ["delete", "pod", selector, "--force", "--grace-period=0"];
    operator.stage.kubectl(&gone)?;
    operator.wait()
}

/// The one replica goes as from a drained node, while another one is there; and that one may go again.
pub(super) async fn drain(operator: &Operator) -> Result<()> {
    let replicas = || -> Result<Vec<String>> {
        let selector = "--selector=app.kubernetes.io/component=operator";
        let pods = ["get", "pods", selector, "--output=name"];
        let pods = operator.stage.kubectl(&pods)?;
        Ok(pods.split_whitespace().map(str::to_owned).collect())
    };
    let scale = |replicas: &str| -> Result<()> {
        let scale = ["scale", "deployment/mirrord-operator", replicas];
        operator.stage.kubectl(&scale)?;
        operator.wait()
    };
    let old = replicas()?;
    scale("--replicas=2")?;
    for pod in &old {
        operator.stage.kubectl(&["delete", pod])?;
    }
    operator.wait()?;
    scale("--replicas=1")?;
    until("one replica", async || {
        Ok((replicas()?.len() == 1).then_some(()))
    })
    .await
}

pub(super) async fn of_a_member(scene: &Scene<'_>) -> Result<()> {
    let client = Client::start(&scene.hub, 3, LONG).await?;
    let before = client.has_all().await?;
    kill(&scene.west)?;
    kill(&scene.east)?;
    ensure!(
        client.has_all().await? == before,
        "there are other agents than before"
    );
    client.end().await
}

/// The Default cannot be reached, so the session waits for it, and does so still after the restart.
pub(super) async fn before_ready(scene: &Scene<'_>) -> Result<()> {
    scene.clusters.lab().cut("hub", "east")?;
    scene.is_away("east", "").await?;
    let starting = Client::start(&scene.hub, 4, LONG);
    let restarting = async {
        until("a session that waits for its Default", async || {
            Ok((scene.phase()? == "Pending").then_some(()))
        })
        .await?;
        kill(&scene.hub)?;
        ensure!(scene.phase()? == "Pending", "{}", scene.phase()?);
        scene.clusters.lab().heal_link("hub", "east")?;
        Ok(())
    };
    let (client, restarted) = tokio::join!(starting, restarting);
    restarted?;
    let client = client?;
    client.has_all().await?;
    client.end().await
}

pub(super) async fn while_ready(scene: &Scene<'_>) -> Result<()> {
    let client = Client::start(&scene.hub, 5, LONG).await?;
    let before = client.has_all().await?;
    kill(&scene.hub)?;
    ensure!(
        client.has_all().await? == before,
        "there are other agents than before"
    );
    client.end().await
}

/// One member cannot be told of the end, and is not forgotten.
pub(super) async fn while_ending(scene: &Scene<'_>) -> Result<()> {
    let client = Client::start(&scene.hub, 6, LONG).await?;
    client.has_all().await?;
    scene.clusters.lab().cut("hub", "west")?;
    client.end().await?;
    let deleted = "--output=jsonpath={.items[*].metadata.deletionTimestamp}";
    until("the end to begin, and to wait for west", async || {
        let deleted = scene.hub.stage.kubectl(&["get", "mmcs", deleted])?;
        let in_east =
            scene
                .east
                .stage
                .kubectl(&["get", "mirrordclustersessions", "--output=name"])?;
        Ok((!deleted.is_empty() && in_east.is_empty()).then_some(()))
    })
    .await?;
    kill(&scene.hub)?;
    let parents = scene.hub.stage.kubectl(&["get", "mmcs", "--output=name"])?;
    ensure!(
        !parents.is_empty(),
        "the parent goes before its child in west"
    );
    scene.clusters.lab().heal_link("hub", "west")?;
    Ok(())
}
