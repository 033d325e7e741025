//! The agents of a session through the operator, as their endpoints appear and disappear.

use std::collections::BTreeMap;
use std::error::Error;
use std::time::Duration;

use api::connect::{AgentEndpoint, AgentEndpoints};
use cluster::ReconnectingDialer;
use link::tls::rustls::pki_types::ServerName;
use link::tls::{FirstSeen, TlsDialer, Trust};
use link::{Link, Redial};
use proxy::{AgentChange, AgentId, AgentSource, Connected, Connector, EventSink, Preference};
use tokio::sync::watch;
use tokio::task::AbortHandle;
use tokio::time::{Instant, sleep_until};

use super::{OperatorAgents, clusters};

/// How long the first connection to an agent is retried. It may start to listen a moment after the operator reports it.
const FIRST_CONNECT_TIMEOUT: Duration = Duration::from_secs(10);
/// How long the start of a session waits for clusters other than the Default. Slower clusters join later.
const CLUSTERS_TIMEOUT: Duration = Duration::from_secs(2);

/// The agents that the operator reports.
#[derive(Debug)]
pub(crate) struct OperatorAgentSource {
    session: OperatorAgents,
    endpoints: watch::Receiver<AgentEndpoints>,
    current: CurrentAgents,
    /// When the session starts with the clusters that are ready.
    start_deadline: Option<Instant>,
    has_ended: bool,
    cluster_watcher: AbortHandle,
}

impl Drop for OperatorAgentSource {
    fn drop(&mut self) {
        self.cluster_watcher.abort();
    }
}

impl AgentSource for OperatorAgentSource {
    type Connector = OperatorConnector;

    async fn changes(&mut self) -> Vec<AgentChange<OperatorConnector>> {
        if self.has_ended {
            return std::future::pending().await;
        }
        loop {
            let now = self.endpoints.borrow_and_update().clone();
            let deadline = self.wait_for_clusters(&now);
            if deadline.is_none() {
                let differences = differences(&mut self.current, &now);
                if !differences.is_empty() {
                    let changes = differences.into_iter();
                    return changes.map(|difference| self.change(difference)).collect();
                }
            }
            let deadline_passed = async {
                match deadline {
                    Some(time) => sleep_until(time).await,
                    None => std::future::pending().await,
                }
            };
            tokio::select! {
                Ok(()) = self.endpoints.changed() => {}
                () = deadline_passed => {}
                why = self.session.0.operator.ended() => {
                    self.has_ended = true;
                    return vec![AgentChange::SessionEnded(why)];
                }
            }
        }
    }
}

/// The agents that were reported to the session, by endpoint.
type CurrentAgents = BTreeMap<u32, CurrentAgent>;

#[derive(Debug, PartialEq, Eq)]
struct CurrentAgent {
    name: Option<String>,
    id: AgentId,
    /// A digest of the session's grant there.
    grant: Option<String>,
}

/// A change of the endpoints that matters to the session.
#[derive(Debug, PartialEq, Eq)]
enum Difference {
    Added {
        endpoint: u32,
        id: AgentId,
        preference: Preference,
    },
    Removed {
        id: AgentId,
        why: String,
    },
    RulesChanged(AgentId),
}

impl OperatorAgentSource {
    pub(super) fn new(session: OperatorAgents, events: EventSink) -> Self {
        let endpoints = session.0.operator.endpoints();
        let cluster_watcher = tokio::spawn(clusters::watch(endpoints.clone(), events));
        Self {
            endpoints,
            session,
            current: CurrentAgents::new(),
            start_deadline: None,
            has_ended: false,
            cluster_watcher: cluster_watcher.abort_handle(),
        }
    }

    /// The deadline until which the start of the session still waits for clusters, if it does. A session should start with
    /// all of its clusters, so that a program that listens gets the traffic of all of them. A slow or unreachable cluster
    /// must not delay the others for long.
    fn wait_for_clusters(&mut self, now: &AgentEndpoints) -> Option<Instant> {
        if !self.current.is_empty() || !clusters::are_pending(now) {
            return None;
        }
        let deadline = *self
            .start_deadline
            .get_or_insert_with(|| Instant::now() + CLUSTERS_TIMEOUT);
        (Instant::now() < deadline).then_some(deadline)
    }

