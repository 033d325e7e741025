//! The redirected ports of the target, and the sessions that have claimed traffic of each.
//!
//! The redirection exists only while there is at least one claim.

use std::collections::HashMap;
use std::fs;
use std::sync::Arc;
use std::time::Duration;

use parking_lot::RwLock;
use protocol::rpc::PortListeners;
use splitter::ConnectionMeta;
use tokio::sync::{Mutex as AsyncMutex, watch};
use tokio::task::JoinHandle;
use tokio::time::timeout;

use super::accept_pool::AcceptPool;
use super::connections::OpenConnections;
use super::peers;
use super::port::{OpenPort, PortKind, TrafficClaim};
use super::redirect::{
    Holder, Mesh, PeerEndpoint, Port, Protocol, Redirect, RedirectEvidence, RedirectedConnection,
};
use super::reset::{ResetSocket, ResetState, Side};
use super::spec::SubscriptionSpec;
use super::subscription_task::EventSender;
use crate::agent::Agent;
use crate::{Error, Result};

/// How long the end of the redirection waits for clients that have begun to connect.
const DRAIN_TIMEOUT: Duration = Duration::from_secs(10);

/// How often the shutdown checks whether all ports are released.
const POLL_INTERVAL: Duration = Duration::from_millis(5);

/// The redirected ports of an agent.
#[derive(Debug, Default)]
pub(crate) struct Ports {
    state: AsyncMutex<State>,
    open: Arc<OpenPorts>,
    connections: Arc<OpenConnections>,
    /// The agent is shutting down.
    is_ending: watch::Sender<bool>,
}

#[derive(Debug, Default)]
struct State {
    active: Option<ActiveRedirect>,
    /// The number of claims of each port.
    users: HashMap<Port, usize>,
}

/// A redirection, and the tasks that receive its traffic and serve peer agents.
#[derive(Debug)]
struct ActiveRedirect {
    redirect: Arc<Redirect>,
    tasks: [JoinHandle<()>; 3],
}

impl ActiveRedirect {
    async fn start(
        agent: &Agent,
        holder: &str,
        ports: &Arc<OpenPorts>,
        connections: &Arc<OpenConnections>,
    ) -> Result<Self> {
        let endpoint = PeerEndpoint::new();
        // The listener must exist before another agent can read the endpoint.
        let listener = peers::listen(agent, &endpoint).await?;
        let holder = Holder {
            name: holder.to_owned(),
            peer_endpoint: Some(endpoint),
        };
        let redirect = Arc::new(Redirect::for_holder(agent, holder).await?);
        let accepting = accept_all(
            agent.clone(),
            Arc::clone(&redirect),
            Arc::clone(ports),
            Arc::clone(connections),
        );
        let receiving = receive_all(agent.clone(), Arc::clone(&redirect), Arc::clone(ports));
        let serving_peers = peers::serve_all(agent.clone(), listener, endpoint);
        Ok(Self {
            redirect,
            tasks: [
                tokio::spawn(accepting),
                tokio::spawn(receiving),
                tokio::spawn(serving_peers),
            ],
        })
    }
}

impl Drop for ActiveRedirect {
    fn drop(&mut self) {
        for task in &self.tasks {
            task.abort();
        }
    }
}

/// The redirected ports, to look up the port of a connection or datagram.
#[derive(Debug, Default)]
struct OpenPorts(RwLock<HashMap<Port, Arc<OpenPort>>>);

impl OpenPorts {
    fn get(&self, port: Port) -> Option<Arc<OpenPort>> {
        self.0.read().get(&port).cloned()
    }

    fn insert(&self, port: Port, open: Arc<OpenPort>) {
        self.0.write().insert(port, open);
    }

    fn remove(&self, port: Port) -> Option<Arc<OpenPort>> {
        self.0.write().remove(&port)
    }
}

/// A session's claim of a port's traffic, and the state of the redirection when it was claimed.
#[derive(Debug)]
pub(super) struct PortClaim {
    port: Port,
    open: Arc<OpenPort>,
    pub(super) claim: TrafficClaim,
    pub(super) evidence: RedirectEvidence,
    pub(super) mesh: Option<Mesh>,
    /// The number of connections that were reset.
    pub(super) flushed: u32,
    /// The sockets that listen on the port, if they can be listed.
    pub(super) listeners: Option<PortListeners>,
}

