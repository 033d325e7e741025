//! The path from one endpoint to another as a state machine: it decides which packets pass and when, and holds them until then.
//!
//! It does no input or output, reads no clock and throws no dice: the time and the random numbers are arguments.

use std::collections::VecDeque;
use std::time::{Duration, Instant};

use super::conditions::{Conditions, Rate};
use super::counters::{DropReason, Tally};

/// What waits for a line with a rate is at most this long a wait, so that the fault is a slow line and not a bottomless buffer…
const RATE_QUEUE_TIME: Duration = Duration::from_millis(100);
/// …but a slow line still takes a burst of forty or so full packets, or TCP would starve on it.
const RATE_QUEUE_BYTES: u64 = 64 * 1024;
/// What a link holds in all, which is 50 ms at 10 Gbit/s.
const HELD_BYTES: usize = 64 * 1024 * 1024;

/// One direction between two endpoints.
///
/// Packets leave in the order in which they came, so the queue is ordered by deadline without sorting.
#[derive(Debug)]
pub(super) struct Link<Payload> {
    conditions: Conditions,
    /// When the last admitted packet has gone onto a line with a rate.
    line_free_at: Option<Instant>,
    held: VecDeque<Held<Payload>>,
    held_bytes: usize,
}

#[derive(Debug)]
struct Held<Payload> {
    due: Instant,
    size: usize,
    payload: Payload,
}

/// Random numbers from 0.0 to 1.0 for one packet.
#[derive(Clone, Copy, Debug)]
pub(super) struct Dice {
    pub(super) loss: f64,
    pub(super) jitter: f64,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Verdict {
    /// Deliver it now; nothing is held before it.
    Deliver,
    /// Hold it until then.
    Hold {
        until: Instant,
    },
    Drop(DropReason),
}

impl<Payload> Default for Link<Payload> {
    fn default() -> Self {
        Self {
            conditions: Conditions::default(),
            line_free_at: None,
            held: VecDeque::new(),
            held_bytes: 0,
        }
    }
}

impl<Payload> Link<Payload> {
    pub(super) fn conditions(&self) -> &Conditions {
        &self.conditions
    }

    /// Decides about a packet of `size` bytes that came in at `now`.
    pub(super) fn admit(&mut self, size: usize, now: Instant, dice: Dice) -> Verdict {
        if self.conditions.cut {
            return Verdict::Drop(DropReason::Cut);
        }
        if dice.loss < self.conditions.loss.ratio() {
            return Verdict::Drop(DropReason::Lost);
        }
        if self.held_bytes + size > HELD_BYTES {
            return Verdict::Drop(DropReason::DelayQueueFull);
        }
        let on_the_line = match self.conditions.rate {
            None => now,
            Some(rate) => {
                let start = self.line_free_at.map_or(now, |free| free.max(now));
                if rate.bytes_within(start - now) >= rate_queue_limit(rate) {
                    return Verdict::Drop(DropReason::RateQueueFull);
                }
                let end = start + rate.time_to_send(size);
                self.line_free_at = Some(end);
                end
            }
        };
        let jitter = self.conditions.jitter.mul_f64(dice.jitter);
        let due = on_the_line + self.conditions.delay + jitter;
        match self.held.back() {
            Some(previous) => Verdict::Hold {
                until: due.max(previous.due),
            },
            None if due > now => Verdict::Hold { until: due },
            None => Verdict::Deliver,
        }
    }

    /// Keeps a packet for which the verdict was to hold it.
    pub(super) fn hold(&mut self, due: Instant, size: usize, payload: Payload) {
        self.held_bytes += size;
        self.held.push_back(Held { due, size, payload });
    }

    /// When the next packet is due, if there is one.
    pub(super) fn next_due(&self) -> Option<Instant> {
        self.held.front().map(|held| held.due)
    }

    /// Takes the next packet that is due at `now`.
    pub(super) fn release(&mut self, now: Instant) -> Option<Payload> {
        let held = self.held.pop_front_if(|held| held.due <= now)?;
        self.held_bytes -= held.size;
        Some(held.payload)
    }

