//! Answers that may be given again. Bounded in number and size: what would be gone first anyway makes room.

use std::collections::{BTreeMap, HashMap};
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use tokio::time::Instant;

use super::answer::Answer;

/// How much is kept.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Bounds {
    pub(crate) entries: usize,
    pub(crate) bytes: usize,
}

impl Default for Bounds {
    fn default() -> Self {
        Self {
            entries: 4096,
            bytes: 4 << 20,
        }
    }
}

#[derive(Debug, Default)]
pub(crate) struct Cache {
    bounds: Bounds,
    entries: HashMap<Bytes, Entry>,
    /// In the order in which they end. The number tells apart what ends at the same time.
    ends: BTreeMap<(Instant, u64), Bytes>,
    bytes: usize,
    last_number: u64,
}

#[derive(Debug)]
struct Entry {
    answer: Arc<Answer>,
    came: Instant,
    end: (Instant, u64),
    bytes: usize,
}

impl Cache {
    pub(crate) fn new(bounds: Bounds) -> Self {
        Self {
            bounds,
            ..Self::default()
        }
    }

    /// An answer that still holds, and how old it is.
    pub(crate) fn get(&self, key: &Bytes, now: Instant) -> Option<(Arc<Answer>, Duration)> {
        let entry = self.entries.get(key).filter(|entry| now < entry.end.0)?;
        Some((Arc::clone(&entry.answer), now - entry.came))
    }

    /// Keeps an answer as long as it says, if it says so and fits.
    pub(crate) fn insert(&mut self, key: Bytes, answer: &Arc<Answer>, now: Instant) {
        self.remove(&key);
        let Some(lifetime) = answer.lifetime() else {
            return;
        };
        let bytes = key.len() * 2 + answer.size() + size_of::<Entry>();
        if bytes > self.bounds.bytes {
            return;
        }
        self.last_number += 1;
        let entry = Entry {
            answer: Arc::clone(answer),
            came: now,
            end: (now + lifetime, self.last_number),
            bytes,
        };
        self.bytes += bytes;
        self.ends.insert(entry.end, key.clone());
        self.entries.insert(key, entry);
        self.make_room(now);
    }

    fn make_room(&mut self, now: Instant) {
        while let Some(((end, _), key)) = self.ends.first_key_value() {
            let full = self.entries.len() > self.bounds.entries || self.bytes > self.bounds.bytes;
            if !full && *end > now {
                return;
            }
            let key = key.clone();
            self.remove(&key);
        }
    }

    fn remove(&mut self, key: &Bytes) {
        if let Some(entry) = self.entries.remove(key) {
            self.ends.remove(&entry.end);
            self.bytes -= entry.bytes;
        }
    }
}

#[cfg(test)]
mod tests;
