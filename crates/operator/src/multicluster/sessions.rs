//! The MultiClusterSessionManager: the controller of sessions over several clusters. It runs in the leader of the Primary's
//! replicas.
//!
//! Each reconciliation has the same steps as in the controller for one cluster: *observe* the children, *plan* what to do,
//! *apply* the plan, *report* the result in the parent's status. The list of children is read from that status, never from
//! memory: a child is recorded there before it is created. The state of children is watched in their clusters ([`children`]),
//! and each change triggers a reconciliation.

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
use error_chain::error_chain;
use futures_util::StreamExt as _;
use jiff::Timestamp;
use kube::runtime::controller::{Action, Controller};
use kube::runtime::watcher;
use kube::{Api, ResourceExt as _};

use self::children::Children;
use self::plan::{Observed, plan};
use crate::Shared;
use crate::error::Error;

const RETRY_DELAY: Duration = Duration::from_secs(2);

/// The context of a reconciliation.
struct Context {
    shared: Arc<Shared>,
    children: Arc<Children>,
}

/// Runs the controller until it is dropped.
pub(crate) async fn run(shared: &Arc<Shared>) {
    let Some(members) = &shared.members else {
        return std::future::pending().await;
    };
    let (children, watching) = Children::start(shared, members);
    let changes = children.changes();
    let context = Arc::new(Context {
        shared: Arc::clone(shared),
        children,
    });
    let parents: Api<MirrordMultiClusterSession> = Api::all(shared.client.clone());
    let reconciling = Controller::new(parents, watcher::Config::default())
        .reconcile_all_on(changes)
        .run(reconcile, requeue_after_error, context)
        .for_each(async |_| {});
    tokio::join!(reconciling, watching);
}

async fn reconcile(
    parent: Arc<MirrordMultiClusterSession>,
    context: Arc<Context>,
) -> Result<Action, Error> {
    let shared = &context.shared;
    let Some(members) = &shared.members else {
        return Ok(Action::await_change());
    };
    let status = parent.status.as_ref();
    if status.is_some_and(|status| status.connected_timestamp.is_some()) {
        shared.users.record(&parent.spec.owner);
    }
    let observed = observe(&context, &parent);
    let plan = plan(&parent, &observed, &members.settings, Timestamp::now());
    let requeue_after = plan.requeue_after;
    apply::apply(shared, members, &parent, plan).await?;
    Ok(Action::requeue(requeue_after))
}

fn observe(context: &Context, parent: &MirrordMultiClusterSession) -> BTreeMap<String, Observed> {
    let clusters = parent.spec.clusters.iter();
    let observed = clusters.map(|cluster| {
        let child = child_name(&parent.name_any(), cluster);
        let observed = context.children.observe(&context.shared, cluster, &child);
        (cluster.clone(), observed)
    });
    observed.collect()
}

#[expect(clippy::needless_pass_by_value, reason = "the controller's signature")]
fn requeue_after_error(
    parent: Arc<MirrordMultiClusterSession>,
    error: &Error,
    _leading: Arc<Context>,
) -> Action {
    tracing::warn!(
        session = parent.name_any(),
        error = error_chain(error),
        "reconciliation failed"
    );
    Action::requeue(RETRY_DELAY)
}
