//! Observes the pods of a session's target, and the session's agents.

use std::collections::{BTreeMap, BTreeSet};

use api::node::ServedTarget;
use api::{MirrordClusterSession, TargetKind};
use cluster::pod::check_pod;
use cluster::{
    AgentInstance, AgentInstanceState, Cluster, Replica, agent_instances, job_agent_instance,
    list_target_pods,
};
use error_chain::error_chain;
use k8s_openapi::api::core::v1::Pod;
use kube::api::ListParams;
use kube::{Api, ResourceExt as _};

use super::observed::{Observed, ObservedAgent, ObservedPod, StartFailure};
use super::service_pods;
use super::validate::{ValidatedSpec, agent_mode};
use crate::Shared;
use crate::error::{Error, KubeResultExt as _, Result};
use crate::settings::AgentMode;

/// The labels of agents that are pods: their session, and the uid of their target's pod.
pub(super) const SESSION_LABEL: &str = "operator.metalbear.co/session";
pub(super) const POD_LABEL: &str = "operator.metalbear.co/target-pod-uid";

pub(super) async fn observe(
    shared: &Shared,
    cluster: &Cluster,
    session: &MirrordClusterSession,
    spec: &ValidatedSpec,
) -> Result<Observed> {
    let Some(target) = &spec.target else {
        return without_target(shared, spec).await;
    };
    let pods = match list_target_pods(cluster, target).await {
        Ok(pods) => pods,
        // A missing target is an observation; an unreachable API server is a failure.
        Err(error) if error.is_api_server_failure() => return Err(Error::Cluster(Box::new(error))),
        Err(error) => return Ok(Observed::missing(error_chain(&error))),
    };
    let refusals = service_pods::refusals(shared, cluster, session, spec, &pods).await?;
    let policies = shared.policies.digest(&spec.namespace);
    let mut observed = observe_pods(&pods, target.container.as_deref(), spec, &policies);
    for pod in &mut observed.pods {
        pod.refused = refusals.get(&pod.replica.uid).cloned();
    }
    match shared.settings.agent_mode {
        AgentMode::Ephemeral => {}
        AgentMode::Pod => {
            let agents = agents_in_pods(shared, spec).await?;
            for pod in &mut observed.pods {
                let own = agents.iter().filter(|(uid, _)| *uid == pod.replica.uid);
                pod.agents = sorted(own.map(|(_, agent)| agent.clone()).collect());
            }
        }
        AgentMode::Node => observe_nodes(shared, spec, &mut observed).await?,
    }
    Ok(observed)
}

/// A session without a target has one agent, in a separate pod.
async fn without_target(shared: &Shared, spec: &ValidatedSpec) -> Result<Observed> {
    let agents = agents_in_pods(shared, spec).await?.into_iter();
    Ok(Observed {
        pods: vec![ObservedPod {
            policies: shared.policies.digest(&spec.namespace),
            new_grant: None,
            replica: targetless_replica(&spec.namespace),
            agents: sorted(agents.map(|(_, agent)| agent).collect()),
            start_failure: None,
            refused: None,
            grant_failure: None,
        }],
        ..Observed::default()
    })
}

/// A placeholder for the pod of a session without a target.
fn targetless_replica(namespace: &str) -> Replica {
    let name = TargetKind::Targetless.as_str();
    Replica {
        pod: name.to_owned(),
        uid: name.to_owned(),
        namespace: namespace.to_owned(),
        node: String::new(),
        container: String::new(),
        container_id: String::new(),
        ready: true,
        created: 0,
        finished_agents: 0,
        is_in_host_network: false,
        probes: BTreeMap::new(),
    }
}

/// The agents of a deleted session, also if its target does not exist any more.
pub(super) async fn remaining_agents(
    shared: &Shared,
    spec: &ValidatedSpec,
) -> Result<Vec<ObservedAgent>> {
    match agent_mode(&spec.target_path, shared.settings.agent_mode) {
        AgentMode::Ephemeral => {
            let pods: Api<Pod> = Api::namespaced(shared.client.clone(), &spec.namespace);
            let found = pods.list(&ListParams::default()).await;
            let found = found.action("list the pods of a session's namespace")?;
            let agents = found
                .items
                .iter()
                .flat_map(|pod| ephemeral_agents(pod, spec));
            Ok(agents.collect())
        }
        AgentMode::Pod => {
            let agents = agents_in_pods(shared, spec).await?;
            Ok(agents.into_iter().map(|(_, agent)| agent).collect())
        }
        AgentMode::Node => {
            let served = shared.nodes.served_everywhere(&spec.agent_prefix()).await?;
            let agents = served.into_iter();
            Ok(agents
                .map(|(host, served)| on_node(&host, served))
                .collect())
        }
    }
}

