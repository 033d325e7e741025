//! API servers that are down, and networks that are cut.

use std::time::Duration;

use anyhow::{Context as _, Result, ensure};
use e2e::until;
use lab::component::API_SERVER;
use tokio::time::{Instant, sleep, sleep_until};

use super::{Client, LONG, SHOP, SHORT, Scene, is_away, ready_in, running_agents};

pub(super) fn api_server_of(scene: &Scene<'_>, cluster: &str, is_up: bool) -> Result<()> {
    let cluster = scene.clusters.lab().cluster(cluster)?;
    let node = &cluster.plan().first_node().name;
    if is_up {
        cluster.start_component(node, API_SERVER)?;
        cluster.wait_for_api_server()?;
    } else {
        cluster.stop_component(node, API_SERVER)?;
    }
    Ok(())
}

/// The session starts without it, says so, and has it when it is there.
pub(super) async fn down_at_the_start(scene: &Scene<'_>) -> Result<()> {
    api_server_of(scene, "west", false)?;
    let told = async {
        scene.is_away("west", "").await?;
        let client = Client::start(&scene.hub, 1, LONG).await?;
        let places = client
            .is_told("west is away, east is there", |places| {
                is_away(places, "west") && ready_in(places, "east").len() == 2
            })
            .await?;
        client.uses(&places, "east").await?;
        let listed = scene
            .hub
            .stage
            .kubectl(&["get", "sessions.operator.metalbear.co"])?;
        ensure!(
            listed.contains("east,west!") && listed.contains("Ready"),
            "{listed}"
        );
        // What there is elsewhere is listed, and whose list is missing is said.
        let wide = ["get", "targets", "--output=wide"];
        let mut list = scene.hub.stage.cluster.client.kubectl();
        let list = list.args(["--namespace", SHOP]).args(wide).output()?;
        let (listed, said) = (
            String::from_utf8_lossy(&list.stdout),
            String::from_utf8_lossy(&list.stderr),
        );
        ensure!(
            listed.contains("deployment.web") && listed.contains("east"),
            "{listed}{said}"
        );
        ensure!(
            said.contains("Warning: targets of the cluster west are missing"),
            "{listed}{said}"
        );
        Ok(client)
    };
    let told = told.await;
    api_server_of(scene, "west", true)?;
    let client = told?;
    client.has_all().await?;
    until("the list to have both", async || {
        let listed = scene
            .hub
            .stage
            .kubectl(&["get", "sessions.operator.metalbear.co"])?;
        Ok(listed.contains("east,west ").then_some(()))
    })
    .await?;
    client.end().await
}

/// The others go on, and it has the same agents afterwards.
pub(super) async fn down_later(scene: &Scene<'_>) -> Result<()> {
    let client = Client::start(&scene.hub, 2, LONG).await?;
    let before = client.has_all().await?;
    api_server_of(scene, "west", false)?;
    let told = async {
        let places = client
            .is_told("west is away", |places| is_away(places, "west"))
            .await?;
        client.uses(&places, "east").await
    };
    let told = told.await;
    api_server_of(scene, "west", true)?;
    told?;
    ensure!(
        client.has_all().await? == before,
        "there are other agents than before"
    );
    client.end().await
}

pub(super) async fn cut_within_the_window(scene: &Scene<'_>) -> Result<()> {
    let lab = scene.clusters.lab();
    let client = Client::start(&scene.hub, 7, LONG).await?;
    let before = client.has_all().await?;
    // Shorter than anybody notices. The time is the fault, and nothing is waited for.
    lab.cut("hub", "west")?;
    sleep(Duration::from_secs(5)).await;
    lab.heal_link("hub", "west")?;
    ensure!(
        client.has_all().await? == before,
        "a short cut changes something"
    );
    // Longer than it takes until everybody has noticed.
    lab.cut("hub", "west")?;
    let healed = Instant::now() + Duration::from_secs(45);
    scene.is_away("west", "").await?;
    let places = client
        .is_told("west is away, and its agents may come back", |places| {
            is_away(places, "west") && ready_in(places, "west").len() == 2
        })
        .await?;
    client.uses(&places, "east").await?;
    sleep_until(healed).await;
    lab.heal_link("hub", "west")?;
    scene.is_connected("west").await?;
    ensure!(
        client.has_all().await? == before,
        "a long cut changes something"
    );
    client.end().await
}

/// The member ends its part by its own clock. When it is back it joins again, with agents that nobody mistakes for others.
pub(super) async fn cut_past_the_window(scene: &Scene<'_>) -> Result<()> {
    let lab = scene.clusters.lab();
    let client = Client::start(&scene.hub, 8, SHORT).await?;
    let before = client.has_all().await?;
    lab.cut("hub", "west")?;
    until("the member to end its part", async || {
        let kind = "mirrordclustersessions.mirrord.metalbear.co";
        let left = scene.west.stage.kubectl(&["get", kind, "--output=name"])?;
        Ok((left.trim().is_empty() && running_agents(&scene.west)? == 0).then_some(()))
    })
    .await?;
    let places = client
        .is_told("agents in west are gone", |places| {
            ready_in(places, "west").is_empty()
        })
        .await?;
    client
        .uses(&places, "east")
        .await
        .context("while west is cut off")?;
    lab.heal_link("hub", "west")?;
    let after = client.has_all().await?;
    let kept: Vec<_> = after.intersection(&before).collect();
    ensure!(kept.len() == 2, "{before:?} became {after:?}");
    client.end().await
}
