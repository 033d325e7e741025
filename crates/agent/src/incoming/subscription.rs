//! A session that wants a port's traffic, as a place where connections go.

use std::collections::{HashMap, VecDeque};
use std::fmt;
use std::io;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use http::Response;
use hyper::body::Incoming;
use protocol::incoming::{Arrived, ArrivedTls};
use protocol::rpc::{Proof, SubscribeEvent, Subscribed, subscribe_event};
use splitter::{Arrival, BoxFuture, BoxStream, Destination};
use tokio::sync::{Semaphore, mpsc, oneshot, watch};
use tokio::time::timeout;
use tonic::body::Body;

use super::ports::Held;
use super::redirect::Evidence;
use super::stream::SessionStream;
use super::wanted::Wanted;
use crate::agent::Agent;
use crate::connection::succeeded;
use crate::{Error, Result};

/// Events that wait for a session to take them. One that finds no room is not told.
const EVENTS: usize = 256;
/// How long a connection waits for the session to ask for one more.
const ASKS_WITHIN: Duration = Duration::from_secs(5);
/// As many requests that were given up may be in the queue before it is cleaned.
const GIVEN_UP: usize = 64;

/// The subscriptions of one client.
#[derive(Debug, Default)]
pub(crate) struct Subscriptions {
    next: AtomicU64,
    open: Mutex<HashMap<u64, Arc<Queue>>>,
}

impl Subscriptions {
    pub(super) fn find(&self, number: u64) -> Option<Arc<Queue>> {
        self.open().get(&number).cloned()
    }

    fn add(&self, queue: Arc<Queue>) -> u64 {
        let number = self.next.fetch_add(1, Ordering::Relaxed) + 1;
        self.open().insert(number, queue);
        number
    }

    fn remove(&self, number: u64) {
        self.open().remove(&number);
    }

    fn open(&self) -> MutexGuard<'_, HashMap<u64, Arc<Queue>>> {
        self.open.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Subscribes, and answers the events: the first says that it is so. It ends when nobody takes events any more.
pub(super) async fn subscribe(
    agent: &Agent,
    subscriptions: &Arc<Subscriptions>,
    wanted: Wanted,
) -> Result<mpsc::Receiver<SubscribeEvent>> {
    let (events_to_session, events) = mpsc::channel(EVENTS);
    let (outcome, began) = oneshot::channel();
    // A task of its own: it takes back what it has done also when the caller has gone in the middle of it.
    tokio::spawn(keep(
        agent.clone(),
        Arc::clone(subscriptions),
        wanted,
        events_to_session,
        outcome,
    ));
    began.await.unwrap_or(Err(Error::NoSubscription(0)))?;
    Ok(events)
}

async fn keep(
    agent: Agent,
    subscriptions: Arc<Subscriptions>,
    wanted: Wanted,
    events_to_session: mpsc::Sender<SubscribeEvent>,
    outcome: oneshot::Sender<Result<()>>,
) {
    let queue = Arc::new(Queue::default());
    let ports = Arc::clone(agent.ports());
    let claimed = ports.claim(&agent, &wanted, Arc::clone(&queue), events_to_session.clone());
    let held = match claimed.await {
        Ok(held) => held,
        Err(error) => {
            // Who does not wait any more needs no answer.
            let _ = outcome.send(Err(error));
            return;
        }
    };
    let number = subscriptions.add(Arc::clone(&queue));
    let subscribed = Subscribed {
        subscription: number,
        proof: proof(held.evidence).into(),
        mesh: held.mesh.map(|mesh| mesh.to_string()).unwrap_or_default(),
        flushed: held.flushed,
    };
    let is_told = events_to_session.try_send(event(subscribe_event::Event::Subscribed(subscribed)));
    if is_told.is_ok() && outcome.send(Ok(())).is_ok() {
        tell(&held, &events_to_session).await;
    }
    subscriptions.remove(number);
    queue.end();
    ports.release(held).await;
}

/// Tells what happens, until nobody listens any more or somebody else has the port.
async fn tell(held: &Held, events_to_session: &mpsc::Sender<SubscribeEvent>) {
    let mut traffic = held.traffic();
    let mut traffic_was_seen = false;
    loop {
        tokio::select! {
            () = events_to_session.closed() => return,
            by = held.overridden() => {
                let _ = events_to_session.send(event(subscribe_event::Event::LostTo(by))).await;
                return;
            }
            () = is_seen(&mut traffic), if !traffic_was_seen => {
                traffic_was_seen = true;
                let _ = events_to_session.try_send(event(subscribe_event::Event::TrafficSeen(true)));
            }
        }
    }
}

async fn is_seen(traffic: &mut watch::Receiver<bool>) {
    // The port is held, so it is there.
    let _ = traffic.wait_for(|seen| *seen).await;
}

pub(super) fn event(event: subscribe_event::Event) -> SubscribeEvent {
    SubscribeEvent { event: Some(event) }
}

fn proof(evidence: Evidence) -> Proof {
    match evidence {
        Evidence::Nothing => Proof::Nothing,
        Evidence::Loopback => Proof::Loopback,
        Evidence::Outside => Proof::Outside,
    }
}

/// The requests with which a session waits for connections.
pub(super) struct Queue {
    waiting: Mutex<VecDeque<Waiting>>,
    /// At least as many as wait: some may have been given up.
    available: Semaphore,
}

struct Waiting {
    from_session: Incoming,
    answer: oneshot::Sender<Response<Body>>,
}

impl Default for Queue {
    fn default() -> Self {
        Self {
            waiting: Mutex::default(),
            available: Semaphore::new(0),
        }
    }
}

impl fmt::Debug for Queue {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        let waiting = self.waiting().len();
        formatter.debug_tuple("Queue").field(&waiting).finish()
    }
}