fn observe_pods(
    pods: &[Pod],
    container: Option<&str>,
    spec: &ValidatedSpec,
    policies: &str,
) -> Observed {
    let mut observed = Observed::default();
    for pod in pods {
        match check_pod(pod, container) {
            Ok(replica) => observed.pods.push(ObservedPod {
                policies: policies.to_owned(),
                new_grant: None,
                agents: ephemeral_agents(pod, spec),
                replica,
                start_failure: None,
                refused: None,
                grant_failure: None,
            }),
            Err(unfit) => observed
                .unfit
                .push(format!("pod {} {unfit}", pod.name_any())),
        }
    }
    observed
        .pods
        .sort_by(|one, other| one.replica.pod.cmp(&other.replica.pod));
    observed
}

fn ephemeral_agents(pod: &Pod, spec: &ValidatedSpec) -> Vec<ObservedAgent> {
    let agents = agent_instances(pod, &spec.agent_prefix()).into_iter();
    agents.map(|agent| agent_in(pod, agent)).collect()
}

fn agent_in(pod: &Pod, instance: AgentInstance) -> ObservedAgent {
    ObservedAgent {
        instance,
        host: pod.status.as_ref().and_then(|status| status.pod_ip.clone()),
        certificate: None,
    }
}

/// The namespace of agents that are pods. Without a target, the agent uses the network of the session's namespace, so it
/// runs there. An agent for a target needs more privileges than a user's namespace should allow.
pub(super) fn namespace_of_pods<'a>(shared: &'a Shared, spec: &'a ValidatedSpec) -> &'a str {
    match spec.target {
        None => &spec.namespace,
        Some(_) => &shared.settings.namespace,
    }
}

/// Agents that are pods, each with the uid of its target's pod.
async fn agents_in_pods(
    shared: &Shared,
    spec: &ValidatedSpec,
) -> Result<Vec<(String, ObservedAgent)>> {
    let pods: Api<Pod> = Api::namespaced(shared.client.clone(), namespace_of_pods(shared, spec));
    let labels = format!("{SESSION_LABEL}={}", spec.id);
    let found = pods.list(&ListParams::default().labels(&labels)).await;
    let found = found.action("list the agents of a session")?;
    let agents = found.items.iter().filter_map(|pod| {
        let uid = pod.labels().get(POD_LABEL)?.clone();
        Some((uid, agent_in(pod, job_agent_instance(pod)?)))
    });
    Ok(agents.collect())
}

/// Observes the agents on the nodes of the target's pods.
async fn observe_nodes(
    shared: &Shared,
    spec: &ValidatedSpec,
    observed: &mut Observed,
) -> Result<()> {
    let hosts = shared.nodes.hosts().await?;
    let prefix = spec.agent_prefix();
    let nodes: BTreeSet<&str> = observed
        .pods
        .iter()
        .map(|pod| pod.replica.node.as_str())
        .collect();
    let mut served = BTreeMap::new();
    for node in nodes {
        let result = match hosts.get(node) {
            None => Err(no_node_agent(node)),
            Some(host) => {
                let served = shared.nodes.served(host, &prefix).await;
                served.map(|served| (host.clone(), served))
            }
        };
        served.insert(node.to_owned(), result);
    }
    for pod in &mut observed.pods {
        match served.get(&pod.replica.node) {
            Some(Ok((host, served))) => pod.agents = node_agents(&pod.replica, host, served),
            Some(Err(reason)) => {
                pod.start_failure = Some(StartFailure {
                    reason: reason.clone(),
                    is_final: false,
                });
            }
            None => {}
        }
    }
    Ok(())
}

fn no_node_agent(node: &str) -> String {
    format!(
        "no node agent runs on its node {node}; `kubectl get pods --selector {} --output wide` in the operator's namespace \
         shows where node agents run",
        api::node::NODE_AGENT_LABELS
    )
}

fn node_agents(replica: &Replica, host: &str, served: &[ServedTarget]) -> Vec<ObservedAgent> {
    let own = served.iter().filter(|served| served.pod == replica.uid);
    sorted(own.map(|served| on_node(host, served.clone())).collect())
}

pub(super) fn on_node(host: &str, served: ServedTarget) -> ObservedAgent {
    let has_failed = served.ended.as_ref().is_some_and(|ended| ended.has_failed);
    ObservedAgent {
        host: Some(host.to_owned()),
        certificate: Some(served.certificate),
        instance: AgentInstance {
            name: served.name,
            container_id: served.container,
            port: served.port,
            has_failed,
            state: match served.ended {
                None => AgentInstanceState::Running,
                Some(ended) => AgentInstanceState::Ended(ended.reason),
            },
        },
    }
}

fn sorted(mut agents: Vec<ObservedAgent>) -> Vec<ObservedAgent> {
    agents.sort_by_key(|agent| agent.instance.number());
    agents
}
