//! The MultiClusterSessionManager: drives sessions over several clusters from their first moment to their last. The leader
//! of the Primary's replicas does it.
//!
//! Each look goes through the same steps as those of the controller for one cluster: *observe* the children, *plan* what to
//! do, *apply* it, *report* it in the parent's status. Which children there are is read from that status, never from
//! memory: it is written there before they are made. How they are is told by their clusters ([`children`]), and each change
//! is a reason to look.

mod apply;
pub(crate) mod assertion;
pub(crate) mod attach;
mod children;
mod plan;

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use api::MirrordMultiClusterSession;
use api::multicluster::child_name;
use futures_util::StreamExt as _;
use jiff::Timestamp;
use kube::runtime::controller::{Action, Controller};
use kube::runtime::watcher;
use kube::{Api, ResourceExt as _};

use self::children::Children;
use self::plan::{Observed, plan};
use crate::Shared;
use crate::error::{Error, chain};

const AFTER_A_FAILURE: Duration = Duration::from_secs(2);

/// What a look needs.
struct Leading {
    shared: Arc<Shared>,
    children: Arc<Children>,
}

/// Runs until it is dropped.
pub(crate) async fn run(shared: &Arc<Shared>) {
    let Some(envoy) = &shared.envoy else {
        return std::future::pending().await;
    };
    let (children, following) = Children::follow(shared, envoy);
    let changes = children.changes();
    let leading = Arc::new(Leading {
        shared: Arc::clone(shared),
        children,
    });
    let parents: Api<MirrordMultiClusterSession> = Api::all(shared.client.clone());
    let looking = Controller::new(parents, watcher::Config::default())
        .reconcile_all_on(changes)
        .run(look, after_failure, leading)
        .for_each(async |_| {});
    tokio::join!(looking, following);
}

async fn look(
    parent: Arc<MirrordMultiClusterSession>,
    leading: Arc<Leading>,
) -> Result<Action, Error> {
    let shared = &leading.shared;
    let Some(envoy) = &shared.envoy else {
        return Ok(Action::await_change());
    };
    let status = parent.status.as_ref();
    if status.is_some_and(|status| status.connected_timestamp.is_some()) {
        shared.users.saw(&parent.spec.owner);
    }
    let observed = observe(&leading, &parent);
    let settings = &shared.settings.session;
    let plan = plan(&parent, &observed, settings, Timestamp::now());
    apply::apply(shared, envoy, &parent, &plan).await?;
    Ok(Action::requeue(plan.look_again))
}

fn observe(leading: &Leading, parent: &MirrordMultiClusterSession) -> BTreeMap<String, Observed> {
    let clusters = parent.spec.clusters.iter();
    let observed = clusters.map(|cluster| {
        let child = child_name(&parent.name_any(), cluster);
        let observed = leading.children.observe(&leading.shared, cluster, &child);
        (cluster.clone(), observed)
    });
    observed.collect()
}

#[expect(clippy::needless_pass_by_value, reason = "the controller's signature")]
fn after_failure(
    parent: Arc<MirrordMultiClusterSession>,
    error: &Error,
    _leading: Arc<Leading>,
) -> Action {
    tracing::warn!(
        session = parent.name_any(),
        error = chain(error),
        "a session over several clusters could not be looked after"
    );
    Action::requeue(AFTER_A_FAILURE)
}
