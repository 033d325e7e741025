//! Limits of requests per source: a bucket per address that refills steadily. No clock.

use std::collections::HashMap;
use std::net::IpAddr;

use jiff::Timestamp;

use crate::configuration::RateConfiguration;

/// The limit of addresses in memory. Beyond it, those that have been idle for the longest time are forgotten.
const MAX_SOURCES: usize = 16 * 1024;

/// The buckets of all sources.
#[derive(Debug, Default)]
pub(crate) struct RateLimit {
    buckets: HashMap<IpAddr, Bucket>,
}

#[derive(Clone, Copy, Debug)]
struct Bucket {
    tokens: f64,
    updated: Timestamp,
}

impl RateLimit {
    /// Whether the source may send a request now. It counts if it may.
    pub(crate) fn admit(
        &mut self,
        source: IpAddr,
        rate: RateConfiguration,
        now: Timestamp,
    ) -> bool {
        let source = bucket_address(source);
        if self.buckets.len() >= MAX_SOURCES && !self.buckets.contains_key(&source) {
            self.forget_full(rate, now);
        }
        let full = Bucket {
            tokens: f64::from(rate.burst),
            updated: now,
        };
        let bucket = self.buckets.entry(source).or_insert(full);
        bucket.refill(rate, now);
        let is_admitted = bucket.tokens >= 1.0;
        if is_admitted {
            bucket.tokens -= 1.0;
        }
        is_admitted
    }

    /// A source whose bucket is full again is like one that is not known. If there are none, the longest idle ones go.
    fn forget_full(&mut self, rate: RateConfiguration, now: Timestamp) {
        self.buckets
            .retain(|_, bucket| bucket.level(rate, now) < f64::from(rate.burst));
        if self.buckets.len() >= MAX_SOURCES {
            let mut times: Vec<Timestamp> = self.buckets.values().map(|it| it.updated).collect();
            times.sort_unstable();
            let cut = times.get(MAX_SOURCES / 2).copied().unwrap_or(now);
            self.buckets.retain(|_, bucket| bucket.updated > cut);
        }
    }
}

impl Bucket {
    fn level(&self, rate: RateConfiguration, now: Timestamp) -> f64 {
        let elapsed = self.updated.duration_until(now).as_secs_f64().max(0.0);
        let refilled = self.tokens + elapsed * f64::from(rate.per_second);
        refilled.min(f64::from(rate.burst))
    }

    fn refill(&mut self, rate: RateConfiguration, now: Timestamp) {
        self.tokens = self.level(rate, now);
        self.updated = self.updated.max(now);
    }
}

/// A client has a whole IPv6 network of 64 bits, so the network is the source.
fn bucket_address(source: IpAddr) -> IpAddr {
    match source.to_canonical() {
        IpAddr::V6(address) => {
            let network = u128::from(address) >> 64 << 64;
            IpAddr::V6(network.into())
        }
        address => address,
    }
}

#[cfg(test)]
mod tests {
    use jiff::SignedDuration;

    use super::*;

    const RATE: RateConfiguration = RateConfiguration {
        per_second: 2,
        burst: 3,
    };

    fn at(millis: i64) -> Timestamp {
        Timestamp::UNIX_EPOCH + SignedDuration::from_millis(millis)
    }

    #[test]
    fn a_source_has_a_burst_and_then_a_rate_and_others_have_their_own() {
        let mut limit = RateLimit::default();
        let source: IpAddr = [10, 0, 0, 1].into();
        for (millis, expected) in [
            (0, true),
            (0, true),
            (0, true),
            (0, false),
            (499, false),
            (500, true),
            (500, false),
            (1000, true),
            (60_000, true),
            (60_000, true),
            (60_000, true),
            (60_000, false),
        ] {
            let admitted = limit.admit(source, RATE, at(millis));
            assert_eq!(admitted, expected, "at {millis} ms");
        }
        assert!(limit.admit([10, 0, 0, 2].into(), RATE, at(60_000)));
    }

    #[test]
    fn addresses_of_one_ipv6_network_are_one_source() {
        let mut limit = RateLimit::default();
        let address = |text: &str| text.parse::<IpAddr>().unwrap();
        for last in 1..=3 {
            assert!(limit.admit(address(&format!("2001:db8::{last}")), RATE, at(0)));
        }
        assert!(!limit.admit(address("2001:db8::4"), RATE, at(0)));
        assert!(limit.admit(address("2001:db8:0:1::1"), RATE, at(0)));
        assert!(limit.admit(address("::ffff:10.0.0.1"), RATE, at(0)));
    }

    #[test]
    fn memory_is_bounded() {
        let mut limit = RateLimit::default();
        let source = |number: u32| IpAddr::from(number.to_be_bytes());
        for number in 0..100_000 {
            limit.admit(source(number), RATE, at(i64::from(number) / 1000));
        }
        assert!(limit.buckets.len() <= MAX_SOURCES);
    }
}
