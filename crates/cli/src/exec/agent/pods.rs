//! The pods of a target as places of agents: each has one, and they come and go.

use std::collections::BTreeMap;
use std::error::Error;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use cluster::{Known, Replica, Unfit};
use proxy::{AgentId, Change, Place, Preference, Reach, Reached, Source};
use tokio::time::{Instant, sleep};

use super::ANOTHER_TRY;
use super::in_cluster::{InCluster, may_pass};

/// How long another agent is tried for when one was lost, before calls fail: its pod may be about to go.
const SUCCESSION: Duration = Duration::from_secs(30);
const BETWEEN_TRIES: Duration = Duration::from_millis(500);

/// Follows the pods of a target.
#[derive(Debug)]
pub(super) struct Pods {
    in_cluster: Arc<InCluster>,
    /// Those that were told of, by name.
    told: BTreeMap<String, Replica>,
    /// Without a target there is one agent, and this says whether it was told of.
    targetless_told: bool,
}

/// One pod, or with no replica the agent of a session without a target.
#[derive(Debug)]
pub(super) struct InPod {
    in_cluster: Arc<InCluster>,
    replica: Option<Replica>,
    /// An agent was here before.
    again: AtomicBool,
}

impl Pods {
    pub(super) fn new(in_cluster: Arc<InCluster>) -> Self {
        Self {
            in_cluster,
            told: BTreeMap::new(),
            targetless_told: false,
        }
    }

    fn place(&self, replica: Option<Replica>) -> Change<InPod> {
        let (id, preference) = match &replica {
            Some(replica) if !replica.ready => {
                (AgentId::in_pod(&replica.pod), Preference::Possible)
            }
            Some(replica) => (AgentId::in_pod(&replica.pod), Preference::Preferred),
            None => (AgentId::default(), Preference::Preferred),
        };
        let reach = InPod {
            in_cluster: Arc::clone(&self.in_cluster),
            replica,
            again: AtomicBool::new(false),
        };
        Change::Came(Place {
            id,
            preference,
            reach,
        })
    }

    fn compare(&mut self, known: &Known) -> Vec<Change<InPod>> {
        let (went, came) = differences(&mut self.told, known);
        let mut changes = Vec::new();
        for (replica, why) in went {
            let in_cluster = Arc::clone(&self.in_cluster);
            let uid = replica.uid;
            tokio::spawn(async move { in_cluster.remove(Some(&uid)).await });
            changes.push(Change::Went(AgentId::in_pod(replica.pod), why));
        }
        changes.extend(came.into_iter().map(|replica| self.place(Some(replica))));
        changes
    }
}

impl Source for Pods {
    type Reach = InPod;

    async fn changes(&mut self) -> Vec<Change<InPod>> {
        let in_cluster = Arc::clone(&self.in_cluster);
        let Some(replicas) = in_cluster.replicas() else {
            if self.targetless_told {
                return std::future::pending().await;
            }
            self.targetless_told = true;
            return vec![self.place(None)];
        };
        loop {
            let known = replicas.now();
            let changes = self.compare(&known);
            if !changes.is_empty() {
                return changes;
            }
            replicas.changed(&known).await;
        }
    }

    /// Whoever steals will listen: then the agents start while the program does.
    fn is_on_demand(&self) -> bool {
        !self.in_cluster.steals()
    }
}

/// Who has gone, with the reason, and who has come. A pod that is being removed stays as long as it is there, because its
/// agent ends what is under way; one whose container was restarted has come again.
fn differences(
    told: &mut BTreeMap<String, Replica>,
    known: &Known,
) -> (Vec<(Replica, String)>, Vec<Replica>) {
    let mut went = Vec::new();
    told.retain(|pod, before| {
        if known.replicas.iter().any(|now| is_same(before, now)) {
            return true;
        }
        let unfit = known.others.iter().find(|(name, _)| name == pod);
        let why = match unfit {
            Some((_, Unfit::Leaving)) => return true,
            Some((_, unfit)) => unfit.to_string(),
            None if known.replicas.iter().any(|now| now.pod == *pod) => {
                "its container was restarted".to_owned()
            }
            None => "it was deleted".to_owned(),
        };
        went.push((before.clone(), why));
        false
    });
    let mut came = Vec::new();
    for replica in &known.replicas {
        if !told.contains_key(&replica.pod) {
            told.insert(replica.pod.clone(), replica.clone());
            came.push(replica.clone());
        }
    }
    (went, came)
}

