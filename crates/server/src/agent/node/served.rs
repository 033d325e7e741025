//! The targets that a node agent serves: one client each, as an agent of one session does it.

use std::collections::BTreeMap;
use std::net::{IpAddr, SocketAddr};
use std::sync::Arc;
use std::time::Duration;

use ::agent::{Agent, AllClaims, Memory, process_of_container};
use admission::Admission;
use anyhow::{Context, Result, bail};
use api::node::{ServeExit, ServeRequest, ServedTarget};
use link::ServerSettings;
use parking_lot::Mutex;
use protocol::grant::Grant;
use tokio::sync::watch;
use tokio::task::JoinSet;
use tokio::time::{Instant, sleep, timeout};
use tokio_util::sync::CancellationToken;

use crate::agent::listener::{AgentListener, ClientAuth, LIMITS};
use crate::agent::sessions::Sessions;
use crate::agent::{SHUTDOWN_TIMEOUT, serve_listener, serve_until};

/// How long an ended target stays in the list, so that the operator can count attempts.
const EXIT_RETENTION: Duration = Duration::from_secs(600);
/// How many ports are tried, starting with the requested one.
const MAX_PORTS_TRIED: u16 = 100;
/// How often to check whether a container is still running.
const POLL_INTERVAL: Duration = Duration::from_secs(1);

/// The served targets. Clones share them.
#[derive(Clone)]
pub(super) struct ServedTargets {
    /// The address on which clients connect, with one port for each target.
    address: IpAddr,
    /// The budget of all targets together.
    memory: Memory,
    entries: Arc<Mutex<BTreeMap<String, Entry>>>,
    /// All targets share the permits of unauthenticated connections, which bounds them for the whole process.
    admission: Admission,
}

struct Entry {
    served: ServedTarget,
    /// Until it has ended.
    agent: Option<Agent>,
    /// Cancelled to make it end.
    end: CancellationToken,
    /// Cancelled when it has ended.
    ended: CancellationToken,
    ended_at: Option<Instant>,
}

impl ServedTargets {
    pub(super) fn at(address: IpAddr, memory: Memory) -> Self {
        Self {
            address,
            memory,
            entries: Arc::default(),
            admission: Admission::new(LIMITS),
        }
    }

    /// Starts to serve a target. A target that is served under this name already stays unchanged.
    pub(super) async fn serve(&self, request: &ServeRequest) -> Result<ServedTarget> {
        if let Some(existing) = self.entries.lock().get(&request.name) {
            return Ok(existing.served.clone());
        }
        let container = request.container.clone();
        let grant: Grant = match &request.grant {
            Some(grant) => {
                serde_json::from_value(grant.clone()).context("the grant cannot be parsed")?
            }
            None => Grant::default(),
        };
        // Blocking: it reads `/proc` of every process.
        let memory = self.memory.clone();
        let agent = tokio::task::spawn_blocking(move || -> Result<Agent> {
            let process = process_of_container(&container)?;
            Ok(Agent::for_process_with_grant(process, &grant)?.with_memory(memory))
        })
        .await??;
        agent.check().await?;
        let client = request.client_certificate.parse();
        let auth =
            ClientAuth::Certificate(client.context("the client's certificate is not a SHA-256")?);
        let settings = ServerSettings {
            max_resume_window: Duration::from_secs(request.resume_window_secs),
            ..ServerSettings::default()
        };
        let listener = self.bind(request.port, &auth, settings).await?;
        let certificate = listener
            .certificate
            .context("the listener has no TLS certificate")?;
        let served = ServedTarget {
            name: request.name.clone(),
            pod: request.pod.clone(),
            container: request.container.clone(),
            port: listener.address.port(),
            certificate: certificate.to_string(),
            ended: None,
        };
        let entry = Entry {
            served: served.clone(),
            agent: Some(agent.clone()),
            end: CancellationToken::new(),
            ended: CancellationToken::new(),
            ended_at: None,
        };
        let (end, ended) = (entry.end.clone(), entry.ended.clone());
        {
            let mut entries = self.entries.lock();
            // A concurrent request may have inserted the same name.
            if let Some(existing) = entries.get(&request.name) {
                return Ok(existing.served.clone());
            }
            entries.insert(request.name.clone(), entry);
        }
        tracing::info!(
            name = request.name,
            container = request.container,
            "serving target"
        );
        let connect_timeout = Duration::from_secs(request.connect_timeout_secs);
        let (all, name) = (self.clone(), request.name.clone());
        tokio::spawn(async move {
            let exit = run(&listener, &agent, connect_timeout, &end).await;
            tracing::info!(name, reason = exit.reason, "stopped serving target");
            all.record_exit(&name, exit);
            ended.cancel();
        });
        Ok(served)
    }

