//! Watches the children in all clusters, in the leader.

use std::sync::Arc;
use std::time::Duration;

use api::MirrordClusterSession;
use api::multicluster::PARENT_LABEL;
use error_chain::error_chain;
use futures_util::{Stream, StreamExt as _};
use kube::runtime::reflector::{ObjectRef, Store, store};
use kube::runtime::watcher;
use kube::{Api, Client};
use parking_lot::Mutex;
use tokio::sync::watch;
use tokio::time::sleep;

use self::budget::{Budget, without_details};
use super::RETRY_DELAY;
use super::plan::Observed;
use crate::Shared;
use crate::multicluster::bounds;
use crate::multicluster::member_client::{MemberAccess, MemberClient, MemberHealth};
use crate::multicluster::member_clusters::MemberClusters;
use crate::multicluster::member_clusters::membership::{Membership, for_each_member};

mod budget;

/// The number of children in one response. With many pods, each can have tens of kilobytes.
const PAGE_SIZE: u32 = 50;
/// The delay before the children of a member that lists too many are listed again.
const OVERLOAD_DELAY: Duration = Duration::from_secs(60);

/// The children in all clusters. It lives as long as the replica leads.
pub(super) struct Children {
    membership: watch::Receiver<Arc<Membership>>,
    /// Those of removed members stay until the next member is added.
    members: Mutex<Vec<Arc<MemberChildren>>>,
    /// The number of changes, which trigger reconciliations.
    changes: watch::Sender<u64>,
}

struct MemberChildren {
    client: Arc<MemberClient>,
    store: Store<MirrordClusterSession>,
    /// Written by the watch of the cluster.
    state: watch::Sender<WatchState>,
}

#[derive(Clone, Debug, Default, PartialEq, Eq)]
enum WatchState {
    /// The store is incomplete: a child that is not in it may exist.
    #[default]
    Starting,
    /// The store is complete: a child that is not in it does not exist.
    Running,
    /// The watch has failed, with this error.
    Failing(String),
}

impl Children {
    /// Starts to watch all clusters. The returned future runs the watches and never ends.
    pub(super) fn start(
        shared: &Arc<Shared>,
        clusters: &MemberClusters,
    ) -> (Arc<Self>, impl Future<Output = ()> + use<>) {
        let children = Arc::new(Self {
            membership: clusters.membership_changes(),
            members: Mutex::default(),
            changes: watch::Sender::default(),
        });
        let (watched, shared) = (Arc::clone(&children), Arc::clone(shared));
        let watching = async move {
            let membership = watched.membership.clone();
            let members = for_each_member(membership, async |client| watched.watch(client).await);
            tokio::join!(
                members,
                watched.watch_membership(),
                watch_local_children(&shared, &watched.changes)
            );
        };
        (children, watching)
    }

    /// Watches the children in one member, as long as it is configured.
    async fn watch(&self, client: Arc<MemberClient>) {
        let (reader, writer) = store();
        let member = Arc::new(MemberChildren {
            client,
            store: reader,
            state: watch::Sender::default(),
        });
        {
            let membership = self.membership.borrow();
            let mut members = self.members.lock();
            members.retain(|member| membership.uses(&member.client));
            members.push(Arc::clone(&member));
        }
        member.watch(writer, &self.changes).await;
    }

    /// A member that is not configured any more changes the plan.
    async fn watch_membership(&self) {
        let mut membership = self.membership.clone();
        while membership.changed().await.is_ok() {
            notify(&self.changes);
        }
    }

    /// An item for each change, of any session.
    pub(super) fn changes(&self) -> impl Stream<Item = ()> + Send + use<> {
        let changes = self.changes.subscribe();
        futures_util::stream::unfold(changes, async |mut changes| {
            changes.changed().await.ok()?;
            Some(((), changes))
        })
    }

    pub(super) fn observe(&self, shared: &Shared, cluster: &str, name: &str) -> Observed {
        let membership = Arc::clone(&self.membership.borrow());
        if membership.clusters.name == cluster {
            let is_complete = shared.sessions.is_filled();
            return observed(shared.sessions.get(name), is_complete);
        }
        let Some(client) = membership.member_client(cluster) else {
            return Observed::Unconfigured;
        };
        let members = self.members.lock();
        let mut members = members.iter();
        match members.find(|member| Arc::ptr_eq(&member.client, client)) {
            Some(member) => member.observe(name),
            None => Observed::Unknown,
        }
    }
}

