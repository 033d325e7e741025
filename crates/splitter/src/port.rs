//! A port of the target: the sessions that claim it, its application, and how incoming connections are served.

mod sniff;

use std::fmt;
use std::io;
use std::pin::pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use parking_lot::RwLock;
use tokio::time::{Instant, timeout};

use crate::claims::{ActiveClaim, CachedFlag, Claims, Mode};
use crate::detect::Protocol;
use crate::http1::connection::Connection;
use crate::http1::upstream::{Age, Route, UpstreamConnection};
use crate::http2;
use crate::memory::Holder;
use crate::mirror::{Mirror, with_mirrors};
use crate::pool::Pool;
use crate::probes::Probes;
use crate::relay::{NoResponse, relay, relay_with_fallback};
use crate::settings::{FailureReason, Notice, RequestLine, Settings};
use crate::stream::{BoxStream, ConnectionMeta, Destination, Rewind, WriteBuffer};
use crate::tls::TlsTermination;
use sniff::Sniffed;

/// The memory of the TLS state of a client's connection and its upstream.
const TLS_COST: usize = 32 * 1024;

/// A port of the target.
pub struct Port {
    pub(crate) claims: Arc<Claims>,
    pub(crate) application: Arc<dyn Destination>,
    probes: RwLock<Arc<Probes>>,
    pub(crate) settings: Settings,
    pool: Arc<Pool>,
    http2: Arc<http2::Pool>,
    /// Whether the application supports WebSockets over HTTP/2.
    pub(crate) extended_connect: CachedFlag,
    /// Set when a client has sent the first bytes of a connection. The application then most likely waits for them.
    clients_speak_first: AtomicBool,
}

/// Opens the upstream connections that serve a client's requests.
#[derive(Clone)]
pub(crate) struct Upstreams {
    pub(crate) port: Arc<Port>,
    pub(crate) application: Arc<dyn Destination>,
    /// Idle connections to the application. `None` if they cannot be shared between clients.
    pub(crate) pool: Option<Arc<Pool>>,
    pub(crate) http2: Option<Arc<http2::Pool>>,
    /// What the memory of the client's connection is charged to.
    pub(crate) holder: Holder,
}

impl Port {
    /// A port whose application is reached through `application`.
    pub fn new(application: Arc<dyn Destination>, settings: Settings) -> Self {
        Self {
            claims: Arc::new(Claims::with_memory(&settings.memory)),
            application,
            probes: RwLock::default(),
            settings,
            pool: Arc::default(),
            http2: Arc::default(),
            extended_connect: CachedFlag::default(),
            clients_speak_first: AtomicBool::new(false),
        }
    }

    /// Sets how health probes of this port are recognized.
    #[must_use]
    pub fn with_probes(self, probes: Probes) -> Self {
        self.add_probe_paths(probes.paths);
        self
    }

    /// Adds paths of health probes. They apply to requests that are received from now on.
    pub fn add_probe_paths(&self, paths: Vec<String>) {
        let mut probes = self.probes.write();
        for path in paths {
            if !probes.paths.contains(&path) {
                Arc::make_mut(&mut probes).paths.push(path);
            }
        }
    }

    pub(crate) fn probes(&self) -> Arc<Probes> {
        let probes = self.probes.read();
        probes.clone()
    }

    /// How TLS connections to the target are terminated: with the settings of the oldest session that has some.
    fn tls(&self) -> Option<TlsTermination> {
        let claims = self.claims.snapshot();
        claims.iter().find_map(|active| active.claim.tls.clone())
    }

    /// The claims of sessions on this port.
    pub fn claims(&self) -> &Arc<Claims> {
        &self.claims
    }

    /// Serves a connection until it ends.
    ///
    /// The futures of each protocol are boxed. Otherwise the future of every connection would reserve memory for all of
    /// them all the time.
    pub async fn serve(self: &Arc<Self>, client: BoxStream, meta: ConnectionMeta) {
        let upstreams = Upstreams {
            port: self.clone(),
            application: self.application.clone(),
            pool: Some(self.pool.clone()),
            http2: Some(self.http2.clone()),
            holder: self.settings.memory.holder(),
        };
        let holder = upstreams.holder.clone();
        let serving = pin!(self.serve_via(upstreams, client, meta));
        holder.serve(serving).await;
    }

