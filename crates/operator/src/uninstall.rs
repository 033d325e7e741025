//! What must happen before an operator is removed: its API goes, then its sessions.

use std::time::Duration;

use api::{MirrordClusterSession, MirrordMultiClusterSession};
use k8s_openapi::api::core::v1::Secret;
use k8s_openapi::kube_aggregator::pkg::apis::apiregistration::v1::APIService;
use kube::api::{DeleteParams, ListParams, Patch, PatchParams};
use kube::{Api, Client, Resource, ResourceExt as _};
use serde::de::DeserializeOwned;
use serde_json::json;
use tokio::time::{Instant, sleep};

use crate::error::{Doing as _, Error, Result};
use crate::multicluster::auth::bearer::TOKENS;
use crate::settings::Settings;

/// How long the operator, if it still runs, may take to end its sessions.
const PATIENCE: Duration = Duration::from_secs(30);
const BETWEEN_LOOKS: Duration = Duration::from_millis(500);

/// Removes the API and ends all sessions. It can be done again, and works with no operator there.
pub async fn uninstall() -> Result<()> {
    let config = kube::Config::infer()
        .await
        .map_err(|error| Error::NoCluster(Box::new(error)))?;
    let client = Client::try_from(config).doing("be reached")?;
    remove_api(&client).await?;
    // Parents first: they end their children in other clusters.
    end_sessions::<MirrordMultiClusterSession>(&client).await?;
    end_sessions::<MirrordClusterSession>(&client).await?;
    remove_tokens(&client).await
}

/// The tokens for other clusters, which no chart knows of.
async fn remove_tokens(client: &Client) -> Result<()> {
    let secrets: Api<Secret> = Api::default_namespaced(client.clone());
    match secrets.delete(TOKENS, &DeleteParams::default()).await {
        // Without other clusters there are none, and no right to delete them.
        Err(kube::Error::Api(status)) if matches!(status.code, 403 | 404) => Ok(()),
        other => other.map(drop).doing(format!("remove the Secret {TOKENS}")),
    }
}

async fn remove_api(client: &Client) -> Result<()> {
    let services: Api<APIService> = Api::all(client.clone());
    let name = Settings::API_SERVICE;
    match services.delete(name, &DeleteParams::default()).await {
        Ok(_) => tracing::info!(name, "the API is removed"),
        Err(kube::Error::Api(status)) if status.code == 404 => {}
        Err(error) => return Err(error).doing(format!("remove the APIService {name}")),
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
        let left = match sessions.list(&ListParams::default()).await {
            Ok(list) => list.items,
            // The kind itself is gone already, or this operator has none of it.
            Err(kube::Error::Api(status)) if matches!(status.code, 403 | 404) => return Ok(()),
            Err(error) => return Err(error).doing("list sessions"),
        };
        if left.is_empty() {
            return Ok(());
        }
        let nobody_does_it = began.elapsed() > PATIENCE;
        for session in left {
            let name = session.name_any();
            if session.meta().deletion_timestamp.is_none() {
                let deleted = sessions.delete(&name, &DeleteParams::default()).await;
                gone_is_fine(deleted.map(drop)).doing(format!("end {name}"))?;
            } else if nobody_does_it {
                tracing::warn!(
                    name,
                    "the operator does not clean up; agents end when their clients stay away"
                );
                let patch = json!({"metadata": {"finalizers": null}});
                let patched = sessions
                    .patch(&name, &PatchParams::default(), &Patch::Merge(&patch))
                    .await;
                gone_is_fine(patched.map(drop)).doing(format!("release {name}"))?;
            }
        }
        sleep(BETWEEN_LOOKS).await;
    }
}

fn gone_is_fine(result: Result<(), kube::Error>) -> Result<(), kube::Error> {
    match result {
        Err(kube::Error::Api(status)) if status.code == 404 => Ok(()),
        other => other,
    }
}
