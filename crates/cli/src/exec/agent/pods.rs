//! One agent in each pod of a target, as pods appear and disappear.

use std::collections::BTreeMap;
use std::error::Error;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use cluster::{Replica, TargetPods, UnusablePod};
use proxy::{AgentChange, AgentEndpoint, AgentId, AgentSource, Connected, Connector, Preference};
use tokio::time::{Instant, sleep};

use super::RETRY_INTERVAL;
use super::cluster_agents::{ClusterAgents, is_transient};

/// How long the start of a replacement for a lost agent is retried before calls fail: its pod may be about to go.
const RESTART_TIMEOUT: Duration = Duration::from_secs(30);
const RESTART_INTERVAL: Duration = Duration::from_millis(500);

/// Watches the pods of a target.
#[derive(Debug)]
pub(super) struct PodSource {
    cluster_agents: Arc<ClusterAgents>,
    /// The pods that were reported, by name.
    reported: BTreeMap<String, Replica>,
    /// Whether the single agent of a session without a target was reported.
    targetless_reported: bool,
}

/// Connects to the agent in one pod, or without a replica to the agent of a session without a target.
#[derive(Debug)]
pub(super) struct PodConnector {
    cluster_agents: Arc<ClusterAgents>,
    replica: Option<Replica>,
    /// Whether an agent was started for this pod before.
    restarts: AtomicBool,
}

impl PodSource {
    pub(super) fn new(cluster_agents: Arc<ClusterAgents>) -> Self {
        Self {
            cluster_agents,
            reported: BTreeMap::new(),
            targetless_reported: false,
        }
    }

    fn added(&self, replica: Option<Replica>) -> AgentChange<PodConnector> {
        let (id, preference) = match &replica {
            Some(replica) if !replica.ready => {
                (AgentId::in_pod(&replica.pod), Preference::Fallback)
            }
            Some(replica) => (AgentId::in_pod(&replica.pod), Preference::Preferred),
            None => (AgentId::default(), Preference::Preferred),
        };
        let connector = PodConnector {
            cluster_agents: Arc::clone(&self.cluster_agents),
            replica,
            restarts: AtomicBool::new(false),
        };
        AgentChange::Added(AgentEndpoint {
            id,
            preference,
            connector,
        })
    }

    fn compare(&mut self, pods: &TargetPods) -> Vec<AgentChange<PodConnector>> {
        let (removed, added) = differences(&mut self.reported, pods);
        let mut changes = Vec::new();
        for (replica, why) in removed {
            let cluster_agents = Arc::clone(&self.cluster_agents);
            let uid = replica.uid;
            tokio::spawn(async move { cluster_agents.remove(Some(&uid)).await });
            changes.push(AgentChange::Removed(AgentId::in_pod(replica.pod), why));
        }
        changes.extend(added.into_iter().map(|replica| self.added(Some(replica))));
        changes
    }
}

impl AgentSource for PodSource {
    type Connector = PodConnector;

    async fn changes(&mut self) -> Vec<AgentChange<PodConnector>> {
        let cluster_agents = Arc::clone(&self.cluster_agents);
        let Some(replicas) = cluster_agents.replicas() else {
            if self.targetless_reported {
                return std::future::pending().await;
            }
            self.targetless_reported = true;
            return vec![self.added(None)];
        };
        loop {
            let pods = replicas.current();
            let changes = self.compare(&pods);
            if !changes.is_empty() {
                return changes;
            }
            replicas.changed(&pods).await;
        }
    }

    /// A program that steals will listen, so its agents start while the program does.
    fn is_on_demand(&self) -> bool {
        !self.cluster_agents.steals()
    }
}

/// The pods that were removed, with the reason, and those that were added. A terminating pod stays until it is gone, because
/// its agent finishes open connections. A pod whose container was restarted is removed and added again.
fn differences(
    reported: &mut BTreeMap<String, Replica>,
    pods: &TargetPods,
) -> (Vec<(Replica, String)>, Vec<Replica>) {
    let mut removed = Vec::new();
    reported.retain(|pod, before| {
        if pods.replicas.iter().any(|now| is_same(before, now)) {
            return true;
        }
        let unusable = pods.unusable.iter().find(|(name, _)| name == pod);
        let why = match unusable {
            Some((_, UnusablePod::Terminating)) => return true,
            Some((_, reason)) => reason.to_string(),
            None if pods.replicas.iter().any(|now| now.pod == *pod) => {
                "its container was restarted".to_owned()
            }
            None => "it was deleted".to_owned(),
        };
        removed.push((before.clone(), why));
        false
    });
    let mut added = Vec::new();
    for replica in &pods.replicas {
        if !reported.contains_key(&replica.pod) {
            reported.insert(replica.pod.clone(), replica.clone());
            added.push(replica.clone());
        }
    }
    (removed, added)
}

