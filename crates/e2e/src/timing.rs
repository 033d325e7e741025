//! How long each scenario took, how much of that it waited, and for what.
//!
//! `cargo xtask test` reads a line per scenario from standard output:
//!
//! ```text
//! timing: a_port_can_be_forwarded total=12.3s waited=8.1s for=pod web to be ready
//! ```
//!
//! The harness prints the beginning of `test NAME ... ok` before a test runs and the rest after it. A line that a
//! scenario printed itself would split that line, so the lines are collected and printed after the last scenario.

use std::io::{self, Write as _};
use std::sync::Arc;
use std::time::{Duration, Instant};

use parking_lot::Mutex;

/// The lines of the scenarios that have ended.
static LINES: Mutex<Vec<String>> = Mutex::new(Vec::new());

tokio::task_local! {
    /// The waits of the scenario that runs in this task.
    static WAITS: Arc<Waits>;
}

/// Measures one scenario.
#[derive(Debug)]
pub(crate) struct Timing {
    name: &'static str,
    started: Instant,
    waits: Arc<Waits>,
}

impl Timing {
    pub(crate) fn start(name: &'static str) -> Self {
        Timing {
            name,
            started: Instant::now(),
            waits: Arc::default(),
        }
    }

    /// Runs a future whose waits count for this scenario.
    pub(crate) async fn measure<T>(&self, scenario: impl Future<Output = T>) -> T {
        WAITS.scope(Arc::clone(&self.waits), scenario).await
    }

    pub(crate) fn end(&self) {
        let line = self.waits.line(self.name, self.started.elapsed());
        LINES.lock().push(line);
    }
}

/// Prints the lines of all scenarios that have ended since the last call.
pub fn print_timings() {
    let mut stdout = io::stdout().lock();
    for line in std::mem::take(&mut *LINES.lock()) {
        // Without a reader there is nothing to report to.
        let _ = writeln!(stdout, "{line}");
    }
}

/// Counts the time until the returned value is dropped as waited for `what`. Outside of a scenario this does nothing.
pub(crate) fn start_wait(what: &str) -> Option<WaitTimer> {
    let waits = WAITS.try_with(Arc::clone).ok()?;
    waits.0.lock().begin(Instant::now());
    Some(WaitTimer {
        waits,
        what: what.to_owned(),
        started: Instant::now(),
    })
}

/// A wait that has not ended. A wait ends with its value, also when its future is dropped.
#[derive(Debug)]
pub(crate) struct WaitTimer {
    waits: Arc<Waits>,
    what: String,
    started: Instant,
}

impl Drop for WaitTimer {
    fn drop(&mut self) {
        let now = Instant::now();
        let what = std::mem::take(&mut self.what);
        self.waits.0.lock().end(now, self.started, what);
    }
}

#[derive(Debug, Default)]
struct Waits(Mutex<WaitTotals>);

#[derive(Debug, Default)]
struct WaitTotals {
    /// Waits that have not ended. Nested and concurrent waits count once, so only the first one starts the clock.
    active: usize,
    active_since: Option<Instant>,
    total: Duration,
    longest: Duration,
    longest_label: String,
}

impl WaitTotals {
    fn begin(&mut self, now: Instant) {
        self.active += 1;
        self.active_since.get_or_insert(now);
    }

    fn end(&mut self, now: Instant, started: Instant, label: String) {
        let elapsed = now - started;
        if elapsed >= self.longest {
            self.longest = elapsed;
            self.longest_label = label;
        }
        self.active -= 1;
        if self.active == 0
            && let Some(since) = self.active_since.take()
        {
            self.total += now - since;
        }
    }
}

impl Waits {
    fn line(&self, name: &str, total: Duration) -> String {
        let waits = self.0.lock();
        format!(
            "timing: {name} total={:.1}s waited={:.1}s for={}",
            total.as_secs_f64(),
            waits.total.as_secs_f64(),
            // The report is read line by line.
            waits.longest_label.replace('\n', " ")
        )
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn nested_and_concurrent_waits_count_once() {
        let start = Instant::now();
        let at = |seconds| start + Duration::from_secs(seconds);
        let mut waits = WaitTotals::default();
        waits.begin(at(1));
        waits.begin(at(2));
        waits.end(at(3), at(2), "inner".to_owned());
        waits.end(at(5), at(1), "outer".to_owned());
        waits.begin(at(10));
        waits.end(at(13), at(10), "later".to_owned());
        let line = Waits(Mutex::new(waits)).line("shop", Duration::from_millis(20_300));
        assert_eq!(line, "timing: shop total=20.3s waited=7.0s for=outer");
    }

    #[test]
    fn a_scenario_that_never_waits_has_no_label() {
        let line = Waits::default().line("shop", Duration::from_secs(1));
        assert_eq!(line, "timing: shop total=1.0s waited=0.0s for=");
    }

    #[tokio::test]
    async fn waits_count_for_their_scenario() {
        let timing = Timing::start("shop");
        let value = timing
            .measure(async { crate::until("a value", async || Ok(Some(1))).await })
            .await;
        assert_eq!(value.ok(), Some(1));
        assert_eq!(timing.waits.0.lock().longest_label, "a value");
        assert!(start_wait("outside").is_none());
    }
}
