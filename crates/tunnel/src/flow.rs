//! Windows of streams: how far each sender may be ahead of its reader.
//!
//! HTTP/2 has windows too, but all streams of a connection have the same size of them, and it has to be chosen in advance: a
//! size that a fast stream over a long path needs costs gigabytes when hundreds of readers stall. So HTTP/2's windows are
//! only a last defence here, and each stream has a [window](window) of its own that grows while its reader keeps up.
//!
//! The receiver of a body grants the sender how many bytes it may have sent in total. The grants of all streams travel in the
//! bodies of one exchange, `POST /.standin/flow`: those for response bodies in the request's body, those for request bodies
//! in the response's. A small exchange needs no grants at all, because every stream starts with the same window.
//!
//! The same messages measure the round-trip time.

mod grants;
mod round_trip;
mod window;

use std::collections::HashMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::task::{Context, Poll};
use std::time::{Duration, Instant};

use atomic_waker::AtomicWaker;
use bytes::BytesMut;
use http_body::Body;
use http_body_util::BodyExt as _;
use parking_lot::Mutex;

pub(crate) use self::grants::GrantBody;
use self::grants::{Decoder, Message, Outbox};
use self::round_trip::{Ping, RoundTrip};
use self::window::Window;
pub(crate) use self::window::{INITIAL as INITIAL_WINDOW, MAX as MAX_WINDOW};
use crate::greeting::RESERVED_PATH;

/// Streams that the tunnel needs for itself, besides those of its users.
pub(crate) const OWN_STREAMS: u32 = 16;
/// Says the number of a stream. It is only used between the two ends.
pub(crate) const STREAM_HEADER: &str = "standin-tunnel-stream";
/// The path of the exchange.
pub(crate) fn path() -> String {
    format!("{RESERVED_PATH}flow")
}

/// One end's state of all streams of a tunnel.
#[derive(Debug)]
pub(crate) struct Flow {
    /// The streams of which this end sends a body.
    sending: Mutex<HashMap<u64, Arc<Allowance>>>,
    outbox: Arc<Outbox>,
    /// The windows of all bodies that this end receives.
    reserved: AtomicU64,
    max_reserved: u64,
    round_trip: Mutex<RoundTrip>,
    start: Instant,
}

/// How much the sender of one body may send.
#[derive(Debug)]
struct Allowance {
    granted: AtomicU64,
    waker: AtomicWaker,
}

impl Flow {
    pub(crate) fn new(max_reserved: u64) -> Arc<Self> {
        Arc::new(Self {
            sending: Mutex::default(),
            outbox: Arc::default(),
            reserved: AtomicU64::new(0),
            max_reserved,
            round_trip: Mutex::default(),
            start: Instant::now(),
        })
    }

    /// The body with this end's messages, and the first of them. There is one per tunnel.
    pub(crate) fn messages(&self) -> GrantBody {
        self.ping(Instant::now(), Ping::Idle);
        GrantBody::new(Arc::clone(&self.outbox))
    }

    /// Ends the messages of this end, after those that wait. No stream may need any afterwards.
    pub(crate) fn end(&self) {
        self.outbox.end();
    }

    /// Handles the other end's messages until their body ends.
    pub(crate) async fn receive<B>(&self, mut body: B)
    where
        B: Body<Data = bytes::Bytes> + Unpin,
    {
        let mut decoder = Decoder::default();
        while let Some(Ok(frame)) = body.frame().await {
            let Ok(bytes) = frame.into_data() else {
                continue;
            };
            decoder.push(&bytes);
            while let Some(message) = decoder.next() {
                self.handle(message);
            }
        }
    }

    fn handle(&self, message: Message) {
        match message {
            Message::Grant { stream, granted } => {
                if let Some(allowance) = self.sending.lock().get(&stream) {
                    allowance.granted.fetch_max(granted, Ordering::AcqRel);
                    allowance.waker.wake();
                }
            }
            Message::Ping { stamp } => self.outbox.send(Message::Pong { stamp }),
            Message::Pong { stamp } => {
                let now = Instant::now();
                let sent = self.start + Duration::from_micros(stamp);
                let elapsed = now.saturating_duration_since(sent);
                self.round_trip.lock().measured(stamp, elapsed);
            }
            Message::Unknown => {}
        }
    }

