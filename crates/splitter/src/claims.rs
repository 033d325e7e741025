//! The claims of sessions on the traffic of a port.
//!
//! Several sessions share a port when their filters differ. A request goes to the oldest claim whose filter matches it.
//! So a new session does not disturb an existing one, and the same request always has the same route. A claim on the whole
//! port, or one with the same filter, conflicts with existing claims. Mirrors never conflict.
//!
//! A session that is unreachable because it lost its connection keeps its claims until its resume window expires. The only
//! exception is its own user: another session of the same user takes the claims over.

use std::fmt;
use std::sync::Arc;
use std::sync::atomic::{AtomicU8, AtomicU64, Ordering};
use std::time::Duration;

use parking_lot::RwLock;
use tokio::sync::watch;
use tokio::time::Instant;

use crate::Error;
use crate::error::{ClaimedTraffic, Conflict};
use crate::filter::{Filter, RequestView, Verdict};
use crate::flush_schedule::FlushSchedule;
use crate::memory::Memory;
use crate::mirror::MirrorBudget;
use crate::probes::Probes;
use crate::settings::{Notice, NoticeHandler, RequestLine, Settings};
use crate::stream::Destination;
use crate::tls::TlsTermination;

/// The traffic that a session claims.
pub struct Claim {
    /// Display name of the user. Other users see it in conflict messages.
    pub holder: String,
    /// Identifies the user: the same for all sessions of one user on one machine, and unique to them. `None` if unknown.
    pub owner: Option<String>,
    /// How long another agent has already held this claim. It keeps the order of the claims across agents.
    pub age: Duration,
    pub mode: Mode,
    /// Which requests to claim. `None` claims the whole port.
    pub filter: Option<Filter>,
    /// Whether health probes are claimed as well.
    pub takes_probes: bool,
    /// How long the session may take to start a response. Overrides the port's settings.
    pub response_timeout: Option<Duration>,
    /// How TLS connections to the target are terminated. It applies to all sessions for as long as this claim exists.
    pub tls: Option<TlsTermination>,
    /// Called when a claimed request did not reach the session.
    pub on_notice: NoticeHandler,
    /// The session.
    pub destination: Arc<dyn Destination>,
}

/// How a session gets traffic.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Mode {
    /// Instead of the original application.
    Steal,
    /// As a copy, beside the original application.
    Mirror,
}

/// What to do when another session holds the requested traffic.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub enum OnConflict {
    /// Fail, and report the holder.
    #[default]
    Abort,
    /// Take the traffic that the other sessions do not claim, and all of it when they have ended.
    Continue,
    /// Take the claims of the other sessions over.
    Override,
}

/// The claims of a port.
#[derive(Debug, Default)]
pub struct Claims {
    current: RwLock<Snapshot>,
    /// Notifies [`ClaimGuard::earlier_sessions_changed`] of every change.
    changed: watch::Sender<()>,
    next_id: AtomicU64,
    memory: Memory,
}

/// A claim that is in effect.
pub(crate) struct ActiveClaim {
    pub(crate) id: u64,
    pub(crate) claim: Claim,
    /// Claims are ordered by this time, oldest first.
    since: Instant,
    /// Whether the session supports WebSockets over HTTP/2.
    pub(crate) extended_connect: CachedFlag,
    /// Counts the bytes that are buffered for the session's mirrors.
    pub(crate) mirror_budget: MirrorBudget,
    /// When buffered mirror bytes are flushed.
    pub(crate) flush_schedule: FlushSchedule,
    health: Health,
    overridden_by: watch::Sender<Option<String>>,
}

/// Keeps a claim in effect until it is dropped.
#[derive(Debug)]
pub struct ClaimGuard {
    claims: Arc<Claims>,
    active: Arc<ActiveClaim>,
}

/// The claims at one point in time.
pub(crate) type Snapshot = Arc<Vec<Arc<ActiveClaim>>>;

impl Claims {
    /// Without any claims. Mirrors draw from the memory.
    pub(crate) fn with_memory(memory: &Memory) -> Self {
        Self {
            memory: memory.clone(),
            ..Self::default()
        }
    }

    /// Claims traffic for a session, until the guard is dropped.
    pub fn claim(
        self: &Arc<Self>,
        claim: Claim,
        on_conflict: OnConflict,
    ) -> Result<ClaimGuard, Error> {
        let mut current = self.current.write();
        let active = self.add(&mut current, claim, on_conflict)?;
        drop(current);
        self.changed.send_replace(());
        Ok(ClaimGuard {
            claims: self.clone(),
            active,
        })
    }

