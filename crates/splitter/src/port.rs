//! A port of the target: who claims it, where its application is, and what to do with a connection that arrives.

mod first;

use std::fmt;
use std::io;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, PoisonError, RwLock};

use tokio::time::{Instant, timeout};

use crate::claims::{Claims, HeldClaim, Knowledge, Mode};
use crate::copy::{Copy, copied};
use crate::detect::Protocol;
use crate::http1::connection::Connection;
use crate::http1::leg::{Age, Leg, Route};
use crate::http2;
use crate::pool::Pool;
use crate::probes::Probes;
use crate::relay::{Unanswered, relay, relay_or_give_back};
use crate::settings::{Notice, Reason, RequestLine, Settings};
use crate::stream::{Arrival, BoxStream, Destination, Outbox, Rewound};
use crate::tls::Tls;
use first::First;

/// A port of the target.
pub struct Port {
    pub(crate) claims: Arc<Claims>,
    pub(crate) original: Arc<dyn Destination>,
    probes: RwLock<Arc<Probes>>,
    pub(crate) settings: Settings,
    pool: Arc<Pool>,
    http2: Arc<http2::Pool>,
    /// Whether the application takes WebSockets over HTTP/2.
    pub(crate) extended_connect: Knowledge,
    /// Clients have been seen to speak before the application does.
    clients_speak_first: AtomicBool,
}

/// How to reach the places where a connection's requests go.
#[derive(Clone)]
pub(crate) struct Way {
    pub(crate) port: Arc<Port>,
    pub(crate) original: Arc<dyn Destination>,
    /// Where connections to the application wait for the next client, if another client can use them.
    pub(crate) pool: Option<Arc<Pool>>,
    pub(crate) http2: Option<Arc<http2::Pool>>,
}

impl Port {
    /// A port whose application is reached through `original`.
    pub fn new(original: Arc<dyn Destination>, settings: Settings) -> Self {
        Self {
            claims: Arc::default(),
            original,
            probes: RwLock::default(),
            settings,
            pool: Arc::default(),
            http2: Arc::default(),
            extended_connect: Knowledge::default(),
            clients_speak_first: AtomicBool::new(false),
        }
    }

    /// Says how health probes of this port are known.
    #[must_use]
    pub fn with_probes(self, probes: Probes) -> Self {
        self.add_probe_paths(probes.paths);
        self
    }

    /// Names more paths of health probes, for the requests that come from now on.
    pub fn add_probe_paths(&self, paths: Vec<String>) {
        let mut probes = self.probes.write().unwrap_or_else(PoisonError::into_inner);
        for path in paths {
            if !probes.paths.contains(&path) {
                Arc::make_mut(&mut probes).paths.push(path);
            }
        }
    }

    pub(crate) fn probes(&self) -> Arc<Probes> {
        let probes = self.probes.read().unwrap_or_else(PoisonError::into_inner);
        probes.clone()
    }

    /// How connections that are encrypted for the target are looked into: as the oldest session says that knows how.
    fn tls(&self) -> Option<Tls> {
        let claims = self.claims.snapshot();
        claims.iter().find_map(|held| held.claim.tls.clone())
    }

    /// Who gets what.
    pub fn claims(&self) -> &Arc<Claims> {
        &self.claims
    }

    /// Serves a connection until it has ended.
    ///
    /// What a connection may need is in boxes of its own: otherwise each would have room for all of it, all the time.
    pub async fn serve(self: &Arc<Self>, client: BoxStream, arrival: Arrival) {
        let way = Way {
            port: self.clone(),
            original: self.original.clone(),
            pool: Some(self.pool.clone()),
            http2: Some(self.http2.clone()),
        };
        self.serve_way(way, client, arrival).await;
    }

