//! The subscriptions of a client, and the source of connections of each.

use std::collections::HashMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use http::Response;
use parking_lot::Mutex;
use tokio::sync::watch;
use tonic::body::Body;

use super::accept_pool::AcceptPool;
use super::peers::Peer;
use super::reachability::ReachabilityWatch;
use super::reclaimable::ReclaimableBody;
use crate::connection::RequestBody;
use crate::{Error, Result};

/// The subscriptions of one client.
#[derive(Debug, Default)]
pub(crate) struct Subscriptions {
    last_id: AtomicU64,
    open: Mutex<HashMap<u64, Arc<Subscription>>>,
}

impl Subscriptions {
    pub(super) fn find(&self, id: u64) -> Option<Arc<Subscription>> {
        self.open.lock().get(&id).cloned()
    }

    pub(super) fn add(
        &self,
        source: ConnectionSource,
        reachability: ReachabilityWatch,
    ) -> Arc<Subscription> {
        let id = self.last_id.fetch_add(1, Ordering::Relaxed) + 1;
        let subscription = Arc::new(Subscription {
            id,
            source: watch::Sender::new(source),
            phase: watch::Sender::new(Phase::Active),
            reachability,
        });
        self.open.lock().insert(id, Arc::clone(&subscription));
        subscription
    }

    pub(super) fn remove(&self, subscription: &Subscription) {
        self.open.lock().remove(&subscription.id);
        subscription.set_source(ConnectionSource::Ended);
        subscription.set_released();
    }
}

/// A subscription to the traffic of one port.
#[derive(Debug)]
pub(super) struct Subscription {
    pub(super) id: u64,
    source: watch::Sender<ConnectionSource>,
    phase: watch::Sender<Phase>,
    reachability: ReachabilityWatch,
}

/// The end of a subscription, step by step.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
enum Phase {
    Active,
    /// The session has unsubscribed.
    Ending,
    /// The redirection accepts no more connections for it.
    Released,
}

/// The agent that redirects the port, which is the source of a subscription's connections.
#[derive(Debug, Clone)]
pub(super) enum ConnectionSource {
    /// This agent redirects the port. Only the end of the subscription changes this.
    Local(Arc<AcceptPool>),
    /// Another agent of the network redirects the port, until it ends.
    Peer(Peer),
    /// The agent that redirected the port has ended, and another one has not taken over yet.
    Pending,
    /// The subscription has ended.
    Ended,
}

impl Subscription {
    pub(super) fn set_source(&self, source: ConnectionSource) {
        self.source.send_replace(source);
    }

    /// Ends the subscription, and waits until the redirection accepts no more connections for it.
    pub(super) async fn end(&self) {
        self.advance(Phase::Ending);
        self.reached(Phase::Released).await;
    }

    /// Waits until the session unsubscribes by [`Subscription::end`].
    pub(super) async fn unsubscribed(&self) {
        self.reached(Phase::Ending).await;
    }

    /// The redirection accepts no more connections for it.
    pub(super) fn set_released(&self) {
        self.advance(Phase::Released);
    }

    fn advance(&self, to: Phase) {
        self.phase.send_if_modified(|phase| {
            let is_later = *phase < to;
            if is_later {
                *phase = to;
            }
            is_later
        });
    }

    async fn reached(&self, expected: Phase) {
        let mut phases = self.phase.subscribe();
        // The sender lives as long as `self`, so this cannot fail.
        let _ = phases.wait_for(|phase| *phase >= expected).await;
    }

    /// Waits for a connection, and returns it as the response.
    pub(super) async fn next_connection(
        &self,
        from_session: RequestBody,
    ) -> Result<Response<Body>> {
        let from_session = ReclaimableBody::new(from_session);
        let mut sources = self.source.subscribe();
        loop {
            let source = sources.borrow_and_update().clone();
            match source {
                ConnectionSource::Local(pool) => {
                    return pool.next_connection(from_session.reclaim()?).await;
                }
                ConnectionSource::Peer(peer) => {
                    if let Some(response) = self.next_from_peer(&peer, &from_session).await {
                        return Ok(response);
                    }
                }
                ConnectionSource::Pending => {}
                ConnectionSource::Ended => return Err(Error::SubscriptionEnded),
            }
            let changed = sources.changed().await;
            changed.map_err(|_| Error::SubscriptionEnded)?;
        }
    }

    /// Waits for a connection at another agent, while the session is connected. None: the other agent has ended. None of the
    /// body has been read then, so that it can be sent to the next agent.
    async fn next_from_peer(
        &self,
        peer: &Peer,
        from_session: &ReclaimableBody,
    ) -> Option<Response<Body>> {
        loop {
            self.reachability.clone().connected().await;
            let response = tokio::select! {
                biased;
                () = self.reachability.clone().disconnected() => continue,
                response = peer.accept(from_session.borrow(&self.reachability)) => response,
            };
            if self.reachability.is_reachable() {
                return response.ok();
            }
        }
    }
}
