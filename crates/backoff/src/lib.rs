//! Exponential backoff with jitter: the delays between attempts to reach something that is unavailable.
//!
//! Jitter keeps clients that lost the same server from reconnecting at the same moment. The crate only computes delays;
//! the caller sleeps.

use std::time::Duration;

/// The smallest part of a delay that jitter leaves.
const MIN_JITTER: f64 = 0.5;

/// The delays of one sequence of attempts.
#[derive(Debug, Clone)]
pub struct Backoff {
    min: Duration,
    max: Duration,
    next: Duration,
}

impl Backoff {
    /// The first delay is about `min`. Each later one doubles, up to `max`.
    pub const fn new(min: Duration, max: Duration) -> Self {
        Self {
            min,
            max,
            next: min,
        }
    }

    /// The delay before the next attempt: between half of the current step and all of it.
    pub fn next_delay(&mut self) -> Duration {
        let step = self.next.min(self.max);
        self.next = step.saturating_mul(2).min(self.max);
        step.mul_f64(rand::random_range(MIN_JITTER..=1.0))
    }

    /// Starts again with `min`, after an attempt that succeeded.
    pub const fn reset(&mut self) {
        self.next = self.min;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const MIN: Duration = Duration::from_millis(100);
    const MAX: Duration = Duration::from_millis(300);

    fn check_steps(backoff: &mut Backoff, steps: &[u64]) {
        for step in steps {
            let step = Duration::from_millis(*step);
            let delay = backoff.next_delay();
            assert!(delay >= step / 2 && delay <= step, "{delay:?} of {step:?}");
        }
    }

    #[test]
    fn delays_double_up_to_the_maximum_and_start_again_after_a_reset() {
        let mut backoff = Backoff::new(MIN, MAX);
        check_steps(&mut backoff, &[100, 200, 300, 300, 300]);
        backoff.reset();
        check_steps(&mut backoff, &[100, 200, 300]);
    }

    #[test]
    fn a_minimum_above_the_maximum_is_cut() {
        check_steps(&mut Backoff::new(MAX, MIN), &[100, 100]);
    }

    #[test]
    fn delays_of_several_clients_differ() {
        let delays: Vec<Duration> = (0..20)
            .map(|_| Backoff::new(MIN, MAX).next_delay())
            .collect();
        assert!(delays.iter().any(|delay| *delay != delays[0]));
    }
}
