//! When copies leave. Nobody waits for a copy, so small ones may wait a moment for each other: a hundred that leave
//! together wake everybody on their way once instead of a hundred times.

use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use tokio::time::Instant;

/// Between two departures.
const EVERY: Duration = Duration::from_millis(20);

/// The departures of the copies for one session.
#[derive(Debug, Default)]
pub(crate) struct Departures {
    last: Mutex<Option<Instant>>,
}

impl Departures {
    /// When what is ready now may leave. `None` is at once: nothing has left for a while.
    pub(crate) fn next(&self, now: Instant) -> Option<Instant> {
        let mut last = self.lock();
        let next = last.map(|last| last + EVERY).filter(|next| now < *next);
        if next.is_none() {
            *last = Some(now);
        }
        next
    }

    /// Something leaves at the time that was said.
    pub(crate) fn leave(&self, at: Instant) {
        let mut last = self.lock();
        *last = (*last).max(Some(at));
    }

    fn lock(&self) -> MutexGuard<'_, Option<Instant>> {
        self.last.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_comes_close_together_leaves_together() {
        let departures = Departures::default();
        let start = Instant::now();
        let after = |milliseconds| start + Duration::from_millis(milliseconds);
        assert_eq!(departures.next(start), None);
        let second = Some(after(20));
        assert_eq!(departures.next(after(1)), second);
        assert_eq!(departures.next(after(4)), second);
        departures.leave(after(20));
        departures.leave(after(20));
        assert_eq!(departures.next(after(21)), Some(after(40)));
        assert_eq!(departures.next(after(100)), None);
    }
}
