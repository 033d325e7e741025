//! Who gets what of a port.
//!
//! Several sessions share a port when their filters differ. A request goes to the oldest claim whose filter wants it: so
//! whoever was there first is not disturbed by a newcomer, and the same request always goes the same way. A claim on the
//! whole port, or one with the same filter, conflicts with what is there. Copies conflict with nothing.
//!
//! What somebody has who is away, because his connection is lost, stays his until he may not come back any more: unless he
//! asks again himself, with another session.

use std::fmt;
use std::sync::atomic::{AtomicU8, AtomicU64, Ordering};
use std::sync::{Arc, PoisonError, RwLock};
use std::time::Duration;

use tokio::sync::watch;
use tokio::time::Instant;

use crate::Error;
use crate::copy::Budget;
use crate::departures::Departures;
use crate::error::{Conflict, Held};
use crate::filter::{Filter, Judgement, RequestView};
use crate::probes::Probes;
use crate::settings::{Notice, Notices, RequestLine, Settings};
use crate::stream::Destination;
use crate::tls::Tls;

/// What a session asks for.
pub struct Claim {
    /// Who asks, in words for the one who is refused because of it.
    pub holder: String,
    /// Who it is, the same for all sessions of one user on one machine and for no other. `None` if that is not known.
    pub owner: Option<String>,
    /// For how long it has been held elsewhere. Who came before him there is still before him here.
    pub held_for: Duration,
    pub mode: Mode,
    /// Which requests, or everything on the port.
    pub filter: Option<Filter>,
    /// Whether health probes are taken as well.
    pub takes_probes: bool,
    /// How long the session may take to begin an answer, if not as long as the port's settings say.
    pub answer_within: Option<Duration>,
    /// How connections that are encrypted for the target are looked into, for all sessions as long as this one is there.
    pub tls: Option<Tls>,
    /// Told what becomes of what the session wants.
    pub notices: Notices,
    /// Where it goes to.
    pub destination: Arc<dyn Destination>,
}

/// How a session wants traffic.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Mode {
    /// Instead of the original application.
    Steal,
    /// As a copy.
    Mirror,
}

/// What to do when somebody else holds what is asked for.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub enum OnConflict {
    /// Refuse, and say who holds it.
    #[default]
    Abort,
    /// Take what the others leave, and all of it when they are gone.
    Continue,
    /// Take it from them.
    Override,
}

/// The claims of a port.
#[derive(Debug, Default)]
pub struct Claims {
    current: RwLock<Snapshot>,
    /// From those who claim and give back to those who want to know who is there.
    changed: watch::Sender<()>,
    next_identity: AtomicU64,
}

/// A claim that is held.
pub(crate) struct HeldClaim {
    pub(crate) identity: u64,
    pub(crate) claim: Claim,
    /// The oldest is first.
    since: Instant,
    /// Whether whoever answers there takes WebSockets over HTTP/2.
    pub(crate) extended_connect: Knowledge,
    /// What waits in memory to be copied to the session.
    pub(crate) copies: Budget,
    /// When copies leave.
    pub(crate) departures: Departures,
    health: Health,
    lost_to: watch::Sender<Option<String>>,
}

/// A claim is held as long as this lives.
#[derive(Debug)]
pub struct ClaimGuard {
    claims: Arc<Claims>,
    held: Arc<HeldClaim>,
}

/// The claims at one moment.
pub(crate) type Snapshot = Arc<Vec<Arc<HeldClaim>>>;

impl Claims {
    /// Claims traffic for a session, until the guard is dropped.
    pub fn claim(
        self: &Arc<Self>,
        claim: Claim,
        on_conflict: OnConflict,
    ) -> Result<ClaimGuard, Error> {
        let mut current = self.current.write().unwrap_or_else(PoisonError::into_inner);
        let held = self.add(&mut current, claim, on_conflict)?;
        drop(current);
        self.changed.send_replace(());
        Ok(ClaimGuard {
            claims: self.clone(),
            held,
        })
    }

