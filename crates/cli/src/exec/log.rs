//! The log file of a session, which is written only on request.

use std::env;
use std::fs::{self, DirBuilder, File, OpenOptions};
use std::os::unix::fs::{DirBuilderExt as _, OpenOptionsExt as _};
use std::path::PathBuf;
use std::process;
use std::sync::Mutex;
use std::time::{SystemTime, UNIX_EPOCH};

use anyhow::{Context, Result};
use tracing_subscriber::filter::{LevelFilter, Targets};
use tracing_subscriber::layer::SubscriberExt as _;
use tracing_subscriber::util::SubscriberInitExt as _;

use crate::environment::{HOME, STATE_HOME};

/// The crates that log at the requested level. Logs of other crates may contain the program's traffic.
const OWN_CRATES: &[&str] = &[
    "agent",
    "cluster",
    "config",
    "interceptor",
    "link",
    "proxy",
    "standin",
];

/// The log level, which is also passed to the agent.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Verbosity(pub(crate) u8);

impl Verbosity {
    pub(crate) fn level(self) -> LevelFilter {
        match self.0 {
            0 => LevelFilter::OFF,
            1 => LevelFilter::INFO,
            2 => LevelFilter::DEBUG,
            _ => LevelFilter::TRACE,
        }
    }
}

/// Starts the log if it was requested. Returns its path.
pub(crate) fn start(verbosity: Verbosity, file: Option<PathBuf>) -> Result<Option<PathBuf>> {
    if verbosity.0 == 0 && file.is_none() {
        return Ok(None);
    }
    let verbosity = Verbosity(verbosity.0.max(1));
    let path = match file {
        Some(file) => file,
        None => default_file()?,
    };
    let file = create(&path).with_context(|| {
        let path = path.display();
        format!("cannot write the log {path}: name a file that you may write with --log-file")
    })?;
    let targets = Targets::new()
        .with_default(LevelFilter::WARN)
        .with_targets(OWN_CRATES.iter().map(|name| (*name, verbosity.level())));
    let lines = tracing_subscriber::fmt::layer()
        .with_writer(Mutex::new(file))
        .with_ansi(false);
    tracing_subscriber::registry()
        .with(lines)
        .with(targets)
        .init();
    Ok(Some(path))
}

/// Only the user may read the log: it contains file names and addresses.
fn create(path: &PathBuf) -> std::io::Result<File> {
    OpenOptions::new()
        .create(true)
        .append(true)
        .mode(0o600)
        .open(path)
}

fn default_file() -> Result<PathBuf> {
    let folder = env::var_os(STATE_HOME)
        .map(PathBuf::from)
        .filter(|folder| folder.is_absolute())
        .or_else(|| env::var_os(HOME).map(|home| PathBuf::from(home).join(".local/state")))
        .context("there is no folder for logs: set XDG_STATE_HOME or HOME, or name a file with --log-file")?
        .join("standin");
    if !folder.is_dir() {
        if let Some(parent) = folder.parent() {
            let _ = fs::create_dir_all(parent);
        }
        DirBuilder::new()
            .mode(0o700)
            .recursive(true)
            .create(&folder)
            .with_context(|| {
                let folder = folder.display();
                format!("cannot create the folder {folder} for logs: name a file with --log-file")
            })?;
    }
    let now = SystemTime::now().duration_since(UNIX_EPOCH);
    let seconds = now.map_or(0, |now| now.as_secs());
    Ok(folder.join(format!("exec-{seconds}-{}.log", process::id())))
}