fn observed(child: Option<Arc<MirrordClusterSession>>, is_complete: bool) -> Observed {
    match child {
        Some(child) => Observed::Present(Box::new((*child).clone())),
        None if is_complete => Observed::Missing,
        None => Observed::Unknown,
    }
}

impl MemberChildren {
    fn observe(&self, name: &str) -> Observed {
        if let Some(observed) =
            unreachable(&self.client.access.borrow(), &self.client.health.borrow())
        {
            return observed;
        }
        match &*self.state.borrow() {
            WatchState::Starting => Observed::Unknown,
            WatchState::Running => observed(self.store.get(&ObjectRef::new(name)), true),
            WatchState::Failing(error) => Observed::Unreachable(error.clone()),
        }
    }

    /// Watches the children with the current credential. Never returns. After an outage the watch starts again, because the
    /// store may be outdated.
    async fn watch(
        &self,
        mut writer: kube::runtime::reflector::store::Writer<MirrordClusterSession>,
        changes: &watch::Sender<u64>,
    ) {
        let mut access = self.client.access.subscribe();
        let mut health = self.client.health.subscribe();
        loop {
            let client = access.borrow_and_update().client.clone();
            let is_healthy = is_healthy(&health.borrow_and_update());
            let watching = async {
                match client.filter(|_| is_healthy) {
                    Some(client) => self.watch_with(client, &mut writer, changes).await,
                    None => std::future::pending().await,
                }
            };
            tokio::select! {
                // The state stays `Failing` until the watch runs again.
                () = watching => continue,
                changed = access.changed() => if changed.is_err() { return },
                changed = health.wait_for(|health| self::is_healthy(health) != is_healthy) => {
                    if changed.is_err() { return }
                }
            }
            self.state.send_replace(WatchState::Starting);
            notify(changes);
        }
    }

    /// Watches the children until the first failure, and returns a moment after it. A watcher that recovers does not report
    /// when the store is complete again, so the caller starts a new one.
    async fn watch_with(
        &self,
        client: Client,
        writer: &mut kube::runtime::reflector::store::Writer<MirrordClusterSession>,
        changes: &watch::Sender<u64>,
    ) {
        let children: Api<MirrordClusterSession> = Api::all(client);
        let config = watcher::Config::default()
            .labels(PARENT_LABEL)
            .page_size(PAGE_SIZE);
        let mut budget = Budget::default();
        let mut events = std::pin::pin!(watcher(children, config));
        while let Some(event) = events.next().await {
            match event {
                Ok(event) => {
                    let event = without_details(event);
                    if let Err(error) = budget.count(&event) {
                        // What was kept is dropped, also of a list that is not complete.
                        writer.apply_watcher_event(&watcher::Event::Init);
                        writer.apply_watcher_event(&watcher::Event::InitDone);
                        self.fail(&error.to_string(), changes);
                        sleep(OVERLOAD_DELAY).await;
                        return;
                    }
                    let is_relevant = self.is_relevant(&event);
                    writer.apply_watcher_event(&event);
                    let is_complete = matches!(event, watcher::Event::InitDone);
                    if is_complete {
                        self.state.send_replace(WatchState::Running);
                    }
                    if is_relevant || is_complete {
                        notify(changes);
                    }
                }
                Err(error) => {
                    self.fail(&bounds::text(&error_chain(&error)), changes);
                    sleep(RETRY_DELAY).await;
                    return;
                }
            }
        }
    }

    fn fail(&self, error: &str, changes: &watch::Sender<u64>) {
        let failing = WatchState::Failing(error.to_owned());
        if self.state.send_replace(failing.clone()) != failing {
            let cluster = &self.client.member.name;
            tracing::warn!(cluster, error, "watch failed");
        }
        notify(changes);
    }

    /// Whether an event can change the plan. A heartbeat cannot.
    fn is_relevant(&self, event: &watcher::Event<MirrordClusterSession>) -> bool {
        match event {
            watcher::Event::Apply(child) => {
                let before = self.store.get(&ObjectRef::from_obj(child));
                before.is_none_or(|before| relevant_state(&before) != relevant_state(child))
            }
            watcher::Event::Delete(_) => true,
            _ => false,
        }
    }
}

