//! The life of one port: from its first listener to its last, at all agents that there are.

use std::collections::{BTreeSet, HashMap, HashSet};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use interceptor::Errno;
use protocol::rpc::Failure;
use router::Change;
use tokio::sync::mpsc;
use tokio::task::AbortHandle;
use tokio::time::{Instant, interval, timeout};
use tonic::Status;

use super::door::Asking;
use super::doors::Doors;
use super::subscription::{Ours, Said, Saying, Subscription};
use super::watch::Watch;
use super::{Key, Shared, is_final, reason_of};
use crate::agent::{AgentId, Member};
use crate::event::{Checked, Earlier, Event, IncomingEvent, News, Subscribed, describe};

/// How often it is looked whether the application still listens.
const LOOK_EVERY: Duration = Duration::from_millis(500);

/// Waiting for agents that are being started is said after so long.
const WORTH_A_WORD: Duration = Duration::from_secs(3);

pub(super) struct Port {
    shared: Arc<Shared>,
    key: Key,
    /// The application's port.
    local: u16,
    /// From the application's calls to us.
    askings: mpsc::UnboundedReceiver<Asking>,
    /// Who waits for the subscription.
    asking: Vec<Asking>,
    doors: Arc<Doors>,
    /// Where the port was ours once.
    before: HashSet<AgentId>,
}

/// A port while the application listens on it.
struct Round {
    agents: HashMap<AgentId, AtAgent>,
    watch: Arc<Mutex<Watch>>,
    /// For the next agent's task.
    saying: Saying,
    said: mpsc::UnboundedReceiver<(AgentId, Member, Said)>,
    /// Whether the application's calls have been answered.
    is_answered: bool,
}

/// What one agent does for the port. To drop it ends that.
struct AtAgent {
    member: Member,
    state: State,
    /// What was said last about having nothing from it.
    told: Option<String>,
    task: AbortHandle,
}

enum State {
    Asked,
    Ours(Ours),
    /// And whether it is asked again.
    Refused(Status, bool),
    Lost,
}

/// What happens to a port.
enum Incident {
    Asked(Asking),
    Agents(Option<Change<AgentId, Member>>),
    Said(AgentId, Member, Said),
    /// There is no agent, and nobody waits for one.
    NoAgent,
    Look,
}

impl Port {
    pub(super) fn new(
        shared: Arc<Shared>,
        key: Key,
        local: u16,
        askings: mpsc::UnboundedReceiver<Asking>,
    ) -> Self {
        Self {
            shared,
            key,
            local,
            askings,
            asking: Vec::new(),
            doors: Arc::default(),
            before: HashSet::new(),
        }
    }

    pub(super) async fn live(mut self) {
        loop {
            while let Ok(asking) = self.askings.try_recv() {
                self.asking.push(asking);
            }
            if self.asking.is_empty() && !self.doors.look() {
                if self.forget() {
                    return;
                }
                continue;
            }
            // Traffic comes from all agents from the first moment on, or the application is not told that it listens.
            let agents = self.shared.agent.all.clone();
            if timeout(WORTH_A_WORD, agents.all()).await.is_err() {
                self.tell(None, News::Waiting);
                agents.all().await;
            }
            self.serve().await;
        }
    }

    /// Goes on until nobody listens.
    async fn serve(&mut self) {
        let mut round = Round::new(self.filter());
        let mut changes = self.shared.agent.all.router.changes();
        let connection = self.shared.agent.client.clone();
        let mut look = interval(LOOK_EVERY);
        look.tick().await;
        loop {
            while let Some(change) = changes.next_now() {
                self.follow(&mut round, change);
            }
            if !round.is_answered && !self.answer(&mut round) {
                return;
            }
            let nobody_is_asked = !round.is_answered && round.agents.is_empty();
            let incident = tokio::select! {
                Some(asking) = self.askings.recv() => Incident::Asked(asking),
                change = changes.next() => Incident::Agents(change),
                Some((id, member, said)) = round.said.recv() => Incident::Said(id, member, said),
                () = connection.lost(), if nobody_is_asked => Incident::NoAgent,
                _ = look.tick() => Incident::Look,
            };
            match incident {
                Incident::Asked(asking) if round.is_answered => self.accept(asking),
                Incident::Asked(asking) => self.asking.push(asking),
                Incident::Agents(Some(change)) => self.follow(&mut round, change),
                // The session is over.
                Incident::Agents(None) => return,
                Incident::Said(id, member, said) => self.hear(&mut round, &id, &member, said),
                Incident::NoAgent => {
                    let reason = "there is no agent".to_owned();
                    if self.shared.steals() {
                        return self.refuse(Errno::EADDRNOTAVAIL, reason, None);
                    }
                    self.let_listen(&mut round);
                    self.tell(
                        None,
                        News::Local {
                            reason,
                            tries_again: true,
                        },
                    );
                }
                Incident::Look if !round.is_answered => {}
                Incident::Look => {
                    for news in round.watch().news(Instant::now()) {
                        self.tell(None, news);
                    }
                    if !self.doors.look() {
                        return;
                    }
                }
            }
        }
    }

