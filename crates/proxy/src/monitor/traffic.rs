//! Follows connections, from the attempt to their end.

use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Instant;

use interceptor::Errno;
use monitor::{Event, Handling, Transport};
use parking_lot::Mutex;

use super::http::HttpObserver;
use super::http1::Exchange;
use super::{Hub, Peer, add, microseconds};

/// An outgoing connection that is being made. Dropping it records nothing.
#[derive(Debug)]
pub(crate) struct OutgoingAttempt(Option<Box<PendingOutgoing>>);

#[derive(Debug)]
struct PendingOutgoing {
    hub: Arc<Hub>,
    connection: u64,
    peer: Peer,
    dns_names: Vec<String>,
    since: Instant,
}

impl OutgoingAttempt {
    pub(super) fn off() -> Self {
        Self(None)
    }

    pub(super) fn new(hub: Arc<Hub>, peer: Peer, dns_names: Vec<String>) -> Self {
        let connection = hub.next_connection();
        Self(Some(Box::new(PendingOutgoing {
            hub,
            connection,
            peer,
            dns_names,
            since: Instant::now(),
        })))
    }

    pub(crate) fn failed(self, errno: Errno) {
        if let Some(pending) = self.0 {
            pending.record(Err(errno));
        }
    }

    /// The connection is established. The returned value must live as long as the connection.
    pub(crate) fn connected(self) -> Option<Traffic> {
        let pending = self.0?;
        let (hub, peer) = (Arc::clone(&pending.hub), pending.peer.clone());
        let connection = pending.connection;
        pending.record(Ok(()));
        Some(Traffic::new(hub, connection, Direction::Outgoing(peer)))
    }
}

impl PendingOutgoing {
    fn record(self, outcome: Result<(), Errno>) {
        let latency = self.since.elapsed();
        self.hub.record(|recorder, now| {
            recorder.outgoing_connection(
                now,
                self.connection,
                &self.peer,
                self.dns_names,
                outcome,
                latency,
            );
        });
    }
}

/// An incoming connection that is not delivered to the program yet.
#[derive(Debug)]
pub(crate) struct IncomingAttempt(Option<Box<PendingIncoming>>);

#[derive(Debug)]
struct PendingIncoming {
    hub: Arc<Hub>,
    connection: u64,
    incoming: Incoming,
    since: Instant,
}

#[derive(Debug, Clone)]
struct Incoming {
    port: u16,
    is_udp: bool,
    handling: Handling,
    client: SocketAddr,
    /// With several clusters, the one that received it.
    cluster: Option<String>,
}

impl IncomingAttempt {
    pub(super) fn off() -> Self {
        Self(None)
    }

    pub(super) fn new(
        hub: Arc<Hub>,
        port: u16,
        is_udp: bool,
        steals: bool,
        client: SocketAddr,
        cluster: Option<String>,
    ) -> Self {
        let connection = hub.next_connection();
        let handling = if steals {
            Handling::Stolen
        } else {
            Handling::Mirrored
        };
        Self(Some(Box::new(PendingIncoming {
            hub,
            connection,
            incoming: Incoming {
                port,
                is_udp,
                handling,
                client,
                cluster,
            },
            since: Instant::now(),
        })))
    }

    /// The program did not accept the connection.
    pub(crate) fn refused(self) {
        if let Some(pending) = self.0 {
            pending.record(false);
        }
    }

    pub(crate) fn accepted(self) -> Option<Traffic> {
        let pending = self.0?;
        pending.record(true);
        let direction = match pending.incoming.is_udp {
            true => Direction::Datagrams(pending.incoming.clone()),
            false => Direction::Incoming(pending.incoming.clone(), Box::default()),
        };
        Some(Traffic::new(pending.hub, pending.connection, direction))
    }
}

impl PendingIncoming {
    fn record(&self, accepted: bool) {
        let Incoming {
            port,
            is_udp,
            handling,
            client,
            ref cluster,
        } = self.incoming;
        let transport = if is_udp {
            Transport::Udp
        } else {
            Transport::Tcp
        };
        let event = Event::IncomingConnection {
            connection: self.connection,
            port,
            transport,
            client: client.to_string(),
            handling,
            accepted,
            latency_us: microseconds(self.since.elapsed()),
            cluster: cluster.clone(),
        };
        self.hub.record(|recorder, now| {
            recorder.incoming_connection(now, is_udp, port, accepted);
            recorder.emit(now, event);
        });
    }
}