    fn change(&self, difference: Difference) -> AgentChange<OperatorConnector> {
        match difference {
            Difference::Removed { id, why } => AgentChange::Removed(id, why),
            Difference::RulesChanged(id) => AgentChange::RulesChanged(id),
            Difference::Added {
                endpoint,
                id,
                preference,
            } => AgentChange::Added(proxy::AgentEndpoint {
                id,
                preference,
                connector: OperatorConnector {
                    certificate: self.certificate(endpoint),
                    session: self.session.clone(),
                    dialer: self.session.0.operator.dialer(endpoint),
                },
            }),
        }
    }

    /// The certificate of the agent of an endpoint, if the operator knows it.
    fn certificate(&self, number: u32) -> Option<String> {
        let now = self.endpoints.borrow();
        let endpoint = now
            .endpoints
            .iter()
            .find(|endpoint| endpoint.number == number)?;
        endpoint.certificate.clone()
    }
}

fn id_of(endpoint: &AgentEndpoint) -> AgentId {
    let id = AgentId::in_pod(&endpoint.pod);
    match &endpoint.cluster {
        Some(cluster) => id.of_cluster(cluster),
        None => id,
    }
}

/// Only agents of the Default may become the stateful agent. Those of other clusters provide incoming traffic.
fn preference_of(endpoint: &AgentEndpoint, now: &AgentEndpoints) -> Preference {
    let Some(cluster) = &endpoint.cluster else {
        return Preference::Preferred;
    };
    let mut clusters = now.clusters.iter();
    if clusters.any(|other| other.is_default && other.name == *cluster) {
        Preference::Preferred
    } else {
        Preference::TrafficOnly
    }
}

/// Compares the current agents with the endpoints that the operator reports, and updates them. An agent with another name at
/// the same endpoint is a new agent. A session does not start as long as all agents are for traffic only.
fn differences(current: &mut CurrentAgents, now: &AgentEndpoints) -> Vec<Difference> {
    let mut found = Vec::new();
    let mut ready = now.endpoints.iter().filter(|endpoint| endpoint.ready);
    if current.is_empty()
        && ready.all(|endpoint| preference_of(endpoint, now) == Preference::TrafficOnly)
    {
        return found;
    }
    current.retain(|number, CurrentAgent { id, .. }| {
        let endpoint = now
            .endpoints
            .iter()
            .find(|endpoint| endpoint.number == *number);
        if endpoint.is_some_and(|endpoint| endpoint.ready) {
            return true;
        }
        let why = endpoint.and_then(|endpoint| endpoint.error.clone());
        let why = why.unwrap_or_else(|| "the operator has no agent there any more".to_owned());
        let id = id.clone();
        found.push(Difference::Removed { id, why });
        false
    });
    for endpoint in now.endpoints.iter().filter(|endpoint| endpoint.ready) {
        let agent = CurrentAgent {
            name: endpoint.agent.clone(),
            id: id_of(endpoint),
            grant: endpoint.grant.clone(),
        };
        let before = current.insert(endpoint.number, agent);
        let before =
            before.filter(|before| before.name == endpoint.agent && before.id == id_of(endpoint));
        if let Some(before) = before {
            if before.grant.is_some() && before.grant != endpoint.grant {
                found.push(Difference::RulesChanged(before.id));
            }
        } else {
            found.push(Difference::Added {
                endpoint: endpoint.number,
                id: id_of(endpoint),
                preference: preference_of(endpoint, now),
            });
        }
    }
    found
}

/// Connects to an agent that the operator has started.
#[derive(Debug)]
pub(crate) struct OperatorConnector {
    session: OperatorAgents,
    dialer: ReconnectingDialer,
    certificate: Option<String>,
}

