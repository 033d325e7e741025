//! All sessions, as this replica knows them: a copy of what is stored, and a bell that rings when it changes.

use std::sync::Arc;

use api::{MirrordClusterSession, MirrordMultiClusterSession};
use futures_util::StreamExt as _;
use kube::runtime::reflector::{ObjectRef, Store, store};
use kube::runtime::{WatchStreamExt as _, reflector, watcher};
use kube::{Api, Client, Resource};
use serde::de::DeserializeOwned;
use tokio::sync::watch;

use crate::error::chain;

/// Sessions of this cluster.
pub(crate) type SessionCache = ObjectCache<MirrordClusterSession>;
/// Sessions over several clusters, in their Primary.
pub(crate) type ParentCache = ObjectCache<MirrordMultiClusterSession>;

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
        + Clone
        + std::fmt::Debug
        + DeserializeOwned
        + Send
        + Sync
        + 'static,
{
    /// Begins to follow. The copy is filled a little later.
    pub(crate) fn follow(client: Client) -> Self {
        let (reader, writer) = store();
        let (bell, changes) = watch::channel(0);
        let (fill, filled) = watch::channel(false);
        let sessions: Api<Object> = Api::all(client);
        tokio::spawn(async move {
            let events = watcher(sessions, watcher::Config::default()).default_backoff();
            let mut events = std::pin::pin!(reflector(writer, events));
            while let Some(event) = events.next().await {
                match event {
                    Ok(watcher::Event::InitDone) => {
                        fill.send_replace(true);
                    }
                    Ok(_) => {}
                    Err(error) => {
                        tracing::warn!(error = chain(&error), "sessions cannot be followed now");
                    }
                }
                bell.send_modify(|count| *count += 1);
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
