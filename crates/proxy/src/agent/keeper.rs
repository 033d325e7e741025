//! Keeps a session's agents: has each of them looked after, chooses the one that is asked alone, and says what happens.

use std::collections::{HashMap, HashSet};
use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use link::LinkError;
use protocol::rpc::HelloResponse;
use tokio::sync::mpsc;
use tokio::task::AbortHandle;
use tokio::time::{Instant, sleep_until};

use super::watcher::{Report, Reports, Watcher, Why};
use super::{AgentId, Agents, Change, Member, Place, Preference, Source};
use crate::error::Error;
use crate::event::{Event, Tell, chain};

/// How long calls wait when the target has no agent and none is on its way. A rollout has such moments.
const PATIENCE: Duration = Duration::from_secs(30);

/// The first agent of a session is there; others may be on their way. To drop it gives all of them up.
pub struct FirstAgent {
    pub(crate) agents: Agents,
    pub(crate) hello: HelloResponse,
    pub(crate) tell: Tell,
    pub(crate) keeper: Keeping,
}

/// Ends when it is dropped.
#[derive(Debug)]
pub(crate) struct Keeping(AbortHandle);

impl FirstAgent {
    /// Reaches the agents of a source, and waits for one of them to which all may be said. When none of those that there
    /// are can be reached, the error is that of the best. What the user should know, from now to the end of the session, is
    /// told. Must be called on the runtime that carries the session.
    pub async fn wait(source: impl Source, tell: Tell) -> Result<Self, Error> {
        let (keeper, hello) = Keeper::begin(source, Arc::clone(&tell)).await?;
        Ok(Self {
            agents: keeper.agents.clone(),
            hello,
            tell,
            keeper: Keeping(tokio::spawn(keeper.keep()).abort_handle()),
        })
    }

    /// Where something is mounted at the target.
    pub fn mounts(&self) -> impl Iterator<Item = String> {
        let target = self.hello.target.iter();
        let mounts = target.flat_map(|target| &target.mounts);
        mounts.filter_map(|mount| String::from_utf8(mount.to_vec()).ok())
    }
}

impl fmt::Debug for FirstAgent {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut debug = formatter.debug_struct("FirstAgent");
        debug.field("hello", &self.hello).finish_non_exhaustive()
    }
}

impl Keeping {
    /// Nobody looks after agents any more.
    pub(crate) fn end(&self) {
        self.0.abort();
    }
}

impl Drop for Keeping {
    fn drop(&mut self) {
        self.end();
    }
}

struct Keeper<S: Source> {
    source: S,
    agents: Agents,
    tell: Tell,
    places: HashMap<AgentId, Watched>,
    /// Places that nobody looks after yet: there are better ones, or one is enough.
    later: Vec<Place<S::Reach>>,
    /// Whether all agents are needed.
    wants_all: bool,
    /// Agents of the beginning that have neither come nor failed.
    awaited: HashSet<AgentId>,
    /// Agents whose links have no connection.
    away: HashSet<AgentId>,
    watchers: u64,
    /// For the next watcher.
    reports_to_us: Reports,
    reports: mpsc::UnboundedReceiver<(AgentId, u64, Report)>,
    first: Option<(AgentId, Member)>,
    /// What the first agent of all said.
    hello: Option<HelloResponse>,
    has_begun: bool,
    /// When calls fail because nobody comes.
    give_up: Option<Instant>,
    /// What was said last about having no agent.
    told: String,
}

/// A place that is looked after. To drop it ends that.
struct Watched {
    number: u64,
    preference: Preference,
    state: State,
    watcher: AbortHandle,
}

enum State {
    /// Left when it is there or cannot be.
    Reaching,
    /// It was lost, and is reached again. That may be in vain, because its pod may be about to go.
    Again,
    /// Left when the agent is lost, or its target has gone.
    There,
    /// The agent is there without a target, and others have its work.
    WithoutTarget,
    /// Left when another attempt succeeds.
    Failed(Error),
}

enum Incident<R> {
    Reported(AgentId, u64, Report),
    Changed(Vec<Change<R>>),
    AllWanted,
    NobodyCame,
}

