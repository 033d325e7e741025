use hickory_proto::rr::RecordType;
use protocol::dns::Query;

use super::*;
use crate::dns::response::tests::{ResponseContent, a, encode_response, query_message};

fn response(seconds: u32) -> Arc<DnsResponse> {
    let query = Query::new(&query_message("db.", RecordType::A, None), 0).unwrap();
    let content = ResponseContent {
        answers: vec![a("db.", seconds, "10.0.0.1")],
        ..ResponseContent::default()
    };
    let bytes = encode_response(query.message(), content);
    Arc::new(DnsResponse::new(&query, bytes))
}

fn key(number: usize) -> Bytes {
    number.to_be_bytes().to_vec().into()
}

#[test]
fn responses_are_cached_until_they_expire() {
    let start = Instant::now();
    let mut cache = ResponseCache::new(CacheLimits::default());
    cache.insert(key(1), &response(10), start);
    let age = |seconds| {
        let found = cache.get(&key(1), start + Duration::from_secs(seconds));
        found.map(|(_, age)| age.as_secs())
    };
    assert_eq!(age(0), Some(0));
    assert_eq!(age(9), Some(9));
    assert_eq!(age(10), None);
    assert!(cache.get(&key(2), start).is_none());
    // A response that must not be cached removes the earlier one.
    cache.insert(key(1), &response(0), start);
    assert!(cache.get(&key(1), start).is_none());
    assert_eq!(
        (cache.entries.len(), cache.expiries.len(), cache.bytes),
        (0, 0, 0)
    );
}

#[test]
fn the_cache_is_limited_in_number_and_size() {
    let start = Instant::now();
    let entry_bytes = {
        let mut cache = ResponseCache::new(CacheLimits::default());
        cache.insert(key(1), &response(10), start);
        cache.bytes
    };
    for (limits, max) in [
        (
            CacheLimits {
                entries: 5,
                bytes: usize::MAX,
            },
            5,
        ),
        (
            CacheLimits {
                entries: 1000,
                bytes: entry_bytes * 7,
            },
            7,
        ),
        (
            CacheLimits {
                entries: 1000,
                bytes: entry_bytes - 1,
            },
            0,
        ),
    ] {
        let mut cache = ResponseCache::new(limits);
        for number in 0..100 {
            // Later entries expire later here.
            let seconds = u32::try_from(number + 1).unwrap();
            cache.insert(key(number), &response(seconds), start);
            assert!(cache.entries.len() <= max);
            assert!(cache.bytes <= limits.bytes);
        }
        let kept = (0..100).filter(|number| cache.get(&key(*number), start).is_some());
        let expected: Vec<usize> = (100 - max..100).collect();
        assert_eq!(kept.collect::<Vec<_>>(), expected);
        assert_eq!(cache.expiries.len(), max);
    }
}

#[test]
fn expired_entries_are_evicted_first() {
    let start = Instant::now();
    let mut cache = ResponseCache::new(CacheLimits::default());
    for number in 0..50 {
        cache.insert(key(number), &response(1), start);
    }
    cache.insert(key(99), &response(100), start + Duration::from_secs(2));
    assert_eq!(cache.entries.len(), 1);
}
