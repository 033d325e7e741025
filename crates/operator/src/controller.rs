//! The controller of sessions in this cluster. It runs in the leader.
//!
//! Each reconciliation has the same steps: *validate* the spec, *observe* pods and agents, *plan* what to do, *apply* the
//! plan, *report* the result in the object's status. Only observe, apply and report access the cluster. The controller has no
//! state between two reconciliations, so any replica can run the next one.

mod apply;
mod observe;
mod observed;
mod plan;
mod service_pods;
mod validate;

use std::sync::Arc;
use std::time::Duration;

use api::MirrordClusterSession;
use api::session::SessionPhase;
use cluster::Cluster;
use error_chain::error_chain;
use futures_util::stream::{iter, select};
use futures_util::{FutureExt as _, StreamExt as _};
use http::StatusCode;
use jiff::Timestamp;
use k8s_openapi::api::core::v1::Pod;
use kube::runtime::controller::{
    Action, Config, ReconcileRequest, applier, trigger_self, trigger_with,
};
use kube::runtime::reflector::{ObjectRef, store};
use kube::runtime::{PredicateConfig, WatchStreamExt as _, reflector, watcher};
use kube::{Api, ResourceExt as _};

use self::observed::Observed;
pub(crate) use self::plan::plan_close;
use self::plan::{Plan, plan, plan_deletion, plan_denied, requeue_delay};
use self::validate::Invalid;
pub(crate) use self::validate::ValidatedSpec;
pub(crate) use self::validate::{agent_mode, workload};
use crate::Shared;
use crate::background::catch_panic;
use crate::cache::ChangeHash as _;
use crate::connect::{check_local, check_targetless};
use crate::error::Error;
use crate::multicluster::member_clusters::connect::LocalSession;
use crate::multicluster::sessions::assertion;

/// The requeue delay after a failure of the cluster. An invalid spec is no failure.
const RETRY_DELAY: Duration = Duration::from_secs(2);

/// Runs the controller until it is dropped.
pub(crate) async fn run(shared: Arc<Shared>) {
    let sessions: Api<MirrordClusterSession> = Api::all(shared.client.clone());
    let pods: Api<Pod> = Api::all(shared.client.clone());
    let mapper_shared = Arc::clone(&shared);
    // A change of a pod requeues the sessions of its namespace; a change of a pod that contains agents requeues all sessions.
    let sessions_of_pod = move |pod: Pod| {
        let namespace = pod.namespace().unwrap_or_default();
        let labels = pod.labels();
        let has_agents = labels.contains_key(observe::SESSION_LABEL)
            || labels
                .get("app.kubernetes.io/component")
                .map(String::as_str)
                == Some("node-agent");
        let sessions = mapper_shared.sessions.all().into_iter();
        let affected: Vec<_> = sessions
            .filter(move |session| has_agents || session.spec.namespace == namespace)
            .map(|session| ObjectRef::new(&session.name_any()))
            .collect();
        if !affected.is_empty() {
            mapper_shared.nodes.invalidate();
        }
        affected
    };
    let (stored, writer) = store();
    let changed_sessions = reflector(writer, watcher(sessions, watcher::Config::default()))
        .default_backoff()
        .applied_objects()
        // Heartbeats are written every few seconds. They trigger nothing; the periodic requeue checks them.
        .predicate_filter(
            |session: &MirrordClusterSession| Some(session.change_hash()),
            PredicateConfig::default(),
        );
    let pods = watcher(pods, watcher::Config::default())
        .default_backoff()
        .touched_objects();
    let by_pods = trigger_with(pods, sessions_of_pod);
    let all_sessions = stored.clone();
    let by_policies = shared.policies.changes().flat_map(move |()| {
        let all = all_sessions.state().into_iter();
        iter(all.map(|session| Ok(ReconcileRequest::from(ObjectRef::from_obj(&*session)))))
    });
    let requests = select(
        select(trigger_self(changed_sessions, ()), by_pods),
        by_policies,
    );
    // A panic about one session must not stop the others, nor end one leader after another.
    let reconcile =
        |session, shared| Box::pin(catch_panic(reconcile(session, shared)).map(|result| result?));
    applier(
        reconcile,
        requeue_after_error,
        shared,
        stored,
        requests,
        Config::default(),
    )
    .for_each(async |_| {})
    .await;
}