impl<S: Source> Keeper<S> {
    /// Waits for the first agent. When none of those that there are can be reached, the error is that of the best.
    async fn begin(source: S, tell: Tell) -> Result<(Self, HelloResponse), Error> {
        let (reports_to_us, reports) = mpsc::unbounded_channel();
        let mut keeper = Self {
            wants_all: !source.is_on_demand(),
            source,
            agents: Agents::default(),
            tell,
            places: HashMap::new(),
            later: Vec::new(),
            awaited: HashSet::new(),
            away: HashSet::new(),
            watchers: 0,
            reports_to_us,
            reports,
            first: None,
            hello: None,
            has_begun: false,
            give_up: Some(Instant::now() + PATIENCE),
            told: String::new(),
        };
        loop {
            if let Some(error) = keeper.failure() {
                return Err(error);
            }
            keeper.step().await?;
            if let Some(hello) = keeper.hello.take() {
                keeper.has_begun = true;
                keeper.start_more();
                keeper.settle();
                return Ok((keeper, hello));
            }
        }
    }

    /// Goes on as long as the session.
    async fn keep(mut self) {
        while self.step().await.is_ok() {}
    }

    /// One thing that happens. The error is the end.
    async fn step(&mut self) -> Result<(), Error> {
        let give_up = self.give_up;
        let nobody_came = async move {
            match give_up {
                Some(time) => sleep_until(time).await,
                None => std::future::pending().await,
            }
        };
        let agents = self.agents.clone();
        let incident = tokio::select! {
            biased;
            Some((id, number, report)) = self.reports.recv() => Incident::Reported(id, number, report),
            changes = self.source.changes() => Incident::Changed(changes),
            () = agents.wanted(), if !self.wants_all => Incident::AllWanted,
            () = nobody_came => Incident::NobodyCame,
        };
        match incident {
            Incident::Reported(id, number, report) => self.hear(&id, number, report),
            Incident::Changed(changes) => {
                for change in changes {
                    self.change(change)?;
                }
            }
            Incident::AllWanted => {
                self.wants_all = true;
                let awaited = self.later.iter().map(|place| place.id.clone());
                self.awaited.extend(awaited);
            }
            Incident::NobodyCame => {
                self.give_up = None;
                let reason = format!("none has come for {} s", PATIENCE.as_secs());
                if !self.has_begun {
                    return Err(Error::NoAgent);
                }
                self.lose(reason, LinkError::StateLost);
            }
        }
        self.start_more();
        self.settle();
        Ok(())
    }

    fn change(&mut self, change: Change<S::Reach>) -> Result<(), Error> {
        match change {
            Change::Came(place) => {
                self.remove(&place.id, "another one takes its place");
                if !self.has_begun {
                    self.awaited.insert(place.id.clone());
                }
                self.give_up = None;
                self.later.push(place);
            }
            Change::Went(id, why) => self.remove(&id, &why),
            Change::RulesChanged(id) => (self.tell)(&Event::RulesChanged(id)),
            Change::Over(why) => {
                let ids: Vec<AgentId> = self.places.keys().cloned().collect();
                for id in ids {
                    self.agents.router.leave(&id);
                }
                self.agents.connection.lose(LinkError::StateLost);
                (self.tell)(&Event::SessionOver(why.clone()));
                self.places.clear();
                return Err(Error::Refused(why));
            }
        }
        Ok(())
    }

    fn watch(&mut self, place: Place<S::Reach>) {
        self.watchers += 1;
        self.give_up = None;
        let Place {
            id,
            preference,
            reach,
        } = place;
        let watcher = Watcher {
            id: id.clone(),
            number: self.watchers,
            reach,
            reports: self.reports_to_us.clone(),
        };
        let watched = Watched {
            number: self.watchers,
            preference,
            state: State::Reaching,
            watcher: tokio::spawn(watcher.live()).abort_handle(),
        };
        self.places.insert(id, watched);
    }

    /// Nobody looks after this place any more.
    fn remove(&mut self, id: &AgentId, why: &str) {
        self.awaited.remove(id);
        self.later.retain(|place| place.id != *id);
        let Some(watched) = self.places.remove(id) else {
            return;
        };
        if matches!(watched.state, State::There) {
            self.leave(id, why);
        } else {
            self.follow_first();
        }
        // Only now, so that whoever asks anew asks another.
        drop(watched);
    }

