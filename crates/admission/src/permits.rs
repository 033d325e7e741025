//! Which connection loses its permit when there are too many.

use std::collections::{BTreeSet, HashMap};
use std::net::IpAddr;

/// How many permits can be held at the same time.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Limits {
    pub total: usize,
    /// By connections from one address.
    pub per_source: usize,
}

/// The permits that are held. Permits are numbered in the order in which they were granted.
#[derive(Debug)]
pub(crate) struct Permits {
    limits: Limits,
    next: u64,
    by_source: HashMap<IpAddr, BTreeSet<u64>>,
    held: usize,
}

impl Permits {
    pub(crate) fn new(limits: Limits) -> Self {
        Self {
            limits,
            next: 0,
            by_source: HashMap::new(),
            held: 0,
        }
    }

    pub(crate) fn held(&self) -> usize {
        self.held
    }

    /// Grants a permit. Returns its number, and the number of the permit that is lost for it.
    pub(crate) fn grant(&mut self, source: IpAddr) -> (u64, Option<u64>) {
        let evicted = self
            .source_over_limit(source)
            .and_then(|source| self.release_oldest(source));
        let number = self.next;
        self.next += 1;
        self.by_source.entry(source).or_default().insert(number);
        self.held += 1;
        (number, evicted)
    }

    pub(crate) fn release(&mut self, source: IpAddr, number: u64) {
        let Some(permits) = self.by_source.get_mut(&source) else {
            return;
        };
        if permits.remove(&number) {
            self.held -= 1;
        }
        if permits.is_empty() {
            self.by_source.remove(&source);
        }
    }

    /// The source that must lose a permit before this source can get one.
    fn source_over_limit(&self, source: IpAddr) -> Option<IpAddr> {
        let own = self.by_source.get(&source).map_or(0, BTreeSet::len);
        if own >= self.limits.per_source {
            return Some(source);
        }
        if self.held < self.limits.total {
            return None;
        }
        // Among sources with the same number, the one with the oldest permit.
        let oldest = |permits: &BTreeSet<u64>| permits.first().copied().unwrap_or(u64::MAX);
        self.by_source
            .iter()
            .max_by_key(|(_, permits)| (permits.len(), u64::MAX - oldest(permits)))
            .map(|(source, _)| *source)
    }

    fn release_oldest(&mut self, source: IpAddr) -> Option<u64> {
        let oldest = self.by_source.get(&source)?.first().copied()?;
        self.release(source, oldest);
        Some(oldest)
    }
}

#[cfg(test)]
mod tests {
    use std::net::Ipv4Addr;

    use super::*;

    fn source(name: char) -> IpAddr {
        Ipv4Addr::from(u32::from(name)).into()
    }

    /// Each letter is a connection from the source of this name, and the result names the evicted connection of each by its
    /// position, or `.` for none.
    fn check(limits: Limits, connections: &str, expected: &str) {
        let mut permits = Permits::new(limits);
        let evicted: String = connections
            .chars()
            .map(|name| match permits.grant(source(name)).1 {
                Some(number) => char::from_digit(u32::try_from(number).unwrap(), 36).unwrap(),
                None => '.',
            })
            .collect();
        assert_eq!(evicted, expected, "{connections}");
        assert!(permits.held() <= limits.total);
    }

    #[test]
    fn the_source_with_the_most_permits_loses_its_oldest() {
        let limits = Limits {
            total: 4,
            per_source: 3,
        };
        for (connections, expected) in [
            ("abcd", "...."),
            // One source fills its own share, and then loses its own oldest.
            ("aaaaaa", "...012"),
            // Another source is not affected by it.
            ("aaaab", "...0."),
            ("aaabbbb", "....013"),
            // With the same number of permits, the source with the oldest permit loses it.
            ("abcde", "....0"),
            ("aabbc", "....0"),
            ("babac", "....0"),
            // A single connection among many of others is safe.
            ("baaaaaaaaa", "....123456"),
        ] {
            check(limits, connections, expected);
        }
    }

    #[test]
    fn released_permits_can_be_granted_again() {
        let limits = Limits {
            total: 2,
            per_source: 2,
        };
        let mut permits = Permits::new(limits);
        let (first, _) = permits.grant(source('a'));
        let (second, _) = permits.grant(source('b'));
        permits.release(source('a'), first);
        assert_eq!(permits.grant(source('c')).1, None);
        // A permit that was evicted is released a second time by its owner.
        assert_eq!(permits.grant(source('d')).1, Some(second));
        permits.release(source('b'), second);
        assert_eq!(permits.held(), 2);
    }
}