impl Connector for OperatorConnector {
    async fn connect(&self) -> Result<Connected, Box<dyn Error + Send + Sync>> {
        let session = &self.session.0;
        // The certificate is pinned, so its name is not verified.
        let name = ServerName::try_from("agent")?;
        let trust = match &self.certificate {
            Some(certificate) => Trust::Pinned(certificate.parse()?),
            None => Trust::FirstSeen(FirstSeen::default()),
        };
        let dialer = TlsDialer::with_identity(self.dialer.clone(), name, trust, &session.identity)?;
        let settings = link::Settings {
            redial: Redial {
                resume_window: session.resume_window,
                first_connection_timeout: FIRST_CONNECT_TIMEOUT,
                ..Redial::default()
            },
            ..link::Settings::default()
        };
        let link = Link::connect(dialer, settings).await?;
        session.links.lock().push(link.status());
        Ok(Connected {
            link,
            // The agent authenticates the client by its certificate.
            token: String::new(),
            // The operator reports the end of agents.
            ended: Box::pin(std::future::pending()),
        })
    }

    /// The operator reports a replacement. Until then, the same agent may only be slow.
    async fn retry_ready(&self) {
        tokio::time::sleep(FIRST_CONNECT_TIMEOUT).await;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn agents_are_added_and_removed_with_their_endpoints() {
        let endpoint = |number, pod: &str, agent: Option<&str>| AgentEndpoint {
            number,
            pod: pod.to_owned(),
            ready: agent.is_some(),
            agent: agent.map(str::to_owned),
            ..AgentEndpoint::default()
        };
        let added = |endpoint, pod: &str| Difference::Added {
            endpoint,
            id: AgentId::in_pod(pod),
            preference: Preference::Preferred,
        };
        let removed = |pod: &str, why: &str| Difference::Removed {
            id: AgentId::in_pod(pod),
            why: why.to_owned(),
        };
        let mut current = CurrentAgents::new();
        let mut check = |now: &[AgentEndpoint], expected: &[Difference]| {
            let now = AgentEndpoints {
                endpoints: now.to_vec(),
                ..AgentEndpoints::default()
            };
            assert_eq!(differences(&mut current, &now), expected);
        };
        let one = endpoint(1, "web-1", Some("agent-1"));
        check(
            &[one.clone(), endpoint(2, "web-2", None)],
            &[added(1, "web-1")],
        );
        // Nothing has changed for the first one.
        let two = endpoint(2, "web-2", Some("agent-1"));
        check(&[one.clone(), two.clone()], &[added(2, "web-2")]);
        check(&[one.clone(), two.clone()], &[]);
        // Another agent in the same pod has no state of the previous one.
        let next = endpoint(1, "web-1", Some("agent-2"));
        check(&[next, two.clone()], &[added(1, "web-1")]);
        // The same agent with other rules.
        let mut ruled = endpoint(1, "web-1", Some("agent-2"));
        ruled.grant = Some("a".to_owned());
        check(&[ruled.clone(), two.clone()], &[]);
        ruled.grant = Some("b".to_owned());
        let changed = Difference::RulesChanged(AgentId::in_pod("web-1"));
        check(&[ruled, two.clone()], &[changed]);
        let mut failed = endpoint(1, "web-1", None);
        failed.error = Some("it was killed".to_owned());
        check(&[failed, two], &[removed("web-1", "it was killed")]);
        let why = "the operator has no agent there any more";
        check(&[], &[removed("web-2", why)]);
    }

    #[test]
    fn only_agents_of_the_default_are_preferred() {
        let endpoint = |number, cluster: &str| AgentEndpoint {
            number,
            cluster: Some(cluster.to_owned()),
            pod: "web-1".to_owned(),
            ready: true,
            ..AgentEndpoint::default()
        };
        let cluster = |name: &str, is_default| api::connect::ClusterEndpoints {
            name: name.to_owned(),
            is_default,
            error: None,
            handovers: 0,
        };
        let added = |endpoint, cluster: &str, preference| Difference::Added {
            endpoint,
            id: AgentId::in_pod("web-1").of_cluster(cluster),
            preference,
        };
        let mut now = AgentEndpoints {
            endpoints: vec![endpoint(2, "west")],
            clusters: vec![cluster("east", true), cluster("west", false)],
            ..AgentEndpoints::default()
        };
        let mut current = CurrentAgents::new();
        assert_eq!(
            differences(&mut current, &now),
            [],
            "the Default is not ready yet"
        );
        now.endpoints.insert(0, endpoint(1, "east"));
        let expected = [
            added(1, "east", Preference::Preferred),
            added(2, "west", Preference::TrafficOnly),
        ];
        assert_eq!(differences(&mut current, &now), expected);
    }
}
