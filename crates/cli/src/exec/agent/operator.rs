//! A session through the operator of a cluster: whether there is one, and the agents that it makes.

mod clusters;

use std::collections::BTreeMap;
use std::error::Error;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use anyhow::Result;
use api::connect::{ConnectParameters, Place, PlaceCluster, Places};
use api::session::SessionId;
use api::{OnConcurrentSteal, TargetKind, TargetPath};
use cluster::{CarriedDialer, Carrier, Cluster, OperatorSession};
use config::{AgentSettings, Settings, Target, WorkloadKind};
use link::tls::rustls::pki_types::ServerName;
use link::tls::{FirstSeen, Identity, TlsDialer, Trust};
use link::{Link, Redial, Status};
use proxy::{AgentId, Change, Preference, Reach, Reached, Source, Tell};
use tokio::sync::watch;
use tokio::task::AbortHandle;
use tokio::time::{Instant, sleep_until, timeout};

pub(crate) use clusters::Clusters;

use crate::exec::holder;
use crate::exec::progress::Progress;

/// How long to try before the first connection to an agent is given up. It may listen a moment after it is said to.
const FIRST_CONNECTION: Duration = Duration::from_secs(10);
/// How long a session with the Default waits at its beginning for the other clusters. Those that need longer join later.
const BEGINNING: Duration = Duration::from_secs(2);
/// How long to wait for an agent to hear of the end.
const FAREWELL: Duration = Duration::from_secs(2);

/// A session that the operator carries. Clones are the same.
#[derive(Debug, Clone)]
pub(crate) struct ThroughOperator(Arc<Carried>);

#[derive(Debug)]
struct Carried {
    carrier: Carrier,
    /// What the user calls it.
    target: String,
    /// What the user calls the operator's cluster.
    cluster: Option<String>,
    identity: Identity,
    resume_window: Duration,
    /// What becomes of the links, so that the end can wait for them.
    links: Mutex<Vec<watch::Receiver<Status>>>,
}

/// Whether a session goes through the operator.
#[derive(Debug)]
pub(crate) enum Way {
    Operator(ThroughOperator),
    /// With the user's own rights.
    Own,
}

/// Finds the operator, unless the settings say that it is not wanted, and begins a session there.
pub(crate) async fn choose(
    settings: &Settings,
    cluster: &Cluster,
    progress: &Progress,
) -> Result<Way> {
    let forced = match settings.operator {
        Some(false) => return Ok(Way::Own),
        Some(true) => true,
        None => {
            progress.begin("looking for an operator");
            if !cluster::has_operator(cluster).await? {
                return Ok(Way::Own);
            }
            false
        }
    };
    progress.begin("making the session with the operator");
    let error = match begin(settings, cluster, progress).await {
        Ok(session) => {
            if has_wishes(&settings.agent) {
                progress.say(
                    "the operator decides how agents are made: of the settings below `agent` only `communication_timeout` has an effect",
                );
            }
            progress.begin("waiting for the agents of the operator");
            return Ok(Way::Operator(session));
        }
        Err(error) => error,
    };
    match error.downcast_ref::<cluster::Error>() {
        // Nothing can be asked of it, and no rule of it is passed by: the user's own rights are all that counts.
        Some(cluster::Error::ForeignOperator) if !forced => {
            progress.say(
                "another operator answers in this cluster, which this standin does not understand: the session uses your own rights",
            );
            Ok(Way::Own)
        }
        // It went in between, and a session without a target is nobody's.
        Some(cluster::Error::NoOperator) if !forced => Ok(Way::Own),
        Some(cluster::Error::OperatorRefused(why)) if !forced && is_targetless(settings) => {
            progress.say(&format!(
                "without a target the session uses your own rights, since the operator refuses it: {why}"
            ));
            Ok(Way::Own)
        }
        // Rights that are missing may hide that there is nobody to use them with.
        Some(cluster::Error::MayNot { .. })
            if forced && !cluster::has_operator(cluster).await? =>
        {
            Err(cluster::Error::NoOperator.into())
        }
        _ => Err(error),
    }
}