    fn add(
        &self,
        current: &mut Snapshot,
        claim: Claim,
        on_conflict: OnConflict,
    ) -> Result<Arc<ActiveClaim>, Error> {
        let now = Instant::now();
        let mut claims = current.as_ref().clone();
        let mut lost = Vec::new();
        for active in &claims {
            let Some(traffic) = conflict(&active.claim, &claim) else {
                continue;
            };
            let unreachable = active.claim.destination.unreachable();
            let is_own = active.claim.owner.is_some() && active.claim.owner == claim.owner;
            match on_conflict {
                _ if is_own && unreachable.is_some() => lost.push(active.id),
                OnConflict::Continue => {}
                OnConflict::Override => lost.push(active.id),
                OnConflict::Abort => {
                    return Err(Error::Conflict(Conflict {
                        holder: active.claim.holder.clone(),
                        traffic,
                        unreachable,
                        is_own,
                    }));
                }
            }
        }
        claims.retain(|active| {
            let stays = !lost.contains(&active.id);
            if !stays {
                active
                    .overridden_by
                    .send_replace(Some(claim.holder.clone()));
            }
            stays
        });
        let active = Arc::new(ActiveClaim {
            id: self.next_id.fetch_add(1, Ordering::Relaxed),
            since: now.checked_sub(claim.age).unwrap_or(now),
            claim,
            extended_connect: CachedFlag::default(),
            mirror_budget: MirrorBudget::within(&self.memory),
            flush_schedule: FlushSchedule::default(),
            health: Health::default(),
            overridden_by: watch::Sender::new(None),
        });
        let position = claims.partition_point(|other| other.since <= active.since);
        claims.insert(position, active.clone());
        *current = Arc::new(claims);
        Ok(active)
    }

    pub(crate) fn snapshot(&self) -> Snapshot {
        self.current.read().clone()
    }
}

impl ClaimGuard {
    /// Waits until another session overrides the claim, and returns its holder.
    pub async fn overridden(&self) -> String {
        let mut overridden_by = self.active.overridden_by.subscribe();
        let by = overridden_by.wait_for(Option::is_some).await;
        by.ok().and_then(|by| by.clone()).unwrap_or_default()
    }

    /// The earlier sessions that get some or all of the traffic that is claimed here.
    #[must_use]
    pub fn earlier_sessions(&self) -> Vec<EarlierSession> {
        let claims = self.claims.snapshot();
        let is_own = |active: &Arc<ActiveClaim>| active.id == self.active.id;
        // A claim that was overridden is not in the list.
        let position = claims.iter().position(is_own).unwrap_or(0);
        let before = claims.iter().take(position);
        let earlier_sessions = before.filter_map(|active| {
            let traffic = conflict(&active.claim, &self.active.claim)?;
            let holder = active.claim.holder.clone();
            Some(EarlierSession { holder, traffic })
        });
        earlier_sessions.collect()
    }

    /// Waits until the earlier sessions differ from `previous`, and returns them.
    pub async fn earlier_sessions_changed(
        &self,
        previous: &[EarlierSession],
    ) -> Vec<EarlierSession> {
        let mut changed = self.claims.changed.subscribe();
        loop {
            let earlier_sessions = self.earlier_sessions();
            if earlier_sessions != previous {
                return earlier_sessions;
            }
            // The sender lives as long as the guard.
            let _ = changed.changed().await;
        }
    }
}

impl Drop for ClaimGuard {
    fn drop(&mut self) {
        let claims = &self.claims.current;
        let mut current = claims.write();
        let mut left = current.as_ref().clone();
        left.retain(|active| active.id != self.active.id);
        *current = Arc::new(left);
        drop(current);
        self.claims.changed.send_replace(());
    }
}

/// An earlier session whose claim takes precedence.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct EarlierSession {
    pub holder: String,
    pub traffic: ClaimedTraffic,
}

/// The traffic of an existing claim that conflicts with a new one.
fn conflict(active: &Claim, new: &Claim) -> Option<ClaimedTraffic> {
    if active.mode == Mode::Mirror || new.mode == Mode::Mirror {
        return None;
    }
    match (&active.filter, &new.filter) {
        (None, _) => Some(ClaimedTraffic::WholePort),
        (Some(_), None) => Some(ClaimedTraffic::SomeRequests),
        (Some(active), Some(new)) if active == new => Some(ClaimedTraffic::SameRequests),
        (Some(_), Some(_)) => None,
    }
}

/// The result of [`select_route`].
#[derive(Debug, Clone)]
pub(crate) enum RouteChoice {
    Application,
    Claim(Arc<ActiveClaim>),
    /// The route depends on the body.
    NeedsBody,
}

