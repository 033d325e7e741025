//! What there is: the pods of a session's target, and the agents beside them.

use std::collections::{BTreeMap, BTreeSet};

use api::TargetKind;
use api::node::Served;
use cluster::pod::judge;
use cluster::{Cluster, Ordered, OrderedState, Replica, ordered, ordered_as_pod, pods_of};
use k8s_openapi::api::core::v1::Pod;
use kube::api::ListParams;
use kube::{Api, ResourceExt as _};

use super::plan::{Observed, ObservedAgent, ObservedPod, Refused};
use super::validate::{Wanted, agent_mode};
use crate::Shared;
use crate::error::{Doing as _, Error, Result, chain};
use crate::settings::AgentMode;

/// The labels of agents that are pods: whose they are, and beside which pod.
pub(super) const SESSION_LABEL: &str = "operator.metalbear.co/session";
pub(super) const POD_LABEL: &str = "operator.metalbear.co/target-pod-uid";

pub(super) async fn observe(
    shared: &Shared,
    cluster: &Cluster,
    wanted: &Wanted,
) -> Result<Observed> {
    let Some(target) = &wanted.target else {
        return without_target(shared, wanted).await;
    };
    let pods = match pods_of(cluster, target).await {
        Ok(pods) => pods,
        // A target that is not there is a fact about it; an API server that does not answer is not.
        Err(error) if error.is_of_the_api_server() => return Err(Error::Cluster(Box::new(error))),
        Err(error) => return Ok(Observed::nothing(chain(&error))),
    };
    let policies = shared.policies.digest(&wanted.namespace);
    let mut observed = judged(&pods, target.container.as_deref(), wanted, &policies);
    match shared.settings.agent_mode {
        AgentMode::Ephemeral => {}
        AgentMode::Pod => {
            let agents = agents_in_pods(shared, wanted).await?;
            for pod in &mut observed.pods {
                let beside = agents.iter().filter(|(uid, _)| *uid == pod.replica.uid);
                pod.agents = in_order(beside.map(|(_, agent)| agent.clone()).collect());
            }
        }
        AgentMode::Node => look_at_nodes(shared, wanted, &mut observed).await?,
    }
    Ok(observed)
}

/// A session without a target has one agent, in a pod of its own, which is all that there is.
async fn without_target(shared: &Shared, wanted: &Wanted) -> Result<Observed> {
    let agents = agents_in_pods(shared, wanted).await?.into_iter();
    Ok(Observed {
        pods: vec![ObservedPod {
            policies: shared.policies.digest(&wanted.namespace),
            told: None,
            replica: nobody(&wanted.namespace),
            agents: in_order(agents.map(|(_, agent)| agent).collect()),
            refused: None,
        }],
        ..Observed::default()
    })
}

