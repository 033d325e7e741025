//! Routes the operations of one client to many agents: the replicas of a workload, or the clusters of a multi-cluster session.
//!
//! The kind of an operation decides which agents get it (`protocol::route`). Operations that need consistency, and outgoing
//! connections, go to one agent, the *stateful agent*, which stays the same as long as it is connected. Operations on the
//! target's incoming traffic go to all agents. Agents join and leave during a session; code that runs something on each of
//! them follows [`MemberChanges`] and merges the responses.
//!
//! The router only decides and keeps the membership. What an agent is (a connection, a stub in a test) is a type of the caller.
//!
//! | module | what it does |
//! |---|---|
//! | `members` | keeps the current agents and elects the stateful one |
//! | `changes` | reports agents that joined and left |

mod changes;
mod members;

use std::sync::Arc;

use tokio::sync::watch;

pub use changes::{MemberChange, MemberChanges};
use members::Members;
pub use members::Preference;

/// The agents of a session. Clones share the same state.
#[derive(Debug, Clone)]
pub struct Router<Id, Agent> {
    /// Written by the code that connects agents, read by everything that routes to them.
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

    /// Adds an agent, or replaces the one with this id. Among equally preferred agents, the one that joined first becomes
    /// the stateful agent.
    pub fn join(&self, id: Id, agent: Agent, preference: Preference) {
        self.members
            .send_modify(|members| members.join(id, agent, preference));
    }

    /// Removes an agent.
    pub fn leave(&self, id: &Id) {
        self.members.send_if_modified(|members| members.leave(id));
    }

    /// The current stateful agent.
    pub fn stateful(&self) -> Option<(Id, Agent)> {
        self.members.borrow().stateful()
    }

    pub fn all(&self) -> Vec<(Id, Agent)> {
        self.members.borrow().all()
    }

    /// Agents that join and leave from now on, beginning with a `Joined` for each current agent.
    pub fn changes(&self) -> MemberChanges<Id, Agent> {
        MemberChanges::new(self.members.subscribe())
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
    fn the_stateful_agent_stays_until_it_leaves() {
        let router = router(&[("a", 1), ("b", 2), ("c", 3)]);
        // An agent that replaces the stateful one becomes stateful.
        router.join("a", 10, Preference::Preferred);
        assert_eq!(router.stateful(), Some(("a", 10)));
        router.leave(&"b");
        assert_eq!(router.stateful(), Some(("a", 10)));
        router.leave(&"a");
        assert_eq!(router.stateful(), Some(("c", 3)));
        // An agent that joins again is last.
        router.join("a", 1, Preference::Preferred);
        assert_eq!(router.all(), [("c", 3), ("a", 1)]);
    }

    #[test]
    fn preferred_agents_are_elected_first_and_traffic_only_agents_never() {
        let router = Router::new();
        router.join("traffic", 1, Preference::TrafficOnly);
        assert_eq!(router.stateful(), None);
        router.join("starting", 2, Preference::Fallback);
        assert_eq!(router.stateful(), Some(("starting", 2)));
        // The stateful agent stays stateful: it has open files.
        router.join("ready", 3, Preference::Preferred);
        router.join("fallback", 4, Preference::Fallback);
        assert_eq!(router.stateful(), Some(("starting", 2)));
        router.leave(&"starting");
        assert_eq!(router.stateful(), Some(("ready", 3)));
        router.leave(&"ready");
        assert_eq!(router.stateful(), Some(("fallback", 4)));
        router.leave(&"fallback");
        assert_eq!(router.stateful(), None);
        assert_eq!(router.all(), [("traffic", 1)]);
    }
}
