//! The subscriptions of a client, by number, and where each of them gets its connections from.

use std::collections::HashMap;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use http::Response;
use hyper::body::Incoming;
use tokio::sync::watch;
use tonic::body::Body;

use super::lent::Lender;
use super::peers::Peer;
use super::queue::Queue;
use super::reachable::Reachable;
use crate::{Error, Result};

/// The subscriptions of one client.
#[derive(Debug, Default)]
pub(crate) struct Subscriptions {
    last: AtomicU64,
    open: Mutex<HashMap<u64, Arc<Subscription>>>,
}

impl Subscriptions {
    pub(super) fn find(&self, number: u64) -> Option<Arc<Subscription>> {
        self.open().get(&number).cloned()
    }

    pub(super) fn add(&self, place: Place, reachable: Reachable) -> Arc<Subscription> {
        let number = self.last.fetch_add(1, Ordering::Relaxed) + 1;
        let subscription = Arc::new(Subscription {
            number,
            place: watch::Sender::new(place),
            reachable,
        });
        self.open().insert(number, Arc::clone(&subscription));
        subscription
    }

    pub(super) fn remove(&self, subscription: &Subscription) {
        self.open().remove(&subscription.number);
        subscription.set_place(Place::Ended);
    }

    fn open(&self) -> MutexGuard<'_, HashMap<u64, Arc<Subscription>>> {
        self.open.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// A session that wants a port's traffic.
#[derive(Debug)]
pub(super) struct Subscription {
    pub(super) number: u64,
    place: watch::Sender<Place>,
    reachable: Reachable,
}

/// Where connections come from.
#[derive(Debug, Clone)]
pub(super) enum Place {
    /// This agent redirects the port. Left at the end.
    Here(Arc<Queue>),
    /// Another agent of the network does. Left when it is gone.
    There(Peer),
    /// Whoever redirected it is gone, and somebody else is about to. Left when he does.
    Nowhere,
    /// For good.
    Ended,
}

impl Subscription {
    pub(super) fn set_place(&self, place: Place) {
        self.place.send_replace(place);
    }

    /// Waits until there is a connection, and answers with it.
    pub(super) async fn wait(&self, from_session: Incoming) -> Result<Response<Body>> {
        let from_session = Lender::new(from_session);
        let mut places = self.place.subscribe();
        loop {
            let place = places.borrow_and_update().clone();
            match place {
                Place::Here(queue) => return queue.wait(from_session.take()?).await,
                Place::There(peer) => {
                    if let Some(response) = self.wait_at(&peer, &from_session).await {
                        return Ok(response);
                    }
                }
                Place::Nowhere => {}
                Place::Ended => return Err(Error::SubscriptionEnded),
            }
            let changed = places.changed().await;
            changed.map_err(|_| Error::SubscriptionEnded)?;
        }
    }

    /// Waits for a connection at another agent, while the session can be reached. None: the other agent is gone. Nothing of
    /// the body has been read then, so it can be given to the next.
    async fn wait_at(&self, peer: &Peer, from_session: &Lender) -> Option<Response<Body>> {
        loop {
            self.reachable.clone().found().await;
            let response = tokio::select! {
                biased;
                () = self.reachable.clone().lost() => continue,
                response = peer.accept(from_session.lend(&self.reachable)) => response,
            };
            if self.reachable.is_so() {
                return response.ok();
            }
        }
    }
}