/// Whether something is said about agents that only those can have who make them. The image is no wish: it is there for
/// clusters without an operator.
fn has_wishes(agent: &AgentSettings) -> bool {
    let nothing_said = AgentSettings::default();
    let without_effect = AgentSettings {
        image: None,
        communication_timeout: nothing_said.communication_timeout,
        ..agent.clone()
    };
    without_effect != nothing_said
}

async fn begin(
    settings: &Settings,
    cluster: &Cluster,
    progress: &Progress,
) -> Result<ThroughOperator> {
    if settings.multi_cluster == Some(true) {
        clusters::ensure_primary(cluster).await?;
    }
    let (target, labels) = target_path(settings);
    let resume_window = Duration::from_secs(settings.agent.communication_timeout.0);
    let steal = settings.feature.network.incoming.on_concurrent_steal;
    let parameters = ConnectParameters {
        connect: true,
        on_concurrent_steal: Some(on_steal(steal)),
        label_target: labels,
        resume_window: Some(resume_window.as_secs()),
        multi_cluster: settings.multi_cluster,
        ..ConnectParameters::default()
    };
    let name = match &parameters.label_target {
        Some(labels) => format!("selector/{labels}"),
        None => target.to_string(),
    };
    let identity = Identity::generate()?;
    let id = new_id()?;
    let namespace = cluster.namespace();
    let session = OperatorSession::new(cluster, namespace, &target, &parameters, id, &identity)
        .introduce(&holder::user(), &holder::machine());
    tracing::info!(%id, %target, "a session through the operator");
    let stays_here = settings.multi_cluster == Some(false);
    let carrier = tokio::select! {
        carrier = Carrier::start(session) => carrier?,
        never = clusters::announce(cluster, id, progress), if !stays_here => match never {},
    };
    Ok(ThroughOperator(Arc::new(Carried {
        carrier,
        target: name,
        cluster: cluster.context().map(str::to_owned),
        identity,
        resume_window,
        links: Mutex::default(),
    })))
}

pub(crate) fn is_targetless(settings: &Settings) -> bool {
    let target = settings.target.as_ref();
    !matches!(
        target.and_then(|target| target.path.as_ref()),
        Some(Target::Workload { .. })
    )
}

/// The target as addresses have it, and the labels of one that is known by labels.
fn target_path(settings: &Settings) -> (TargetPath, Option<String>) {
    let target = settings.target.as_ref();
    let Some(Target::Workload {
        kind,
        name,
        container,
    }) = target.and_then(|target| target.path.as_ref())
    else {
        let kind = TargetKind::Targetless;
        let (name, container) = (String::new(), None);
        let path = TargetPath {
            kind,
            name,
            container,
        };
        return (path, None);
    };
    let path = |kind, name: &str| TargetPath {
        kind,
        name: name.to_owned(),
        container: container.clone(),
    };
    match kind_of(*kind) {
        TargetKind::Label => (path(TargetKind::Label, ""), Some(name.clone())),
        kind => (path(kind, name), None),
    }
}

fn kind_of(kind: WorkloadKind) -> TargetKind {
    match kind {
        WorkloadKind::Pod => TargetKind::Pod,
        WorkloadKind::Deployment => TargetKind::Deployment,
        WorkloadKind::ReplicaSet => TargetKind::ReplicaSet,
        WorkloadKind::StatefulSet => TargetKind::StatefulSet,
        WorkloadKind::DaemonSet => TargetKind::DaemonSet,
        WorkloadKind::Job => TargetKind::Job,
        WorkloadKind::CronJob => TargetKind::CronJob,
        WorkloadKind::Service => TargetKind::Service,
        WorkloadKind::Rollout => TargetKind::Rollout,
        WorkloadKind::Selector => TargetKind::Label,
    }
}

