//! Connections to the application and to sessions.

use std::collections::HashMap;
use std::fmt;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use bytes::Bytes;
use h2::client::SendRequest;
use tokio::sync::{Notify, OnceCell};
use tokio::time::{Instant, timeout};

use super::{CONNECTION_WINDOW, LARGEST_FRAME, LARGEST_HEAD, MOST_STREAMS, STREAM_WINDOW};
use crate::http1::leg::{Leg, Route};
use crate::port::Way;
use crate::settings::Reason;
use crate::stream::{Arrival, BoxStream};

/// A connection that is made when it is first needed.
type Upstream = Arc<OnceCell<SendRequest<Bytes>>>;

/// The connections of one client.
pub(super) struct Upstreams {
    pub(super) way: Way,
    arrival: Arrival,
    spare: Mutex<Option<Leg>>,
    /// By the identity of a claim; the application has none.
    open: Mutex<HashMap<Option<u64>, Upstream>>,
    application_closed: Arc<Notify>,
}

impl Upstreams {
    pub(super) fn new(way: Way, arrival: Arrival, spare: Option<Leg>) -> Self {
        Self {
            way,
            arrival,
            spare: Mutex::new(spare),
            open: Mutex::default(),
            application_closed: Arc::default(),
        }
    }

    /// A connection on which a stream can be opened, made if there is none.
    pub(super) async fn ready(&self, route: &Route) -> Result<SendRequest<Bytes>, Reason> {
        let key = match route {
            Route::Original => None,
            Route::Claim(held) => Some(held.identity),
        };
        // A connection that has been closed meanwhile is made again, once.
        for _ in 0..2 {
            let cell = {
                let mut open = self.open.lock().unwrap_or_else(PoisonError::into_inner);
                open.entry(key).or_default().clone()
            };
            let upstream = cell.get_or_try_init(|| self.connect(route)).await?.clone();
            if let Ok(send) = upstream.ready().await {
                return Ok(send);
            }
            self.forget(key, &cell);
        }
        Err(Reason::Unreachable)
    }

    fn forget(&self, key: Option<u64>, cell: &Upstream) {
        let mut open = self.open.lock().unwrap_or_else(PoisonError::into_inner);
        if open.get(&key).is_some_and(|known| Arc::ptr_eq(known, cell)) {
            open.remove(&key);
        }
    }

    /// Gives up on all connections to a place, so that the next stream there gets a new one.
    pub(super) fn forget_route(&self, route: &Route) {
        let key = match route {
            Route::Original => None,
            Route::Claim(held) => Some(held.identity),
        };
        let mut open = self.open.lock().unwrap_or_else(PoisonError::into_inner);
        open.remove(&key);
    }

    async fn connect(&self, route: &Route) -> Result<SendRequest<Bytes>, Reason> {
        let spare = {
            let mut spare = self.spare.lock().unwrap_or_else(PoisonError::into_inner);
            spare.take_if(|leg| leg.route == *route)
        };
        let settings = &self.way.port.settings;
        let leg = match (spare, route) {
            (Some(leg), _) => leg,
            (None, Route::Claim(held)) => self.way.open_claim(held, &self.arrival).await?,
            (None, Route::Original) => {
                let kept = self.way.http2.as_ref().and_then(|pool| pool.take());
                if let Some(send) = kept {
                    return Ok(send);
                }
                let opened = self.way.open_original(&self.arrival).await;
                opened.map_err(|_| Reason::Unreachable)?
            }
        };
        let closed = route.is_original().then(|| self.application_closed.clone());
        let started = start(leg.stream, closed);
        let send = match (route, settings.answer_within) {
            (Route::Claim(_), Some(within)) => timeout(within, started)
                .await
                .map_err(|_| Reason::TooSlow)?,
            _ => started.await,
        };
        send.map_err(|_| Reason::NoAnswer)
    }

    /// Waits until the application has closed its connection.
    pub(super) async fn application_closed(&self) {
        self.application_closed.notified().await;
    }

    /// Keeps the connection to the application for the next client.
    pub(super) fn keep(&self) {
        let kept = {
            let mut open = self.open.lock().unwrap_or_else(PoisonError::into_inner);
            open.remove(&None)
        };
        if let (Some(pool), Some(upstream)) =
            (&self.way.http2, kept.as_ref().and_then(|cell| cell.get()))
        {
            pool.put(upstream.clone(), self.way.port.settings.keep_idle);
        }
    }
}

/// Starts HTTP/2 on a stream, and a task that runs it.
async fn start(
    stream: BoxStream,
    closed: Option<Arc<Notify>>,
) -> Result<SendRequest<Bytes>, h2::Error> {
    let (send, connection) = h2::client::Builder::new()
        .initial_window_size(STREAM_WINDOW)
        .initial_connection_window_size(CONNECTION_WINDOW)
        .max_frame_size(LARGEST_FRAME)
        .max_header_list_size(LARGEST_HEAD)
        .initial_max_send_streams(MOST_STREAMS as usize)
        .enable_push(false)
        .handshake::<_, Bytes>(stream)
        .await?;
    tokio::spawn(async move {
        if let Err(error) = connection.await {
            tracing::debug!(%error, "a connection that speaks HTTP/2 ended");
        }
        if let Some(closed) = closed {
            closed.notify_one();
        }
    });
    Ok(send)
}

/// Connections to the application whose clients have gone.
#[derive(Default)]
pub(crate) struct Pool {
    idle: Mutex<Vec<(Instant, SendRequest<Bytes>)>>,
}

impl Pool {
    fn take(&self) -> Option<SendRequest<Bytes>> {
        let mut idle = self.idle.lock().unwrap_or_else(PoisonError::into_inner);
        idle.pop().map(|(_, send)| send)
    }

    fn put(self: &Arc<Self>, send: SendRequest<Bytes>, keep: Duration) {
        let now = Instant::now();
        let mut idle = self.idle.lock().unwrap_or_else(PoisonError::into_inner);
        idle.push((now, send));
        drop(idle);
        let pool = Arc::downgrade(self);
        tokio::spawn(async move {
            tokio::time::sleep_until(now + keep).await;
            if let Some(pool) = pool.upgrade() {
                let mut idle = pool.idle.lock().unwrap_or_else(PoisonError::into_inner);
                idle.retain(|(since, _)| *since > now);
            }
        });
    }
}

impl fmt::Debug for Pool {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.write_str("Pool")
    }
}
