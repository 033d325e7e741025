//! A redirected port of UDP. What one client sends to one address is a flow, and goes one way until it has been silent.
//!
//! As in a network, what nobody takes in time is dropped.

use std::collections::HashMap;
use std::fmt;
use std::io;
use std::net::SocketAddr;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use bytes::{Bytes, BytesMut};
use protocol::outgoing::{Datagram as Framed, DatagramDecoder};
use protocol::rpc::{Missed, MissedReason, subscribe_event};
use splitter::{Arrival, Claim, ClaimGuard, Claims, Destination as _, Mode, Notices, OnConflict};
use tokio::net::UdpSocket;
use tokio::sync::mpsc::error::TrySendError;
use tokio::sync::{mpsc, watch};
use tokio::time::{Instant, sleep_until};

use super::keeper::{Events, tell};
use super::queue::Queue;
use super::redirect::{self, Datagram, Flow};
use super::stream::{FromSession, SessionStream, Writer};
use super::wanted::Wanted;
use crate::agent::Agent;
use crate::outgoing::receive_one;
use crate::{Error, Result};

/// A flow ends when it has been silent for so long.
const IDLE: Duration = Duration::from_secs(60);
/// A session that failed is left alone for so long.
const LEFT_ALONE: Duration = Duration::from_secs(5);
/// An answer may come so long after its flow goes another way.
const LATE: Duration = Duration::from_secs(2);
/// Datagrams of a flow that wait to be taken.
const WAITING: usize = 128;
/// Flows at the same time. When there are more, those that have been silent for longest end: clients of some protocols ask
/// once from each port.
const FLOWS: usize = 4096;
/// How long an application may take to take a flow, unless its session says otherwise.
const TAKEN_WITHIN: Duration = Duration::from_secs(5);

/// A redirected port of UDP.
pub(super) struct UdpPort {
    agent: Agent,
    claims: Arc<Claims>,
    sessions: Mutex<Vec<Session>>,
    flows: Mutex<HashMap<Ends, ToFlow>>,
    /// Somebody has come who may want flows that go to the application, or the port is given up.
    changed: watch::Sender<()>,
}

/// Who sends, and where to.
type Ends = (SocketAddr, SocketAddr);

#[derive(Debug, Clone)]
struct Session {
    queue: Arc<Queue>,
    mode: Mode,
    owner: Option<String>,
    /// The oldest is first.
    since: Instant,
    taken_within: Duration,
    events: Events,
    /// It has failed: so long it is left alone.
    unwell_until: Arc<Mutex<Option<Instant>>>,
}

impl Session {
    fn is_well(&self) -> bool {
        let until = *self.unwell();
        until.is_none_or(|until| until <= Instant::now())
    }

    fn unwell(&self) -> MutexGuard<'_, Option<Instant>> {
        let until = self.unwell_until.lock();
        until.unwrap_or_else(PoisonError::into_inner)
    }

    /// It has not taken a flow.
    fn fail(&self) {
        *self.unwell() = Some(Instant::now() + LEFT_ALONE);
        let missed = Missed {
            reason: MissedReason::NoAnswer.into(),
            ..Missed::default()
        };
        tell(&self.events, subscribe_event::Event::Missed(missed));
    }
}

/// A session gets the port's datagrams as long as this lives.
#[derive(Debug)]
pub(super) struct UdpClaim {
    pub(super) guard: ClaimGuard,
    port: Arc<UdpPort>,
    queue: Arc<Queue>,
}