    /// Changes the grant of a target's session. A target that has ended is ignored.
    pub(super) async fn regrant(&self, name: &str, grant: serde_json::Value) -> Result<()> {
        let agent = self
            .entries
            .lock()
            .get(name)
            .and_then(|entry| entry.agent.clone());
        match agent {
            Some(agent) => super::super::regrant(&agent, grant).await,
            None => Ok(()),
        }
    }

    /// The ports that the session of a target has claimed. `None` if it is not served.
    pub(super) fn ports(&self, name: &str) -> Option<watch::Receiver<AllClaims>> {
        let entries = self.entries.lock();
        Some(entries.get(name)?.agent.as_ref()?.watch_ports())
    }

    /// The targets that are served or have ended recently.
    pub(super) fn list(&self, prefix: &str) -> Vec<ServedTarget> {
        let mut entries = self.entries.lock();
        entries.retain(|_, entry| {
            let is_old = |ended: Instant| ended.elapsed() > EXIT_RETENTION;
            !entry.ended_at.is_some_and(is_old)
        });
        let found = entries.values();
        let found = found.filter(|entry| entry.served.name.starts_with(prefix));
        found.map(|entry| entry.served.clone()).collect()
    }

    pub(super) fn end(&self, name: &str) {
        if let Some(entry) = self.entries.lock().get(name) {
            entry.end.cancel();
        }
    }

    /// Ends all targets, and waits until their redirected traffic is restored.
    pub(super) async fn end_all(&self) {
        let mut ended = JoinSet::new();
        for entry in self.entries.lock().values() {
            entry.end.cancel();
            ended.spawn(entry.ended.clone().cancelled_owned());
        }
        let _ = timeout(SHUTDOWN_TIMEOUT * 2, ended.join_all()).await;
    }

    /// Binds the requested port, or the next free one.
    async fn bind(
        &self,
        port: u16,
        auth: &ClientAuth,
        settings: ServerSettings,
    ) -> Result<AgentListener> {
        let mut last = None;
        for port in port..port.saturating_add(MAX_PORTS_TRIED) {
            let listen = SocketAddr::new(self.address, port);
            let admission = self.admission.clone();
            match AgentListener::bind(listen, auth, settings.clone(), admission).await {
                Ok(listener) => return Ok(listener),
                Err(error) => last = Some(error),
            }
        }
        match last {
            Some(error) => Err(error),
            None => bail!("the request has no valid port"),
        }
    }

    fn record_exit(&self, name: &str, exit: ServeExit) {
        if let Some(entry) = self.entries.lock().get_mut(name) {
            entry.served.ended = Some(exit);
            entry.agent = None;
            entry.ended_at = Some(Instant::now());
        }
    }
}

/// Serves until the session ends, the container ends, or the operator ends it.
async fn run(
    listener: &AgentListener,
    agent: &Agent,
    connect_timeout: Duration,
    end: &CancellationToken,
) -> ServeExit {
    let sessions = Sessions::default();
    let cancelled = CancellationToken::new();
    let mut reason = "the operator ended it";
    let shutdown = async {
        reason = tokio::select! {
            () = sessions.ended(connect_timeout) => "its session has ended",
            () = target_exit(agent) => "its container has ended",
            () = end.cancelled() => "the operator ended it",
        };
    };
    let serving = async {
        serve_listener(listener, agent, &sessions, &cancelled).await;
        Ok(())
    };
    let result = serve_until(serving, shutdown, agent.end()).await;
    listener.close(reason);
    cancelled.cancel();
    ServeExit {
        has_failed: result.is_err(),
        reason: match result {
            Ok(()) => reason.to_owned(),
            Err(error) => format!("{error:#}"),
        },
    }
}

async fn target_exit(agent: &Agent) {
    while !agent.target_has_exited() {
        sleep(POLL_INTERVAL).await;
    }
}
