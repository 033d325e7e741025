//! A client's HTTP/2 connections to the application and to sessions, and the pool of idle ones.

use std::collections::HashMap;
use std::fmt;
use std::future::{Future as _, poll_fn};
use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use bytes::Bytes;
use h2::Ping;
use h2::client::SendRequest;
use parking_lot::Mutex;
use tokio::sync::{Notify, OnceCell};
use tokio::time::{Instant, timeout};

use super::mirror::ClientBudget;
use super::windows::{AdaptiveWindows, Windows};
use super::{MAX_CONCURRENT_STREAMS, MAX_FRAME_SIZE, MAX_HEADER_LIST_SIZE, MAX_SEND_BUFFER};
use crate::claims::{ActiveClaim, CachedFlag};
use crate::http1::upstream::{Route, UpstreamConnection};
use crate::memory::{Holder, InFlight, MeasuredReader};
use crate::port::Upstreams;
use crate::settings::FailureReason;
use crate::stream::{BoxStream, ConnectionMeta};

/// How long the first client of a port waits for the application's HTTP/2 settings.
const SETTINGS_TIMEOUT: Duration = Duration::from_secs(1);

/// A connection that is opened on first use.
type LazyConnection = Arc<OnceCell<OpenConnection>>;

/// A connection to an upstream. Another client may use it later.
#[derive(Clone)]
struct OpenConnection {
    send: SendRequest<Bytes>,
    /// What measures the responses: that of the client that uses the connection.
    user: Arc<Mutex<Arc<InFlight>>>,
}

/// The HTTP/2 upstream connections of one client.
pub(super) struct Http2Connections {
    pub(super) upstreams: Upstreams,
    /// What the client has sent, and what upstreams have sent.
    pub(super) requests: Arc<InFlight>,
    pub(super) responses: Arc<InFlight>,
    windows: Windows,
    meta: ConnectionMeta,
    spare: Mutex<Option<UpstreamConnection>>,
    /// By the ID of the claim. `None` is the application.
    open: Mutex<HashMap<Option<u64>, LazyConnection>>,
    application_closed: Arc<Notify>,
    /// Memory of the mirrors to a session, by the ID of its claim.
    mirror_budgets: Mutex<HashMap<u64, Arc<ClientBudget>>>,
}

impl Http2Connections {
    pub(super) fn new(
        upstreams: Upstreams,
        meta: ConnectionMeta,
        spare: Option<UpstreamConnection>,
        windows: Windows,
    ) -> Self {
        Self {
            requests: Arc::default(),
            responses: Arc::default(),
            windows,
            upstreams,
            meta,
            spare: Mutex::new(spare),
            open: Mutex::default(),
            application_closed: Arc::default(),
            mirror_budgets: Mutex::default(),
        }
    }

    /// What the client's memory is charged to.
    pub(super) fn holder(&self) -> &Holder {
        &self.upstreams.holder
    }

    /// Returns a connection on which a stream can be opened. Opens it if necessary.
    pub(super) async fn ready(&self, route: &Route) -> Result<SendRequest<Bytes>, FailureReason> {
        let key = key(route);
        // A connection that has been closed is reopened once.
        for _ in 0..2 {
            let cell = {
                let mut open = self.open.lock();
                open.entry(key).or_default().clone()
            };
            let connection = cell.get_or_try_init(|| self.connect(route)).await?.clone();
            if let Ok(send) = connection.send.ready().await {
                return Ok(send);
            }
            self.remove(key, &cell);
        }
        Err(FailureReason::Unreachable)
    }

    fn remove(&self, key: Option<u64>, cell: &LazyConnection) {
        let mut open = self.open.lock();
        if open
            .get(&key)
            .is_some_and(|current| Arc::ptr_eq(current, cell))
        {
            open.remove(&key);
        }
    }

    /// Removes the connection of a route, so that the next stream opens a new one.
    pub(super) fn remove_route(&self, route: &Route) {
        let mut open = self.open.lock();
        open.remove(&key(route));
    }

    /// Whether the upstream of unmatched requests supports extended CONNECT, which carries WebSockets over HTTP/2. Clients
    /// use it only if the server's settings announce it, so the first client of a port waits for the upstream's settings.
    pub(super) async fn supports_extended_connect(&self) -> bool {
        let route = self.upstreams.port.fallback_route();
        let support = self.extended_connect(&route);
        if support.get().is_none() {
            let _ = timeout(SETTINGS_TIMEOUT, self.ready(&route)).await;
        }
        support.get().unwrap_or_else(|| {
            // Later clients do not wait again. The value is updated when a connection is returned to the pool.
            support.set(false);
            false
        })
    }

    fn extended_connect<'a>(&'a self, route: &'a Route) -> &'a CachedFlag {
        match route {
            Route::Application => &self.upstreams.port.extended_connect,
            Route::Claim(active) => &active.extended_connect,
        }
    }

    pub(super) fn mirror_budget(&self, active: &Arc<ActiveClaim>) -> Arc<ClientBudget> {
        let budgets = &self.mirror_budgets;
        let mut budgets = budgets.lock();
        let budget = budgets.entry(active.id);
        let budget = budget.or_insert_with(|| Arc::new(ClientBudget::new(active)));
        budget.clone()
    }