    async fn serve_way(self: &Arc<Self>, way: Way, mut client: BoxStream, arrival: Arrival) {
        // Asked once: the session that knows how may go while the client has not spoken yet.
        let tls = match arrival.tls {
            None => self.tls(),
            Some(_) => None,
        };
        // Nobody wants a copy of what is encrypted and can be read.
        let may_be_encrypted = tls.is_some();
        if !may_be_encrypted {
            client = self.with_copies(client, &arrival);
        }
        if !may_be_encrypted && !self.needs_splitting() {
            if let Ok(leg) = way.open_original(&arrival).await {
                let to_client = Outbox::default();
                Box::pin(way.pass_on(&mut client, leg, to_client, &[], &arrival)).await;
            }
            return;
        }
        let owner = self.owner();
        let first = first::first(
            &way,
            &mut client,
            &arrival,
            owner.as_ref(),
            may_be_encrypted,
        );
        let Some(first) = Box::pin(first).await else {
            return;
        };
        let First {
            protocol,
            mut bytes,
            leg,
            to_client,
        } = first;
        if may_be_encrypted && protocol != Protocol::Tls && self.has_copies() {
            let first = std::mem::take(&mut bytes);
            client = self.with_copies(Box::new(Rewound::new(first, client)), &arrival);
        }
        if protocol != Protocol::Raw {
            self.clients_speak_first.store(true, Ordering::Relaxed);
        }
        match protocol {
            Protocol::Http1 => {
                let connection = Connection::new(way, arrival, client, bytes, leg);
                Box::pin(connection.serve()).await;
            }
            Protocol::Http2 => {
                let client = Box::new(Rewound::new(bytes, client));
                Box::pin(http2::serve(way, client, arrival, leg)).await;
            }
            Protocol::Tls => {
                if let Some(tls) = tls {
                    let client = Box::new(Rewound::new(bytes, client));
                    // What the spare leg is for is known only when the client has said more.
                    drop(leg);
                    Box::pin(self.serve_tls(&tls, client, arrival)).await;
                }
            }
            Protocol::Raw => {
                let leg = match leg {
                    Some(leg) => Some(leg),
                    None => Box::pin(way.open_owner(owner.as_ref(), &arrival)).await,
                };
                if let Some(leg) = leg {
                    Box::pin(way.pass_on(&mut client, leg, to_client, &bytes, &arrival)).await;
                }
            }
        }
    }

    async fn serve_tls(self: &Arc<Self>, tls: &Tls, client: BoxStream, arrival: Arrival) {
        match tls.accept(client, &arrival).await {
            Ok((client, facts)) => {
                let original = tls.towards(self.original.clone(), &facts);
                let way = Way {
                    port: self.clone(),
                    original,
                    // Another client may have named another server, or agreed on another protocol.
                    pool: None,
                    http2: None,
                };
                let arrival = Arrival {
                    tls: Some(facts),
                    ..arrival
                };
                self.serve_way(way, client, arrival).await;
            }
            Err(error) => tracing::debug!(%error, "a client's TLS failed"),
        }
    }

    /// Whether somebody wants less than a copy of everything.
    fn needs_splitting(&self) -> bool {
        let claims = self.claims.snapshot();
        claims
            .iter()
            .any(|held| held.claim.mode == Mode::Steal || held.claim.filter.is_some())
    }

    /// The session that gets what cannot be split into requests.
    fn owner(&self) -> Option<Arc<HeldClaim>> {
        let now = Instant::now();
        let claims = self.claims.snapshot();
        claims
            .iter()
            .find(|held| {
                held.claim.mode == Mode::Steal && held.claim.filter.is_none() && held.is_well(now)
            })
            .cloned()
    }

    /// Where bytes go that cannot be split into requests.
    pub(crate) fn raw_route(&self) -> Route {
        self.owner().map_or(Route::Original, Route::Claim)
    }

    /// Whether somebody wants a copy of everything.
    fn has_copies(&self) -> bool {
        let claims = self.claims.snapshot();
        claims
            .iter()
            .any(|held| held.claim.mode == Mode::Mirror && held.claim.filter.is_none())
    }

    /// Starts copies for the sessions that want one of everything.
    fn with_copies(&self, client: BoxStream, arrival: &Arrival) -> BoxStream {
        let claims = self.claims.snapshot();
        let copies: Vec<_> = claims
            .iter()
            .filter(|held| held.claim.mode == Mode::Mirror && held.claim.filter.is_none())
            .map(|held| Copy::start(held, arrival, &self.settings))
            .collect();
        if copies.is_empty() {
            client
        } else {
            copied(client, copies)
        }
    }

    pub(crate) fn expects_clients_to_speak(&self) -> bool {
        self.clients_speak_first.load(Ordering::Relaxed)
    }
}

impl Way {
    /// A new connection to the application.
    pub(crate) async fn open_original(&self, arrival: &Arrival) -> io::Result<Leg> {
        let stream = self.original.open(arrival).await?;
        Ok(Leg::new(Route::Original, stream, Age::Fresh))
    }

