//! The round-trip time of the path, without the time that messages wait behind others. Pure: the time is an argument.
//!
//! A ping that is sent when the tunnel was idle before measures the path, and replaces what was known. One that is sent
//! between many bytes waits behind them, so it only counts if it is shorter: otherwise windows would grow with the queues that
//! they fill.

use std::time::{Duration, Instant};

/// How often the time is measured while there is traffic.
const INTERVAL: Duration = Duration::from_secs(1);
/// Without grants for so long, nothing waits on the path.
const IDLE: Duration = Duration::from_millis(200);

/// When a ping is sent.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Ping {
    /// There was no traffic before.
    Idle,
    /// There may be bytes before it.
    Busy,
}

#[derive(Debug, Default)]
pub(super) struct RoundTrip {
    path: Option<Duration>,
    pinged: Option<Instant>,
    granted: Option<Instant>,
    /// The stamp of the last ping that was sent when the tunnel was idle.
    idle_stamp: Option<u64>,
}

impl RoundTrip {
    pub(super) fn path(&self) -> Option<Duration> {
        self.path
    }

    /// A grant is sent: whether a ping is due as well.
    pub(super) fn ping_due(&mut self, now: Instant) -> Option<Ping> {
        let is_over = |since: Option<Instant>, time| {
            since.is_none_or(|since| now.saturating_duration_since(since) > time)
        };
        let is_idle = is_over(self.granted.replace(now), IDLE);
        if is_idle {
            Some(Ping::Idle)
        } else {
            is_over(self.pinged, INTERVAL).then_some(Ping::Busy)
        }
    }

    pub(super) fn pinged(&mut self, stamp: u64, now: Instant, ping: Ping) {
        self.pinged = Some(now);
        if ping == Ping::Idle {
            self.idle_stamp = Some(stamp);
        }
    }

    /// The response to a ping was received after this time.
    pub(super) fn measured(&mut self, stamp: u64, elapsed: Duration) {
        let is_idle = self.idle_stamp == Some(stamp);
        if is_idle || self.path.is_none_or(|path| elapsed < path) {
            self.path = Some(elapsed);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pings_are_due_after_idle_times_and_once_per_interval() {
        let start = Instant::now();
        let mut round_trip = RoundTrip::default();
        let mut check = |milliseconds, expected| {
            let now = start + Duration::from_millis(milliseconds);
            let due = round_trip.ping_due(now);
            assert_eq!(due, expected, "at {milliseconds} ms");
            if let Some(ping) = due {
                round_trip.pinged(milliseconds, now, ping);
            }
        };
        check(0, Some(Ping::Idle));
        for milliseconds in (100..=1000).step_by(100) {
            check(milliseconds, None);
        }
        check(1100, Some(Ping::Busy));
        check(1200, None);
        check(1500, Some(Ping::Idle));
    }

    #[test]
    fn only_a_ping_after_an_idle_time_makes_the_path_longer() {
        let mut round_trip = RoundTrip::default();
        let mut check = |stamp, ping, milliseconds, expected| {
            round_trip.pinged(stamp, Instant::now(), ping);
            round_trip.measured(stamp, Duration::from_millis(milliseconds));
            let expected = Some(Duration::from_millis(expected));
            assert_eq!(round_trip.path(), expected, "after {stamp}");
        };
        check(1, Ping::Idle, 20, 20);
        check(2, Ping::Busy, 90, 20);
        check(3, Ping::Busy, 10, 10);
        check(4, Ping::Idle, 80, 80);
    }
}
