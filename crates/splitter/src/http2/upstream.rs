//! Connections to the application and to sessions.

use std::collections::HashMap;
use std::fmt;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use bytes::Bytes;
use h2::Ping;
use h2::client::SendRequest;
use tokio::sync::{Notify, OnceCell};
use tokio::time::{Instant, timeout};

use super::copy::ClientBudget;
use super::{CONNECTION_WINDOW, LARGEST_FRAME, LARGEST_HEAD, MOST_STREAMS, STREAM_WINDOW};
use crate::claims::{HeldClaim, Knowledge};
use crate::http1::leg::{Leg, Route};
use crate::port::Way;
use crate::settings::Reason;
use crate::stream::{Arrival, BoxStream};

/// So long the first client of a port waits for the application to greet.
const GREETING: Duration = Duration::from_secs(1);

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
    /// How far copies for a session are behind, by the identity of its claim.
    copy_budgets: Mutex<HashMap<u64, Arc<ClientBudget>>>,
}

impl Upstreams {
    pub(super) fn new(way: Way, arrival: Arrival, spare: Option<Leg>) -> Self {
        Self {
            way,
            arrival,
            spare: Mutex::new(spare),
            open: Mutex::default(),
            application_closed: Arc::default(),
            copy_budgets: Mutex::default(),
        }
    }

    /// A connection on which a stream can be opened, made if there is none.
    pub(super) async fn ready(&self, route: &Route) -> Result<SendRequest<Bytes>, Reason> {
        let key = key(route);
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
        let mut open = self.open.lock().unwrap_or_else(PoisonError::into_inner);
        open.remove(&key(route));
    }

    /// Whether the place that gets what nobody else wants takes WebSockets over HTTP/2. Clients ask only servers that say
    /// so when they greet, so the first client of a port waits until that place has greeted us.
    pub(super) async fn takes_extended_connect(&self) -> bool {
        let route = self.way.port.raw_route();
        let knowledge = self.extended_connect(&route);
        if knowledge.get().is_none() {
            let _ = timeout(GREETING, self.ready(&route)).await;
        }
        knowledge.get().unwrap_or_else(|| {
            // It is not asked again by each client; those that it serves later will tell.
            knowledge.set(false);
            false
        })
    }

    fn extended_connect<'a>(&'a self, route: &'a Route) -> &'a Knowledge {
        match route {
            Route::Original => &self.way.port.extended_connect,
            Route::Claim(held) => &held.extended_connect,
        }
    }

    pub(super) fn copy_budget(&self, held: &Arc<HeldClaim>) -> Arc<ClientBudget> {
        let budgets = &self.copy_budgets;
        let mut budgets = budgets.lock().unwrap_or_else(PoisonError::into_inner);
        let budget = budgets.entry(held.identity);
        let budget = budget.or_insert_with(|| Arc::new(ClientBudget::new(held)));
        budget.clone()
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
        let started = start(leg.stream, closed, self.extended_connect(route));
        let within = match route {
            Route::Claim(held) => held.answer_within(settings),
            Route::Original => None,
        };
        let send = match within {
            Some(within) => timeout(within, started)
                .await
                .map_err(|_| Reason::TooSlow)?,
            None => started.await,
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
        let Some(upstream) = kept.as_ref().and_then(|cell| cell.get()) else {
            return;
        };
        // The application may be another one by now.
        let takes_it = upstream.is_extended_connect_protocol_enabled();
        self.way.port.extended_connect.set(takes_it);
        if let Some(pool) = &self.way.http2 {
            pool.put(upstream.clone(), self.way.port.settings.keep_idle);
        }
    }
}

fn key(route: &Route) -> Option<u64> {
    match route {
        Route::Original => None,
        Route::Claim(held) => Some(held.identity),
    }
}

/// Starts HTTP/2 on a stream, and a task that runs it. What is not known of the place is found out.
async fn start(
    stream: BoxStream,
    closed: Option<Arc<Notify>>,
    extended_connect: &Knowledge,
) -> Result<SendRequest<Bytes>, h2::Error> {
    let (send, mut connection) = h2::client::Builder::new()
        .initial_window_size(STREAM_WINDOW)
        .initial_connection_window_size(CONNECTION_WINDOW)
        .max_frame_size(LARGEST_FRAME)
        .max_header_list_size(LARGEST_HEAD)
        .initial_max_send_streams(MOST_STREAMS as usize)
        .enable_push(false)
        .handshake::<_, Bytes>(stream)
        .await?;
    let ping_pong = connection.ping_pong();
    // One that nobody waited for has no client to whom its end matters.
    let is_used = Arc::new(AtomicBool::new(false));
    let was_used = is_used.clone();
    tokio::spawn(async move {
        if let Err(error) = connection.await {
            tracing::debug!(%error, "a connection that speaks HTTP/2 ended");
        }
        if let Some(closed) = closed.filter(|_| was_used.load(Ordering::Relaxed)) {
            closed.notify_one();
        }
    });
    if let (None, Some(mut ping_pong)) = (extended_connect.get(), ping_pong) {
        // A place greets before it answers anything.
        ping_pong.ping(Ping::opaque()).await?;
        extended_connect.set(send.is_extended_connect_protocol_enabled());
    }
    is_used.store(true, Ordering::Relaxed);
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