/// The fields of a child that the plan depends on.
fn relevant_state(child: &MirrordClusterSession) -> impl PartialEq + '_ {
    let status = child.status.as_ref();
    (
        child.metadata.deletion_timestamp.is_some(),
        status.and_then(|status| status.phase),
        status.and_then(|status| status.message.as_deref()),
        status.map(|status| (status.pods.as_slice(), status.ports.as_slice())),
    )
}

fn notify(changes: &watch::Sender<u64>) {
    changes.send_modify(|count| *count += 1);
}

/// Watches the children in this cluster, which are in the cache of sessions.
async fn watch_local_children(shared: &Shared, changes: &watch::Sender<u64>) {
    let mut session_changes = shared.sessions.subscribe();
    let mut previous = Vec::new();
    while session_changes.changed().await.is_ok() {
        let mut all = shared.sessions.all();
        all.retain(|session| session.spec.multi_cluster_parent_name.is_some());
        all.sort_unstable_by_key(|child| child.metadata.name.clone());
        let is_same = |(one, other): (&Arc<MirrordClusterSession>, &Arc<MirrordClusterSession>)| {
            one.metadata.uid == other.metadata.uid && relevant_state(one) == relevant_state(other)
        };
        if previous.len() != all.len() || !previous.iter().zip(&all).all(is_same) {
            notify(changes);
        }
        previous = all;
    }
}

fn is_healthy(health: &MemberHealth) -> bool {
    let check = health.check.as_ref();
    check.is_some_and(|check| check.outcome.is_ok())
}

/// The observation for a member without a healthy connection. `None` if the member is healthy.
fn unreachable(access: &MemberAccess, health: &MemberHealth) -> Option<Observed> {
    if let Some(error) = &access.error {
        return Some(Observed::Unreachable(error.to_string()));
    }
    match health.check.as_ref().map(|check| &check.outcome) {
        Some(Err(error)) => Some(Observed::Unreachable(error.clone())),
        None => Some(Observed::Unknown),
        Some(Ok(_)) if access.client.is_none() => Some(Observed::Unknown),
        Some(Ok(_)) => None,
    }
}

#[cfg(test)]
mod tests {
    use api::operator::{MirrordOperatorSpec, MirrordOperatorStatus};
    use api::session::SessionPhase;
    use api::{MirrordClusterSessionSpec, MirrordOperator};
    use jiff::Timestamp;
    use tokio::time::timeout;

    use super::*;
    use crate::multicluster::auth::NoCredential;
    use crate::multicluster::clusters::AuthMethod;
    use crate::multicluster::member_client::HealthCheck;
    use crate::multicluster::stub;

    /// After a restart the store is empty, which must not be mistaken for missing children.
    #[test]
    fn a_child_is_missing_only_if_the_store_is_complete() {
        assert_eq!(observed(None, false), Observed::Unknown);
        assert_eq!(observed(None, true), Observed::Missing);
        let unchecked = unreachable(&MemberAccess::default(), &MemberHealth::default());
        assert_eq!(unchecked, Some(Observed::Unknown));
        let without = MemberAccess {
            error: Some(NoCredential::NoSecret("a".to_owned())),
            ..MemberAccess::default()
        };
        let unhealthy = MemberHealth {
            check: Some(HealthCheck {
                at: Timestamp::UNIX_EPOCH,
                outcome: Err("no route".to_owned()),
            }),
            ..MemberHealth::default()
        };
        for (access, health, expected) in [
            (&without, &MemberHealth::default(), "does not exist"),
            (&MemberAccess::default(), &unhealthy, "no route"),
        ] {
            match unreachable(access, health) {
                Some(Observed::Unreachable(text)) => assert!(text.contains(expected), "{text}"),
                other => panic!("{other:?}"),
            }
        }
    }

    #[test]
    fn heartbeats_trigger_no_reconciliation() {
        let spec = MirrordClusterSessionSpec::default();
        let mut child = MirrordClusterSession::new("mc-1-east", spec);
        child.status = Some(api::MirrordClusterSessionStatus::default());
        let mut heartbeat = child.clone();
        let status = heartbeat.status.as_mut().unwrap();
        status.last_seen_timestamp = Some("2026-01-27T09:22:55Z".to_owned());
        assert!(relevant_state(&child) == relevant_state(&heartbeat));
        let mut ready = child.clone();
        ready.status.as_mut().unwrap().phase = Some(SessionPhase::Ready);
        assert!(relevant_state(&child) != relevant_state(&ready));
    }

