//! Tracks the ports that a session claims, as its agents report them. Agents redirect the traffic, and reports of a client
//! could be wrong.
//!
//! The replica that relays a session subscribes to the ports of each agent. A change is written to the audit log at once, and
//! a moment later to the session's object, from which another replica can continue.

mod reported;

use std::collections::HashMap;
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use api::MirrordClusterSession;
use api::node::{NodeRequest, encode_message};
use api::session::SessionPod;
use kube::Api;
use kube::api::{Patch, PatchParams};
use link::Pipe;
use parking_lot::Mutex;
use serde_json::json;
use tokio::io::AsyncWriteExt as _;
use tokio::sync::Notify;
use tokio::time::{sleep, timeout};
use tokio_util::task::AbortOnDropHandle;

use self::reported::{PortChange, ReportedPorts, sanitize};
use crate::controller::agent_mode;
use crate::nodes::BoxError;
use crate::settings::AgentMode;
use crate::{Shared, audit, nodes};

/// Changes within this time are written together.
const WRITE_DELAY: Duration = Duration::from_millis(500);
const RETRY_DELAY: Duration = Duration::from_secs(5);
/// How long a connection to an agent may take.
const CONNECT_TIMEOUT: Duration = Duration::from_secs(5);
/// Agents repeat their ports more often than this.
const IDLE_TIMEOUT: Duration = Duration::from_secs(90);

/// The ports of one session. Only this tracker writes them to the session's object.
pub(crate) struct PortTracker {
    shared: Arc<Shared>,
    /// The name of the session's object.
    session: String,
    reported: Mutex<ReportedPorts>,
    /// Notifies the writer of changes.
    changed: Notify,
}

impl PortTracker {
    pub(crate) fn new(shared: &Arc<Shared>, session: &str) -> Arc<Self> {
        Arc::new(Self {
            shared: Arc::clone(shared),
            session: session.to_owned(),
            reported: Mutex::default(),
            changed: Notify::new(),
        })
    }

    /// Tracks the ports as long as it is polled. Never returns.
    pub(crate) async fn run(self: &Arc<Self>) {
        tokio::join!(self.watch_agents(), self.write_changes());
    }

    /// The session ends. The controller logs the release of the ports that its object has then.
    pub(crate) async fn close(&self) {
        self.reported.lock().close();
        self.flush().await;
    }

    /// Writes the ports to the session's object, if they have changed.
    pub(crate) async fn flush(&self) {
        let unwritten = self.reported.lock().unwritten();
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
            Ok(_) => self.reported.lock().mark_written(&ports),
            Err(error) => {
                tracing::debug!(session = self.session, %error, "port update failed");
            }
        }
    }

    async fn write_changes(&self) {
        loop {
            self.changed.notified().await;
            sleep(WRITE_DELAY).await;
            self.flush().await;
            if self.reported.lock().unwritten().is_some() {
                sleep(RETRY_DELAY).await;
                self.changed.notify_one();
            }
        }
    }

    /// Subscribes to all agents of the session.
    async fn watch_agents(self: &Arc<Self>) {
        let mut changes = self.shared.sessions.subscribe();
        let mut watches: HashMap<String, AbortOnDropHandle<()>> = HashMap::new();
        while changes.changed().await.is_ok() {
            let Some(session) = self.session() else {
                continue;
            };
            let status = session.status.clone().unwrap_or_default();
            self.reported.lock().initialize(&status.ports);
            let pods = status.pods.into_iter().filter(|pod| pod.ready);
            let agents: HashMap<String, SessionPod> = pods
                .filter_map(|pod| Some((pod.agent.clone()?, pod)))
                .collect();
            watches.retain(|agent, _| agents.contains_key(agent));
            self.update(|reported| reported.retain(|agent| agents.contains_key(agent)));
            for (agent, pod) in agents {
                watches.entry(agent.clone()).or_insert_with(|| {
                    self.reported.lock().expect(&agent);
                    let watch = Arc::clone(self).watch_agent(agent, pod);
                    AbortOnDropHandle::new(tokio::spawn(watch))
                });
            }
        }
    }

    async fn watch_agent(self: Arc<Self>, agent: String, pod: SessionPod) {
        loop {
            if let Err(error) = self.receive_ports(&agent, &pod).await {
                tracing::debug!(session = self.session, agent, %error, "port subscription failed");
            }
            // The ports that it reported before are kept.
            self.update(|reported| reported.stop_expecting(&agent));
            sleep(RETRY_DELAY).await;
        }
    }

    /// Receives the ports of an agent until its connection fails.
    async fn receive_ports(&self, agent: &str, pod: &SessionPod) -> Result<(), BoxError> {
        let mut pipe = timeout(CONNECT_TIMEOUT, self.request_ports(agent, pod)).await??;
        loop {
            let response = timeout(IDLE_TIMEOUT, nodes::read_response(&mut pipe)).await??;
            if let Some(error) = response.error {
                return Err(error.into());
            }
            let ports = sanitize(response.ports);
            self.update(|reported| reported.report(agent, ports));
        }
    }

    async fn request_ports(
        &self,
        agent: &str,
        pod: &SessionPod,
    ) -> Result<Box<dyn Pipe>, BoxError> {
        let session = self.session().ok_or("the session has ended")?;
        let address = pod.address.as_deref().ok_or("its address is unknown")?;
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
        pipe.write_all(&encode_message(&request)?).await?;
        pipe.flush().await?;
        Ok(pipe)
    }

    fn update(&self, update: impl FnOnce(&mut ReportedPorts) -> PortChange) {
        // When a session ends, the controller logs the release of its ports.
        let Some(session) = self.session() else {
            return;
        };
        let change = update(&mut self.reported.lock());
        if change.is_empty() {
            return;
        }
        for port in &change.added {
            audit::port_claimed(&session, port);
        }
        for port in &change.removed {
            audit::port_released(&session, port);
        }
        self.changed.notify_one();
    }

    /// The session's object, or `None` if it is being deleted.
    fn session(&self) -> Option<Arc<MirrordClusterSession>> {
        let session = self.shared.sessions.get(&self.session)?;
        let is_deleted = session.metadata.deletion_timestamp.is_some();
        (!is_deleted).then_some(session)
    }
}