/// Selects the oldest claim that matches the request. With `body` `None` the result may be [`RouteChoice::NeedsBody`];
/// `Some(None)` is a body that is not JSON, or too large to inspect.
pub(crate) fn select_route(
    claims: &Snapshot,
    probes: &Probes,
    request: &RequestView<'_>,
    body: Option<Option<&serde_json::Value>>,
    now: Instant,
) -> RouteChoice {
    let mut is_probe = None;
    for active in claims.iter() {
        let claim = &active.claim;
        if claim.mode == Mode::Mirror || !active.health.is_healthy(now) {
            continue;
        }
        let verdict = match_claim(claim, request, body);
        if verdict == Verdict::NoMatch {
            continue;
        }
        if !claim.takes_probes && *is_probe.get_or_insert_with(|| probes.is_probe(request)) {
            continue;
        }
        return match verdict {
            Verdict::NeedsBody => RouteChoice::NeedsBody,
            _ => RouteChoice::Claim(active.clone()),
        };
    }
    RouteChoice::Application
}

/// Matches a request against a claim.
pub(crate) fn match_claim(
    claim: &Claim,
    request: &RequestView<'_>,
    body: Option<Option<&serde_json::Value>>,
) -> Verdict {
    match (&claim.filter, body) {
        (None, _) => Verdict::Match,
        (Some(filter), None) => filter.match_head(request),
        (Some(filter), Some(body)) => filter.matches(request, body).into(),
    }
}

/// The sessions whose mirror filter matches the request. `None` if that depends on the body.
pub(crate) fn matching_mirrors(
    claims: &Snapshot,
    request: &RequestView<'_>,
    body: Option<Option<&serde_json::Value>>,
) -> Option<Vec<Arc<ActiveClaim>>> {
    let mut mirrors = Vec::new();
    for active in claims.iter() {
        // Mirrors without a filter get the whole connection.
        if active.claim.mode != Mode::Mirror || active.claim.filter.is_none() {
            continue;
        }
        match match_claim(&active.claim, request, body) {
            Verdict::Match => mirrors.push(active.clone()),
            Verdict::NoMatch => {}
            Verdict::NeedsBody => return None,
        }
    }
    Some(mirrors)
}

/// A fact about an upstream that is detected once.
#[derive(Debug, Default)]
pub(crate) struct CachedFlag(AtomicU8);

impl CachedFlag {
    const NO: u8 = 1;
    const YES: u8 = 2;

    /// `None` if it has not been detected yet.
    pub(crate) fn get(&self) -> Option<bool> {
        match self.0.load(Ordering::Relaxed) {
            Self::NO => Some(false),
            Self::YES => Some(true),
            _ => None,
        }
    }

    pub(crate) fn set(&self, flag: bool) {
        let value = if flag { Self::YES } else { Self::NO };
        self.0.store(value, Ordering::Relaxed);
    }
}

/// After a failure a session gets no requests for a while, so that only one request is delayed by it.
#[derive(Debug)]
struct Health {
    epoch: Instant,
    /// In milliseconds after `epoch`.
    unhealthy_until: AtomicU64,
}

impl Default for Health {
    fn default() -> Self {
        Self {
            epoch: Instant::now(),
            unhealthy_until: AtomicU64::new(0),
        }
    }
}

impl Health {
    fn is_healthy(&self, now: Instant) -> bool {
        let until = self.unhealthy_until.load(Ordering::Relaxed);
        until == 0 || self.milliseconds(now) >= until
    }

    fn milliseconds(&self, now: Instant) -> u64 {
        let elapsed = now.saturating_duration_since(self.epoch);
        u64::try_from(elapsed.as_millis()).unwrap_or(u64::MAX)
    }
}

impl ActiveClaim {
    /// Sends no requests to the session for a while.
    pub(crate) fn suspend(&self, now: Instant, cooldown: Duration) {
        let until = self.health.milliseconds(now + cooldown);
        self.health
            .unhealthy_until
            .store(until.max(1), Ordering::Relaxed);
    }

    pub(crate) fn is_healthy(&self, now: Instant) -> bool {
        self.health.is_healthy(now)
    }

    pub(crate) fn notify(&self, notice: Notice) {
        self.notify_request(notice, None);
    }

    /// Notifies the session of a request that did not reach it.
    pub(crate) fn notify_request(&self, notice: Notice, request: Option<RequestLine>) {
        tracing::info!(
            holder = self.claim.holder,
            ?notice,
            "incoming traffic missed"
        );
        self.claim.on_notice.notify(notice, request);
    }

    /// How long the session may take to start a response. `None` means as long as the client waits.
    pub(crate) fn response_timeout(&self, settings: &Settings) -> Option<Duration> {
        self.claim.response_timeout.or(settings.response_timeout)
    }
}

impl fmt::Debug for Claim {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter
            .debug_struct("Claim")
            .field("holder", &self.holder)
            .field("mode", &self.mode)
            .field("filter", &self.filter)
            .finish_non_exhaustive()
    }
}

impl fmt::Debug for ActiveClaim {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Debug::fmt(&self.claim, formatter)
    }
}