    /// What a watcher says.
    fn hear(&mut self, id: &AgentId, number: u64, report: Report) {
        let Some(watched) = self.places.get_mut(id) else {
            return;
        };
        if watched.number != number {
            return;
        }
        match report {
            Report::Joined(member, hello) => {
                watched.state = State::There;
                let preference = watched.preference;
                self.join(id, member, *hello, preference);
            }
            Report::Lost(why, scissors) => {
                let was_there = matches!(watched.state, State::There);
                watched.state = State::Again;
                match why {
                    Why::Successor => {
                        (self.tell)(&Event::TargetBack);
                        self.agents.router.leave(id);
                        self.follow_first();
                    }
                    Why::Link(error) if was_there => self.leave(id, &chain(&error)),
                    Why::AgentEnded(reason) if was_there => self.leave(id, &reason),
                    Why::Link(_) | Why::AgentEnded(_) => {}
                }
                // What is under way fails now, and not when the link gives up hope.
                drop(scissors);
            }
            Report::Failed(error) => self.fail(id, error),
            // What needs one agent does not need this one; what becomes of its cluster is told by whoever sees it.
            Report::Away(reason) if watched.preference == Preference::TrafficOnly => {
                tracing::info!(agent = %id, reason, "an agent with nothing but traffic is away");
            }
            Report::Away(reason) => {
                if self.away.is_empty() {
                    (self.tell)(&Event::ConnectionLost(reason));
                }
                self.away.insert(id.clone());
            }
            Report::Back => {
                let was_away = self.away.remove(id);
                if was_away && self.away.is_empty() {
                    (self.tell)(&Event::ConnectionBack);
                }
            }
            Report::TargetGone if self.agents.router.all().len() > 1 => {
                watched.state = State::WithoutTarget;
                self.leave(id, "it has ended");
            }
            Report::TargetGone => (self.tell)(&Event::TargetGone),
        }
    }

    fn join(&mut self, id: &AgentId, member: Member, hello: HelloResponse, preference: Preference) {
        let is_late = !self.awaited.remove(id);
        self.agents.router.join(id.clone(), member, preference);
        let was_first = self.first.clone();
        self.follow_first();
        let is_first = self.first.as_ref().is_some_and(|(first, _)| first == id);
        // One with nothing but traffic may be there sooner, and its target is not the one that is stood in for.
        if is_first && !self.has_begun {
            self.hello = Some(hello);
        }
        if is_late && was_first.is_some() && !is_first {
            (self.tell)(&Event::Joined(id.clone()));
        }
    }

    /// An agent has gone that was there.
    fn leave(&mut self, id: &AgentId, why: &str) {
        self.away.remove(id);
        let (agent, reason) = (id.clone(), why.to_owned());
        let was_first = self.first.as_ref().is_some_and(|(first, _)| first == id);
        (self.tell)(&match was_first {
            true => Event::AgentLost { agent, reason },
            false => Event::Left { agent, reason },
        });
        self.agents.router.leave(id);
        self.follow_first();
    }

    fn fail(&mut self, id: &AgentId, error: Error) {
        self.awaited.remove(id);
        let Some(watched) = self.places.get_mut(id) else {
            return;
        };
        let reason = chain(&error);
        let is_new = match &watched.state {
            State::Failed(before) => chain(before) != reason,
            _ => true,
        };
        let is_traffic_only = watched.preference == Preference::TrafficOnly;
        watched.state = State::Failed(error);
        if is_new && self.has_begun && (self.first.is_some() || is_traffic_only) {
            let agent = id.clone();
            (self.tell)(&Event::NotJoined { agent, reason });
        }
        self.follow_first();
    }

    /// Lets those who ask one agent alone ask the one that is the first now.
    fn follow_first(&mut self) {
        match self.agents.router.first() {
            Some((id, member)) => {
                if self.first.as_ref().is_some_and(|(_, now)| *now == member) {
                    return;
                }
                self.give_up = None;
                self.told.clear();
                self.agents.connection.replace(member.clone());
                if self.has_begun {
                    (self.tell)(&Event::SessionRestored(id.clone()));
                }
                self.first = Some((id, member));
            }
            None => {
                if self.first.take().is_some() {
                    self.agents.connection.await_another();
                }
                self.follow_nobody();
            }
        }
    }