impl PortClaim {
    /// Whether traffic was received.
    pub(super) fn traffic(&self) -> watch::Receiver<bool> {
        self.open.traffic.subscribe()
    }
}

impl Ports {
    /// Claims the traffic that a session subscribes to, and redirects the port if it is not redirected yet.
    pub(super) async fn claim(
        &self,
        agent: &Agent,
        spec: &SubscriptionSpec,
        session: Arc<AcceptPool>,
        events_to_session: EventSender,
    ) -> Result<PortClaim> {
        let port = spec.port;
        let mut state = self.state.lock().await;
        if *self.is_ending.borrow() {
            return Err(Error::Ending);
        }
        let redirect = self.use_port(&mut state, agent, spec).await?;
        let claimed = async {
            let open = self.open.get(port).ok_or(Error::SubscriptionEnded)?;
            let claim = open.claim(agent, spec, session, events_to_session);
            let mut claimed = PortClaim {
                port,
                claim: claim.await?,
                evidence: redirect.evidence(port),
                mesh: open.mesh(),
                flushed: 0,
                listeners: listeners(agent, &redirect, port).await,
                open,
            };
            if spec.flush_connections && port.protocol == Protocol::Tcp {
                let flushed = redirect.flush_connections(port.number).await?;
                claimed.flushed = u32::try_from(flushed).unwrap_or(u32::MAX);
            }
            Ok(claimed)
        };
        let claimed = claimed.await;
        if claimed.is_err() {
            self.release_port(&mut state, port).await;
        }
        claimed
    }

    /// Releases a claim, and ends the redirection of its port if it was the last one. Calls `released` when no more
    /// connections are accepted for the claim, which is before the open connections are drained.
    pub(super) async fn release(&self, claimed: PortClaim, released: impl FnOnce()) {
        let port = claimed.port;
        // The claim must end before the port is released.
        drop(claimed);
        let mut state = self.state.lock().await;
        self.remove_user(&mut state, port).await;
        released();
        self.end_unused_redirect(&mut state).await;
    }

    /// Waits until the agent begins to shut down.
    pub(super) async fn shutdown_started(&self) {
        let mut is_ending = self.is_ending.subscribe();
        // The sender lives as long as `self`, so this cannot fail.
        let _ = is_ending.wait_for(|is_ending| *is_ending).await;
    }

    /// Releases all ports, and drains the open connections.
    pub(crate) async fn end(&self) {
        self.is_ending.send_replace(true);
        // The tasks of the subscriptions release the ports.
        while self.state.lock().await.active.is_some() {
            tokio::time::sleep(POLL_INTERVAL).await;
        }
        self.connections.drain().await;
    }

    async fn use_port(
        &self,
        state: &mut State,
        agent: &Agent,
        spec: &SubscriptionSpec,
    ) -> Result<Arc<Redirect>> {
        let port = spec.port;
        let active = match &mut state.active {
            Some(active) => active,
            none => {
                let started =
                    ActiveRedirect::start(agent, &spec.holder, &self.open, &self.connections);
                none.insert(started.await?)
            }
        };
        let redirect = Arc::clone(&active.redirect);
        *state.users.entry(port).or_default() += 1;
        if self.open.get(port).is_some() {
            return Ok(redirect);
        }
        let open = Arc::new(OpenPort::new(agent, port.protocol));
        self.open.insert(port, Arc::clone(&open));
        let checked = async {
            redirect.add_port(port).await?;
            redirect.check(port).await
        };
        match checked.await {
            Ok(report) => {
                tracing::info!(port = %report.port, evidence = ?report.evidence, mesh = ?report.mesh, "redirect verified");
                open.set_mesh(report.mesh);
                Ok(redirect)
            }
            Err(error) => {
                self.release_port(state, port).await;
                Err(error)
            }
        }
    }

    /// Takes back [`Ports::use_port`].
    async fn release_port(&self, state: &mut State, port: Port) {
        self.remove_user(state, port).await;
        self.end_unused_redirect(state).await;
    }

