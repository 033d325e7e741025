//! The current agents, in the order in which they joined, and the stateful agent among them.

/// Whether an agent may become the stateful agent. Smaller values are chosen first.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum Preference {
    /// Chosen before the others: its pod is ready.
    Preferred,
    /// Chosen when there is no preferred agent.
    Fallback,
    /// Never chosen: its cluster contributes only its incoming traffic.
    TrafficOnly,
}

#[derive(Debug, Clone)]
pub(crate) struct Members<Id, Agent> {
    entries: Vec<Entry<Id, Agent>>,
    /// The entry number of the stateful agent. It does not change while that agent is a member.
    stateful: Option<u64>,
    /// The number of joins so far.
    joins: u64,
}

#[derive(Debug, Clone)]
pub(crate) struct Entry<Id, Agent> {
    pub(crate) id: Id,
    pub(crate) agent: Agent,
    preference: Preference,
    /// Unique for each join, so that an agent can be distinguished from one that it replaced.
    pub(crate) number: u64,
}

impl<Id, Agent> Default for Members<Id, Agent> {
    fn default() -> Self {
        Self {
            entries: Vec::new(),
            stateful: None,
            joins: 0,
        }
    }
}

impl<Id: Clone + Eq, Agent: Clone> Members<Id, Agent> {
    pub(crate) fn join(&mut self, id: Id, agent: Agent, preference: Preference) {
        self.joins += 1;
        let entry = Entry {
            id,
            agent,
            preference,
            number: self.joins,
        };
        match self.entries.iter_mut().find(|old| old.id == entry.id) {
            Some(old) => {
                if self.stateful == Some(old.number) && preference != Preference::TrafficOnly {
                    self.stateful = Some(entry.number);
                }
                *old = entry;
            }
            None => self.entries.push(entry),
        }
        self.elect_stateful();
    }

    /// Removes an agent. Returns whether it was a member.
    pub(crate) fn leave(&mut self, id: &Id) -> bool {
        let before = self.entries.len();
        self.entries.retain(|entry| entry.id != *id);
        self.elect_stateful();
        self.entries.len() != before
    }

    fn elect_stateful(&mut self) {
        let is_member = |number| self.entries.iter().any(|entry| entry.number == number);
        if self.stateful.is_some_and(is_member) {
            return;
        }
        // Among equals, the one that joined first.
        let best = self
            .entries
            .iter()
            .filter(|entry| entry.preference != Preference::TrafficOnly)
            .min_by_key(|entry| entry.preference);
        self.stateful = best.map(|entry| entry.number);
    }

    pub(crate) fn stateful(&self) -> Option<(Id, Agent)> {
        self.entries
            .iter()
            .find(|entry| Some(entry.number) == self.stateful)
            .map(|entry| (entry.id.clone(), entry.agent.clone()))
    }

    pub(crate) fn all(&self) -> Vec<(Id, Agent)> {
        self.entries
            .iter()
            .map(|entry| (entry.id.clone(), entry.agent.clone()))
            .collect()
    }

    pub(crate) fn entries(&self) -> &[Entry<Id, Agent>] {
        &self.entries
    }
}
