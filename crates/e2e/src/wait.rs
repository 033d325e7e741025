//! Waiting for conditions, never for durations.

use std::time::{Duration, Instant};

use anyhow::{Result, bail};

use crate::timing;

/// Long enough for a busy machine. A scenario that passes never waits this long.
const TIMEOUT: Duration = Duration::from_secs(120);
const POLL_INTERVAL: Duration = Duration::from_millis(100);

/// Polls until there is a value, and returns it. `what` completes the sentence "waited for …". An error of `poll` does
/// not end the wait, because servers restart in some scenarios. The last error is part of the report.
pub async fn until<T>(what: &str, mut poll: impl AsyncFnMut() -> Result<Option<T>>) -> Result<T> {
    let _timer = timing::start_wait(what);
    let deadline = Instant::now() + TIMEOUT;
    loop {
        let last = match poll().await {
            Ok(Some(value)) => return Ok(value),
            Ok(None) => "not yet".to_owned(),
            Err(error) => format!("{error:#}"),
        };
        if Instant::now() > deadline {
            bail!(
                "waited {} s for {what}; the last attempt: {last}",
                TIMEOUT.as_secs()
            );
        }
        tokio::time::sleep(POLL_INTERVAL).await;
    }
}
