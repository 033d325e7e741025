//! How far a sender may be ahead of one reader. Pure: the time is an argument.
//!
//! A window starts small, because most streams are short, and those that stall from the start should cost little. When the
//! reader has taken a part of it, the window gets its usual size. A longer path needs more: with each round trip the reader
//! shows how much it takes in that time, and the window becomes twice that, so it doubles until the reader or the network is
//! the limit. A reader that slows down gets a smaller window again. So the memory of a stalled reader is bounded by what it
//! has taken shortly before.

use std::time::{Duration, Instant};

/// The window of a new stream, which both ends know.
pub(crate) const INITIAL: u64 = 64 * 1024;
/// The window of a stream whose reader takes what it gets.
pub(super) const USUAL: u64 = 256 * 1024;
/// The largest window.
pub(crate) const MAX: u64 = 16 * 1024 * 1024;

/// The receiver's view of one stream.
#[derive(Debug)]
pub(super) struct Window {
    size: u64,
    /// The reader has taken this many bytes.
    consumed: u64,
    /// The sender may send this many.
    granted: u64,
    round: Option<Round>,
}

/// One round trip.
#[derive(Debug, Clone, Copy)]
struct Round {
    start: Instant,
    /// `consumed` at its start.
    consumed: u64,
}

impl Window {
    pub(super) fn new() -> Self {
        Self {
            size: INITIAL,
            consumed: 0,
            granted: INITIAL,
            round: None,
        }
    }

    pub(super) fn size(&self) -> u64 {
        self.size
    }

    /// The reader takes bytes. `path` is the round-trip time, if it is known. Returns what is granted to the sender from now
    /// on, if it is worth a message.
    pub(super) fn consume(
        &mut self,
        count: u64,
        now: Instant,
        path: Option<Duration>,
        max: u64,
    ) -> Option<u64> {
        self.consumed += count;
        self.resize(now, path, max);
        let granted = self.consumed + self.size;
        let is_worth_it = granted.saturating_sub(self.granted) >= self.size / 4;
        if is_worth_it {
            self.granted = granted;
        }
        is_worth_it.then_some(self.granted)
    }

    fn resize(&mut self, now: Instant, path: Option<Duration>, max: u64) {
        if self.size < USUAL && self.consumed >= INITIAL / 4 {
            self.size = USUAL.min(max.max(INITIAL));
        }
        let Some(path) = path else { return };
        let round = *self.round.get_or_insert(Round {
            start: now,
            consumed: self.consumed,
        });
        let elapsed = now.saturating_duration_since(round.start);
        if elapsed < path || elapsed.is_zero() {
            return;
        }
        self.round = Some(Round {
            start: now,
            consumed: self.consumed,
        });
        let taken = (self.consumed - round.consumed) as f64;
        let in_a_round_trip = taken * path.as_secs_f64() / elapsed.as_secs_f64();
        let enough = (in_a_round_trip * 2.0) as u64;
        // A short break of the reader does not cost it the whole window.
        let enough = enough.max(self.size / 8 * 7).max(USUAL);
        if self.size >= USUAL {
            self.size = enough.min(MAX).min(max.max(USUAL));
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const KIB: u64 = 1024;

    /// A reader that takes everything as soon as it arrives, on a path with this round-trip time and number of bytes per
    /// second. Returns the size of the window after this many round trips.
    fn size_after(rounds: u32, path: Duration, speed: f64, max: u64) -> u64 {
        let mut window = Window::new();
        let mut now = Instant::now();
        let capacity = (path.as_secs_f64() * speed) as u64;
        for _ in 0..rounds {
            let mut left = capacity.min(window.granted - window.consumed);
            while left > 0 {
                let part = left.min(16 * KIB);
                window.consume(part, now, Some(path), max);
                left -= part;
            }
            now += path;
        }
        window.size()
    }

    #[test]
    fn a_window_grows_to_twice_of_what_the_path_carries_in_a_round_trip() {
        let check =
            |rounds, milliseconds, speed_in_mib: u64, expected_kib: std::ops::Range<u64>| {
                let path = Duration::from_millis(milliseconds);
                let size = size_after(rounds, path, (speed_in_mib * KIB * KIB) as f64, MAX) / KIB;
                assert!(expected_kib.contains(&size), "{size} KiB after {rounds}");
            };
        check(1, 80, 100, 256..257);
        check(20, 80, 100, 15_000..16_385);
        check(20, 20, 100, 3_900..4_200);
        check(20, 80, 1000, 16_384..16_385);
        // What a local path needs is less than the usual window.
        check(50, 1, 50, 256..257);
    }

    #[test]
    fn a_slow_reader_keeps_a_small_window() {
        let mut window = Window::new();
        let mut now = Instant::now();
        let path = Some(Duration::from_millis(80));
        for _ in 0..1000 {
            window.consume(10 * KIB, now, path, MAX);
            now += Duration::from_millis(10);
        }
        assert_eq!(window.size(), USUAL);
    }

    #[test]
    fn a_reader_that_becomes_slow_gets_a_smaller_window_again() {
        let path = Duration::from_millis(80);
        let mut window = Window::new();
        let mut now = Instant::now();
        for _ in 0..20 {
            window.consume(window.granted - window.consumed, now, Some(path), MAX);
            now += path;
        }
        assert_eq!(window.size(), MAX);
        for _ in 0..60 {
            window.consume(KIB, now, Some(path), MAX);
            now += path;
        }
        assert_eq!(window.size(), USUAL);
    }

    #[test]
    fn small_exchanges_need_no_messages() {
        let mut window = Window::new();
        let now = Instant::now();
        let messages = (0..100).filter_map(|_| window.consume(100, now, None, MAX));
        assert_eq!(messages.count(), 0);
    }

    #[test]
    fn a_limit_holds_and_the_sender_is_never_stopped_for_good() {
        let path = Duration::from_millis(80);
        assert_eq!(size_after(30, path, 1e9, 300 * KIB), 300 * KIB);
        assert_eq!(size_after(30, path, 1e9, 0), INITIAL);
    }
}
