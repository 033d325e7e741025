//! Credentials that stop to be good while a session uses them.

use anyhow::{Result, ensure};
use serde_json::{Value, json};

use super::super::credential;
use super::super::{certificate_secret, make_certificate};
use super::{Client, LONG, Scene, envoy_token, is_away, ready_in};

/// The account is made anew, so its tokens are nobody's. It is the Default's. Then the Secret goes: a member that is to be
/// left alone, although the hub has a token of its own for it.
pub(super) async fn token_over(scene: &Scene<'_>) -> Result<()> {
    let client = Client::start(&scene.hub, 9, LONG).await?;
    let before = client.has_all().await?;
    let account = "mirrord-operator-envoy";
    let stage = &scene.east.stage;
    let found = stage.kubectl(&["get", "serviceaccount", account, "--output=json"])?;
    let mut found: Value = serde_json::from_str(&found)?;
    let metadata = json!({
        "name": account,
        "labels": found["metadata"]["labels"],
        "annotations": found["metadata"]["annotations"],
    });
    found["metadata"] = metadata;
    stage.kubectl(&["delete", "serviceaccount", account])?;
    stage.apply(&found.to_string())?;
    scene
        .is_away("east", "does not know the operator's credential")
        .await?;
    let places = client
        .is_told("east is away", |places| is_away(places, "east"))
        .await?;
    client.uses(&places, "west").await?;
    let token = json!({"stringData": {"bearerToken": envoy_token(&scene.east)?}}).to_string();
    let secret = ["patch", "secret", "mirrord-cluster-east", "--patch", &token];
    scene.hub.stage.kubectl(&secret)?;
    scene.is_connected("east").await?;
    ensure!(
        client.has_all().await? == before,
        "there are other agents than before"
    );
    let stage = &scene.hub.stage;
    let secret = ["get", "secret", "mirrord-cluster-east", "--output=json"];
    let mut secret: Value = serde_json::from_str(&stage.kubectl(&secret)?)?;
    stage.kubectl(&["delete", "secret", "mirrord-cluster-east"])?;
    scene
        .is_away("east", "mirrord-cluster-east is not there")
        .await?;
    let places = client
        .is_told("east is away, and its agents may come back", |places| {
            is_away(places, "east") && ready_in(places, "east").len() == 2
        })
        .await?;
    client.uses(&places, "west").await?;
    for key in ["uid", "resourceVersion", "creationTimestamp"] {
        secret["metadata"][key].take();
    }
    stage.apply(&secret.to_string())?;
    scene.is_connected("east").await?;
    ensure!(
        client.has_all().await? == before,
        "there are other agents than before"
    );
    client.end().await
}

pub(super) async fn certificate_over(scene: &Scene<'_>) -> Result<()> {
    let client = Client::start(&scene.hub, 10, LONG).await?;
    let before = client.has_all().await?;
    let over = credential::expired_certificate(scene.clusters, "west", "nobody")?;
    certificate_secret(&scene.hub, &over)?;
    scene.is_away("west", "").await?;
    let warning = super::member_of(&scene.hub.object()?, "west")["warning"].to_string();
    ensure!(warning.contains("has ended"), "{warning}");
    let places = client
        .is_told("west is away", |places| is_away(places, "west"))
        .await?;
    client.uses(&places, "east").await?;
    make_certificate(&scene.hub, &scene.west, scene.clusters)?;
    scene.is_connected("west").await?;
    ensure!(
        client.has_all().await? == before,
        "there are other agents than before"
    );
    scene
        .hub
        .stage
        .kubectl(&["delete", "secret", "mirrord-cluster-west"])?;
    scene
        .is_away("west", "mirrord-cluster-west is not there")
        .await?;
    client
        .is_told("west is away", |places| is_away(places, "west"))
        .await?;
    make_certificate(&scene.hub, &scene.west, scene.clusters)?;
    scene.is_connected("west").await?;
    ensure!(
        client.has_all().await? == before,
        "there are other agents than before"
    );
    client.end().await
}
