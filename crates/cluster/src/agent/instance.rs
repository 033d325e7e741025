//! Agents that an operator starts for clients whose connections it relays.
//!
//! The operator keeps no state of its own about them: the purpose of an agent is in its name and its arguments, and its
//! state is in the status of its pod.

use std::net::SocketAddr;
use std::time::Duration;

use k8s_openapi::api::core::v1::{ContainerState, Pod};
use kube::ResourceExt as _;
use link::tls::Fingerprint;

use super::condition::{Condition, condition};
use super::manifest::Plan;
use super::{AgentSettings, start};
use crate::access::Cluster;
use crate::error::{Error, Result};
use crate::pod::Replica;
use crate::refusal::{Attempt, Denial, Refusal};

/// The desired state of an agent: what to start, and for which client.
#[derive(Debug, Clone, Copy)]
pub struct AgentSpec<'order> {
    /// The container's name. It must not have been used in this pod before.
    pub name: &'order str,
    pub listen: SocketAddr,
    /// The certificate of the client that may use it.
    pub client: Fingerprint,
    /// The certificate of the peer that may end it.
    pub ended_by: Fingerprint,
    /// How long it waits for the first connection of its client. The caller knows how long the session waits.
    pub first_client_timeout: Duration,
    /// The grant of its sessions, as JSON.
    pub grant: &'order str,
    pub settings: &'order AgentSettings,
}

impl<'order> AgentSpec<'order> {
    /// Starts it as an ephemeral container in the target's pod, without waiting for it.
    pub async fn start(self, cluster: &Cluster, replica: &Replica) -> Result<()> {
        match start::ephemeral(cluster, self.plan(), replica).await? {
            Ok(_) => Ok(()),
            Err(denial) => Err(refused(&replica.namespace, Attempt::Ephemeral, denial)),
        }
    }

    /// Starts it in a pod of its own on the target's node, or on any node without a target, and waits until the pod exists.
    pub async fn start_as_pod(
        self,
        cluster: &Cluster,
        replica: Option<&Replica>,
        namespace: &str,
    ) -> Result<()> {
        match start::pod(cluster, self.plan(), replica, namespace).await? {
            Ok(_) => Ok(()),
            Err(denial) => {
                let attempt = match replica {
                    Some(_) => Attempt::Pod,
                    None => Attempt::Targetless,
                };
                Err(refused(namespace, attempt, denial))
            }
        }
    }

    fn plan(self) -> Plan<'order> {
        Plan {
            name: self.name,
            listen: self.listen,
            client: self.client,
            ended_by: Some(self.ended_by),
            first_client_timeout: self.first_client_timeout,
            grant: Some(self.grant),
            settings: self.settings,
        }
    }
}

fn refused(namespace: &str, attempt: Attempt, denial: Denial) -> Error {
    Error::Refused(Refusal {
        namespace: namespace.to_owned(),
        attempts: vec![(attempt, denial)],
        by_operator: true,
    })
}

/// The observed state of an agent.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct AgentInstance {
    pub name: String,
    /// The id of the target's container when the agent was started. A restarted container has another id.
    pub container_id: String,
    pub port: u16,
    pub state: AgentInstanceState,
    /// Whether it ended with an error.
    pub has_failed: bool,
}

