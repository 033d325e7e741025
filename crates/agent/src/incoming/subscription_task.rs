//! Runs a subscription: at this agent if it redirects the port, or at the peer agent of the same network that does.
//!
//! The first agent that claims a port in the kernel redirects it, and the other agents join it. When that agent ends, the
//! kernel removes its rules, and each of the others tries to claim the port: one succeeds, and the rest join it again.

use std::pin::pin;
use std::sync::Arc;
use std::time::Duration;

use protocol::rpc::{
    EarlierSession, EarlierSessions, HttpFilter, RedirectCheck, SubscribeEvent, SubscribeRequest,
    Subscribed, subscribe_event,
};
use splitter::{ClaimedTraffic, OnConflict};
use tokio::sync::{mpsc, oneshot, watch};
use tokio::time::{Instant, sleep, timeout};
use tonic::Status;

use super::accept_pool::AcceptPool;
use super::certificates;
use super::claimed_ports::{ClaimedPort, ClaimedPortGuard};
use super::peers::{self, Joined};
use super::ports::PortClaim;
use super::reachability::ReachabilityWatch;
use super::redirect::{PeerEndpoint, RedirectEvidence};
use super::spec::SubscriptionSpec;
use super::subscription::{ConnectionSource, Subscription, Subscriptions};
use crate::agent::Agent;
use crate::connection::{Access, Connection};
use crate::grant::Rules;
use crate::{Error, Result};

/// The maximum number of buffered events. Events beyond it are dropped.
const MAX_BUFFERED_EVENTS: usize = 256;
/// How long a peer agent that redirects the port may be unreachable. It is about to end, or does not support sharing.
const PEER_TIMEOUT: Duration = Duration::from_secs(5);
const PEER_RETRY_DELAY: Duration = Duration::from_millis(20);
/// How long a conflict with an earlier session of the same owner is retried. A user who restarts a session at once may be
/// faster than the detection that the earlier session is disconnected.
const OWN_CONFLICT_TIMEOUT: Duration = Duration::from_secs(2);
const OWN_CONFLICT_RETRY_DELAY: Duration = Duration::from_millis(100);

/// Sends the events of a subscription to its session.
pub(super) type EventSender = mpsc::Sender<Result<SubscribeEvent, Status>>;

/// Subscribes, and returns the events. The first one confirms the subscription, and dropping the receiver ends it.
/// `requested_filter` is the session's own filter, without those of the policies.
pub(super) async fn subscribe(
    connection: &Connection,
    spec: SubscriptionSpec,
    requested_filter: Option<HttpFilter>,
) -> Result<mpsc::Receiver<Result<SubscribeEvent, Status>>> {
    let (events, events_to_session) = mpsc::channel(MAX_BUFFERED_EVENTS);
    let (outcome, started) = oneshot::channel();
    let task = SubscriptionTask {
        agent: connection.agent.clone(),
        reachability: connection.reachable.clone(),
        subscriptions: Arc::clone(&connection.subscriptions),
        subscription: None,
        claimed_port: None,
        is_subject_to_rules: connection.access == Access::Session,
        spec,
        requested_filter,
        events,
        earlier: Vec::new(),
        claimed_since: None,
        outcome: Some(outcome),
    };
    // A separate task cleans up also if the caller cancels the call while it starts.
    tokio::spawn(task.run());
    started.await.unwrap_or(Err(Error::SubscriptionEnded))?;
    Ok(events_to_session)
}

/// Runs one subscription until it ends.
struct SubscriptionTask {
    agent: Agent,
    reachability: ReachabilityWatch,
    subscriptions: Arc<Subscriptions>,
    /// Set when the subscription has started.
    subscription: Option<Arc<Subscription>>,
    /// Set when the subscription has started, if it belongs to a session of this agent.
    claimed_port: Option<ClaimedPortGuard>,
    /// Whether this agent enforces the rules for sessions. A peer agent enforces them for the requests that it forwards.
    is_subject_to_rules: bool,
    spec: SubscriptionSpec,
    /// The session's own filter. The filter in `spec` is combined with those of the policies.
    requested_filter: Option<HttpFilter>,
    events: EventSender,
    /// The earlier sessions that take precedence, as last reported to the session.
    earlier: Vec<EarlierSession>,
    /// Set when the subscription has started.
    claimed_since: Option<Instant>,
    outcome: Option<oneshot::Sender<Result<()>>>,
}

