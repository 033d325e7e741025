//! Decisions about the agent of one pod.

use api::session::SessionPod;
use cluster::{AGENT_PORTS, AgentInstanceState};
use sha2::{Digest as _, Sha256};

use super::{Regrant, Start};
use crate::controller::observed::{ObservedAgent, ObservedPod, StartFailure};
use crate::controller::validate::ValidatedSpec;
use crate::settings::AgentMode;

/// After this many failed agents for the same container, no further agent is started.
const MAX_FAILED_AGENTS: usize = 3;
/// After this many ended agents for the same container, for whatever reason, no further agent is started.
pub(super) const MAX_ENDED_AGENTS: usize = 6;
/// The limit of agents that all sessions together may start in a pod: ephemeral containers are never removed from their
/// pod, and the size of an object is bounded.
pub(super) const MAX_AGENTS_PER_POD: usize = 200;

/// A running agent whose grant is from before a change of policies. The session's object has the digest of its policies.
pub(super) fn to_regrant(pod: &ObservedPod, previous: Option<&SessionPod>) -> Option<Regrant> {
    if pod.new_grant.is_some() {
        return None;
    }
    let agent =
        current_agent(pod).filter(|agent| agent.instance.state == AgentInstanceState::Running)?;
    let known_policies = previous.and_then(|previous| previous.policies.clone());
    (known_policies.as_deref() != Some(&pod.policies)).then(|| Regrant {
        replica: pod.replica.clone(),
        agent: agent.clone(),
        known_policies,
    })
}

/// The agent that serves the current container, or is being started for it.
pub(super) fn current_agent(pod: &ObservedPod) -> Option<&ObservedAgent> {
    agents_of_container(pod)
        .filter(|agent| !agent.has_ended())
        .last()
}

/// The agents of the current container. A restarted container is another container, so earlier agents do not count.
fn agents_of_container(pod: &ObservedPod) -> impl Iterator<Item = &ObservedAgent> {
    let agents = pod.agents.iter();
    agents.filter(|agent| agent.instance.container_id == pod.replica.container_id)
}

/// Why a pod cannot have an agent, if it cannot.
pub(super) fn obstacle(
    pod: &ObservedPod,
    mode: AgentMode,
    number_offset: u32,
) -> Option<StartFailure> {
    let finally = |reason: String| {
        Some(StartFailure {
            reason,
            is_final: true,
        })
    };
    if let Some(refused) = &pod.refused {
        return finally(refused.clone());
    }
    if let Some(agent) = current_agent(pod) {
        return match &agent.instance.state {
            AgentInstanceState::FailingToStart(reason) => finally(reason.clone()),
            _ => None,
        };
    }
    // Agents of an earlier session with the same name do not count.
    let before = usize::try_from(number_offset).unwrap_or_default();
    let is_own = |agent: &&ObservedAgent| agent.instance.number() > before;
    let ended = || agents_of_container(pod).filter(|agent| agent.has_ended() && is_own(agent));
    let failures = ended().filter(|agent| agent.instance.has_failed);
    if failures.count() >= MAX_FAILED_AGENTS || ended().count() >= MAX_ENDED_AGENTS {
        let last = ended().last().map(|agent| &agent.instance.state);
        return finally(match last {
            Some(AgentInstanceState::Ended(reason)) => reason.clone(),
            _ => "its agents end again and again".to_owned(),
        });
    }
    if mode == AgentMode::Ephemeral && pod.replica.finished_agents >= MAX_AGENTS_PER_POD {
        return finally(format!(
            "the pod has had {MAX_AGENTS_PER_POD} ephemeral agent containers, which is the limit. Restart the pod, or use \
             node agents (`operator.agent.mode: node`)"
        ));
    }
    pod.start_failure.clone()
}

/// The next agent of a pod. Its name is unique among all agents of the session, also among agents that are not listed any
/// more: clients distinguish agents by name.
pub(super) fn next_agent(
    pod: &ObservedPod,
    previous: Option<&SessionPod>,
    spec: &ValidatedSpec,
) -> Start {
    let reported = previous
        .and_then(|previous| previous.agent.as_deref()?.rsplit('-').next()?.parse().ok())
        .unwrap_or(0);
    let observed = pod.agents.last().map_or(0, |agent| agent.instance.number());
    let before = usize::try_from(spec.number_offset).unwrap_or_default();
    let digest = Sha256::digest(&pod.replica.uid);
    let name = format!(
        "{}{:02x}{:02x}{:02x}{:02x}-{}",
        spec.agent_prefix(),
        digest[0],
        digest[1],
        digest[2],
        digest[3],
        observed.max(reported).max(before) + 1
    );
    Start {
        replica: pod.replica.clone(),
        port: port_of(&name),
        name,
    }
}

/// A port that another agent in the same pod is unlikely to use. If it is in use, the agent ends and the next one gets
/// another port.
pub(super) fn port_of(name: &str) -> u16 {
    let digest = Sha256::digest(name);
    let number = u16::from_be_bytes([digest[0], digest[1]]);
    // Each agent has a pair of ports: for its client, and for the operator.
    let pairs = (AGENT_PORTS.end - AGENT_PORTS.start) / 2;
    AGENT_PORTS.start + number % pairs * 2
}
