//! How long an agent lives that was started for one session, and that nobody may be left to end.

use std::time::Duration;

use tokio::sync::watch;
use tokio::time::sleep;

/// Counts the sessions of an agent. Clones count the same.
#[derive(Debug, Clone, Default)]
pub(super) struct Sessions {
    /// From those who serve a session to whoever waits for the end of all.
    running: watch::Sender<usize>,
}

/// Is held as long as a session is there.
#[derive(Debug)]
pub(super) struct Running(Sessions);

impl Sessions {
    pub(super) fn begin(&self) -> Running {
        self.running.send_modify(|running| *running += 1);
        Running(self.clone())
    }

    /// Ends when there was a session and none is left, or when none has come within `patience`. A session whose client is
    /// away is there until it may not come back any more.
    pub(super) async fn over(&self, patience: Duration) {
        let mut running = self.running.subscribe();
        tokio::select! {
            _ = running.wait_for(|running| *running > 0) => {}
            () = sleep(patience) => {
                tracing::info!("nobody has come");
                return;
            }
        }
        // The sender is ours, so there is no other end than this.
        let _ = running.wait_for(|running| *running == 0).await;
        tracing::info!("the session is over");
    }
}

impl Drop for Running {
    fn drop(&mut self) {
        self.0.running.send_modify(|running| *running -= 1);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const PATIENCE: Duration = Duration::from_secs(60);

    #[tokio::test(start_paused = true)]
    async fn it_is_over_when_nobody_comes() {
        Sessions::default().over(PATIENCE).await;
    }

    #[tokio::test(start_paused = true)]
    async fn it_is_over_when_the_last_session_is() {
        let sessions = Sessions::default();
        let (first, second) = (sessions.begin(), sessions.begin());
        let over = sessions.over(PATIENCE);
        tokio::pin!(over);
        drop(first);
        // Time passes by itself when nothing else happens.
        let still = tokio::time::timeout(PATIENCE * 10, &mut over).await;
        assert!(still.is_err());
        drop(second);
        over.await;
    }
}