/// Why a subscription at a peer agent has ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum EndReason {
    /// The session has unsubscribed, another session has taken over the claim, or this agent shuts down.
    Finished,
    /// The peer agent has ended.
    PeerEnded,
}

impl SubscriptionTask {
    async fn run(mut self) {
        let read = match &mut self.spec.request.tls {
            Some(tls) => certificates::read(&self.agent, tls).await,
            None => Ok(()),
        };
        let result = match read {
            Ok(()) => self.run_subscription().await,
            Err(error) => Err(error),
        };
        self.end(result);
    }

    /// Runs the subscription until it ends, at the agent that redirects the port.
    async fn run_subscription(&mut self) -> Result<()> {
        let mut peer_retries = RetryLimit::new(PEER_TIMEOUT);
        let mut own_conflict_retries = RetryLimit::new(OWN_CONFLICT_TIMEOUT);
        loop {
            let (holder, endpoint) = match self.run_locally().await {
                Err(error) if is_own_conflict(&error) && own_conflict_retries.may_retry() => {
                    if self.sleep_while_subscribed(OWN_CONFLICT_RETRY_DELAY).await {
                        continue;
                    }
                    return Ok(());
                }
                Err(Error::PortTaken {
                    holder,
                    peer_endpoint,
                    ..
                }) => (holder, peer_endpoint),
                result => return result,
            };
            peer_retries.start();
            let ended = match &endpoint {
                Some(endpoint) => self.run_at_peer(endpoint).await,
                // The other agent does not support sharing, or has just ended.
                None => Err(Error::PeerGone),
            };
            match ended {
                Ok(EndReason::Finished) => return Ok(()),
                Ok(EndReason::PeerEnded) => {
                    peer_retries = RetryLimit::new(PEER_TIMEOUT);
                    self.prepare_to_take_over(&holder);
                }
                Err(Error::PeerGone) => {
                    if !peer_retries.may_retry() {
                        return Err(Error::PortTaken {
                            port: self.spec.port,
                            holder,
                            peer_endpoint: None,
                        });
                    }
                    if !self.sleep_while_subscribed(PEER_RETRY_DELAY).await {
                        return Ok(());
                    }
                }
                Err(error) => return Err(error),
            }
        }
    }

    /// Sleeps. Returns whether the session is still subscribed.
    async fn sleep_while_subscribed(&self, time: Duration) -> bool {
        tokio::select! {
            () = sleep(time) => true,
            () = self.unsubscribed() => false,
        }
    }

    /// Waits until the session unsubscribes: by a request, or by ending the call.
    async fn unsubscribed(&self) {
        let requested = async {
            match &self.subscription {
                Some(subscription) => subscription.unsubscribed().await,
                None => std::future::pending().await,
            }
        };
        tokio::select! {
            () = self.events.closed() => {}
            () = requested => {}
        }
    }

    fn end(self, result: Result<()>) {
        if let Some(subscription) = &self.subscription {
            self.subscriptions.remove(subscription);
        }
        let Err(error) = result else { return };
        match self.outcome {
            // It fails if the caller has cancelled the call.
            Some(outcome) => drop(outcome.send(Err(error))),
            None => {
                tracing::warn!(%error, "subscription failed");
                let _ = self.events.try_send(Err(error.into()));
            }
        }
    }

    /// Keeps the precedence of the claim for the next agent that redirects the port, in whichever order the others join.
    fn prepare_to_take_over(&mut self, holder: &str) {
        tracing::info!(holder, port = %self.spec.port, "redirecting agent ended");
        self.set_source(ConnectionSource::Pending);
        let claim_age = self.claimed_since.map(|since| since.elapsed());
        self.spec.take_over(claim_age.unwrap_or_default());
    }

    fn set_source(&self, source: ConnectionSource) {
        if let Some(subscription) = &self.subscription {
            subscription.set_source(source);
        }
    }

    /// Confirms the subscription to the session, or updates it if that has been done. Returns whether the session is still
    /// subscribed.
    fn confirm(&mut self, source: ConnectionSource, mut subscribed: Subscribed) -> bool {
        let Some(outcome) = self.outcome.take() else {
            self.set_source(source);
            self.report_earlier(subscribed.earlier);
            return !self.events.is_closed();
        };
        self.claimed_since = Instant::now().checked_sub(self.spec.claim_age);
        self.earlier.clone_from(&subscribed.earlier);
        let subscription = self.subscriptions.add(source, self.reachability.clone());
        subscribed.subscription = subscription.id;
        self.subscription = Some(subscription);
        if self.is_subject_to_rules {
            let port = ClaimedPort::from_request(&self.spec.request);
            self.claimed_port = Some(self.agent.claimed_ports().register(port));
        }
        self.emit(subscribe_event::Event::Subscribed(subscribed));
        outcome.send(Ok(())).is_ok()
    }