    fn follow(&mut self, round: &mut Round, change: Change<AgentId, Member>) {
        match change {
            Change::Joined(id, member) => {
                let subscription = Subscription {
                    shared: Arc::clone(&self.shared),
                    key: self.key,
                    local: self.local,
                    id: id.clone(),
                    member: member.clone(),
                    doors: Arc::clone(&self.doors),
                    watch: Arc::clone(&round.watch),
                    again: self.before.contains(&id),
                    is_patient: round.is_answered,
                    said: round.saying.clone(),
                };
                let task = tokio::spawn(subscription.live()).abort_handle();
                let at_agent = AtAgent {
                    member,
                    state: State::Asked,
                    told: None,
                    task,
                };
                round.agents.insert(id, at_agent);
            }
            Change::Left(id) => {
                round.agents.remove(&id);
            }
        }
    }

    /// What an agent's task says.
    fn hear(&mut self, round: &mut Round, id: &AgentId, member: &Member, said: Said) {
        let Some(at_agent) = round.agents.get_mut(id) else {
            return;
        };
        if at_agent.member != *member {
            return;
        }
        match said {
            Said::Ours(ours) => {
                at_agent.told = None;
                if round.is_answered {
                    self.before.insert(id.clone());
                    self.tell_subscribed(Some(id), &[(id, &ours)]);
                }
                at_agent.state = State::Ours(ours);
                round.look_who_is_first();
            }
            Said::Refused(status, tries_again) => {
                // An agent that is gone is told of elsewhere.
                if round.is_answered && (is_final(&status) || !member.client.is_closed()) {
                    self.tell_refused(id, at_agent, &status, tries_again);
                }
                at_agent.state = State::Refused(status, tries_again);
            }
            Said::TrafficSeen => {
                let news = round.watch().traffic_seen();
                if let Some(news) = news {
                    self.tell(None, news);
                }
            }
            Said::Earlier(earlier) => {
                if let State::Ours(ours) = &mut at_agent.state {
                    ours.earlier = earlier;
                    // Otherwise it is told when the application's call is answered.
                    if round.is_answered {
                        self.tell_subscribed(Some(id), &[(id, ours)]);
                    }
                }
                round.look_who_is_first();
            }
            Said::LostTo(holder) => {
                at_agent.state = State::Lost;
                self.tell(Some(id), News::LostTo { holder });
            }
        }
    }

    /// Answers the application's calls when all agents have answered ours. Says whether it goes on.
    fn answer(&mut self, round: &mut Round) -> bool {
        let is_asked = |at: &AtAgent| matches!(at.state, State::Asked);
        if round.agents.is_empty() || round.agents.values().any(is_asked) {
            return true;
        }
        let refusal = round.agents.iter().find_map(|(id, at)| match &at.state {
            State::Refused(status, _) if is_final(status) => Some((id, status)),
            _ => None,
        });
        // What was ours once is waited for, and a part of the traffic is no reason to give up the rest of it then.
        if let Some((id, status)) = refusal
            && self.shared.steals()
            && self.before.is_empty()
        {
            let errno = Failure::from_status(status).and_then(|failure| failure.number());
            let errno = errno.map_or(Errno::EADDRNOTAVAIL, Errno::from_raw);
            let (id, reason) = (id.clone(), reason_of(status));
            self.refuse(errno, reason, Some(&id));
            return false;
        }
        let ours: Vec<(&AgentId, &Ours)> = round
            .agents
            .iter()
            .filter_map(|(id, at)| Some((id, at.ours()?)))
            .collect();
        let nobody = ours.is_empty() && self.shared.steals() && self.before.is_empty();
        if nobody {
            // An agent that is lost while it is asked says nothing; another one will be there.
            return true;
        }
        if !ours.is_empty() {
            let weakest = ours.iter().map(|(_, ours)| ours.checked).min();
            self.tell_subscribed(None, &ours);
            round.watch().checked(weakest.unwrap_or(Checked::Nothing));
        }
        self.let_listen(round);
        for (id, at_agent) in &mut round.agents {
            if at_agent.ours().is_some() {
                self.before.insert(id.clone());
            }
            if let State::Refused(status, tries_again) = &at_agent.state {
                let (status, tries_again) = (status.clone(), *tries_again);
                self.tell_refused(id, at_agent, &status, tries_again);
            }
        }
        true
    }