    /// Sends a grant, and measures the round-trip time now and then.
    fn grant(&self, stream: u64, granted: u64, now: Instant) {
        self.outbox.send(Message::Grant { stream, granted });
        let ping = self.round_trip.lock().ping_due(now);
        if let Some(ping) = ping {
            self.ping(now, ping);
        }
    }

    fn ping(&self, now: Instant, ping: Ping) {
        let stamp = now.saturating_duration_since(self.start).as_micros() as u64;
        self.round_trip.lock().pinged(stamp, now, ping);
        self.outbox.send(Message::Ping { stamp });
    }

    /// The round-trip time of the path without queues, if it was measured.
    pub(crate) fn round_trip(&self) -> Option<Duration> {
        self.round_trip.lock().path()
    }

    /// The windows of all bodies that this end receives: how far all senders may be ahead of their readers.
    pub(crate) fn reserved(&self) -> u64 {
        self.reserved.load(Ordering::Relaxed)
    }

    /// Whether there is room for another stream.
    pub(crate) fn has_room(&self) -> bool {
        self.reserved() + INITIAL_WINDOW <= self.max_reserved
    }

    /// The number of bodies that this end sends.
    #[cfg(test)]
    pub(crate) fn sending(&self) -> usize {
        self.sending.lock().len()
    }
}

/// The window of a body that this end receives.
#[derive(Debug)]
pub(crate) struct Receiving {
    flow: Arc<Flow>,
    stream: u64,
    window: Window,
}

impl Receiving {
    pub(crate) fn new(flow: Arc<Flow>, stream: u64) -> Self {
        let window = Window::new();
        flow.reserved.fetch_add(window.size(), Ordering::Relaxed);
        Self {
            flow,
            stream,
            window,
        }
    }

    /// The reader has taken bytes.
    pub(crate) fn consume(&mut self, count: usize) {
        let now = Instant::now();
        let before = self.window.size();
        let free = self.flow.max_reserved.saturating_sub(self.flow.reserved());
        let path = self.flow.round_trip();
        let granted = self
            .window
            .consume(count as u64, now, path, before.saturating_add(free));
        let after = self.window.size();
        // Wraps when the window has become smaller, which subtracts.
        let change = after.wrapping_sub(before);
        self.flow.reserved.fetch_add(change, Ordering::Relaxed);
        if let Some(granted) = granted {
            self.flow.grant(self.stream, granted, now);
        }
    }
}

impl Drop for Receiving {
    fn drop(&mut self) {
        let size = self.window.size();
        self.flow.reserved.fetch_sub(size, Ordering::Relaxed);
    }
}

/// The window of a body that this end sends.
#[derive(Debug)]
pub(crate) struct Sending {
    flow: Arc<Flow>,
    stream: u64,
    allowance: Arc<Allowance>,
    sent: u64,
}

impl Sending {
    pub(crate) fn new(flow: Arc<Flow>, stream: u64) -> Self {
        let allowance = Arc::new(Allowance {
            granted: AtomicU64::new(INITIAL_WINDOW),
            waker: AtomicWaker::new(),
        });
        flow.sending.lock().insert(stream, Arc::clone(&allowance));
        Self {
            flow,
            stream,
            allowance,
            sent: 0,
        }
    }

    /// How many bytes may be sent now. Waits while it is none.
    pub(crate) fn poll_room(&self, context: &Context<'_>) -> Poll<usize> {
        let room = || self.allowance.granted.load(Ordering::Acquire) - self.sent;
        if room() == 0 {
            self.allowance.waker.register(context.waker());
        }
        match room() {
            0 => Poll::Pending,
            room => Poll::Ready(usize::try_from(room).unwrap_or(usize::MAX)),
        }
    }

    pub(crate) fn sent(&mut self, count: usize) {
        self.sent += count as u64;
    }
}

impl Drop for Sending {
    fn drop(&mut self) {
        self.flow.sending.lock().remove(&self.stream);
    }
}

/// Encodes messages, for the grants.
fn encode(messages: impl Iterator<Item = Message>) -> BytesMut {
    let mut bytes = BytesMut::new();
    messages.for_each(|message| message.put(&mut bytes));
    bytes
}
