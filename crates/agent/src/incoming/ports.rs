//! The redirected ports of the target, each with those who want its traffic.
//!
//! There is no redirection as long as nobody wants anything, and none after the last has gone.

use std::collections::HashMap;
use std::net::SocketAddr;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, RwLock};
use std::time::Duration;

use protocol::rpc::{Missed, MissedReason, subscribe_event};
use splitter::{Arrival, Claim, ClaimGuard, Notice, Notices, Reason, Settings};
use tokio::sync::{Mutex as AsyncMutex, watch};
use tokio::task::JoinHandle;
use tokio::time::timeout;

use super::certificates;
use super::datagrams::{UdpClaim, UdpPort};
use super::fate::{Fate, FatefulSocket, Side};
use super::keeper::{Events, tell};
use super::original::Original;
use super::redirect::{
    Arrived, Evidence, Holder, MeetingPoint, Mesh, Port, Protocol, Redirect,
};
use super::peers;
use super::queue::Queue;
use super::wanted::Wanted;
use crate::agent::Agent;
use crate::{Error, Result};

/// A client that has begun to connect is waited for so long, before the redirection ends.
const DRAINED_WITHIN: Duration = Duration::from_secs(10);

/// What an agent redirects.
#[derive(Debug, Default)]
pub(crate) struct Ports {
    state: AsyncMutex<State>,
    open: Arc<OpenPorts>,
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
    async fn start(agent: &Agent, holder: &str, ports: &Arc<OpenPorts>) -> Result<Self> {
        let point = MeetingPoint::new();
        // Before anybody can read where it is.
        let listener = peers::listen(agent, &point).await?;
        let holder = Holder {
            name: holder.to_owned(),
            meeting_point: Some(point),
        };
        let redirect = Arc::new(Redirect::for_holder(agent, holder).await?);
        let accepting = accept_all(agent.clone(), Arc::clone(&redirect), Arc::clone(ports));
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

    fn remove(&self, port: Port) {
        let mut ports = self.0.write().unwrap_or_else(PoisonError::into_inner);
        ports.remove(&port);
    }
}

/// A redirected port.
#[derive(Debug)]
struct OpenPort {
    kind: Kind,
    listeners: Arc<Listeners>,
    /// Whether traffic has arrived that is not the target's own.
    traffic: watch::Sender<bool>,
    mesh: Mutex<Option<Mesh>>,
}

#[derive(Debug)]
enum Kind {
    Tcp(Arc<splitter::Port>),
    Udp(Arc<UdpPort>),
}

/// A session gets what it wants as long as this lives.
#[derive(Debug)]
enum AnyClaim {
    Tcp(ClaimGuard),
    Udp(UdpClaim),
}

/// Who is told what happens to the requests of a port.
#[derive(Debug, Default)]
struct Listeners(Mutex<Vec<Listener>>);

#[derive(Debug)]
struct Listener {
    holder: String,
    events_to_session: Events,
}

impl Listeners {
    fn all(&self) -> MutexGuard<'_, Vec<Listener>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn tell(&self, notice: &Notice) {
        let missed = |reason: Reason, lost| {
            let reason = match reason {
                Reason::Unreachable => MissedReason::Unreachable,
                Reason::NoAnswer => MissedReason::NoAnswer,
                Reason::TooSlow => MissedReason::TooSlow,
            };
            subscribe_event::Event::Missed(Missed {
                reason: reason.into(),
                lost,
            })
        };
        let (holder, told) = match notice {
            Notice::FellBack { holder, reason } => (holder, missed(*reason, false)),
            Notice::Lost { holder, reason } => (holder, missed(*reason, true)),
            Notice::CopyDropped { holder } => (holder, subscribe_event::Event::CopyDropped(true)),
        };
        tracing::info!(?notice, "incoming traffic");
        for listener in self.all().iter() {
            if listener.holder == *holder {
                tell(&listener.events_to_session, told.clone());
            }
        }
    }
}

/// What a session has of a port.
#[derive(Debug)]
pub(super) struct Held {
    port: Port,
    open: Arc<OpenPort>,
    claim: AnyClaim,
    events_to_session: Events,
    pub(super) evidence: Evidence,
    pub(super) mesh: Option<Mesh>,
    pub(super) flushed: u32,
}

