//! Agents that one orders and another uses: an operator starts them for clients that it relays for.
//!
//! Whoever orders remembers nothing: what an agent was ordered for is in its name and its arguments, and how it is doing is
//! in the status of its pod.

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
use crate::refusal::{Attempt, Obstacle, Refusal};

/// An agent that is to be in the pod of a target.
#[derive(Debug, Clone, Copy)]
pub struct Order<'order> {
    /// The container's name, which no other in the pod has ever had.
    pub name: &'order str,
    pub listen: SocketAddr,
    /// Who may use it.
    pub client: Fingerprint,
    /// Who may end it.
    pub ended_by: Fingerprint,
    /// How long it waits for its client to come at all. Whoever orders knows how long the session waits.
    pub patience: Duration,
    /// What its sessions may do, as JSON.
    pub grant: &'order str,
    pub settings: &'order AgentSettings,
}

impl<'order> Order<'order> {
    /// Starts it in the pod of the target, and does not wait.
    pub async fn start(self, cluster: &Cluster, replica: &Replica) -> Result<()> {
        match start::ephemeral(cluster, self.plan(), replica).await? {
            Ok(_) => Ok(()),
            Err(obstacle) => Err(refused(&replica.namespace, Attempt::Ephemeral, obstacle)),
        }
    }

    /// Starts it in a pod of its own on the target's node, or on any without a target, and waits until there is one.
    pub async fn start_as_pod(
        self,
        cluster: &Cluster,
        replica: Option<&Replica>,
        namespace: &str,
    ) -> Result<()> {
        match start::pod(cluster, self.plan(), replica, namespace).await? {
            Ok(_) => Ok(()),
            Err(obstacle) => {
                let attempt = match replica {
                    Some(_) => Attempt::Pod,
                    None => Attempt::Targetless,
                };
                Err(refused(namespace, attempt, obstacle))
            }
        }
    }

    fn plan(self) -> Plan<'order> {
        Plan {
            name: self.name,
            listen: self.listen,
            client: self.client,
            ended_by: Some(self.ended_by),
            patience: self.patience,
            grant: Some(self.grant),
            settings: self.settings,
        }
    }
}

fn refused(namespace: &str, attempt: Attempt, obstacle: Obstacle) -> Error {
    Error::Refused(Refusal {
        namespace: namespace.to_owned(),
        met: vec![(attempt, obstacle)],
        is_operators: true,
    })
}

/// An agent that was ordered.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Ordered {
    pub name: String,
    /// The target's container as it was then; after a restart it has another id.
    pub container_id: String,
    pub port: u16,
    pub state: OrderedState,
    /// Whether it ended in a way that it should not have.
    pub has_failed: bool,
}

impl Ordered {
    /// The number at the end of its name.
    pub fn number(&self) -> usize {
        let digits = self.name.rsplit('-').next();
        digits.and_then(|digits| digits.parse().ok()).unwrap_or(0)
    }
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub enum OrderedState {
    /// It is being started.
    Starting,
    Running,
    /// It does not start, and why.
    Trouble(String),
    Ended(String),
}

/// The agents in a pod whose names begin with this and go on with a number, by their numbers. The pod does not have them
/// in any order that can be relied on.
pub fn ordered(pod: &Pod, prefix: &str) -> Vec<Ordered> {
    let spec = pod.spec.as_ref();
    let containers = spec.and_then(|spec| spec.ephemeral_containers.as_ref());
    let mut agents: Vec<Ordered> = containers
        .into_iter()
        .flatten()
        .filter(|container| container.name.starts_with(prefix))
        .map(|container| {
            let arguments = container.args.as_deref().unwrap_or_default();
            read(pod, &container.name, &container.name, arguments)
        })
        .collect();
    agents.sort_by_key(Ordered::number);
    agents
}

/// The agent for which a pod was made, by its Job.
pub fn ordered_as_pod(pod: &Pod) -> Option<Ordered> {
    let name = pod.labels().get("batch.kubernetes.io/job-name")?;
    let container = pod.spec.as_ref()?.containers.first()?;
    let arguments = container.args.as_deref().unwrap_or_default();
    Some(read(pod, name, &container.name, arguments))
}

fn read(pod: &Pod, name: &str, container: &str, arguments: &[String]) -> Ordered {
    let mut after_container = arguments
        .iter()
        .skip_while(|argument| *argument != "--container");
    let port = arguments
        .iter()
        .find_map(|argument| argument.strip_prefix("--listen="))
        .and_then(|listen| listen.parse::<SocketAddr>().ok())
        .map_or(0, |listen| listen.port());
    Ordered {
        name: name.to_owned(),
        container_id: after_container.nth(1).cloned().unwrap_or_default(),
        port,
        has_failed: exit_code(pod, container).is_some_and(|code| code != 0),
        state: match condition(Some(pod), container) {
            Condition::Trouble(why) => OrderedState::Trouble(why),
            Condition::Ended(why) => OrderedState::Ended(why),
            Condition::Fine if is_running(pod, container) => OrderedState::Running,
            Condition::Fine => OrderedState::Starting,
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
    fn pods_tell_which_agents_were_ordered() {
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
        let found = ordered(&pod, "a-");
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
                    OrderedState::Ended("cannot listen on x".to_owned())
                ),
                ("a-2".to_owned(), OrderedState::Running),
                (
                    "a-3".to_owned(),
                    OrderedState::Trouble("ImagePullBackOff: no".to_owned())
                ),
                ("a-10".to_owned(), OrderedState::Starting),
            ]
        );
    }
}
