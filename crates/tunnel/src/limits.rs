//! Limits of one tunnel, so that one cluster's clients cannot use up the hub.

use std::time::Instant;

/// How much one tunnel may carry.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Limits {
    /// Streams at the same time.
    pub streams: u32,
    /// New streams per second. As many may come at once after a second without any.
    pub new_streams_per_second: u32,
    /// Bytes that senders may be ahead of their readers, of all streams together.
    pub bytes_in_flight: u64,
}

impl Default for Limits {
    fn default() -> Self {
        Self {
            streams: 4096,
            new_streams_per_second: 2000,
            bytes_in_flight: 256 * 1024 * 1024,
        }
    }
}

/// A limit that is reached.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum Limit {
    #[error(
        "the tunnel of this cluster has {0} streams, its limit: close some, or raise the limit"
    )]
    Streams(u32),
    #[error(
        "the tunnel of this cluster takes no more than {0} new streams per second: try again later"
    )]
    NewStreams(u32),
    #[error(
        "clients of the tunnel of this cluster have not read {0} bytes yet, its limit: try again later"
    )]
    BytesInFlight(u64),
}

/// The streams of one tunnel, counted.
#[derive(Debug)]
pub(crate) struct Limiter {
    limits: Limits,
    streams: u32,
    /// How many streams may be opened now. It grows with time.
    tokens: f64,
    refilled: Instant,
}

impl Limiter {
    pub(crate) fn new(limits: Limits, now: Instant) -> Self {
        Self {
            limits,
            streams: 0,
            tokens: f64::from(limits.new_streams_per_second),
            refilled: now,
        }
    }

    /// Opens a stream, unless a limit is reached.
    pub(crate) fn open(&mut self, now: Instant) -> Result<(), Limit> {
        let rate = f64::from(self.limits.new_streams_per_second);
        let elapsed = now.saturating_duration_since(self.refilled).as_secs_f64();
        self.refilled = self.refilled.max(now);
        self.tokens = (self.tokens + elapsed * rate).min(rate.max(1.0));
        if self.streams >= self.limits.streams {
            return Err(Limit::Streams(self.limits.streams));
        }
        if self.tokens < 1.0 {
            return Err(Limit::NewStreams(self.limits.new_streams_per_second));
        }
        self.tokens -= 1.0;
        self.streams += 1;
        Ok(())
    }

    pub(crate) fn close(&mut self) {
        self.streams = self.streams.saturating_sub(1);
    }

    pub(crate) fn streams(&self) -> u32 {
        self.streams
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;

    #[test]
    fn streams_are_counted_and_their_rate_is_limited() {
        let limits = Limits {
            streams: 3,
            new_streams_per_second: 4,
            ..Limits::default()
        };
        let start = Instant::now();
        let mut limiter = Limiter::new(limits, start);
        let mut check = |milliseconds, close: u32, expected: &[Result<(), Limit>]| {
            (0..close).for_each(|_| limiter.close());
            for expected in expected {
                let now = start + Duration::from_millis(milliseconds);
                assert_eq!(limiter.open(now), *expected, "at {milliseconds} ms");
            }
        };
        let (many, fast) = (Err(Limit::Streams(3)), Err(Limit::NewStreams(4)));
        check(0, 0, &[Ok(()), Ok(()), Ok(()), many]);
        check(0, 2, &[Ok(()), fast, fast]);
        check(249, 0, &[fast]);
        check(260, 0, &[Ok(()), many]);
        // After a long time there are as many tokens as the rate, and not more.
        check(60_000, 3, &[Ok(()), Ok(()), Ok(()), many]);
        check(60_000, 3, &[Ok(()), fast]);
    }
}
