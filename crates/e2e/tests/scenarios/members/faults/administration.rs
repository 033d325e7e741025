//! Actions of users and administrators: deleted objects, mixed versions, missing permissions, and two Primaries.

use anyhow::{Context as _, Result, bail, ensure};
use cluster::ReconnectingOperator;
use e2e::until;
use link::tls::Identity;
use serde_json::{Value, json};

use super::super::credential;
use super::{
    Client, LONG_WINDOW, Operator, SHOP, SHORT_WINDOW, Setup, account_token, is_unreachable,
    member_values, ready_in, session, start_targets, unreachable_reason,
};

const CHILDREN: &str = "mirrordclustersessions.mirrord.metalbear.co";

pub(super) async fn objects_deleted(setup: &Setup<'_>) -> Result<()> {
    let client = Client::start(&setup.hub, 0xb, LONG_WINDOW).await?;
    let before = client.wait_for_all_agents().await?;
    // A child session: its cluster leaves the session, and joins again.
    setup
        .west
        .namespace
        .kubectl(&["delete", CHILDREN, "mc-000000000000000b-west"])?;
    client
        .wait_for_endpoints("new agents in west", |endpoints| {
            let west = ready_in(endpoints, "west");
            west.len() == 2
                && west
                    .iter()
                    .all(|endpoint| !before.contains(&endpoint.number))
        })
        .await?;
    client.wait_for_all_agents().await?;
    // The target's namespace in one cluster, which is created again.
    setup
        .west
        .namespace
        .kubectl(&["delete", "namespace", SHOP])?;
    let endpoints = client
        .wait_for_endpoints("no pod in west", |endpoints| {
            ready_in(endpoints, "west").is_empty()
        })
        .await?;
    client.connect_to_agents(&endpoints, "east").await?;
    setup
        .west
        .namespace
        .kubectl(&["create", "namespace", SHOP])?;
    start_targets(&setup.west)?;
    client.wait_for_all_agents().await?;
    // The parent session.
    setup
        .hub
        .namespace
        .kubectl(&["delete", "mmcs", "mc-000000000000000b"])?;
    let reason = client.operator.ended().await;
    ensure!(reason.contains("ended"), "{reason}");
    // The child session of the Default, by its id. It ends the whole session.
    let client = Client::start(&setup.hub, 0xc, LONG_WINDOW).await?;
    client.wait_for_all_agents().await?;
    let part = [
        "delete",
        "sessions.operator.metalbear.co",
        "000000000000000c",
    ];
    setup.east.namespace.kubectl(&part)?;
    client.operator.ended().await;
    Ok(())
}

/// A member of a version without some fields: its API server drops them.
pub(super) async fn older_member(setup: &Setup<'_>) -> Result<()> {
    let schema = "/spec/versions/0/schema/openAPIV3Schema/properties/spec/properties";
    let patch = json!([
        {"op": "remove", "path": format!("{schema}/generation")},
        {"op": "remove", "path": format!("{schema}/owner/properties/k8sGroups")},
    ]);
    let patch = patch.to_string();
    let definition = ["patch", "crd", CHILDREN, "--type=json", "--patch", &patch];
    setup.west.namespace.kubectl(&definition)?;
    let client = Client::start(&setup.hub, 0xd, LONG_WINDOW).await?;
    client.wait_for_all_agents().await?;
    client.end().await?;
    setup.west.helm("upgrade", &member_values())
}

