//! A bounded cache whose values expire. Concurrent callers with the same key share one load.

use std::collections::HashMap;
use std::hash::Hash;
use std::sync::Arc;
use std::time::Duration;

use parking_lot::Mutex;
use tokio::sync::OnceCell;
use tokio::time::Instant;

/// A value, how long it is kept, and whether it is worth keeping when the cache is full.
#[derive(Clone, Debug)]
pub(crate) struct Loaded<V> {
    pub(crate) value: V,
    pub(crate) ttl: Duration,
    /// Values that any unauthenticated peer can cause are removed first, so that they do not displace others.
    pub(crate) is_valuable: bool,
}

#[derive(Debug)]
pub(crate) struct Cache<K, V> {
    capacity: usize,
    entries: Mutex<HashMap<K, Entry<V>>>,
}

#[derive(Debug)]
struct Entry<V> {
    since: Instant,
    cell: Arc<OnceCell<(Instant, Loaded<V>)>>,
}

impl<V> Entry<V> {
    fn new(now: Instant) -> Self {
        Self {
            since: now,
            cell: Arc::new(OnceCell::new()),
        }
    }

    /// A load that is not finished has not expired, unless its callers have left.
    fn is_expired(&self, now: Instant) -> bool {
        self.cell.get().map_or_else(
            || Arc::strong_count(&self.cell) == 1,
            |(loaded_at, loaded)| now.duration_since(*loaded_at) >= loaded.ttl,
        )
    }

    fn is_valuable(&self) -> bool {
        self.cell
            .get()
            .is_some_and(|(_, loaded)| loaded.is_valuable)
    }
}

impl<K: Clone + Eq + Hash, V: Clone> Cache<K, V> {
    pub(crate) fn new(capacity: usize) -> Self {
        Self {
            capacity: capacity.max(1),
            entries: Mutex::new(HashMap::new()),
        }
    }

    /// The value of the cache, or the one that is loaded now. An error is not kept.
    pub(crate) async fn get<E, F>(&self, key: &K, load: F) -> Result<V, E>
    where
        F: AsyncFnOnce() -> Result<Loaded<V>, E>,
    {
        let cell = self.cell(key);
        let (_, loaded) = cell
            .get_or_try_init(async || Ok((Instant::now(), load().await?)))
            .await?;
        Ok(loaded.value.clone())
    }

    fn cell(&self, key: &K) -> Arc<OnceCell<(Instant, Loaded<V>)>> {
        let now = Instant::now();
        let mut entries = self.entries.lock();
        if let Some(entry) = entries.get_mut(key) {
            if entry.is_expired(now) {
                *entry = Entry::new(now);
            }
            return Arc::clone(&entry.cell);
        }
        if entries.len() >= self.capacity {
            Self::evict(&mut entries, now, self.capacity);
        }
        let entry = Entry::new(now);
        let cell = Arc::clone(&entry.cell);
        entries.insert(key.clone(), entry);
        cell
    }

    /// Removes what has expired, and if that is too little an eighth of the rest: the least valuable and oldest first.
    fn evict(entries: &mut HashMap<K, Entry<V>>, now: Instant, capacity: usize) {
        entries.retain(|_, entry| !entry.is_expired(now));
        let goal = capacity - (capacity / 8).max(1);
        if entries.len() <= goal {
            return;
        }
        let mut order: Vec<(bool, Instant, K)> = entries
            .iter()
            .map(|(key, entry)| (entry.is_valuable(), entry.since, key.clone()))
            .collect();
        order.sort_by_key(|(is_valuable, since, _)| (*is_valuable, *since));
        for (_, _, key) in order.iter().take(entries.len() - goal) {
            entries.remove(key);
        }
    }
}

#[cfg(test)]
mod tests {
    use std::convert::Infallible;
    use std::sync::atomic::{AtomicU32, Ordering};

    use tokio::time::advance;

    use super::*;

    const TTL: Duration = Duration::from_secs(10);

    /// A cache and the number of loads so far. A key below 1000 is valuable.
    struct Counted {
        cache: Cache<u32, u32>,
        loads: AtomicU32,
    }

    impl Counted {
        fn new(capacity: usize) -> Self {
            Self {
                cache: Cache::new(capacity),
                loads: AtomicU32::new(0),
            }
        }

        async fn get(&self, key: u32) -> u32 {
            let load = async || {
                tokio::task::yield_now().await;
                Ok::<_, Infallible>(Loaded {
                    value: self.loads.fetch_add(1, Ordering::SeqCst),
                    ttl: TTL,
                    is_valuable: key < 1000,
                })
            };
            self.cache.get(&key, load).await.unwrap()
        }

        fn loads(&self) -> u32 {
            self.loads.load(Ordering::SeqCst)
        }
    }

    #[tokio::test(start_paused = true)]
    async fn values_expire() {
        let counted = Counted::new(10);
        assert_eq!((counted.get(1).await, counted.get(1).await), (0, 0));
        advance(TTL - Duration::from_millis(1)).await;
        assert_eq!(counted.get(1).await, 0);
        advance(Duration::from_millis(1)).await;
        assert_eq!(counted.get(1).await, 1);
    }

    #[tokio::test]
    async fn concurrent_callers_share_a_load() {
        let counted = Counted::new(10);
        let (first, second, other) = tokio::join!(counted.get(1), counted.get(1), counted.get(2));
        assert_eq!(first, second);
        assert_ne!(first, other);
        assert_eq!(counted.loads(), 2);
    }

    #[tokio::test]
    async fn errors_are_not_kept_and_an_abandoned_load_is_repeated() {
        let cache: Cache<u32, u32> = Cache::new(10);
        let failed = cache
            .get(&1, async || Err::<Loaded<u32>, _>("failed"))
            .await;
        assert_eq!(failed, Err("failed"));
        let abandoned = cache.get(&1, async || std::future::pending::<Result<_, &str>>().await);
        drop(abandoned);
        let loaded = Loaded {
            value: 5,
            ttl: TTL,
            is_valuable: true,
        };
        let found = cache.get(&1, async || Ok::<_, &str>(loaded)).await;
        assert_eq!(found, Ok(5));
    }

    #[tokio::test(start_paused = true)]
    async fn a_flood_of_worthless_values_displaces_no_valuable_one() {
        let counted = Counted::new(64);
        for key in 0..32 {
            counted.get(key).await;
        }
        for key in 1000..5000 {
            counted.get(key).await;
            assert!(counted.cache.entries.lock().len() <= 64);
        }
        let before = counted.loads();
        for key in 0..32 {
            counted.get(key).await;
        }
        assert_eq!(counted.loads(), before);
    }
}
