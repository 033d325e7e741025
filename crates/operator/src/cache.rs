//! Caches of the stored objects, and a notification when one changes.
//!
//! Each relay of a session subscribes to the notifications, so heartbeats do not cause one: with hundreds of sessions, they
//! alone would keep a processor busy.

use std::collections::HashMap;
use std::hash::{DefaultHasher, Hash as _, Hasher as _};
use std::sync::Arc;

use api::{MirrordClusterPolicy, MirrordClusterSession, MirrordMultiClusterSession, MirrordPolicy};
use error_chain::error_chain;
use futures_util::StreamExt as _;
use kube::runtime::reflector::{ObjectRef, Store, store};
use kube::runtime::watcher::Event;
use kube::runtime::{WatchStreamExt as _, reflector, watcher};
use kube::{Api, Client, Resource};
use serde::Serialize;
use serde::de::DeserializeOwned;
use tokio::sync::watch;

use crate::background::Background;

/// Sessions of this cluster.
pub(crate) type SessionCache = ObjectCache<MirrordClusterSession>;
/// Sessions over several clusters, in their Primary.
pub(crate) type ParentCache = ObjectCache<MirrordMultiClusterSession>;

/// An object whose relevant changes can be detected.
pub(crate) trait ChangeHash {
    /// A hash that ignores heartbeats and port claims. Two versions of an object with the same hash need no notification.
    fn change_hash(&self) -> u64;
}

impl ChangeHash for MirrordClusterSession {
    fn change_hash(&self) -> u64 {
        let mut session = self.clone();
        if let Some(status) = &mut session.status {
            status.last_seen_timestamp = None;
            status.ports = Vec::new();
        }
        hash_without_version(session)
    }
}

impl ChangeHash for MirrordMultiClusterSession {
    fn change_hash(&self) -> u64 {
        let mut parent = self.clone();
        if let Some(status) = &mut parent.status {
            status.connected_timestamp = None;
            for child in status.cluster_sessions.values_mut() {
                child.last_heartbeat = None;
                child.ports = Vec::new();
            }
        }
        hash_without_version(parent)
    }
}

impl ChangeHash for MirrordClusterPolicy {
    fn change_hash(&self) -> u64 {
        hash_without_version(self.clone())
    }
}

impl ChangeHash for MirrordPolicy {
    fn change_hash(&self) -> u64 {
        hash_without_version(self.clone())
    }
}

fn hash_without_version(mut object: impl Resource + Serialize) -> u64 {
    let metadata = object.meta_mut();
    metadata.resource_version = None;
    metadata.managed_fields = None;
    let mut hasher = DefaultHasher::new();
    // An object that cannot be serialized hashes like an empty one.
    serde_json::to_string(&object)
        .unwrap_or_default()
        .hash(&mut hasher);
    hasher.finish()
}

/// Whether an event is a relevant change. `hashes` has the change hashes of all objects.
fn is_relevant<Object: Resource<DynamicType = ()> + ChangeHash>(
    hashes: &mut HashMap<ObjectRef<Object>, u64>,
    event: &Event<Object>,
) -> bool {
    match event {
        Event::Apply(object) => {
            let hash = object.change_hash();
            hashes.insert(ObjectRef::from_obj(object), hash) != Some(hash)
        }
        Event::Delete(object) => {
            hashes.remove(&ObjectRef::from_obj(object));
            true
        }
        Event::Init => {
            hashes.clear();
            false
        }
        // The store shows no object of a list before the list is complete.
        Event::InitApply(object) => {
            hashes.insert(ObjectRef::from_obj(object), object.change_hash());
            false
        }
        Event::InitDone => true,
    }
}

/// A cache of all objects of one kind. Clones share it.
#[derive(Clone)]
pub(crate) struct ObjectCache<Object>
where
    Object: Resource<DynamicType = ()> + 'static,
{
    store: Store<Object>,
    /// The number of relevant changes so far.
    changes: watch::Receiver<u64>,
    /// Whether the cache has ever been complete.
    filled: watch::Receiver<bool>,
}

impl<Object> ObjectCache<Object>
where
    Object: Resource<DynamicType = ()>
        + ChangeHash
        + Clone
        + std::fmt::Debug
        + DeserializeOwned
        + Send
        + Sync
        + 'static,
{
    /// Starts to watch. The cache is filled a little later. `task` is the name of the background task.
    pub(crate) fn start(client: Client, background: &Background, task: &'static str) -> Self {
        let (reader, writer) = store();
        let (change_sender, changes) = watch::channel(0);
        let (filled_sender, filled) = watch::channel(false);
        let objects: Api<Object> = Api::all(client);
        background.spawn(task, async move {
            let events = watcher(objects, watcher::Config::default()).default_backoff();
            let mut events = std::pin::pin!(reflector(writer, events));
            let mut hashes = HashMap::new();
            while let Some(event) = events.next().await {
                match event {
                    Ok(event) => {
                        if matches!(event, Event::InitDone) {
                            filled_sender.send_replace(true);
                        }
                        if is_relevant(&mut hashes, &event) {
                            change_sender.send_modify(|count| *count += 1);
                        }
                    }
                    Err(error) => {
                        tracing::warn!(task, error = error_chain(&error), "watch failed");
                    }
                }
            }
        });
        Self {
            store: reader,
            changes,
            filled,
        }
    }

    /// Whether the cache is complete, so that an object that is not in it does not exist.
    pub(crate) fn is_filled(&self) -> bool {
        *self.filled.borrow()
    }

    pub(crate) fn get(&self, name: &str) -> Option<Arc<Object>> {
        self.store.get(&ObjectRef::new(name))
    }

    pub(crate) fn all(&self) -> Vec<Arc<Object>> {
        self.store.state()
    }

    /// The receiver is notified immediately, and then of every change.
    pub(crate) fn subscribe(&self) -> watch::Receiver<u64> {
        let mut changes = self.changes.clone();
        changes.mark_changed();
        changes
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn session(seen: &str, phase: &str, version: &str) -> MirrordClusterSession {
        serde_json::from_value(json!({
            "apiVersion": "mirrord.metalbear.co/v1alpha",
            "kind": "MirrordClusterSession",
            "metadata": {"name": "session-1", "resourceVersion": version},
            "spec": {
                "owner": {"userId": "", "username": "", "hostname": "", "k8sUsername": ""},
                "namespace": "shop",
                "target": "deployment/web",
                "resumeWindowSecs": 60,
                "clientCertificate": "",
            },
            "status": {"phase": phase, "lastSeenTimestamp": seen},
        }))
        .unwrap()
    }

    #[test]
    fn heartbeats_are_no_relevant_changes() {
        let mut hashes = HashMap::new();
        let mut is_relevant = |event| is_relevant(&mut hashes, &event);
        assert!(!is_relevant(Event::Init));
        assert!(!is_relevant(Event::InitApply(session("1", "Pending", "1"))));
        assert!(is_relevant(Event::InitDone));
        assert!(!is_relevant(Event::Apply(session("2", "Pending", "2"))));
        assert!(is_relevant(Event::Apply(session("2", "Ready", "3"))));
        assert!(!is_relevant(Event::Apply(session("3", "Ready", "4"))));
        let mut with_port = session("3", "Ready", "4");
        let port = api::session::SessionPort::default();
        with_port.status.as_mut().unwrap().ports.push(port);
        assert!(!is_relevant(Event::Apply(with_port)));
        assert!(is_relevant(Event::Delete(session("3", "Ready", "4"))));
        assert!(is_relevant(Event::Apply(session("3", "Ready", "5"))));
    }
}
