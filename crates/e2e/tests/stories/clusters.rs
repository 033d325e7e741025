//! What happens between clusters.

use std::sync::Arc;

use anyhow::{Result, ensure};
use e2e::{LaterWorld, Needs, Story, tell};
use libtest_mimic::Trial;

pub(crate) fn stories(world: &Arc<LaterWorld>) -> Vec<Trial> {
    vec![tell(
        world,
        "a_pod_asks_the_api_server_of_another_cluster",
        Needs::Lab,
        a_pod_asks_another_api_server,
    )]
}

/// With an account of that cluster, as an operator does that coordinates others.
async fn a_pod_asks_another_api_server(story: &Story<'_>) -> Result<()> {
    let here = story.stage_in(0).await?;
    let there = story.stage_in(1).await?;
    there.kubectl(&["create", "serviceaccount", "visitor"])?;
    there.kubectl(&[
        "create",
        "role",
        "reader",
        "--verb=get,list",
        "--resource=configmaps",
    ])?;
    let account = format!("--serviceaccount={}:visitor", there.namespace);
    there.kubectl(&["create", "rolebinding", "reader", "--role=reader", &account])?;
    let token = there.kubectl(&["create", "token", "visitor"])?;
    here.client_pod("client").await?;
    let server = story.lab()?.cluster(&there.cluster.name)?.api_server();
    let (authority, _) = story.lab()?.cluster(&there.cluster.name)?.authority()?;
    here.exec(
        "client",
        &["sh", "-c", "cat > /tmp/ca.crt"],
        Some(&authority),
    )
    .await?;
    let header = format!("Authorization: Bearer {}", token.trim());
    here.exec("client", &["sh", "-c", "cat > /tmp/header"], Some(&header))
        .await?;
    let ask = async |resource: &str| {
        let url = format!("{server}/api/v1/namespaces/{}/{resource}", there.namespace);
        let curl = format!(
            "curl -sS -o /dev/null -w '%{{http_code}}' --cacert /tmp/ca.crt -H @/tmp/header {url}"
        );
        here.run("client", &["sh", "-c", &curl]).await
    };
    let allowed = ask("configmaps").await?;
    ensure!(allowed == "200", "the visitor's own rights gave {allowed}");
    let refused = ask("secrets").await?;
    ensure!(
        refused == "403",
        "what the visitor may not see gave {refused}"
    );
    Ok(())
}
