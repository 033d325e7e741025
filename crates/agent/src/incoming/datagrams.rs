//! A redirected UDP port. All datagrams from one client to one address are a flow, and a flow has one destination until it
//! times out.
//!
//! As in a network, datagrams that are not read in time are dropped.

use std::collections::HashMap;
use std::fmt;
use std::io;
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use bytes::{Bytes, BytesMut};
use parking_lot::Mutex;
use protocol::outgoing::{Datagram as DatagramFrame, DatagramDecoder};
use protocol::rpc::{MissedReason, MissedTraffic, subscribe_event};
use splitter::{
    Claim, ClaimGuard, Claims, ConnectionMeta, Destination as _, Mode, NoticeHandler, OnConflict,
};
use tokio::net::UdpSocket;
use tokio::sync::mpsc::error::TrySendError;
use tokio::sync::{mpsc, watch};
use tokio::time::{Instant, sleep_until};

use super::accept_pool::AcceptPool;
use super::redirect::{self, Datagram, Flow};
use super::spec::SubscriptionSpec;
use super::stream::{SessionReader, SessionStream, SessionWriter};
use super::subscription_task::{EventSender, emit};
use crate::agent::Agent;
use crate::outgoing::receive_one;
use crate::{Error, Result};

/// A flow without datagrams ends after this time.
const IDLE_TIMEOUT: Duration = Duration::from_secs(60);
/// A session that did not accept a flow gets no new flows for this time.
const SUSPENSION: Duration = Duration::from_secs(5);
/// How long late responses of the application are still forwarded after its flow has moved to another destination.
const LATE_RESPONSE_TIMEOUT: Duration = Duration::from_secs(2);
/// The maximum number of buffered datagrams of a flow.
const MAX_BUFFERED_DATAGRAMS: usize = 128;
/// The maximum number of concurrent flows. Beyond it, those that have been idle the longest end: clients of some protocols
/// use a new port for each request.
const MAX_FLOWS: usize = 4096;
/// How long an application may take to accept a flow, unless its session sets a response timeout.
const ACCEPT_TIMEOUT: Duration = Duration::from_secs(5);

/// A redirected UDP port.
pub(super) struct UdpPort {
    agent: Agent,
    claims: Arc<Claims>,
    sessions: Mutex<Vec<Session>>,
    flows: Mutex<HashMap<FlowKey, FlowSender>>,
    /// There is a new session, which may claim flows of the application, or the port was released.
    changed: watch::Sender<()>,
}

/// The client, and the address that it sends to.
type FlowKey = (SocketAddr, SocketAddr);

#[derive(Debug, Clone)]
struct Session {
    pool: Arc<AcceptPool>,
    mode: Mode,
    owner: Option<String>,
    /// When the claim began. The oldest claim takes precedence.
    since: Instant,
    accept_timeout: Duration,
    events: EventSender,
    /// It did not accept a flow, and gets no new ones until this time.
    suspended_until: Arc<Mutex<Option<Instant>>>,
}

impl Session {
    fn is_healthy(&self) -> bool {
        let until = *self.suspended_until.lock();
        until.is_none_or(|until| until <= Instant::now())
    }

    /// Suspends the session, because it did not accept a flow.
    fn suspend(&self) {
        *self.suspended_until.lock() = Some(Instant::now() + SUSPENSION);
        let missed = MissedTraffic {
            reason: MissedReason::NoResponse.into(),
            ..MissedTraffic::default()
        };
        emit(&self.events, subscribe_event::Event::Missed(missed));
    }
}

/// A session's claim of the port's datagrams. Dropping it ends the claim.
#[derive(Debug)]
pub(super) struct UdpClaim {
    pub(super) guard: ClaimGuard,
    port: Arc<UdpPort>,
    pool: Arc<AcceptPool>,
}

impl Drop for UdpClaim {
    fn drop(&mut self) {
        let mut sessions = self.port.sessions.lock();
        sessions.retain(|session| !Arc::ptr_eq(&session.pool, &self.pool));
    }
}

impl UdpPort {
    pub(super) fn new(agent: &Agent) -> Self {
        Self {
            agent: agent.clone(),
            claims: Arc::default(),
            sessions: Mutex::default(),
            flows: Mutex::default(),
            changed: watch::Sender::new(()),
        }
    }

