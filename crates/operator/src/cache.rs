//! All sessions, as this replica knows them: a copy of what is stored, and a bell that rings when it changes.

use std::sync::Arc;

use api::MirrordClusterSession;
use futures_util::StreamExt as _;
use kube::runtime::reflector::{ObjectRef, Store, store};
use kube::runtime::{WatchStreamExt as _, reflector, watcher};
use kube::{Api, Client};
use tokio::sync::watch;

use crate::error::chain;

/// Clones are the same copy.
#[derive(Clone)]
pub(crate) struct SessionCache {
    store: Store<MirrordClusterSession>,
    /// From the follower to everybody: how many changes there were.
    changes: watch::Receiver<u64>,
}

impl SessionCache {
    /// Begins to follow. The copy is filled a little later.
    pub(crate) fn follow(client: Client) -> Self {
        let (reader, writer) = store();
        let (bell, changes) = watch::channel(0);
        let sessions: Api<MirrordClusterSession> = Api::all(client);
        tokio::spawn(async move {
            let events = watcher(sessions, watcher::Config::default()).default_backoff();
            let mut events = std::pin::pin!(reflector(writer, events));
            while let Some(event) = events.next().await {
                if let Err(error) = event {
                    tracing::warn!(error = chain(&error), "sessions cannot be followed now");
                }
                bell.send_modify(|count| *count += 1);
            }
        });
        Self {
            store: reader,
            changes,
        }
    }

    pub(crate) fn get(&self, name: &str) -> Option<Arc<MirrordClusterSession>> {
        self.store.get(&ObjectRef::new(name))
    }

    pub(crate) fn all(&self) -> Vec<Arc<MirrordClusterSession>> {
        self.store.state()
    }

    /// Rings from now on.
    pub(crate) fn bell(&self) -> watch::Receiver<u64> {
        let mut bell = self.changes.clone();
        bell.mark_changed();
        bell
    }
}
