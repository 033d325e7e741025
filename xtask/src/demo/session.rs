//! A session whose program answers requests, while the demo goes on.

use std::io::{BufRead as _, BufReader};
use std::process::{Child, Command, Stdio};

use anyhow::{Context as _, Result, ensure};
use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;

/// It ends when this is dropped.
pub(super) struct Session(Child);

impl Session {
    /// Returns when the program listens, and so gets requests.
    pub(super) fn start(mut command: Command) -> Result<Self> {
        let mut process = command
            .stdout(Stdio::piped())
            .spawn()
            .context("cannot start `standin`")?;
        let output = process.stdout.take().context("it has no output")?;
        let session = Session(process);
        let mut line = String::new();
        BufReader::new(output).read_line(&mut line)?;
        ensure!(
            line.trim() == "listening",
            "the new version does not listen; what was said is above"
        );
        Ok(session)
    }

    /// Ends it as its user would.
    pub(super) fn end(mut self) -> Result<()> {
        let pid = Pid::from_raw(self.0.id().try_into()?);
        kill(pid, Signal::SIGTERM).context("cannot end the session")?;
        self.0.wait()?;
        Ok(())
    }
}

impl Drop for Session {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}