    pub(super) fn claim(
        self: &Arc<Self>,
        spec: &SubscriptionSpec,
        pool: Arc<AcceptPool>,
        events: EventSender,
    ) -> Result<UdpClaim> {
        let claim = Claim {
            holder: spec.holder.clone(),
            owner: spec.owner.clone(),
            age: spec.claim_age,
            mode: spec.mode,
            filter: None,
            takes_probes: true,
            response_timeout: spec.response_timeout,
            tls: None,
            // Events about flows are emitted here, not by the splitter.
            on_notice: NoticeHandler::default(),
            destination: Arc::clone(&pool) as _,
        };
        let guard = self.claims.claim(claim, spec.on_conflict);
        let guard = guard.map_err(Error::Claim)?;
        let mut sessions = self.sessions.lock();
        let overrides = spec.on_conflict == OnConflict::Override;
        let is_replaced = |session: &Session| {
            let is_own = session.owner.is_some() && session.owner == spec.owner;
            overrides || is_own && session.pool.unreachable().is_some()
        };
        if spec.mode == Mode::Steal {
            sessions.retain(|session| session.mode == Mode::Mirror || !is_replaced(session));
        }
        let now = Instant::now();
        let since = now.checked_sub(spec.claim_age).unwrap_or(now);
        let index = sessions.partition_point(|other| other.since <= since);
        let session = Session {
            since,
            pool: Arc::clone(&pool),
            mode: spec.mode,
            owner: spec.owner.clone(),
            accept_timeout: spec.response_timeout.unwrap_or(ACCEPT_TIMEOUT),
            events,
            suspended_until: Arc::default(),
        };
        sessions.insert(index, session);
        drop(sessions);
        self.restart_application_flows();
        Ok(UdpClaim {
            guard,
            port: Arc::clone(self),
            pool,
        })
    }

    /// Ends the flows that go to the application, so that their next datagrams are routed to the current sessions.
    pub(super) fn restart_application_flows(&self) {
        self.changed.send_replace(());
    }

    /// Forwards a datagram to its flow, and starts one if there is none.
    pub(super) fn receive(self: &Arc<Self>, datagram: Datagram) {
        let Datagram { payload, flow } = datagram;
        let key = (flow.peer, flow.original_destination);
        let mut flows = self.flows.lock();
        let now = Instant::now();
        let payload = match flows.get_mut(&key) {
            None => payload,
            Some(existing) => match existing.datagrams.try_send(payload) {
                // A full buffer drops the datagram, as a socket does.
                Ok(()) | Err(TrySendError::Full(_)) => {
                    existing.last_used = now;
                    return;
                }
                Err(TrySendError::Closed(payload)) => payload,
            },
        };
        evict_idle_flows(&mut flows);
        let (sender, datagrams) = mpsc::channel(MAX_BUFFERED_DATAGRAMS);
        // The channel is empty, so there is room.
        let _ = sender.try_send(payload);
        let sender = FlowSender {
            datagrams: sender,
            last_used: now,
        };
        flows.insert(key, sender);
        drop(flows);
        tokio::spawn(Arc::clone(self).run_flow(flow, datagrams));
    }

    async fn run_flow(self: Arc<Self>, flow: Flow, datagrams: mpsc::Receiver<Bytes>) {
        let meta = ConnectionMeta {
            client: flow.peer,
            server: flow.original_destination,
            tls: None,
        };
        let mut changed = self.changed.subscribe();
        let sessions = self.sessions.lock().clone();
        let is_mirror = |session: &&Session| session.mode == Mode::Mirror;
        let mirrors = sessions.iter().filter(is_mirror);
        let mirrors = mirrors
            .map(|session| start_mirror(session, &meta))
            .collect();
        let mut datagrams = FlowReceiver {
            datagrams,
            mirrors,
            replay: Some(Vec::new()),
        };
        let is_owner = |session: &&Session| session.mode == Mode::Steal && session.is_healthy();
        let owner = sessions.iter().find(is_owner);
        let is_served = match owner {
            Some(owner) => steal(owner, &meta, &flow, &mut datagrams).await,
            None => false,
        };
        if !is_served {
            if let Some(owner) = owner.filter(|owner| !owner.pool.has_ended()) {
                owner.suspend();
            }
            let forwarded = forward_flow(&self.agent, &flow, &mut datagrams, &mut changed).await;
            if let Err(error) = forwarded {
                tracing::debug!(%error, "UDP flow ended");
            }
        }
        // Later datagrams start another flow.
        drop(datagrams);
        let mut flows = self.flows.lock();
        let key = (flow.peer, flow.original_destination);
        let is_over = |sender: &FlowSender| sender.datagrams.is_closed();
        if flows.get(&key).is_some_and(is_over) {
            flows.remove(&key);
        }
    }
}

