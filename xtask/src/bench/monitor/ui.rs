//! The memory of `standin ui` when it follows many sessions.

use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::thread::sleep;
use std::time::{Duration, Instant};

use anyhow::{Context as _, Result, ensure};
use serde_json::Value;

use super::super::session::programs::{Program, Programs, end, log, memory};
use super::{Extent, Row};
use crate::process;

const SESSIONS: usize = 20;
/// A session with so many events is busy.
const EVENTS: u64 = 200;
const TIMEOUT: Duration = Duration::from_secs(120);

/// Accesses files that do not exist, each of which is an event.
const BUSY: &str =
    "i=0; while :; do i=$((i+1)); [ -e /srv/nothing-$i ]; [ $i -lt 500 ] || sleep 1; done";

pub(super) fn rows(programs: &mut Programs, _: &Extent) -> Result<Vec<Row>> {
    let folder = tempfile::tempdir()?;
    let target = KillOnDrop(Command::new("sleep").arg("3600").spawn()?);
    let mut sessions = Vec::new();
    for _ in 0..SESSIONS {
        sessions.push(session(programs, folder.path(), target.0.id())?);
    }
    let ui = Ui::start(programs, folder.path())?;
    let idle = memory(ui.program.pid())?;
    let begun = Instant::now();
    loop {
        let busy = ui.busy_sessions()?;
        if busy == SESSIONS {
            break;
        }
        ensure!(begun.elapsed() < TIMEOUT, "only {busy} sessions are seen");
        sleep(Duration::from_millis(200));
    }
    let busy = memory(ui.program.pid())?;
    Ok(vec![
        Row::new("memory of standin ui, just started", idle, "MiB"),
        Row::new(
            format!("memory of standin ui, {SESSIONS} sessions"),
            busy,
            "MiB",
        )
        .at_most(100.0),
    ])
}

fn session(programs: &Programs, folder: &Path, target: u32) -> Result<KillOnDrop> {
    let child = Command::new(&programs.standin)
        .args(["exec", "--quiet", "-t", &format!("process/{target}")])
        .args(["--", "bash", "-c", BUSY])
        .env("STANDIN_SESSIONS_DIR", folder)
        .env("STANDIN_AGENT_PROGRAM", &programs.standind)
        .stdin(Stdio::null())
        .stdout(Stdio::null())
        .stderr(log()?)
        .spawn()
        .context("starting a session")?;
    Ok(KillOnDrop(child))
}

/// A program that is killed when this is dropped.
struct KillOnDrop(Child);

impl Drop for KillOnDrop {
    fn drop(&mut self) {
        let _ = self.0.kill();
        end(&mut self.0);
    }
}

/// `standin ui`, which runs until this is dropped.
pub(super) struct Ui {
    program: Program,
    /// With the token.
    pub(super) address: String,
    killed: u32,
}

impl Ui {
    pub(super) fn start(programs: &Programs, folder: &Path) -> Result<Self> {
        let mut command = Command::new(&programs.standin);
        command
            .args(["ui", "--no-open", "--sessions-dir"])
            .arg(folder);
        let (program, line) = Program::start(command)?;
        let address = line.trim().rsplit(' ').next().unwrap_or_default();
        ensure!(address.contains("token="), "`standin ui` printed {line:?}");
        Ok(Self {
            address: address.to_owned(),
            killed: program.pid(),
            program,
        })
    }

    /// The number of busy sessions.
    fn busy_sessions(&self) -> Result<usize> {
        let (origin, token) = self.address.split_once("?token=").context("no token")?;
        let bearer = format!("Authorization: Bearer {token}");
        let address = format!("{}/api/sessions", origin.trim_end_matches('/'));
        let output = process::output(
            Command::new("curl").args(["--silent", "--fail", "--header", &bearer, &address]),
        )?;
        let sessions: Value = serde_json::from_str(&output)?;
        let sessions = sessions.as_array().context("no list of sessions")?;
        let busy = sessions.iter().filter(|session| {
            let events = session.pointer("/counters/events");
            let events = events.and_then(Value::as_u64);
            events.is_some_and(|events| events >= EVENTS)
        });
        Ok(busy.count())
    }
}

impl Drop for Ui {
    fn drop(&mut self) {
        // It does not exit at the end of its input, unlike the programs of the benches.
        let _ = Command::new("kill").arg(self.killed.to_string()).status();
    }
}
