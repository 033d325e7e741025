//! The redirected ports of the target, each with those who want its traffic.
//!
//! There is no redirection as long as nobody wants anything, and none after the last has gone.

use std::collections::HashMap;
use std::sync::{Arc, PoisonError, RwLock};
use std::time::Duration;

use splitter::Arrival;
use tokio::sync::{Mutex as AsyncMutex, watch};
use tokio::task::JoinHandle;
use tokio::time::timeout;

use super::connections::OpenConnections;
use super::fate::{Fate, FatefulSocket, Side};
use super::keeper::Events;
use super::peers;
use super::port::{AnyClaim, Kind, OpenPort};
use super::queue::Queue;
use super::redirect::{Arrived, Evidence, Holder, MeetingPoint, Mesh, Port, Protocol, Redirect};
use super::wanted::Wanted;
use crate::agent::Agent;
use crate::{Error, Result};

/// A client that has begun to connect is waited for so long, before the redirection ends.
const DRAINED_WITHIN: Duration = Duration::from_secs(10);

/// Between two looks at whether all ports are given back.
const BETWEEN_LOOKS: Duration = Duration::from_millis(5);

/// What an agent redirects.
#[derive(Debug, Default)]
pub(crate) struct Ports {
    state: AsyncMutex<State>,
    open: Arc<OpenPorts>,
    connections: Arc<OpenConnections>,
    /// The agent is about to end.
    ending: watch::Sender<bool>,
}

#[derive(Debug, Default)]
struct State {
    running: Option<Running>,
    /// How many want each port.
    users: HashMap<Port, usize>,
}

/// A redirection, and the tasks that take what arrives.
#[derive(Debug)]
struct Running {
    redirect: Arc<Redirect>,
    tasks: [JoinHandle<()>; 3],
}

impl Running {
    async fn start(
        agent: &Agent,
        holder: &str,
        ports: &Arc<OpenPorts>,
        connections: &Arc<OpenConnections>,
    ) -> Result<Self> {
        let point = MeetingPoint::new();
        // Before anybody can read where it is.
        let listener = peers::listen(agent, &point).await?;
        let holder = Holder {
            name: holder.to_owned(),
            meeting_point: Some(point),
        };
        let redirect = Arc::new(Redirect::for_holder(agent, holder).await?);
        let accepting = accept_all(
            agent.clone(),
            Arc::clone(&redirect),
            Arc::clone(ports),
            Arc::clone(connections),
        );
        let receiving = receive_all(agent.clone(), Arc::clone(&redirect), Arc::clone(ports));
        let meeting = peers::serve_all(agent.clone(), listener, point);
        Ok(Self {
            redirect,
            tasks: [
                tokio::spawn(accepting),
                tokio::spawn(receiving),
                tokio::spawn(meeting),
            ],
        })
    }
}

impl Drop for Running {
    fn drop(&mut self) {
        for task in &self.tasks {
            task.abort();
        }
    }
}

/// What arrives finds its port here.
#[derive(Debug, Default)]
struct OpenPorts(RwLock<HashMap<Port, Arc<OpenPort>>>);

impl OpenPorts {
    fn get(&self, port: Port) -> Option<Arc<OpenPort>> {
        let ports = self.0.read().unwrap_or_else(PoisonError::into_inner);
        ports.get(&port).cloned()
    }

    fn insert(&self, port: Port, open: Arc<OpenPort>) {
        let mut ports = self.0.write().unwrap_or_else(PoisonError::into_inner);
        ports.insert(port, open);
    }

    fn remove(&self, port: Port) -> Option<Arc<OpenPort>> {
        let mut ports = self.0.write().unwrap_or_else(PoisonError::into_inner);
        ports.remove(&port)
    }
}

/// What a session has of a port.
#[derive(Debug)]
pub(super) struct Held {
    port: Port,
    open: Arc<OpenPort>,
    pub(super) claim: AnyClaim,
    pub(super) evidence: Evidence,
    pub(super) mesh: Option<Mesh>,
    pub(super) flushed: u32,
}

impl Held {
    /// Whether traffic has arrived.
    pub(super) fn traffic(&self) -> watch::Receiver<bool> {
        self.open.traffic.subscribe()
    }
}

impl Ports {
    /// Claims what a session wants, and redirects the port if nobody has it yet.
    pub(super) async fn claim(
        &self,
        agent: &Agent,
        wanted: &Wanted,
        session: Arc<Queue>,
        events_to_session: Events,
    ) -> Result<Held> {
        let port = wanted.port;
        let mut state = self.state.lock().await;
        if *self.ending.borrow() {
            return Err(Error::Ending);
        }
        let redirect = self.use_port(&mut state, agent, wanted).await?;
        let claimed = async {
            let open = self.open.get(port).ok_or(Error::SubscriptionEnded)?;
            let claim = open.claim(agent, wanted, session, events_to_session);
            let mut held = Held {
                port,
                claim: claim.await?,
                evidence: redirect.evidence(port),
                mesh: open.mesh(),
                flushed: 0,
                open,
            };
            if wanted.flush_connections && port.protocol == Protocol::Tcp {
                let flushed = redirect.flush_connections(port.number).await?;
                held.flushed = u32::try_from(flushed).unwrap_or(u32::MAX);
            }
            Ok(held)
        };
        let claimed = claimed.await;
        if claimed.is_err() {
            self.leave_port(&mut state, port).await;
        }
        claimed
    }

