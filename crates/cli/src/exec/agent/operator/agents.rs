//! The agents of a session through the operator, as their places come and go.

use std::collections::BTreeMap;
use std::error::Error;
use std::sync::PoisonError;
use std::time::Duration;

use api::connect::{Place, Places};
use cluster::CarriedDialer;
use link::tls::rustls::pki_types::ServerName;
use link::tls::{FirstSeen, TlsDialer, Trust};
use link::{Link, Redial};
use proxy::{AgentId, Change, Preference, Reach, Reached, Source, Tell};
use tokio::sync::watch;
use tokio::task::AbortHandle;
use tokio::time::{Instant, sleep_until};

use super::{ThroughOperator, clusters};

/// How long to try before the first connection to an agent is given up. It may listen a moment after it is said to.
const FIRST_CONNECTION: Duration = Duration::from_secs(10);
/// How long a session with the Default waits at its beginning for the other clusters. Those that need longer join later.
const BEGINNING: Duration = Duration::from_secs(2);

/// The agents that the operator tells of.
#[derive(Debug)]
pub(crate) struct OperatorAgents {
    session: ThroughOperator,
    places: watch::Receiver<Places>,
    known: Known,
    /// When the session begins with the clusters that there are.
    begin_at: Option<Instant>,
    is_over: bool,
    follower: AbortHandle,
}

impl Drop for OperatorAgents {
    fn drop(&mut self) {
        self.follower.abort();
    }
}

impl Source for OperatorAgents {
    type Reach = PlacedAgent;

    async fn changes(&mut self) -> Vec<Change<PlacedAgent>> {
        if self.is_over {
            return std::future::pending().await;
        }
        loop {
            let now = self.places.borrow_and_update().clone();
            let waits_until = self.waits_until(&now);
            if waits_until.is_none() {
                let found = differences(&mut self.known, &now);
                if !found.is_empty() {
                    let changes = found.into_iter();
                    return changes.map(|found| self.change(found)).collect();
                }
            }
            let patience_is_over = async {
                match waits_until {
                    Some(time) => sleep_until(time).await,
                    None => std::future::pending().await,
                }
            };
            tokio::select! {
                Ok(()) = self.places.changed() => {}
                () = patience_is_over => {}
                why = self.session.0.carrier.over() => {
                    self.is_over = true;
                    return vec![Change::Over(why)];
                }
            }
        }
    }
}

/// The agents that the session knows of, by place.
type Known = BTreeMap<u32, KnownAgent>;

#[derive(Debug, PartialEq, Eq)]
struct KnownAgent {
    name: Option<String>,
    id: AgentId,
    /// A digest of what the session may do there.
    grant: Option<String>,
}

/// What is different from what was known, for a session.
#[derive(Debug, PartialEq, Eq)]
enum Difference {
    Came {
        place: u32,
        id: AgentId,
        preference: Preference,
    },
    Went {
        id: AgentId,
        why: String,
    },
    RulesChanged(AgentId),
}

impl OperatorAgents {
    pub(super) fn new(session: ThroughOperator, tell: Tell) -> Self {
        let places = session.0.carrier.places();
        let follower = tokio::spawn(clusters::follow(places.clone(), tell));
        Self {
            places,
            session,
            known: Known::new(),
            begin_at: None,
            is_over: false,
            follower: follower.abort_handle(),
        }
    }

    /// A session begins with all of its clusters, so that a program that listens has the traffic of all of them. One that
    /// is slow or away does not hold up the others for long.
    fn waits_until(&mut self, now: &Places) -> Option<Instant> {
        if !self.known.is_empty() || !clusters::are_awaited(now) {
            return None;
        }
        let begin_at = *self
            .begin_at
            .get_or_insert_with(|| Instant::now() + BEGINNING);
        (Instant::now() < begin_at).then_some(begin_at)
    }

    fn change(&self, difference: Difference) -> Change<PlacedAgent> {
        match difference {
            Difference::Went { id, why } => Change::Went(id, why),
            Difference::RulesChanged(id) => Change::RulesChanged(id),
            Difference::Came {
                place,
                id,
                preference,
            } => Change::Came(proxy::Place {
                id,
                preference,
                reach: PlacedAgent {
                    certificate: self.certificate(place),
                    session: self.session.clone(),
                    dialer: self.session.0.carrier.dialer(place),
                },
            }),
        }
    }

    /// By what the agent of a place is known, where the operator knows it.
    fn certificate(&self, number: u32) -> Option<String> {
        let now = self.places.borrow();
        let place = now.places.iter().find(|place| place.number == number)?;
        place.certificate.clone()
    }
}

fn id_of(place: &Place) -> AgentId {
    let id = AgentId::in_pod(&place.pod);
    match &place.cluster {
        Some(cluster) => id.of_cluster(cluster),
        None => id,
    }
}

/// Of several clusters, one has the answers that there must be one of. The others are there for their traffic.
fn preference_of(place: &Place, now: &Places) -> Preference {
    let Some(cluster) = &place.cluster else {
        return Preference::Preferred;
    };
    let mut clusters = now.clusters.iter();
    if clusters.any(|known| known.is_default && known.name == *cluster) {
        Preference::Preferred
    } else {
        Preference::TrafficOnly
    }
}

