//! The path from one endpoint to another as a state machine: it decides which packets pass and when, and queues them until then.
//!
//! It does no I/O, reads no clock and generates no random numbers: the time and the random numbers are arguments.

use std::collections::VecDeque;
use std::time::{Duration, Instant};

use super::conditions::{Conditions, Rate};
use super::counters::{DropReason, Tally};

/// The maximum queueing delay of a link with a rate limit, so that the fault is a slow link and not an unlimited buffer…
const RATE_QUEUE_TIME: Duration = Duration::from_millis(100);
/// …but a slow link still accepts a burst of about forty full packets. Otherwise TCP would starve.
const RATE_QUEUE_BYTES: u64 = 64 * 1024;
/// The maximum of all queued packets of a link, which is 50 ms at 10 Gbit/s.
const MAX_QUEUED_BYTES: usize = 64 * 1024 * 1024;

/// One direction between two endpoints.
///
/// Packets are never reordered, so the queue is ordered by deadline without sorting.
#[derive(Debug)]
pub(super) struct Link<Payload> {
    conditions: Conditions,
    /// When the transmission of the last admitted packet ends, for a link with a rate limit.
    idle_at: Option<Instant>,
    queue: VecDeque<QueuedPacket<Payload>>,
    queued_bytes: usize,
}

#[derive(Debug)]
struct QueuedPacket<Payload> {
    due: Instant,
    size: usize,
    payload: Payload,
}

/// Random numbers from 0.0 to 1.0 for one packet.
#[derive(Clone, Copy, Debug)]
pub(super) struct RandomSample {
    pub(super) loss: f64,
    pub(super) jitter: f64,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Verdict {
    /// Deliver it now; no packet is queued before it.
    Deliver,
    /// Queue it until then.
    Queue {
        until: Instant,
    },
    Drop(DropReason),
}

impl<Payload> Default for Link<Payload> {
    fn default() -> Self {
        Self {
            conditions: Conditions::default(),
            idle_at: None,
            queue: VecDeque::new(),
            queued_bytes: 0,
        }
    }
}

impl<Payload> Link<Payload> {
    pub(super) fn conditions(&self) -> &Conditions {
        &self.conditions
    }

    /// Decides about a packet of `size` bytes that was received at `now`.
    pub(super) fn admit(&mut self, size: usize, now: Instant, sample: RandomSample) -> Verdict {
        if self.conditions.cut {
            return Verdict::Drop(DropReason::Cut);
        }
        if sample.loss < self.conditions.loss.ratio() {
            return Verdict::Drop(DropReason::Lost);
        }
        if self.queued_bytes + size > MAX_QUEUED_BYTES {
            return Verdict::Drop(DropReason::DelayQueueFull);
        }
        let transmitted = match self.conditions.rate {
            None => now,
            Some(rate) => {
                let start = self.idle_at.map_or(now, |free| free.max(now));
                if rate.bytes_in(start - now) >= rate_queue_limit(rate) {
                    return Verdict::Drop(DropReason::RateQueueFull);
                }
                let end = start + rate.time_to_send(size);
                self.idle_at = Some(end);
                end
            }
        };
        let jitter = self.conditions.jitter.mul_f64(sample.jitter);
        let due = transmitted + self.conditions.delay + jitter;
        match self.queue.back() {
            Some(previous) => Verdict::Queue {
                until: due.max(previous.due),
            },
            None if due > now => Verdict::Queue { until: due },
            None => Verdict::Deliver,
        }
    }

    /// Queues a packet for which the verdict was [`Verdict::Queue`].
    pub(super) fn enqueue(&mut self, due: Instant, size: usize, payload: Payload) {
        self.queued_bytes += size;
        self.queue.push_back(QueuedPacket { due, size, payload });
    }

    /// When the next packet is due, if there is one.
    pub(super) fn next_due(&self) -> Option<Instant> {
        self.queue.front().map(|packet| packet.due)
    }

    /// Removes and returns the next packet that is due at `now`.
    pub(super) fn release(&mut self, now: Instant) -> Option<Payload> {
        let packet = self.queue.pop_front_if(|packet| packet.due <= now)?;
        self.queued_bytes -= packet.size;
        Some(packet.payload)
    }

    /// Sets the conditions, and returns what a cut dropped.
    ///
    /// A change never delays a packet in flight further. It delivers the packet earlier if it would be delivered earlier when sent
    /// now: otherwise a healed link would first have to drain the queue of the slow one.
    pub(super) fn set_conditions(&mut self, conditions: Conditions, now: Instant) -> Tally {
        self.conditions = conditions;
        let mut dropped = Tally::default();
        if self.conditions.cut {
            for packet in self.queue.drain(..) {
                dropped.add(packet.size);
            }
            self.queued_bytes = 0;
            self.idle_at = None;
            return dropped;
        }
        let mut transmitted = now;
        for packet in &mut self.queue {
            if let Some(rate) = self.conditions.rate {
                transmitted += rate.time_to_send(packet.size);
            }
            packet.due = packet.due.min(transmitted + self.conditions.delay);
        }
        self.idle_at = self.idle_at.map(|free| free.min(transmitted));
        dropped
    }
}

fn rate_queue_limit(rate: Rate) -> u64 {
    rate.bytes_in(RATE_QUEUE_TIME).max(RATE_QUEUE_BYTES)
}

#[cfg(test)]
mod tests {
    use rand::rngs::StdRng;
    use rand::{Rng, SeedableRng};

