//! The MultiClusterSessionManager: drives sessions over several clusters from their first moment to their last. The leader
//! of the Primary's replicas does it.
//!
//! Each look goes through the same steps as those of the controller for one cluster: *observe* the children, *plan* what to
//! do, *apply* it, *report* it in the parent's status. Which children there are is read from that status, never from
//! memory: it is written there before they are made.

mod apply;
pub(crate) mod attach;
mod plan;

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use api::multicluster::child_name;
use api::{MirrordClusterSession, MirrordMultiClusterSession};
use futures_util::StreamExt as _;
use futures_util::future::join_all;
use jiff::Timestamp;
use kube::runtime::controller::{Action, Controller};
use kube::runtime::watcher;
use kube::{Api, ResourceExt as _};
use tokio::time::timeout;

use self::plan::{Observed, plan};
use super::envoy::Envoy;
use crate::Shared;
use crate::error::{Error, chain};

const AFTER_A_FAILURE: Duration = Duration::from_secs(2);
/// How long one look waits for one cluster.
const PATIENCE: Duration = Duration::from_secs(5);

/// Runs until it is dropped.
pub(crate) async fn run(shared: &Arc<Shared>) {
    if shared.envoy.is_none() {
        return std::future::pending().await;
    }
    let parents: Api<MirrordMultiClusterSession> = Api::all(shared.client.clone());
    Controller::new(parents, watcher::Config::default())
        .run(look, after_failure, Arc::clone(shared))
        .for_each(async |_| {})
        .await;
}

async fn look(
    parent: Arc<MirrordMultiClusterSession>,
    shared: Arc<Shared>,
) -> Result<Action, Error> {
    let Some(envoy) = &shared.envoy else {
        return Ok(Action::await_change());
    };
    let observed = observe(envoy, &parent).await;
    let plan = plan(
        &parent,
        &observed,
        &shared.settings.session,
        Timestamp::now(),
    );
    apply::apply(&shared, envoy, &parent, &plan).await?;
    Ok(Action::requeue(plan.look_again))
}

/// All clusters are asked at once.
async fn observe(envoy: &Envoy, parent: &MirrordMultiClusterSession) -> BTreeMap<String, Observed> {
    let clusters = parent.spec.clusters.iter();
    let asked = clusters.map(async |cluster| {
        let child = child_name(&parent.name_any(), cluster);
        (cluster.clone(), observe_child(envoy, cluster, &child).await)
    });
    join_all(asked).await.into_iter().collect()
}

async fn observe_child(envoy: &Envoy, cluster: &str, name: &str) -> Observed {
    let client = match envoy.client_of(cluster) {
        Ok(client) => client,
        Err(why) => return Observed::Unreachable(why),
    };
    let children: Api<MirrordClusterSession> = Api::all(client);
    match timeout(PATIENCE, children.get_opt(name)).await {
        Ok(Ok(Some(child))) => Observed::There(Box::new(child)),
        Ok(Ok(None)) => Observed::Missing,
        Ok(Err(error)) => Observed::Unreachable(chain(&error)),
        Err(_) => Observed::Unreachable(format!("no answer within {} s", PATIENCE.as_secs())),
    }
}

#[expect(clippy::needless_pass_by_value, reason = "the controller's signature")]
fn after_failure(
    parent: Arc<MirrordMultiClusterSession>,
    error: &Error,
    _shared: Arc<Shared>,
) -> Action {
    tracing::warn!(
        session = parent.name_any(),
        error = chain(error),
        "a session over several clusters could not be looked after"
    );
    Action::requeue(AFTER_A_FAILURE)
}
