//! An operator that coordinates those of other clusters: a hub without targets, and two members that have them.

mod chart;
mod credential;
mod demos;
mod faults;

use std::collections::BTreeSet;
use std::io::Write as _;
use std::sync::Arc;

use anyhow::{Context as _, Result, ensure};
use api::connect::{ConnectParameters, Place};
use api::session::SessionId;
use cluster::{Cluster, OperatorConnection, OperatorSession};
use e2e::{LaterWorld, Needs, OwnClusters, PlayCluster, Stage, Story, tell, until};
use lab::{Progress, standind};
use libtest_mimic::Trial;
use link::tls::rustls::pki_types::ServerName;
use link::tls::{FirstSeen, Identity, TlsDialer, Trust};
use link::{Link, Settings};
use serde_json::{Value, json};

use super::surroundings::agent_image;

const CHART: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/../../charts/standin-operator");
/// The same in all clusters, as a session over several needs it.
const SHOP: &str = "shop";
const ID: SessionId = SessionId(0x4dbe_55ab_68bb_a16c);

pub(crate) fn stories(world: &Arc<LaterWorld>) -> Vec<Trial> {
    vec![
        tell(
            world,
            "a_chart_of_members_refuses_what_cannot_be",
            Needs::Machine,
            chart::refuses_what_cannot_be,
        ),
        tell(
            world,
            "a_chart_of_members_grants_what_it_says",
            Needs::Machine,
            chart::grants_what_it_says,
        ),
        tell(
            world,
            "one_session_covers_the_members_of_a_hub",
            Needs::Machine,
            one_session_covers_the_members,
        ),
        tell(
            world,
            "one_process_stands_in_for_a_service_in_three_clusters",
            Needs::Machine,
            demos::one_process_for_three_clusters,
        ),
        tell(
            world,
            "members_come_and_go_and_nothing_is_left",
            Needs::Machine,
            faults::members_come_and_go,
        ),
    ]
}

async fn one_session_covers_the_members(story: &Story<'_>) -> Result<()> {
    let clusters = OwnClusters::start(&["hub", "east", "west"], &Progress::to_stderr()).await?;
    clusters.lab().load_image(&agent_image()?)?;
    let hub = Operator::new(story, &clusters, "hub").await?;
    let east = Operator::new(story, &clusters, "east").await?;
    let west = Operator::new(story, &clusters, "west").await?;
    let is_member = json!({"operator": {"multiClusterMember": true, "replicas": 1}});
    for member in [&east, &west] {
        member.helm("install", &is_member)?;
        member.stage.kubectl(&["create", "namespace", SHOP])?;
        let cluster = &member.stage.cluster;
        cluster
            .client
            .apply(SHOP, include_str!("../../fixtures/web.yaml"))?;
        member.kubectl_in(
            SHOP,
            &["rollout", "status", "deployment/web", "--timeout=180s"],
        )?;
    }
    // The first token is nearly over: it is good for the one thing that it is needed for.
    let first = credential::old_token(&clusters, &east.stage)?;
    let values = hub_values(&clusters, &first)?;
    hub.helm("install", &values)?;
    members_are_shown(&hub, &west, &clusters).await?;
    tokens_renew_themselves(&hub, &clusters, &first, &values).await?;
    a_session_covers_both(&hub, &east, &west).await?;
    a_credential_that_is_taken_away_shows(&hub, &west, &clusters).await?;
    hub.uninstall()?;
    east.uninstall()?;
    west.uninstall()
}

/// East by a token, west by a certificate that is not there yet.
fn hub_values(clusters: &OwnClusters, token: &str) -> Result<Value> {
    let member = |name: &str, method: &str| -> Result<Value> {
        let cluster = clusters.lab().cluster(name)?;
        let (authority, _) = cluster.authority()?;
        Ok(json!({
            "authType": method,
            "server": cluster.api_server(),
            "caData": credential::base64(authority.as_bytes()),
        }))
    };
    let mut east = member("east", "bearerToken")?;
    east["bearerToken"] = json!(token);
    Ok(json!({"operator": {"multiCluster": {
        "enabled": true,
        "clusterName": "hub",
        "defaultCluster": "east",
        "managementOnly": true,
        "clusters": {"east": east, "west": member("west", "mtls")?},
    }}}))
}

