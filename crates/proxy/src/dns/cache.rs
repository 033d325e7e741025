//! The cache of DNS responses. It is limited in number and size; the entries that expire first are evicted.

use std::collections::{BTreeMap, HashMap};
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use tokio::time::Instant;

use super::response::DnsResponse;

/// The limits of the cache.
#[derive(Debug, Clone, Copy)]
pub(crate) struct CacheLimits {
    pub(crate) entries: usize,
    pub(crate) bytes: usize,
}

impl Default for CacheLimits {
    fn default() -> Self {
        Self {
            entries: 4096,
            bytes: 4 << 20,
        }
    }
}

#[derive(Debug, Default)]
pub(crate) struct ResponseCache {
    limits: CacheLimits,
    entries: HashMap<Bytes, Entry>,
    /// The keys in the order of their expiry. The number distinguishes entries that expire at the same time.
    expiries: BTreeMap<(Instant, u64), Bytes>,
    bytes: usize,
    last_number: u64,
}

#[derive(Debug)]
struct Entry {
    response: Arc<DnsResponse>,
    inserted_at: Instant,
    expiry: (Instant, u64),
    bytes: usize,
}

impl ResponseCache {
    pub(crate) fn new(limits: CacheLimits) -> Self {
        Self {
            limits,
            ..Self::default()
        }
    }

    /// A response that has not expired, and its age.
    pub(crate) fn get(&self, key: &Bytes, now: Instant) -> Option<(Arc<DnsResponse>, Duration)> {
        let entry = self.entries.get(key).filter(|entry| now < entry.expiry.0)?;
        Some((Arc::clone(&entry.response), now - entry.inserted_at))
    }

    /// Caches a response until it expires, if it may be cached and fits.
    pub(crate) fn insert(&mut self, key: Bytes, response: &Arc<DnsResponse>, now: Instant) {
        self.remove(&key);
        let Some(ttl) = response.cache_ttl() else {
            return;
        };
        let bytes = key.len() * 2 + response.size() + size_of::<Entry>();
        if bytes > self.limits.bytes {
            return;
        }
        self.last_number += 1;
        let entry = Entry {
            response: Arc::clone(response),
            inserted_at: now,
            expiry: (now + ttl, self.last_number),
            bytes,
        };
        self.bytes += bytes;
        self.expiries.insert(entry.expiry, key.clone());
        self.entries.insert(key, entry);
        self.make_room(now);
    }

    fn make_room(&mut self, now: Instant) {
        while let Some(((expiry, _), key)) = self.expiries.first_key_value() {
            let full = self.entries.len() > self.limits.entries || self.bytes > self.limits.bytes;
            if !full && *expiry > now {
                return;
            }
            let key = key.clone();
            self.remove(&key);
        }
    }

    fn remove(&mut self, key: &Bytes) {
        if let Some(entry) = self.entries.remove(key) {
            self.expiries.remove(&entry.expiry);
            self.bytes -= entry.bytes;
        }
    }
}

#[cfg(test)]
mod tests;