    /// A connection to the application that an earlier client has left, or a new one.
    pub(crate) async fn reuse_or_open_original(
        &self,
        arrival: &Arrival,
        is_idempotent: bool,
    ) -> io::Result<Leg> {
        let keep = self.port.settings.keep_idle;
        let kept = self
            .pool
            .as_ref()
            .and_then(|pool| pool.take(is_idempotent, keep));
        match kept {
            Some(stream) => Ok(Leg::new(Route::Original, stream, Age::Used)),
            None => self.open_original(arrival).await,
        }
    }

    /// Keeps a connection to the application for the next client.
    pub(crate) fn keep(&self, stream: BoxStream) {
        let settings = &self.port.settings;
        if let Some(pool) = &self.pool {
            pool.put(stream, settings.keep_idle, settings.idle_limit);
        }
    }

    /// A new connection to a session. One that cannot be had is not asked for again at once.
    pub(crate) async fn open_claim(
        &self,
        held: &Arc<HeldClaim>,
        arrival: &Arrival,
    ) -> Result<Leg, Reason> {
        let settings = &self.port.settings;
        let opening = held.claim.destination.open(arrival);
        let opened = match held.answer_within(settings) {
            None => Ok(opening.await),
            Some(within) => timeout(within, opening).await,
        };
        let reason = match opened {
            Ok(Ok(stream)) => {
                return Ok(Leg::new(Route::Claim(held.clone()), stream, Age::Fresh));
            }
            Ok(Err(_)) => Reason::Unreachable,
            Err(_) => Reason::TooSlow,
        };
        held.suspend(Instant::now(), settings.pause_after_failure);
        Err(reason)
    }

    /// A connection to the session that owns the port, or to the application if there is none or it cannot be reached.
    pub(crate) async fn open_owner(
        &self,
        owner: Option<&Arc<HeldClaim>>,
        arrival: &Arrival,
    ) -> Option<Leg> {
        if let Some(held) = owner {
            match self.open_claim(held, arrival).await {
                Ok(leg) => return Some(leg),
                Err(reason) => held.tell(Notice::FellBack { reason }),
            }
        }
        self.open_original(arrival).await.ok()
    }

    /// Passes a connection on as it is. `first` has been read from the client before. If it goes to a session that fails
    /// before it has said anything, the application gets all of it.
    pub(crate) async fn pass_on(
        &self,
        client: &mut BoxStream,
        mut leg: Leg,
        to_client: Outbox,
        first: &[u8],
        arrival: &Arrival,
    ) {
        let is_untried = leg.age == Age::Fresh && leg.outbox.is_empty() && to_client.is_empty();
        let result = match leg.route.clone() {
            Route::Claim(held) if is_untried => {
                let limit = self.port.settings.replay_limit;
                let given = relay_or_give_back(client, &mut leg.stream, first, limit).await;
                drop(leg);
                match given {
                    Ok(result) => result,
                    Err(unanswered) => self.pass_back(client, &held, unanswered, arrival).await,
                }
            }
            Route::Claim(_) | Route::Original => {
                leg.outbox.push(first);
                relay(client, &mut leg.stream, leg.outbox, to_client).await
            }
        };
        if let Err(error) = result {
            tracing::debug!(%error, "a connection broke");
        }
    }

    /// Passes a connection that a session did not answer on to the application.
    async fn pass_back(
        &self,
        client: &mut BoxStream,
        held: &Arc<HeldClaim>,
        unanswered: Unanswered,
        arrival: &Arrival,
    ) -> io::Result<()> {
        self.tell_unanswered(held, &unanswered);
        let Some(request) = unanswered.request else {
            return Ok(());
        };
        let mut leg = self.open_original(arrival).await?;
        leg.outbox.push(&request);
        relay(client, &mut leg.stream, leg.outbox, Outbox::default()).await
    }

    /// Says that a session did not answer a connection. One that only closed it is there, so the next one is its own.
    pub(crate) fn tell_unanswered(&self, held: &Arc<HeldClaim>, unanswered: &Unanswered) {
        let settings = &self.port.settings;
        if !unanswered.was_orderly {
            held.suspend(Instant::now(), settings.pause_after_failure);
        }
        let reason = Reason::NoAnswer;
        match &unanswered.request {
            Some(request) => {
                held.tell_of(Notice::FellBack { reason }, RequestLine::read(request));
            }
            None => held.tell(Notice::Lost { reason }),
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
