//! A developer's server in a session, which gets the target's traffic.

use std::fs;
use std::io::{BufRead as _, BufReader};
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::sync::mpsc::{self, Receiver};
use std::thread;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail};

use super::load::WANTED;
use super::session::programs::{Programs, end, log, log_path};

/// So long the first traffic of a session may take.
const PATIENCE: Duration = Duration::from_secs(60);

/// What a session does with the traffic.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Mode {
    /// Takes the requests that it wants.
    Steal,
    /// Takes everything.
    StealAll,
    /// Gets a copy of everything.
    Mirror,
}

/// How the developer's server treats its connections.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Manner {
    Healthy,
    Slow,
    Dead,
}

impl Mode {
    fn config(self) -> String {
        let incoming = match self {
            Self::Steal => {
                format!("mode: steal\n      http_filter:\n        header_filter: \"^{WANTED}$\"")
            }
            Self::StealAll => "mode: steal".to_owned(),
            Self::Mirror => "mode: mirror".to_owned(),
        };
        format!("feature:\n  network:\n    incoming:\n      {incoming}\n")
    }
}

impl Manner {
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
    /// What the server says.
    lines: Receiver<String>,
}

impl Session {
    /// Starts the server for a port, and waits until it listens. `command` is the session's, up to what the session does.
    pub(super) fn start(
        mut command: Command,
        programs: &Programs,
        folder: &Path,
        mode: Mode,
        manner: Manner,
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
            .args(["--manner", manner.name()]);
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
        match session.lines.recv_timeout(PATIENCE) {
            Ok(line) if line == "ready" => Ok(session),
            other => bail!(
                "a session did not begin ({other:?}); what was said is in {}",
                log_path()?.display()
            ),
        }
    }

    /// Makes requests until one has arrived at the developer's server.
    pub(super) fn wait_for_traffic(
        &self,
        mut make_request: impl FnMut() -> Result<()>,
    ) -> Result<()> {
        let start = Instant::now();
        loop {
            let made = make_request();
            match self.lines.recv_timeout(Duration::from_millis(100)) {
                Ok(line) if line == "connected" => return Ok(()),
                _ if start.elapsed() < PATIENCE => {}
                _ => {
                    made.context("no traffic has arrived at a session")?;
                    bail!("no traffic has arrived at a session");
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