    async fn serve_via(
        self: &Arc<Self>,
        upstreams: Upstreams,
        mut client: BoxStream,
        meta: ConnectionMeta,
    ) {
        // Read once: the session that provides it may end before the client has sent anything.
        let tls = match meta.tls {
            None => self.tls(),
            Some(_) => None,
        };
        // If TLS can be terminated here, the plain text is mirrored instead of the encrypted bytes.
        let may_be_encrypted = tls.is_some();
        if !may_be_encrypted {
            client = self.with_mirrors(client, &meta);
        }
        if !may_be_encrypted && !self.needs_splitting() {
            if let Ok(upstream) = upstreams.open_application(&meta).await {
                let to_client = WriteBuffer::default();
                Box::pin(upstreams.forward(&mut client, upstream, to_client, &[], &meta)).await;
            }
            return;
        }
        let owner = self.owner();
        let first = sniff::sniff(
            &upstreams,
            &mut client,
            &meta,
            owner.as_ref(),
            may_be_encrypted,
        );
        let Some(first) = Box::pin(first).await else {
            return;
        };
        let Sniffed {
            protocol,
            mut bytes,
            upstream,
            to_client,
        } = first;
        if may_be_encrypted && protocol != Protocol::Tls && self.has_mirrors() {
            let first = std::mem::take(&mut bytes);
            client = self.with_mirrors(Box::new(Rewind::new(first, client)), &meta);
        }
        if protocol != Protocol::Raw {
            self.clients_speak_first.store(true, Ordering::Relaxed);
        }
        match protocol {
            Protocol::Http1 => {
                let connection = Connection::new(upstreams, meta, client, bytes, upstream);
                Box::pin(connection.serve()).await;
            }
            Protocol::Http2 => {
                let client = Box::new(Rewind::new(bytes, client));
                Box::pin(http2::serve(upstreams, client, meta, upstream)).await;
            }
            Protocol::Tls => {
                if let Some(tls) = tls {
                    let client = Box::new(Rewind::new(bytes, client));
                    // Where this connection goes is decided only after the TLS handshake.
                    drop(upstream);
                    Box::pin(self.serve_tls(&tls, client, meta, upstreams.holder)).await;
                }
            }
            Protocol::Raw => {
                let upstream = match upstream {
                    Some(upstream) => Some(upstream),
                    None => Box::pin(upstreams.open_owner(owner.as_ref(), &meta)).await,
                };
                if let Some(upstream) = upstream {
                    Box::pin(upstreams.forward(&mut client, upstream, to_client, &bytes, &meta))
                        .await;
                }
            }
        }
    }

    async fn serve_tls(
        self: &Arc<Self>,
        tls: &TlsTermination,
        client: BoxStream,
        meta: ConnectionMeta,
        holder: Holder,
    ) {
        let _charge = holder.charge(TLS_COST);
        match tls.accept(client, &meta).await {
            Ok((client, client_tls)) => {
                let application = tls.originate(self.application.clone(), &client_tls);
                let upstreams = Upstreams {
                    port: self.clone(),
                    application,
                    // Another client may use another server name or negotiate another protocol.
                    pool: None,
                    http2: None,
                    holder,
                };
                let meta = ConnectionMeta {
                    tls: Some(client_tls),
                    ..meta
                };
                self.serve_via(upstreams, client, meta).await;
            }
            Err(error) => tracing::debug!(%error, "TLS handshake with client failed"),
        }
    }

    /// Whether any claim needs requests to be told apart: it steals, or has a filter.
    fn needs_splitting(&self) -> bool {
        let claims = self.claims.snapshot();
        claims
            .iter()
            .any(|active| active.claim.mode == Mode::Steal || active.claim.filter.is_some())
    }

    /// The session that gets traffic that cannot be split into requests.
    fn owner(&self) -> Option<Arc<ActiveClaim>> {
        let now = Instant::now();
        let claims = self.claims.snapshot();
        claims
            .iter()
            .find(|active| {
                active.claim.mode == Mode::Steal
                    && active.claim.filter.is_none()
                    && active.is_healthy(now)
            })
            .cloned()
    }

    /// The route of bytes that cannot be split into requests.
    pub(crate) fn fallback_route(&self) -> Route {
        self.owner().map_or(Route::Application, Route::Claim)
    }

    /// Whether a session mirrors the whole port.
    fn has_mirrors(&self) -> bool {
        let claims = self.claims.snapshot();
        claims
            .iter()
            .any(|active| active.claim.mode == Mode::Mirror && active.claim.filter.is_none())
    }

    /// Starts a mirror for each session that mirrors the whole port.
    fn with_mirrors(&self, client: BoxStream, meta: &ConnectionMeta) -> BoxStream {
        let claims = self.claims.snapshot();
        let mirrors: Vec<_> = claims
            .iter()
            .filter(|active| active.claim.mode == Mode::Mirror && active.claim.filter.is_none())
            .map(|active| Mirror::start(active, meta, &self.settings))
            .collect();
        if mirrors.is_empty() {
            client
        } else {
            with_mirrors(client, mirrors)
        }
    }

    pub(crate) fn clients_usually_speak_first(&self) -> bool {
        self.clients_speak_first.load(Ordering::Relaxed)
    }
}

impl Upstreams {
    /// Opens a new connection to the application.
    pub(crate) async fn open_application(
        &self,
        meta: &ConnectionMeta,
    ) -> io::Result<UpstreamConnection> {
        let stream = self.application.open(meta).await?;
        Ok(UpstreamConnection::new(
            Route::Application,
            stream,
            Age::Fresh,
        ))
    }

