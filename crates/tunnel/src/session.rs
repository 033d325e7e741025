//! The hub's side of one tunnel: sends requests to its agent.

use std::fmt;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Instant;

use http::{HeaderValue, Request, Response};
use http_body_util::BodyExt as _;
use link::http2::{BoxBody, Client};
use link::{Abort, Aborter, Link, LinkError, LinkId, Meter, Status};
use parking_lot::Mutex;
use tokio::sync::watch;

use crate::body::{Body, Explain, WindowedBody};
use crate::error::{EndReason, Error};
use crate::flow::{self, Flow, Receiving, STREAM_HEADER, Sending};
use crate::limits::{Limit, Limiter, Limits};
use crate::settings::windows;

/// The code of an abort that has a text for people.
const CLOSED: u16 = 1;

/// A tunnel to one agent, also while it is interrupted. Clones share it, and it is closed with the last clone.
#[derive(Clone)]
pub struct Session(Arc<Owner>);

/// Closes the tunnel when the last session is dropped. Streams do not keep it open.
struct Owner {
    shared: Arc<Shared>,
    client: Client,
}

struct Shared {
    id: LinkId,
    peer: String,
    version: u16,
    meter: Meter,
    aborter: Aborter,
    flow: Arc<Flow>,
    limiter: Arc<Mutex<Limiter>>,
    limits: Limits,
    next_stream: AtomicU64,
    refused: AtomicU64,
    connected_since: Instant,
    /// Why this end closed it.
    closed: Mutex<Option<String>>,
    status: watch::Sender<SessionStatus>,
}

/// Identifies a session in logs.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct SessionId(LinkId);

impl fmt::Display for SessionId {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(formatter)
    }
}

/// The state of a session.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum SessionStatus {
    Connected,
    /// The connection is lost. The streams wait until the agent resumes it, or the resume window ends.
    Interrupted {
        since: Instant,
    },
    /// Final.
    Ended(EndReason),
}

/// Counters and levels of a session.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Statistics {
    /// Open streams.
    pub streams: u32,
    /// Streams that were refused because of a limit.
    pub refused: u64,
    pub bytes_sent: u64,
    pub bytes_received: u64,
    /// How far the agent may be ahead of the readers of all streams.
    pub bytes_in_flight: u64,
    /// How often the connection was resumed.
    pub resumes: u64,
    /// The round-trip time of the path.
    pub round_trip: Option<std::time::Duration>,
}

/// One of the streams of a tunnel, until it is dropped.
struct StreamPermit(Arc<Mutex<Limiter>>);

impl Drop for StreamPermit {
    fn drop(&mut self) {
        self.0.lock().close();
    }
}

impl Session {
    pub(crate) async fn start(link: Link, version: u16, limits: Limits) -> Result<Self, Error> {
        let now = Instant::now();
        let link_status = link.status();
        let shared = Arc::new(Shared {
            id: link.id(),
            peer: link.peer().to_owned(),
            version,
            meter: link.meter(),
            aborter: link.aborter(),
            flow: Flow::new(limits.bytes_in_flight),
            limiter: Arc::new(Mutex::new(Limiter::new(limits, now))),
            limits,
            next_stream: AtomicU64::new(1),
            refused: AtomicU64::new(0),
            connected_since: now,
            closed: Mutex::default(),
            status: watch::Sender::new(SessionStatus::Connected),
        });
        let client = Client::start(link, windows(&limits)).await;
        let mut client = client.map_err(Error::Link)?;
        tokio::spawn(follow(Arc::clone(&shared), link_status));
        let exchange = Request::post(flow::path()).body(shared.flow.messages());
        if let Ok(exchange) = exchange {
            let (response, flow) = (client.send(exchange), Arc::clone(&shared.flow));
            tokio::spawn(async move {
                if let Ok(response) = response.await {
                    flow.receive(response.into_body()).await;
                }
                // The agent leaves, and has no other streams any more.
                flow.end();
            });
        }
        Ok(Self(Arc::new(Owner { shared, client })))
    }

    /// Sends a request to the agent, and returns its response. Of the URI only the path and the query matter.
    ///
    /// During an interruption it waits. If the future is dropped, the agent sees that the request is cancelled.
    ///
    /// # Errors
    /// When a limit is reached, the tunnel has ended, or the agent does not serve the request.
    pub async fn send(&self, request: Request<BoxBody>) -> Result<Response<Body>, Error> {
        let shared = &self.0.shared;
        let permit = shared.open()?;
        let stream = shared.next_stream.fetch_add(1, Ordering::Relaxed);
        let sending = Sending::new(Arc::clone(&shared.flow), stream);
        let mut request =
            request.map(|body| WindowedBody::new(body, Some(sending), None).boxed_unsync());
        let headers = request.headers_mut();
        headers.insert(STREAM_HEADER, HeaderValue::from(stream));
        let receiving = Receiving::new(Arc::clone(&shared.flow), stream);
        let sent = self.0.client.clone().try_send(request).await;
        let response =
            sent.map_err(|failed| shared.failure(failed.error, failed.unsent.is_none()))?;
        let explain = Arc::clone(shared) as Arc<dyn Explain>;
        Ok(response.map(|body| Body::new(body, Some(receiving), explain, Some(Box::new(permit)))))
    }

