//! API servers that are down, and network cuts.

use std::time::Duration;

use anyhow::{Context as _, Result, ensure};
use e2e::until;
use lab::component::API_SERVER;
use tokio::time::{Instant, sleep, sleep_until};

use super::{
    Client, LONG_WINDOW, SHOP, SHORT_WINDOW, Setup, is_unreachable, ready_in, running_agents,
};

/// Starts or stops the API server of a cluster.
pub(super) fn set_api_server(setup: &Setup<'_>, cluster: &str, is_up: bool) -> Result<()> {
    let cluster = setup.clusters.lab().cluster(cluster)?;
    let node = &cluster.plan().first_node().name;
    if is_up {
        cluster.start_component(node, API_SERVER)?;
        cluster.wait_for_api_server()?;
    } else {
        cluster.stop_component(node, API_SERVER)?;
    }
    Ok(())
}

/// The session starts without the member, reports that, and includes the member when it is up.
pub(super) async fn down_at_the_start(setup: &Setup<'_>) -> Result<()> {
    set_api_server(setup, "west", false)?;
    let result = async {
        setup.wait_until_disconnected("west", "").await?;
        let client = Client::start(&setup.hub, 1, LONG_WINDOW).await?;
        let endpoints = client
            .wait_for_endpoints("west is unreachable, east is ready", |endpoints| {
                is_unreachable(endpoints, "west") && ready_in(endpoints, "east").len() == 2
            })
            .await?;
        client.connect_to_agents(&endpoints, "east").await?;
        let listed = setup
            .hub
            .namespace
            .kubectl(&["get", "sessions.operator.metalbear.co"])?;
        ensure!(
            listed.contains("east,west!") && listed.contains("Ready"),
            "{listed}"
        );
        // The targets of the other cluster are listed, with a warning about the missing ones.
        let wide = ["get", "targets", "--output=wide"];
        let mut list = setup.hub.namespace.cluster.client.kubectl();
        let list = list.args(["--namespace", SHOP]).args(wide).output()?;
        let (listed, stderr) = (
            String::from_utf8_lossy(&list.stdout),
            String::from_utf8_lossy(&list.stderr),
        );
        ensure!(
            listed.contains("deployment.web") && listed.contains("east"),
            "{listed}{stderr}"
        );
        ensure!(
            stderr.contains("Warning: targets of the cluster west are missing"),
            "{listed}{stderr}"
        );
        Ok(client)
    };
    let result = result.await;
    set_api_server(setup, "west", true)?;
    let client = result?;
    client.wait_for_all_agents().await?;
    until("the list to have both", async || {
        let listed = setup
            .hub
            .namespace
            .kubectl(&["get", "sessions.operator.metalbear.co"])?;
        Ok(listed.contains("east,west ").then_some(()))
    })
    .await?;
    client.end().await
}

/// The other members continue, and the member has the same agents afterwards.
pub(super) async fn down_later(setup: &Setup<'_>) -> Result<()> {
    let client = Client::start(&setup.hub, 2, LONG_WINDOW).await?;
    let before = client.wait_for_all_agents().await?;
    set_api_server(setup, "west", false)?;
    let result = async {
        let endpoints = client
            .wait_for_endpoints("west is unreachable", |endpoints| {
                is_unreachable(endpoints, "west")
            })
            .await?;
        client.connect_to_agents(&endpoints, "east").await
    };
    let result = result.await;
    set_api_server(setup, "west", true)?;
    result?;
    ensure!(
        client.wait_for_all_agents().await? == before,
        "the agents are not the same as before"
    );
    client.end().await
}

pub(super) async fn cut_during_the_window(setup: &Setup<'_>) -> Result<()> {
    let lab = setup.clusters.lab();
    let client = Client::start(&setup.hub, 7, LONG_WINDOW).await?;
    let before = client.wait_until_settled().await?;
    // Shorter than any timeout. The duration is the fault itself, so this sleep waits for no condition.
    lab.cut("hub", "west")?;
    sleep(Duration::from_secs(5)).await;
    lab.heal_link("hub", "west")?;
    ensure!(
        client.wait_for_all_agents().await? == before,
        "a short cut changes something"
    );
    // Longer than it takes to detect the cut.
    lab.cut("hub", "west")?;
    let heal_at = Instant::now() + Duration::from_secs(45);
    setup.wait_until_disconnected("west", "").await?;
    let endpoints = client
        .wait_for_endpoints(
            "west is unreachable, and its agents are kept",
            |endpoints| is_unreachable(endpoints, "west") && ready_in(endpoints, "west").len() == 2,
        )
        .await?;
    client.connect_to_agents(&endpoints, "east").await?;
    sleep_until(heal_at).await;
    lab.heal_link("hub", "west")?;
    setup.wait_until_connected("west").await?;
    ensure!(
        client.wait_for_all_agents().await? == before,
        "a long cut changes something"
    );
    client.end().await
}

/// The member ends its child session after the resume window. When it is reachable it joins again, with new agents that have
/// new endpoint numbers.
pub(super) async fn cut_past_the_window(setup: &Setup<'_>) -> Result<()> {
    let lab = setup.clusters.lab();
    let client = Client::start(&setup.hub, 8, SHORT_WINDOW).await?;
    let before = client.wait_for_all_agents().await?;
    lab.cut("hub", "west")?;
    until("the member to end its child session", async || {
        let kind = "mirrordclustersessions.mirrord.metalbear.co";
        let left = setup
            .west
            .namespace
            .kubectl(&["get", kind, "--output=name"])?;
        Ok((left.trim().is_empty() && running_agents(&setup.west)? == 0).then_some(()))
    })
    .await?;
    let endpoints = client
        .wait_for_endpoints("no agents in west", |endpoints| {
            ready_in(endpoints, "west").is_empty()
        })
        .await?;
    client
        .connect_to_agents(&endpoints, "east")
        .await
        .context("while west is cut off")?;
    lab.heal_link("hub", "west")?;
    let after = client.wait_for_all_agents().await?;
    let kept: Vec<_> = after.intersection(&before).collect();
    ensure!(kept.len() == 2, "{before:?} became {after:?}");
    client.end().await
}
