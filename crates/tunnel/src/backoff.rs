//! When the agent connects again. Pure: the time and the random number are arguments.
//!
//! The delay is random between zero and a maximum (full jitter), so that a thousand agents that lost the same hub return
//! evenly. The maximum is small in the first minute, which is longer than a hub's restart takes.

use std::time::{Duration, Instant};

use crate::settings::Reconnect;

#[derive(Debug)]
pub(crate) struct Delays {
    settings: Reconnect,
    /// Since when the hub has been away, and how many attempts have failed since then.
    failing: Option<(Instant, u32)>,
}

impl Delays {
    pub(crate) fn new(settings: Reconnect) -> Self {
        Self {
            settings,
            failing: None,
        }
    }

    /// A session has ended.
    pub(crate) fn session_ended(&mut self, lasted: Duration) {
        if lasted >= self.settings.lasted {
            self.failing = None;
        }
    }

    /// The delay before the next attempt. `random` is between 0 and 1.
    pub(crate) fn next_delay(&mut self, now: Instant, is_refused: bool, random: f64) -> Duration {
        let (since, attempts) = self.failing.unwrap_or((now, 0));
        self.failing = Some((since, attempts.saturating_add(1)));
        let settings = &self.settings;
        let max = if is_refused {
            // Never at once: the answer will be the same.
            return settings.refused.mul_f64(0.5 + random.clamp(0.0, 1.0) / 2.0);
        } else if now.saturating_duration_since(since) < settings.soon {
            settings.max_at_first
        } else {
            settings.max
        };
        let step = settings
            .min
            .saturating_mul(1_u32.checked_shl(attempts).unwrap_or(u32::MAX));
        step.min(max).mul_f64(random.clamp(0.0, 1.0))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_maximum_doubles_and_is_small_in_the_first_minute() {
        let start = Instant::now();
        let mut delays = Delays::new(Reconnect::default());
        let mut check = |seconds, random: f64, expected: u64| {
            let now = start + Duration::from_secs(seconds);
            let delay = delays.next_delay(now, false, random);
            assert_eq!(delay, Duration::from_millis(expected), "after {seconds} s");
        };
        check(0, 1.0, 500);
        check(1, 1.0, 1000);
        check(2, 1.0, 2000);
        check(3, 1.0, 2000);
        check(4, 0.0, 0);
        check(5, 0.25, 500);
        check(59, 1.0, 2000);
        check(60, 1.0, 30_000);
        check(100, 0.5, 15_000);
        check(u64::from(u32::MAX), 1.0, 30_000);
    }

    #[test]
    fn a_session_that_lasted_resets_the_delays_and_a_short_one_does_not() {
        let now = Instant::now();
        let mut delays = Delays::new(Reconnect::default());
        let mut next = |lasted: Option<u64>| {
            if let Some(lasted) = lasted {
                delays.session_ended(Duration::from_secs(lasted));
            }
            delays.next_delay(now, false, 1.0).as_millis()
        };
        assert_eq!([next(None), next(None), next(None)], [500, 1000, 2000]);
        assert_eq!(next(Some(2)), 2000);
        assert_eq!(next(Some(30)), 500);
    }

    #[test]
    fn a_refusal_is_retried_slowly() {
        let mut delays = Delays::new(Reconnect::default());
        for (random, expected) in [(0.0, 30), (0.5, 45), (1.0, 60)] {
            let delay = delays.next_delay(Instant::now(), true, random);
            assert_eq!(delay, Duration::from_secs(expected));
        }
    }
}
