//! Ends a session on request: by SIGTERM, and by SIGKILL after a grace period.

use std::time::Duration;

use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;
use proxy::Signaller;
use tokio::time::{Instant, sleep};

use super::processes;

/// How long the processes of a session have to end after SIGTERM.
const GRACE_PERIOD: Duration = Duration::from_secs(5);
const POLL_INTERVAL: Duration = Duration::from_millis(50);

/// The program of a session.
#[derive(Debug)]
pub(super) struct Program {
    pub(super) signaller: Signaller,
    pub(super) process: u32,
}

impl Program {
    /// Sends SIGTERM to all processes, and SIGKILL after the grace period. When the program has ended, its children end with
    /// the session.
    pub(super) async fn end(&self) {
        self.signal(Signal::SIGTERM);
        // A stopped process does not handle signals.
        self.signal(Signal::SIGCONT);
        let since = Instant::now();
        while since.elapsed() < GRACE_PERIOD && self.signaller.signal(0).is_ok() {
            sleep(POLL_INTERVAL).await;
        }
        self.signal(Signal::SIGKILL);
    }

    fn signal(&self, signal: Signal) {
        for process in processes::of_session(self.process) {
            if let Ok(pid) = i32::try_from(process.pid)
                && process.pid != self.process
            {
                let _ = kill(Pid::from_raw(pid), signal);
            }
        }
        // The program is the last one, because the session ends with it.
        let _ = self.signaller.signal(signal as i32);
    }
}