    fn add(
        &self,
        current: &mut Snapshot,
        claim: Claim,
        on_conflict: OnConflict,
    ) -> Result<Arc<HeldClaim>, Error> {
        let now = Instant::now();
        let mut claims = current.as_ref().clone();
        let mut lost = Vec::new();
        for held in &claims {
            let Some(what) = conflict(&held.claim, &claim) else {
                continue;
            };
            let away = held.claim.destination.away();
            let is_own = held.claim.owner.is_some() && held.claim.owner == claim.owner;
            match on_conflict {
                _ if is_own && away.is_some() => lost.push(held.identity),
                OnConflict::Continue => {}
                OnConflict::Override => lost.push(held.identity),
                OnConflict::Abort => {
                    return Err(Error::Conflict(Conflict {
                        holder: held.claim.holder.clone(),
                        what,
                        away,
                        is_own,
                    }));
                }
            }
        }
        claims.retain(|held| {
            let stays = !lost.contains(&held.identity);
            if !stays {
                held.lost_to.send_replace(Some(claim.holder.clone()));
            }
            stays
        });
        let held = Arc::new(HeldClaim {
            identity: self.next_identity.fetch_add(1, Ordering::Relaxed),
            since: now.checked_sub(claim.held_for).unwrap_or(now),
            claim,
            extended_connect: Knowledge::default(),
            copies: Budget::default(),
            departures: Departures::default(),
            health: Health::default(),
            lost_to: watch::Sender::new(None),
        });
        let place = claims.partition_point(|other| other.since <= held.since);
        claims.insert(place, held.clone());
        *current = Arc::new(claims);
        Ok(held)
    }

    pub(crate) fn snapshot(&self) -> Snapshot {
        self.current
            .read()
            .unwrap_or_else(PoisonError::into_inner)
            .clone()
    }
}

impl ClaimGuard {
    /// Waits until somebody takes the claim away, and says who.
    pub async fn overridden(&self) -> String {
        let mut lost_to = self.held.lost_to.subscribe();
        let by = lost_to.wait_for(Option::is_some).await;
        by.ok().and_then(|by| by.clone()).unwrap_or_default()
    }

    /// Who was there before and gets some of what is claimed here, or all of it.
    #[must_use]
    pub fn earlier(&self) -> Vec<Earlier> {
        let claims = self.claims.snapshot();
        let is_own = |held: &Arc<HeldClaim>| held.identity == self.held.identity;
        // One that was taken away is not there.
        let place = claims.iter().position(is_own).unwrap_or(0);
        let before = claims.iter().take(place);
        let earlier = before.filter_map(|held| {
            let what = conflict(&held.claim, &self.held.claim)?;
            let holder = held.claim.holder.clone();
            Some(Earlier { holder, what })
        });
        earlier.collect()
    }

    /// Waits until that is not `known` any more, and says what it is now.
    pub async fn earlier_changed(&self, known: &[Earlier]) -> Vec<Earlier> {
        let mut changed = self.claims.changed.subscribe();
        loop {
            let earlier = self.earlier();
            if earlier != known {
                return earlier;
            }
            // The sender lives as long as the guard.
            let _ = changed.changed().await;
        }
    }
}

impl Drop for ClaimGuard {
    fn drop(&mut self) {
        let claims = &self.claims.current;
        let mut current = claims.write().unwrap_or_else(PoisonError::into_inner);
        let mut left = current.as_ref().clone();
        left.retain(|held| held.identity != self.held.identity);
        *current = Arc::new(left);
        drop(current);
        self.claims.changed.send_replace(());
    }
}

/// Somebody who was there before.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Earlier {
    pub holder: String,
    pub what: Held,
}

/// What the first of two claims has that cannot be the second's as well.
fn conflict(held: &Claim, new: &Claim) -> Option<Held> {
    if held.mode == Mode::Mirror || new.mode == Mode::Mirror {
        return None;
    }
    match (&held.filter, &new.filter) {
        (None, _) => Some(Held::WholePort),
        (Some(_), None) => Some(Held::SomeRequests),
        (Some(held), Some(new)) if held == new => Some(Held::SameRequests),
        (Some(_), Some(_)) => None,
    }
}

/// Where a request goes.
#[derive(Debug, Clone)]
pub(crate) enum Choice {
    Original,
    Claim(Arc<HeldClaim>),
    /// The body decides.
    NeedsBody,
}