/// East answers at once. West has no credential; a Secret that somebody makes is found without a restart.
async fn members_are_shown(hub: &Operator, west: &Operator, clusters: &OwnClusters) -> Result<()> {
    let object = until("the first member to be connected", async || {
        let object = hub.object()?;
        Ok(member_of(&object, "east")["connected"]
            .is_object()
            .then_some(object))
    })
    .await?;
    let features = object["spec"]["supported_features"].to_string();
    ensure!(features.contains("MultiClusterPrimary"), "{features}");
    let error = member_of(&object, "west")["error"].to_string();
    ensure!(
        error.contains("mirrord-cluster-west is not there"),
        "{error}"
    );
    make_certificate(hub, west, clusters)?;
    until("the second member to be connected", async || {
        let object = hub.object()?;
        Ok(member_of(&object, "west")["connected"]["operator_version"]
            .is_string()
            .then_some(()))
    })
    .await
}

fn make_certificate(hub: &Operator, west: &Operator, clusters: &OwnClusters) -> Result<()> {
    let account = format!(
        "system:serviceaccount:{}:mirrord-operator-envoy",
        west.stage.namespace
    );
    certificate_secret(hub, &credential::certificate(clusters, "west", &account)?)
}

/// The Secret of a member that knows the hub by a certificate.
fn certificate_secret(hub: &Operator, (chain, key): &(String, String)) -> Result<()> {
    let indented = |pem: &str| {
        pem.lines()
            .map(|line| format!("    {line}\n"))
            .collect::<String>()
    };
    hub.stage.apply(&format!(
        "apiVersion: v1\nkind: Secret\nmetadata:\n  name: mirrord-cluster-west\n  labels: \
         {{operator.metalbear.co/remote-cluster-credentials: \"true\"}}\nstringData:\n  tls.crt: |\n{}  tls.key: |\n{}",
        indented(chain),
        indented(key)
    ))
}

/// The first token ends, the chart brings it back, and nobody notices.
async fn tokens_renew_themselves(
    hub: &Operator,
    clusters: &OwnClusters,
    first: &str,
    values: &Value,
) -> Result<()> {
    until("a token that the hub has got itself", async || {
        let kept = "--output=jsonpath={.data.east}";
        let kept = hub.stage.kubectl(&[
            "get",
            "secret",
            "mirrord-operator-cluster-tokens",
            "--ignore-not-found",
            kept,
        ])?;
        Ok((!kept.is_empty() && kept != credential::base64(first.as_bytes())).then_some(()))
    })
    .await?;
    until("the first token to be over", async || {
        Ok(credential::is_refused(clusters, "east", first)
            .await?
            .then_some(()))
    })
    .await?;
    hub.helm("upgrade", values)?;
    hub.stage
        .kubectl(&["rollout", "restart", "deployment/mirrord-operator"])?;
    hub.wait()?;
    let object = until(
        "the member to be connected by the token that was kept",
        async || {
            let object = hub.object()?;
            Ok(member_of(&object, "east")["connected"]
                .is_object()
                .then_some(object))
        },
    )
    .await?;
    let east = member_of(&object, "east");
    ensure!(east["warning"].is_null(), "{east}");
    Ok(())
}

