//! The registry: which clusters may dial in, and with which certificates. Every replica watches the objects, so a change by
//! any replica, `kubectl` or GitOps takes effect everywhere at once.

mod decisions;
mod writes;

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use api::managed_cluster::ManagedCluster;
use authority::rotation::Peer;
use error_chain::error_chain;
use futures_util::StreamExt as _;
use jiff::Timestamp;
use kube::runtime::watcher::Event;
use kube::runtime::{WatchStreamExt as _, watcher};
use kube::{Api, Client, ResourceExt as _};
use tokio::sync::watch;
use tokio::time::sleep;

use self::decisions::peer;
pub(crate) use self::decisions::{is_revoked, needs_registration};
pub(crate) use self::writes::{Added, is_from_values};
use crate::Hub;
use crate::background::Background;

/// All registered clusters by name.
pub(crate) type Clusters = BTreeMap<String, Arc<ManagedCluster>>;

/// The registered clusters, and changes to them. Clones share them.
#[derive(Clone)]
pub(crate) struct Registry {
    objects: Api<ManagedCluster>,
    clusters: watch::Receiver<Option<Arc<Clusters>>>,
}

impl Registry {
    /// Starts to watch. The registry is filled a little later.
    pub(crate) fn start(client: Client, namespace: &str, background: &Background) -> Self {
        let objects: Api<ManagedCluster> = Api::namespaced(client, namespace);
        let (sender, clusters) = watch::channel(None);
        background.spawn("registry", observe(objects.clone(), sender));
        Self { objects, clusters }
    }

    /// Waits until all clusters are known. Before, each of them would be refused.
    pub(crate) async fn filled(&self) {
        let mut clusters = self.clusters.clone();
        // The sender ends only together with the process.
        let _ = clusters.wait_for(Option::is_some).await;
    }

    pub(crate) fn clusters(&self) -> Arc<Clusters> {
        self.clusters.borrow().clone().unwrap_or_default()
    }

    pub(crate) fn get(&self, name: &str) -> Option<Arc<ManagedCluster>> {
        let clusters = self.clusters.borrow();
        clusters.as_ref()?.get(name).cloned()
    }

    /// The clusters whose agents have to trust an authority before it signs. `None` while they are not known.
    pub(crate) fn peers(&self, now: Timestamp) -> Option<Vec<Peer>> {
        let clusters = self.clusters.borrow();
        let clusters = clusters.as_ref()?.values();
        Some(clusters.filter_map(|object| peer(object, now)).collect())
    }

    /// The receiver is notified immediately, and then of every change.
    pub(crate) fn subscribe(&self) -> watch::Receiver<Option<Arc<Clusters>>> {
        let mut clusters = self.clusters.clone();
        clusters.mark_changed();
        clusters
    }
}

/// How often objects are compared with the values, in case one was deleted by hand.
const VALUES_INTERVAL: Duration = Duration::from_secs(300);
const RETRY_DELAY: Duration = Duration::from_secs(10);

/// Makes objects of the clusters in the chart's values, whenever those change. Never returns.
pub(crate) async fn follow_values(hub: Arc<Hub>) {
    let mut configuration = hub.configuration.clone();
    loop {
        let entries = configuration.borrow_and_update().clusters.clone();
        let delay = match hub.registry.reconcile_values(&entries).await {
            Ok(()) => VALUES_INTERVAL,
            Err(error) => {
                tracing::warn!(
                    error = error_chain(&error),
                    "clusters of values not written"
                );
                RETRY_DELAY
            }
        };
        tokio::select! {
            () = sleep(delay) => {}
            changed = configuration.changed() => if changed.is_err() {
                sleep(delay).await;
            }
        }
    }
}

async fn observe(objects: Api<ManagedCluster>, current: watch::Sender<Option<Arc<Clusters>>>) {
    let events = watcher(objects, watcher::Config::default()).default_backoff();
    let mut events = std::pin::pin!(events);
    let mut listed = Clusters::new();
    while let Some(event) = events.next().await {
        match event {
            Ok(event) => {
                if let Some(clusters) = apply(current.borrow().as_deref(), &mut listed, event) {
                    current.send_replace(Some(Arc::new(clusters)));
                }
            }
            Err(error) => {
                let task = "registry";
                tracing::warn!(task, error = error_chain(&error), "watch failed");
            }
        }
    }
}

/// The clusters after an event, if it changes them. A list takes effect when it is complete.
fn apply(
    current: Option<&Clusters>,
    listed: &mut Clusters,
    event: Event<ManagedCluster>,
) -> Option<Clusters> {
    match event {
        Event::Init => {
            listed.clear();
            None
        }
        Event::InitApply(object) => {
            listed.insert(object.name_any(), Arc::new(object));
            None
        }
        Event::InitDone => Some(std::mem::take(listed)),
        Event::Apply(object) => {
            let mut clusters = current.cloned().unwrap_or_default();
            clusters.insert(object.name_any(), Arc::new(object));
            Some(clusters)
        }
        Event::Delete(object) => {
            let mut clusters = current.cloned().unwrap_or_default();
            clusters.remove(&object.name_any());
            Some(clusters)
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn event_clusters(events: Vec<Event<ManagedCluster>>) -> Vec<String> {
        let (mut current, mut listed) = (None, Clusters::new());
        for event in events {
            let clusters = apply(current.as_ref(), &mut listed, event);
            current = clusters.or(current);
        }
        current.unwrap_or_default().into_keys().collect()
    }

    fn cluster(name: &str) -> ManagedCluster {
        ManagedCluster::new(name, Default::default())
    }

    #[test]
    fn a_list_replaces_what_was_known_and_only_when_it_is_complete() {
        let list = || vec![Event::Init, Event::InitApply(cluster("a")), Event::InitDone];
        assert_eq!(event_clusters(list()), ["a"]);
        let mut events = list();
        events.push(Event::Apply(cluster("b")));
        events.push(Event::Delete(cluster("a")));
        assert_eq!(event_clusters(events.clone()), ["b"]);
        events.push(Event::Init);
        events.push(Event::InitApply(cluster("c")));
        assert_eq!(event_clusters(events.clone()), ["b"]);
        events.push(Event::InitDone);
        assert_eq!(event_clusters(events), ["c"]);
    }
}
