//! Credentials that become invalid during a session.

use anyhow::{Result, ensure};
use serde_json::{Value, json};

use super::super::credential;
use super::super::membership::{certificate_secret, create_certificate};
use super::{Client, LONG_WINDOW, Setup, account_token, is_unreachable, ready_in};

/// The account of the Default is recreated, so that its tokens are invalid. Then its Secret is removed: the hub has no token for
/// the member that it has requested itself, so it must stop using the member.
pub(super) async fn token_revoked(setup: &Setup<'_>) -> Result<()> {
    let client = Client::start(&setup.hub, 9, LONG_WINDOW).await?;
    let before = client.wait_for_all_agents().await?;
    let account = "mirrord-operator-envoy";
    let namespace = &setup.east.namespace;
    let found = namespace.kubectl(&["get", "serviceaccount", account, "--output=json"])?;
    let mut found: Value = serde_json::from_str(&found)?;
    let metadata = json!({
        "name": account,
        "labels": found["metadata"]["labels"],
        "annotations": found["metadata"]["annotations"],
    });
    found["metadata"] = metadata;
    namespace.kubectl(&["delete", "serviceaccount", account])?;
    namespace.apply(&found.to_string())?;
    setup
        .wait_until_disconnected("east", "rejects the operator's credential")
        .await?;
    let endpoints = client
        .wait_for_endpoints("east is unreachable", |endpoints| {
            is_unreachable(endpoints, "east")
        })
        .await?;
    client.connect_to_agents(&endpoints, "west").await?;
    let token = json!({"stringData": {"bearerToken": account_token(&setup.east)?}}).to_string();
    let secret = ["patch", "secret", "mirrord-cluster-east", "--patch", &token];
    setup.hub.namespace.kubectl(&secret)?;
    setup.wait_until_connected("east").await?;
    ensure!(
        client.wait_for_all_agents().await? == before,
        "the agents are not the same as before"
    );
    // A Secret that is removed while an agent is starting would leave that agent not ready.
    client.wait_until_settled().await?;
    let namespace = &setup.hub.namespace;
    let secret = ["get", "secret", "mirrord-cluster-east", "--output=json"];
    let mut secret: Value = serde_json::from_str(&namespace.kubectl(&secret)?)?;
    namespace.kubectl(&["delete", "secret", "mirrord-cluster-east"])?;
    setup
        .wait_until_disconnected("east", "mirrord-cluster-east does not exist")
        .await?;
    let endpoints = client
        .wait_for_endpoints(
            "east is unreachable, and its agents are kept",
            |endpoints| is_unreachable(endpoints, "east") && ready_in(endpoints, "east").len() == 2,
        )
        .await?;
    client.connect_to_agents(&endpoints, "west").await?;
    for key in ["uid", "resourceVersion", "creationTimestamp"] {
        secret["metadata"][key].take();
    }
    namespace.apply(&secret.to_string())?;
    setup.wait_until_connected("east").await?;
    ensure!(
        client.wait_for_all_agents().await? == before,
        "the agents are not the same as before"
    );
    client.end().await
}

pub(super) async fn certificate_expired(setup: &Setup<'_>) -> Result<()> {
    let client = Client::start(&setup.hub, 10, LONG_WINDOW).await?;
    let before = client.wait_for_all_agents().await?;
    let expired = credential::expired_certificate(setup.clusters, "west", "expired")?;
    certificate_secret(&setup.hub, &expired)?;
    setup.wait_until_disconnected("west", "").await?;
    let warning = super::member_of(&setup.hub.object()?, "west")["warning"].to_string();
    ensure!(warning.contains("has expired"), "{warning}");
    let endpoints = client
        .wait_for_endpoints("west is unreachable", |endpoints| {
            is_unreachable(endpoints, "west")
        })
        .await?;
    client.connect_to_agents(&endpoints, "east").await?;
    create_certificate(&setup.hub, &setup.west, setup.clusters)?;
    setup.wait_until_connected("west").await?;
    ensure!(
        client.wait_for_all_agents().await? == before,
        "the agents are not the same as before"
    );
    client.wait_until_settled().await?;
    setup
        .hub
        .namespace
        .kubectl(&["delete", "secret", "mirrord-cluster-west"])?;
    setup
        .wait_until_disconnected("west", "mirrord-cluster-west does not exist")
        .await?;
    client
        .wait_for_endpoints("west is unreachable", |endpoints| {
            is_unreachable(endpoints, "west")
        })
        .await?;
    create_certificate(&setup.hub, &setup.west, setup.clusters)?;
    setup.wait_until_connected("west").await?;
    ensure!(
        client.wait_for_all_agents().await? == before,
        "the agents are not the same as before"
    );
    client.end().await
}