async fn a_session_covers_both(hub: &Operator, east: &Operator, west: &Operator) -> Result<()> {
    let identity = Identity::generate()?;
    let cluster = Cluster::new(hub.stage.cluster.kube.clone(), SHOP);
    let parameters = ConnectParameters {
        connect: true,
        resume_window: Some(120),
        ..ConnectParameters::default()
    };
    let target = "deployment/web".parse()?;
    let session = OperatorSession::new(&cluster, SHOP, &target, &parameters, ID, &identity)
        .introduce("Anna", "laptop");
    let connection = session.connect().await?;
    let places = ready_places(&connection, 4).await?;
    let clusters: BTreeSet<_> = places
        .iter()
        .filter_map(|place| place.cluster.clone())
        .collect();
    ensure!(
        clusters == BTreeSet::from(["east".to_owned(), "west".to_owned()]),
        "{places:?}"
    );
    let said = connection.places.borrow().clusters.clone();
    let default: Vec<_> = said
        .iter()
        .filter(|cluster| cluster.is_default)
        .map(|cluster| &cluster.name)
        .collect();
    ensure!(default == ["east"], "{said:?}");
    for place in &places {
        greet(&connection, place.number, &identity).await?;
    }
    // End to end also through two operators: somebody else's certificate gets nowhere.
    let stranger = Identity::generate()?;
    ensure!(
        greet(&connection, places[0].number, &stranger)
            .await
            .is_err(),
        "a stranger uses an agent"
    );
    let parent = hub.stage.kubectl(&["get", "mmcs", "--no-headers"])?;
    ensure!(
        parent.contains("mc-4dbe55ab68bba16c") && parent.contains("Ready"),
        "{parent}"
    );
    for member in [east, west] {
        let expected = format!("mc-4dbe55ab68bba16c-{}", member.stage.cluster.name);
        let children = member
            .stage
            .kubectl(&["get", "mirrordclustersessions", "--no-headers"])?;
        ensure!(children.contains(&expected), "{children}");
    }

    // The hub's replicas are exchanged: the session, its parts and their numbers are the same.
    hub.stage
        .kubectl(&["rollout", "restart", "deployment/mirrord-operator"])?;
    connection.ended().await;
    hub.wait()?;
    let connection = until("the session to continue", async || {
        Ok(Some(session.connect().await?))
    })
    .await?;
    let again = ready_places(&connection, 4).await?;
    let numbers = |places: &[Place]| places.iter().map(|place| place.number).collect::<Vec<_>>();
    ensure!(numbers(&again) == numbers(&places), "{again:?}\n{places:?}");
    for place in &again {
        greet(&connection, place.number, &identity).await?;
    }
    connection.say_farewell();
    no_session_is_left(&[hub, east, west]).await
}

async fn no_session_is_left(operators: &[&Operator]) -> Result<()> {
    for operator in operators {
        let name = &operator.stage.cluster.name;
        until(&format!("no session in {name}"), async || {
            let kinds = "mirrordmulticlustersessions.operator.metalbear.co,mirrordclustersessions.mirrord.metalbear.co";
            let left = operator.stage.kubectl(&["get", kinds, "--output=name"])?;
            Ok(left.trim().is_empty().then_some(()))
        })
        .await?;
    }
    Ok(())
}

async fn a_credential_that_is_taken_away_shows(
    hub: &Operator,
    west: &Operator,
    clusters: &OwnClusters,
) -> Result<()> {
    hub.stage
        .kubectl(&["delete", "secret", "mirrord-cluster-west"])?;
    until("the member to be shown without a credential", async || {
        let error = member_of(&hub.object()?, "west")["error"].to_string();
        Ok(error
            .contains("mirrord-cluster-west is not there")
            .then_some(()))
    })
    .await?;
    make_certificate(hub, west, clusters)?;
    until("the member to be connected again", async || {
        Ok(member_of(&hub.object()?, "west")["connected"]
            .is_object()
            .then_some(()))
    })
    .await
}

/// So many places whose agents are ready, in order.
async fn ready_places(connection: &OperatorConnection, count: usize) -> Result<Vec<Place>> {
    until(&format!("{count} agents"), async || {
        let mut ready = connection.places.borrow().places.clone();
        ready.retain(|place| place.ready);
        ready.sort_unstable_by_key(|place| place.number);
        Ok((ready.len() == count).then_some(ready))
    })
    .await
}

