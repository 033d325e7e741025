//! All children of all clusters, as the leader knows them: it is told of each change, and asks nobody.

use std::sync::Arc;

use api::MirrordClusterSession;
use api::multicluster::PARENT_LABEL;
use futures_util::future::join_all;
use futures_util::{Stream, StreamExt as _};
use kube::runtime::reflector::{ObjectRef, Store, store};
use kube::runtime::watcher;
use kube::{Api, Client};
use tokio::sync::watch;
use tokio::time::sleep;

use super::AFTER_A_FAILURE;
use super::plan::Observed;
use crate::Shared;
use crate::error::chain;
use crate::multicluster::envoy::Envoy;
use crate::multicluster::sync::{Access, Health, MemberKeeper};

/// Ends with the leader's work.
pub(super) struct Children {
    members: Vec<MemberChildren>,
    /// From whoever follows a cluster to the controller: something may have to be done.
    bell: watch::Sender<u64>,
}

struct MemberChildren {
    keeper: Arc<MemberKeeper>,
    store: Store<MirrordClusterSession>,
    /// From whoever follows the cluster to whoever looks.
    following: watch::Sender<Following>,
}

#[derive(Clone, Debug, Default, PartialEq, Eq)]
enum Following {
    /// What is not in the copy may be there all the same.
    #[default]
    Beginning,
    /// What is not in the copy is not there.
    Going,
    /// The cluster does not tell, and this is why.
    Failing(String),
}

impl Children {
    /// Begins to follow all clusters. What is returned with it has to be waited for, and never ends.
    pub(super) fn follow(
        shared: &Arc<Shared>,
        envoy: &Envoy,
    ) -> (Arc<Self>, impl Future<Output = ()> + use<>) {
        let mut writers = Vec::new();
        let mut members = Vec::new();
        for keeper in envoy.keepers() {
            let (reader, writer) = store();
            writers.push(writer);
            members.push(MemberChildren {
                keeper: Arc::clone(keeper),
                store: reader,
                following: watch::Sender::default(),
            });
        }
        let children = Arc::new(Self {
            members,
            bell: watch::Sender::default(),
        });
        let (followed, here) = (Arc::clone(&children), Arc::clone(shared));
        let following = async move {
            let each = followed.members.iter().zip(writers);
            let each = each.map(|(member, writer)| member.follow(writer, &followed.bell));
            tokio::join!(join_all(each), follow_here(&here, &followed.bell));
        };
        (children, following)
    }

    /// Rings when something may have to be done, whatever session it is about.
    pub(super) fn changes(&self) -> impl Stream<Item = ()> + Send + use<> {
        let bell = self.bell.subscribe();
        futures_util::stream::unfold(bell, async |mut bell| {
            bell.changed().await.ok()?;
            Some(((), bell))
        })
    }

    pub(super) fn observe(&self, shared: &Shared, cluster: &str, name: &str) -> Observed {
        let is_here =
            shared.envoy.as_ref().map(|envoy| &envoy.clusters.name) == Some(&cluster.to_owned());
        if is_here {
            let is_known = shared.sessions.is_filled();
            return seen(shared.sessions.get(name), is_known);
        }
        let mut members = self.members.iter();
        match members.find(|member| member.keeper.member.name == cluster) {
            Some(member) => member.observe(name),
            None => Observed::Unconfigured,
        }
    }
}

fn seen(child: Option<Arc<MirrordClusterSession>>, is_known: bool) -> Observed {
    match child {
        Some(child) => Observed::There(Box::new((*child).clone())),
        None if is_known => Observed::Missing,
        None => Observed::Unknown,
    }
}

impl MemberChildren {
    fn observe(&self, name: &str) -> Observed {
        if let Some(observed) =
            unreachable(&self.keeper.access.borrow(), &self.keeper.health.borrow())
        {
            return observed;
        }
        match &*self.following.borrow() {
            Following::Beginning => Observed::Unknown,
            Following::Going => seen(self.store.get(&ObjectRef::new(name)), true),
            Following::Failing(why) => Observed::Unreachable(why.clone()),
        }
    }

