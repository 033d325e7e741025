//! The configured clusters, with one client for each member. The configuration can change while the operator runs: members are
//! added, changed and removed. The clients of all other members are kept, and with them their connections.

use std::sync::Arc;

use futures_util::StreamExt as _;
use futures_util::stream::FuturesUnordered;
use tokio::sync::watch;

use crate::multicluster::clusters::MultiCluster;
use crate::multicluster::member_client::MemberClient;

/// The clusters at one moment.
pub(crate) struct Membership {
    pub(crate) clusters: MultiCluster,
    pub(crate) member_clients: Vec<Arc<MemberClient>>,
}

impl Membership {
    pub(crate) fn new(clusters: MultiCluster) -> Self {
        Self::with_clients(clusters, &[])
    }

    /// The membership after a change of the configuration.
    pub(crate) fn updated(&self, clusters: MultiCluster) -> Self {
        Self::with_clients(clusters, &self.member_clients)
    }

    /// Uses the existing clients of unchanged members.
    fn with_clients(clusters: MultiCluster, existing: &[Arc<MemberClient>]) -> Self {
        let members = clusters.members.iter();
        let member_clients = members.map(|member| {
            let mut existing = existing.iter();
            let unchanged = existing.find(|existing| existing.member == *member);
            unchanged.map_or_else(|| Arc::new(MemberClient::new(member.clone())), Arc::clone)
        });
        Self {
            member_clients: member_clients.collect(),
            clusters,
        }
    }

    pub(crate) fn member_client(&self, cluster: &str) -> Option<&Arc<MemberClient>> {
        let mut member_clients = self.member_clients.iter();
        member_clients.find(|member_client| member_client.member.name == cluster)
    }

    /// Whether this client is in use: its member is configured and unchanged.
    pub(crate) fn uses(&self, member_client: &Arc<MemberClient>) -> bool {
        let mut member_clients = self.member_clients.iter();
        member_clients.any(|candidate| Arc::ptr_eq(candidate, member_client))
    }
}

/// Runs a future for the client of each member, as long as the client is in use. Ends when the operator does.
pub(crate) async fn for_each_member<Running>(
    mut changes: watch::Receiver<Arc<Membership>>,
    run: impl Fn(Arc<MemberClient>) -> Running,
) where
    Running: Future<Output = ()>,
{
    let mut running = FuturesUnordered::new();
    let mut started: Vec<Arc<MemberClient>> = Vec::new();
    loop {
        let membership = Arc::clone(&changes.borrow_and_update());
        for member_client in &membership.member_clients {
            if !started
                .iter()
                .any(|other| Arc::ptr_eq(other, member_client))
            {
                let run = run(Arc::clone(member_client));
                let member_client = Arc::clone(member_client);
                let mut changes = changes.clone();
                running.push(async move {
                    let removed = changes.wait_for(|membership| !membership.uses(&member_client));
                    tokio::select! {
                        () = run => {}
                        _ = removed => {}
                    }
                });
            }
        }
        started.clone_from(&membership.member_clients);
        tokio::select! {
            changed = changes.changed() => if changed.is_err() { return },
            Some(()) = running.next() => {}
        }
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use api::multicluster::OnUnreachable;
    use parking_lot::Mutex;
    use tokio::task::yield_now;

    use super::*;
    use crate::multicluster::clusters::{AuthMethod, Member};
    use crate::multicluster::stub;

    /// Members with a name and the namespace of their operator.
    fn clusters(members: &[(&str, &str)]) -> MultiCluster {
        let members = members.iter().map(|(name, namespace)| Member {
            name: (*name).to_owned(),
            namespace: Some((*namespace).to_owned()),
            ..stub::member(AuthMethod::Mtls)
        });
        MultiCluster {
            name: "hub".to_owned(),
            default: "hub".to_owned(),
            is_management_only: false,
            on_unreachable: OnUnreachable::Fail,
            members: members.collect(),
        }
    }

    /// The configured members, and those that are started.
    type Step = (
        &'static [(&'static str, &'static str)],
        &'static [&'static str],
    );

    /// Removes its entry when it is dropped.
    struct Entry(Arc<Mutex<BTreeSet<String>>>, String);

    impl Drop for Entry {
        fn drop(&mut self) {
            self.0.lock().remove(&self.1);
        }
    }

    #[tokio::test]
    async fn members_run_as_long_as_they_are_configured() {
        let sender = watch::Sender::new(Arc::new(Membership::new(clusters(&[]))));
        let running: Arc<Mutex<BTreeSet<String>>> = Arc::default();
        let started: Arc<Mutex<Vec<String>>> = Arc::default();
        let run = |member_client: Arc<MemberClient>| {
            let (running, started) = (Arc::clone(&running), Arc::clone(&started));
            async move {
                let member = &member_client.member;
                let namespace = member.namespace.as_deref().unwrap_or_default();
                let entry = format!("{} in {namespace}", member.name);
                started.lock().push(entry.clone());
                running.lock().insert(entry.clone());
                let _entry = Entry(running, entry);
                std::future::pending::<()>().await;
            }
        };
        let steps: &[Step] = &[
            (&[("east", "a")], &["east in a"]),
            (&[("east", "a"), ("west", "a")], &["west in a"]),
            (&[("west", "a"), ("east", "b")], &["east in b"]),
            (&[("west", "a")], &[]),
            (&[("west", "a"), ("east", "b")], &["east in b"]),
        ];
        let check = async {
            for (members, expected) in steps {
                sender.send_modify(|membership| {
                    *membership = Arc::new(membership.updated(clusters(members)));
                });
                for _ in 0..10 {
                    yield_now().await;
                }
                let configured = members
                    .iter()
                    .map(|(name, space)| format!("{name} in {space}"));
                assert_eq!(*running.lock(), configured.collect::<BTreeSet<_>>());
                assert_eq!(std::mem::take(&mut *started.lock()), *expected);
            }
        };
        tokio::select! {
            () = for_each_member(sender.subscribe(), run) => panic!("it has ended"),
            () = check => {}
        }
    }
}
