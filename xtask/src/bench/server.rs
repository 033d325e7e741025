//! A developer's server in a session, which receives the target's traffic.

use std::fs;
use std::io::{BufRead as _, BufReader};
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::sync::mpsc::{self, Receiver};
use std::thread;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail};

use super::load::MATCHED_HEADER;
use super::session::programs::{Programs, end, log, log_path};

/// The longest time until a session is ready, and until its first traffic.
const TIMEOUT: Duration = Duration::from_secs(60);

/// What a session does with the traffic.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Mode {
    /// Steals the requests that match its filter.
    Steal,
    /// Steals all traffic.
    StealAll,
    /// Mirrors all traffic.
    Mirror,
}

/// How the developer's server handles its connections.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum ServerBehavior {
    Healthy,
    Slow,
    Dead,
}

impl Mode {
    fn config(self) -> String {
        let incoming = match self {
            Self::Steal => {
                format!(
                    "mode: steal\n      http_filter:\n        header_filter: \"^{MATCHED_HEADER}$\""
                )
            }
            Self::StealAll => "mode: steal".to_owned(),
            Self::Mirror => "mode: mirror".to_owned(),
        };
        format!("feature:\n  network:\n    incoming:\n      {incoming}\n")
    }
}

impl ServerBehavior {
    pub(super) fn name(self) -> &'static str {
        match self {
            Self::Healthy => "healthy",
            Self::Slow => "slow",
            Self::Dead => "dead",
        }
    }
}

/// A developer's server in a session, until this is dropped.
#[derive(Debug)]
pub(super) struct Session {
    child: Child,
    /// The output of the server.
    lines: Receiver<String>,
}

impl Session {
    /// Starts the server for a port, and waits until it listens. `command` starts the session, and lacks the config and the
    /// program.
    pub(super) fn start(
        mut command: Command,
        programs: &Programs,
        folder: &Path,
        mode: Mode,
        behavior: ServerBehavior,
        port: u16,
    ) -> Result<Self> {
        let config = folder.join(format!("{mode:?}.yaml"));
        fs::write(&config, mode.config())?;
        command
            .arg("-f")
            .arg(config)
            .arg("--")
            .arg(&programs.workload)
            .args(["http", "--from", "developer"])
            .args(["--listen", &format!("0.0.0.0:{port}")])
            .args(["--behavior", behavior.name()]);
        let mut child = command
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .stderr(log()?)
            .spawn()
            .context("starting a session")?;
        let output = child.stdout.take().context("a session has no output")?;
        let (to_bench, lines) = mpsc::channel();
        thread::spawn(move || {
            for line in BufReader::new(output).lines().map_while(Result::ok) {
                if to_bench.send(line).is_err() {
                    return;
                }
            }
        });
        let session = Self { child, lines };
        match session.lines.recv_timeout(TIMEOUT) {
            Ok(line) if line == "ready" => Ok(session),
            other => bail!(
                "a session did not start ({other:?}); its log is {}",
                log_path()?.display()
            ),
        }
    }

    /// Sends requests until one has reached the developer's server.
    pub(super) fn wait_for_traffic(
        &self,
        mut make_request: impl FnMut() -> Result<()>,
    ) -> Result<()> {
        let start = Instant::now();
        loop {
            let result = make_request();
            match self.lines.recv_timeout(Duration::from_millis(100)) {
                Ok(line) if line == "connected" => return Ok(()),
                _ if start.elapsed() < TIMEOUT => {}
                _ => {
                    result.context("no traffic has reached the session")?;
                    bail!("no traffic has reached the session");
                }
            }
        }
    }
}

impl Drop for Session {
    fn drop(&mut self) {
        end(&mut self.child);
    }
}