    /// There is no agent to ask: calls wait for one that is being reached, and for a while for one that may come.
    fn follow_nobody(&mut self) {
        if !self.has_begun {
            return;
        }
        self.start_more();
        let mut possible = self
            .places
            .values()
            .filter(|place| place.preference != Preference::TrafficOnly)
            .peekable();
        if possible.peek().is_none() {
            if self.give_up.is_none() && self.told.is_empty() {
                self.give_up = Some(Instant::now() + PATIENCE);
                (self.tell)(&Event::NobodyThere(PATIENCE.as_secs()));
            }
            return;
        }
        let failures: Option<Vec<&Error>> = possible
            .map(|place| match &place.state {
                State::Failed(error) => Some(error),
                _ => None,
            })
            .collect();
        let Some(error) = failures.and_then(|failures| failures.first().copied()) else {
            return;
        };
        let why = match error {
            Error::Link(error) => error.clone(),
            _ => LinkError::StateLost,
        };
        self.lose(chain(error), why);
    }

    /// Calls fail until there is an agent.
    fn lose(&mut self, reason: String, why: LinkError) {
        self.agents.connection.lose(why);
        if self.told != reason {
            (self.tell)(&Event::SessionLost(reason.clone()));
            self.told = reason;
        }
    }

    /// Begins to look after places that are needed now.
    fn start_more(&mut self) {
        let is_possible = |preference| preference != Preference::TrafficOnly;
        let possible = || {
            let places = self.places.values();
            places.filter(|place| is_possible(place.preference))
        };
        let has_hope =
            possible().any(|place| matches!(place.state, State::Reaching | State::There));
        let has_failed = possible().any(|place| matches!(place.state, State::Failed(_)));
        let starts_all = !has_hope && has_failed || self.wants_all && self.has_begun;
        let mut later = std::mem::take(&mut self.later);
        // Those that are not ready are tried when no better one can be had.
        later.sort_by_key(|place| place.preference);
        let best = later.first().map(|place| place.preference);
        for (index, place) in later.into_iter().enumerate() {
            let is_best = Some(place.preference) == best && is_possible(place.preference);
            let is_needed = match self.wants_all {
                true => !has_hope && is_best || place.preference == Preference::TrafficOnly,
                false => !has_hope && is_best && index == 0,
            };
            if starts_all || is_needed {
                self.watch(place);
            } else {
                self.later.push(place);
            }
        }
    }

    /// The agents of the beginning have come, or are known not to.
    fn settle(&mut self) {
        let is_complete = self.has_begun && self.wants_all && self.awaited.is_empty();
        if !is_complete || self.agents.is_settled() {
            return;
        }
        let all = self.agents.router.all();
        if all.len() > 1 {
            (self.tell)(&Event::covers(all.iter().map(|(id, _)| id)));
        }
        self.agents.settle();
    }

    /// Nobody of those that were tried first can be had.
    fn best_failed(&self) -> bool {
        let mut best = self
            .places
            .values()
            .filter(|place| place.preference != Preference::TrafficOnly);
        best.all(|place| matches!(place.state, State::Failed(_)))
    }

    /// Why there is no session, when all are known to have failed.
    fn failure(&mut self) -> Option<Error> {
        let is_possible = |preference: Preference| preference != Preference::TrafficOnly;
        let is_later = |place: &Place<S::Reach>| is_possible(place.preference);
        if self.later.iter().any(is_later) || !self.best_failed() {
            return None;
        }
        let best = self
            .places
            .iter()
            .filter(|(_, place)| is_possible(place.preference))
            .min_by_key(|(_, place)| place.number)
            .map(|(id, _)| id.clone())?;
        match &mut self.places.remove(&best)?.state {
            State::Failed(error) => Some(std::mem::replace(error, Error::NoAgent)),
            _ => None,
        }
    }
}

impl Drop for Watched {
    fn drop(&mut self) {
        self.watcher.abort();
    }
}
