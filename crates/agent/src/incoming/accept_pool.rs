//! The pending `incoming/accept` requests of a session. To the splitter, the pool is the session's destination.

use std::collections::VecDeque;
use std::fmt;
use std::io;
use std::time::Duration;

use http::Response;
use parking_lot::Mutex;
use protocol::incoming::{ClientTls, ConnectionMeta};
use splitter::{BoxFuture, BoxStream, Destination, Unreachable};
use tokio::sync::{Semaphore, oneshot, watch};
use tokio::time::sleep;
use tonic::body::Body;

use super::reachability::ReachabilityWatch;
use super::stream::SessionStream;
use crate::connection::{RequestBody, succeeded};
use crate::{Error, Result};

/// How long a connection waits for a pending request of the session.
const ACCEPT_TIMEOUT: Duration = Duration::from_secs(5);
/// When the pool has this many requests, cancelled ones are removed.
const CLEANUP_THRESHOLD: usize = 64;

/// The pending `incoming/accept` requests of a session.
pub(super) struct AcceptPool {
    pending: Mutex<VecDeque<PendingAccept>>,
    /// One permit for each pending request. Some of the requests may be cancelled.
    available: Semaphore,
    has_ended: watch::Sender<bool>,
    reachability: ReachabilityWatch,
}

struct PendingAccept {
    from_session: RequestBody,
    response: oneshot::Sender<Response<Body>>,
}

impl AcceptPool {
    pub(super) fn new(reachability: ReachabilityWatch) -> Self {
        Self {
            reachability,
            pending: Mutex::default(),
            available: Semaphore::new(0),
            has_ended: watch::Sender::new(false),
        }
    }
}

impl fmt::Debug for AcceptPool {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        let pending = self.pending.lock().len();
        formatter.debug_tuple("AcceptPool").field(&pending).finish()
    }
}

impl AcceptPool {
    /// Waits for a connection, and returns it as the response.
    pub(super) async fn next_connection(
        &self,
        from_session: RequestBody,
    ) -> Result<Response<Body>> {
        let (response, received) = oneshot::channel();
        {
            let mut pending = self.pending.lock();
            if self.available.is_closed() {
                return Err(Error::SubscriptionEnded);
            }
            if pending.len() >= CLEANUP_THRESHOLD {
                pending.retain(|accept| !accept.response.is_closed());
            }
            pending.push_back(PendingAccept {
                from_session,
                response,
            });
        }
        self.available.add_permits(1);
        received.await.map_err(|_| Error::SubscriptionEnded)
    }

    /// Ends all pending requests. No connection is accepted after this.
    pub(super) fn end(&self) {
        let mut pending = self.pending.lock();
        self.available.close();
        pending.clear();
        self.has_ended.send_replace(true);
    }

    pub(super) fn has_ended(&self) -> bool {
        *self.has_ended.borrow()
    }

    /// Waits until [`AcceptPool::end`] is called.
    pub(super) async fn ended(&self) {
        let mut has_ended = self.has_ended.subscribe();
        // The sender lives as long as `self`, so this cannot fail.
        let _ = has_ended.wait_for(|ended| *ended).await;
    }

    /// Responds to the next pending request that is not cancelled.
    async fn respond_to_next(&self, meta: &ConnectionMeta) -> io::Result<SessionStream> {
        loop {
            let permit = self.available.acquire().await;
            permit.map_err(io::Error::other)?.forget();
            let Some(accept) = self.pending.lock().pop_front() else {
                continue;
            };
            let (stream, body) = SessionStream::new(accept.from_session, &self.reachability);
            let response = succeeded(meta.to_headers(), Body::new(body));
            // It fails if the session has cancelled the request.
            if accept.response.send(response).is_ok() {
                return Ok(stream);
            }
        }
    }

    /// Offers a connection to the session.
    pub(super) async fn open(&self, meta: &splitter::ConnectionMeta) -> io::Result<SessionStream> {
        self.offer(&to_protocol(meta)).await
    }

    async fn offer(&self, meta: &ConnectionMeta) -> io::Result<SessionStream> {
        if !self.reachability.is_reachable() {
            return Err(io::ErrorKind::NotConnected.into());
        }
        tokio::select! {
            biased;
            offered = self.respond_to_next(meta) => offered,
            () = self.reachability.clone().disconnected() => Err(io::ErrorKind::NotConnected.into()),
            () = sleep(ACCEPT_TIMEOUT) => Err(io::ErrorKind::TimedOut.into()),
        }
    }
}

impl Destination for AcceptPool {
    fn open<'a>(
        &'a self,
        meta: &'a splitter::ConnectionMeta,
    ) -> BoxFuture<'a, io::Result<BoxStream>> {
        Box::pin(async move {
            let stream = AcceptPool::open(self, meta).await?;
            Ok(Box::new(stream) as BoxStream)
        })
    }

    fn open_mirror<'a>(
        &'a self,
        meta: &'a splitter::ConnectionMeta,
    ) -> BoxFuture<'a, io::Result<BoxStream>> {
        Box::pin(async move {
            let mirrored = ConnectionMeta {
                is_mirrored: true,
                ..to_protocol(meta)
            };
            Ok(Box::new(self.offer(&mirrored).await?) as BoxStream)
        })
    }

    fn unreachable(&self) -> Option<Unreachable> {
        self.reachability.unreachable()
    }
}

fn to_protocol(meta: &splitter::ConnectionMeta) -> ConnectionMeta {
    ConnectionMeta {
        client: meta.client,
        server: meta.server,
        tls: meta.tls.as_ref().map(|tls| ClientTls {
            server_name: tls.server_name.clone(),
            application_protocol: tls.application_protocol.clone(),
        }),
        is_mirrored: false,
    }
}
