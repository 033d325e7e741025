//! What a session does, for whoever looks: counted always, and told event by event to those who listen.
//!
//! A [`Monitor`] that is off does nothing at all. One that is on counts under a lock that is held for a moment, and keeps
//! the last events in a ring, from which each [`Subscription`] reads at its own pace: nobody is waited for, and who is
//! too slow is told how many events it has missed.

mod files;
mod http1;
mod http2;
mod recorder;
mod rehearsal;
mod requests;
mod subscription;
mod told;
mod traffic;

use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use interceptor::{Destination, Errno, Intent, PathChoice, Transport};
use monitor::{Event, Health, Level, PortRow, Side, State};
use tokio::sync::Notify;

pub(crate) use self::files::WatchedFiles;
use self::recorder::Recorder;
pub use self::subscription::{Batch, Subscription};
pub(crate) use self::traffic::{Arriving, Attempt, Traffic};

/// Clones are the same.
#[derive(Debug, Clone, Default)]
pub struct Monitor(Option<Arc<Hub>>);

#[derive(Debug)]
pub(crate) struct Hub {
    recorder: Mutex<Recorder>,
    /// Somebody waits for events.
    subscribers: AtomicUsize,
    news: Notify,
    connections: AtomicU64,
    bytes: Bytes,
}

/// What flows is added without the lock.
#[derive(Debug, Default)]
pub(crate) struct Bytes {
    files_read: AtomicU64,
    files_written: AtomicU64,
    outgoing_sent: AtomicU64,
    outgoing_received: AtomicU64,
    incoming_sent: AtomicU64,
    incoming_received: AtomicU64,
}

/// A question for a name, and what came of it.
pub(crate) struct Answered<'a> {
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
            news: Notify::new(),
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

    /// Everything that is known now.
    #[must_use]
    pub fn state(&self) -> State {
        let Some(hub) = &self.0 else {
            return State::default();
        };
        let mut state = hub.lock().state();
        hub.bytes.add_to(&mut state.counters);
        state
    }

    #[must_use]
    pub fn counters(&self) -> monitor::Counters {
        let Some(hub) = &self.0 else {
            return monitor::Counters::default();
        };
        let mut counters = hub.lock().counters.clone();
        hub.bytes.add_to(&mut counters);
        counters
    }

    #[must_use]
    pub fn ports(&self) -> Vec<PortRow> {
        let hub = self.0.as_ref();
        hub.map_or_else(Vec::new, |hub| hub.lock().ports())
    }

    #[must_use]
    pub fn health(&self) -> Health {
        let hub = self.0.as_ref();
        hub.map_or_else(Health::default, |hub| hub.lock().health.clone())
    }

    /// Events after the one with this number, or from the oldest that is kept.
    #[must_use]
    pub fn subscribe(&self, after: Option<u64>) -> Option<Subscription> {
        let hub = self.0.as_ref()?;
        Some(Subscription::new(Arc::clone(hub), after))
    }

    /// Whether somebody gets events at the moment.
    #[must_use]
    pub fn is_listened_to(&self) -> bool {
        let subscribers = self.0.as_ref().map(|hub| &hub.subscribers);
        subscribers.is_some_and(|subscribers| subscribers.load(Ordering::Relaxed) > 0)
    }

    /// Tells something that is not known to the session itself.
    pub fn emit(&self, event: Event) {
        if let Some(hub) = &self.0 {
            hub.emit(event);
        }
    }

    pub fn notice(&self, level: Level, text: impl Into<String>) {
        let text = text.into();
        self.emit(Event::Notice { level, text });
    }

    /// The target's variables that the program has.
    pub(crate) fn environment(&self, variables: impl Iterator<Item = (String, String)>) {
        if let Some(hub) = &self.0 {
            let vars: Vec<(String, String)> = variables.collect();
            hub.record(|recorder, now| {
                recorder.env.clone_from(&vars);
                recorder.emit(now, Event::EnvVar { vars });
            });
        }
    }

    /// A path was judged. What is the target's is told when it is done there.
    pub(crate) fn judged(&self, path: &Path, intent: Intent, choice: &PathChoice) {
        let Some(hub) = &self.0 else { return };
        let (side, errno) = match choice {
            PathChoice::Remote(_) => return,
            PathChoice::Local | PathChoice::LocalAs(_) => (Side::Local, None),
            PathChoice::Refused(errno) => (Side::Refused, Some(*errno)),
        };
        let operation = match intent {
            Intent::Look => files::Operation::Look,
            Intent::Read => files::Operation::Read,
            Intent::Write | Intent::ReadAndWrite => files::Operation::Write,
        };
        hub.record(|recorder, now| recorder.file(now, path, operation, side, errno, None));
    }

    /// Something was done with a file of the target.
    fn file(&self, path: &Path, operation: files::Operation, errno: Option<Errno>, since: Instant) {
        if let Some(hub) = &self.0 {
            let latency = Some(since.elapsed());
            hub.record(|recorder, now| {
                recorder.file(now, path, operation, Side::Remote, errno, latency);
            });
        }
    }

    /// So much of a file came with its opening.
    pub(crate) fn file_came(&self, path: &Path, bytes: usize) {
        if let Some(hub) = &self.0 {
            add(&hub.bytes.files_read, bytes);
            hub.record(|recorder, _| recorder.file_came(path, bytes));
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

    pub(crate) fn answered(&self, answered: Answered<'_>) {
        if let Some(hub) = &self.0 {
            hub.record(|recorder, now| recorder.name(now, answered));
        }
    }

    /// A connection through the target is asked for.
    pub(crate) fn attempt(
        &self,
        transport: Transport,
        destination: &Destination,
        names: impl FnOnce() -> Vec<String>,
    ) -> Attempt {
        let Some(hub) = &self.0 else {
            return Attempt::off();
        };
        let peer = Peer::new(transport, destination);
        Attempt::new(Arc::clone(hub), peer, names())
    }

    /// A connection to a port of the target has come.
    pub(crate) fn arriving(
        &self,
        port: u16,
        is_udp: bool,
        steals: bool,
        client: SocketAddr,
        cluster: Option<String>,
    ) -> Arriving {
        match &self.0 {
            None => Arriving::off(),
            Some(hub) => Arriving::new(Arc::clone(hub), port, is_udp, steals, client, cluster),
        }
    }
}

/// Where connections of a session go.
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
    fn lock(&self) -> MutexGuard<'_, Recorder> {
        self.recorder.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Writes something down, and wakes those who wait if there is an event more.
    fn record<T>(&self, write: impl FnOnce(&mut Recorder, u64) -> T) -> T {
        let now = milliseconds();
        let mut recorder = self.lock();
        let before = recorder.counters.events;
        let result = write(&mut recorder, now);
        let is_more = recorder.counters.events != before;
        drop(recorder);
        if is_more && self.subscribers.load(Ordering::Relaxed) > 0 {
            self.news.notify_waiters();
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

/// Since 1970.
fn milliseconds() -> u64 {
    let since = SystemTime::now().duration_since(UNIX_EPOCH);
    since.map_or(0, |since| {
        u64::try_from(since.as_millis()).unwrap_or(u64::MAX)
    })
}

#[cfg(test)]
mod tests;