    /// Follows for ever, by whichever credential there is. After a time without an answer it begins anew, because what was
    /// told before may not hold any more.
    async fn follow(
        &self,
        mut writer: kube::runtime::reflector::store::Writer<MirrordClusterSession>,
        bell: &watch::Sender<u64>,
    ) {
        let mut access = self.keeper.access.subscribe();
        let mut health = self.keeper.health.subscribe();
        loop {
            let client = access.borrow_and_update().client.clone();
            let is_well = is_well(&health.borrow_and_update());
            let following = async {
                match client.filter(|_| is_well) {
                    Some(client) => self.follow_with(client, &mut writer, bell).await,
                    None => std::future::pending().await,
                }
            };
            tokio::select! {
                // What was told of the failure holds until the cluster tells again.
                () = following => continue,
                changed = access.changed() => if changed.is_err() { return },
                changed = health.wait_for(|health| self::is_well(health) != is_well) => {
                    if changed.is_err() { return }
                }
            }
            self.following.send_replace(Following::Beginning);
            ring(bell);
        }
    }

    /// Ends with the first failure, a moment after it. Whoever goes on from there is not told when the copy is complete
    /// again, so everything is asked for anew.
    async fn follow_with(
        &self,
        client: Client,
        writer: &mut kube::runtime::reflector::store::Writer<MirrordClusterSession>,
        bell: &watch::Sender<u64>,
    ) {
        let children: Api<MirrordClusterSession> = Api::all(client);
        let wanted = watcher::Config::default().labels(PARENT_LABEL);
        let mut events = std::pin::pin!(watcher(children, wanted));
        while let Some(event) = events.next().await {
            match event {
                Ok(event) => {
                    let matters = self.matters(&event);
                    writer.apply_watcher_event(&event);
                    let is_complete = matches!(event, watcher::Event::InitDone);
                    if is_complete {
                        self.following.send_replace(Following::Going);
                    }
                    if matters || is_complete {
                        ring(bell);
                    }
                }
                Err(error) => {
                    let failing = Following::Failing(chain(&error));
                    let before = self.following.send_replace(failing.clone());
                    if before != failing {
                        tracing::warn!(
                            cluster = self.keeper.member.name,
                            error = chain(&error),
                            "a member's sessions cannot be followed now"
                        );
                    }
                    ring(bell);
                    sleep(AFTER_A_FAILURE).await;
                    return;
                }
            }
        }
    }

    /// A child whose client was seen again is as it was.
    fn matters(&self, event: &watcher::Event<MirrordClusterSession>) -> bool {
        match event {
            watcher::Event::Apply(child) => {
                let before = self.store.get(&ObjectRef::from_obj(child));
                before.is_none_or(|before| judged_by(&before) != judged_by(child))
            }
            watcher::Event::Delete(_) => true,
            _ => false,
        }
    }
}

/// What the controller judges a child by.
fn judged_by(child: &MirrordClusterSession) -> impl PartialEq + '_ {
    let status = child.status.as_ref();
    (
        child.metadata.deletion_timestamp.is_some(),
        status.and_then(|status| status.phase),
        status.and_then(|status| status.message.as_deref()),
        status.map(|status| (status.pods.as_slice(), status.ports.as_slice())),
    )
}

fn ring(bell: &watch::Sender<u64>) {
    bell.send_modify(|count| *count += 1);
}

/// Children in this cluster are in the copy of all sessions.
async fn follow_here(shared: &Shared, bell: &watch::Sender<u64>) {
    let mut changes = shared.sessions.bell();
    let mut known = Vec::new();
    while changes.changed().await.is_ok() {
        let mut all = shared.sessions.all();
        all.retain(|session| session.spec.multi_cluster_parent_name.is_some());
        all.sort_unstable_by_key(|child| child.metadata.name.clone());
        let is_same = |(one, other): (&Arc<MirrordClusterSession>, &Arc<MirrordClusterSession>)| {
            one.metadata.uid == other.metadata.uid && judged_by(one) == judged_by(other)
        };
        if known.len() != all.len() || !known.iter().zip(&all).all(is_same) {
            ring(bell);
        }
        known = all;
    }
}

fn is_well(health: &Health) -> bool {
    let check = health.check.as_ref();
    check.is_some_and(|check| check.outcome.is_ok())
}

