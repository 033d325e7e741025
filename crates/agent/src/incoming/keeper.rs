//! Keeps a subscription: here, where this agent redirects the port, or at another agent of the same network that does.
//!
//! Whoever is first redirects a port, and the kernel knows who that is. The others join. When he is gone the kernel has
//! removed his rules, so each of the others tries to be first: one is, and the rest joins again.

use std::sync::Arc;
use std::time::Duration;

use protocol::rpc::{Proof, SubscribeEvent, Subscribed, subscribe_event};
use splitter::OnConflict;
use tokio::sync::{mpsc, oneshot, watch};
use tokio::time::{Instant, sleep, timeout};
use tonic::Status;

use super::certificates;
use super::peers::{self, Joined};
use super::ports::Held;
use super::queue::Queue;
use super::reachable::Reachable;
use super::redirect::{Evidence, MeetingPoint};
use super::subscription::{Place, Subscription, Subscriptions};
use super::wanted::Wanted;
use crate::agent::Agent;
use crate::connection::{Access, Connection};
use crate::grant::Rules;
use crate::{Error, Result};

/// Events that wait for a session to take them. One that finds no room is not told.
const EVENTS: usize = 256;
/// An agent that has the port and cannot be reached is about to end, or does not know of sharing.
const REACHED_WITHIN: Duration = Duration::from_secs(5);
const BETWEEN_ATTEMPTS: Duration = Duration::from_millis(20);

/// What a session is told.
pub(super) type Events = mpsc::Sender<Result<SubscribeEvent, Status>>;

/// Subscribes, and answers the events: the first says that it is so. It ends when nobody takes events any more.
pub(super) async fn subscribe(
    connection: &Connection,
    wanted: Wanted,
) -> Result<mpsc::Receiver<Result<SubscribeEvent, Status>>> {
    let (events, events_to_session) = mpsc::channel(EVENTS);
    let (outcome, began) = oneshot::channel();
    let keeper = Keeper {
        agent: connection.agent.clone(),
        reachable: connection.reachable.clone(),
        subscriptions: Arc::clone(&connection.subscriptions),
        subscription: None,
        is_judged: connection.access == Access::Session,
        wanted,
        events,
        outcome: Some(outcome),
    };
    // A task of its own: it takes back what it has done also when the caller has gone in the middle of it.
    tokio::spawn(keeper.run());
    began.await.unwrap_or(Err(Error::SubscriptionEnded))?;
    Ok(events_to_session)
}

struct Keeper {
    agent: Agent,
    reachable: Reachable,
    subscriptions: Arc<Subscriptions>,
    /// There from the first success on.
    subscription: Option<Arc<Subscription>>,
    /// Whether what sessions may do is about this one. A peer judges what it passes on.
    is_judged: bool,
    wanted: Wanted,
    events: Events,
    outcome: Option<oneshot::Sender<Result<()>>>,
}

/// Why a subscription is not held any more.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Ending {
    /// The session has gone, or somebody else has taken what it had.
    Over,
    /// Whoever redirected the port has gone.
    HolderGone,
}

impl Keeper {
    async fn run(mut self) {
        let read = match &mut self.wanted.request.tls {
            Some(tls) => certificates::read(&self.agent, tls).await,
            None => Ok(()),
        };
        let result = match read {
            Ok(()) => self.hold().await,
            Err(error) => Err(error),
        };
        self.end(result);
    }

    /// Holds the subscription until it is over, wherever the port is redirected.
    async fn hold(&mut self) -> Result<()> {
        let mut unreached_since = None;
        loop {
            let (holder, point) = match self.hold_here().await {
                Err(Error::PortTaken {
                    holder,
                    meeting_point,
                    ..
                }) => (holder, meeting_point),
                result => return result,
            };
            let held = match &point {
                Some(point) => self.hold_there(point).await,
                // He does not share, or has gone a moment ago.
                None => Err(Error::PeerGone),
            };
            match held {
                Ok(Ending::Over) => return Ok(()),
                Ok(Ending::HolderGone) => {
                    unreached_since = None;
                    self.prepare_to_take_over(&holder);
                }
                Err(Error::PeerGone) => {
                    let since = *unreached_since.get_or_insert_with(Instant::now);
                    if since.elapsed() > REACHED_WITHIN {
                        return Err(Error::PortTaken {
                            port: self.wanted.port,
                            holder,
                            meeting_point: None,
                        });
                    }
                    tokio::select! {
                        () = sleep(BETWEEN_ATTEMPTS) => {}
                        () = self.events.closed() => return Ok(()),
                    }
                }
                Err(error) => return Err(error),
            }
        }
    }

    fn end(self, result: Result<()>) {
        if let Some(subscription) = &self.subscription {
            self.subscriptions.remove(subscription);
        }
        let Err(error) = result else { return };
        match self.outcome {
            // Who does not wait any more needs no answer.
            Some(outcome) => drop(outcome.send(Err(error))),
            None => {
                tracing::warn!(%error, "a subscription ended");
                let _ = self.events.try_send(Err(error.into()));
            }
        }
    }

    /// Whatever was agreed on before is so again, in the order in which the others come.
    fn prepare_to_take_over(&mut self, holder: &str) {
        tracing::info!(holder, port = %self.wanted.port, "the agent that redirected the port has gone");
        self.set_place(Place::Nowhere);
        self.wanted.take_over();
    }

