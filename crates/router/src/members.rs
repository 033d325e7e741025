//! The agents that there are, in the order in which they came.

#[derive(Debug, Clone)]
pub(crate) struct Members<Id, Agent> {
    entries: Vec<Entry<Id, Agent>>,
    /// How often somebody has joined.
    joins: u64,
}

#[derive(Debug, Clone)]
pub(crate) struct Entry<Id, Agent> {
    pub(crate) id: Id,
    pub(crate) agent: Agent,
    /// Another one each time somebody joins, so that an agent that takes the place of another is told from it.
    pub(crate) number: u64,
}

impl<Id, Agent> Default for Members<Id, Agent> {
    fn default() -> Self {
        Self {
            entries: Vec::new(),
            joins: 0,
        }
    }
}

impl<Id: Clone + Eq, Agent: Clone> Members<Id, Agent> {
    pub(crate) fn join(&mut self, id: Id, agent: Agent) {
        self.joins += 1;
        let entry = Entry {
            id,
            agent,
            number: self.joins,
        };
        match self.entries.iter_mut().find(|old| old.id == entry.id) {
            Some(old) => *old = entry,
            None => self.entries.push(entry),
        }
    }

    /// Whether it was there.
    pub(crate) fn leave(&mut self, id: &Id) -> bool {
        let before = self.entries.len();
        self.entries.retain(|entry| entry.id != *id);
        self.entries.len() != before
    }

    pub(crate) fn first(&self) -> Option<(Id, Agent)> {
        self.entries
            .first()
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