/// Makes a link with an agent, end to end.
async fn greet(connection: &OperatorConnection, place: u32, identity: &Identity) -> Result<Link> {
    let name = ServerName::try_from("agent")?;
    let trust = Trust::FirstSeen(FirstSeen::default());
    let dialer = TlsDialer::with_identity(connection.dialer(place), name, trust, identity)?;
    let mut settings = Settings::default();
    settings.redial.first_connection = std::time::Duration::from_secs(2);
    Ok(Link::connect(dialer, settings).await?)
}

fn member_of(object: &Value, name: &str) -> Value {
    let members = object["status"]["connected_clusters"].as_array();
    let mut members = members.into_iter().flatten();
    let found = members.find(|member| member["name"] == name);
    found.cloned().unwrap_or_default()
}

/// An operator in a namespace of its own.
struct Operator {
    stage: Stage,
}

impl Operator {
    async fn new(story: &Story<'_>, clusters: &OwnClusters, name: &str) -> Result<Self> {
        let cluster: &PlayCluster = clusters.get(name)?;
        let stage = story.stage_of(cluster).await?;
        Ok(Operator { stage })
    }

    /// Installs or upgrades the chart. Values go through a file, because some are secret.
    fn helm(&self, verb: &str, values: &Value) -> Result<()> {
        let (repository, tag) = standind::REFERENCE.rsplit_once(':').context("no tag")?;
        let mut file = tempfile::NamedTempFile::new()?;
        file.write_all(values.to_string().as_bytes())?;
        let file = file.path().display().to_string();
        let repository = format!("operator.image.repository={repository}");
        let tag = format!("operator.image.tag={tag}");
        let mut command = self.stage.cluster.client.helm();
        let command = command
            .args(["--namespace", &self.stage.namespace, verb, "standin", CHART])
            .args(["--wait", "--timeout=180s", "--values", &file])
            .args(["--set", &repository, "--set-string", &tag]);
        lab::output_of(command)?;
        self.wait()
    }

    fn wait(&self) -> Result<()> {
        let rollout = [
            "rollout",
            "status",
            "deployment/mirrord-operator",
            "--timeout=180s",
        ];
        self.stage.kubectl(&rollout)?;
        let service = "apiservice/v1.operator.metalbear.co";
        self.stage.kubectl(&[
            "wait",
            "--for=condition=Available",
            service,
            "--timeout=60s",
        ])?;
        Ok(())
    }

    fn kubectl_in(&self, namespace: &str, arguments: &[&str]) -> Result<String> {
        let mut command = self.stage.cluster.client.kubectl();
        Ok(lab::output_of(
            command.args(["--namespace", namespace]).args(arguments),
        )?)
    }

    /// `mirrordoperators/operator`.
    fn object(&self) -> Result<Value> {
        let text = self
            .stage
            .kubectl(&["get", "mirrordoperators", "operator", "--output=json"])?;
        Ok(serde_json::from_str(&text)?)
    }

    fn uninstall(&self) -> Result<()> {
        let mut command = self.stage.cluster.client.helm();
        let namespace = ["--namespace", &self.stage.namespace];
        lab::output_of(command.args(namespace).args([
            "uninstall",
            "standin",
            "--wait",
            "--timeout=120s",
        ]))?;
        let kinds = "customresourcedefinitions,clusterroles,clusterrolebindings,apiservices";
        let own = "secrets,configmaps,serviceaccounts,roles,rolebindings";
        let left = self.stage.kubectl(&["get", kinds, "--output=name"])?
            + &self.stage.kubectl(&["get", own, "--output=name"])?;
        // What the story made itself is not the chart's.
        let left: Vec<&str> = left
            .lines()
            .filter(|name| name.contains("mirrord") || name.contains("metalbear"))
            .filter(|name| *name != "secret/mirrord-cluster-west")
            .collect();
        ensure!(left.is_empty(), "left behind: {left:?}");
        Ok(())
    }
}
