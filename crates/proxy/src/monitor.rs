//! Monitoring of a session: counters for everything, and events for subscribers.
//!
//! A [`Monitor`] that is off does nothing. One that is on counts under a short lock and keeps the last events in a ring buffer,
//! from which each [`EventSubscription`] reads at its own pace. Subscribers never block the session; one that is too slow learns
//! how many events it has missed.
//!
//! | module | what it does |
//! |---|---|
//! | `recorder` | counters, rows and the ring buffer of events |
//! | `subscription` | reads the ring buffer |
//! | `session_events` | records the events that the user sees |
//! | `traffic` | follows connections |
//! | `http`, `http1`, `http2` | find HTTP requests and responses in the bytes of connections |
//! | `files` | records file operations |
//! | `simulation` | simulated traffic, to measure the cost of monitoring |

mod files;
mod http;
mod http1;
mod http2;
mod recorder;
mod session_events;
mod simulation;
mod subscription;
mod traffic;

use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use interceptor::{Destination, Errno, Intent, PathChoice, Transport};
use monitor::{Event, Health, Level, PortRow, Side, State};
use parking_lot::Mutex;
use tokio::sync::Notify;

pub(crate) use self::files::MonitoredFiles;
use self::recorder::{FileOperation, Recorder};
pub use self::subscription::{EventBatch, EventSubscription};
pub(crate) use self::traffic::{IncomingAttempt, OutgoingAttempt, Traffic};

/// Records what a session does. Clones share the same state.
#[derive(Debug, Clone, Default)]
pub struct Monitor(Option<Arc<Hub>>);

#[derive(Debug)]
pub(crate) struct Hub {
    recorder: Mutex<Recorder>,
    subscribers: AtomicUsize,
    /// Notified when there are new events.
    new_events: Notify,
    connections: AtomicU64,
    bytes: Bytes,
}

/// Byte counters, which are updated without the lock.
#[derive(Debug, Default)]
pub(crate) struct Bytes {
    files_read: AtomicU64,
    files_written: AtomicU64,
    outgoing_sent: AtomicU64,
    outgoing_received: AtomicU64,
    incoming_sent: AtomicU64,
    incoming_received: AtomicU64,
}

/// A DNS query and its outcome.
pub(crate) struct DnsOutcome<'a> {
    pub(crate) host: String,
    pub(crate) kind: u16,
    pub(crate) side: Side,
    pub(crate) code: u8,
    pub(crate) addresses: &'a mut dyn Iterator<Item = std::net::IpAddr>,
    pub(crate) cached: bool,
    pub(crate) latency: Duration,
}

impl Monitor {
    #[must_use]
    pub fn on() -> Self {
        Self(Some(Arc::new(Hub {
            recorder: Mutex::new(Recorder::default()),
            subscribers: AtomicUsize::new(0),
            new_events: Notify::new(),
            connections: AtomicU64::new(0),
            bytes: Bytes::default(),
        })))
    }

    #[must_use]
    pub fn off() -> Self {
        Self(None)
    }

    #[must_use]
    pub fn is_on(&self) -> bool {
        self.0.is_some()
    }

    /// A snapshot of everything recorded.
    #[must_use]
    pub fn state(&self) -> State {
        let Some(hub) = &self.0 else {
            return State::default();
        };
        let mut state = hub.recorder.lock().state();
        hub.bytes.add_to(&mut state.counters);
        state
    }

    #[must_use]
    pub fn counters(&self) -> monitor::Counters {
        let Some(hub) = &self.0 else {
            return monitor::Counters::default();
        };
        let mut counters = hub.recorder.lock().counters.clone();
        hub.bytes.add_to(&mut counters);
        counters
    }

    #[must_use]
    pub fn ports(&self) -> Vec<PortRow> {
        let hub = self.0.as_ref();
        hub.map_or_else(Vec::new, |hub| hub.recorder.lock().ports())
    }

    #[must_use]
    pub fn health(&self) -> Health {
        let hub = self.0.as_ref();
        hub.map_or_else(Health::default, |hub| hub.recorder.lock().health.clone())
    }