    /// The name of the agent's cluster.
    pub fn peer(&self) -> &str {
        &self.0.shared.peer
    }

    pub fn id(&self) -> SessionId {
        SessionId(self.0.shared.id)
    }

    /// The agent's version of the protocol.
    pub fn version(&self) -> u16 {
        self.0.shared.version
    }

    /// Whether there is a connection now.
    pub fn is_connected(&self) -> bool {
        *self.0.shared.status.borrow() == SessionStatus::Connected
    }

    /// When the session began. Interruptions do not count.
    pub fn connected_since(&self) -> Instant {
        self.0.shared.connected_since
    }

    /// When something was last received from the agent.
    pub fn last_seen(&self) -> Instant {
        let last = self.0.shared.meter.statistics().last_received;
        last.unwrap_or(self.0.shared.connected_since)
    }

    /// The state and its changes.
    pub fn events(&self) -> watch::Receiver<SessionStatus> {
        self.0.shared.status.subscribe()
    }

    /// Waits for the end of the session.
    pub async fn ended(&self) -> EndReason {
        let mut events = self.events();
        loop {
            if let SessionStatus::Ended(reason) = &*events.borrow_and_update() {
                return reason.clone();
            }
            if events.changed().await.is_err() {
                return EndReason::Left;
            }
        }
    }

    /// Ends the tunnel at once. Its streams fail, and the agent gets the reason.
    pub fn close(&self, reason: &str) {
        self.0.shared.close(reason);
    }

    /// The bodies that are being sent, for tests of what is left behind.
    #[cfg(test)]
    pub(crate) fn sending(&self) -> usize {
        self.0.shared.flow.sending()
    }

    pub fn statistics(&self) -> Statistics {
        let shared = &self.0.shared;
        let link = shared.meter.statistics();
        Statistics {
            streams: shared.limiter.lock().streams(),
            refused: shared.refused.load(Ordering::Relaxed),
            bytes_sent: link.bytes_written,
            bytes_received: link.bytes_received,
            bytes_in_flight: shared.flow.reserved(),
            resumes: link.resumes,
            round_trip: shared.flow.round_trip(),
        }
    }
}

impl Shared {
    fn open(&self) -> Result<StreamPermit, Error> {
        if let SessionStatus::Ended(reason) = &*self.status.borrow() {
            return Err(Error::Disconnected {
                reason: reason.clone(),
                is_sent: false,
            });
        }
        let opened = match self.flow.has_room() {
            true => self.limiter.lock().open(Instant::now()),
            false => Err(Limit::BytesInFlight(self.limits.bytes_in_flight)),
        };
        match opened {
            Ok(()) => Ok(StreamPermit(Arc::clone(&self.limiter))),
            Err(limit) => {
                self.refused.fetch_add(1, Ordering::Relaxed);
                Err(limit.into())
            }
        }
    }

    fn close(&self, reason: &str) {
        self.closed.lock().get_or_insert_with(|| reason.to_owned());
        self.aborter.abort(Abort {
            code: CLOSED,
            text: reason.to_owned(),
        });
    }

    /// Why the tunnel has ended, if it has.
    fn end_reason(&self) -> Option<EndReason> {
        if let Some(reason) = &*self.closed.lock() {
            return Some(EndReason::Closed(reason.clone()));
        }
        if let SessionStatus::Ended(reason) = &*self.status.borrow() {
            return Some(reason.clone());
        }
        self.meter.failure().as_ref().map(EndReason::of)
    }

    fn failure(&self, error: LinkError, is_sent: bool) -> Error {
        match self.end_reason() {
            Some(reason) => Error::Disconnected { reason, is_sent },
            // The connection closes before its end is known.
            None if !is_sent => Error::Disconnected {
                reason: EndReason::Left,
                is_sent,
            },
            None => Error::Stream(error),
        }
    }

    fn set_status(&self, status: SessionStatus) {
        self.status.send_if_modified(|current| {
            let changes = *current != status && !matches!(current, SessionStatus::Ended(_));
            if changes {
                *current = status;
            }
            changes
        });
    }
}

impl Explain for Shared {
    fn explain(&self, error: hyper::Error) -> Error {
        self.failure(error.into(), true)
    }
}

/// Translates the link's status until it ends.
async fn follow(shared: Arc<Shared>, mut link: watch::Receiver<Status>) {
    loop {
        let status = link.borrow_and_update().clone();
        match status {
            Status::Connected => shared.set_status(SessionStatus::Connected),
            Status::Reconnecting { since, .. } => {
                shared.set_status(SessionStatus::Interrupted { since });
            }
            Status::Finished | Status::Failed(_) => break,
        }
        if link.changed().await.is_err() {
            break;
        }
    }
    let reason = shared.end_reason().unwrap_or(EndReason::Left);
    shared.set_status(SessionStatus::Ended(reason));
}

impl Drop for Owner {
    fn drop(&mut self) {
        self.shared
            .close("the hub does not need the tunnel any more");
    }
}

impl fmt::Debug for Session {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut debug = formatter.debug_struct("Session");
        debug
            .field("peer", &self.peer())
            .field("id", &self.id())
            .finish_non_exhaustive()
    }
}
