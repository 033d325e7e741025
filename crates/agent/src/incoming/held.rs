//! What sessions have of the target's traffic, for whoever looks from outside: the agent knows it, whatever a client says.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use protocol::rpc::{HttpFilter, IncomingMode, IncomingTransport, SubscribeRequest};
use tokio::runtime::Handle;
use tokio::sync::watch;
use tokio::time::{Instant, sleep};

use super::shown;
pub use super::shown::Patterns;

/// A port is told for so long at least: who has it for a moment is seen, too.
const SHORTEST: Duration = Duration::from_secs(2);

/// A port whose traffic a session has.
#[derive(Debug, Clone, PartialEq)]
pub struct HeldPort {
    pub port: u16,
    pub is_udp: bool,
    /// Whether the session has copies, and the application the traffic.
    pub is_mirrored: bool,
    /// Which requests. None: everything on the port.
    pub filter: Option<HttpFilter>,
}

impl HeldPort {
    pub(super) fn of(request: &SubscribeRequest) -> Self {
        Self {
            // What is no port is refused before.
            port: u16::try_from(request.port).unwrap_or_default(),
            is_udp: request.transport() == IncomingTransport::Udp,
            is_mirrored: request.mode() == IncomingMode::Mirror,
            filter: request.filter.clone(),
        }
    }

    /// Which requests, in words for people. None: all of them.
    pub fn filter_in_words(&self, patterns: Patterns) -> Option<String> {
        let filter = self.filter.as_ref()?;
        Some(shown::in_words(filter, patterns))
    }
}

/// What is told of all ports, by a number of each.
pub type AllHeld = BTreeMap<u64, HeldPort>;

/// All that sessions have.
#[derive(Debug, Default)]
pub(crate) struct HeldPorts {
    last: AtomicU64,
    /// From subscriptions to whoever looks.
    all: watch::Sender<AllHeld>,
}

impl HeldPorts {
    pub(crate) fn subscribe(&self) -> watch::Receiver<AllHeld> {
        self.all.subscribe()
    }

    /// Tells of a port as long as the returned value is there.
    pub(super) fn hold(self: &Arc<Self>, port: HeldPort) -> Holding {
        let number = self.last.fetch_add(1, Ordering::Relaxed);
        self.all.send_modify(|all| {
            all.insert(number, port);
        });
        Holding {
            number,
            since: Instant::now(),
            ports: Arc::clone(self),
        }
    }

    fn remove(&self, number: u64) {
        self.all.send_modify(|all| {
            all.remove(&number);
        });
    }
}

#[derive(Debug)]
pub(super) struct Holding {
    number: u64,
    since: Instant,
    ports: Arc<HeldPorts>,
}

impl Drop for Holding {
    fn drop(&mut self) {
        let left = SHORTEST.saturating_sub(self.since.elapsed());
        let (number, ports) = (self.number, Arc::clone(&self.ports));
        match Handle::try_current() {
            Ok(runtime) if !left.is_zero() => {
                runtime.spawn(async move {
                    sleep(left).await;
                    ports.remove(number);
                });
            }
            _ => ports.remove(number),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn port(number: u32) -> HeldPort {
        HeldPort::of(&SubscribeRequest {
            port: number,
            ..SubscribeRequest::default()
        })
    }

    fn told(held: &watch::Receiver<AllHeld>) -> Vec<u16> {
        held.borrow().values().map(|port| port.port).collect()
    }

    #[tokio::test(start_paused = true)]
    async fn who_has_a_port_for_a_moment_is_seen() {
        let ports = Arc::new(HeldPorts::default());
        let mut held = ports.subscribe();
        let (short, long) = (ports.hold(port(1)), ports.hold(port(2)));
        drop(short);
        assert_eq!(told(&held), [1, 2]);
        held.mark_unchanged();
        held.changed().await.unwrap();
        assert_eq!(told(&held), [2]);
        tokio::time::advance(SHORTEST).await;
        drop(long);
        assert_eq!(told(&held), [0; 0]);
    }

    #[test]
    fn what_is_asked_for_is_told() {
        let mut request = SubscribeRequest {
            port: 53,
            ..SubscribeRequest::default()
        };
        request.set_transport(IncomingTransport::Udp);
        request.set_mode(IncomingMode::Mirror);
        let held = HeldPort::of(&request);
        assert_eq!((held.port, held.is_udp, held.is_mirrored), (53, true, true));
        assert_eq!(held.filter_in_words(Patterns::Shown), None);
    }
}