/// Chooses the oldest claim that wants the request. Without a `body`, one that would decide is asked for; `Some(None)` is
/// a body that is not JSON, or too large to look at.
pub(crate) fn choose(
    claims: &Snapshot,
    probes: &Probes,
    request: &RequestView<'_>,
    body: Option<Option<&serde_json::Value>>,
    now: Instant,
) -> Choice {
    let mut is_probe = None;
    for held in claims.iter() {
        let claim = &held.claim;
        if claim.mode == Mode::Mirror || !held.health.is_well(now) {
            continue;
        }
        let judgement = judge(claim, request, body);
        if judgement == Judgement::NotWanted {
            continue;
        }
        if !claim.takes_probes && *is_probe.get_or_insert_with(|| probes.is_probe(request)) {
            continue;
        }
        return match judgement {
            Judgement::NeedsBody => Choice::NeedsBody,
            _ => Choice::Claim(held.clone()),
        };
    }
    Choice::Original
}

/// Whether a claim wants the request.
pub(crate) fn judge(
    claim: &Claim,
    request: &RequestView<'_>,
    body: Option<Option<&serde_json::Value>>,
) -> Judgement {
    match (&claim.filter, body) {
        (None, _) => Judgement::Wanted,
        (Some(filter), None) => filter.judge(request),
        (Some(filter), Some(body)) => filter.wants(request, body).into(),
    }
}

/// Sessions with a filter that get a copy of the request. `None` if the body decides.
pub(crate) fn mirrors(
    claims: &Snapshot,
    request: &RequestView<'_>,
    body: Option<Option<&serde_json::Value>>,
) -> Option<Vec<Arc<HeldClaim>>> {
    let mut mirrors = Vec::new();
    for held in claims.iter() {
        // Those without a filter get a copy of the whole connection.
        if held.claim.mode != Mode::Mirror || held.claim.filter.is_none() {
            continue;
        }
        match judge(&held.claim, request, body) {
            Judgement::Wanted => mirrors.push(held.clone()),
            Judgement::NotWanted => {}
            Judgement::NeedsBody => return None,
        }
    }
    Some(mirrors)
}

/// Something about a place that is found out once.
#[derive(Debug, Default)]
pub(crate) struct Knowledge(AtomicU8);

impl Knowledge {
    const NO: u8 = 1;
    const YES: u8 = 2;

    /// `None` if it has not been found out.
    pub(crate) fn get(&self) -> Option<bool> {
        match self.0.load(Ordering::Relaxed) {
            Self::NO => Some(false),
            Self::YES => Some(true),
            _ => None,
        }
    }

    pub(crate) fn set(&self, is_so: bool) {
        let value = if is_so { Self::YES } else { Self::NO };
        self.0.store(value, Ordering::Relaxed);
    }
}

/// After a failure a session is left alone for a while, so that only one request pays for it.
#[derive(Debug)]
struct Health {
    epoch: Instant,
    /// In milliseconds after the epoch.
    unwell_until: AtomicU64,
}

impl Default for Health {
    fn default() -> Self {
        Self {
            epoch: Instant::now(),
            unwell_until: AtomicU64::new(0),
        }
    }
}

impl Health {
    fn is_well(&self, now: Instant) -> bool {
        let until = self.unwell_until.load(Ordering::Relaxed);
        until == 0 || self.milliseconds(now) >= until
    }

    fn milliseconds(&self, now: Instant) -> u64 {
        let elapsed = now.saturating_duration_since(self.epoch);
        u64::try_from(elapsed.as_millis()).unwrap_or(u64::MAX)
    }
}

impl HeldClaim {
    /// Leaves the session alone for a while.
    pub(crate) fn suspend(&self, now: Instant, pause: Duration) {
        let until = self.health.milliseconds(now + pause);
        self.health
            .unwell_until
            .store(until.max(1), Ordering::Relaxed);
    }

    pub(crate) fn is_well(&self, now: Instant) -> bool {
        self.health.is_well(now)
    }

    pub(crate) fn tell(&self, notice: Notice) {
        self.tell_of(notice, None);
    }

    /// With the request that it is about.
    pub(crate) fn tell_of(&self, notice: Notice, request: Option<RequestLine>) {
        tracing::info!(holder = self.claim.holder, ?notice, "incoming traffic");
        self.claim.notices.tell(notice, request);
    }

    /// How long the session may take to begin an answer. `None` is as long as the client waits.
    pub(crate) fn answer_within(&self, settings: &Settings) -> Option<Duration> {
        self.claim.answer_within.or(settings.answer_within)
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

impl fmt::Debug for HeldClaim {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Debug::fmt(&self.claim, formatter)
    }
}