    fn healthy() -> MemberHealth {
        let outcome = Ok(Box::new(MirrordOperator::new(
            MirrordOperatorSpec::default(),
            MirrordOperatorStatus::default(),
        )));
        let at = Timestamp::UNIX_EPOCH;
        MemberHealth {
            check: Some(HealthCheck { at, outcome }),
            ..MemberHealth::default()
        }
    }

    /// An API server that resets the first watch and keeps the next ones open.
    fn resetting_the_first_watch() -> Client {
        let mut watches = 0;
        stub::client(move |path| {
            if !path.contains("watch=true") {
                let list = serde_json::json!({
                    "apiVersion": "mirrord.metalbear.co/v1alpha", "kind": "MirrordClusterSessionList",
                    "metadata": {"resourceVersion": "1"}, "items": [],
                });
                return stub::json_response(http::StatusCode::OK, &list);
            }
            watches += 1;
            match watches {
                1 => stub::reset_response(),
                _ => stub::pending_response(),
            }
        })
    }

    #[tokio::test]
    async fn a_watch_restarts_after_a_lost_connection() {
        let client = Arc::new(MemberClient::new(stub::member(AuthMethod::BearerToken)));
        client.access.send_replace(MemberAccess {
            client: Some(resetting_the_first_watch()),
            ..MemberAccess::default()
        });
        client.health.send_replace(healthy());
        let (store, writer) = store();
        let member = MemberChildren {
            client,
            store,
            state: watch::Sender::default(),
        };
        let mut state = member.state.subscribe();
        let recovery = async {
            let is_failing = |state: &WatchState| matches!(state, WatchState::Failing(_));
            state.wait_for(is_failing).await.unwrap();
            assert!(matches!(
                member.observe("mc-1-east"),
                Observed::Unreachable(_)
            ));
            let is_running = |state: &WatchState| *state == WatchState::Running;
            state.wait_for(is_running).await.unwrap();
            assert_eq!(member.observe("mc-1-east"), Observed::Missing);
        };
        let changes = watch::Sender::default();
        tokio::select! {
            () = member.watch(writer, &changes) => panic!("the watch has stopped"),
            recovered = timeout(Duration::from_secs(60), recovery) => {
                recovered.expect("the watch restarts");
            }
        }
    }

    /// A member that lists children without end, a page after the other.
    fn listing_without_end() -> Client {
        let mut pages = 0;
        stub::client(move |_| {
            pages += 1;
            let child = |number: u32| {
                serde_json::json!({
                    "apiVersion": "mirrord.metalbear.co/v1alpha", "kind": "MirrordClusterSession",
                    "metadata": {"name": format!("mc-{pages}-{number}")},
                    "spec": MirrordClusterSessionSpec::default(),
                })
            };
            let list = serde_json::json!({
                "apiVersion": "mirrord.metalbear.co/v1alpha", "kind": "MirrordClusterSessionList",
                "metadata": {"resourceVersion": "1", "continue": "more"},
                "items": (0..500).map(child).collect::<Vec<_>>(),
            });
            stub::json_response(http::StatusCode::OK, &list)
        })
    }

    /// Only this member is affected, and nothing of its list is kept.
    #[tokio::test]
    async fn a_member_that_lists_too_many_children_is_unreachable() {
        let client = Arc::new(MemberClient::new(stub::member(AuthMethod::BearerToken)));
        client.access.send_replace(MemberAccess {
            client: Some(listing_without_end()),
            ..MemberAccess::default()
        });
        client.health.send_replace(healthy());
        let (store, writer) = store();
        let member = MemberChildren {
            client,
            store,
            state: watch::Sender::default(),
        };
        let mut state = member.state.subscribe();
        let is_failing = |state: &WatchState| matches!(state, WatchState::Failing(_));
        let changes = watch::Sender::default();
        tokio::select! {
            () = member.watch(writer, &changes) => panic!("the watch has stopped"),
            failing = timeout(Duration::from_secs(60), state.wait_for(is_failing)) => {
                failing.expect("the list is cut off").unwrap();
            }
        }
        match member.observe("mc-1-1") {
            Observed::Unreachable(error) => assert!(error.contains("more than 10000"), "{error}"),
            other => panic!("{other:?}"),
        }
        assert_eq!(member.store.state().len(), 0);
    }
}
