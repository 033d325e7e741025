//! Detects problems of a port that the user should know of: silence, and requests that the program missed.

use std::collections::BTreeMap;
use std::time::Duration;

use protocol::rpc::MissedTraffic;
use tokio::time::Instant;

use crate::event::{IncomingEventKind, MissedReason, RedirectCheck};

/// A port without traffic is reported after this time.
const SILENCE_TIMEOUT: Duration = Duration::from_secs(60);
/// The minimum time between two reports of missed requests.
const REPORT_INTERVAL: Duration = Duration::from_secs(10);

/// The observations on one port. The current time is an argument.
#[derive(Debug)]
pub(super) struct PortDiagnostics {
    since: Instant,
    check: RedirectCheck,
    filter: Option<String>,
    traffic_seen: bool,
    has_connections: bool,
    silence_reported: bool,
    /// Sessions with earlier claims leave nothing.
    expects_nothing: bool,
    missed: BTreeMap<u8, (MissedReason, u64, u64)>,
    mirrors_dropped: u64,
    last_report: Option<Instant>,
}

impl PortDiagnostics {
    pub(super) fn new(now: Instant, check: RedirectCheck, filter: Option<String>) -> Self {
        Self {
            since: now,
            check,
            filter,
            traffic_seen: false,
            has_connections: false,
            silence_reported: false,
            expects_nothing: false,
            missed: BTreeMap::new(),
            mirrors_dropped: 0,
            last_report: None,
        }
    }

    /// Sets how far the redirection was verified, at the agent with the weakest result.
    pub(super) fn set_check(&mut self, check: RedirectCheck) {
        self.check = check;
    }

    /// Sets whether no traffic is expected, because other sessions take it.
    pub(super) fn set_expects_nothing(&mut self, expects_nothing: bool, now: Instant) {
        if self.expects_nothing && !expects_nothing {
            self.since = now;
        }
        self.expects_nothing = expects_nothing;
    }

    /// A connection was received for the program.
    pub(super) fn connection_received(&mut self) {
        self.has_connections = true;
    }

    pub(super) fn traffic_seen(&mut self) -> Option<IncomingEventKind> {
        let is_first = !self.traffic_seen;
        self.traffic_seen = true;
        is_first.then_some(IncomingEventKind::TrafficSeen)
    }

    pub(super) fn missed(&mut self, missed: &MissedTraffic) {
        let reason = MissedReason::from(missed.reason());
        let entry = self.missed.entry(reason as u8).or_insert((reason, 0, 0));
        entry.1 += 1;
        entry.2 += u64::from(missed.lost);
    }

    pub(super) fn mirror_dropped(&mut self) {
        self.mirrors_dropped += 1;
    }

    /// Takes the events that are due. Similar observations are combined into one event and reported at intervals.
    pub(super) fn due_events(&mut self, now: Instant) -> Vec<IncomingEventKind> {
        let mut events: Vec<IncomingEventKind> = self.silence_event(now).into_iter().collect();
        let is_due = self
            .last_report
            .is_none_or(|last| now.duration_since(last) >= REPORT_INTERVAL);
        if !is_due || self.missed.is_empty() && self.mirrors_dropped == 0 {
            return events;
        }
        self.last_report = Some(now);
        events.extend(self.pending_events());
        events
    }

    /// Takes the events that are not reported yet, also if they are not due.
    pub(super) fn pending_events(&mut self) -> Vec<IncomingEventKind> {
        let mut events = Vec::new();
        for (_, (reason, count, lost)) in std::mem::take(&mut self.missed) {
            events.push(IncomingEventKind::Missed {
                reason,
                count,
                lost,
            });
        }
        let count = std::mem::take(&mut self.mirrors_dropped);
        if count > 0 {
            events.push(IncomingEventKind::MirrorsDropped { count });
        }
        events
    }

