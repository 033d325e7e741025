//! Stops the traffic of sessions to agents that have not confirmed the current policies.
//!
//! Agents enforce the policies. An agent that does not respond enforces the policies of before, so it must not serve its session
//! for long: after a timeout, this replica closes the session's channels to the agent, and refuses new ones. When the agent has
//! confirmed its grant, the client's link resumes through a new channel.
//!
//! Every replica decides this for itself, from its caches of sessions and policies, so it does not depend on the leader.

use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::sync::Arc;
use std::time::Duration;

use api::MirrordClusterSession;
use futures_util::stream::{select, unfold};
use futures_util::{Stream, StreamExt as _};
use kube::ResourceExt as _;
use prometheus_client::metrics::gauge::Gauge;
use tokio::sync::watch;
use tokio::time::{Instant, sleep_until};

use crate::Shared;

/// What a client sees when it connects to such an agent.
pub(crate) const UNCONFIRMED: &str =
    "the agent has not confirmed the current policies; its traffic is stopped until it does";

/// An agent of a session: the name of the session's object, and the number of the endpoint.
pub(crate) type SessionAgent = (String, u32);

/// The agents whose traffic is stopped. Clones share them.
#[derive(Clone, Debug)]
pub(crate) struct StoppedAgents(watch::Sender<BTreeSet<SessionAgent>>);

impl StoppedAgents {
    pub(crate) fn new() -> Self {
        Self(watch::Sender::default())
    }

    pub(crate) fn contains(&self, agent: &SessionAgent) -> bool {
        self.0.borrow().contains(agent)
    }

    /// Waits until the traffic to an agent is stopped.
    pub(crate) async fn until_stopped(&self, agent: &SessionAgent) {
        let mut stopped = self.0.subscribe();
        // It does not fail, because this is a sender.
        let _ = stopped.wait_for(|stopped| stopped.contains(agent)).await;
    }
}

/// Keeps the stopped agents up to date.
pub(crate) async fn run(shared: Arc<Shared>) {
    let sessions = shared.sessions.subscribe();
    let sessions = unfold(sessions, async |mut sessions| {
        let changed = sessions.changed().await;
        changed.ok().map(|()| ((), sessions))
    });
    let changes = select(Box::pin(sessions), Box::pin(shared.policies.changes()));
    let observe = || match shared.sessions.is_filled() && shared.policies.is_filled() {
        true => {
            let digest = |namespace: &str| shared.policies.digest(namespace);
            unconfirmed_agents(&shared.sessions.all(), digest)
        }
        // Without all policies, nothing is known about their confirmation.
        false => BTreeSet::new(),
    };
    track(
        observe,
        changes,
        shared.settings.policy_confirmation_timeout,
        &shared.stopped_agents,
        &shared.metrics.sessions_with_unconfirmed_policies,
    )
    .await;
}

/// Stops agents that `observe` has returned for at least the timeout, and starts them again when it does not return them any
/// more.
async fn track(
    observe: impl Fn() -> BTreeSet<SessionAgent>,
    changes: impl Stream<Item = ()> + Unpin,
    timeout: Duration,
    stopped_agents: &StoppedAgents,
    sessions: &Gauge,
) {
    let mut changes = changes.fuse();
    let mut tracker = Tracker::default();
    loop {
        let (stopped, next) = tracker.update(observe(), Instant::now(), timeout);
        sessions.set(count_sessions(&stopped));
        stopped_agents.0.send_if_modified(|current| {
            report(current, &stopped);
            let has_changed = *current != stopped;
            *current = stopped;
            has_changed
        });
        let timeout = async {
            match next {
                Some(next) => sleep_until(next).await,
                None => std::future::pending().await,
            }
        };
        tokio::select! {
            changed = changes.next() => if changed.is_none() { return },
            () = timeout => {}
        }
    }
}

fn count_sessions(stopped: &BTreeSet<SessionAgent>) -> i64 {
    let sessions: BTreeSet<&String> = stopped.iter().map(|(session, _)| session).collect();
    i64::try_from(sessions.len()).unwrap_or(i64::MAX)
}

fn report(before: &BTreeSet<SessionAgent>, now: &BTreeSet<SessionAgent>) {
    for (session, endpoint) in now.difference(before) {
        tracing::warn!(session, endpoint, "policies not confirmed, traffic stopped");
    }
    for (session, endpoint) in before.difference(now) {
        tracing::info!(session, endpoint, "traffic of stopped agent resumed");
    }
}

/// Since when agents are unconfirmed.
#[derive(Debug, Default)]
struct Tracker(HashMap<SessionAgent, Instant>);

impl Tracker {
    /// Returns the agents to stop, and when there may be more.
    fn update(
        &mut self,
        unconfirmed: BTreeSet<SessionAgent>,
        now: Instant,
        timeout: Duration,
    ) -> (BTreeSet<SessionAgent>, Option<Instant>) {
        self.0.retain(|agent, _| unconfirmed.contains(agent));
        for agent in unconfirmed {
            self.0.entry(agent).or_insert(now);
        }
        let deadlines = self
            .0
            .iter()
            .map(|(agent, since)| (agent, *since + timeout));
        let (late, pending): (Vec<_>, Vec<_>) =
            deadlines.partition(|(_, deadline)| *deadline <= now);
        let stopped = late.into_iter().map(|(agent, _)| agent.clone()).collect();
        (
            stopped,
            pending.into_iter().map(|(_, deadline)| deadline).min(),
        )
    }
}

/// Running agents whose grants were computed from other policies than those of `digest`, which has a namespace as its argument.
fn unconfirmed_agents(
    sessions: &[Arc<MirrordClusterSession>],
    digest: impl Fn(&str) -> String,
) -> BTreeSet<SessionAgent> {
    let mut digests: BTreeMap<&str, String> = BTreeMap::new();
    let mut unconfirmed = BTreeSet::new();
    for session in sessions {
        let namespace = session.spec.namespace.as_str();
        let current = digests
            .entry(namespace)
            .or_insert_with(|| digest(namespace));
        let pods = session.status.iter().flat_map(|status| &status.pods);
        let outdated = pods.filter(|pod| {
            pod.address.is_some() && pod.policies.as_deref() != Some(current.as_str())
        });
        unconfirmed.extend(outdated.map(|pod| (session.name_any(), pod.channel)));
    }
    unconfirmed
}

#[cfg(test)]
mod tests;