fn is_same(one: &Replica, other: &Replica) -> bool {
    (&one.uid, &one.container_id) == (&other.uid, &other.container_id)
}

impl PodConnector {
    /// Waits until the pod is usable. An agent may have been lost together with its pod or container: then no agent must be
    /// started here, and the replacement of the pod will be reported.
    async fn wait_until_usable(&self) {
        let (Some(replicas), Some(replica)) = (self.cluster_agents.replicas(), &self.replica)
        else {
            return;
        };
        sleep(RESTART_INTERVAL).await;
        replicas
            .wait_until(|pods| pods.replicas.iter().any(|now| is_same(replica, now)))
            .await;
    }

    async fn start(&self) -> anyhow::Result<Connected> {
        let restarts = self.restarts.swap(true, Ordering::Relaxed);
        if !restarts {
            return self.cluster_agents.start(self.replica.as_ref()).await;
        }
        let uid = self.replica.as_ref().map(|replica| replica.uid.as_str());
        self.cluster_agents.remove(uid).await;
        let deadline = Instant::now() + RESTART_TIMEOUT;
        loop {
            self.wait_until_usable().await;
            match self.cluster_agents.start(self.replica.as_ref()).await {
                Err(error) if is_transient(&error) && Instant::now() < deadline => {
                    tracing::info!(
                        error = format!("{error:#}"),
                        "agent restart failed, retrying"
                    );
                }
                result => return result,
            }
        }
    }
}

impl Connector for PodConnector {
    async fn connect(&self) -> Result<Connected, Box<dyn Error + Send + Sync>> {
        Ok(self.start().await?)
    }

    async fn retry_ready(&self) {
        sleep(RETRY_INTERVAL).await;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn replica(pod: &str, container_id: &str) -> Replica {
        Replica {
            pod: pod.to_owned(),
            uid: format!("uid of {pod}"),
            namespace: "shop".to_owned(),
            node: "east-1".to_owned(),
            container: "app".to_owned(),
            container_id: container_id.to_owned(),
            ready: true,
            created: 0,
            finished_agents: 0,
            is_in_host_network: false,
            probes: BTreeMap::new(),
        }
    }

    #[test]
    fn pods_are_added_removed_and_restarted() {
        let mut reported = BTreeMap::new();
        let mut check = |replicas: &[(&str, &str)],
                         unusable: &[(&str, UnusablePod)],
                         expected_removed: &[(&str, &str)],
                         expected_added: &[&str]| {
            let pods = TargetPods {
                replicas: replicas.iter().map(|(pod, id)| replica(pod, id)).collect(),
                unusable: unusable
                    .iter()
                    .map(|(pod, reason)| ((*pod).to_owned(), reason.clone()))
                    .collect(),
            };
            let (removed, added) = differences(&mut reported, &pods);
            let removed: Vec<(&str, &str)> = removed
                .iter()
                .map(|(replica, why)| (replica.pod.as_str(), why.as_str()))
                .collect();
            let added: Vec<&str> = added.iter().map(|replica| replica.pod.as_str()).collect();
            assert_eq!(removed, expected_removed);
            assert_eq!(added, expected_added);
        };
        let starting = UnusablePod::NotRunning("Pending".to_owned());
        let crashed = UnusablePod::ContainerNotRunning {
            container: "app".to_owned(),
            why: "Error".to_owned(),
        };
        check(&[("b", "1"), ("a", "1")], &[], &[], &["b", "a"]);
        check(&[("b", "1"), ("a", "1")], &[("c", starting)], &[], &[]);
        // A terminating pod stays until it is gone.
        check(&[("b", "1")], &[("a", UnusablePod::Terminating)], &[], &[]);
        check(&[("b", "1")], &[], &[("a", "it was deleted")], &[]);
        // A restart that is observed, and one that happens between two updates.
        let why = "its container app is not running (Error)";
        check(&[], &[("b", crashed)], &[("b", why)], &[]);
        check(&[("b", "2")], &[], &[], &["b"]);
        let why = "its container was restarted";
        check(&[("b", "3")], &[], &[("b", why)], &["b"]);
    }
}
