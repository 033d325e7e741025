//! The cleanup before an operator is uninstalled: its API is removed, then its sessions.

use std::time::Duration;

use api::{MirrordClusterSession, MirrordMultiClusterSession};
use k8s_openapi::api::core::v1::Secret;
use k8s_openapi::kube_aggregator::pkg::apis::apiregistration::v1::APIService;
use kube::api::{DeleteParams, ListParams, Patch, PatchParams};
use kube::{Api, Client, Resource, ResourceExt as _};
use serde::de::DeserializeOwned;
use serde_json::json;
use tokio::time::{Instant, sleep};

use crate::error::{Error, KubeResultExt as _, Result};
use crate::multicluster::auth::token_secrets::SHARED;
use crate::settings::Settings;

/// How long the operator, if it still runs, may take to end its sessions.
const TERMINATION_TIMEOUT: Duration = Duration::from_secs(30);
const POLL_INTERVAL: Duration = Duration::from_millis(500);

/// Removes the API and ends all sessions. It is idempotent, and needs no running operator.
pub async fn uninstall() -> Result<()> {
    let config = kube::Config::infer()
        .await
        .map_err(|error| Error::NoCluster(Box::new(error)))?;
    let client = Client::try_from(config).action("be reached")?;
    remove_api(&client).await?;
    // Parents first, because they end their children in other clusters.
    end_sessions::<MirrordMultiClusterSession>(&client).await?;
    end_sessions::<MirrordClusterSession>(&client).await?;
    remove_tokens(&client).await
}

/// Removes the tokens of an older operator, which are not part of the chart. The chart removes the others.
async fn remove_tokens(client: &Client) -> Result<()> {
    let secrets: Api<Secret> = Api::default_namespaced(client.clone());
    match secrets.delete(SHARED, &DeleteParams::default()).await {
        // Without member clusters, there is no such Secret and no permission to delete it.
        Err(kube::Error::Api(status)) if matches!(status.code, 403 | 404) => Ok(()),
        other => other
            .map(drop)
            .action(format!("remove the Secret {SHARED}")),
    }
}

async fn remove_api(client: &Client) -> Result<()> {
    let services: Api<APIService> = Api::all(client.clone());
    let name = Settings::API_SERVICE;
    match services.delete(name, &DeleteParams::default()).await {
        Ok(_) => tracing::info!(name, "APIService deleted"),
        Err(kube::Error::Api(status)) if status.code == 404 => {}
        Err(error) => return Err(error).action(format!("remove the APIService {name}")),
    }
    Ok(())
}

async fn end_sessions<Object>(client: &Client) -> Result<()>
where
    Object: Resource<DynamicType = ()> + Clone + std::fmt::Debug + DeserializeOwned,
{
    let sessions: Api<Object> = Api::all(client.clone());
    let began = Instant::now();
    loop {
        let remaining = match sessions.list(&ListParams::default()).await {
            Ok(list) => list.items,
            // The custom resource is deleted already, or this operator does not use it.
            Err(kube::Error::Api(status)) if matches!(status.code, 403 | 404) => return Ok(()),
            Err(error) => return Err(error).action("list sessions"),
        };
        if remaining.is_empty() {
            return Ok(());
        }
        let has_timed_out = began.elapsed() > TERMINATION_TIMEOUT;
        for session in remaining {
            let name = session.name_any();
            if session.meta().deletion_timestamp.is_none() {
                let deleted = sessions.delete(&name, &DeleteParams::default()).await;
                ignore_not_found(deleted.map(drop)).action(format!("end {name}"))?;
            } else if has_timed_out {
                // The operator does not clean up. Agents end by themselves when their clients do not reconnect.
                tracing::warn!(
                    session = name,
                    "session cleanup timed out, removing finalizers"
                );
                let patch = json!({"metadata": {"finalizers": null}});
                let patched = sessions
                    .patch(&name, &PatchParams::default(), &Patch::Merge(&patch))
                    .await;
                ignore_not_found(patched.map(drop)).action(format!("release {name}"))?;
            }
        }
        sleep(POLL_INTERVAL).await;
    }
}

fn ignore_not_found(result: Result<(), kube::Error>) -> Result<(), kube::Error> {
    match result {
        Err(kube::Error::Api(status)) if status.code == 404 => Ok(()),
        other => other,
    }
}
