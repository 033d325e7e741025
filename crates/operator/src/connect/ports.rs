//! Which ports a session has, as its agents say: the traffic comes from them, and a client could claim anything.
//!
//! The replica that carries a session asks each of its agents, and is told whenever it changes. What is new is in the audit
//! log at once, and a moment later in the session's object, from which another replica goes on.

mod told;

use std::collections::HashMap;
use std::net::SocketAddr;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use api::MirrordClusterSession;
use api::node::{NodeRequest, message};
use api::session::SessionPod;
use kube::Api;
use kube::api::{Patch, PatchParams};
use link::Pipe;
use serde_json::json;
use tokio::io::AsyncWriteExt as _;
use tokio::sync::Notify;
use tokio::time::{sleep, timeout};
use tokio_util::task::AbortOnDropHandle;

use self::told::{Change, Told, believed};
use crate::controller::agent_mode;
use crate::nodes::Trouble;
use crate::settings::AgentMode;
use crate::{Shared, audit, nodes};

/// What changes within this time is written at once.
const GATHERED: Duration = Duration::from_millis(500);
const AFTER_A_FAILURE: Duration = Duration::from_secs(5);
/// How long an agent may take to answer the call.
const PATIENCE: Duration = Duration::from_secs(5);
/// Agents repeat themselves more often than this.
const SILENCE: Duration = Duration::from_secs(90);

/// Ports of one session. Nobody else writes the field of its object.
pub(crate) struct PortBook {
    shared: Arc<Shared>,
    /// The name of the session's object.
    session: String,
    told: Mutex<Told>,
    /// From those who listen to agents to the one who writes.
    news: Notify,
}

impl PortBook {
    pub(crate) fn new(shared: &Arc<Shared>, session: &str) -> Arc<Self> {
        Arc::new(Self {
            shared: Arc::clone(shared),
            session: session.to_owned(),
            told: Mutex::default(),
            news: Notify::new(),
        })
    }

    /// Keeps the book for as long as it is awaited.
    pub(crate) async fn keep(self: &Arc<Self>) {
        tokio::join!(self.keep_listening(), self.keep_writing());
    }

    /// The session ends. What it has now is told by whoever ends it, from its object.
    pub(crate) async fn close(&self) {
        self.told().close();
        self.flush().await;
    }

    /// Writes what is not written yet.
    pub(crate) async fn flush(&self) {
        let unwritten = self.told().unwritten();
        let Some(ports) = unwritten else { return };
        let sessions: Api<MirrordClusterSession> = Api::all(self.shared.client.clone());
        let patch = json!({"status": {"ports": ports}});
        let patched = sessions
            .patch_status(
                &self.session,
                &PatchParams::default(),
                &Patch::Merge(&patch),
            )
            .await;
        match patched {
            Ok(_) => self.told().note_written(&ports),
            Err(error) => {
                tracing::debug!(session = self.session, %error, "ports are not written down");
            }
        }
    }

    async fn keep_writing(&self) {
        loop {
            self.news.notified().await;
            sleep(GATHERED).await;
            self.flush().await;
            if self.told().unwritten().is_some() {
                sleep(AFTER_A_FAILURE).await;
                self.news.notify_one();
            }
        }
    }

    /// Listens to all agents that there are.
    async fn keep_listening(self: &Arc<Self>) {
        let mut bell = self.shared.sessions.bell();
        let mut listening: HashMap<String, AbortOnDropHandle<()>> = HashMap::new();
        while bell.changed().await.is_ok() {
            let Some(session) = self.session() else {
                continue;
            };
            let status = session.status.clone().unwrap_or_default();
            self.told().begin(&status.ports);
            let pods = status.pods.into_iter().filter(|pod| pod.ready);
            let agents: HashMap<String, SessionPod> = pods
                .filter_map(|pod| Some((pod.agent.clone()?, pod)))
                .collect();
            listening.retain(|agent, _| agents.contains_key(agent));
            self.change(|told| told.keep_only(|agent| agents.contains_key(agent)));
            for (agent, pod) in agents {
                listening.entry(agent.clone()).or_insert_with(|| {
                    self.told().expect(&agent);
                    let listener = Arc::clone(self).keep_hearing(agent, pod);
                    AbortOnDropHandle::new(tokio::spawn(listener))
                });
            }
        }
    }

    async fn keep_hearing(self: Arc<Self>, agent: String, pod: SessionPod) {
        loop {
            if let Err(error) = self.hear(&agent, &pod).await {
                tracing::debug!(session = self.session, agent, %error, "an agent does not tell ports");
            }
            // What it has told still holds, as far as anybody knows.
            self.change(|told| told.expect_no_more(&agent));
            sleep(AFTER_A_FAILURE).await;
        }
    }

    /// Listens to an agent as long as it speaks.
    async fn hear(&self, agent: &str, pod: &SessionPod) -> Result<(), Trouble> {
        let mut pipe = timeout(PATIENCE, self.ask(agent, pod)).await??;
        loop {
            let answer = timeout(SILENCE, nodes::answer(&mut pipe)).await??;
            if let Some(error) = answer.error {
                return Err(error.into());
            }
            let ports = believed(answer.ports);
            self.change(|told| told.hear(agent, ports));
        }
    }

    async fn ask(&self, agent: &str, pod: &SessionPod) -> Result<Box<dyn Pipe>, Trouble> {
        let session = self.session().ok_or("the session is over")?;
        let address = pod.address.as_deref().ok_or("nobody knows where it is")?;
        let address: SocketAddr = address.parse()?;
        let settings = &self.shared.settings;
        let mode = agent_mode(&session.spec.target, settings.agent_mode);
        let mut pipe: Box<dyn Pipe> = match mode {
            AgentMode::Node => Box::new(self.shared.nodes.dial(address.ip()).await?),
            _ => Box::new(nodes::dial_agent(&self.shared.identity, address).await?),
        };
        let request = NodeRequest::Ports {
            name: agent.to_owned(),
            patterns: settings.shows_filter_patterns,
        };
        pipe.write_all(&message(&request)?).await?;
        pipe.flush().await?;
        Ok(pipe)
    }

    fn change(&self, change: impl FnOnce(&mut Told) -> Change) {
        // What ends with its session is told by whoever ends that.
        let Some(session) = self.session() else {
            return;
        };
        let change = change(&mut self.told());
        if change.is_none() {
            return;
        }
        for port in &change.begun {
            audit::port_begins(&session, port);
        }
        for port in &change.ended {
            audit::port_ends(&session, port);
        }
        self.news.notify_one();
    }

    /// None, when it is about to be gone.
    fn session(&self) -> Option<Arc<MirrordClusterSession>> {
        let session = self.shared.sessions.get(&self.session)?;
        let is_deleted = session.metadata.deletion_timestamp.is_some();
        (!is_deleted).then_some(session)
    }

    fn told(&self) -> MutexGuard<'_, Told> {
        self.told.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