    fn emit(&self, event: subscribe_event::Event) {
        emit(&self.events, event);
    }

    /// Emits the earlier sessions that take precedence, if they have changed.
    fn report_earlier(&mut self, earlier: Vec<EarlierSession>) {
        if self.earlier == earlier {
            return;
        }
        self.earlier.clone_from(&earlier);
        let earlier = EarlierSessions { sessions: earlier };
        self.emit(subscribe_event::Event::Earlier(earlier));
    }

    /// Runs the subscription at this agent.
    async fn run_locally(&mut self) -> Result<()> {
        let pool = Arc::new(AcceptPool::new(self.reachability.clone()));
        let ports = Arc::clone(self.agent.ports());
        let session = Arc::clone(&pool);
        let claimed = ports.claim(&self.agent, &self.spec, session, self.events.clone());
        let claimed = claimed.await?;
        let subscribed = Subscribed {
            subscription: 0,
            check: redirect_check(claimed.evidence).into(),
            mesh: claimed
                .mesh
                .map(|mesh| mesh.to_string())
                .unwrap_or_default(),
            flushed: claimed.flushed,
            earlier: sessions(&claimed.claim.earlier()),
            listeners: claimed.listeners.clone(),
        };
        let mut result = Ok(());
        if self.confirm(ConnectionSource::Local(Arc::clone(&pool)), subscribed) {
            result = self.watch(&claimed).await;
        }
        pool.end();
        let subscription = self.subscription.clone();
        let released = || subscription.iter().for_each(|ended| ended.set_released());
        ports.release(claimed, released).await;
        result
    }

    /// Waits until the rules no longer allow the subscription, or only with another filter. The session may subscribe again.
    async fn forbidden(&self) -> Error {
        if !self.is_subject_to_rules {
            return std::future::pending().await;
        }
        let requested = SubscribeRequest {
            filter: self.requested_filter.clone(),
            ..self.spec.request.clone()
        };
        let is_allowed = |rules: &Rules| match rules.effective_filter(&requested)? {
            filter if filter == self.spec.request.filter => Ok(()),
            _ => Err(Error::Forbidden(
                "keep a filter from before its last change; subscribe again",
            )),
        };
        self.agent.until_forbidden(is_allowed).await
    }

    /// Emits events until the session unsubscribes, another session takes over the claim, or the rules no longer allow it.
    async fn watch(&mut self, claimed: &PortClaim) -> Result<()> {
        let mut earlier = claimed.claim.earlier();
        self.report_earlier(sessions(&earlier));
        let mut traffic = claimed.traffic();
        let mut traffic_was_seen = false;
        loop {
            tokio::select! {
                () = self.unsubscribed() => return Ok(()),
                () = self.agent.ports().shutdown_started() => return Ok(()),
                error = self.forbidden() => return Err(error),
                by = claimed.claim.overridden() => {
                    emit_loss(&self.events, by).await;
                    return Ok(());
                }
                changed = claimed.claim.earlier_changed(&earlier) => {
                    earlier = changed;
                    self.report_earlier(sessions(&earlier));
                }
                () = wait_for_traffic(&mut traffic), if !traffic_was_seen => {
                    traffic_was_seen = true;
                    self.emit(subscribe_event::Event::TrafficSeen(true));
                }
            }
        }
    }

    /// Runs the subscription at the peer agent that listens on the endpoint.
    async fn run_at_peer(&mut self, endpoint: &PeerEndpoint) -> Result<EndReason> {
        let request = self.spec.request.clone();
        let joining = timeout(PEER_TIMEOUT, peers::join(&self.agent, endpoint, request));
        let joined = tokio::select! {
            // A peer that does not respond counts as ended.
            joined = joining => joined.unwrap_or(Err(Error::PeerGone))?,
            () = self.events.closed() => return Ok(EndReason::Finished),
            () = self.agent.ports().shutdown_started() => return Ok(EndReason::Finished),
        };
        let Joined {
            peer,
            subscribed,
            mut events,
        } = joined;
        if !self.confirm(ConnectionSource::Peer(peer.clone()), subscribed) {
            return Ok(EndReason::Finished);
        }
        let mut reporting = pin!(peer.report(self.reachability.clone()));
        loop {
            let event = tokio::select! {
                event = events.message() => event,
                () = &mut reporting => continue,
                error = self.forbidden() => return Err(error),
                () = self.unsubscribed() => {
                    // A peer that does not respond removes the redirection when it notices that the stream has ended.
                    let _ = timeout(PEER_TIMEOUT, peer.unsubscribe()).await;
                    return Ok(EndReason::Finished);
                }
                () = self.agent.ports().shutdown_started() => return Ok(EndReason::Finished),
            };
            let Ok(Some(SubscribeEvent { event: Some(event) })) = event else {
                return Ok(EndReason::PeerEnded);
            };
            match event {
                subscribe_event::Event::LostTo(by) => {
                    emit_loss(&self.events, by).await;
                    return Ok(EndReason::Finished);
                }
                subscribe_event::Event::Earlier(earlier) => self.report_earlier(earlier.sessions),
                event => self.emit(event),
            }
        }
    }
}

