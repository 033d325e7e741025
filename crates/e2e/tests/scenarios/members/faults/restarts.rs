//! Operators that are killed in every phase of a session, or drained.

use anyhow::{Result, ensure};
use e2e::until;

use super::{Client, LONG_WINDOW, Operator, Setup};

/// Kills the only replica, and waits for the next.
pub(super) fn kill(operator: &Operator) -> Result<()> {
    let selector = "--selector=app.kubernetes.io/component=operator";
    let delete = ["delete", "pod", selector, "--force", "--grace-period=0"];
    operator.namespace.kubectl(&delete)?;
    operator.wait_until_available()
}

/// Removes the only replica as in a node drain, while a second replica runs; then scales down to one again.
pub(super) async fn drain(operator: &Operator) -> Result<()> {
    let replicas = || -> Result<Vec<String>> {
        let selector = "--selector=app.kubernetes.io/component=operator";
        let pods = ["get", "pods", selector, "--output=name"];
        let pods = operator.namespace.kubectl(&pods)?;
        Ok(pods.split_whitespace().map(str::to_owned).collect())
    };
    let scale = |replicas: &str| -> Result<()> {
        let scale = ["scale", "deployment/mirrord-operator", replicas];
        operator.namespace.kubectl(&scale)?;
        operator.wait_until_available()
    };
    let old = replicas()?;
    scale("--replicas=2")?;
    for pod in &old {
        operator.namespace.kubectl(&["delete", pod])?;
    }
    operator.wait_until_available()?;
    scale("--replicas=1")?;
    until("one replica", async || {
        Ok((replicas()?.len() == 1).then_some(()))
    })
    .await
}

pub(super) async fn of_a_member(setup: &Setup<'_>) -> Result<()> {
    let client = Client::start(&setup.hub, 3, LONG_WINDOW).await?;
    let before = client.wait_for_all_agents().await?;
    kill(&setup.west)?;
    kill(&setup.east)?;
    ensure!(
        client.wait_for_all_agents().await? == before,
        "the agents are not the same as before"
    );
    client.end().await
}

/// The Default is unreachable, so the session waits for it, also after the restart.
pub(super) async fn before_ready(setup: &Setup<'_>) -> Result<()> {
    setup.clusters.lab().cut("hub", "east")?;
    setup.wait_until_disconnected("east", "").await?;
    let starting = Client::start(&setup.hub, 4, LONG_WINDOW);
    let restarting = async {
        until("a session that waits for its Default", async || {
            Ok((setup.phase()? == "Pending").then_some(()))
        })
        .await?;
        kill(&setup.hub)?;
        ensure!(setup.phase()? == "Pending", "{}", setup.phase()?);
        setup.clusters.lab().heal_link("hub", "east")?;
        Ok(())
    };
    let (client, restarted) = tokio::join!(starting, restarting);
    restarted?;
    let client = client?;
    client.wait_for_all_agents().await?;
    client.end().await
}

pub(super) async fn while_ready(setup: &Setup<'_>) -> Result<()> {
    let client = Client::start(&setup.hub, 5, LONG_WINDOW).await?;
    let before = client.wait_for_all_agents().await?;
    kill(&setup.hub)?;
    ensure!(
        client.wait_for_all_agents().await? == before,
        "the agents are not the same as before"
    );
    client.end().await
}

/// One member is unreachable when the session ends, and its child session is deleted later.
pub(super) async fn while_ending(setup: &Setup<'_>) -> Result<()> {
    let client = Client::start(&setup.hub, 6, LONG_WINDOW).await?;
    client.wait_for_all_agents().await?;
    setup.clusters.lab().cut("hub", "west")?;
    client.end().await?;
    let deleted = "--output=jsonpath={.items[*].metadata.deletionTimestamp}";
    until("the session to be deleted, except in west", async || {
        let deleted = setup.hub.namespace.kubectl(&["get", "mmcs", deleted])?;
        let in_east =
            setup
                .east
                .namespace
                .kubectl(&["get", "mirrordclustersessions", "--output=name"])?;
        Ok((!deleted.is_empty() && in_east.is_empty()).then_some(()))
    })
    .await?;
    kill(&setup.hub)?;
    let parents = setup
        .hub
        .namespace
        .kubectl(&["get", "mmcs", "--output=name"])?;
    ensure!(
        !parents.is_empty(),
        "the parent was removed before its child in west"
    );
    setup.clusters.lab().heal_link("hub", "west")?;
    Ok(())
}
