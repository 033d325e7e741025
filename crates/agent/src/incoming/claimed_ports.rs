//! The ports that sessions have claimed, for status reports. The agent reports them, because reports of a client could be
//! wrong.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use protocol::rpc::{HttpFilter, IncomingMode, IncomingTransport, SubscribeRequest};
use tokio::runtime::Handle;
use tokio::sync::watch;
use tokio::time::{Instant, sleep};

use super::filter_description;
pub use super::filter_description::PatternVisibility;

/// The minimum time for which a claim is reported, so that very short claims are visible, too.
const MIN_VISIBLE: Duration = Duration::from_secs(2);

/// A port whose traffic a session has claimed.
#[derive(Debug, Clone, PartialEq)]
pub struct ClaimedPort {
    pub port: u16,
    pub is_udp: bool,
    /// Whether the session gets a copy of the traffic, and the application still serves it.
    pub is_mirrored: bool,
    /// Which requests match. None: all traffic of the port.
    pub filter: Option<HttpFilter>,
}

impl ClaimedPort {
    pub(super) fn from_request(request: &SubscribeRequest) -> Self {
        Self {
            // The request was validated before.
            port: u16::try_from(request.port).unwrap_or_default(),
            is_udp: request.transport() == IncomingTransport::Udp,
            is_mirrored: request.mode() == IncomingMode::Mirror,
            filter: request.filter.clone(),
        }
    }

    /// A description of the filter for people. None: all traffic matches.
    pub fn describe_filter(&self, patterns: PatternVisibility) -> Option<String> {
        let filter = self.filter.as_ref()?;
        Some(filter_description::describe(filter, patterns))
    }
}

/// All claimed ports, each with an ID.
pub type AllClaims = BTreeMap<u64, ClaimedPort>;

/// The registry of claimed ports.
#[derive(Debug, Default)]
pub(crate) struct ClaimedPorts {
    next_id: AtomicU64,
    /// Written by subscriptions, watched by status reporters.
    all: watch::Sender<AllClaims>,
}

impl ClaimedPorts {
    pub(crate) fn subscribe(&self) -> watch::Receiver<AllClaims> {
        self.all.subscribe()
    }

    /// Reports a port as claimed until the returned guard is dropped.
    pub(super) fn register(self: &Arc<Self>, port: ClaimedPort) -> ClaimedPortGuard {
        let id = self.next_id.fetch_add(1, Ordering::Relaxed);
        self.all.send_modify(|all| {
            all.insert(id, port);
        });
        ClaimedPortGuard {
            id,
            since: Instant::now(),
            ports: Arc::clone(self),
        }
    }

    fn remove(&self, id: u64) {
        self.all.send_modify(|all| {
            all.remove(&id);
        });
    }
}

#[derive(Debug)]
pub(super) struct ClaimedPortGuard {
    id: u64,
    since: Instant,
    ports: Arc<ClaimedPorts>,
}

impl Drop for ClaimedPortGuard {
    fn drop(&mut self) {
        let left = MIN_VISIBLE.saturating_sub(self.since.elapsed());
        let (id, ports) = (self.id, Arc::clone(&self.ports));
        match Handle::try_current() {
            Ok(runtime) if !left.is_zero() => {
                runtime.spawn(async move {
                    sleep(left).await;
                    ports.remove(id);
                });
            }
            _ => ports.remove(id),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn port(number: u32) -> ClaimedPort {
        ClaimedPort::from_request(&SubscribeRequest {
            port: number,
            ..SubscribeRequest::default()
        })
    }

    fn port_numbers(claims: &watch::Receiver<AllClaims>) -> Vec<u16> {
        claims.borrow().values().map(|port| port.port).collect()
    }

    #[tokio::test(start_paused = true)]
    async fn a_very_short_claim_is_visible() {
        let ports = Arc::new(ClaimedPorts::default());
        let mut claims = ports.subscribe();
        let (short, long) = (ports.register(port(1)), ports.register(port(2)));
        drop(short);
        assert_eq!(port_numbers(&claims), [1, 2]);
        claims.mark_unchanged();
        claims.changed().await.unwrap();
        assert_eq!(port_numbers(&claims), [2]);
        tokio::time::advance(MIN_VISIBLE).await;
        drop(long);
        assert_eq!(port_numbers(&claims), [0; 0]);
    }

    #[test]
    fn a_claim_describes_its_request() {
        let mut request = SubscribeRequest {
            port: 53,
            ..SubscribeRequest::default()
        };
        request.set_transport(IncomingTransport::Udp);
        request.set_mode(IncomingMode::Mirror);
        let claim = ClaimedPort::from_request(&request);
        assert_eq!(
            (claim.port, claim.is_udp, claim.is_mirrored),
            (53, true, true)
        );
        assert_eq!(claim.describe_filter(PatternVisibility::Shown), None);
    }
}