    /// Changes the conditions, and returns what a cut destroyed.
    ///
    /// A packet under way is never made later by a change, and is made earlier when it would arrive earlier if it were sent now:
    /// otherwise a healed line would first have to work off what a slow one left behind.
    pub(super) fn change(&mut self, conditions: Conditions, now: Instant) -> Tally {
        self.conditions = conditions;
        let mut destroyed = Tally::default();
        if self.conditions.cut {
            for held in self.held.drain(..) {
                destroyed.add(held.size);
            }
            self.held_bytes = 0;
            self.line_free_at = None;
            return destroyed;
        }
        let mut on_the_line = now;
        for held in &mut self.held {
            if let Some(rate) = self.conditions.rate {
                on_the_line += rate.time_to_send(held.size);
            }
            held.due = held.due.min(on_the_line + self.conditions.delay);
        }
        self.line_free_at = self.line_free_at.map(|free| free.min(on_the_line));
        destroyed
    }
}

fn rate_queue_limit(rate: Rate) -> u64 {
    rate.bytes_within(RATE_QUEUE_TIME).max(RATE_QUEUE_BYTES)
}

#[cfg(test)]
mod tests {
    use rand::rngs::StdRng;
    use rand::{Rng, SeedableRng};

    use super::*;

    const EVEN: Dice = Dice {
        loss: 0.5,
        jitter: 0.5,
    };

    fn link(conditions: &str) -> Link<usize> {
        let mut link = Link::default();
        link.change(conditions.parse().unwrap(), Instant::now());
        link
    }

    fn milliseconds(count: u64) -> Duration {
        Duration::from_millis(count)
    }

    /// Admits a packet and holds it if that is the verdict.
    fn send(link: &mut Link<usize>, payload: usize, size: usize, now: Instant, dice: Dice) -> bool {
        match link.admit(size, now, dice) {
            Verdict::Deliver => true,
            Verdict::Hold { until } => {
                link.hold(until, size, payload);
                true
            }
            Verdict::Drop(_) => false,
        }
    }

    #[test]
    fn one_packet_on_an_idle_link() {
        let later = |time| Ok(Some(time));
        let dropped = |reason| Err(reason);
        for (conditions, size, expected) in [
            ("perfect", 1500, Ok(None)),
            ("cut", 1500, dropped(DropReason::Cut)),
            ("cut loss 100%", 1500, dropped(DropReason::Cut)),
            ("delay 20ms", 1500, later(milliseconds(20))),
            ("delay 20ms jitter 10ms", 1500, later(milliseconds(25))),
            ("loss 100%", 1500, dropped(DropReason::Lost)),
            ("loss 51%", 1500, dropped(DropReason::Lost)),
            ("loss 50%", 1500, Ok(None)),
            ("rate 12mbit", 1500, later(milliseconds(1))),
            ("rate 12mbit delay 20ms", 1500, later(milliseconds(21))),
            ("rate 12kbit", 15, later(milliseconds(10))),
        ] {
            let now = Instant::now();
            let verdict = link(conditions).admit(size, now, EVEN);
            let expected = match expected {
                Ok(None) => Verdict::Deliver,
                Ok(Some(time)) => Verdict::Hold { until: now + time },
                Err(reason) => Verdict::Drop(reason),
            };
            assert_eq!(verdict, expected, "{conditions}");
        }
    }

    #[test]
    fn the_share_that_is_lost_is_the_loss() {
        let mut random = StdRng::seed_from_u64(7);
        for (conditions, share) in [
            ("loss 0%", 0.0),
            ("loss 2%", 0.02),
            ("loss 50%", 0.5),
            ("loss 100%", 1.0),
        ] {
            let mut link = link(conditions);
            let now = Instant::now();
            let packets = 100_000;
            let lost = (0..packets)
                .filter(|_| {
                    let dice = Dice {
                        loss: random.random(),
                        jitter: 0.0,
                    };
                    link.admit(1500, now, dice) == Verdict::Drop(DropReason::Lost)
                })
                .count();
            let measured = lost as f64 / f64::from(packets);
            assert!(
                (measured - share).abs() < 0.005,
                "{conditions}: lost {measured}"
            );
        }
    }

