//! A short-lived cache of the targets that each node serves, which is shared by concurrent reconciliations.
//!
//! Each session observes its agents every few seconds. With hundreds of sessions on a node, a connection for each of them
//! would keep both ends busy with TLS.

use std::collections::HashMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use api::node::ServedTarget;
use parking_lot::Mutex;
use tokio::sync::Mutex as AsyncMutex;
use tokio::time::Instant;

/// The TTL of a cached list. It is shorter than the shortest requeue interval of the controller.
const LIST_TTL: Duration = Duration::from_millis(900);

/// The targets that a node serves, or why they are unknown.
pub(super) type ListResult = Result<Arc<Vec<ServedTarget>>, String>;

/// The last lists of all nodes.
pub(super) struct NodeListCache {
    ttl: Duration,
    /// By address of the node agent.
    lists: Mutex<HashMap<String, Arc<NodeList>>>,
    /// The number of changes that may affect any node.
    changes: AtomicU64,
}

impl Default for NodeListCache {
    fn default() -> Self {
        Self::with_ttl(LIST_TTL)
    }
}

#[derive(Default)]
struct NodeList {
    /// Locked during the request, so that concurrent callers wait for the same response.
    last: AsyncMutex<Option<CachedList>>,
    /// The number of changes that the operator made on the node. A list from before a change is stale after it.
    changes: AtomicU64,
}

struct CachedList {
    result: ListResult,
    since: Instant,
    changes: u64,
}

impl NodeListCache {
    fn with_ttl(ttl: Duration) -> Self {
        Self {
            ttl,
            lists: Mutex::default(),
            changes: AtomicU64::default(),
        }
    }

    /// The targets that a node serves, from the cache or with `request`.
    pub(super) async fn get(
        &self,
        host: &str,
        request: impl Future<Output = ListResult>,
    ) -> ListResult {
        let list = self.entry(host);
        let mut last = list.last.lock().await;
        // Both counters only grow, so their sum identifies the state of both.
        let everywhere = self.changes.load(Ordering::Acquire);
        let changes = list.changes.load(Ordering::Acquire) + everywhere;
        if let Some(cached) = &*last
            && cached.changes == changes
            && cached.since.elapsed() < self.ttl
        {
            return cached.result.clone();
        }
        let result = request.await;
        *last = Some(CachedList {
            result: result.clone(),
            since: Instant::now(),
            changes,
        });
        result
    }

    /// Invalidates the list of one node.
    pub(super) fn invalidate(&self, host: &str) {
        self.entry(host).changes.fetch_add(1, Ordering::AcqRel);
    }

    /// Invalidates the lists of all nodes.
    pub(super) fn invalidate_all(&self) {
        self.changes.fetch_add(1, Ordering::AcqRel);
    }

    /// Removes the lists of all other hosts.
    pub(super) fn retain<'a>(&self, hosts: impl Iterator<Item = &'a String>) {
        let hosts: Vec<_> = hosts.collect();
        let mut lists = self.lists.lock();
        lists.retain(|host, _| hosts.contains(&host));
    }

    fn entry(&self, host: &str) -> Arc<NodeList> {
        Arc::clone(self.lists.lock().entry(host.to_owned()).or_default())
    }
}

#[cfg(test)]
mod tests {
    use futures_util::future::join_all;

    use super::*;

    const LONG_TTL: Duration = Duration::from_secs(1000);

    /// A node that counts its requests.
    #[derive(Default)]
    struct Node {
        requests: AtomicU64,
        serves: Mutex<Vec<ServedTarget>>,
    }

    impl Node {
        async fn list(&self) -> ListResult {
            self.requests.fetch_add(1, Ordering::Relaxed);
            let served = self.serves.lock().clone();
            tokio::task::yield_now().await;
            tokio::task::yield_now().await;
            Ok(Arc::new(served))
        }

        fn serve(&self) {
            self.serves.lock().push(ServedTarget::default());
        }

        fn requests(&self) -> u64 {
            self.requests.load(Ordering::Relaxed)
        }
    }

    #[tokio::test]
    async fn concurrent_callers_share_one_response() {
        let (lists, node) = (NodeListCache::with_ttl(LONG_TTL), Node::default());
        let results = join_all((0..300).map(|_| lists.get("a", node.list()))).await;
        assert!(
            results
                .iter()
                .all(|result| result.as_ref().unwrap().is_empty())
        );
        assert_eq!(node.requests(), 1);
        lists.get("b", node.list()).await.unwrap();
        assert_eq!(node.requests(), 2, "the second node got no request");
        let lists = NodeListCache::with_ttl(Duration::ZERO);
        for _ in 0..2 {
            lists.get("a", node.list()).await.unwrap();
        }
        assert_eq!(node.requests(), 4, "an expired list was used");
    }

    #[tokio::test]
    async fn changes_are_visible_at_once_also_during_a_request() {
        let (lists, node) = (NodeListCache::with_ttl(LONG_TTL), Node::default());
        let change = async {
            // During the first request.
            tokio::task::yield_now().await;
            node.serve();
            lists.invalidate("a");
            lists.get("a", node.list()).await.unwrap().len()
        };
        let (before, after) = tokio::join!(lists.get("a", node.list()), change);
        assert_eq!((before.unwrap().len(), after), (0, 1));
        node.serve();
        lists.invalidate_all();
        assert_eq!(lists.get("a", node.list()).await.unwrap().len(), 2);
    }

    #[tokio::test]
    async fn errors_are_shared_as_well() {
        let lists = NodeListCache::with_ttl(LONG_TTL);
        let requests = AtomicU64::new(0);
        let fail = || async {
            requests.fetch_add(1, Ordering::Relaxed);
            tokio::task::yield_now().await;
            Err("timed out".to_owned())
        };
        let results = join_all((0..300).map(|_| lists.get("a", fail()))).await;
        assert!(results.iter().all(Result::is_err));
        assert_eq!(requests.load(Ordering::Relaxed), 1);
    }
}