    /// Takes an idle connection to the application from the pool, or opens a new one.
    pub(crate) async fn reuse_or_open_application(
        &self,
        meta: &ConnectionMeta,
        is_idempotent: bool,
    ) -> io::Result<UpstreamConnection> {
        let idle_timeout = self.port.settings.idle_timeout;
        let idle = self
            .pool
            .as_ref()
            .and_then(|pool| pool.take(is_idempotent, idle_timeout));
        match idle {
            Some(stream) => Ok(UpstreamConnection::new(
                Route::Application,
                stream,
                Age::Used,
            )),
            None => self.open_application(meta).await,
        }
    }

    /// Returns a connection to the application to the pool.
    pub(crate) fn return_to_pool(&self, stream: BoxStream) {
        let settings = &self.port.settings;
        if let Some(pool) = &self.pool {
            pool.put(stream, settings.idle_timeout, settings.max_idle_connections);
        }
    }

    /// Opens a new connection to a session. If that fails, the session is suspended for a while.
    pub(crate) async fn open_claim(
        &self,
        active: &Arc<ActiveClaim>,
        meta: &ConnectionMeta,
    ) -> Result<UpstreamConnection, FailureReason> {
        let settings = &self.port.settings;
        let opening = active.claim.destination.open(meta);
        let opened = match active.response_timeout(settings) {
            None => Ok(opening.await),
            Some(limit) => timeout(limit, opening).await,
        };
        let reason = match opened {
            Ok(Ok(stream)) => {
                return Ok(UpstreamConnection::new(
                    Route::Claim(active.clone()),
                    stream,
                    Age::Fresh,
                ));
            }
            Ok(Err(_)) => FailureReason::Unreachable,
            Err(_) => FailureReason::Timeout,
        };
        active.suspend(Instant::now(), settings.failure_cooldown);
        Err(reason)
    }

    /// Opens a connection to the session that owns the port, or to the application if there is no owner or it cannot be
    /// reached.
    pub(crate) async fn open_owner(
        &self,
        owner: Option<&Arc<ActiveClaim>>,
        meta: &ConnectionMeta,
    ) -> Option<UpstreamConnection> {
        if let Some(active) = owner {
            match self.open_claim(active, meta).await {
                Ok(upstream) => return Some(upstream),
                Err(reason) => active.notify(Notice::FellBack { reason }),
            }
        }
        self.open_application(meta).await.ok()
    }

    /// Forwards a connection unchanged. `first` has already been read from the client. If the upstream is a session that
    /// fails before its first response byte, the connection is replayed to the application.
    pub(crate) async fn forward(
        &self,
        client: &mut BoxStream,
        mut upstream: UpstreamConnection,
        to_client: WriteBuffer,
        first: &[u8],
        meta: &ConnectionMeta,
    ) {
        let is_untried =
            upstream.age == Age::Fresh && upstream.write_buffer.is_empty() && to_client.is_empty();
        let result = match upstream.route.clone() {
            Route::Claim(active) if is_untried => {
                let limit = self.port.settings.replay_limit;
                let given =
                    relay_with_fallback(client, &mut upstream.stream, first, limit, &self.holder)
                        .await;
                drop(upstream);
                match given {
                    Ok(result) => result,
                    Err(no_response) => {
                        self.fall_back_to_application(client, &active, no_response, meta)
                            .await
                    }
                }
            }
            Route::Claim(_) | Route::Application => {
                upstream.write_buffer.push(first);
                relay(
                    client,
                    &mut upstream.stream,
                    upstream.write_buffer,
                    to_client,
                    &self.holder,
                )
                .await
            }
        };
        if let Err(error) = result {
            tracing::debug!(%error, "connection failed");
        }
    }

    /// Replays a connection to the application after the session did not respond.
    async fn fall_back_to_application(
        &self,
        client: &mut BoxStream,
        active: &Arc<ActiveClaim>,
        no_response: NoResponse,
        meta: &ConnectionMeta,
    ) -> io::Result<()> {
        self.report_no_response(active, &no_response);
        let Some(request) = no_response.request else {
            return Ok(());
        };
        let mut upstream = self.open_application(meta).await?;
        upstream.write_buffer.push(&request);
        relay(
            client,
            &mut upstream.stream,
            upstream.write_buffer,
            WriteBuffer::default(),
            &self.holder,
        )
        .await
    }

    /// Notifies a session that it did not respond. A session that closed the connection cleanly is reachable, so it is not
    /// suspended.
    pub(crate) fn report_no_response(&self, active: &Arc<ActiveClaim>, no_response: &NoResponse) {
        let settings = &self.port.settings;
        if !no_response.closed_cleanly {
            active.suspend(Instant::now(), settings.failure_cooldown);
        }
        let reason = FailureReason::NoResponse;
        match &no_response.request {
            Some(request) => {
                active.notify_request(Notice::FellBack { reason }, RequestLine::parse(request));
            }
            None => active.notify(Notice::Lost { reason }),
        }
    }
}

impl fmt::Debug for Port {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter
            .debug_struct("Port")
            .field("claims", &self.claims)
            .field("pool", &self.pool)
            .finish_non_exhaustive()
    }
}
