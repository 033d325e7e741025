//! All sessions, as this replica knows them: a copy of what is stored, and a bell that rings when it changes.
//!
//! Everybody who carries a session listens to the bell, so it does not ring for what each session does all the time: with
//! hundreds of them, their heartbeats alone would keep a processor busy.

use std::collections::HashMap;
use std::hash::{DefaultHasher, Hash as _, Hasher as _};
use std::sync::Arc;

use api::{MirrordClusterPolicy, MirrordClusterSession, MirrordMultiClusterSession, MirrordPolicy};
use futures_util::StreamExt as _;
use kube::runtime::reflector::{ObjectRef, Store, store};
use kube::runtime::watcher::Event;
use kube::runtime::{WatchStreamExt as _, reflector, watcher};
use kube::{Api, Client, Resource};
use serde::Serialize;
use serde::de::DeserializeOwned;
use tokio::sync::watch;

use crate::background::Background;
use crate::error::chain;

/// Sessions of this cluster.
pub(crate) type SessionCache = ObjectCache<MirrordClusterSession>;
/// Sessions over several clusters, in their Primary.
pub(crate) type ParentCache = ObjectCache<MirrordMultiClusterSession>;

/// What others have to hear about.
pub(crate) trait Notable {
    /// The same for two versions of an object, if they differ only in that its client is still there, or in what it does.
    fn note(&self) -> u64;
}

impl Notable for MirrordClusterSession {
    fn note(&self) -> u64 {
        let mut session = self.clone();
        if let Some(status) = &mut session.status {
            status.last_seen_timestamp = None;
            status.ports = Vec::new();
        }
        note(session)
    }
}

impl Notable for MirrordMultiClusterSession {
    fn note(&self) -> u64 {
        let mut parent = self.clone();
        if let Some(status) = &mut parent.status {
            status.connected_timestamp = None;
            for child in status.cluster_sessions.values_mut() {
                child.last_heartbeat = None;
                child.ports = Vec::new();
            }
        }
        note(parent)
    }
}

impl Notable for MirrordClusterPolicy {
    fn note(&self) -> u64 {
        note(self.clone())
    }
}

impl Notable for MirrordPolicy {
    fn note(&self) -> u64 {
        note(self.clone())
    }
}

fn note(mut object: impl Resource + Serialize) -> u64 {
    let metadata = object.meta_mut();
    metadata.resource_version = None;
    metadata.managed_fields = None;
    let mut hasher = DefaultHasher::new();
    // What cannot be written is the same as nothing.
    serde_json::to_string(&object)
        .unwrap_or_default()
        .hash(&mut hasher);
    hasher.finish()
}

/// Whether an event is news. `known` has the notes of all objects.
fn is_news<Object: Resource<DynamicType = ()> + Notable>(
    known: &mut HashMap<ObjectRef<Object>, u64>,
    event: &Event<Object>,
) -> bool {
    match event {
        Event::Apply(object) => {
            let note = object.note();
            known.insert(ObjectRef::from_obj(object), note) != Some(note)
        }
        Event::Delete(object) => {
            known.remove(&ObjectRef::from_obj(object));
            true
        }
        Event::Init => {
            known.clear();
            false
        }
        // None is there for others before all are.
        Event::InitApply(object) => {
            known.insert(ObjectRef::from_obj(object), object.note());
            false
        }
        Event::InitDone => true,
    }
}

/// Clones are the same copy.
#[derive(Clone)]
pub(crate) struct ObjectCache<Object>
where
    Object: Resource<DynamicType = ()> + 'static,
{
    store: Store<Object>,
    /// From the follower to everybody: how many changes there were.
    changes: watch::Receiver<u64>,
    /// From the follower to everybody: whether the copy has ever been complete.
    filled: watch::Receiver<bool>,
}

impl<Object> ObjectCache<Object>
where
    Object: Resource<DynamicType = ()>
        + Notable
        + Clone
        + std::fmt::Debug
        + DeserializeOwned
        + Send
        + Sync
        + 'static,
{
    /// Begins to follow. The copy is filled a little later. `what` is followed, in a word.
    pub(crate) fn follow(client: Client, background: &Background, what: &'static str) -> Self {
        let (reader, writer) = store();
        let (bell, changes) = watch::channel(0);
        let (fill, filled) = watch::channel(false);
        let objects: Api<Object> = Api::all(client);
        background.spawn(what, async move {
            let events = watcher(objects, watcher::Config::default()).default_backoff();
            let mut events = std::pin::pin!(reflector(writer, events));
            let mut known = HashMap::new();
            while let Some(event) = events.next().await {
                match event {
                    Ok(event) => {
                        if matches!(event, Event::InitDone) {
                            fill.send_replace(true);
                        }
                        if is_news(&mut known, &event) {
                            bell.send_modify(|count| *count += 1);
                        }
                    }
                    Err(error) => {
                        tracing::warn!(
                            what,
                            error = chain(&error),
                            "objects cannot be followed now"
                        );
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

    /// Whether what is not in the copy is not there.
    pub(crate) fn is_filled(&self) -> bool {
        *self.filled.borrow()
    }

    pub(crate) fn get(&self, name: &str) -> Option<Arc<Object>> {
        self.store.get(&ObjectRef::new(name))
    }

    pub(crate) fn all(&self) -> Vec<Arc<Object>> {
        self.store.state()
    }

    /// Rings from now on.
    pub(crate) fn bell(&self) -> watch::Receiver<u64> {
        let mut bell = self.changes.clone();
        bell.mark_changed();
        bell
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
    fn a_heartbeat_is_no_news() {
        let mut known = HashMap::new();
        let mut is_news = |event| is_news(&mut known, &event);
        assert!(!is_news(Event::Init));
        assert!(!is_news(Event::InitApply(session("1", "Pending", "1"))));
        assert!(is_news(Event::InitDone));
        assert!(!is_news(Event::Apply(session("2", "Pending", "2"))));
        assert!(is_news(Event::Apply(session("2", "Ready", "3"))));
        assert!(!is_news(Event::Apply(session("3", "Ready", "4"))));
        let mut with_port = session("3", "Ready", "4");
        let port = api::session::SessionPort::default();
        with_port.status.as_mut().unwrap().ports.push(port);
        assert!(!is_news(Event::Apply(with_port)));
        assert!(is_news(Event::Delete(session("3", "Ready", "4"))));
        assert!(is_news(Event::Apply(session("3", "Ready", "5"))));
    }
}
