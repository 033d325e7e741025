//! A session that can be watched: its socket, its recording, and its end from outside.

mod kill;
mod processes;
mod record;
mod server;

use std::ffi::OsString;
use std::fs::File;
use std::path::{Path, PathBuf};
use std::sync::{Arc, OnceLock};
use std::time::Duration;

use anyhow::{Context, Result};
use config::Effective;
use monitor::{ConfigValue, Event, PROTOCOL_VERSION, SessionInfo};
use proxy::{Monitor, Signaller};
use tokio::runtime::Handle;
use tokio::sync::watch;
use tokio::task::JoinSet;
use tokio::time::timeout;

use self::kill::Program;
use self::server::Socket;
use super::agent::Agent;
use super::progress::Progress;
use crate::api::folder::Folder;

/// How long those who listen have to take the last events.
const FAREWELL: Duration = Duration::from_millis(500);

/// What is known of a session when it begins.
#[derive(Debug, Clone)]
pub(super) struct About {
    pub(super) id: String,
    pub(super) target: String,
    pub(super) command: Vec<OsString>,
    pub(super) config_path: Option<PathBuf>,
    /// Knows what may change: in which clusters the session is.
    pub(super) agent: Agent,
}

/// Everything that is asked of a session from outside.
#[derive(Debug)]
struct Watched {
    about: About,
    started_at: String,
    config: Vec<ConfigValue>,
    monitor: Monitor,
    progress: Progress,
    program: OnceLock<Program>,
    /// Becomes true when nothing more will happen.
    over: watch::Sender<bool>,
}

/// Ends with the session.
#[derive(Debug)]
pub(super) struct Watch {
    watched: Arc<Watched>,
    tasks: JoinSet<()>,
    socket: Option<Socket>,
}

/// Whether a session counts and tells at all.
pub(super) fn monitor(has_api: bool, records: bool) -> Monitor {
    if has_api || records {
        Monitor::on()
    } else {
        Monitor::off()
    }
}

/// A name for a session that nobody else has given one.
pub(super) fn new_id() -> String {
    format!("{:016x}", rand::random::<u64>())
}

impl Watch {
    /// Opens the socket and the recording. A socket that cannot be had is said, and does not keep the session from being;
    /// a recording was asked for by name, and so does.
    pub(super) fn start(
        runtime: &Handle,
        about: About,
        effective: &[Effective],
        monitor: Monitor,
        has_api: bool,
        recording: Option<&Path>,
        progress: &Progress,
    ) -> Result<Self> {
        let watched = Arc::new(Watched {
            about,
            started_at: jiff::Timestamp::now().to_string(),
            config: effective.iter().map(config_value).collect(),
            monitor,
            progress: progress.clone(),
            program: OnceLock::new(),
            over: watch::channel(false).0,
        });
        let mut watch = Self {
            watched,
            tasks: JoinSet::new(),
            socket: None,
        };
        let _on_runtime = runtime.enter();
        if let Some(path) = recording {
            let file = File::create(path)
                .with_context(|| format!("the recording {} cannot be made", path.display()))?;
            let record = record::record(Arc::clone(&watch.watched), file);
            watch.tasks.spawn_on(record, runtime);
        }
        if has_api {
            let socket =
                Folder::new(None).and_then(|folder| Socket::open(&folder, &watch.watched.about.id));
            match socket {
                Ok((socket, listener)) => {
                    server::serve(Arc::clone(&watch.watched), listener);
                    watch.socket = Some(socket);
                }
                Err(error) => progress.say(&format!(
                    "the session cannot be watched by `standin ui`, and goes on: {error:#}"
                )),
            }
        }
        Ok(watch)
    }

    /// The program runs.
    pub(super) fn started(&self, signaller: Signaller, process: i32) {
        let process = u32::try_from(process).unwrap_or_default();
        let process_name = processes::name(process);
        self.watched.monitor.emit(Event::LayerConnected {
            pid: process,
            process_name,
        });
        let program = Program { signaller, process };
        let _ = self.watched.program.set(program);
        if self.watched.monitor.is_on() {
            processes::follow(Arc::clone(&self.watched));
        }
    }

    /// The program has ended. Those who listen get what they have not got yet.
    pub(super) async fn end(mut self) {
        // Nobody finds what has ended.
        drop(self.socket.take());
        let pid = self.watched.program.get().map(|program| program.process);
        if let Some(pid) = pid {
            self.watched.monitor.emit(Event::LayerDisconnected { pid });
        }
        self.watched.over.send_replace(true);
        let rest = async {
            while self.tasks.join_next().await.is_some() {}
            self.watched.over.closed().await;
        };
        let _ = timeout(FAREWELL, rest).await;
    }
}

impl Watched {
    fn info(&self) -> SessionInfo {
        let about = &self.about;
        let process = self.program.get().map(|program| program.process);
        let text = |part: &OsString| part.to_string_lossy().into_owned();
        SessionInfo {
            session_id: about.id.clone(),
            protocol_version: PROTOCOL_VERSION,
            target: about.target.clone(),
            started_at: self.started_at.clone(),
            standin_version: env!("CARGO_PKG_VERSION").to_owned(),
            is_operator: about.agent.is_operator(),
            clusters: about.agent.cluster_names(),
            processes: process.map_or_else(Vec::new, processes::of_session),
            command: about.command.iter().map(text).collect(),
            supervisor: std::process::id(),
            config_path: about
                .config_path
                .as_ref()
                .map(|path| path.display().to_string()),
            health: self.monitor.health(),
            ports: self.monitor.ports(),
            counters: self.monitor.counters(),
        }
    }
}

fn config_value(effective: &Effective) -> ConfigValue {
    ConfigValue {
        key: effective.key.clone(),
        value: effective.value.clone(),
        reason: effective.reason(),
        is_default: effective.is_default(),
    }
}