/// Sends datagrams to a flow. The flow ends when this is dropped.
#[derive(Debug)]
struct FlowSender {
    datagrams: mpsc::Sender<Bytes>,
    /// When the last datagram was received.
    last_used: Instant,
}

/// Makes room for another flow. Ends several at once, so that not every new flow has to search all of them.
fn evict_idle_flows(flows: &mut HashMap<FlowKey, FlowSender>) {
    if flows.len() < MAX_FLOWS {
        return;
    }
    let mut times: Vec<Instant> = flows.values().map(|flow| flow.last_used).collect();
    let (_, oldest_to_stay, _) = times.select_nth_unstable(MAX_FLOWS / 8);
    let oldest_to_stay = *oldest_to_stay;
    flows.retain(|_, flow| flow.last_used > oldest_to_stay);
}

/// Receives the datagrams of a flow.
struct FlowReceiver {
    datagrams: mpsc::Receiver<Bytes>,
    mirrors: Vec<mpsc::Sender<Bytes>>,
    /// The first datagrams, to send them to the application if the session does not accept the flow.
    replay: Option<Vec<Bytes>>,
}

impl FlowReceiver {
    async fn next(&mut self) -> Option<Bytes> {
        let payload = self.datagrams.recv().await?;
        for mirror in &self.mirrors {
            // A mirror that is too slow misses datagrams.
            let _ = mirror.try_send(payload.clone());
        }
        if let Some(replay) = &mut self.replay
            && replay.len() < MAX_BUFFERED_DATAGRAMS
        {
            replay.push(payload.clone());
        }
        Some(payload)
    }
}

/// Routes a flow to a session until it times out. Returns whether the session has accepted it.
async fn steal(
    owner: &Session,
    meta: &ConnectionMeta,
    flow: &Flow,
    datagrams: &mut FlowReceiver,
) -> bool {
    let Ok(stream) = owner.pool.open(meta).await else {
        return false;
    };
    let (mut from_session, mut to_session) = stream.split();
    let mut responses = DatagramDecoder::default();
    let accept_deadline = Instant::now() + owner.accept_timeout;
    let mut idle_since = Instant::now();
    loop {
        let deadline = match from_session.is_accepted() {
            true => idle_since + IDLE_TIMEOUT,
            false => accept_deadline,
        };
        tokio::select! {
            datagram = datagrams.next() => match datagram {
                Some(payload) => send(&mut to_session, payload),
                None => break,
            },
            replied = reply(&mut from_session, &mut responses, flow) => match replied {
                Ok(true) => {}
                Ok(false) | Err(_) => break,
            },
            () = owner.pool.ended() => break,
            () = sleep_until(deadline) => break,
        }
        if from_session.is_accepted() {
            datagrams.replay = None;
        }
        idle_since = Instant::now();
    }
    from_session.is_accepted()
}

/// Sends a datagram to a session. It is dropped if it does not fit into the buffer.
fn send(to_session: &mut SessionWriter, payload: Bytes) {
    let mut frame = BytesMut::new();
    let datagram = DatagramFrame::Payload {
        address: None,
        payload,
    };
    datagram.encode(&mut frame);
    let _ = to_session.try_write(&frame);
}

/// Sends the next responses of the session to the client. Returns whether there may be more.
async fn reply(
    from_session: &mut SessionReader,
    responses: &mut DatagramDecoder,
    flow: &Flow,
) -> io::Result<bool> {
    while let Some(datagram) = responses.next_datagram().map_err(io::Error::other)? {
        if let DatagramFrame::Payload { payload, .. } = datagram
            && let Err(error) = flow.reply(&payload).await
        {
            tracing::debug!(%error, "UDP response failed");
        }
    }
    let bytes = from_session.next().await?;
    responses.push(&bytes);
    Ok(!bytes.is_empty())
}

