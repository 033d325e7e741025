//! The permits of unauthenticated connections.

use std::collections::HashMap;
use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use parking_lot::Mutex;
use thiserror::Error;
use tokio::sync::oneshot;
use tokio::time::timeout;

use crate::permits::{Limits, Permits};

/// The permits of a listener. Clones share them.
#[derive(Clone, Debug)]
pub struct Admission {
    state: Arc<Mutex<State>>,
    evicted: Arc<AtomicU64>,
}

#[derive(Debug)]
struct State {
    permits: Permits,
    /// From this state to the holders of permits: the permit is lost.
    evictions: HashMap<u64, oneshot::Sender<()>>,
}

/// What a connection holds until its peer is authenticated.
#[derive(Debug)]
pub struct Permit {
    admission: Admission,
    number: u64,
    peer: SocketAddr,
    eviction: oneshot::Receiver<()>,
    is_evicted: bool,
}

/// Why an unauthenticated connection is closed.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Error)]
pub enum Rejection {
    #[error("closed for another connection, because there are too many unauthenticated ones")]
    Evicted,
    #[error("the peer did not authenticate in time")]
    TimedOut,
}

impl Admission {
    pub fn new(limits: Limits) -> Self {
        Self {
            state: Arc::new(Mutex::new(State {
                permits: Permits::new(limits),
                evictions: HashMap::new(),
            })),
            evicted: Arc::default(),
        }
    }

    /// Grants a permit. The connection that loses its permit is closed by its [`Permit::run`].
    pub fn admit(&self, peer: SocketAddr) -> Permit {
        let (evict, eviction) = oneshot::channel();
        let mut state = self.state.lock();
        let (number, evicted) = state.permits.grant(peer.ip().to_canonical());
        state.evictions.insert(number, evict);
        if let Some(evicted) = evicted.and_then(|evicted| state.evictions.remove(&evicted)) {
            self.evicted.fetch_add(1, Ordering::Relaxed);
            // Without a receiver the connection has ended already.
            let _ = evicted.send(());
        }
        drop(state);
        Permit {
            admission: self.clone(),
            number,
            peer,
            eviction,
            is_evicted: false,
        }
    }

    /// The number of unauthenticated connections.
    pub fn unauthenticated(&self) -> usize {
        self.state.lock().permits.held()
    }

    /// The number of connections that have lost their permits.
    pub fn evicted(&self) -> u64 {
        self.evicted.load(Ordering::Relaxed)
    }
}

impl Permit {
    /// Runs a part of a connection, such as the handshake, until the permit is lost or the time is over. The future must own
    /// the connection, so that it is closed then.
    pub async fn run<T>(
        &mut self,
        limit: Duration,
        connection: impl Future<Output = T>,
    ) -> Result<T, Rejection> {
        if self.is_evicted {
            return Err(Rejection::Evicted);
        }
        tokio::select! {
            // A connection that is ready in the same moment has authenticated.
            biased;
            result = timeout(limit, connection) => result.map_err(|_| Rejection::TimedOut),
            // The sender is dropped only together with this permit.
            _ = &mut self.eviction => {
                self.is_evicted = true;
                Err(Rejection::Evicted)
            }
        }
    }
}

impl Drop for Permit {
    fn drop(&mut self) {
        let mut state = self.admission.state.lock();
        let source = self.peer.ip().to_canonical();
        state.permits.release(source, self.number);
        state.evictions.remove(&self.number);
    }
}

#[cfg(test)]
mod tests {
    use std::future::{pending, ready};

    use super::*;

    const TIMEOUT: Duration = Duration::from_secs(10);

    fn peer(last: u8) -> SocketAddr {
        ([10, 0, 0, last], 1000).into()
    }

    fn admission(total: usize) -> Admission {
        Admission::new(Limits {
            total,
            per_source: total,
        })
    }

    #[tokio::test(start_paused = true)]
    async fn an_idle_connection_ends_when_another_needs_its_permit_or_time_is_over() {
        let admission = admission(1);
        let mut first = admission.admit(peer(1));
        let mut second = admission.admit(peer(2));
        assert_eq!(
            first.run(TIMEOUT, pending::<()>()).await,
            Err(Rejection::Evicted)
        );
        assert_eq!(second.run(TIMEOUT, ready(5)).await, Ok(5));
        let late = second.run(TIMEOUT, pending::<()>()).await;
        assert_eq!(late, Err(Rejection::TimedOut));
        assert_eq!((admission.unauthenticated(), admission.evicted()), (1, 1));
        drop((first, second));
        assert_eq!((admission.unauthenticated(), admission.evicted()), (0, 1));
    }

    #[tokio::test]
    async fn an_ipv4_peer_is_the_same_source_on_a_listener_for_both_families() {
        let admission = Admission::new(Limits {
            total: 10,
            per_source: 1,
        });
        let mut first = admission.admit("[::ffff:10.0.0.1]:1".parse().unwrap());
        let _second = admission.admit(peer(1));
        let result = first.run(TIMEOUT, pending::<()>()).await;
        assert_eq!(result, Err(Rejection::Evicted));
    }

    /// Many idle connections of some sources never keep another source from its handshake.
    #[tokio::test]
    async fn an_authenticated_peer_is_not_affected_by_idle_connections() {
        let admission = admission(64);
        let idle: Vec<Permit> = (0..10_000)
            .map(|number| admission.admit(peer(u8::try_from(number % 50).unwrap())))
            .collect();
        let mut permit = admission.admit(peer(200));
        let more: Vec<Permit> = (0..10_000)
            .map(|number| admission.admit(peer(u8::try_from(number % 50).unwrap())))
            .collect();
        assert_eq!(permit.run(TIMEOUT, ready(())).await, Ok(()));
        drop((idle, more));
        assert_eq!(admission.unauthenticated(), 1);
    }
}
