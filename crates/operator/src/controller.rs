//! Drives sessions from their first moment to their last. One replica does it at a time.
//!
//! Each look at a session goes through the same steps, of which only the first and the last two speak with the cluster:
//! *validate* what is asked for, *observe* what there is, *plan* what to do, *apply* it, *report* it in the object's status.
//! Nothing is remembered between two looks, so any replica can make the next one.

mod apply;
mod observe;
mod plan;
mod validate;

use std::sync::Arc;
use std::time::Duration;

use api::MirrordClusterSession;
use cluster::{AgentSettings, Cluster};
use futures_util::StreamExt as _;
use jiff::Timestamp;
use k8s_openapi::api::core::v1::Pod;
use kube::runtime::controller::{Action, Controller};
use kube::runtime::reflector::ObjectRef;
use kube::runtime::watcher;
use kube::{Api, ResourceExt as _};

use self::plan::{Observed, plan};
pub(crate) use self::validate::workload;
use crate::Shared;
use crate::error::{Error, chain};

/// After a failure of the cluster. What is asked for wrongly is no failure.
const AFTER_A_FAILURE: Duration = Duration::from_secs(2);

/// Runs until it is dropped.
pub(crate) async fn run(shared: Arc<Shared>) {
    let sessions: Api<MirrordClusterSession> = Api::all(shared.client.clone());
    let pods: Api<Pod> = Api::all(shared.client.clone());
    let cache = shared.sessions.clone();
    // A pod that comes or goes is looked at by the sessions of its namespace.
    let concerned = move |pod: Pod| {
        let namespace = pod.namespace().unwrap_or_default();
        let sessions = cache.all().into_iter();
        sessions
            .filter(move |session| session.spec.namespace == namespace)
            .map(|session| ObjectRef::new(&session.name_any()))
            .collect::<Vec<_>>()
    };
    Controller::new(sessions, watcher::Config::default())
        .watches(pods, watcher::Config::default(), concerned)
        .run(look, after_failure, shared)
        .for_each(async |_| {})
        .await;
}

async fn look(session: Arc<MirrordClusterSession>, shared: Arc<Shared>) -> Result<Action, Error> {
    let now = Timestamp::now();
    let cluster = Cluster::new(shared.client.clone(), session.spec.namespace.clone());
    let wanted = validate::validate(&session);
    let observed = match &wanted {
        Ok(wanted) if !wanted.is_deleted => observe::observe(&cluster, wanted).await?,
        Ok(_) => Observed::default(),
        Err(invalid) => Observed::nothing(invalid.to_string()),
    };
    let settings = &shared.settings.session;
    let plan = plan(&session, wanted.as_ref().ok(), &observed, settings, now);
    if let Ok(wanted) = &wanted {
        let agents = AgentSettings {
            resume_window: wanted.resume_window,
            ..shared.settings.agent.clone()
        };
        apply::start(&shared, &cluster, wanted, &agents, &plan).await;
    }
    apply::report(&shared, &session, &plan).await?;
    Ok(Action::requeue(plan.look_again))
}

#[expect(clippy::needless_pass_by_value, reason = "the controller's signature")]
fn after_failure(
    session: Arc<MirrordClusterSession>,
    error: &Error,
    _shared: Arc<Shared>,
) -> Action {
    tracing::warn!(
        session = session.name_any(),
        error = chain(error),
        "a session could not be looked after"
    );
    Action::requeue(AFTER_A_FAILURE)
}
