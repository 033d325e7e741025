//! Connections, from the wish to their end.

use std::net::SocketAddr;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Instant;

use interceptor::Errno;
use monitor::{Event, Handling, Transport};

use super::http1::Exchange;
use super::requests::Observer;
use super::{Hub, Peer, add, microseconds};

/// A connection through the target that is asked for. To drop it is to forget it.
#[derive(Debug)]
pub(crate) struct Attempt(Option<Box<Asked>>);

#[derive(Debug)]
struct Asked {
    hub: Arc<Hub>,
    connection: u64,
    peer: Peer,
    names: Vec<String>,
    since: Instant,
}

impl Attempt {
    pub(super) fn off() -> Self {
        Self(None)
    }

    pub(super) fn new(hub: Arc<Hub>, peer: Peer, names: Vec<String>) -> Self {
        let connection = hub.next_connection();
        Self(Some(Box::new(Asked {
            hub,
            connection,
            peer,
            names,
            since: Instant::now(),
        })))
    }

    pub(crate) fn failed(self, errno: Errno) {
        if let Some(asked) = self.0 {
            asked.tell(Err(errno));
        }
    }

    /// The connection is there. What comes back is kept as long as it is.
    pub(crate) fn connected(self) -> Option<Traffic> {
        let asked = self.0?;
        let (hub, peer, connection) =
            (Arc::clone(&asked.hub), asked.peer.clone(), asked.connection);
        asked.tell(Ok(()));
        Some(Traffic::new(hub, connection, Direction::Outgoing(peer)))
    }
}

impl Asked {
    fn tell(self, outcome: Result<(), Errno>) {
        let latency = self.since.elapsed();
        self.hub.record(|recorder, now| {
            recorder.connected(
                now,
                self.connection,
                &self.peer,
                self.names,
                outcome,
                latency,
            );
        });
    }
}

/// A connection to a port of the target, which the program does not have yet.
#[derive(Debug)]
pub(crate) struct Arriving(Option<Box<Arrived>>);

#[derive(Debug)]
struct Arrived {
    hub: Arc<Hub>,
    connection: u64,
    side: Incoming,
    since: Instant,
}

#[derive(Debug, Clone)]
struct Incoming {
    port: u16,
    is_udp: bool,
    handling: Handling,
    client: SocketAddr,
    /// With several clusters, the one in which it came.
    cluster: Option<String>,
}

impl Arriving {
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
        Self(Some(Box::new(Arrived {
            hub,
            connection,
            side: Incoming {
                port,
                is_udp,
                handling,
                client,
                cluster,
            },
            since: Instant::now(),
        })))
    }

    /// The program did not take it.
    pub(crate) fn refused(self) {
        if let Some(arrived) = self.0 {
            arrived.tell(false);
        }
    }

    pub(crate) fn accepted(self) -> Option<Traffic> {
        let arrived = self.0?;
        arrived.tell(true);
        let direction = match arrived.side.is_udp {
            true => Direction::Datagrams(arrived.side.clone()),
            false => Direction::Incoming(arrived.side.clone(), Box::default()),
        };
        Some(Traffic::new(arrived.hub, arrived.connection, direction))
    }
}

impl Arrived {
    fn tell(&self, accepted: bool) {
        let Incoming {
            port,
            is_udp,
            handling,
            client,
            ref cluster,
        } = self.side;
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
            recorder.arrived(now, is_udp, port, accepted);
            recorder.emit(now, event);
        });
    }
}

/// What flows through a connection. Its end is the connection's.
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
    Incoming(Incoming, Box<Mutex<Observer>>),
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
                let mut observer = observer.lock().unwrap_or_else(PoisonError::into_inner);
                let finished = observer.response(bytes, Instant::now());
                drop(observer);
                for exchange in finished {
                    self.tell(incoming, exchange);
                }
            }
        }
    }

    pub(crate) fn application_gets(&self, bytes: &[u8]) {
        add(&self.to_application, bytes.len());
        match &self.direction {
            Direction::Outgoing(_) => add(&self.hub.bytes.outgoing_received, bytes.len()),
            Direction::Datagrams(_) => add(&self.hub.bytes.incoming_received, bytes.len()),
            Direction::Incoming(incoming, observer) => {
                add(&self.hub.bytes.incoming_received, bytes.len());
                let mut observer = observer.lock().unwrap_or_else(PoisonError::into_inner);
                let finished = observer.request(bytes, Instant::now());
                drop(observer);
                for exchange in finished {
                    self.tell(incoming, exchange);
                }
            }
        }
    }

    fn tell(&self, incoming: &Incoming, exchange: Exchange) {
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
                    recorder.disconnected(now, self.connection, peer, from, to, duration);
                });
            }
            Direction::Datagrams(incoming) => incoming,
            Direction::Incoming(incoming, observer) => {
                let mut observer = observer.lock().unwrap_or_else(PoisonError::into_inner);
                let finished = observer.end(Instant::now());
                drop(observer);
                for exchange in finished {
                    self.tell(incoming, exchange);
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
            recorder.left();
            recorder.emit(now, event);
        });
    }
}
