//! What goes wrong between clusters, one thing after the other, in one lab: a hub without targets, east, which is the
//! Default, and west. Sessions start with the Default and go on without others. After each fault, what there is in all
//! clusters is counted, down to the rules in the networks of pods: nothing may be there that was not there before.

mod credentials;
mod network;
mod people;
mod requests;
mod restarts;
mod rules;

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use anyhow::{Context as _, Result, ensure};
use api::connect::{ConnectParameters, Place, Places};
use api::session::SessionId;
use cluster::{Carrier, Cluster, OperatorSession};
use e2e::{OwnClusters, Story, until};
use lab::Progress;
use link::tls::rustls::pki_types::ServerName;
use link::tls::{FirstSeen, Identity, TlsDialer, Trust};
use link::{Link, Settings};
use serde_json::{Value, json};

use super::super::surroundings::agent_image;
use super::{Operator, SHOP, credential, make_certificate, member_of};

/// As long as an operator waits for a client that asks for nothing else. It is the shortest that there is.
const SHORT: u64 = 15;
/// Longer than any fault that a session is to outlive.
const LONG: u64 = 300;

pub(super) async fn members_come_and_go(story: &Story<'_>) -> Result<()> {
    let clusters = OwnClusters::start(&["hub", "east", "west"], &Progress::to_stderr()).await?;
    clusters.lab().load_image(&agent_image()?)?;
    let scene = Scene::set(story, &clusters).await?;
    let mut told = Telling::begin(&scene).await?;
    told.fault(
        "a member is down at the start",
        network::down_at_the_start(&scene),
    )
    .await;
    told.fault("a member goes down", network::down_later(&scene))
        .await;
    told.fault(
        "a member's operator is restarted",
        restarts::of_a_member(&scene),
    )
    .await;
    told.fault(
        "the Primary is restarted before a session is ready",
        restarts::before_ready(&scene),
    )
    .await;
    told.fault(
        "the Primary is restarted in a session",
        restarts::while_ready(&scene),
    )
    .await;
    told.fault(
        "the Primary is restarted at the end of a session",
        restarts::while_ending(&scene),
    )
    .await;
    told.fault(
        "the network is cut and heals",
        network::cut_within_the_window(&scene),
    )
    .await;
    told.fault(
        "the network is cut for too long",
        network::cut_past_the_window(&scene),
    )
    .await;
    told.fault(
        "requests while all this breaks",
        requests::none_is_lost_and_none_comes_twice(&scene),
    )
    .await;
    told.fault(
        "a token is revoked, and its Secret goes",
        credentials::token_over(&scene),
    )
    .await;
    told.fault(
        "a certificate expires, and its Secret goes",
        credentials::certificate_over(&scene),
    )
    .await;
    told.fault(
        "people delete what is not theirs to delete",
        people::delete(&scene),
    )
    .await;
    told.fault(
        "a member has an older version",
        people::older_member(&scene),
    )
    .await;
    told.fault("a user has no rights", people::without_rights(&scene))
        .await;
    told.fault("a member has two Primaries", people::two_primaries(&scene))
        .await;
    told.end()?;
    for operator in [&scene.hub, &scene.east, &scene.west] {
        operator.uninstall()?;
    }
    Ok(())
}

struct Scene<'clusters> {
    clusters: &'clusters OwnClusters,
    hub: Operator,
    east: Operator,
    west: Operator,
}

impl<'clusters> Scene<'clusters> {
    async fn set(story: &Story<'_>, clusters: &'clusters OwnClusters) -> Result<Self> {
        let scene = Scene {
            clusters,
            hub: Operator::new(story, clusters, "hub").await?,
            east: Operator::new(story, clusters, "east").await?,
            west: Operator::new(story, clusters, "west").await?,
        };
        for member in [&scene.east, &scene.west] {
            member.stage.kubectl(&["create", "namespace", SHOP])?;
            scene.open_shop(member)?;
            member.helm("install", &member_values())?;
        }
        make_certificate(&scene.hub, &scene.west, clusters)?;
        scene.hub.helm("install", &scene.hub_values()?)?;
        scene.is_connected("east").await?;
        scene.is_connected("west").await?;
        Ok(scene)
    }

    fn open_shop(&self, member: &Operator) -> Result<()> {
        let client = &member.stage.cluster.client;
        client.apply(SHOP, include_str!("../../../fixtures/web.yaml"))?;
        let status = ["rollout", "status", "deployment/web", "--timeout=180s"];
        member.kubectl_in(SHOP, &status).map(drop)
    }