/// Records the traffic of a connection. Dropping it records the end of the connection.
#[derive(Debug)]
pub(crate) struct Traffic {
    hub: Arc<Hub>,
    connection: u64,
    direction: Direction,
    since: Instant,
    from_application: AtomicU64,
    to_application: AtomicU64,
}

#[derive(Debug)]
enum Direction {
    Outgoing(Peer),
    Incoming(Incoming, Box<Mutex<HttpObserver>>),
    Datagrams(Incoming),
}

impl Traffic {
    fn new(hub: Arc<Hub>, connection: u64, direction: Direction) -> Self {
        Self {
            hub,
            connection,
            direction,
            since: Instant::now(),
            from_application: AtomicU64::new(0),
            to_application: AtomicU64::new(0),
        }
    }

    pub(crate) fn application_sent(&self, bytes: &[u8]) {
        add(&self.from_application, bytes.len());
        match &self.direction {
            Direction::Outgoing(_) => add(&self.hub.bytes.outgoing_sent, bytes.len()),
            Direction::Datagrams(_) => add(&self.hub.bytes.incoming_sent, bytes.len()),
            Direction::Incoming(incoming, observer) => {
                add(&self.hub.bytes.incoming_sent, bytes.len());
                let finished = observer.lock().response(bytes, Instant::now());
                for exchange in finished {
                    self.record_exchange(incoming, exchange);
                }
            }
        }
    }

    pub(crate) fn application_received(&self, bytes: &[u8]) {
        add(&self.to_application, bytes.len());
        match &self.direction {
            Direction::Outgoing(_) => add(&self.hub.bytes.outgoing_received, bytes.len()),
            Direction::Datagrams(_) => add(&self.hub.bytes.incoming_received, bytes.len()),
            Direction::Incoming(incoming, observer) => {
                add(&self.hub.bytes.incoming_received, bytes.len());
                let finished = observer.lock().request(bytes, Instant::now());
                for exchange in finished {
                    self.record_exchange(incoming, exchange);
                }
            }
        }
    }

    fn record_exchange(&self, incoming: &Incoming, exchange: Exchange) {
        let status = exchange.status;
        let latency = exchange.latency;
        let event = Event::IncomingRequest {
            connection: self.connection,
            port: incoming.port,
            method: exchange.method,
            path: exchange.path,
            protocol: exchange.protocol.into(),
            host: exchange.host,
            status,
            handling: incoming.handling,
            reason: None,
            client: incoming.client.to_string(),
            latency_us: microseconds(latency),
            received: exchange.received,
            sent: exchange.sent,
            cluster: incoming.cluster.clone(),
        };
        self.hub.record(|recorder, now| {
            recorder.request(now, incoming.port, incoming.handling, status, latency);
            recorder.emit(now, event);
        });
    }
}

impl Drop for Traffic {
    fn drop(&mut self) {
        let from = self.from_application.load(Ordering::Relaxed);
        let to = self.to_application.load(Ordering::Relaxed);
        let duration = self.since.elapsed();
        let incoming = match &self.direction {
            Direction::Outgoing(peer) => {
                return self.hub.record(|recorder, now| {
                    recorder.outgoing_closed(now, self.connection, peer, from, to, duration);
                });
            }
            Direction::Datagrams(incoming) => incoming,
            Direction::Incoming(incoming, observer) => {
                let finished = observer.lock().end(Instant::now());
                for exchange in finished {
                    self.record_exchange(incoming, exchange);
                }
                incoming
            }
        };
        let event = Event::IncomingClosed {
            connection: self.connection,
            port: incoming.port,
            received: to,
            sent: from,
            duration_us: microseconds(duration),
        };
        self.hub.record(|recorder, now| {
            recorder.incoming_closed();
            recorder.emit(now, event);
        });
    }
}
