//! Ends a session from outside: politely, and then firmly.

use std::time::Duration;

use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;
use proxy::Signaller;
use tokio::time::{Instant, sleep};

use super::processes;

/// How long the processes of a session have to end by themselves.
const GRACE: Duration = Duration::from_secs(5);
const LOOK_EVERY: Duration = Duration::from_millis(50);

/// The program of a session.
#[derive(Debug)]
pub(super) struct Program {
    pub(super) signaller: Signaller,
    pub(super) process: u32,
}

impl Program {
    /// Asks all processes to end, and ends those that have not after a while. When the program has ended, what it has
    /// started ends with the session.
    pub(super) async fn end(&self) {
        self.signal(Signal::SIGTERM);
        // One that is stopped does not hear.
        self.signal(Signal::SIGCONT);
        let since = Instant::now();
        while since.elapsed() < GRACE && self.signaller.signal(0).is_ok() {
            sleep(LOOK_EVERY).await;
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
        // Last, because the rest ends with it.
        let _ = self.signaller.signal(signal as i32);
    }
}