    fn silence_event(&mut self, now: Instant) -> Option<IncomingEventKind> {
        let is_expected = self.has_connections || self.expects_nothing;
        if self.silence_reported || is_expected || now.duration_since(self.since) < SILENCE_TIMEOUT
        {
            return None;
        }
        self.silence_reported = true;
        let seconds = SILENCE_TIMEOUT.as_secs();
        match (&self.filter, self.traffic_seen) {
            (Some(filter), true) => Some(IncomingEventKind::NothingMatched {
                seconds,
                filter: filter.clone(),
            }),
            (_, false) => Some(IncomingEventKind::Silent {
                seconds,
                check: self.check,
            }),
            (None, true) => None,
        }
    }
}

#[cfg(test)]
mod tests {
    use protocol::rpc::MissedReason as Reason;

    use super::*;

    fn missed(reason: Reason, lost: bool) -> MissedTraffic {
        MissedTraffic {
            reason: reason.into(),
            lost,
            ..MissedTraffic::default()
        }
    }

    #[test]
    fn missed_requests_are_combined_and_reported_at_intervals() {
        let start = Instant::now();
        let mut diagnostics = PortDiagnostics::new(start, RedirectCheck::External, None);
        diagnostics.connection_received();
        assert_eq!(diagnostics.due_events(start), []);
        diagnostics.missed(&missed(Reason::NoResponse, false));
        diagnostics.missed(&missed(Reason::NoResponse, true));
        diagnostics.missed(&missed(Reason::TooSlow, false));
        diagnostics.mirror_dropped();
        let event = |reason, count, lost| IncomingEventKind::Missed {
            reason,
            count,
            lost,
        };
        let expected = [
            event(MissedReason::NoResponse, 2, 1),
            event(MissedReason::TooSlow, 1, 0),
            IncomingEventKind::MirrorsDropped { count: 1 },
        ];
        assert_eq!(diagnostics.due_events(start), expected);
        diagnostics.missed(&missed(Reason::Unreachable, false));
        let soon = start + REPORT_INTERVAL / 2;
        assert_eq!(diagnostics.due_events(soon), []);
        diagnostics.missed(&missed(Reason::Unreachable, false));
        let later = start + REPORT_INTERVAL;
        assert_eq!(
            diagnostics.due_events(later),
            [event(MissedReason::Unreachable, 2, 0)]
        );
        assert_eq!(diagnostics.due_events(later + SILENCE_TIMEOUT), []);
    }

    #[test]
    fn silence_is_reported_once_with_the_probable_cause() {
        let start = Instant::now();
        let check =
            |filter: Option<&str>, seen: bool, connected: bool, expected: &[IncomingEventKind]| {
                let mut diagnostics =
                    PortDiagnostics::new(start, RedirectCheck::Loopback, filter.map(str::to_owned));
                if seen {
                    assert_eq!(
                        diagnostics.traffic_seen(),
                        Some(IncomingEventKind::TrafficSeen)
                    );
                    assert_eq!(diagnostics.traffic_seen(), None);
                }
                if connected {
                    diagnostics.connection_received();
                }
                assert_eq!(diagnostics.due_events(start + SILENCE_TIMEOUT / 2), []);
                assert_eq!(diagnostics.due_events(start + SILENCE_TIMEOUT), expected);
                assert_eq!(diagnostics.due_events(start + SILENCE_TIMEOUT * 2), []);
            };
        let silent = IncomingEventKind::Silent {
            seconds: 60,
            check: RedirectCheck::Loopback,
        };
        let unmatched = IncomingEventKind::NothingMatched {
            seconds: 60,
            filter: "are POST".to_owned(),
        };
        check(None, false, false, std::slice::from_ref(&silent));
        check(Some("are POST"), false, false, &[silent]);
        check(Some("are POST"), true, false, &[unmatched]);
        check(None, true, true, &[]);
    }

    #[test]
    fn silence_is_not_reported_while_other_sessions_take_everything() {
        let start = Instant::now();
        let mut diagnostics = PortDiagnostics::new(start, RedirectCheck::External, None);
        diagnostics.set_expects_nothing(true, start);
        let available = start + SILENCE_TIMEOUT * 3;
        assert_eq!(diagnostics.due_events(available), []);
        diagnostics.set_expects_nothing(false, available);
        assert_eq!(diagnostics.due_events(available + SILENCE_TIMEOUT / 2), []);
        assert_eq!(diagnostics.due_events(available + SILENCE_TIMEOUT).len(), 1);
    }
}