/// Limits the time of retries, which starts with the first one.
struct RetryLimit {
    timeout: Duration,
    started: Option<Instant>,
}

impl RetryLimit {
    fn new(timeout: Duration) -> Self {
        let started = None;
        Self { timeout, started }
    }

    fn start(&mut self) -> Instant {
        *self.started.get_or_insert_with(Instant::now)
    }

    fn may_retry(&mut self) -> bool {
        self.start().elapsed() <= self.timeout
    }
}

/// Whether the conflict is with another session of the same owner.
fn is_own_conflict(error: &Error) -> bool {
    matches!(error, Error::Claim(splitter::Error::Conflict(conflict)) if conflict.is_own)
}

fn sessions(earlier: &[splitter::EarlierSession]) -> Vec<EarlierSession> {
    let session = |earlier: &splitter::EarlierSession| EarlierSession {
        holder: earlier.holder.clone(),
        takes_all: match earlier.traffic {
            ClaimedTraffic::WholePort | ClaimedTraffic::SameRequests => true,
            ClaimedTraffic::SomeRequests => false,
        },
    };
    earlier.iter().map(session).collect()
}

impl SubscriptionSpec {
    /// Prepares the request for another agent: the claim keeps its age, and conflicts with other sessions do not fail it.
    fn take_over(&mut self, claim_age: Duration) {
        self.claim_age = claim_age;
        self.request.claim_age_milliseconds =
            u64::try_from(claim_age.as_millis()).unwrap_or(u64::MAX);
        self.on_conflict = OnConflict::Continue;
        self.flush_connections = false;
        self.request
            .set_on_conflict(protocol::rpc::OnConflict::Continue);
        self.request.flush_connections = false;
    }
}

async fn wait_for_traffic(traffic: &mut watch::Receiver<bool>) {
    // The sender lives as long as the claim, so this cannot fail.
    let _ = traffic.wait_for(|was_seen| *was_seen).await;
}

/// Sends an event to a session. It is dropped if the session has not read the events before it.
pub(super) fn emit(events: &EventSender, event: subscribe_event::Event) {
    let event = SubscribeEvent { event: Some(event) };
    if events.try_send(Ok(event)).is_err() && !events.is_closed() {
        tracing::warn!("event dropped, session too slow");
    }
}

/// Sends the loss of the claim, and waits for room in the buffer: a session that does not get this event would subscribe
/// again.
async fn emit_loss(events: &EventSender, to: String) {
    let event = Some(subscribe_event::Event::LostTo(to));
    let _ = events.send(Ok(SubscribeEvent { event })).await;
}

fn redirect_check(evidence: RedirectEvidence) -> RedirectCheck {
    match evidence {
        RedirectEvidence::Unverified => RedirectCheck::Unverified,
        RedirectEvidence::Loopback => RedirectCheck::Loopback,
        RedirectEvidence::External => RedirectCheck::External,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn a_lost_claim_is_reported_also_to_a_session_that_reads_no_events() {
        let (events, mut events_to_session) = mpsc::channel(4);
        for _ in 0..10 {
            emit(&events, subscribe_event::Event::MirrorDropped(true));
        }
        let sent = tokio::spawn(async move { emit_loss(&events, "bob".to_owned()).await });
        // It waits until there is room.
        tokio::task::yield_now().await;
        let mut received = Vec::new();
        while let Some(event) = events_to_session.recv().await {
            received.extend(event.unwrap().event);
        }
        sent.await.unwrap();
        let lost = subscribe_event::Event::LostTo("bob".to_owned());
        assert_eq!(received.len(), 5);
        assert_eq!(received.last(), Some(&lost));
    }
}