async fn reconcile(
    session: Arc<MirrordClusterSession>,
    shared: Arc<Shared>,
) -> Result<Action, Error> {
    let now = Timestamp::now();
    let status = session.status.as_ref();
    if status.is_some_and(|status| status.connected_timestamp.is_some()) {
        shared.users.record(&session.spec.owner);
    }
    let spec = validate::validate(&session);
    let plan = if session.metadata.deletion_timestamp.is_some() {
        let remaining = match &spec {
            Ok(spec) => observe::remaining_agents(&shared, spec).await?,
            Err(_) => Vec::new(),
        };
        plan_deletion(&session, &remaining, now)
    } else if let Some(close) = plan_close(&session, &shared.settings.session, now) {
        // Before the cluster is accessed, so that no failure there can delay the end of a session.
        close
    } else {
        reconcile_active(&shared, &session, spec, now).await?
    };
    apply::report(&shared, &session, &plan).await?;
    let settings = &shared.settings.session;
    Ok(Action::requeue(requeue_delay(
        &session, &plan, settings, now,
    )))
}

/// Reconciles a session that has not ended.
async fn reconcile_active(
    shared: &Shared,
    session: &MirrordClusterSession,
    spec: Result<ValidatedSpec, Invalid>,
    now: Timestamp,
) -> Result<Plan, Error> {
    let mode = shared.settings.agent_mode;
    let spec = match spec {
        Ok(spec) => spec,
        Err(invalid) => {
            let missing = Observed::missing(invalid.to_string());
            return Ok(plan(session, None, &missing, mode, now));
        }
    };
    if is_new(session)
        && let Err(refusal) = check_targetless(spec.target.as_ref(), &shared.settings)
    {
        // A Primary creates sessions of users that this operator did not check.
        let missing = Observed::missing(refusal.message);
        return Ok(plan(session, None, &missing, mode, now));
    }
    // Each time: the configuration may have changed. Which clusters a session of this Primary has is decided with its parent: a
    // replica that is being replaced may still have an older configuration.
    if !assertion::is_coordinated_here(shared, session)
        && let Err(refusal) = check_local(shared, LocalSession::of(session))
    {
        return Ok(plan_denied(session, refusal.message, now));
    }
    // Each time: this cluster's rules and the user that a Primary asserts may have changed.
    if let Err(refusal) = assertion::authorize_child(shared, session).await {
        return match refusal.code {
            StatusCode::FORBIDDEN => Ok(plan_denied(session, refusal.message, now)),
            _ => Err(Error::AccessReview(refusal.message)),
        };
    }
    let cluster = Cluster::new(shared.client.clone(), session.spec.namespace.clone());
    let mut observed = observe::observe(shared, &cluster, session, &spec).await?;
    let first = plan(session, Some(&spec), &observed, mode, now);
    if first.start.is_empty() && first.regrant.is_empty() {
        return Ok(first);
    }
    apply::start(shared, &cluster, &spec, &first, &mut observed).await;
    apply::regrant(shared, &spec, &first, &mut observed).await;
    // The report includes the results of the first plan.
    Ok(plan(session, Some(&spec), &observed, mode, now))
}

/// Whether no agent of the session has become ready yet.
fn is_new(session: &MirrordClusterSession) -> bool {
    let phase = session.status.as_ref().and_then(|status| status.phase);
    matches!(phase, None | Some(SessionPhase::Pending))
}

#[expect(clippy::needless_pass_by_value, reason = "the controller's signature")]
fn requeue_after_error(
    session: Arc<MirrordClusterSession>,
    error: &Error,
    _shared: Arc<Shared>,
) -> Action {
    tracing::warn!(
        session = session.name_any(),
        error = error_chain(error),
        "reconciliation failed"
    );
    Action::requeue(RETRY_DELAY)
}

#[cfg(test)]
mod tests;
