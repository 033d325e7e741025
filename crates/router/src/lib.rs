//! One client, many agents: replicas of a workload, members of a multi-cluster session.
//!
//! What an operation is for decides who gets it (`protocol::route`). What must be consistent, and what leaves the target,
//! goes to one agent, always the same as long as it is there: the *first*. What is about the target's own traffic goes to
//! all. Agents join and leave while a session goes on; whoever has something running with each of them follows
//! [`Changes`], and makes one answer of what they say.
//!
//! The router decides and remembers. What an agent is (a connection, a stub of a test) is a type of the caller.

mod changes;
mod members;

use std::sync::Arc;

use tokio::sync::watch;

pub use changes::{Change, Changes};
use members::Members;
pub use members::Preference;

/// Knows the agents of a session. Clones are the same.
#[derive(Debug, Clone)]
pub struct Router<Id, Agent> {
    /// From whoever sees agents come and go to everybody.
    members: Arc<watch::Sender<Members<Id, Agent>>>,
}

impl<Id, Agent> Router<Id, Agent>
where
    Id: Clone + Eq,
    Agent: Clone,
{
    pub fn new() -> Self {
        Self {
            members: Arc::new(watch::Sender::new(Members::default())),
        }
    }

    /// An agent has come, or another one has taken the place of the one with this id. Of equally preferred ones, the one
    /// that came first is asked alone.
    pub fn join(&self, id: Id, agent: Agent, preference: Preference) {
        self.members
            .send_modify(|members| members.join(id, agent, preference));
    }

    /// An agent has gone.
    pub fn leave(&self, id: &Id) {
        self.members.send_if_modified(|members| members.leave(id));
    }

    /// The agent that is asked alone.
    pub fn first(&self) -> Option<(Id, Agent)> {
        self.members.borrow().first()
    }

    pub fn all(&self) -> Vec<(Id, Agent)> {
        self.members.borrow().all()
    }

    /// Who joins and who leaves from now on, beginning with those who are there.
    pub fn changes(&self) -> Changes<Id, Agent> {
        Changes::new(self.members.subscribe())
    }
}

impl<Id, Agent> Default for Router<Id, Agent>
where
    Id: Clone + Eq,
    Agent: Clone,
{
    fn default() -> Self {
        Self::new()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn router(agents: &[(&'static str, u32)]) -> Router<&'static str, u32> {
        let router = Router::new();
        for (id, agent) in agents {
            router.join(*id, *agent, Preference::Preferred);
        }
        router
    }

    #[test]
    fn the_first_stays_the_first_until_it_leaves() {
        let router = router(&[("a", 1), ("b", 2), ("c", 3)]);
        // Another agent in the place of the first is the first.
        router.join("a", 10, Preference::Preferred);
        assert_eq!(router.first(), Some(("a", 10)));
        router.leave(&"b");
        assert_eq!(router.first(), Some(("a", 10)));
        router.leave(&"a");
        assert_eq!(router.first(), Some(("c", 3)));
        // Who comes back comes last.
        router.join("a", 1, Preference::Preferred);
        assert_eq!(router.all(), [("c", 3), ("a", 1)]);
    }

    #[test]
    fn preferred_agents_come_first_and_others_never_do() {
        let router = Router::new();
        router.join("traffic", 1, Preference::TrafficOnly);
        assert_eq!(router.first(), None);
        router.join("starting", 2, Preference::Possible);
        assert_eq!(router.first(), Some(("starting", 2)));
        // Whoever is the first stays it: files are open there.
        router.join("ready", 3, Preference::Preferred);
        router.join("waiting", 4, Preference::Possible);
        assert_eq!(router.first(), Some(("starting", 2)));
        router.leave(&"starting");
        assert_eq!(router.first(), Some(("ready", 3)));
        router.leave(&"ready");
        assert_eq!(router.first(), Some(("waiting", 4)));
        router.leave(&"waiting");
        assert_eq!(router.first(), None);
        assert_eq!(router.all(), [("traffic", 1)]);
    }
}