    /// A member as its Primary knows it: by a token that is given, or by a certificate in a Secret.
    fn entry(&self, member: &Operator, token: Option<&str>) -> Result<Value> {
        let cluster = self.clusters.lab().cluster(&member.stage.cluster.name)?;
        let (authority, _) = cluster.authority()?;
        let mut entry = json!({
            "authType": if token.is_some() { "bearerToken" } else { "mtls" },
            "server": cluster.api_server(),
            "caData": credential::base64(authority.as_bytes()),
            "namespace": member.stage.namespace,
        });
        if let Some(token) = token {
            entry["bearerToken"] = json!(token);
        }
        Ok(entry)
    }

    fn hub_values(&self) -> Result<Value> {
        let token = envoy_token(&self.east)?;
        Ok(json!({"operator": {
            "replicas": 1,
            "session": {"ttlSecs": SHORT},
            "multiCluster": {
                "enabled": true,
                "clusterName": "hub",
                "defaultCluster": "east",
                "managementOnly": true,
                "onUnreachable": "continue",
                "clusters": {
                    "east": self.entry(&self.east, Some(&token))?,
                    "west": self.entry(&self.west, None)?,
                },
            },
        }}))
    }

    async fn is_connected(&self, member: &str) -> Result<()> {
        until(&format!("{member} to be connected"), async || {
            let object = self.hub.object()?;
            let member = member_of(&object, member);
            Ok(member["connected"].is_object().then_some(()))
        })
        .await
    }

    /// Waits until the hub says that something is wrong with a member, in these words.
    async fn is_away(&self, member: &str, words: &str) -> Result<()> {
        until(&format!("{member} to be away: {words:?}"), async || {
            let object = self.hub.object()?;
            let error = member_of(&object, member)["error"].clone();
            Ok(error
                .as_str()
                .filter(|error| error.contains(words))
                .map(drop))
        })
        .await
    }

    /// The phase of the session over several clusters, if there is one.
    fn phase(&self) -> Result<String> {
        let phase = "--output=jsonpath={.items[*].status.phase}";
        self.hub.stage.kubectl(&["get", "mmcs", phase])
    }

    /// What there is in each cluster.
    async fn counts(&self) -> Result<BTreeMap<String, usize>> {
        let mut counts = BTreeMap::new();
        for operator in [&self.hub, &self.east, &self.west] {
            let name = &operator.stage.cluster.name;
            // The chart's own records are kept by helm.
            let count = |kinds: &str| -> Result<usize> {
                let found = operator.stage.kubectl(&["get", kinds, "--output=name"])?;
                let is_other = |line: &&str| !line.contains("sh.helm.release");
                Ok(found.lines().filter(is_other).count())
            };
            let kinds = "mirrordmulticlustersessions.operator.metalbear.co,mirrordclustersessions.mirrord.metalbear.co";
            counts.insert(format!("sessions in {name}"), count(kinds)?);
            counts.insert(format!("Secrets in {name}"), count("secrets")?);
            let pods = pods(operator)?;
            counts.insert(format!("agents in {name}"), agents_of(&pods));
            counts.insert(format!("rules in {name}"), self.rules(&pods)?);
        }
        Ok(counts)
    }
}

fn member_values() -> Value {
    json!({"operator": {"multiClusterMember": true, "replicas": 1, "session": {"ttlSecs": SHORT}}})
}

fn envoy_token(member: &Operator) -> Result<String> {
    let account = "mirrord-operator-envoy";
    let token = member
        .stage
        .kubectl(&["create", "token", account, "--duration=1h"])?;
    Ok(token.trim().to_owned())
}

fn running_agents(operator: &Operator) -> Result<usize> {
    Ok(agents_of(&pods(operator)?))
}

/// The shop's pods.
fn pods(operator: &Operator) -> Result<Vec<Value>> {
    let pods = operator.kubectl_in(SHOP, &["get", "pods", "--output=json"])?;
    let pods: Value = serde_json::from_str(&pods)?;
    Ok(pods["items"].as_array().cloned().unwrap_or_default())
}

/// The entries of those that have ended stay in their pods.
fn agents_of(pods: &[Value]) -> usize {
    let agents = pods
        .iter()
        .filter_map(|pod| pod["status"]["ephemeralContainerStatuses"].as_array());
    let agents = agents.flatten();
    agents
        .filter(|agent| agent["state"]["running"].is_object())
        .count()
}

/// Tells one fault after the other, and what went wrong at the end: one that does does not hide the next.
struct Telling<'scene> {
    scene: &'scene Scene<'scene>,
    before: BTreeMap<String, usize>,
    wrong: Vec<String>,
}

impl<'scene> Telling<'scene> {
    async fn begin(scene: &'scene Scene<'scene>) -> Result<Self> {
        Ok(Telling {
            scene,
            before: scene.counts().await?,
            wrong: Vec::new(),
        })
    }