    /// Removes the rules of a port if no claim is left.
    async fn remove_user(&self, state: &mut State, port: Port) {
        let users = state.users.entry(port).or_default();
        *users = users.saturating_sub(1);
        if *users > 0 {
            return;
        }
        state.users.remove(&port);
        let open = self.open.remove(port);
        let Some(active) = &state.active else {
            return;
        };
        if let Err(error) = active.redirect.remove_port(port).await {
            tracing::warn!(%error, %port, "redirect removal failed");
        }
        if let Some(PortKind::Udp(port)) = open.as_deref().map(|open| &open.kind) {
            port.restart_application_flows();
        }
    }

    /// Ends the redirection if no port is left.
    async fn end_unused_redirect(&self, state: &mut State) {
        let Some(active) = state.active.as_ref().filter(|_| state.users.is_empty()) else {
            return;
        };
        // Clients that have begun to connect get their connection. New claims wait for the lock meanwhile.
        let _ = timeout(DRAIN_TIMEOUT, active.redirect.drain()).await;
        state.active = None;
    }
}

/// The sockets that listen on the port. Some kernels cannot list UDP sockets.
async fn listeners(agent: &Agent, redirect: &Redirect, port: Port) -> Option<PortListeners> {
    let listed = async {
        Ok(PortListeners {
            cookies: redirect.listeners(port).await?,
            network: agent.sockets().run(network).await?,
        })
    };
    let log = |error: &Error| tracing::debug!(%error, %port, "failed to list listeners");
    listed.await.inspect_err(log).ok()
}

/// The network of the current thread: cookies of sockets are unique only in it.
fn network() -> Result<String> {
    let boot_id = fs::read_to_string("/proc/sys/kernel/random/boot_id");
    let namespace = fs::read_link("/proc/thread-self/ns/net");
    let boot_id = boot_id.map_err(Error::io("read the boot ID"))?;
    let namespace = namespace.map_err(Error::io("identify the network"))?;
    Ok(format!("{} {}", boot_id.trim_end(), namespace.display()))
}

/// Accepts connections as long as the redirection exists.
async fn accept_all(
    agent: Agent,
    redirect: Arc<Redirect>,
    ports: Arc<OpenPorts>,
    connections: Arc<OpenConnections>,
) {
    // For connections that had begun when their port was released: all of them go to the application.
    let unclaimed = Arc::new(OpenPort::new(&agent, Protocol::Tcp));
    while let Ok(connection) = redirect.accept().await {
        let port = Port::tcp(connection.original_destination.port());
        let open = ports.get(port);
        let open = open.as_ref().unwrap_or(&unclaimed);
        open.record_traffic(connection.peer, connection.original_destination);
        if let PortKind::Tcp(splitter) = &open.kind {
            tokio::spawn(serve(
                Arc::clone(splitter),
                connection,
                Arc::clone(&connections),
            ));
        }
    }
}

async fn serve(
    splitter: Arc<splitter::Port>,
    connection: RedirectedConnection,
    connections: Arc<OpenConnections>,
) {
    let meta = ConnectionMeta {
        client: connection.peer,
        server: connection.original_destination,
        tls: None,
    };
    // The original sender has already decided when to send: delaying again would only add latency.
    let _ = connection.stream.set_nodelay(true);
    let reset_state = Arc::<ResetState>::default();
    let client = ResetSocket::new(
        connection.stream,
        Side::Client,
        Some(Arc::clone(&reset_state)),
    );
    let serving = Box::pin(splitter.serve(Box::new(client), meta));
    connections.serve(reset_state, serving).await;
}

/// Receives datagrams as long as the redirection exists.
async fn receive_all(agent: Agent, redirect: Arc<Redirect>, ports: Arc<OpenPorts>) {
    let unclaimed = Arc::new(OpenPort::new(&agent, Protocol::Udp));
    while let Ok(datagram) = redirect.receive().await {
        let flow = &datagram.flow;
        let open = ports.get(Port::udp(flow.original_destination.port()));
        let open = open.as_ref().unwrap_or(&unclaimed);
        open.record_traffic(flow.peer, flow.original_destination);
        if let PortKind::Udp(port) = &open.kind {
            port.receive(datagram);
        }
    }
}