    /// Gives back what a session had.
    pub(super) async fn release(&self, held: Held) {
        let port = held.port;
        // What is claimed first, then the port.
        drop(held);
        let mut state = self.state.lock().await;
        self.leave_port(&mut state, port).await;
    }

    /// Waits until the agent is about to end.
    pub(super) async fn end_begins(&self) {
        let mut ending = self.ending.subscribe();
        // It lives as long as this does.
        let _ = ending.wait_for(|ending| *ending).await;
    }

    /// Gives all ports back, and waits until nothing seems to be under way on the connections that are open.
    pub(crate) async fn end(&self) {
        self.ending.send_replace(true);
        // What keeps subscriptions gives the ports back.
        while self.state.lock().await.running.is_some() {
            tokio::time::sleep(BETWEEN_LOOKS).await;
        }
        self.connections.end().await;
    }

    async fn use_port(
        &self,
        state: &mut State,
        agent: &Agent,
        wanted: &Wanted,
    ) -> Result<Arc<Redirect>> {
        let port = wanted.port;
        let running = match &mut state.running {
            Some(running) => running,
            none => {
                let started = Running::start(agent, &wanted.holder, &self.open, &self.connections);
                none.insert(started.await?)
            }
        };
        let redirect = Arc::clone(&running.redirect);
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
            Ok(checked) => {
                tracing::info!("{checked}");
                open.set_mesh(checked.mesh);
                Ok(redirect)
            }
            Err(error) => {
                self.leave_port(state, port).await;
                Err(error)
            }
        }
    }

    /// Ends the redirection of a port when nobody wants it any more.
    async fn leave_port(&self, state: &mut State, port: Port) {
        let users = state.users.entry(port).or_default();
        *users = users.saturating_sub(1);
        if *users > 0 {
            return;
        }
        state.users.remove(&port);
        let open = self.open.remove(port);
        let Some(running) = &state.running else {
            return;
        };
        if let Err(error) = running.redirect.remove_port(port).await {
            tracing::warn!(%error, %port, "a redirection could not be removed");
        }
        if let Some(Kind::Udp(port)) = open.as_deref().map(|open| &open.kind) {
            port.change();
        }
        if !state.users.is_empty() {
            return;
        }
        // What has begun to connect gets its connection. Whoever wants a port meanwhile waits.
        let _ = timeout(DRAINED_WITHIN, running.redirect.drain()).await;
        state.running = None;
    }
}

/// Takes connections as long as there is a redirection.
async fn accept_all(
    agent: Agent,
    redirect: Arc<Redirect>,
    ports: Arc<OpenPorts>,
    connections: Arc<OpenConnections>,
) {
    // What had begun to connect when its port was given up.
    let unwanted = Arc::new(OpenPort::new(&agent, Protocol::Tcp));
    while let Ok(arrived) = redirect.accept().await {
        let port = Port::tcp(arrived.original_destination.port());
        let open = ports.get(port);
        let open = open.as_ref().unwrap_or(&unwanted);
        open.note_traffic(arrived.peer, arrived.original_destination);
        if let Kind::Tcp(splitter) = &open.kind {
            tokio::spawn(serve(
                Arc::clone(splitter),
                arrived,
                Arc::clone(&connections),
            ));
        }
    }
}

async fn serve(splitter: Arc<splitter::Port>, arrived: Arrived, connections: Arc<OpenConnections>) {
    let arrival = Arrival {
        client: arrived.peer,
        server: arrived.original_destination,
        tls: None,
    };
    // What is passed on was sent by somebody who decided when.
    let _ = arrived.stream.set_nodelay(true);
    let fate = Arc::<Fate>::default();
    let client = FatefulSocket::new(arrived.stream, Side::Client, Some(Arc::clone(&fate)));
    let serving = Box::pin(splitter.serve(Box::new(client), arrival));
    connections.serve(fate, serving).await;
}

/// Takes datagrams as long as there is a redirection.
async fn receive_all(agent: Agent, redirect: Arc<Redirect>, ports: Arc<OpenPorts>) {
    let unwanted = Arc::new(OpenPort::new(&agent, Protocol::Udp));
    while let Ok(datagram) = redirect.receive().await {
        let flow = &datagram.flow;
        let open = ports.get(Port::udp(flow.original_destination.port()));
        let open = open.as_ref().unwrap_or(&unwanted);
        open.note_traffic(flow.peer, flow.original_destination);
        if let Kind::Udp(port) = &open.kind {
            port.take(datagram);
        }
    }
}