/// Compares what is known with what the operator says, and knows it from then on. An agent with another name has come
/// anew, also in a place that was known. A session does not begin with agents that have nothing but traffic.
fn differences(known: &mut Known, now: &Places) -> Vec<Difference> {
    let mut found = Vec::new();
    let mut ready = now.places.iter().filter(|place| place.ready);
    if known.is_empty() && ready.all(|place| preference_of(place, now) == Preference::TrafficOnly) {
        return found;
    }
    known.retain(|number, KnownAgent { id, .. }| {
        let place = now.places.iter().find(|place| place.number == *number);
        if place.is_some_and(|place| place.ready) {
            return true;
        }
        let why = place.and_then(|place| place.error.clone());
        let why = why.unwrap_or_else(|| "the operator has no agent there any more".to_owned());
        let id = id.clone();
        found.push(Difference::Went { id, why });
        false
    });
    for place in now.places.iter().filter(|place| place.ready) {
        let agent = KnownAgent {
            name: place.agent.clone(),
            id: id_of(place),
            grant: place.grant.clone(),
        };
        let before = known.insert(place.number, agent);
        let before =
            before.filter(|before| before.name == place.agent && before.id == id_of(place));
        if let Some(before) = before {
            if before.grant.is_some() && before.grant != place.grant {
                found.push(Difference::RulesChanged(before.id));
            }
        } else {
            found.push(Difference::Came {
                place: place.number,
                id: id_of(place),
                preference: preference_of(place, now),
            });
        }
    }
    found
}

/// An agent that the operator has made.
#[derive(Debug)]
pub(crate) struct PlacedAgent {
    session: ThroughOperator,
    dialer: CarriedDialer,
    certificate: Option<String>,
}

impl Reach for PlacedAgent {
    async fn reach(&self) -> Result<Reached, Box<dyn Error + Send + Sync>> {
        let session = &self.session.0;
        // The certificate is known, so its name does not matter.
        let name = ServerName::try_from("agent")?;
        let trust = match &self.certificate {
            Some(certificate) => Trust::Pinned(certificate.parse()?),
            None => Trust::FirstSeen(FirstSeen::default()),
        };
        let dialer = TlsDialer::with_identity(self.dialer.clone(), name, trust, &session.identity)?;
        let settings = link::Settings {
            redial: Redial {
                resume_window: session.resume_window,
                first_connection: FIRST_CONNECTION,
                ..Redial::default()
            },
            ..link::Settings::default()
        };
        let link = Link::connect(dialer, settings).await?;
        let mut links = session.links.lock().unwrap_or_else(PoisonError::into_inner);
        links.push(link.status());
        drop(links);
        Ok(Reached {
            link,
            // The certificate is the proof.
            token: String::new(),
            // The operator tells of it.
            ended: Box::pin(std::future::pending()),
        })
    }

    /// The operator says when there is another agent. Until then, the same one may just be slow.
    async fn another_try(&self) {
        tokio::time::sleep(FIRST_CONNECTION).await;
    }
}
#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn agents_come_and_go_with_their_places() {
        let place = |number, pod: &str, agent: Option<&str>| Place {
            number,
            pod: pod.to_owned(),
            ready: agent.is_some(),
            agent: agent.map(str::to_owned),
            ..Place::default()
        };
        let came = |place, pod: &str| Difference::Came {
            place,
            id: AgentId::in_pod(pod),
            preference: Preference::Preferred,
        };
        let went = |pod: &str, why: &str| Difference::Went {
            id: AgentId::in_pod(pod),
            why: why.to_owned(),
        };
        let mut known = Known::new();
        let mut check = |now: &[Place], expected: &[Difference]| {
            let now = Places {
                places: now.to_vec(),
                ..Places::default()
            };
            assert_eq!(differences(&mut known, &now), expected);
        };
        let one = place(1, "web-1", Some("agent-1"));
        check(&[one.clone(), place(2, "web-2", None)], &[came(1, "web-1")]);
        // What is the same is no news.
        let two = place(2, "web-2", Some("agent-1"));
        check(&[one.clone(), two.clone()], &[came(2, "web-2")]);
        check(&[one.clone(), two.clone()], &[]);
        // Another agent in the same pod knows nothing of what the one before did.
        let next = place(1, "web-1", Some("agent-2"));
        check(&[next, two.clone()], &[came(1, "web-1")]);
        // The same one, with other rules.
        let mut ruled = place(1, "web-1", Some("agent-2"));
        ruled.grant = Some("a".to_owned());
        check(&[ruled.clone(), two.clone()], &[]);
        ruled.grant = Some("b".to_owned());
        let changed = Difference::RulesChanged(AgentId::in_pod("web-1"));
        check(&[ruled, two.clone()], &[changed]);
        let mut failed = place(1, "web-1", None);
        failed.error = Some("it was killed".to_owned());
        check(&[failed, two], &[went("web-1", "it was killed")]);
        let why = "the operator has no agent there any more";
        check(&[], &[went("web-2", why)]);
    }

    #[test]
    fn one_of_several_clusters_has_the_answers() {
        let place = |number, cluster: &str| Place {
            number,
            cluster: Some(cluster.to_owned()),
            pod: "web-1".to_owned(),
            ready: true,
            ..Place::default()
        };
        let cluster = |name: &str, is_default| api::connect::PlaceCluster {
            name: name.to_owned(),
            is_default,
            error: None,
            moves: 0,
        };
        let came = |place, cluster: &str, preference| Difference::Came {
            place,
            id: AgentId::in_pod("web-1").of_cluster(cluster),
            preference,
        };
        let mut now = Places {
            places: vec![place(2, "west")],
            clusters: vec![cluster("east", true), cluster("west", false)],
            ..Places::default()
        };
        let mut known = Known::new();
        assert_eq!(
            differences(&mut known, &now),
            [],
            "the Default is not there yet"
        );
        now.places.insert(0, place(1, "east"));
        let expected = [
            came(1, "east", Preference::Preferred),
            came(2, "west", Preference::TrafficOnly),
        ];
        assert_eq!(differences(&mut known, &now), expected);
    }
}