    fn set_place(&self, place: Place) {
        if let Some(subscription) = &self.subscription {
            subscription.set_place(place);
        }
    }

    /// Says that it is so, the first time. Answers whether the session is still there.
    fn announce(&mut self, place: Place, mut subscribed: Subscribed) -> bool {
        let Some(outcome) = self.outcome.take() else {
            self.set_place(place);
            return !self.events.is_closed();
        };
        let subscription = self.subscriptions.add(place, self.reachable.clone());
        subscribed.subscription = subscription.number;
        self.subscription = Some(subscription);
        self.tell(subscribe_event::Event::Subscribed(subscribed));
        outcome.send(Ok(())).is_ok()
    }

    fn tell(&self, event: subscribe_event::Event) {
        tell(&self.events, event);
    }

    /// Waits for room: a session that does not learn of it would ask again for what it has lost.
    async fn tell_loss(&self, to: String) {
        let event = Some(subscribe_event::Event::LostTo(to));
        let _ = self.events.send(Ok(SubscribeEvent { event })).await;
    }

    async fn hold_here(&mut self) -> Result<()> {
        let queue = Arc::new(Queue::new(self.reachable.clone()));
        let ports = Arc::clone(self.agent.ports());
        let session = Arc::clone(&queue);
        let held = ports.claim(&self.agent, &self.wanted, session, self.events.clone());
        let held = held.await?;
        let subscribed = Subscribed {
            subscription: 0,
            proof: proof(held.evidence).into(),
            mesh: held.mesh.map(|mesh| mesh.to_string()).unwrap_or_default(),
            flushed: held.flushed,
        };
        let mut result = Ok(());
        if self.announce(Place::Here(Arc::clone(&queue)), subscribed) {
            result = self.watch(&held).await;
        }
        queue.end();
        ports.release(held).await;
        result
    }

    /// Until the session may not have it any more.
    async fn forbidden(&self) -> Error {
        match self.is_judged {
            true => {
                let request = &self.wanted.request;
                let judged = |rules: &Rules| rules.allow_subscription(request);
                self.agent.until_forbidden(judged).await
            }
            false => std::future::pending().await,
        }
    }

    /// Tells what happens, until nobody listens any more, somebody else has the port, or it is forbidden.
    async fn watch(&self, held: &Held) -> Result<()> {
        let mut traffic = held.traffic();
        let mut traffic_was_seen = false;
        loop {
            tokio::select! {
                () = self.events.closed() => return Ok(()),
                () = self.agent.ports().end_begins() => return Ok(()),
                error = self.forbidden() => return Err(error),
                by = held.overridden() => {
                    self.tell_loss(by).await;
                    return Ok(());
                }
                () = is_seen(&mut traffic), if !traffic_was_seen => {
                    traffic_was_seen = true;
                    self.tell(subscribe_event::Event::TrafficSeen(true));
                }
            }
        }
    }

    async fn hold_there(&mut self, point: &MeetingPoint) -> Result<Ending> {
        let request = self.wanted.request.clone();
        let joining = timeout(REACHED_WITHIN, peers::join(&self.agent, point, request));
        let joined = tokio::select! {
            // Who does not answer is as good as gone.
            joined = joining => joined.unwrap_or(Err(Error::PeerGone))?,
            () = self.events.closed() => return Ok(Ending::Over),
            () = self.agent.ports().end_begins() => return Ok(Ending::Over),
        };
        let Joined {
            peer,
            subscribed,
            mut events,
        } = joined;
        if !self.announce(Place::There(peer), subscribed) {
            return Ok(Ending::Over);
        }
        loop {
            let event = tokio::select! {
                event = events.message() => event,
                error = self.forbidden() => return Err(error),
                () = self.events.closed() => return Ok(Ending::Over),
                () = self.agent.ports().end_begins() => return Ok(Ending::Over),
            };
            let Ok(Some(SubscribeEvent { event: Some(event) })) = event else {
                return Ok(Ending::HolderGone);
            };
            match event {
                subscribe_event::Event::LostTo(by) => {
                    self.tell_loss(by).await;
                    return Ok(Ending::Over);
                }
                event => self.tell(event),
            }
        }
    }
}

impl Wanted {
    /// Asks for what was had before, whoever else may have some of it now.
    fn take_over(&mut self) {
        self.on_conflict = OnConflict::Continue;
        self.flush_connections = false;
        self.request
            .set_on_conflict(protocol::rpc::OnConflict::Continue);
        self.request.flush_connections = false;
    }
}

async fn is_seen(traffic: &mut watch::Receiver<bool>) {
    // The port is held, so it is there.
    let _ = traffic.wait_for(|seen| *seen).await;
}

/// Tells a session something. One that takes no events has not taken earlier ones either.
pub(super) fn tell(events: &Events, event: subscribe_event::Event) {
    let event = SubscribeEvent { event: Some(event) };
    if events.try_send(Ok(event)).is_err() && !events.is_closed() {
        tracing::warn!("a session does not take what it is told");
    }
}

fn proof(evidence: Evidence) -> Proof {
    match evidence {
        Evidence::Nothing => Proof::Nothing,
        Evidence::Loopback => Proof::Loopback,
        Evidence::Outside => Proof::Outside,
    }
}
