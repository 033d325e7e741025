//! Waiting for conditions, never for durations.

use std::time::{Duration, Instant};

use anyhow::{Result, bail};

/// Long enough for a busy machine. A story that succeeds never waits this long.
const PATIENCE: Duration = Duration::from_secs(120);
const BETWEEN_LOOKS: Duration = Duration::from_millis(100);

/// Looks until there is something, and returns it. `what` completes the sentence "waited for …". An error of `look`
/// is not the end: servers restart in some stories. The last one is part of the report.
pub async fn until<T>(what: &str, mut look: impl AsyncFnMut() -> Result<Option<T>>) -> Result<T> {
    let deadline = Instant::now() + PATIENCE;
    loop {
        let last = match look().await {
            Ok(Some(found)) => return Ok(found),
            Ok(None) => "not yet".to_owned(),
            Err(error) => format!("{error:#}"),
        };
        if Instant::now() > deadline {
            bail!(
                "waited {} s for {what}; the last look said: {last}",
                PATIENCE.as_secs()
            );
        }
        tokio::time::sleep(BETWEEN_LOOKS).await;
    }
}
