//! Requests between clusters.

use std::sync::Arc;

use anyhow::{Result, ensure};
use e2e::{LazyEnvironment, Needs, Scenario, scenario};
use libtest_mimic::Trial;

pub(crate) fn scenarios(environment: &Arc<LazyEnvironment>) -> Vec<Trial> {
    vec![scenario(
        environment,
        "a_pod_uses_the_api_server_of_another_cluster",
        Needs::Lab,
        a_pod_uses_another_api_server,
    )]
}

/// It uses an account of that cluster, as a Primary operator does with its member clusters.
async fn a_pod_uses_another_api_server(scenario: &Scenario<'_>) -> Result<()> {
    let here = scenario.namespace_in(0).await?;
    let there = scenario.namespace_in(1).await?;
    there.kubectl(&["create", "serviceaccount", "visitor"])?;
    there.kubectl(&[
        "create",
        "role",
        "reader",
        "--verb=get,list",
        "--resource=configmaps",
    ])?;
    let account = format!("--serviceaccount={}:visitor", there.name);
    there.kubectl(&["create", "rolebinding", "reader", "--role=reader", &account])?;
    let token = there.kubectl(&["create", "token", "visitor"])?;
    here.client_pod("client").await?;
    let server = scenario.lab()?.cluster(&there.cluster.name)?.api_server();
    let (authority, _) = scenario.lab()?.cluster(&there.cluster.name)?.authority()?;
    here.exec(
        "client",
        &["sh", "-c", "cat > /tmp/ca.crt"],
        Some(&authority),
    )
    .await?;
    let header = format!("Authorization: Bearer {}", token.trim());
    here.exec("client", &["sh", "-c", "cat > /tmp/header"], Some(&header))
        .await?;
    let request = async |resource: &str| {
        let url = format!("{server}/api/v1/namespaces/{}/{resource}", there.name);
        let curl = format!(
            "curl -sS -o /dev/null -w '%{{http_code}}' --cacert /tmp/ca.crt -H @/tmp/header {url}"
        );
        here.run("client", &["sh", "-c", &curl]).await
    };
    let allowed = request("configmaps").await?;
    ensure!(allowed == "200", "a permitted resource gave {allowed}");
    let refused = request("secrets").await?;
    ensure!(
        refused == "403",
        "a resource without permission gave {refused}"
    );
    Ok(())
}
