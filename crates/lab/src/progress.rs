//! What the lab says while it works.

use std::fmt;
use std::sync::Arc;
use std::time::{Duration, Instant};

type Say = dyn Fn(Duration, &str) + Send + Sync;

/// Says each step with the time since the start. Cheap to clone and to share between threads.
#[derive(Clone)]
pub struct Progress {
    started: Instant,
    say: Arc<Say>,
}

impl Progress {
    pub fn new(say: impl Fn(Duration, &str) + Send + Sync + 'static) -> Self {
        Progress {
            started: Instant::now(),
            say: Arc::new(say),
        }
    }

    /// To standard error, which is where talk belongs.
    #[expect(
        clippy::print_stderr,
        reason = "progress is talk for the user, whatever the program"
    )]
    pub fn to_stderr() -> Self {
        Progress::new(|since, text| eprintln!("[{:7.2} s] {text}", since.as_secs_f64()))
    }

    pub fn silent() -> Self {
        Progress::new(|_, _| {})
    }

    pub fn step(&self, text: impl AsRef<str>) {
        (self.say)(self.started.elapsed(), text.as_ref());
    }
}

impl fmt::Debug for Progress {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter
            .debug_struct("Progress")
            .field("started", &self.started)
            .finish_non_exhaustive()
    }
}