    use super::*;

    const EVEN: RandomSample = RandomSample {
        loss: 0.5,
        jitter: 0.5,
    };

    fn link(conditions: &str) -> Link<usize> {
        let mut link = Link::default();
        link.set_conditions(conditions.parse().unwrap(), Instant::now());
        link
    }

    fn milliseconds(count: u64) -> Duration {
        Duration::from_millis(count)
    }

    /// Admits a packet and queues it if that is the verdict.
    fn send(
        link: &mut Link<usize>,
        payload: usize,
        size: usize,
        now: Instant,
        sample: RandomSample,
    ) -> bool {
        match link.admit(size, now, sample) {
            Verdict::Deliver => true,
            Verdict::Queue { until } => {
                link.enqueue(until, size, payload);
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
                Ok(Some(time)) => Verdict::Queue { until: now + time },
                Err(reason) => Verdict::Drop(reason),
            };
            assert_eq!(verdict, expected, "{conditions}");
        }
    }

    #[test]
    fn the_loss_is_the_share_of_dropped_packets() {
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
                    let sample = RandomSample {
                        loss: random.random(),
                        jitter: 0.0,
                    };
                    link.admit(1500, now, sample) == Verdict::Drop(DropReason::Lost)
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
    fn jitter_is_bounded_and_keeps_the_order() {
        let mut random = StdRng::seed_from_u64(7);
        let mut link = link("delay 20ms jitter 30ms");
        let start = Instant::now();
        let mut sent = Vec::new();
        for number in 0..1000 {
            let now = start + Duration::from_micros(number as u64 * 700);
            let sample = RandomSample {
                loss: random.random(),
                jitter: random.random(),
            };
            assert!(send(&mut link, number, 100, now, sample));
            sent.push(now);
        }
        for (number, sent) in sent.into_iter().enumerate() {
            let due = link.next_due().unwrap();
            assert!((milliseconds(20)..=milliseconds(50)).contains(&(due - sent)));
            assert_eq!(link.release(due - Duration::from_nanos(1)), None);
            assert_eq!(link.release(due), Some(number));
        }
        assert_eq!(link.queued_bytes, 0);
    }

    #[test]
    fn a_burst_is_sent_at_the_rate_and_queue_overflow_is_dropped() {
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
        // An idle link does not accumulate credit for a later burst.
        let later = start + Duration::from_secs(10);
        assert_eq!(
            link.admit(1250, later, EVEN),
            Verdict::Queue {
                until: later + milliseconds(1)
            }
        );
    }

    #[test]
    fn a_slow_link_accepts_a_short_burst() {
        let mut link = link("rate 10kbit");
        let now = Instant::now();
        let admitted = (0..1000)
            .filter(|number| send(&mut link, *number, 1024, now, EVEN))
            .count();
        assert_eq!(admitted, 64);
    }

    #[test]
    fn the_delay_queue_is_limited() {
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
    fn a_cut_drops_packets_in_flight() {
        let mut link = link("delay 20ms");
        let now = Instant::now();
        send(&mut link, 0, 100, now, EVEN);
        send(&mut link, 1, 200, now, EVEN);
        let dropped = link.set_conditions(Conditions::cut(), now);
        assert_eq!((dropped.packets, dropped.bytes), (2, 300));
        assert_eq!(link.next_due(), None);
        link.set_conditions(Conditions::default(), now);
        assert_eq!(link.admit(100, now, EVEN), Verdict::Deliver);
    }

    #[test]
    fn healing_delivers_packets_in_flight_earlier_and_in_order() {
        let mut link = link("rate 10kbit delay 1s");
        let now = Instant::now();
        for number in 0..64 {
            send(&mut link, number, 1000, now, EVEN);
        }
        link.set_conditions(Conditions::delayed_by(milliseconds(20)), now);
        send(&mut link, 64, 1000, now, EVEN);
        for number in 0..=64 {
            assert_eq!(link.release(now + milliseconds(20)), Some(number));
        }
    }

    #[test]
    fn worse_conditions_do_not_delay_packets_in_flight() {
        let mut link = link("delay 20ms");
        let now = Instant::now();
        send(&mut link, 0, 1000, now, EVEN);
        link.set_conditions("delay 1s rate 10kbit".parse().unwrap(), now);
        assert_eq!(link.next_due(), Some(now + milliseconds(20)));
        send(&mut link, 1, 1000, now, EVEN);
        assert_eq!(link.release(now + milliseconds(20)), Some(0));
        assert_eq!(link.next_due(), Some(now + milliseconds(1800)));
    }
}
