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
use api::session::SessionPhase;
use cluster::Cluster;
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

pub(crate) use self::plan::closing;
use self::plan::{Observed, Plan, ending, plan};
use self::validate::Invalid;
pub(crate) use self::validate::Wanted;
pub(crate) use self::validate::{agent_mode, workload};
use crate::Shared;
use crate::background::caught;
use crate::cache::Notable as _;
use crate::error::{Error, chain};
use crate::multicluster::sessions::assertion;

/// After a failure of the cluster. What is asked for wrongly is no failure.
const AFTER_A_FAILURE: Duration = Duration::from_secs(2);

/// Runs until it is dropped.
pub(crate) async fn run(shared: Arc<Shared>) {
    let sessions: Api<MirrordClusterSession> = Api::all(shared.client.clone());
    let pods: Api<Pod> = Api::all(shared.client.clone());
    let seen_by = Arc::clone(&shared);
    // A pod that comes or goes is looked at by the sessions of its namespace, and one in which agents are by all.
    let concerned = move |pod: Pod| {
        let namespace = pod.namespace().unwrap_or_default();
        let labels = pod.labels();
        let has_agents = labels.contains_key(observe::SESSION_LABEL)
            || labels
                .get("app.kubernetes.io/component")
                .map(String::as_str)
                == Some("node-agent");
        let sessions = seen_by.sessions.all().into_iter();
        let concerned: Vec<_> = sessions
            .filter(move |session| has_agents || session.spec.namespace == namespace)
            .map(|session| ObjectRef::new(&session.name_any()))
            .collect();
        if !concerned.is_empty() {
            seen_by.nodes.forget();
        }
        concerned
    };
    let (stored, writer) = store();
    let followed = reflector(writer, watcher(sessions, watcher::Config::default()))
        .default_backoff()
        .applied_objects()
        // That the client is there is written down every few seconds, and is looked at by the clock.
        .predicate_filter(
            |session: &MirrordClusterSession| Some(session.note()),
            PredicateConfig::default(),
        );
    let pods = watcher(pods, watcher::Config::default())
        .default_backoff()
        .touched_objects();
    let by_pods = trigger_with(pods, concerned);
    let known = stored.clone();
    let by_policies = shared.policies.changes().flat_map(move |()| {
        let all = known.state().into_iter();
        iter(all.map(|session| Ok(ReconcileRequest::from(ObjectRef::from_obj(&*session)))))
    });
    let requests = select(select(trigger_self(followed, ()), by_pods), by_policies);
    // A mistake about one session is not one about all others, nor does it come again with each new leader.
    let look = |session, shared| Box::pin(caught(look(session, shared)).map(|looked| looked?));
    applier(
        look,
        after_failure,
        shared,
        stored,
        requests,
        Config::default(),
    )
    .for_each(async |_| {})
    .await;
}

async fn look(session: Arc<MirrordClusterSession>, shared: Arc<Shared>) -> Result<Action, Error> {
    let now = Timestamp::now();
    let status = session.status.as_ref();
    if status.is_some_and(|status| status.connected_timestamp.is_some()) {
        shared.users.saw(&session.spec.owner);
    }
    let wanted = validate::validate(&session);
    let plan = if session.metadata.deletion_timestamp.is_some() {
        let left = match &wanted {
            Ok(wanted) => observe::left(&shared, wanted).await?,
            Err(_) => Vec::new(),
        };
        ending(&session, &left, now)
    } else if let Some(closing) = closing(&session, &shared.settings.session, now) {
        // Before anything is asked of the cluster, so that nothing there can keep a session from its end.
        closing
    } else {
        going_on(&shared, &session, wanted, now).await?
    };
    apply::report(&shared, &session, &plan).await?;
    Ok(Action::requeue(plan.look_again))
}

async fn going_on(
    shared: &Shared,
    session: &MirrordClusterSession,
    wanted: Result<Wanted, Invalid>,
    now: Timestamp,
) -> Result<Plan, Error> {
    let mode = shared.settings.agent_mode;
    let wanted = match wanted {
        Ok(wanted) => wanted,
        Err(invalid) => {
            let nothing = Observed::nothing(invalid.to_string());
            return Ok(plan(session, None, &nothing, mode, now));
        }
    };
    if is_new(session)
        && let Err(refusal) = assertion::judge(shared, session).await
    {
        return match refusal.code {
            StatusCode::FORBIDDEN => {
                let nothing = Observed::nothing(refusal.message);
                Ok(plan(session, None, &nothing, mode, now))
            }
            _ => Err(Error::NotJudged(refusal.message)),
        };
    }
    let cluster = Cluster::new(shared.client.clone(), session.spec.namespace.clone());
    let mut observed = observe::observe(shared, &cluster, &wanted).await?;
    let first = plan(session, Some(&wanted), &observed, mode, now);
    if first.start.is_empty() && first.regrant.is_empty() {
        return Ok(first);
    }
    apply::start(shared, &cluster, &wanted, &first, &mut observed).await;
    apply::regrant(shared, &wanted, &first, &mut observed).await;
    // What came of it is part of what is reported.
    Ok(plan(session, Some(&wanted), &observed, mode, now))
}

/// Before anything of it has been started for sure.
fn is_new(session: &MirrordClusterSession) -> bool {
    let phase = session.status.as_ref().and_then(|status| status.phase);
    matches!(phase, None | Some(SessionPhase::Pending))
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