    async fn connect(&self, route: &Route) -> Result<OpenConnection, FailureReason> {
        let spare = {
            let mut spare = self.spare.lock();
            spare.take_if(|upstream| upstream.route == *route)
        };
        let settings = &self.upstreams.port.settings;
        let upstream = match (spare, route) {
            (Some(upstream), _) => upstream,
            (None, Route::Claim(active)) => self.upstreams.open_claim(active, &self.meta).await?,
            (None, Route::Application) => {
                let idle = self.upstreams.http2.as_ref().and_then(|pool| pool.take());
                if let Some(idle) = idle {
                    *idle.user.lock() = Arc::clone(&self.responses);
                    return Ok(idle);
                }
                let opened = self.upstreams.open_application(&self.meta).await;
                opened.map_err(|_| FailureReason::Unreachable)?
            }
        };
        let closed = route
            .is_application()
            .then(|| self.application_closed.clone());
        let started = self.start(upstream.stream, closed, self.extended_connect(route));
        let response_timeout = match route {
            Route::Claim(active) => active.response_timeout(settings),
            Route::Application => None,
        };
        let send = match response_timeout {
            Some(limit) => timeout(limit, started)
                .await
                .map_err(|_| FailureReason::Timeout)?,
            None => started.await,
        };
        send.map_err(|_| FailureReason::NoResponse)
    }

    /// Starts HTTP/2 on a stream, and spawns its connection task. Detects extended CONNECT if that is not known yet.
    async fn start(
        &self,
        stream: BoxStream,
        closed: Option<Arc<Notify>>,
        extended_connect: &CachedFlag,
    ) -> Result<OpenConnection, h2::Error> {
        let user = Arc::new(Mutex::new(Arc::clone(&self.responses)));
        let measured = Arc::clone(&user);
        let memory = self.holder().memory();
        let stream = MeasuredReader::new(stream, memory, move || Arc::clone(&measured.lock()));
        let (send, mut connection) = h2::client::Builder::new()
            .initial_window_size(self.windows.stream)
            .initial_connection_window_size(self.windows.connection)
            .max_send_buffer_size(MAX_SEND_BUFFER)
            .max_frame_size(MAX_FRAME_SIZE)
            .max_header_list_size(MAX_HEADER_LIST_SIZE)
            .initial_max_send_streams(MAX_CONCURRENT_STREAMS as usize)
            .enable_push(false)
            .handshake::<_, Bytes>(stream)
            .await?;
        let ping_pong = connection.ping_pong();
        // The end of a connection is only reported if the connection has been used.
        let is_used = Arc::new(AtomicBool::new(false));
        let was_used = is_used.clone();
        let mut windows = AdaptiveWindows::new(self.windows);
        let responses = user.clone();
        tokio::spawn(async move {
            let ended = poll_fn(|context| {
                let ended = Pin::new(&mut connection).poll(context);
                let stalled = responses.lock().total();
                if windows.adapt(stalled, &mut connection) {
                    context.waker().wake_by_ref();
                }
                ended
            });
            if let Err(error) = ended.await {
                tracing::debug!(%error, "HTTP/2 upstream connection ended");
            }
            if let Some(closed) = closed.filter(|_| was_used.load(Ordering::Relaxed)) {
                closed.notify_one();
            }
        });
        if let (None, Some(mut ping_pong)) = (extended_connect.get(), ping_pong) {
            // The server's settings arrive before its PING response.
            ping_pong.ping(Ping::opaque()).await?;
            extended_connect.set(send.is_extended_connect_protocol_enabled());
        }
        is_used.store(true, Ordering::Relaxed);
        Ok(OpenConnection { send, user })
    }

    /// Waits until the application has closed its connection.
    pub(super) async fn application_closed(&self) {
        self.application_closed.notified().await;
    }

    /// Returns the connection to the application to the pool.
    pub(super) fn return_to_pool(&self) {
        let cell = {
            let mut open = self.open.lock();
            open.remove(&None)
        };
        let Some(connection) = cell.as_ref().and_then(|cell| cell.get()) else {
            return;
        };
        // The application may have been replaced by another version.
        let is_supported = connection.send.is_extended_connect_protocol_enabled();
        self.upstreams.port.extended_connect.set(is_supported);
        if let Some(pool) = &self.upstreams.http2 {
            let settings = &self.upstreams.port.settings;
            pool.put(
                connection.clone(),
                settings.idle_timeout,
                settings.max_idle_connections,
            );
        }
    }
}

fn key(route: &Route) -> Option<u64> {
    match route {
        Route::Application => None,
        Route::Claim(active) => Some(active.id),
    }
}

/// Idle HTTP/2 connections to the application.
#[derive(Default)]
pub(crate) struct Pool {
    idle: Mutex<Vec<(Instant, OpenConnection)>>,
}

impl Pool {
    fn take(&self) -> Option<OpenConnection> {
        let mut idle = self.idle.lock();
        idle.pop().map(|(_, connection)| connection)
    }

    fn put(
        self: &Arc<Self>,
        connection: OpenConnection,
        idle_timeout: Duration,
        max_connections: usize,
    ) {
        let now = Instant::now();
        let mut idle = self.idle.lock();
        if idle.len() >= max_connections {
            idle.remove(0);
        }
        idle.push((now, connection));
        drop(idle);
        let pool = Arc::downgrade(self);
        tokio::spawn(async move {
            tokio::time::sleep_until(now + idle_timeout).await;
            if let Some(pool) = pool.upgrade() {
                let mut idle = pool.idle.lock();
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
