//! The local API of a session: its socket, its recording, and its end by another process.

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
use monitor::{ConfigValue, PROTOCOL_VERSION, SessionInfo};
use proxy::{Monitor, Signaller};
use tokio::runtime::Handle;
use tokio::sync::watch;
use tokio::task::JoinSet;
use tokio::time::timeout;

use self::kill::Program;
use self::server::Socket;
use super::agent::AgentProvider;
use super::progress::Progress;
use crate::api::folder::Folder;

/// How long subscribers have to receive the last events.
const END_TIMEOUT: Duration = Duration::from_millis(500);

/// The description of a session at its start.
#[derive(Debug, Clone)]
pub(super) struct SessionDetails {
    pub(super) id: String,
    pub(super) target: String,
    pub(super) command: Vec<OsString>,
    pub(super) config_path: Option<PathBuf>,
    /// For the clusters of the session, which may change.
    pub(super) agents: AgentProvider,
}

/// The state that requests to the local API use.
#[derive(Debug)]
struct SessionContext {
    details: SessionDetails,
    started_at: String,
    config: Vec<ConfigValue>,
    monitor: Monitor,
    progress: Progress,
    program: OnceLock<Program>,
    /// Becomes true when the session has ended.
    ended: watch::Sender<bool>,
}

/// The local API. It ends with the session.
#[derive(Debug)]
pub(super) struct LocalApi {
    context: Arc<SessionContext>,
    tasks: JoinSet<()>,
    socket: Option<Socket>,
}

/// The monitor of a session. It is off if neither the API nor a recording needs it.
pub(super) fn monitor(has_api: bool, records: bool) -> Monitor {
    if has_api || records {
        Monitor::on()
    } else {
        Monitor::off()
    }
}

/// An id for a session that has none from an operator.
pub(super) fn new_id() -> String {
    format!("{:016x}", rand::random::<u64>())
}

impl LocalApi {
    /// Opens the socket and the recording. A socket that cannot be opened is only a warning. A recording that cannot be
    /// opened is an error, because the user has requested it.
    pub(super) fn start(
        runtime: &Handle,
        details: SessionDetails,
        effective: &[Effective],
        monitor: Monitor,
        has_api: bool,
        recording: Option<&Path>,
        progress: &Progress,
    ) -> Result<Self> {
        let context = Arc::new(SessionContext {
            details,
            started_at: jiff::Timestamp::now().to_string(),
            config: effective.iter().map(config_value).collect(),
            monitor,
            progress: progress.clone(),
            program: OnceLock::new(),
            ended: watch::channel(false).0,
        });
        let mut api = Self {
            context,
            tasks: JoinSet::new(),
            socket: None,
        };
        let _on_runtime = runtime.enter();
        if let Some(path) = recording {
            let file = File::create(path)
                .with_context(|| format!("cannot create the recording {}", path.display()))?;
            let record = record::record(Arc::clone(&api.context), file);
            api.tasks.spawn_on(record, runtime);
        }
        if has_api {
            let socket =
                Folder::new(None).and_then(|folder| Socket::open(&folder, &api.context.details.id));
            match socket {
                Ok((socket, listener)) => {
                    server::serve(Arc::clone(&api.context), listener);
                    progress.set_session(&api.context.details.id);
                    api.socket = Some(socket);
                }
                Err(error) => progress.warn(&format!(
                    "the session continues without its socket, so `standin ui` cannot show it: {error:#}"
                )),
            }
        }
        Ok(api)
    }

    /// Must be called when the program runs.
    pub(super) fn program_started(&self, signaller: Signaller, process: i32) {
        let process = u32::try_from(process).unwrap_or_default();
        let monitor = &self.context.monitor;
        monitor.process_started(process, || crate::process::name(process));
        let program = Program { signaller, process };
        let _ = self.context.program.set(program);
        if self.context.monitor.is_on() {
            processes::watch(Arc::clone(&self.context));
        }
    }

    /// Must be called when the program has ended. Subscribers receive the remaining events.
    pub(super) async fn end(mut self) {
        // Clients must not find a session that has ended.
        drop(self.socket.take());
        let pid = self.context.program.get().map(|program| program.process);
        if let Some(pid) = pid {
            self.context.monitor.process_ended(pid);
        }
        self.context.ended.send_replace(true);
        let delivered = async {
            while self.tasks.join_next().await.is_some() {}
            self.context.ended.closed().await;
        };
        let _ = timeout(END_TIMEOUT, delivered).await;
    }
}

impl SessionContext {
    fn info(&self) -> SessionInfo {
        let details = &self.details;
        let process = self.program.get().map(|program| program.process);
        let text = |part: &OsString| part.to_string_lossy().into_owned();
        SessionInfo {
            session_id: details.id.clone(),
            protocol_version: PROTOCOL_VERSION,
            target: details.target.clone(),
            started_at: self.started_at.clone(),
            standin_version: env!("CARGO_PKG_VERSION").to_owned(),
            is_operator: details.agents.is_operator(),
            clusters: details.agents.cluster_names(),
            processes: process.map_or_else(Vec::new, processes::of_session),
            command: details.command.iter().map(text).collect(),
            supervisor: std::process::id(),
            config_path: details
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
