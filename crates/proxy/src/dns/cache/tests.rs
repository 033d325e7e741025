use hickory_proto::rr::RecordType;
use protocol::dns::Query;

use super::*;
use crate::dns::answer::tests::{Said, a, question, said};

fn answer(seconds: u32) -> Arc<Answer> {
    let query = Query::new(&question("db.", RecordType::A, None), 0).unwrap();
    let content = Said {
        answers: vec![a("db.", seconds, "10.0.0.1")],
        ..Said::default()
    };
    let bytes = said(query.message(), content);
    Arc::new(Answer::new(&query, bytes))
}

fn key(number: usize) -> Bytes {
    number.to_be_bytes().to_vec().into()
}

#[test]
fn answers_are_kept_as_long_as_they_say() {
    let start = Instant::now();
    let mut cache = Cache::new(Bounds::default());
    cache.insert(key(1), &answer(10), start);
    let age = |seconds| {
        let found = cache.get(&key(1), start + Duration::from_secs(seconds));
        found.map(|(_, age)| age.as_secs())
    };
    assert_eq!(age(0), Some(0));
    assert_eq!(age(9), Some(9));
    assert_eq!(age(10), None);
    assert!(cache.get(&key(2), start).is_none());
    // One that must not be kept replaces the one that was.
    cache.insert(key(1), &answer(0), start);
    assert!(cache.get(&key(1), start).is_none());
    assert_eq!(
        (cache.entries.len(), cache.ends.len(), cache.bytes),
        (0, 0, 0)
    );
}

#[test]
fn it_is_bounded_in_number_and_size() {
    let start = Instant::now();
    let one = {
        let mut cache = Cache::new(Bounds::default());
        cache.insert(key(1), &answer(10), start);
        cache.bytes
    };
    for (bounds, most) in [
        (
            Bounds {
                entries: 5,
                bytes: usize::MAX,
            },
            5,
        ),
        (
            Bounds {
                entries: 1000,
                bytes: one * 7,
            },
            7,
        ),
        (
            Bounds {
                entries: 1000,
                bytes: one - 1,
            },
            0,
        ),
    ] {
        let mut cache = Cache::new(bounds);
        for number in 0..100 {
            // What is asked later lives longer here.
            let seconds = u32::try_from(number + 1).unwrap();
            cache.insert(key(number), &answer(seconds), start);
            assert!(cache.entries.len() <= most);
            assert!(cache.bytes <= bounds.bytes);
        }
        let kept = (0..100).filter(|number| cache.get(&key(*number), start).is_some());
        let expected: Vec<usize> = (100 - most..100).collect();
        assert_eq!(kept.collect::<Vec<_>>(), expected);
        assert_eq!(cache.ends.len(), most);
    }
}

#[test]
fn what_has_ended_makes_room_first() {
    let start = Instant::now();
    let mut cache = Cache::new(Bounds::default());
    for number in 0..50 {
        cache.insert(key(number), &answer(1), start);
    }
    cache.insert(key(99), &answer(100), start + Duration::from_secs(2));
    assert_eq!(cache.entries.len(), 1);
}
