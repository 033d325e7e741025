//! The agents that there are, in the order in which they came, and the one of them that is asked alone.

/// Whether an agent may be the one that is asked alone.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum Preference {
    /// Rather than others: the pod is ready.
    Preferred,
    /// When there is no preferred one.
    Possible,
    /// Never: it is in a cluster that is there for its traffic alone.
    TrafficOnly,
}

#[derive(Debug, Clone)]
pub(crate) struct Members<Id, Agent> {
    entries: Vec<Entry<Id, Agent>>,
    /// The number of the one that is asked alone. It stays the same as long as it is there.
    first: Option<u64>,
    /// How often somebody has joined.
    joins: u64,
}

#[derive(Debug, Clone)]
pub(crate) struct Entry<Id, Agent> {
    pub(crate) id: Id,
    pub(crate) agent: Agent,
    preference: Preference,
    /// Another one each time somebody joins, so that an agent that takes the place of another is told from it.
    pub(crate) number: u64,
}

impl<Id, Agent> Default for Members<Id, Agent> {
    fn default() -> Self {
        Self {
            entries: Vec::new(),
            first: None,
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
                if self.first == Some(old.number) && preference != Preference::TrafficOnly {
                    self.first = Some(entry.number);
                }
                *old = entry;
            }
            None => self.entries.push(entry),
        }
        self.choose_first();
    }

    /// Whether it was there.
    pub(crate) fn leave(&mut self, id: &Id) -> bool {
        let before = self.entries.len();
        self.entries.retain(|entry| entry.id != *id);
        self.choose_first();
        self.entries.len() != before
    }

    fn choose_first(&mut self) {
        let is_there = |number| self.entries.iter().any(|entry| entry.number == number);
        if self.first.is_some_and(is_there) {
            return;
        }
        // Of equals, the one that came first.
        let best = self
            .entries
            .iter()
            .filter(|entry| entry.preference != Preference::TrafficOnly)
            .min_by_key(|entry| entry.preference);
        self.first = best.map(|entry| entry.number);
    }

    pub(crate) fn first(&self) -> Option<(Id, Agent)> {
        self.entries
            .iter()
            .find(|entry| Some(entry.number) == self.first)
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