    /// Subscribes to the events after the one with this number, or from the oldest retained one.
    #[must_use]
    pub fn subscribe(&self, after: Option<u64>) -> Option<EventSubscription> {
        let hub = self.0.as_ref()?;
        Some(EventSubscription::new(Arc::clone(hub), after))
    }

    /// Records that a process of the session runs. Only the first report of a process is an event.
    pub fn process_started(&self, pid: u32, name: impl FnOnce() -> String) {
        if let Some(hub) = &self.0 {
            hub.record(|recorder, now| recorder.process_started(now, pid, name));
        }
    }

    /// Records that a process of the session ends.
    pub fn process_ended(&self, pid: u32) {
        if let Some(hub) = &self.0 {
            hub.record(|recorder, now| recorder.process_ended(now, pid));
        }
    }

    /// The processes that were reported and have not ended.
    #[must_use]
    pub fn processes(&self) -> Vec<u32> {
        let hub = self.0.as_ref();
        hub.map_or_else(Vec::new, |hub| hub.recorder.lock().processes())
    }

    /// Whether there are subscribers now.
    #[must_use]
    pub fn has_subscribers(&self) -> bool {
        let subscribers = self.0.as_ref().map(|hub| &hub.subscribers);
        subscribers.is_some_and(|subscribers| subscribers.load(Ordering::Relaxed) > 0)
    }

    /// Emits an event that the session itself does not know of.
    pub fn emit(&self, event: Event) {
        if let Some(hub) = &self.0 {
            hub.emit(event);
        }
    }

    pub fn notice(&self, level: Level, text: impl Into<String>) {
        let text = text.into();
        self.emit(Event::Notice { level, text });
    }

    /// Records the target's variables that the program has.
    pub(crate) fn environment(&self, variables: impl Iterator<Item = (String, String)>) {
        if let Some(hub) = &self.0 {
            let vars: Vec<(String, String)> = variables.collect();
            hub.record(|recorder, now| {
                recorder.env.clone_from(&vars);
                recorder.emit(now, Event::EnvVar { vars });
            });
        }
    }

    /// Records the decision about a path. Operations at the target are recorded when they are performed.
    pub(crate) fn path_decided(&self, path: &Path, intent: Intent, choice: &PathChoice) {
        let Some(hub) = &self.0 else { return };
        let (side, errno) = match choice {
            PathChoice::Remote(_) => return,
            PathChoice::Local | PathChoice::LocalAs(_) => (Side::Local, None),
            PathChoice::Refused(errno) => (Side::Refused, Some(*errno)),
        };
        let operation = match intent {
            Intent::Stat => files::Operation::Lookup,
            Intent::Read => files::Operation::Read,
            Intent::Write | Intent::ReadAndWrite => files::Operation::Write,
        };
        let performed = FileOperation {
            path,
            operation,
            side,
            errno,
            latency: None,
        };
        hub.record(|recorder, now| recorder.file(now, &performed));
    }

    /// Records an operation on a file of the target.
    fn file(&self, path: &Path, operation: files::Operation, errno: Option<Errno>, since: Instant) {
        if let Some(hub) = &self.0 {
            let performed = FileOperation {
                path,
                operation,
                side: Side::Remote,
                errno,
                latency: Some(since.elapsed()),
            };
            hub.record(|recorder, now| recorder.file(now, &performed));
        }
    }

    /// Records bytes of a file that were read when it was opened.
    pub(crate) fn file_prefetched(&self, path: &Path, bytes: usize) {
        if let Some(hub) = &self.0 {
            add(&hub.bytes.files_read, bytes);
            hub.record(|recorder, _| recorder.file_prefetched(path, bytes));
        }
    }

    pub(crate) fn file_read(&self, bytes: usize) {
        if let Some(hub) = &self.0 {
            add(&hub.bytes.files_read, bytes);
        }
    }

    pub(crate) fn file_written(&self, bytes: u64) {
        if let Some(hub) = &self.0 {
            hub.bytes.files_written.fetch_add(bytes, Ordering::Relaxed);
        }
    }

    pub(crate) fn dns_query(&self, outcome: DnsOutcome<'_>) {
        if let Some(hub) = &self.0 {
            hub.record(|recorder, now| recorder.dns_query(now, outcome));
        }
    }