/// Why nothing is known of a member, if nothing is.
fn unreachable(access: &Access, health: &Health) -> Option<Observed> {
    if let Some(trouble) = &access.trouble {
        return Some(Observed::Unreachable(trouble.to_string()));
    }
    match health.check.as_ref().map(|check| &check.outcome) {
        Some(Err(why)) => Some(Observed::Unreachable(why.clone())),
        None => Some(Observed::Unknown),
        Some(Ok(_)) if access.client.is_none() => Some(Observed::Unknown),
        Some(Ok(_)) => None,
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use api::operator::{MirrordOperatorSpec, MirrordOperatorStatus};
    use api::session::SessionPhase;
    use api::{MirrordClusterSessionSpec, MirrordOperator};
    use jiff::Timestamp;
    use tokio::time::timeout;

    use super::*;
    use crate::multicluster::auth::NoCredential;
    use crate::multicluster::clusters::Method;
    use crate::multicluster::stub;
    use crate::multicluster::sync::Check;

    /// After a restart nothing is known, and nothing must be concluded from it.
    #[test]
    fn a_child_is_missing_only_where_somebody_would_know_it() {
        assert_eq!(seen(None, false), Observed::Unknown);
        assert_eq!(seen(None, true), Observed::Missing);
        let nothing = unreachable(&Access::default(), &Health::default());
        assert_eq!(nothing, Some(Observed::Unknown));
        let without = Access {
            trouble: Some(NoCredential::NoSecret("a".to_owned())),
            ..Access::default()
        };
        let ill = Health {
            check: Some(Check {
                at: Timestamp::UNIX_EPOCH,
                outcome: Err("no route".to_owned()),
            }),
            ..Health::default()
        };
        for (access, health, why) in [
            (&without, &Health::default(), "is not there"),
            (&Access::default(), &ill, "no route"),
        ] {
            match unreachable(access, health) {
                Some(Observed::Unreachable(text)) => assert!(text.contains(why), "{text}"),
                other => panic!("{other:?}"),
            }
        }
    }

    #[test]
    fn a_heartbeat_is_no_reason_to_look() {
        let spec = MirrordClusterSessionSpec::default();
        let mut child = MirrordClusterSession::new("mc-1-east", spec);
        child.status = Some(api::MirrordClusterSessionStatus::default());
        let mut seen = child.clone();
        let status = seen.status.as_mut().unwrap();
        status.last_seen_timestamp = Some("2026-01-27T09:22:55Z".to_owned());
        assert!(judged_by(&child) == judged_by(&seen));
        let mut ready = child.clone();
        ready.status.as_mut().unwrap().phase = Some(SessionPhase::Ready);
        assert!(judged_by(&child) != judged_by(&ready));
    }

    fn well() -> Health {
        let outcome = Ok(Box::new(MirrordOperator::new(
            MirrordOperatorSpec::default(),
            MirrordOperatorStatus::default(),
        )));
        let at = Timestamp::UNIX_EPOCH;
        Health {
            check: Some(Check { at, outcome }),
            ..Health::default()
        }
    }

    /// Answers each list, loses the first connection of those who watch, and keeps the next ones.
    fn losing_the_first_watch() -> Client {
        let mut watches = 0;
        stub::client(move |asked| {
            if !asked.contains("watch=true") {
                let list = serde_json::json!({
                    "apiVersion": "mirrord.metalbear.co/v1alpha", "kind": "MirrordClusterSessionList",
                    "metadata": {"resourceVersion": "1"}, "items": [],
                });
                return stub::said(http::StatusCode::OK, &list);
            }
            watches += 1;
            match watches {
                1 => stub::cut(),
                _ => stub::silence(),
            }
        })
    }

    #[tokio::test]
    async fn a_member_is_followed_again_after_a_lost_connection() {
        let keeper = Arc::new(MemberKeeper::new(stub::member(Method::BearerToken)));
        keeper.access.send_replace(Access {
            client: Some(losing_the_first_watch()),
            ..Access::default()
        });
        keeper.health.send_replace(well());
        let (store, writer) = store();
        let member = MemberChildren {
            keeper,
            store,
            following: watch::Sender::default(),
        };
        let mut following = member.following.subscribe();
        let lost_and_found = async {
            let is_failing = |following: &Following| matches!(following, Following::Failing(_));
            following.wait_for(is_failing).await.unwrap();
            assert!(matches!(
                member.observe("mc-1-east"),
                Observed::Unreachable(_)
            ));
            let is_going = |following: &Following| *following == Following::Going;
            following.wait_for(is_going).await.unwrap();
            assert_eq!(member.observe("mc-1-east"), Observed::Missing);
        };
        let bell = watch::Sender::default();
        tokio::select! {
            () = member.follow(writer, &bell) => panic!("nobody follows"),
            found = timeout(Duration::from_secs(60), lost_and_found) => {
                found.expect("the member is followed again");
            }
        }
    }
}