    #[test]
    fn jitter_stays_within_its_bounds_and_keeps_the_order() {
        let mut random = StdRng::seed_from_u64(7);
        let mut link = link("delay 20ms jitter 30ms");
        let start = Instant::now();
        let mut sent = Vec::new();
        for number in 0..1000 {
            let now = start + Duration::from_micros(number as u64 * 700);
            let dice = Dice {
                loss: random.random(),
                jitter: random.random(),
            };
            assert!(send(&mut link, number, 100, now, dice));
            sent.push(now);
        }
        for (number, sent) in sent.into_iter().enumerate() {
            let due = link.next_due().unwrap();
            assert!((milliseconds(20)..=milliseconds(50)).contains(&(due - sent)));
            assert_eq!(link.release(due - Duration::from_nanos(1)), None);
            assert_eq!(link.release(due), Some(number));
        }
        assert_eq!(link.held_bytes, 0);
    }

    #[test]
    fn a_burst_leaves_at_the_rate_and_what_the_queue_cannot_take_is_dropped() {
        let mut link = link("rate 10mbit");
        let start = Instant::now();
        let admitted = (0..1000)
            .filter(|number| send(&mut link, *number, 1250, start, EVEN))
            .count();
        // 100 ms at 10 Mbit/s are 125,000 bytes.
        assert_eq!(admitted, 100);
        assert_eq!(
            link.admit(1250, start, EVEN),
            Verdict::Drop(DropReason::RateQueueFull)
        );
        for number in 0..admitted {
            let due = start + milliseconds(number as u64 + 1);
            assert_eq!(link.next_due(), Some(due));
            assert_eq!(link.release(due), Some(number));
        }
        // The line has been idle for a while, which does not save up for a later burst.
        let later = start + Duration::from_secs(10);
        assert_eq!(
            link.admit(1250, later, EVEN),
            Verdict::Hold {
                until: later + milliseconds(1)
            }
        );
    }

    #[test]
    fn a_slow_line_still_takes_a_short_burst() {
        let mut link = link("rate 10kbit");
        let now = Instant::now();
        let admitted = (0..1000)
            .filter(|number| send(&mut link, *number, 1024, now, EVEN))
            .count();
        assert_eq!(admitted, 64);
    }

    #[test]
    fn the_delay_queue_has_an_end() {
        let mut link = link("delay 1s");
        let now = Instant::now();
        let size = 64 * 1024;
        for number in 0..1024 {
            assert!(send(&mut link, number, size, now, EVEN));
        }
        assert_eq!(
            link.admit(size, now, EVEN),
            Verdict::Drop(DropReason::DelayQueueFull)
        );
        assert_eq!(link.release(now + Duration::from_secs(1)), Some(0));
        assert!(send(&mut link, 1024, size, now, EVEN));
    }

    #[test]
    fn a_cut_destroys_what_is_under_way() {
        let mut link = link("delay 20ms");
        let now = Instant::now();
        send(&mut link, 0, 100, now, EVEN);
        send(&mut link, 1, 200, now, EVEN);
        let destroyed = link.change(Conditions::cut(), now);
        assert_eq!((destroyed.packets, destroyed.bytes), (2, 300));
        assert_eq!(link.next_due(), None);
        link.change(Conditions::default(), now);
        assert_eq!(link.admit(100, now, EVEN), Verdict::Deliver);
    }

    #[test]
    fn healing_hurries_what_is_under_way_and_keeps_the_order() {
        let mut link = link("rate 10kbit delay 1s");
        let now = Instant::now();
        for number in 0..64 {
            send(&mut link, number, 1000, now, EVEN);
        }
        link.change(Conditions::delayed_by(milliseconds(20)), now);
        send(&mut link, 64, 1000, now, EVEN);
        for number in 0..=64 {
            assert_eq!(link.release(now + milliseconds(20)), Some(number));
        }
    }

    #[test]
    fn worse_conditions_do_not_delay_what_is_under_way() {
        let mut link = link("delay 20ms");
        let now = Instant::now();
        send(&mut link, 0, 1000, now, EVEN);
        link.change("delay 1s rate 10kbit".parse().unwrap(), now);
        assert_eq!(link.next_due(), Some(now + milliseconds(20)));
        send(&mut link, 1, 1000, now, EVEN);
        assert_eq!(link.release(now + milliseconds(20)), Some(0));
        assert_eq!(link.next_due(), Some(now + milliseconds(1800)));
    }
}
