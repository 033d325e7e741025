//! What each node serves, asked once for all sessions that want to know it at about the same time.
//!
//! Each session looks at its agents every few seconds. With hundreds of them on a node, a connection for each look would
//! keep both ends busy with TLS.

use std::collections::HashMap;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use api::node::Served;
use tokio::sync::Mutex as AsyncMutex;
use tokio::time::Instant;

/// An answer is used again for so long: less than the time between two looks at what changes.
const FRESH: Duration = Duration::from_millis(900);

/// What a node serves, or why that is not known.
pub(super) type Listed = Result<Arc<Vec<Served>>, String>;

/// The last answers of all nodes.
pub(super) struct NodeLists {
    fresh: Duration,
    /// By their addresses.
    lists: Mutex<HashMap<String, Arc<NodeList>>>,
    /// How often something has changed that may be about any of them.
    changes: AtomicU64,
}

impl Default for NodeLists {
    fn default() -> Self {
        Self::fresh_for(FRESH)
    }
}

#[derive(Default)]
struct NodeList {
    /// Held while the node is asked, so that the others wait for the same answer.
    last: AsyncMutex<Option<Known>>,
    /// How often something was changed there by us. What was asked before a change is of no use after it.
    changes: AtomicU64,
}

struct Known {
    listed: Listed,
    since: Instant,
    changes: u64,
}

impl NodeLists {
    fn fresh_for(fresh: Duration) -> Self {
        Self {
            fresh,
            lists: Mutex::default(),
            changes: AtomicU64::default(),
        }
    }

    /// What a node serves, by `ask` or by an answer that is fresh enough.
    pub(super) async fn get(&self, host: &str, ask: impl Future<Output = Listed>) -> Listed {
        let list = self.of(host);
        let mut last = list.last.lock().await;
        // Both only grow.
        let everywhere = self.changes.load(Ordering::Acquire);
        let changes = list.changes.load(Ordering::Acquire) + everywhere;
        if let Some(known) = &*last
            && known.changes == changes
            && known.since.elapsed() < self.fresh
        {
            return known.listed.clone();
        }
        let listed = ask.await;
        *last = Some(Known {
            listed: listed.clone(),
            since: Instant::now(),
            changes,
        });
        listed
    }

    /// Something may be different there from now on.
    pub(super) fn note_change(&self, host: &str) {
        self.of(host).changes.fetch_add(1, Ordering::AcqRel);
    }

    /// The same for all of them.
    pub(super) fn note_change_anywhere(&self) {
        self.changes.fetch_add(1, Ordering::AcqRel);
    }

    /// Those that are not there any more are forgotten.
    pub(super) fn keep_only<'a>(&self, hosts: impl Iterator<Item = &'a String>) {
        let mut lists = self.lists.lock().unwrap_or_else(PoisonError::into_inner);
        let hosts: Vec<_> = hosts.collect();
        lists.retain(|host, _| hosts.contains(&host));
    }

    fn of(&self, host: &str) -> Arc<NodeList> {
        let mut lists = self.lists.lock().unwrap_or_else(PoisonError::into_inner);
        Arc::clone(lists.entry(host.to_owned()).or_default())
    }
}

#[cfg(test)]
mod tests {
    use futures_util::future::join_all;

    use super::*;

    const FOR_EVER: Duration = Duration::from_secs(1000);

    /// A node that serves what it is told to, and counts how often it is asked.
    #[derive(Default)]
    struct Node {
        asked: AtomicU64,
        serves: Mutex<Vec<Served>>,
    }

    impl Node {
        async fn list(&self) -> Listed {
            self.asked.fetch_add(1, Ordering::Relaxed);
            let served = self.serves.lock().unwrap().clone();
            tokio::task::yield_now().await;
            tokio::task::yield_now().await;
            Ok(Arc::new(served))
        }

        fn serve(&self) {
            self.serves.lock().unwrap().push(Served::default());
        }

        fn asked(&self) -> u64 {
            self.asked.load(Ordering::Relaxed)
        }
    }

    #[tokio::test]
    async fn all_who_ask_at_the_same_time_get_one_answer() {
        let (lists, node) = (NodeLists::fresh_for(FOR_EVER), Node::default());
        let answers = join_all((0..300).map(|_| lists.get("a", node.list()))).await;
        assert!(
            answers
                .iter()
                .all(|answer| answer.as_ref().unwrap().is_empty())
        );
        assert_eq!(node.asked(), 1);
        lists.get("b", node.list()).await.unwrap();
        assert_eq!(node.asked(), 2, "another node was not asked");
        let lists = NodeLists::fresh_for(Duration::ZERO);
        for _ in 0..2 {
            lists.get("a", node.list()).await.unwrap();
        }
        assert_eq!(node.asked(), 4, "an old answer was used");
    }

    #[tokio::test]
    async fn what_was_changed_is_seen_at_once_also_while_others_ask() {
        let (lists, node) = (NodeLists::fresh_for(FOR_EVER), Node::default());
        let change = async {
            // In the middle of the first question.
            tokio::task::yield_now().await;
            node.serve();
            lists.note_change("a");
            lists.get("a", node.list()).await.unwrap().len()
        };
        let (before, after) = tokio::join!(lists.get("a", node.list()), change);
        assert_eq!((before.unwrap().len(), after), (0, 1));
        node.serve();
        lists.note_change_anywhere();
        assert_eq!(lists.get("a", node.list()).await.unwrap().len(), 2);
    }

    #[tokio::test]
    async fn one_that_does_not_answer_is_not_asked_by_each() {
        let lists = NodeLists::fresh_for(FOR_EVER);
        let asked = AtomicU64::new(0);
        let fail = || async {
            asked.fetch_add(1, Ordering::Relaxed);
            tokio::task::yield_now().await;
            Err("it is silent".to_owned())
        };
        let answers = join_all((0..300).map(|_| lists.get("a", fail()))).await;
        assert!(answers.iter().all(Result::is_err));
        assert_eq!(asked.load(Ordering::Relaxed), 1);
    }
}