fn on_steal(what: config::OnConcurrentSteal) -> OnConcurrentSteal {
    match what {
        config::OnConcurrentSteal::Abort => OnConcurrentSteal::Abort,
        config::OnConcurrentSteal::Continue => OnConcurrentSteal::Continue,
        config::OnConcurrentSteal::Override => OnConcurrentSteal::Override,
    }
}

/// A number that no other session has.
fn new_id() -> Result<SessionId> {
    let mut bytes = [0; 8];
    super::local::random(&mut bytes)?;
    Ok(SessionId(u64::from_be_bytes(bytes)))
}

impl ThroughOperator {
    /// What the user calls the target.
    pub(crate) fn target(&self) -> &str {
        &self.0.target
    }

    /// By which the operator knows the session, too.
    pub(crate) fn id(&self) -> SessionId {
        self.0.carrier.id()
    }

    /// All clusters of the session. Where the operator has no others, the one that it is in.
    pub(crate) fn cluster_names(&self) -> Vec<String> {
        let clusters = self.clusters().into_iter();
        let names = clusters.map(|cluster| cluster.name);
        let names: Vec<String> = names.collect();
        if names.is_empty() {
            self.0.cluster.iter().cloned().collect()
        } else {
            names
        }
    }

    /// The clusters of a session over several. Empty, where there is one, and before the operator has said.
    pub(crate) fn clusters(&self) -> Vec<PlaceCluster> {
        self.0.carrier.places().borrow().clusters.clone()
    }

    /// The agents, as they come and go. What becomes of their clusters is told.
    pub(crate) fn agents(&self, tell: Tell) -> OperatorAgents {
        let places = self.0.carrier.places();
        let follower = tokio::spawn(clusters::follow(places.clone(), tell));
        OperatorAgents {
            places,
            session: self.clone(),
            known: Known::new(),
            begin_at: None,
            is_over: false,
            follower: follower.abort_handle(),
        }
    }

    /// Waits until agents and operator have been told of the end.
    pub(crate) async fn end(&self) {
        let links = {
            let mut links = self.0.links.lock().unwrap_or_else(PoisonError::into_inner);
            std::mem::take(&mut *links)
        };
        let told = async {
            for mut link in links {
                let ended =
                    |status: &Status| matches!(status, Status::Finished | Status::Failed(_));
                let _ = link.wait_for(ended).await;
            }
        };
        let _ = timeout(FAREWELL, told).await;
        self.0.carrier.end().await;
    }
}

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
}

impl OperatorAgents {
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
    fn targets_are_named_as_addresses_name_them() {
        let check = |target: &str, address: &str, labels: Option<&str>| {
            let layers = config::Layers::new().flag("--target", "target", target);
            let settings = layers.resolve().unwrap().settings;
            let (path, label_target) = target_path(&settings);
            assert_eq!(path.address(), address);
            assert_eq!(label_target.as_deref(), labels);
            assert_eq!(is_targetless(&settings), address == "targetless");
        };
        check("deployment/checkout", "deployment.checkout", None);
        check("pod/a.b/container/c", "pod.a.b.container.c", None);
        check("selector/app=x,tier!=y", "label", Some("app=x,tier!=y"));
        check("targetless", "targetless", None);
    }

    #[test]
    fn an_image_is_no_wish_and_a_namespace_is() {
        let wishes = |agent: &str| {
            let text = format!("agent: {{{agent}}}");
            let layers = config::Layers::new().file("test", &text, config::Format::Yaml);
            has_wishes(&layers.resolve().unwrap().settings.agent)
        };
        assert!(!wishes("image: 'registry.example.com/standind:1'"));
        assert!(!wishes("communication_timeout: 30"));
        assert!(wishes("namespace: tools"));
        assert!(wishes("ephemeral: false"));
    }

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
        };
        let came = |place, cluster: &str, preference| Difference::Came {
            place,
            id: AgentId::in_pod("web-1").of_cluster(cluster),
            preference,
        };
        let mut now = Places {
            places: vec![place(2, "west")],
            clusters: vec![cluster("east", true), cluster("west", false)],
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
