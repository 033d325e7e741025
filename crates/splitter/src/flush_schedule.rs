//! When the mirrors of a session are flushed. No client waits for a mirror, so small writes are batched: a hundred that are
//! flushed together wake every task on the path once instead of a hundred times.

use std::time::Duration;

use parking_lot::Mutex;
use tokio::time::Instant;

/// The time between two flushes.
const FLUSH_INTERVAL: Duration = Duration::from_millis(20);

/// The flushes of one session's mirrors.
#[derive(Debug, Default)]
pub(crate) struct FlushSchedule {
    last: Mutex<Option<Instant>>,
}

impl FlushSchedule {
    /// When bytes that are ready now may be flushed. `None` means immediately: nothing has been flushed recently.
    pub(crate) fn next_flush(&self, now: Instant) -> Option<Instant> {
        let mut last = self.last.lock();
        let next = last
            .map(|last| last + FLUSH_INTERVAL)
            .filter(|next| now < *next);
        if next.is_none() {
            *last = Some(now);
        }
        next
    }

    /// Records a flush at the scheduled time.
    pub(crate) fn flushed(&self, at: Instant) {
        let mut last = self.last.lock();
        *last = (*last).max(Some(at));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn writes_that_are_close_together_are_flushed_together() {
        let flush_schedule = FlushSchedule::default();
        let start = Instant::now();
        let after = |milliseconds| start + Duration::from_millis(milliseconds);
        assert_eq!(flush_schedule.next_flush(start), None);
        let second = Some(after(20));
        assert_eq!(flush_schedule.next_flush(after(1)), second);
        assert_eq!(flush_schedule.next_flush(after(4)), second);
        flush_schedule.flushed(after(20));
        flush_schedule.flushed(after(20));
        assert_eq!(flush_schedule.next_flush(after(21)), Some(after(40)));
        assert_eq!(flush_schedule.next_flush(after(100)), None);
    }
}