/// Forwards a flow to the application until it times out, or until it has to be routed again. Late responses are still
/// forwarded to the client.
async fn forward_flow(
    agent: &Agent,
    flow: &Flow,
    datagrams: &mut FlowReceiver,
    changed: &mut watch::Receiver<()>,
) -> Result<()> {
    let socket = redirect::open_udp_to_application(agent, flow.original_destination).await?;
    for payload in datagrams.replay.take().unwrap_or_default() {
        forward(&socket, &payload).await;
    }
    let mut deadline = Instant::now() + IDLE_TIMEOUT;
    let mut is_closing = false;
    loop {
        tokio::select! {
            datagram = datagrams.next(), if !is_closing => match datagram {
                Some(payload) => forward(&socket, &payload).await,
                // All datagrams that were received before have been forwarded.
                None => {
                    is_closing = true;
                    deadline = Instant::now() + LATE_RESPONSE_TIMEOUT;
                }
            },
            // An error is an ICMP response that no process listens on the port. The client may try again.
            received = receive_one(&socket) => if let Ok(payload) = received {
                flow.reply(&payload).await?;
            },
            // Later datagrams start another flow.
            _ = changed.changed(), if !is_closing => datagrams.datagrams.close(),
            () = sleep_until(deadline) => return Ok(()),
        }
        if !is_closing {
            deadline = Instant::now() + IDLE_TIMEOUT;
        }
    }
}

async fn forward(socket: &UdpSocket, payload: &[u8]) {
    if let Err(error) = socket.send(payload).await {
        tracing::debug!(%error, "UDP forwarding failed");
    }
}

/// Starts to mirror a flow to a session. The mirror ends with the flow.
fn start_mirror(session: &Session, meta: &ConnectionMeta) -> mpsc::Sender<Bytes> {
    let (to_mirror, mut datagrams) = mpsc::channel(MAX_BUFFERED_DATAGRAMS);
    let (session, meta) = (session.clone(), meta.clone());
    tokio::spawn(async move {
        let stream: SessionStream = session.pool.open(&meta).await?;
        let (mut from_session, mut to_session) = stream.split();
        let discard = async {
            while !from_session.next().await?.is_empty() {}
            io::Result::Ok(())
        };
        let write = async {
            while let Some(payload) = datagrams.recv().await {
                send(&mut to_session, payload);
            }
        };
        tokio::select! {
            _ = discard => {}
            () = write => {}
            () = session.pool.ended() => {}
        }
        io::Result::Ok(())
    });
    to_mirror
}

impl fmt::Debug for UdpPort {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter
            .debug_struct("UdpPort")
            .field("claims", &self.claims)
            .finish_non_exhaustive()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_longest_idle_flows_are_evicted() {
        let epoch = Instant::now();
        let mut flows = HashMap::new();
        let key = |number: usize| {
            let port = u16::try_from(number).unwrap();
            let client = SocketAddr::from(([203, 0, 113, 9], port));
            (client, SocketAddr::from(([10, 1, 2, 3], 53)))
        };
        let add = |flows: &mut HashMap<FlowKey, FlowSender>, number: usize| {
            let (datagrams, _) = mpsc::channel(1);
            let last_used = epoch + Duration::from_millis(number as u64);
            let sender = FlowSender {
                datagrams,
                last_used,
            };
            flows.insert(key(number), sender);
        };
        for number in 0..MAX_FLOWS - 1 {
            add(&mut flows, number);
        }
        evict_idle_flows(&mut flows);
        assert_eq!(flows.len(), MAX_FLOWS - 1);
        add(&mut flows, MAX_FLOWS);
        evict_idle_flows(&mut flows);
        assert!(flows.len() < MAX_FLOWS && flows.len() > MAX_FLOWS / 2);
        assert!(!flows.contains_key(&key(0)));
        assert!(flows.contains_key(&key(MAX_FLOWS)) && flows.contains_key(&key(MAX_FLOWS - 2)));
    }
}
