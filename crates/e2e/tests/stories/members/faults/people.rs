//! What people do: delete, upgrade in parts, come without rights, and coordinate the same cluster twice.

use anyhow::{Context as _, Result, bail, ensure};
use cluster::Carrier;
use e2e::until;
use link::tls::Identity;
use serde_json::{Value, json};

use super::super::credential;
use super::{
    Client, LONG, Operator, SHOP, SHORT, Scene, envoy_token, is_away, member_values, ready_in,
    session, why_away,
};

const CHILDREN: &str = "mirrordclustersessions.mirrord.metalbear.co";

pub(super) async fn delete(scene: &Scene<'_>) -> Result<()> {
    let client = Client::start(&scene.hub, 0xb, LONG).await?;
    let before = client.has_all().await?;
    // A child: its cluster leaves, and joins again.
    scene
        .west
        .stage
        .kubectl(&["delete", CHILDREN, "mc-000000000000000b-west"])?;
    client
        .is_told("the agents in west are others", |places| {
            let west = ready_in(places, "west");
            west.len() == 2 && west.iter().all(|place| !before.contains(&place.number))
        })
        .await?;
    client.has_all().await?;
    // The target's namespace in one cluster, which is made again.
    scene.west.stage.kubectl(&["delete", "namespace", SHOP])?;
    let places = client
        .is_told("no pod in west", |places| {
            ready_in(places, "west").is_empty()
        })
        .await?;
    client.uses(&places, "east").await?;
    scene.west.stage.kubectl(&["create", "namespace", SHOP])?;
    scene.open_shop(&scene.west)?;
    client.has_all().await?;
    // The whole.
    scene
        .hub
        .stage
        .kubectl(&["delete", "mmcs", "mc-000000000000000b"])?;
    let why = client.carrier.over().await;
    ensure!(why.contains("ended"), "{why}");
    // The part without which there is no whole, by its number.
    let client = Client::start(&scene.hub, 0xc, LONG).await?;
    client.has_all().await?;
    let part = [
        "delete",
        "sessions.operator.metalbear.co",
        "000000000000000c",
    ];
    scene.east.stage.kubectl(&part)?;
    client.carrier.over().await;
    Ok(())
}

/// A member of a version that does not know some fields: its API server drops them.
pub(super) async fn older_member(scene: &Scene<'_>) -> Result<()> {
    let schema = "/spec/versions/0/schema/openAPIV3Schema/properties/spec/properties";
    let patch = json!([
        {"op": "remove", "path": format!("{schema}/generation")},
        {"op": "remove", "path": format!("{schema}/owner/properties/k8sGroups")},
    ]);
    let patch = patch.to_string();
    let definition = ["patch", "crd", CHILDREN, "--type=json", "--patch", &patch];
    scene.west.stage.kubectl(&definition)?;
    let client = Client::start(&scene.hub, 0xd, LONG).await?;
    client.has_all().await?;
    client.end().await?;
    scene.west.helm("upgrade", &member_values())
}

/// The Primary asks its own rules, also where it has no such target. A member that is told to asks its own.
pub(super) async fn without_rights(scene: &Scene<'_>) -> Result<()> {
    let mut asking = member_values();
    asking["operator"]["multiClusterMemberUserAuthorization"] = json!(true);
    asking["operator"]["multiClusterMemberUserPrefix"] = json!("hub:");
    asking["operator"]["multiClusterMemberGroupPrefix"] = json!("hub:");
    scene.west.helm("upgrade", &asking)?;
    scene.is_connected("west").await?;
    let anna = credential::user(scene.clusters, "hub", "anna").await?;
    let identity = Identity::generate()?;
    let refused = Carrier::start(session(anna.clone(), 0xe, LONG, &identity)?).await;
    let Err(refused) = refused else {
        bail!("anna has a session without a right");
    };
    let refused = format!("{:#}", anyhow::Error::from(refused));
    ensure!(
        refused.contains("may not have a session with deployment/web"),
        "{refused}"
    );
    grant(&scene.hub, "anna").await?;
    let carrier = Carrier::start(session(anna.clone(), 0xe, LONG, &identity)?).await?;
    let client = Client { carrier, identity };
    let told = client
        .is_told("west does not know her", |places| {
            let why = why_away(places, "west").unwrap_or_default();
            why.contains("hub:anna may not have a session with deployment/web")
        })
        .await?;
    client.uses(&told, "east").await?;
    client.end().await?;
    grant(&scene.west, "hub:anna").await?;
    let identity = Identity::generate()?;
    let carrier = Carrier::start(session(anna, 0xf, LONG, &identity)?).await?;
    let client = Client { carrier, identity };
    client.has_all().await?;
    client.end().await?;
    scene.west.helm("upgrade", &member_values())?;
    scene.is_connected("west").await
}

/// Gives a user the right to the target, and waits until the cluster knows of it.
async fn grant(operator: &Operator, user: &str) -> Result<()> {
    let stage = &operator.stage;
    let namespaces = stage.kubectl(&["get", "namespaces", "--output=name"])?;
    if !namespaces.contains(&format!("namespace/{SHOP}\n")) {
        stage.kubectl(&["create", "namespace", SHOP])?;
    }
    let resource = "--resource=targets.operator.metalbear.co";
    let role = [
        "create",
        "role",
        "anna",
        "--verb=proxy",
        resource,
        "--resource-name=deployment.web",
    ];
    operator.kubectl_in(SHOP, &role)?;
    let bound = format!("--user={user}");
    operator.kubectl_in(
        SHOP,
        &["create", "rolebinding", "anna", "--role=anna", &bound],
    )?;
    let target = "targets.operator.metalbear.co/deployment.web";
    until("a right to be known", async || {
        let question = ["auth", "can-i", "proxy", target, "--as", user];
        // The answer `no` is an error of kubectl.
        operator.kubectl_in(SHOP, &question).map(Some)
    })
    .await?;
    Ok(())
}

/// East coordinates west as well. Sessions of both are there at once, and end apart.
pub(super) async fn two_primaries(scene: &Scene<'_>) -> Result<()> {
    let mut values = member_values();
    let token = envoy_token(&scene.west)?;
    values["operator"]["multiCluster"] = json!({
        "enabled": true,
        "clusterName": "east",
        "defaultCluster": "east",
        "onUnreachable": "continue",
        "clusters": {"west": scene.entry(&scene.west, Some(&token))?},
    });
    scene.east.helm("upgrade", &values)?;
    let of_hub = Client::start(&scene.hub, 0x10, LONG).await?;
    of_hub.has_all().await?;
    let of_east = Client::start(&scene.east, 0x11, SHORT).await?;
    of_east.has_all().await?;
    let children = scene
        .west
        .stage
        .kubectl(&["get", CHILDREN, "--output=json"])?;
    let children: Value = serde_json::from_str(&children)?;
    let count = children["items"].as_array().context("no list")?.len();
    ensure!(count == 2, "{count} sessions in west");
    of_east.end().await?;
    until("the session of east to be gone", async || {
        let children = scene
            .west
            .stage
            .kubectl(&["get", CHILDREN, "--output=name"])?;
        Ok((children.lines().count() == 1).then_some(()))
    })
    .await?;
    let places = of_hub.carrier.places().borrow().clone();
    ensure!(!is_away(&places, "west"));
    of_hub.has_all().await?;
    of_hub.end().await?;
    scene.east.helm("upgrade", &member_values())
}