    fn let_listen(&mut self, round: &mut Round) {
        round.is_answered = true;
        for asking in std::mem::take(&mut self.asking) {
            self.accept(asking);
        }
    }

    /// The application's calls fail.
    fn refuse(&mut self, errno: Errno, reason: String, id: Option<&AgentId>) {
        for asking in std::mem::take(&mut self.asking) {
            asking.refuse(errno);
        }
        self.tell(id, News::Refused { reason });
    }

    fn accept(&self, asking: Asking) {
        let address = asking.address;
        if let Some(door) = asking.accept() {
            self.doors.add(address, door);
        }
    }

    /// Ends, unless somebody has asked meanwhile.
    fn forget(&mut self) -> bool {
        let mut ports = self.shared.lock();
        if !self.askings.is_empty() {
            return false;
        }
        ports.remove(&self.key);
        true
    }

    /// Which requests, in words, if not all traffic.
    fn filter(&self) -> Option<String> {
        let rules = &self.shared.rules;
        rules.filter(self.local, self.key.port).map(describe)
    }

    /// One answer for what all of these agents have answered.
    fn tell_subscribed(&self, id: Option<&AgentId>, all: &[(&AgentId, &Ours)]) {
        let ours: Vec<&Ours> = all.iter().map(|(_, ours)| *ours).collect();
        let clusters: BTreeSet<&String> = all
            .iter()
            .filter_map(|(agent, _)| agent.cluster.as_ref())
            .collect();
        let subscribed = Subscribed {
            local: self.local,
            steals: self.shared.steals(),
            filter: self.filter(),
            checked: ours
                .iter()
                .map(|ours| ours.checked)
                .min()
                .unwrap_or(Checked::Nothing),
            mesh: ours.iter().find_map(|ours| ours.mesh.clone()),
            flushed: ours.iter().map(|ours| ours.flushed).sum(),
            again: ours.iter().any(|ours| ours.again),
            agents: ours.len(),
            clusters: clusters.into_iter().cloned().collect(),
            earlier: who_is_first(&ours),
        };
        self.tell(id, News::Subscribed(subscribed));
    }

    fn tell_refused(&self, id: &AgentId, at: &mut AtAgent, status: &Status, tries_again: bool) {
        let reason = reason_of(status);
        if at.told.as_ref() != Some(&reason) && self.doors.look() {
            at.told = Some(reason.clone());
            self.tell(
                Some(id),
                News::Local {
                    reason,
                    tries_again,
                },
            );
        }
    }

    fn tell(&self, agent: Option<&AgentId>, news: News) {
        let event = IncomingEvent {
            port: self.key.port,
            is_udp: self.key.is_udp,
            agent: agent.cloned(),
            news,
        };
        (self.shared.agent.tell)(&Event::Incoming(event));
    }
}

impl Round {
    fn new(filter: Option<String>) -> Self {
        let watch = Watch::new(Instant::now(), Checked::Nothing, filter);
        let (saying, said) = mpsc::unbounded_channel();
        Self {
            agents: HashMap::new(),
            watch: Arc::new(Mutex::new(watch)),
            saying,
            said,
            is_answered: false,
        }
    }

    fn watch(&self) -> std::sync::MutexGuard<'_, Watch> {
        self.watch.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Where others take everything, silence is no wonder.
    fn look_who_is_first(&self) {
        let mut ours = self.agents.values().filter_map(AtAgent::ours).peekable();
        let leaves_nothing = |ours: &Ours| ours.earlier.iter().any(|earlier| earlier.takes_all);
        let nothing_comes = ours.peek().is_some() && ours.all(leaves_nothing);
        self.watch().expect_nothing(nothing_comes, Instant::now());
    }
}

/// Who is served first, of all agents.
fn who_is_first(ours: &[&Ours]) -> Vec<Earlier> {
    let mut first: Vec<Earlier> = Vec::new();
    for earlier in ours.iter().flat_map(|ours| &ours.earlier) {
        match first
            .iter_mut()
            .find(|known| known.holder == earlier.holder)
        {
            Some(known) => known.takes_all &= earlier.takes_all,
            None => first.push(earlier.clone()),
        }
    }
    // Who has all of it at some agents leaves something at the others.
    let is_everywhere = |holder: &str| {
        let has = |ours: &&Ours| ours.earlier.iter().any(|earlier| earlier.holder == holder);
        ours.iter().all(has)
    };
    for earlier in &mut first {
        earlier.takes_all &= is_everywhere(&earlier.holder);
    }
    first
}

impl AtAgent {
    fn ours(&self) -> Option<&Ours> {
        match &self.state {
            State::Ours(ours) => Some(ours),
            _ => None,
        }
    }
}

impl Drop for AtAgent {
    fn drop(&mut self) {
        self.task.abort();
    }
}