impl Drop for UdpClaim {
    fn drop(&mut self) {
        let mut sessions = self.port.sessions();
        sessions.retain(|session| !Arc::ptr_eq(&session.queue, &self.queue));
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

    fn sessions(&self) -> MutexGuard<'_, Vec<Session>> {
        self.sessions.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn flows(&self) -> MutexGuard<'_, HashMap<Ends, ToFlow>> {
        self.flows.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub(super) fn claim(
        self: &Arc<Self>,
        wanted: &Wanted,
        queue: Arc<Queue>,
        events: Events,
    ) -> Result<UdpClaim> {
        let claim = Claim {
            holder: wanted.holder.clone(),
            owner: wanted.owner.clone(),
            held_for: wanted.held_for,
            mode: wanted.mode,
            filter: None,
            takes_probes: true,
            answer_within: wanted.answer_within,
            tls: None,
            // What becomes of flows is told from here.
            notices: Notices::default(),
            destination: Arc::clone(&queue) as _,
        };
        let guard = self.claims.claim(claim, wanted.on_conflict);
        let guard = guard.map_err(Error::Claim)?;
        let mut sessions = self.sessions();
        let overrides = wanted.on_conflict == OnConflict::Override;
        let is_lost = |session: &Session| {
            let is_own = session.owner.is_some() && session.owner == wanted.owner;
            overrides || is_own && session.queue.away().is_some()
        };
        if wanted.mode == Mode::Steal {
            sessions.retain(|session| session.mode == Mode::Mirror || !is_lost(session));
        }
        let now = Instant::now();
        let since = now.checked_sub(wanted.held_for).unwrap_or(now);
        let place = sessions.partition_point(|other| other.since <= since);
        let session = Session {
            since,
            queue: Arc::clone(&queue),
            mode: wanted.mode,
            owner: wanted.owner.clone(),
            taken_within: wanted.answer_within.unwrap_or(TAKEN_WITHIN),
            events,
            unwell_until: Arc::default(),
        };
        sessions.insert(place, session);
        drop(sessions);
        self.change();
        Ok(UdpClaim {
            guard,
            port: Arc::clone(self),
            queue,
        })
    }

    /// Lets flows that go to the application begin anew, with who is there now.
    pub(super) fn change(&self) {
        self.changed.send_replace(());
    }

    /// Gives a datagram to its flow, and begins one if there is none.
    pub(super) fn take(self: &Arc<Self>, datagram: Datagram) {
        let Datagram { payload, flow } = datagram;
        let ends = (flow.peer, flow.original_destination);
        let mut flows = self.flows();
        let now = Instant::now();
        let payload = match flows.get_mut(&ends) {
            None => payload,
            Some(known) => match known.datagrams.try_send(payload) {
                // A socket whose buffer is full does the same.
                Ok(()) | Err(TrySendError::Full(_)) => {
                    known.last = now;
                    return;
                }
                Err(TrySendError::Closed(payload)) => payload,
            },
        };
        end_the_most_silent(&mut flows);
        let (to_flow, datagrams) = mpsc::channel(WAITING);
        // There is room for one.
        let _ = to_flow.try_send(payload);
        let to_flow = ToFlow {
            datagrams: to_flow,
            last: now,
        };
        flows.insert(ends, to_flow);
        drop(flows);
        tokio::spawn(Arc::clone(self).run(flow, datagrams));
    }

    async fn run(self: Arc<Self>, flow: Flow, datagrams: mpsc::Receiver<Bytes>) {
        let arrival = Arrival {
            client: flow.peer,
            server: flow.original_destination,
            tls: None,
        };
        let mut changed = self.changed.subscribe();
        let sessions = self.sessions().clone();
        let is_copy = |session: &&Session| session.mode == Mode::Mirror;
        let copies = sessions.iter().filter(is_copy);
        let copies = copies.map(|session| copy(session, &arrival)).collect();
        let mut datagrams = Arriving {
            datagrams,
            copies,
            first: Some(Vec::new()),
        };
        let is_owner = |session: &&Session| session.mode == Mode::Steal && session.is_well();
        let owner = sessions.iter().find(is_owner);
        let is_served = match owner {
            Some(owner) => steal(owner, &arrival, &flow, &mut datagrams).await,
            None => false,
        };
        if !is_served {
            if let Some(owner) = owner.filter(|owner| !owner.queue.has_ended()) {
                owner.fail();
            }
            let passed = pass_on(&self.agent, &flow, &mut datagrams, &mut changed).await;
            if let Err(error) = passed {
                tracing::debug!(%error, "a flow of datagrams ended");
            }
        }
        // Whatever comes now begins another flow.
        drop(datagrams);
        let mut flows = self.flows();
        let ends = (flow.peer, flow.original_destination);
        let is_over = |known: &ToFlow| known.datagrams.is_closed();
        if flows.get(&ends).is_some_and(is_over) {
            flows.remove(&ends);
        }
    }
}

/// The way to a flow, which ends when this is dropped.
#[derive(Debug)]
struct ToFlow {
    datagrams: mpsc::Sender<Bytes>,
    /// When something came for it.
    last: Instant,
}

/// Makes room for another flow. Several end at once, so that a crowd does not make each newcomer look through all.
fn end_the_most_silent(flows: &mut HashMap<Ends, ToFlow>) {
    if flows.len() < FLOWS {
        return;
    }
    let mut times: Vec<Instant> = flows.values().map(|flow| flow.last).collect();
    let (_, oldest_to_stay, _) = times.select_nth_unstable(FLOWS / 8);
    let oldest_to_stay = *oldest_to_stay;
    flows.retain(|_, flow| flow.last > oldest_to_stay);
}

/// The datagrams of a flow, as they arrive.
struct Arriving {
    datagrams: mpsc::Receiver<Bytes>,
    copies: Vec<mpsc::Sender<Bytes>>,
    /// What has arrived, as long as somebody else may have to get it.
    first: Option<Vec<Bytes>>,
}

impl Arriving {
    async fn next(&mut self) -> Option<Bytes> {
        let payload = self.datagrams.recv().await?;
        for copy in &self.copies {
            // A copy that is behind misses some.
            let _ = copy.try_send(payload.clone());
        }
        if let Some(first) = &mut self.first
            && first.len() < WAITING
        {
            first.push(payload.clone());
        }
        Some(payload)
    }
}

/// Gives a flow to a session until one of them has been silent. Says whether the session has taken it.
async fn steal(owner: &Session, arrival: &Arrival, flow: &Flow, datagrams: &mut Arriving) -> bool {
    let Ok(stream) = owner.queue.open(arrival).await else {
        return false;
    };
    let (mut from_session, mut to_session) = stream.split();
    let mut answers = DatagramDecoder::default();
    let offered_until = Instant::now() + owner.taken_within;
    let mut idle_from = Instant::now();
    loop {
        let until = match from_session.is_taken() {
            true => idle_from + IDLE,
            false => offered_until,
        };
        tokio::select! {
            datagram = datagrams.next() => match datagram {
                Some(payload) => send(&mut to_session, payload),
                None => break,
            },
            answered = answer(&mut from_session, &mut answers, flow) => match answered {
                Ok(true) => {}
                Ok(false) | Err(_) => break,
            },
            () = owner.queue.ended() => break,
            () = sleep_until(until) => break,
        }
        if from_session.is_taken() {
            datagrams.first = None;
        }
        idle_from = Instant::now();
    }
    from_session.is_taken()
}

/// What does not fit is dropped.
fn send(to_session: &mut Writer, payload: Bytes) {
    let mut frame = BytesMut::new();
    let framed = Framed::Payload {
        address: None,
        payload,
    };
    framed.encode(&mut frame);
    let _ = to_session.try_write(&frame);
}

/// Sends the next answers to the client. Says whether there may be more.
async fn answer(
    from_session: &mut FromSession,
    answers: &mut DatagramDecoder,
    flow: &Flow,
) -> io::Result<bool> {
    while let Some(datagram) = answers.next_datagram().map_err(io::Error::other)? {
        if let Framed::Payload { payload, .. } = datagram
            && let Err(error) = flow.reply(&payload).await
        {
            tracing::debug!(%error, "an answer could not be sent");
        }
    }
    let bytes = from_session.next().await?;
    answers.push(&bytes);
    Ok(!bytes.is_empty())
}

/// Passes a flow on to the application until both have been silent, or somebody else may want it. Late answers still come.
async fn pass_on(
    agent: &Agent,
    flow: &Flow,
    datagrams: &mut Arriving,
    changed: &mut watch::Receiver<()>,
) -> Result<()> {
    let socket = redirect::open_udp_to_original(agent, flow.original_destination).await?;
    for payload in datagrams.first.take().unwrap_or_default() {
        forward(&socket, &payload).await;
    }
    let mut until = Instant::now() + IDLE;
    let mut is_leaving = false;
    loop {
        tokio::select! {
            datagram = datagrams.next(), if !is_leaving => match datagram {
                Some(payload) => forward(&socket, &payload).await,
                // All that had come before has been passed on.
                None => {
                    is_leaving = true;
                    until = Instant::now() + LATE;
                }
            },
            // An error is what the application's host answered: that nobody listens. The client may try again.
            received = receive_one(&socket) => if let Ok(payload) = received {
                flow.reply(&payload).await?;
            },
            // What comes from now on begins another flow.
            _ = changed.changed(), if !is_leaving => datagrams.datagrams.close(),
            () = sleep_until(until) => return Ok(()),
        }
        if !is_leaving {
            until = Instant::now() + IDLE;
        }
    }
}

async fn forward(socket: &UdpSocket, payload: &[u8]) {
    if let Err(error) = socket.send(payload).await {
        tracing::debug!(%error, "a datagram could not be passed on");
    }
}

/// Begins a copy of a flow. It ends with it.
fn copy(session: &Session, arrival: &Arrival) -> mpsc::Sender<Bytes> {
    let (to_copy, mut datagrams) = mpsc::channel(WAITING);
    let (session, arrival) = (session.clone(), arrival.clone());
    tokio::spawn(async move {
        let stream: SessionStream = session.queue.open(&arrival).await?;
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
            () = session.queue.ended() => {}
        }
        io::Result::Ok(())
    });
    to_copy
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
    fn those_that_have_been_silent_for_longest_make_room() {
        let epoch = Instant::now();
        let mut flows = HashMap::new();
        let ends = |number: usize| {
            let port = u16::try_from(number).unwrap();
            let client = SocketAddr::from(([203, 0, 113, 9], port));
            (client, SocketAddr::from(([10, 1, 2, 3], 53)))
        };
        let add = |flows: &mut HashMap<Ends, ToFlow>, number: usize| {
            let (datagrams, _) = mpsc::channel(1);
            let last = epoch + Duration::from_millis(number as u64);
            flows.insert(ends(number), ToFlow { datagrams, last });
        };
        for number in 0..FLOWS - 1 {
            add(&mut flows, number);
        }
        end_the_most_silent(&mut flows);
        assert_eq!(flows.len(), FLOWS - 1);
        add(&mut flows, FLOWS);
        end_the_most_silent(&mut flows);
        assert!(flows.len() < FLOWS && flows.len() > FLOWS / 2);
        assert!(!flows.contains_key(&ends(0)));
        assert!(flows.contains_key(&ends(FLOWS)) && flows.contains_key(&ends(FLOWS - 2)));
    }
}