impl Held {
    /// Waits until somebody takes it away, and says who.
    pub(super) async fn overridden(&self) -> String {
        match &self.claim {
            AnyClaim::Tcp(guard) => guard.overridden().await,
            AnyClaim::Udp(claim) => claim.guard.overridden().await,
        }
    }

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
        let redirect = self.use_port(&mut state, agent, wanted).await?;
        let claimed = async {
            let open = self.open.get(port).ok_or(Error::SubscriptionEnded)?;
            open.look_into(agent, wanted).await?;
            let claim = open.claim(wanted, session)?;
            let mut held = Held {
                port,
                claim,
                events_to_session: events_to_session.clone(),
                evidence: redirect.evidence(port),
                mesh: open.mesh(),
                flushed: 0,
                open,
            };
            if wanted.flush_connections && port.protocol == Protocol::Tcp {
                let flushed = redirect.flush_connections(port.number).await?;
                held.flushed = u32::try_from(flushed).unwrap_or(u32::MAX);
            }
            held.open.listeners.all().push(Listener {
                holder: wanted.holder.clone(),
                events_to_session,
            });
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
        let Held {
            port,
            open,
            claim,
            events_to_session,
            ..
        } = held;
        drop(claim);
        open.listeners
            .all()
            .retain(|listener| !listener.events_to_session.same_channel(&events_to_session));
        let mut state = self.state.lock().await;
        self.leave_port(&mut state, port).await;
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
            none => none.insert(Running::start(agent, &wanted.holder, &self.open).await?),
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
        self.open.remove(port);
        let Some(running) = &state.running else {
            return;
        };
        if let Err(error) = running.redirect.remove_port(port).await {
            tracing::warn!(%error, %port, "a redirection could not be removed");
        }
        if !state.users.is_empty() {
            return;
        }
        // What has begun to connect gets its connection. Whoever wants a port meanwhile waits.
        let _ = timeout(DRAINED_WITHIN, running.redirect.drain()).await;
        state.running = None;
    }
}

impl OpenPort {
    fn new(agent: &Agent, protocol: Protocol) -> Self {
        let listeners = Arc::<Listeners>::default();
        let kind = match protocol {
            Protocol::Udp => Kind::Udp(Arc::new(UdpPort::new(agent))),
            Protocol::Tcp => {
                let told = Arc::clone(&listeners);
                let settings = Settings {
                    notices: Notices::new(move |notice| told.tell(&notice)),
                    ..Settings::default()
                };
                let original = Arc::new(Original(agent.clone()));
                Kind::Tcp(Arc::new(splitter::Port::new(original, settings)))
            }
        };
        Self {
            kind,
            listeners,
            traffic: watch::Sender::new(false),
            mesh: Mutex::default(),
        }
    }

    /// Learns to know what a session knows of the application: its certificate, its health probes.
    async fn look_into(&self, agent: &Agent, wanted: &Wanted) -> Result<()> {
        let Kind::Tcp(splitter) = &self.kind else {
            return Ok(());
        };
        if let Some(content) = &wanted.request.tls {
            let tls = certificates::tls(agent, wanted.port.number, content).await?;
            splitter.set_tls(tls);
        }
        splitter.add_probe_paths(wanted.probe_paths.clone());
        Ok(())
    }

    fn claim(&self, wanted: &Wanted, session: Arc<Queue>) -> Result<AnyClaim> {
        let splitter = match &self.kind {
            Kind::Udp(port) => return port.claim(wanted, session).map(AnyClaim::Udp),
            Kind::Tcp(splitter) => splitter,
        };
        let claim = Claim {
            holder: wanted.holder.clone(),
            mode: wanted.mode,
            filter: wanted.filter.clone(),
            takes_probes: wanted.takes_probes,
            answer_within: wanted.answer_within,
            destination: session,
        };
        let guard = splitter.claims().claim(claim, wanted.on_conflict);
        Ok(AnyClaim::Tcp(guard.map_err(Error::Claim)?))
    }

    fn mesh(&self) -> Option<Mesh> {
        *self.mesh.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn set_mesh(&self, mesh: Option<Mesh>) {
        *self.mesh.lock().unwrap_or_else(PoisonError::into_inner) = mesh;
    }

    /// Notes that something has arrived. Behind a sidecar everything seems to come from inside.
    fn note_traffic(&self, client: SocketAddr, server: SocketAddr) {
        if *self.traffic.borrow() {
            return;
        }
        let is_own = client.ip().is_loopback() || client.ip() == server.ip();
        if !is_own || self.mesh().is_some() {
            self.traffic.send_replace(true);
        }
    }
}

/// Takes connections as long as there is a redirection.
async fn accept_all(agent: Agent, redirect: Arc<Redirect>, ports: Arc<OpenPorts>) {
    // What had begun to connect when its port was given up.
    let unwanted = Arc::new(OpenPort::new(&agent, Protocol::Tcp));
    while let Ok(arrived) = redirect.accept().await {
        let port = Port::tcp(arrived.original_destination.port());
        let open = ports.get(port);
        let open = open.as_ref().unwrap_or(&unwanted);
        open.note_traffic(arrived.peer, arrived.original_destination);
        if let Kind::Tcp(splitter) = &open.kind {
            tokio::spawn(serve(Arc::clone(splitter), arrived));
        }
    }
}

async fn serve(splitter: Arc<splitter::Port>, arrived: Arrived) {
    let arrival = Arrival {
        client: arrived.peer,
        server: arrived.original_destination,
        tls: None,
    };
    // What is passed on was sent by somebody who decided when.
    let _ = arrived.stream.set_nodelay(true);
    let fate = Arc::<Fate>::default();
    let client = FatefulSocket::new(arrived.stream, Side::Client, Some(Arc::clone(&fate)));
    let serving = splitter.serve(Box::new(client), arrival);
    fate.shared_by(serving).await;
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