fn is_same(one: &Replica, other: &Replica) -> bool {
    (&one.uid, &one.container_id) == (&other.uid, &other.container_id)
}

impl InPod {
    /// An agent that was lost may have been lost with its pod or container: then another place will be told of, and
    /// nobody is to be started here.
    async fn until_it_makes_sense(&self) {
        let (Some(replicas), Some(replica)) = (self.in_cluster.replicas(), &self.replica) else {
            return;
        };
        sleep(BETWEEN_TRIES).await;
        replicas
            .until(|known| known.replicas.iter().any(|now| is_same(replica, now)))
            .await;
    }

    async fn start(&self) -> anyhow::Result<Reached> {
        let again = self.again.swap(true, Ordering::Relaxed);
        if !again {
            return self.in_cluster.start(self.replica.as_ref()).await;
        }
        let uid = self.replica.as_ref().map(|replica| replica.uid.as_str());
        self.in_cluster.remove(uid).await;
        let give_up = Instant::now() + SUCCESSION;
        loop {
            self.until_it_makes_sense().await;
            match self.in_cluster.start(self.replica.as_ref()).await {
                Err(error) if may_pass(&error) && Instant::now() < give_up => {
                    tracing::info!(error = format!("{error:#}"), "there is no other agent yet");
                }
                result => return result,
            }
        }
    }
}

impl Reach for InPod {
    async fn reach(&self) -> Result<Reached, Box<dyn Error + Send + Sync>> {
        Ok(self.start().await?)
    }

    async fn another_try(&self) {
        sleep(ANOTHER_TRY).await;
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
    fn pods_come_and_go_and_are_restarted() {
        let mut told = BTreeMap::new();
        let mut check = |replicas: &[(&str, &str)],
                         others: &[(&str, Unfit)],
                         expected_to_go: &[(&str, &str)],
                         expected_to_come: &[&str]| {
            let known = Known {
                replicas: replicas.iter().map(|(pod, id)| replica(pod, id)).collect(),
                others: others
                    .iter()
                    .map(|(pod, unfit)| ((*pod).to_owned(), unfit.clone()))
                    .collect(),
            };
            let (went, came) = differences(&mut told, &known);
            let went: Vec<(&str, &str)> = went
                .iter()
                .map(|(replica, why)| (replica.pod.as_str(), why.as_str()))
                .collect();
            let came: Vec<&str> = came.iter().map(|replica| replica.pod.as_str()).collect();
            assert_eq!(went, expected_to_go);
            assert_eq!(came, expected_to_come);
        };
        let starting = Unfit::NotRunning("Pending".to_owned());
        let crashed = Unfit::ContainerNotRunning {
            container: "app".to_owned(),
            why: "Error".to_owned(),
        };
        check(&[("b", "1"), ("a", "1")], &[], &[], &["b", "a"]);
        check(&[("b", "1"), ("a", "1")], &[("c", starting)], &[], &[]);
        // Who is being removed is there until it is gone.
        check(&[("b", "1")], &[("a", Unfit::Leaving)], &[], &[]);
        check(&[("b", "1")], &[], &[("a", "it was deleted")], &[]);
        // A restart that is seen, and one that is not.
        let why = "its container app is not running (Error)";
        check(&[], &[("b", crashed)], &[("b", why)], &[]);
        check(&[("b", "2")], &[], &[], &["b"]);
        let why = "its container was restarted";
        check(&[("b", "3")], &[], &[("b", why)], &["b"]);
    }
}
