//! Combines similar messages, so that a program that causes many of them does not fill the terminal.
//!
//! The first message of a kind is printed at once, unless the kind is minor. Later ones are collected, and printed as one
//! line with their number when no more of them follow. Such lines come at growing intervals. A message with the same subject
//! as an earlier one is dropped. The current time is an argument.

use std::collections::HashSet;
use std::hash::{DefaultHasher, Hash as _, Hasher as _};
use std::time::{Duration, Instant};

use proxy::EventKind;

/// Collected messages are printed when no more of their kind followed for this time.
const DEBOUNCE: Duration = Duration::from_secs(2);
/// Collected messages are printed after this time also if more of them follow.
const MAX_DELAY: Duration = Duration::from_secs(30);
/// The time between two lines for collected messages of one kind. It doubles with each line.
const MIN_INTERVAL: Duration = Duration::from_secs(60);
const MAX_INTERVAL: Duration = Duration::from_secs(3600);
/// How many subjects of a kind are remembered. Later ones are counted also if they are repeated.
const MAX_REMEMBERED: usize = 10_000;

/// The messages of each kind, in the order of the first ones.
#[derive(Debug, Default)]
pub(super) struct Notices {
    groups: Vec<Group>,
}

/// A line for collected messages.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum Collected {
    /// The only message, which needs no more room than its number.
    One(String),
    Many(EventKind, usize),
}

#[derive(Debug)]
struct Group {
    kind: EventKind,
    /// Hashes of the subjects.
    seen: HashSet<u64>,
    pending: Option<Pending>,
    /// Collected messages are not printed before this time.
    not_before: Option<Instant>,
    interval: Duration,
}

/// Messages that are not printed yet.
#[derive(Debug)]
struct Pending {
    line: Collected,
    first: Instant,
    last: Instant,
}

impl Notices {
    /// Adds a message. Returns it if it is to be printed at once.
    pub(super) fn add(
        &mut self,
        kind: EventKind,
        subject: &str,
        text: String,
        now: Instant,
    ) -> Option<String> {
        if let Some(group) = self.groups.iter_mut().find(|group| group.kind == kind) {
            if group.is_new(subject) {
                group.collect(text, now);
            }
            return None;
        }
        let mut group = Group::new(kind);
        group.is_new(subject);
        let printed = match kind.is_minor() {
            true => {
                group.collect(text, now);
                None
            }
            false => Some(text),
        };
        self.groups.push(group);
        printed
    }

    /// When the next collected messages are due.
    pub(super) fn next_due(&self) -> Option<Instant> {
        self.groups.iter().filter_map(Group::due).min()
    }

    /// Takes the collected messages that are due.
    pub(super) fn take_due(&mut self, now: Instant) -> Vec<Collected> {
        let is_due = |group: &&mut Group| group.due().is_some_and(|due| due <= now);
        let due = self.groups.iter_mut().filter(is_due);
        due.filter_map(|group| group.take(now)).collect()
    }

    /// Takes all collected messages.
    pub(super) fn take_all(&mut self, now: Instant) -> Vec<Collected> {
        let groups = self.groups.iter_mut();
        groups.filter_map(|group| group.take(now)).collect()
    }
}

impl Group {
    fn new(kind: EventKind) -> Self {
        Self {
            kind,
            seen: HashSet::new(),
            pending: None,
            not_before: None,
            interval: MIN_INTERVAL,
        }
    }

    fn is_new(&mut self, subject: &str) -> bool {
        let mut hasher = DefaultHasher::new();
        subject.hash(&mut hasher);
        let hash = hasher.finish();
        match self.seen.len() < MAX_REMEMBERED {
            true => self.seen.insert(hash),
            false => !self.seen.contains(&hash),
        }
    }

    fn collect(&mut self, text: String, now: Instant) {
        let kind = self.kind;
        match &mut self.pending {
            None => {
                self.pending = Some(Pending {
                    line: Collected::One(text),
                    first: now,
                    last: now,
                });
            }
            Some(pending) => {
                pending.last = now;
                pending.line = match &pending.line {
                    Collected::One(_) => Collected::Many(kind, 2),
                    Collected::Many(_, count) => Collected::Many(kind, count + 1),
                };
            }
        }
    }

    fn due(&self) -> Option<Instant> {
        let pending = self.pending.as_ref()?;
        let settled = (pending.last + DEBOUNCE).min(pending.first + MAX_DELAY);
        Some(self.not_before.map_or(settled, |time| time.max(settled)))
    }