impl AgentInstance {
    /// The number at the end of its name.
    pub fn number(&self) -> usize {
        let digits = self.name.rsplit('-').next();
        digits.and_then(|digits| digits.parse().ok()).unwrap_or(0)
    }
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub enum AgentInstanceState {
    Starting,
    Running,
    /// It fails to start, with the reason.
    FailingToStart(String),
    /// It has ended, with the reason.
    Ended(String),
}

/// The agents that are ephemeral containers of a pod and whose names are this prefix and a number, sorted by number. The
/// order in the pod is not reliable.
pub fn agent_instances(pod: &Pod, prefix: &str) -> Vec<AgentInstance> {
    let spec = pod.spec.as_ref();
    let containers = spec.and_then(|spec| spec.ephemeral_containers.as_ref());
    let mut agents: Vec<AgentInstance> = containers
        .into_iter()
        .flatten()
        .filter(|container| container.name.starts_with(prefix))
        .map(|container| {
            let arguments = container.args.as_deref().unwrap_or_default();
            read(pod, &container.name, &container.name, arguments)
        })
        .collect();
    agents.sort_by_key(AgentInstance::number);
    agents
}

/// The agent of a pod that a Job created for it.
pub fn job_agent_instance(pod: &Pod) -> Option<AgentInstance> {
    let name = pod.labels().get("batch.kubernetes.io/job-name")?;
    let container = pod.spec.as_ref()?.containers.first()?;
    let arguments = container.args.as_deref().unwrap_or_default();
    Some(read(pod, name, &container.name, arguments))
}

fn read(pod: &Pod, name: &str, container: &str, arguments: &[String]) -> AgentInstance {
    let mut after_container = arguments
        .iter()
        .skip_while(|argument| *argument != "--container");
    let port = arguments
        .iter()
        .find_map(|argument| argument.strip_prefix("--listen="))
        .and_then(|listen| listen.parse::<SocketAddr>().ok())
        .map_or(0, |listen| listen.port());
    AgentInstance {
        name: name.to_owned(),
        container_id: after_container.nth(1).cloned().unwrap_or_default(),
        port,
        has_failed: exit_code(pod, container).is_some_and(|code| code != 0),
        state: match condition(Some(pod), container) {
            Condition::FailingToStart(why) => AgentInstanceState::FailingToStart(why),
            Condition::Ended(why) => AgentInstanceState::Ended(why),
            Condition::Healthy if is_running(pod, container) => AgentInstanceState::Running,
            Condition::Healthy => AgentInstanceState::Starting,
        },
    }
}

fn is_running(pod: &Pod, container: &str) -> bool {
    state_of(pod, container).is_some_and(|state| state.running.is_some())
}

fn exit_code(pod: &Pod, container: &str) -> Option<i32> {
    let ended = state_of(pod, container)?.terminated.as_ref()?;
    Some(ended.exit_code)
}

fn state_of<'pod>(pod: &'pod Pod, container: &str) -> Option<&'pod ContainerState> {
    let status = pod.status.as_ref()?;
    let usual = status.container_statuses.iter().flatten();
    let mut all = usual.chain(status.ephemeral_container_statuses.iter().flatten());
    let status = all.find(|status| status.name == container)?;
    status.state.as_ref()
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn agent_instances_are_read_from_pods() {
        let arguments = ["agent", "--container", "abc", "--listen=0.0.0.0:20001"];
        let container = |name: &str| json!({"name": name, "args": arguments});
        let state = |name: &str, state: serde_json::Value| json!({"name": name, "state": state, "image": "", "imageID": "", "ready": false, "restartCount": 0});
        let pod: Pod = serde_json::from_value(json!({
            "spec": {
                "containers": [],
                "ephemeralContainers": [container("a-10"), container("a-3"), container("b-1"), container("a-2"), container("a-1")],
            },
            "status": {
                "phase": "Running",
                "ephemeralContainerStatuses": [
                    state("a-1", json!({"terminated": {"exitCode": 1, "message": "standind: cannot listen on x"}})),
                    state("a-2", json!({"running": {}})),
                    state("a-3", json!({"waiting": {"reason": "ImagePullBackOff", "message": "no"}})),
                ],
            },
        }))
        .unwrap();
        let found = agent_instances(&pod, "a-");
        assert!(
            found
                .iter()
                .all(|agent| agent.container_id == "abc" && agent.port == 20001)
        );
        assert!(found[0].has_failed && !found[1].has_failed);
        let states: Vec<_> = found
            .into_iter()
            .map(|agent| (agent.name, agent.state))
            .collect();
        assert_eq!(
            states,
            [
                (
                    "a-1".to_owned(),
                    AgentInstanceState::Ended("cannot listen on x".to_owned())
                ),
                ("a-2".to_owned(), AgentInstanceState::Running),
                (
                    "a-3".to_owned(),
                    AgentInstanceState::FailingToStart("ImagePullBackOff: no".to_owned())
                ),
                ("a-10".to_owned(), AgentInstanceState::Starting),
            ]
        );
    }
}