/// The Primary checks its own rules, also where it has no such target. A member checks its own if it is configured to.
pub(super) async fn without_permission(setup: &Setup<'_>) -> Result<()> {
    let mut with_authorization = member_values();
    with_authorization["operator"]["multiClusterMemberUserAuthorization"] = json!(true);
    with_authorization["operator"]["multiClusterMemberUserPrefix"] = json!("hub:");
    with_authorization["operator"]["multiClusterMemberGroupPrefix"] = json!("hub:");
    setup.west.helm("upgrade", &with_authorization)?;
    setup.wait_until_connected("west").await?;
    let anna = credential::user(setup.clusters, "hub", "anna").await?;
    let identity = Identity::generate()?;
    let refused =
        ReconnectingOperator::start(session(anna.clone(), 0xe, LONG_WINDOW, &identity)?).await;
    let Err(refused) = refused else {
        bail!("anna has a session without permission");
    };
    let refused = format!("{:#}", anyhow::Error::from(refused));
    ensure!(
        refused.contains("may not have a session with deployment/web"),
        "{refused}"
    );
    grant(&setup.hub, "anna").await?;
    let operator =
        ReconnectingOperator::start(session(anna.clone(), 0xe, LONG_WINDOW, &identity)?).await?;
    let client = Client::new(operator, identity, &setup.hub);
    let endpoints = client
        .wait_for_endpoints("west refuses the user", |endpoints| {
            let reason = unreachable_reason(endpoints, "west").unwrap_or_default();
            reason.contains("hub:anna may not have a session with deployment/web")
        })
        .await?;
    client.connect_to_agents(&endpoints, "east").await?;
    client.end().await?;
    grant(&setup.west, "hub:anna").await?;
    let identity = Identity::generate()?;
    let operator = ReconnectingOperator::start(session(anna, 0xf, LONG_WINDOW, &identity)?).await?;
    let client = Client::new(operator, identity, &setup.hub);
    client.wait_for_all_agents().await?;
    client.end().await?;
    setup.west.helm("upgrade", &member_values())?;
    setup.wait_until_connected("west").await
}

/// Grants a user the permission for the target, and waits until it takes effect.
async fn grant(operator: &Operator, user: &str) -> Result<()> {
    let namespace = &operator.namespace;
    let namespaces = namespace.kubectl(&["get", "namespaces", "--output=name"])?;
    if !namespaces.contains(&format!("namespace/{SHOP}\n")) {
        namespace.kubectl(&["create", "namespace", SHOP])?;
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
    let user_flag = format!("--user={user}");
    operator.kubectl_in(
        SHOP,
        &["create", "rolebinding", "anna", "--role=anna", &user_flag],
    )?;
    let target = "targets.operator.metalbear.co/deployment.web";
    until("a permission to take effect", async || {
        let arguments = ["auth", "can-i", "proxy", target, "--as", user];
        // kubectl fails if the permission is missing.
        operator.kubectl_in(SHOP, &arguments).map(Some)
    })
    .await?;
    Ok(())
}

/// East is a Primary of west as well. Sessions of both exist at the same time, and end independently.
pub(super) async fn two_primaries(setup: &Setup<'_>) -> Result<()> {
    let mut values = member_values();
    let token = account_token(&setup.west)?;
    values["operator"]["multiCluster"] = json!({
        "enabled": true,
        "clusterName": "east",
        "defaultCluster": "east",
        "onUnreachable": "continue",
        "clusters": {"west": setup.entry(&setup.west, Some(&token))?},
    });
    setup.east.helm("upgrade", &values)?;
    let of_hub = Client::start(&setup.hub, 0x10, LONG_WINDOW).await?;
    of_hub.wait_for_all_agents().await?;
    let of_east = Client::start(&setup.east, 0x11, SHORT_WINDOW).await?;
    of_east.wait_for_all_agents().await?;
    let children = setup
        .west
        .namespace
        .kubectl(&["get", CHILDREN, "--output=json"])?;
    let children: Value = serde_json::from_str(&children)?;
    let count = children["items"].as_array().context("no list")?.len();
    ensure!(count == 2, "{count} sessions in west");
    of_east.end().await?;
    until("the session of east to be gone", async || {
        let children = setup
            .west
            .namespace
            .kubectl(&["get", CHILDREN, "--output=name"])?;
        Ok((children.lines().count() == 1).then_some(()))
    })
    .await?;
    let endpoints = of_hub.operator.endpoints().borrow().clone();
    ensure!(!is_unreachable(&endpoints, "west"));
    of_hub.wait_for_all_agents().await?;
    of_hub.end().await?;
    setup.east.helm("upgrade", &member_values())
}
