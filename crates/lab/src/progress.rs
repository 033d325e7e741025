//! Progress output of the lab.

use std::fmt;
use std::sync::Arc;
use std::time::{Duration, Instant};

type Output = dyn Fn(Duration, &str) + Send + Sync;

/// Reports each step with the time since the start. Cheap to clone and to share between threads.
#[derive(Clone)]
pub struct Progress {
    started: Instant,
    output: Arc<Output>,
}

impl Progress {
    pub fn new(output: impl Fn(Duration, &str) + Send + Sync + 'static) -> Self {
        Progress {
            started: Instant::now(),
            output: Arc::new(output),
        }
    }

    /// Reports to standard error.
    #[expect(
        clippy::print_stderr,
        reason = "progress is shown to the user of any program"
    )]
    pub fn to_stderr() -> Self {
        Progress::new(|since, text| eprintln!("[{:7.2} s] {text}", since.as_secs_f64()))
    }

    pub fn silent() -> Self {
        Progress::new(|_, _| {})
    }

    pub fn step(&self, text: impl AsRef<str>) {
        (self.output)(self.started.elapsed(), text.as_ref());
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
