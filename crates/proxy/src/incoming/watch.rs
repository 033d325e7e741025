//! What is worth a word about a port: how long it was silent, and what went past the program.

use std::collections::BTreeMap;
use std::time::Duration;

use protocol::rpc::Missed;
use tokio::time::Instant;

use crate::event::{Checked, MissedReason, News};

/// Nothing for so long is worth a word.
const SILENCE: Duration = Duration::from_secs(60);
/// Between two words about the same thing.
const BETWEEN_WORDS: Duration = Duration::from_secs(10);

/// What has happened to a subscription. Now is an argument.
#[derive(Debug)]
pub(super) struct Watch {
    since: Instant,
    checked: Checked,
    filter: Option<String>,
    traffic_seen: bool,
    has_arrived: bool,
    silence_told: bool,
    /// Others are served first, and leave nothing.
    expects_nothing: bool,
    missed: BTreeMap<u8, (MissedReason, u64, u64)>,
    copies_dropped: u64,
    last_word: Option<Instant>,
}

impl Watch {
    pub(super) fn new(now: Instant, checked: Checked, filter: Option<String>) -> Self {
        Self {
            since: now,
            checked,
            filter,
            traffic_seen: false,
            has_arrived: false,
            silence_told: false,
            expects_nothing: false,
            missed: BTreeMap::new(),
            copies_dropped: 0,
            last_word: None,
        }
    }

    /// How far it is known that traffic comes, of the agent that knows least.
    pub(super) fn checked(&mut self, checked: Checked) {
        self.checked = checked;
    }

    /// Whether nothing can come, because others take it.
    pub(super) fn expect_nothing(&mut self, expects_nothing: bool, now: Instant) {
        if self.expects_nothing && !expects_nothing {
            self.since = now;
        }
        self.expects_nothing = expects_nothing;
    }

    /// A connection has come to the program.
    pub(super) fn arrived(&mut self) {
        self.has_arrived = true;
    }

    pub(super) fn traffic_seen(&mut self) -> Option<News> {
        let first = !self.traffic_seen;
        self.traffic_seen = true;
        first.then_some(News::TrafficSeen)
    }

    pub(super) fn missed(&mut self, missed: &Missed) {
        let reason = MissedReason::from(missed.reason());
        let entry = self.missed.entry(reason as u8).or_insert((reason, 0, 0));
        entry.1 += 1;
        entry.2 += u64::from(missed.lost);
    }

    pub(super) fn copy_dropped(&mut self) {
        self.copies_dropped += 1;
    }

    /// What should be said now. Much of the same is said in one sentence, and not too often.
    pub(super) fn news(&mut self, now: Instant) -> Vec<News> {
        let mut news: Vec<News> = self.silence(now).into_iter().collect();
        let is_time = self
            .last_word
            .is_none_or(|last| now.duration_since(last) >= BETWEEN_WORDS);
        if !is_time || self.missed.is_empty() && self.copies_dropped == 0 {
            return news;
        }
        self.last_word = Some(now);
        for (_, (reason, count, lost)) in std::mem::take(&mut self.missed) {
            news.push(News::Missed {
                reason,
                count,
                lost,
            });
        }
        let count = std::mem::take(&mut self.copies_dropped);
        if count > 0 {
            news.push(News::CopiesDropped { count });
        }
        news
    }

    fn silence(&mut self, now: Instant) -> Option<News> {
        let is_no_wonder = self.has_arrived || self.expects_nothing;
        if self.silence_told || is_no_wonder || now.duration_since(self.since) < SILENCE {
            return None;
        }
        self.silence_told = true;
        let seconds = SILENCE.as_secs();
        match (&self.filter, self.traffic_seen) {
            (Some(filter), true) => Some(News::NothingMatched {
                seconds,
                filter: filter.clone(),
            }),
            (_, false) => Some(News::Silent {
                seconds,
                checked: self.checked,
            }),
            (None, true) => None,
        }
    }
}

#[cfg(test)]
mod tests {
    use protocol::rpc::MissedReason as Reason;

    use super::*;

    fn missed(reason: Reason, lost: bool) -> Missed {
        Missed {
            reason: reason.into(),
            lost,
            ..Missed::default()
        }
    }

    #[test]
    fn what_was_missed_is_told_together_and_not_too_often() {
        let start = Instant::now();
        let mut watch = Watch::new(start, Checked::Outside, None);
        watch.arrived();
        assert_eq!(watch.news(start), []);
        watch.missed(&missed(Reason::NoAnswer, false));
        watch.missed(&missed(Reason::NoAnswer, true));
        watch.missed(&missed(Reason::TooSlow, false));
        watch.copy_dropped();
        let told = |reason, count, lost| News::Missed {
            reason,
            count,
            lost,
        };
        let expected = [
            told(MissedReason::NoAnswer, 2, 1),
            told(MissedReason::TooSlow, 1, 0),
            News::CopiesDropped { count: 1 },
        ];
        assert_eq!(watch.news(start), expected);
        watch.missed(&missed(Reason::Unreachable, false));
        let soon = start + BETWEEN_WORDS / 2;
        assert_eq!(watch.news(soon), []);
        watch.missed(&missed(Reason::Unreachable, false));
        let later = start + BETWEEN_WORDS;
        assert_eq!(watch.news(later), [told(MissedReason::Unreachable, 2, 0)]);
        assert_eq!(watch.news(later + SILENCE), []);
    }

    #[test]
    fn silence_is_told_once_with_what_is_known() {
        let start = Instant::now();
        let check = |filter: Option<&str>, seen: bool, arrived: bool, expected: &[News]| {
            let mut watch = Watch::new(start, Checked::Loopback, filter.map(str::to_owned));
            if seen {
                assert_eq!(watch.traffic_seen(), Some(News::TrafficSeen));
                assert_eq!(watch.traffic_seen(), None);
            }
            if arrived {
                watch.arrived();
            }
            assert_eq!(watch.news(start + SILENCE / 2), []);
            assert_eq!(watch.news(start + SILENCE), expected);
            assert_eq!(watch.news(start + SILENCE * 2), []);
        };
        let silent = News::Silent {
            seconds: 60,
            checked: Checked::Loopback,
        };
        let unmatched = News::NothingMatched {
            seconds: 60,
            filter: "are POST".to_owned(),
        };
        check(None, false, false, std::slice::from_ref(&silent));
        check(Some("are POST"), false, false, &[silent]);
        check(Some("are POST"), true, false, &[unmatched]);
        check(None, true, true, &[]);
    }

    #[test]
    fn silence_is_no_news_while_others_take_everything() {
        let start = Instant::now();
        let mut watch = Watch::new(start, Checked::Outside, None);
        watch.expect_nothing(true, start);
        let turn = start + SILENCE * 3;
        assert_eq!(watch.news(turn), []);
        watch.expect_nothing(false, turn);
        assert_eq!(watch.news(turn + SILENCE / 2), []);
        assert_eq!(watch.news(turn + SILENCE).len(), 1);
    }
}