    fn take(&mut self, now: Instant) -> Option<Collected> {
        let pending = self.pending.take()?;
        self.not_before = Some(now + self.interval);
        self.interval = (self.interval * 2).min(MAX_INTERVAL);
        Some(pending.line)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const KIND: EventKind = EventKind::WatchRefused;

    /// A session in seconds.
    struct Session {
        notices: Notices,
        start: Instant,
    }

    impl Session {
        fn new() -> Self {
            Self {
                notices: Notices::default(),
                start: Instant::now(),
            }
        }

        fn at(&self, seconds: u64) -> Instant {
            self.start + Duration::from_secs(seconds)
        }

        fn add(&mut self, seconds: u64, text: &str) -> Option<String> {
            let now = self.at(seconds);
            self.notices.add(KIND, text, text.to_owned(), now)
        }

        fn next_due(&self) -> Option<u64> {
            let due = self.notices.next_due()?;
            Some(due.duration_since(self.start).as_secs())
        }

        #[track_caller]
        fn expect(&mut self, seconds: u64, expected: &[Collected]) {
            let now = self.at(seconds);
            assert_eq!(self.notices.take_due(now), expected, "after {seconds} s");
        }
    }

    fn one(text: &str) -> Collected {
        Collected::One(text.to_owned())
    }

    #[test]
    fn the_first_message_is_printed_at_once_and_the_others_as_one_line() {
        let mut session = Session::new();
        assert_eq!(session.add(0, "path 0"), Some("path 0".to_owned()));
        assert_eq!(session.next_due(), None);
        for number in 1..13 {
            assert_eq!(session.add(1, &format!("path {number}")), None);
        }
        assert_eq!(session.next_due(), Some(3));
        session.expect(2, &[]);
        session.expect(3, &[Collected::Many(KIND, 12)]);
        assert_eq!(session.next_due(), None);
        session.expect(1000, &[]);
    }

    #[test]
    fn a_repeated_message_is_dropped_and_a_single_message_is_printed_in_full() {
        let mut session = Session::new();
        assert!(session.add(0, "path 0").is_some());
        assert_eq!(session.add(1, "path 0"), None);
        assert_eq!(session.next_due(), None);
        session.add(1, "path 1");
        session.add(2, "path 1");
        session.expect(3, &[one("path 1")]);
        assert_eq!(session.add(100, "path 1"), None);
        assert_eq!(session.next_due(), None);
    }

    #[test]
    fn messages_that_keep_coming_are_printed_at_growing_intervals() {
        let mut session = Session::new();
        let mut printed = Vec::new();
        for second in 0..1000 {
            session.add(second, &format!("path {second}"));
            let now = session.at(second);
            for line in session.notices.take_due(now) {
                printed.push((second, line));
            }
        }
        let many = |count| Collected::Many(KIND, count);
        let expected = [
            (31, many(31)),
            (91, many(60)),
            (211, many(120)),
            (451, many(240)),
            (931, many(480)),
        ];
        assert_eq!(printed, expected);
        let end = session.at(1000);
        assert_eq!(session.notices.take_all(end), [many(68)]);
    }

    #[test]
    fn kinds_are_independent() {
        let mut session = Session::new();
        session.add(0, "path 0");
        session.add(1, "path 1");
        let now = session.at(2);
        let other = EventKind::SpecialFile;
        let mut add = |text: &str| session.notices.add(other, text, text.to_owned(), now);
        assert_eq!(add("path 0"), Some("path 0".to_owned()));
        assert_eq!(add("path 1"), None);
        assert_eq!(add("path 2"), None);
        session.expect(3, &[one("path 1")]);
        session.expect(4, &[Collected::Many(other, 2)]);
    }

    #[test]
    fn minor_messages_are_all_collected() {
        let (mut notices, start) = (Notices::default(), Instant::now());
        let kind = EventKind::UnexpectedPort;
        let mut add = |port: u16, text: &str, seconds| {
            let now = start + Duration::from_secs(seconds);
            let subject = format!("port {port}");
            assert_eq!(notices.add(kind, &subject, text.to_owned(), now), None);
            notices.take_due(now)
        };
        assert_eq!(add(1, "one", 0), []);
        // The port is the same, so it is not counted again.
        assert_eq!(add(1, "again", 5), [one("one")]);
        for port in 2..=198 {
            assert_eq!(add(port, "more", 100), []);
        }
        assert_eq!(add(1, "again", 102), [Collected::Many(kind, 197)]);
    }

    #[test]
    fn memory_does_not_grow_with_the_number_of_messages() {
        let mut session = Session::new();
        for number in 0..=MAX_REMEMBERED + 10 {
            session.add(0, &format!("path {number}"));
        }
        assert_eq!(session.notices.groups[0].seen.len(), MAX_REMEMBERED);
        let expected = Collected::Many(KIND, MAX_REMEMBERED + 10);
        session.expect(2, &[expected]);
    }
}
