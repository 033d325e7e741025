//! A session whose program serves requests while the demo continues.

use std::io::{BufRead as _, BufReader};
use std::process::{Child, Command, Stdio};

use anyhow::{Context as _, Result, ensure};
use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;

/// The session ends when this is dropped.
pub(super) struct Session(Child);

impl Session {
    /// Returns when the program listens, and so receives requests.
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
            "the new version does not listen; see the output above"
        );
        Ok(session)
    }

    /// Ends it with the signal that a user would send.
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