    /// A connection through the target is requested.
    pub(crate) fn attempt(
        &self,
        transport: Transport,
        destination: &Destination,
        dns_names: impl FnOnce() -> Vec<String>,
    ) -> OutgoingAttempt {
        let Some(hub) = &self.0 else {
            return OutgoingAttempt::off();
        };
        let peer = Peer::new(transport, destination);
        OutgoingAttempt::new(Arc::clone(hub), peer, dns_names())
    }

    /// An incoming connection was received on a port of the target.
    pub(crate) fn incoming(
        &self,
        port: u16,
        is_udp: bool,
        steals: bool,
        client: SocketAddr,
        cluster: Option<String>,
    ) -> IncomingAttempt {
        match &self.0 {
            None => IncomingAttempt::off(),
            Some(hub) => {
                IncomingAttempt::new(Arc::clone(hub), port, is_udp, steals, client, cluster)
            }
        }
    }
}

/// The peer of an outgoing connection.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub(crate) enum Peer {
    Tcp(SocketAddr),
    Udp(SocketAddr),
    Unix(PathBuf),
}

impl Peer {
    fn new(transport: Transport, destination: &Destination) -> Self {
        match destination {
            Destination::Internet(address) if transport == Transport::Udp => Peer::Udp(*address),
            Destination::Internet(address) => Peer::Tcp(*address),
            Destination::Unix(path) => Peer::Unix(path.clone()),
        }
    }

    fn address(&self) -> String {
        match self {
            Peer::Tcp(address) | Peer::Udp(address) => address.ip().to_string(),
            Peer::Unix(path) => path.display().to_string(),
        }
    }

    fn port(&self) -> u16 {
        match self {
            Peer::Tcp(address) | Peer::Udp(address) => address.port(),
            Peer::Unix(_) => 0,
        }
    }

    fn transport(&self) -> monitor::Transport {
        match self {
            Peer::Tcp(_) => monitor::Transport::Tcp,
            Peer::Udp(_) => monitor::Transport::Udp,
            Peer::Unix(_) => monitor::Transport::Unix,
        }
    }
}

impl Hub {
    /// Updates the recorder, and wakes subscribers if an event was added.
    fn record<T>(&self, write: impl FnOnce(&mut Recorder, u64) -> T) -> T {
        let now = milliseconds();
        let mut recorder = self.recorder.lock();
        let before = recorder.counters.events;
        let result = write(&mut recorder, now);
        let has_new_event = recorder.counters.events != before;
        drop(recorder);
        if has_new_event && self.subscribers.load(Ordering::Relaxed) > 0 {
            self.new_events.notify_waiters();
        }
        result
    }

    fn emit(&self, event: Event) {
        self.record(|recorder, now| recorder.emit(now, event));
    }

    fn next_connection(&self) -> u64 {
        self.connections.fetch_add(1, Ordering::Relaxed) + 1
    }
}

impl Bytes {
    fn add_to(&self, counters: &mut monitor::Counters) {
        let get = |value: &AtomicU64| value.load(Ordering::Relaxed);
        counters.files.read_bytes = get(&self.files_read);
        counters.files.written_bytes = get(&self.files_written);
        counters.outgoing.sent_bytes = get(&self.outgoing_sent);
        counters.outgoing.received_bytes = get(&self.outgoing_received);
        counters.incoming.sent_bytes = get(&self.incoming_sent);
        counters.incoming.received_bytes = get(&self.incoming_received);
    }
}

fn add(sum: &AtomicU64, bytes: usize) {
    sum.fetch_add(bytes as u64, Ordering::Relaxed);
}

fn microseconds(duration: Duration) -> u64 {
    u64::try_from(duration.as_micros()).unwrap_or(u64::MAX)
}

/// The current time in milliseconds since 1970.
fn milliseconds() -> u64 {
    let since = SystemTime::now().duration_since(UNIX_EPOCH);
    since.map_or(0, |since| {
        u64::try_from(since.as_millis()).unwrap_or(u64::MAX)
    })
}

#[cfg(test)]
mod tests;