    async fn fault(&mut self, name: &str, told: impl Future<Output = Result<()>>) {
        let progress = Progress::to_stderr();
        progress.step(name);
        let told = Box::pin(told).await;
        let counted = async {
            let lab = self.scene.clusters.lab();
            lab.heal()?;
            if told.is_err() {
                let all = ["delete", "mmcs", "--all", "--wait=false"];
                self.scene.hub.stage.kubectl(&all)?;
            }
            until("nothing to be left", async || {
                let counts = self.scene.counts().await?;
                ensure!(
                    counts == self.before,
                    "{counts:?} instead of {:?}",
                    self.before
                );
                Ok(Some(()))
            })
            .await
        };
        let counted = counted.await;
        for result in [told, counted] {
            if let Err(error) = result {
                progress.step(format!("{name}: {error:#}"));
                self.wrong.push(format!("{name}: {error:#}"));
            }
        }
    }

    fn end(self) -> Result<()> {
        ensure!(self.wrong.is_empty(), "{}", self.wrong.join("\n"));
        Ok(())
    }
}

/// A client of a session with `web` in all clusters.
struct Client {
    carrier: Carrier,
    identity: Identity,
}

impl Client {
    /// Connects until it succeeds: who is restarted meanwhile answers later.
    async fn start(primary: &Operator, id: u64, window: u64) -> Result<Self> {
        let kube = primary.stage.cluster.kube.clone();
        let identity = Identity::generate()?;
        let carrier = until("a session", async || {
            let session = session(kube.clone(), id, window, &identity)?;
            Ok(Some(Carrier::start(session).await?))
        })
        .await?;
        Ok(Client { carrier, identity })
    }

    /// Waits until the client is told so.
    async fn is_told(&self, what: &str, is_so: impl Fn(&Places) -> bool) -> Result<Places> {
        let told = self.carrier.places();
        let what = format!("the client to be told: {what}");
        let waited = until(&what, async || {
            let places = told.borrow().clone();
            Ok(is_so(&places).then_some(places))
        });
        waited
            .await
            .with_context(|| format!("{:?}", self.carrier.places().borrow()))
    }

    /// Waits for two agents in each cluster, and uses them. Returns their numbers.
    async fn has_all(&self) -> Result<BTreeSet<u32>> {
        let both = |places: &Places| {
            ["east", "west"]
                .iter()
                .all(|name| ready_in(places, name).len() == 2 && !is_away(places, name))
        };
        let places = self.is_told("all clusters take part", both).await?;
        self.uses(&places, "east").await?;
        self.uses(&places, "west").await?;
        Ok(places
            .places
            .iter()
            .filter(|place| place.ready)
            .map(|place| place.number)
            .collect())
    }

    /// Makes a link with each agent of a cluster, end to end.
    async fn uses(&self, places: &Places, cluster: &str) -> Result<()> {
        for place in ready_in(places, cluster) {
            let what = format!("a link to {} in {cluster}", place.pod);
            let link = until(&what, async || {
                let name = ServerName::try_from("agent")?;
                let trust = Trust::FirstSeen(FirstSeen::default());
                let dialer = self.carrier.dialer(place.number);
                let dialer = TlsDialer::with_identity(dialer, name, trust, &self.identity)?;
                let mut settings = Settings::default();
                settings.redial.first_connection = Duration::from_secs(2);
                Ok(Some(Link::connect(dialer, settings).await?))
            });
            drop(link.await?);
        }
        Ok(())
    }

    async fn end(self) -> Result<()> {
        self.carrier.end().await;
        Ok(())
    }
}

fn session(
    kube: kube::Client,
    id: u64,
    window: u64,
    identity: &Identity,
) -> Result<OperatorSession> {
    let cluster = Cluster::new(kube, SHOP);
    let parameters = ConnectParameters {
        connect: true,
        resume_window: Some(window),
        ..ConnectParameters::default()
    };
    let target = "deployment/web".parse()?;
    let session = OperatorSession::new(
        &cluster,
        SHOP,
        &target,
        &parameters,
        SessionId(id),
        identity,
    );
    Ok(session.introduce("Anna", "laptop"))
}

fn ready_in(places: &Places, cluster: &str) -> Vec<Place> {
    let is_there = |place: &&Place| place.ready && place.cluster.as_deref() == Some(cluster);
    places.places.iter().filter(is_there).cloned().collect()
}

fn is_away(places: &Places, cluster: &str) -> bool {
    why_away(places, cluster).is_some()
}

fn why_away(places: &Places, cluster: &str) -> Option<String> {
    let mut clusters = places.clusters.iter();
    clusters.find(|known| known.name == cluster)?.error.clone()
}
