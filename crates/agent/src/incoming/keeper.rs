//! Keeps a subscription: here, where this agent redirects the port, or at another agent of the same network that does.
//!
//! Whoever is first redirects a port, and the kernel knows who that is. The others join. When he is gone the kernel has
//! removed his rules, so each of the others tries to be first: one is, and the rest joins again.

use std::pin::pin;
use std::sync::Arc;
use std::time::Duration;

use protocol::rpc::{
    EarlierSession, EarlierSessions, Proof, SubscribeEvent, Subscribed, subscribe_event,
};
use splitter::{Earlier, Held, OnConflict};
use tokio::sync::{mpsc, oneshot, watch};
use tokio::time::{Instant, sleep, timeout};
use tonic::Status;

use super::certificates;
use super::held::{HeldPort as ToldPort, Holding};
use super::peers::{self, Joined};
use super::ports::Held as HeldPort;
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
/// Who starts again at once may be here before it is known that his last session is not: so long that is waited for.
const KNOWN_WITHIN: Duration = Duration::from_secs(2);
const BETWEEN_LOOKS: Duration = Duration::from_millis(100);

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
        told: None,
        is_judged: connection.access == Access::Session,
        wanted,
        events,
        earlier: Vec::new(),
        held_since: None,
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
    /// There from the first success on, for what is a session's of this agent.
    told: Option<Holding>,
    /// Whether what sessions may do is about this one. A peer judges what it passes on.
    is_judged: bool,
    wanted: Wanted,
    events: Events,
    /// Who gets some of it first, as the session was told.
    earlier: Vec<EarlierSession>,
    /// There from the first success on.
    held_since: Option<Instant>,
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
        let mut unreached = Patience::new(REACHED_WITHIN);
        let mut in_our_own_way = Patience::new(KNOWN_WITHIN);
        loop {
            let (holder, point) = match self.hold_here().await {
                Err(error) if is_our_own(&error) && in_our_own_way.is_left() => {
                    if self.pause(BETWEEN_LOOKS).await {
                        continue;
                    }
                    return Ok(());
                }
                Err(Error::PortTaken {
                    holder,
                    meeting_point,
                    ..
                }) => (holder, meeting_point),
                result => return result,
            };
            unreached.begin();
            let held = match &point {
                Some(point) => self.hold_there(point).await,
                // He does not share, or has gone a moment ago.
                None => Err(Error::PeerGone),
            };
            match held {
                Ok(Ending::Over) => return Ok(()),
                Ok(Ending::HolderGone) => {
                    unreached = Patience::new(REACHED_WITHIN);
                    self.prepare_to_take_over(&holder);
                }
                Err(Error::PeerGone) => {
                    if !unreached.is_left() {
                        return Err(Error::PortTaken {
                            port: self.wanted.port,
                            holder,
                            meeting_point: None,
                        });
                    }
                    if !self.pause(BETWEEN_ATTEMPTS).await {
                        return Ok(());
                    }
                }
                Err(error) => return Err(error),
            }
        }
    }

    /// Waits a little. Answers whether the session is still there.
    async fn pause(&self, time: Duration) -> bool {
        tokio::select! {
            () = sleep(time) => true,
            () = self.events.closed() => false,
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
        let held_for = self.held_since.map(|since| since.elapsed());
        self.wanted.take_over(held_for.unwrap_or_default());
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
            self.tell_earlier(subscribed.earlier);
            return !self.events.is_closed();
        };
        self.held_since = Instant::now().checked_sub(self.wanted.held_for);
        self.earlier.clone_from(&subscribed.earlier);
        let subscription = self.subscriptions.add(place, self.reachable.clone());
        subscribed.subscription = subscription.number;
        self.subscription = Some(subscription);
        if self.is_judged {
            let port = ToldPort::of(&self.wanted.request);
            self.told = Some(self.agent.held_ports().hold(port));
        }
        self.tell(subscribe_event::Event::Subscribed(subscribed));
        outcome.send(Ok(())).is_ok()
    }

    fn tell(&self, event: subscribe_event::Event) {
        tell(&self.events, event);
    }

    /// Tells who gets some of it first, if that is news.
    fn tell_earlier(&mut self, earlier: Vec<EarlierSession>) {
        if self.earlier == earlier {
            return;
        }
        self.earlier.clone_from(&earlier);
        let earlier = EarlierSessions { sessions: earlier };
        self.tell(subscribe_event::Event::Earlier(earlier));
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
            earlier: sessions(&held.claim.earlier()),
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
    async fn watch(&mut self, held: &HeldPort) -> Result<()> {
        let mut earlier = held.claim.earlier();
        self.tell_earlier(sessions(&earlier));
        let mut traffic = held.traffic();
        let mut traffic_was_seen = false;
        loop {
            tokio::select! {
                () = self.events.closed() => return Ok(()),
                () = self.agent.ports().end_begins() => return Ok(()),
                error = self.forbidden() => return Err(error),
                by = held.claim.overridden() => {
                    tell_loss(&self.events, by).await;
                    return Ok(());
                }
                now = held.claim.earlier_changed(&earlier) => {
                    earlier = now;
                    self.tell_earlier(sessions(&earlier));
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
        if !self.announce(Place::There(peer.clone()), subscribed) {
            return Ok(Ending::Over);
        }
        let mut reporting = pin!(peer.report(self.reachable.clone()));
        loop {
            let event = tokio::select! {
                event = events.message() => event,
                () = &mut reporting => continue,
                error = self.forbidden() => return Err(error),
                () = self.events.closed() => return Ok(Ending::Over),
                () = self.agent.ports().end_begins() => return Ok(Ending::Over),
            };
            let Ok(Some(SubscribeEvent { event: Some(event) })) = event else {
                return Ok(Ending::HolderGone);
            };
            match event {
                subscribe_event::Event::LostTo(by) => {
                    tell_loss(&self.events, by).await;
                    return Ok(Ending::Over);
                }
                subscribe_event::Event::Earlier(earlier) => self.tell_earlier(earlier.sessions),
                event => self.tell(event),
            }
        }
    }
}

/// How long something is tried again, from the first time on.
struct Patience {
    within: Duration,
    since: Option<Instant>,
}

impl Patience {
    fn new(within: Duration) -> Self {
        let since = None;
        Self { within, since }
    }

    fn begin(&mut self) -> Instant {
        *self.since.get_or_insert_with(Instant::now)
    }

    fn is_left(&mut self) -> bool {
        self.begin().elapsed() <= self.within
    }
}

/// Whether it is another session of the same user that has the port.
fn is_our_own(error: &Error) -> bool {
    matches!(error, Error::Claim(splitter::Error::Conflict(conflict)) if conflict.is_own)
}

fn sessions(earlier: &[Earlier]) -> Vec<EarlierSession> {
    let session = |earlier: &Earlier| EarlierSession {
        holder: earlier.holder.clone(),
        takes_all: match earlier.what {
            Held::WholePort | Held::SameRequests => true,
            Held::SomeRequests => false,
        },
    };
    earlier.iter().map(session).collect()
}

impl Wanted {
    /// Asks for what was had before, whoever else may have some of it now.
    fn take_over(&mut self, held_for: Duration) {
        self.held_for = held_for;
        self.request.held_for_milliseconds =
            u64::try_from(held_for.as_millis()).unwrap_or(u64::MAX);
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

/// Waits for room: a session that does not learn of it would ask again for what it has lost.
async fn tell_loss(events: &Events, to: String) {
    let event = Some(subscribe_event::Event::LostTo(to));
    let _ = events.send(Ok(SubscribeEvent { event })).await;
}

fn proof(evidence: Evidence) -> Proof {
    match evidence {
        Evidence::Nothing => Proof::Nothing,
        Evidence::Loopback => Proof::Loopback,
        Evidence::Outside => Proof::Outside,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn a_loss_is_told_also_to_who_has_not_taken_events_for_long() {
        let (events, mut events_to_session) = mpsc::channel(4);
        for _ in 0..10 {
            tell(&events, subscribe_event::Event::CopyDropped(true));
        }
        let told = tokio::spawn(async move { tell_loss(&events, "bob".to_owned()).await });
        // It waits as long as nobody takes anything.
        tokio::task::yield_now().await;
        let mut taken = Vec::new();
        while let Some(event) = events_to_session.recv().await {
            taken.extend(event.unwrap().event);
        }
        told.await.unwrap();
        let lost = subscribe_event::Event::LostTo("bob".to_owned());
        assert_eq!(taken.len(), 5);
        assert_eq!(taken.last(), Some(&lost));
    }
}
