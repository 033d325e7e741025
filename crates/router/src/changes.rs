//! Who joins and who leaves, one after the other.

use std::collections::VecDeque;

use tokio::sync::watch;

use crate::members::Members;

#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Change<Id, Agent> {
    Joined(Id, Agent),
    Left(Id),
}

/// The changes of a router's agents. Whoever is slow misses those who came and went in between, and nothing else.
#[derive(Debug)]
pub struct Changes<Id, Agent> {
    members: watch::Receiver<Members<Id, Agent>>,
    /// Those of whom it was said that they joined.
    told: Vec<(Id, u64)>,
    waiting: VecDeque<Change<Id, Agent>>,
}

impl<Id: Clone + Eq, Agent: Clone> Changes<Id, Agent> {
    pub(crate) fn new(mut members: watch::Receiver<Members<Id, Agent>>) -> Self {
        members.mark_changed();
        Self {
            members,
            told: Vec::new(),
            waiting: VecDeque::new(),
        }
    }

    /// None: the router is gone, and with it everybody.
    pub async fn next(&mut self) -> Option<Change<Id, Agent>> {
        loop {
            if let Some(change) = self.waiting.pop_front() {
                return Some(change);
            }
            self.members.changed().await.ok()?;
            self.compare();
        }
    }

    /// What has changed already. Waits for nobody.
    pub fn next_now(&mut self) -> Option<Change<Id, Agent>> {
        if self.waiting.is_empty() && self.members.has_changed().unwrap_or(false) {
            self.compare();
        }
        self.waiting.pop_front()
    }

    fn compare(&mut self) {
        let members = self.members.borrow_and_update();
        let entries = members.entries();
        let waiting = &mut self.waiting;
        self.told.retain(|(id, number)| {
            let stays = entries
                .iter()
                .any(|entry| entry.id == *id && entry.number == *number);
            if !stays {
                waiting.push_back(Change::Left(id.clone()));
            }
            stays
        });
        for entry in entries {
            if !self.told.iter().any(|(id, _)| *id == entry.id) {
                self.told.push((entry.id.clone(), entry.number));
                let (id, agent) = (entry.id.clone(), entry.agent.clone());
                waiting.push_back(Change::Joined(id, agent));
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{Preference, Router};

    #[tokio::test]
    async fn changes_begin_with_those_who_are_there() {
        let router = Router::new();
        router.join("a", 1, Preference::Preferred);
        router.join("b", 2, Preference::Preferred);
        let mut changes = router.changes();
        assert_eq!(changes.next().await, Some(Change::Joined("a", 1)));
        assert_eq!(changes.next().await, Some(Change::Joined("b", 2)));
        router.leave(&"a");
        assert_eq!(changes.next().await, Some(Change::Left("a")));
        // One that takes the place of another has left and joined.
        router.join("b", 3, Preference::Preferred);
        router.join("c", 4, Preference::Preferred);
        assert_eq!(changes.next().await, Some(Change::Left("b")));
        assert_eq!(changes.next().await, Some(Change::Joined("b", 3)));
        assert_eq!(changes.next().await, Some(Change::Joined("c", 4)));
        // Who came and went in between was never there.
        router.join("d", 5, Preference::Preferred);
        router.leave(&"d");
        router.leave(&"c");
        assert_eq!(changes.next().await, Some(Change::Left("c")));
        assert_eq!(changes.next_now(), None);
        router.join("e", 6, Preference::Preferred);
        assert_eq!(changes.next_now(), Some(Change::Joined("e", 6)));
        drop(router);
        assert_eq!(changes.next().await, None);
    }
}
