//! A hub, and a cluster that can dial out and cannot be dialled.

mod clients;
mod environment;
mod interruptions;

use std::sync::Arc;

use anyhow::{Context as _, Result, ensure};
use e2e::{LazyEnvironment, Needs, Scenario, scenario, until};
use libtest_mimic::Trial;
use serde_json::Value;

use self::environment::{CLUSTER, Tunnel};

pub(crate) fn scenarios(environment: &Arc<LazyEnvironment>) -> Vec<Trial> {
    vec![scenario(
        environment,
        "a_cluster_that_only_dials_out_is_used_through_a_hub",
        Needs::Machine,
        a_cluster_is_used_through_a_hub,
    )]
}

/// From nothing to a connected cluster, with the commands that the documentation names.
async fn a_cluster_is_used_through_a_hub(scenario: &Scenario<'_>) -> Result<()> {
    let tunnel = Tunnel::install(scenario).await?;
    let used = use_the_cluster(&tunnel).await;
    // The clusters are gone when the scenario's own diagnostics are collected.
    used.map_err(|error| error.context(tunnel.logs()))
}

async fn use_the_cluster(tunnel: &Tunnel<'_>) -> Result<()> {
    tunnel.log_in()?;
    tunnel.onboard()?;
    tunnel.isolate()?;
    the_cluster_is_listed(tunnel).await?;
    tunnel.write_kubeconfig()?;
    clients::kubernetes_clients_work_unchanged(tunnel).await?;
    clients::requests_are_audited(tunnel).await?;
    clients::a_session_runs_through_the_tunnel(tunnel).await?;
    interruptions::nothing_is_lost_in_an_interruption(tunnel).await?;
    a_revoked_cluster_is_disconnected(tunnel).await?;
    tunnel.uninstall()
}

async fn the_cluster_is_listed(tunnel: &Tunnel<'_>) -> Result<()> {
    let cluster = until("the cluster to be connected", async || {
        let cluster = listed(tunnel)?;
        Ok((cluster["state"] == "connected").then_some(cluster))
    })
    .await?;
    for key in [
        "connectedSince",
        "agentVersion",
        "kubernetesVersion",
        "certificateExpiresAt",
    ] {
        ensure!(cluster[key].is_string(), "no {key}: {cluster}");
    }
    Ok(())
}

fn listed(tunnel: &Tunnel<'_>) -> Result<Value> {
    let list = tunnel.standin(&["cluster", "list", "--output", "json"])?;
    let list: Value = serde_json::from_str(&list)?;
    let mut clusters = list.as_array().into_iter().flatten();
    let found = clusters.find(|cluster| cluster["name"] == CLUSTER);
    found
        .cloned()
        .with_context(|| format!("not listed: {list}"))
}

async fn a_revoked_cluster_is_disconnected(tunnel: &Tunnel<'_>) -> Result<()> {
    tunnel.standin(&["cluster", "revoke", CLUSTER, "--yes"])?;
    until("the cluster to be disconnected", async || {
        Ok((listed(tunnel)?["state"] == "revoked").then_some(()))
    })
    .await?;
    let refused = tunnel.kubectl(&["get", "namespaces"]).err();
    let refused = format!("{:#}", refused.context("a revoked cluster is reached")?);
    ensure!(refused.contains("revoked"), "{refused}");
    Ok(())
}
