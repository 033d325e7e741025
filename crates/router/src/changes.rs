//! The changes of a router's membership, in order.

use std::collections::VecDeque;

use tokio::sync::watch;

use crate::members::Members;

#[derive(Debug, Clone, PartialEq, Eq)]
pub enum MemberChange<Id, Agent> {
    Joined(Id, Agent),
    Left(Id),
}

/// A stream of the changes of a router's agents. A slow reader misses only agents that joined and left between two reads.
#[derive(Debug)]
pub struct MemberChanges<Id, Agent> {
    members: watch::Receiver<Members<Id, Agent>>,
    /// The agents whose `Joined` was returned, with the numbers of their entries.
    reported: Vec<(Id, u64)>,
    pending: VecDeque<MemberChange<Id, Agent>>,
}

impl<Id: Clone + Eq, Agent: Clone> MemberChanges<Id, Agent> {
    pub(crate) fn new(mut members: watch::Receiver<Members<Id, Agent>>) -> Self {
        members.mark_changed();
        Self {
            members,
            reported: Vec::new(),
            pending: VecDeque::new(),
        }
    }

    /// Waits for the next change. Returns `None` when the router was dropped.
    pub async fn next(&mut self) -> Option<MemberChange<Id, Agent>> {
        loop {
            if let Some(change) = self.pending.pop_front() {
                return Some(change);
            }
            self.members.changed().await.ok()?;
            self.compare();
        }
    }

    /// Returns the next change without waiting, if there is one.
    pub fn try_next(&mut self) -> Option<MemberChange<Id, Agent>> {
        if self.pending.is_empty() && self.members.has_changed().unwrap_or(false) {
            self.compare();
        }
        self.pending.pop_front()
    }

    fn compare(&mut self) {
        let members = self.members.borrow_and_update();
        let entries = members.entries();
        let pending = &mut self.pending;
        self.reported.retain(|(id, number)| {
            let stays = entries
                .iter()
                .any(|entry| entry.id == *id && entry.number == *number);
            if !stays {
                pending.push_back(MemberChange::Left(id.clone()));
            }
            stays
        });
        for entry in entries {
            if !self.reported.iter().any(|(id, _)| *id == entry.id) {
                self.reported.push((entry.id.clone(), entry.number));
                let (id, agent) = (entry.id.clone(), entry.agent.clone());
                pending.push_back(MemberChange::Joined(id, agent));
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{Preference, Router};

    #[tokio::test]
    async fn changes_begin_with_the_current_members() {
        let router = Router::new();
        router.join("a", 1, Preference::Preferred);
        router.join("b", 2, Preference::Preferred);
        let mut changes = router.changes();
        assert_eq!(changes.next().await, Some(MemberChange::Joined("a", 1)));
        assert_eq!(changes.next().await, Some(MemberChange::Joined("b", 2)));
        router.leave(&"a");
        assert_eq!(changes.next().await, Some(MemberChange::Left("a")));
        // An agent that replaces another one is reported as left and joined.
        router.join("b", 3, Preference::Preferred);
        router.join("c", 4, Preference::Preferred);
        assert_eq!(changes.next().await, Some(MemberChange::Left("b")));
        assert_eq!(changes.next().await, Some(MemberChange::Joined("b", 3)));
        assert_eq!(changes.next().await, Some(MemberChange::Joined("c", 4)));
        // An agent that joined and left between two reads is not reported.
        router.join("d", 5, Preference::Preferred);
        router.leave(&"d");
        router.leave(&"c");
        assert_eq!(changes.next().await, Some(MemberChange::Left("c")));
        assert_eq!(changes.try_next(), None);
        router.join("e", 6, Preference::Preferred);
        assert_eq!(changes.try_next(), Some(MemberChange::Joined("e", 6)));
        drop(router);
        assert_eq!(changes.next().await, None);
    }
}
