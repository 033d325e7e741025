//! A histogram of latencies.

use serde::{Deserialize, Serialize};

/// From 128 µs on, each bucket is twice as wide as the one before; the last one is unbounded.
const BUCKETS: usize = 20;
const FIRST_BITS: u32 = 7;

/// Counts by latency. The difference of two snapshots is the histogram of the time between them.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(transparent)]
pub struct Latencies([u64; BUCKETS]);

impl Default for Latencies {
    fn default() -> Self {
        Self([0; BUCKETS])
    }
}

impl Latencies {
    pub fn add(&mut self, microseconds: u64) {
        let bits = u64::BITS - microseconds.leading_zeros();
        let bucket = bits.saturating_sub(FIRST_BITS) as usize;
        self.0[bucket.min(BUCKETS - 1)] += 1;
    }

    pub fn count(&self) -> u64 {
        self.0.iter().sum()
    }

    /// The percentile in microseconds, rounded up to the end of its bucket.
    pub fn percentile(&self, percent: u64) -> Option<u64> {
        let rank = (self.count() * percent).div_ceil(100).max(1);
        let mut sum = 0;
        for (bucket, count) in self.0.iter().enumerate() {
            sum += count;
            if sum >= rank {
                return Some(1 << (bucket as u32 + FIRST_BITS));
            }
        }
        None
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn percentiles_are_ends_of_buckets() {
        let mut latencies = Latencies::default();
        assert_eq!(latencies.percentile(50), None);
        for microseconds in [0, 100, 127, 128, 1000, u64::MAX] {
            latencies.add(microseconds);
        }
        assert_eq!(latencies.count(), 6);
        assert_eq!(latencies.percentile(50), Some(128));
        assert_eq!(latencies.percentile(66), Some(256));
        assert_eq!(latencies.percentile(80), Some(1024));
        assert_eq!(latencies.percentile(100), Some(1 << 26));
    }
}