/// Stands where a pod of the target would.
fn nobody(namespace: &str) -> Replica {
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

/// The agents of a session that is to end, wherever they are, also where its target is gone already.
pub(super) async fn left(shared: &Shared, wanted: &Wanted) -> Result<Vec<ObservedAgent>> {
    match agent_mode(&wanted.named, shared.settings.agent_mode) {
        AgentMode::Ephemeral => {
            let pods: Api<Pod> = Api::namespaced(shared.client.clone(), &wanted.namespace);
            let found = pods.list(&ListParams::default()).await;
            let found = found.doing("list the pods of a session's namespace")?;
            let agents = found.items.iter().flat_map(|pod| in_pod(pod, wanted));
            Ok(agents.collect())
        }
        AgentMode::Pod => {
            let agents = agents_in_pods(shared, wanted).await?;
            Ok(agents.into_iter().map(|(_, agent)| agent).collect())
        }
        AgentMode::Node => {
            let served = shared
                .nodes
                .served_everywhere(&wanted.agent_prefix())
                .await?;
            let agents = served.into_iter();
            Ok(agents
                .map(|(host, served)| on_node(&host, served))
                .collect())
        }
    }
}

fn judged(pods: &[Pod], container: Option<&str>, wanted: &Wanted, policies: &str) -> Observed {
    let mut observed = Observed::default();
    for pod in pods {
        match judge(pod, container) {
            Ok(replica) => observed.pods.push(ObservedPod {
                policies: policies.to_owned(),
                told: None,
                agents: in_pod(pod, wanted),
                replica,
                refused: None,
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

fn in_pod(pod: &Pod, wanted: &Wanted) -> Vec<ObservedAgent> {
    let agents = ordered(pod, &wanted.agent_prefix()).into_iter();
    agents.map(|agent| beside(pod, agent)).collect()
}

fn beside(pod: &Pod, ordered: Ordered) -> ObservedAgent {
    ObservedAgent {
        ordered,
        host: pod.status.as_ref().and_then(|status| status.pod_ip.clone()),
        certificate: None,
    }
}

/// Where agents are that are pods. One without a target has the network of the session's namespace, so it is there; those
/// beside targets need more rights than a user's namespace should allow.
pub(super) fn namespace_of_pods<'a>(shared: &'a Shared, wanted: &'a Wanted) -> &'a str {
    match wanted.target {
        None => &wanted.namespace,
        Some(_) => &shared.settings.namespace,
    }
}

/// Agents that are pods, each with the uid of the pod beside which it is.
async fn agents_in_pods(shared: &Shared, wanted: &Wanted) -> Result<Vec<(String, ObservedAgent)>> {
    let pods: Api<Pod> = Api::namespaced(shared.client.clone(), namespace_of_pods(shared, wanted));
    let labels = format!("{SESSION_LABEL}={}", wanted.id);
    let found = pods.list(&ListParams::default().labels(&labels)).await;
    let found = found.doing("list the agents of a session")?;
    let agents = found.items.iter().filter_map(|pod| {
        let uid = pod.labels().get(POD_LABEL)?.clone();
        Some((uid, beside(pod, ordered_as_pod(pod)?)))
    });
    Ok(agents.collect())
}

/// Asks the nodes on which the target has pods.
async fn look_at_nodes(shared: &Shared, wanted: &Wanted, observed: &mut Observed) -> Result<()> {
    let hosts = shared.nodes.hosts().await?;
    let prefix = wanted.agent_prefix();
    let nodes: BTreeSet<&str> = observed
        .pods
        .iter()
        .map(|pod| pod.replica.node.as_str())
        .collect();
    let mut served = BTreeMap::new();
    for node in nodes {
        let answer = match hosts.get(node) {
            None => Err(none_there(node)),
            Some(host) => {
                let served = shared.nodes.served(host, &prefix).await;
                served.map(|served| (host.clone(), served))
            }
        };
        served.insert(node.to_owned(), answer);
    }
    for pod in &mut observed.pods {
        match served.get(&pod.replica.node) {
            Some(Ok((host, served))) => pod.agents = served_beside(&pod.replica, host, served),
            Some(Err(why)) => {
                pod.refused = Some(Refused {
                    why: why.clone(),
                    is_final: false,
                });
            }
            None => {}
        }
    }
    Ok(())
}

fn none_there(node: &str) -> String {
    format!(
        "no agent runs on its node {node}; `kubectl get pods --selector {} --output wide` in the operator's namespace shows \
         where they are",
        api::node::LABELS
    )
}

fn served_beside(replica: &Replica, host: &str, served: &[Served]) -> Vec<ObservedAgent> {
    let beside = served.iter().filter(|served| served.pod == replica.uid);
    in_order(beside.map(|served| on_node(host, served.clone())).collect())
}

pub(super) fn on_node(host: &str, served: Served) -> ObservedAgent {
    let has_failed = served.ended.as_ref().is_some_and(|ended| ended.has_failed);
    ObservedAgent {
        host: Some(host.to_owned()),
        certificate: Some(served.certificate),
        ordered: Ordered {
            name: served.name,
            container_id: served.container,
            port: served.port,
            has_failed,
            state: match served.ended {
                None => OrderedState::Running,
                Some(ended) => OrderedState::Ended(ended.why),
            },
        },
    }
}

fn in_order(mut agents: Vec<ObservedAgent>) -> Vec<ObservedAgent> {
    agents.sort_by_key(|agent| agent.ordered.number());
    agents
}
