//! `standin cluster revoke` and `remove`.

use std::process::ExitCode;

use anyhow::{Result, bail};
use api::hub::{Cluster, ClusterState};
use clap::Args;
use serde_json::json;

use super::client::cluster_path;
use super::error;
use super::prompt::ensure_confirmed;
use super::{HubArguments, cluster_name};

#[derive(Debug, Args)]
#[command(after_help = "\
Example:
  standin cluster revoke prod-eu

The tunnel ends at once, at every replica of the hub, and the certificates of the agent are refused from now on. The cluster stays
registered: `standin cluster add prod-eu` prints how its agent registers again, with a new key. Use it when a key may have leaked.")]
pub(super) struct RevokeArguments {
    #[command(flatten)]
    named: Named,
}

#[derive(Debug, Args)]
#[command(after_help = "\
Example:
  standin cluster remove prod-eu

The tunnel ends at once, and its agent is refused from now on. Uninstall the agent in the cluster as well:
`helm uninstall standin-tunnel-agent`. A cluster in the values of the hub's chart is removed there.")]
pub(super) struct RemoveArguments {
    #[command(flatten)]
    named: Named,
}

#[derive(Debug, Args)]
struct Named {
    /// The cluster
    #[arg(value_name = "NAME", value_parser = cluster_name)]
    name: String,
    /// Do not ask
    #[arg(short, long)]
    yes: bool,
    #[command(flatten)]
    hub: HubArguments,
}

pub(super) async fn revoke(arguments: &RevokeArguments) -> Result<ExitCode> {
    let Named { name, yes, hub } = &arguments.named;
    let (_, client) = hub.connect().await?;
    let cluster = client.cluster(name).await?;
    let question = format!(
        "Revoke the certificates of {name}{}? Its agent has to register again.",
        consequence(&cluster)
    );
    ensure_confirmed(*yes, &question)?;
    let path = format!("{}/revoke", cluster_path(name));
    let revoked: Result<Cluster, _> = client.post(&path, &json!({}), &error::REVOKE).await;
    if let Err(error) = revoked {
        return Err(client.explain_unknown(name, error).await);
    }
    println!("{name} is revoked");
    println!("next: `standin cluster add {name}` prints how its agent registers again");
    Ok(ExitCode::SUCCESS)
}

pub(super) async fn remove(arguments: &RemoveArguments) -> Result<ExitCode> {
    let Named { name, yes, hub } = &arguments.named;
    let (login, client) = hub.connect().await?;
    let cluster = client.cluster(name).await?;
    if cluster.from_values {
        bail!(
            "{name} is in the values of the hub's chart, which would register it again: remove it from `clusters` there, and run \
             `helm upgrade`. `standin cluster revoke {name}` disconnects it at once"
        );
    }
    let question = format!("Remove {name}{} from the hub?", consequence(&cluster));
    ensure_confirmed(*yes, &question)?;
    if let Err(error) = client.delete(&cluster_path(name), &error::REMOVE).await {
        return Err(client.explain_unknown(name, error).await);
    }
    println!("{name} is removed from the hub {}", login.address);
    println!(
        "next: `helm uninstall standin-tunnel-agent` in that cluster, with the namespace of its agent"
    );
    Ok(ExitCode::SUCCESS)
}

fn consequence(cluster: &Cluster) -> &'static str {
    match cluster.state {
        ClusterState::Connected => ", which is connected, and end everything that uses it",
        _ => "",
    }
}