impl Queue {
    fn waiting(&self) -> MutexGuard<'_, VecDeque<Waiting>> {
        self.waiting.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Waits until there is a connection, and answers with it.
    pub(super) async fn wait(&self, from_session: Incoming) -> Result<Response<Body>> {
        let (answer, answered) = oneshot::channel();
        {
            let mut waiting = self.waiting();
            if self.available.is_closed() {
                return Err(Error::SubscriptionEnded);
            }
            if waiting.len() >= GIVEN_UP {
                waiting.retain(|waiting| !waiting.answer.is_closed());
            }
            waiting.push_back(Waiting {
                from_session,
                answer,
            });
        }
        self.available.add_permits(1);
        answered.await.map_err(|_| Error::SubscriptionEnded)
    }

    /// No connection comes any more.
    fn end(&self) {
        let mut waiting = self.waiting();
        self.available.close();
        waiting.clear();
    }

    async fn offer(&self, arrival: &Arrival) -> io::Result<SessionStream> {
        loop {
            let permit = self.available.acquire().await;
            permit.map_err(io::Error::other)?.forget();
            let Some(waiting) = self.waiting().pop_front() else {
                continue;
            };
            let (stream, body) = SessionStream::new(waiting.from_session);
            let response = succeeded(arrived(arrival).to_headers(), Body::new(body));
            // Otherwise the session has given it up.
            if waiting.answer.send(response).is_ok() {
                return Ok(stream);
            }
        }
    }

    /// Gives the session a connection.
    pub(super) async fn open(&self, arrival: &Arrival) -> io::Result<SessionStream> {
        let offered = timeout(ASKS_WITHIN, self.offer(arrival)).await;
        offered.unwrap_or_else(|_| Err(io::ErrorKind::TimedOut.into()))
    }
}

impl Destination for Queue {
    fn open<'a>(&'a self, arrival: &'a Arrival) -> BoxFuture<'a, io::Result<BoxStream>> {
        Box::pin(async move {
            let stream = Queue::open(self, arrival).await?;
            Ok(Box::new(stream) as BoxStream)
        })
    }
}

fn arrived(arrival: &Arrival) -> Arrived {
    Arrived {
        client: arrival.client,
        server: arrival.server,
        tls: arrival.tls.as_ref().map(|facts| ArrivedTls {
            server_name: facts.server_name.clone(),
            application_protocol: facts.application_protocol.clone(),
        }),
    }
}
