//! The lifetime of an agent that was started for one session: it must end by itself, because its starter may have ended.

use std::time::Duration;

use tokio::sync::watch;
use tokio::time::sleep;

/// Counts the sessions of an agent. Clones share the count.
#[derive(Debug, Clone, Default)]
pub(super) struct Sessions {
    /// The number of running sessions. The tasks that serve them update it, and [`Sessions::ended`] waits for it.
    running: watch::Sender<usize>,
}

/// Counts one session until it is dropped.
#[derive(Debug)]
pub(super) struct SessionGuard(Sessions);

impl Sessions {
    pub(super) fn begin(&self) -> SessionGuard {
        self.running.send_modify(|running| *running += 1);
        SessionGuard(self.clone())
    }

    /// Resolves when all sessions have ended, or when none has begun within `startup_timeout`. A session whose client is
    /// disconnected has not ended until its resume window is over.
    pub(super) async fn ended(&self, startup_timeout: Duration) {
        let mut running = self.running.subscribe();
        tokio::select! {
            _ = running.wait_for(|running| *running > 0) => {}
            () = sleep(startup_timeout) => {
                tracing::info!("no client connected");
                return;
            }
        }
        // It cannot fail: `self` has a sender.
        let _ = running.wait_for(|running| *running == 0).await;
        tracing::info!("session ended");
    }
}

impl Drop for SessionGuard {
    fn drop(&mut self) {
        self.0.running.send_modify(|running| *running -= 1);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const TIMEOUT: Duration = Duration::from_secs(60);

    #[tokio::test(start_paused = true)]
    async fn ends_when_no_client_connects() {
        Sessions::default().ended(TIMEOUT).await;
    }

    #[tokio::test(start_paused = true)]
    async fn ends_with_the_last_session() {
        let sessions = Sessions::default();
        let (first, second) = (sessions.begin(), sessions.begin());
        let ended = sessions.ended(TIMEOUT);
        tokio::pin!(ended);
        drop(first);
        // The paused clock advances when all tasks are idle.
        let still_running = tokio::time::timeout(TIMEOUT * 10, &mut ended).await;
        assert!(still_running.is_err());
        drop(second);
        ended.await;
    }
}
