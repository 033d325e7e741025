//! One process of a developer stands in for a service in three clusters. The same program, the same settings and the same
//! command in five demos; what differs is what the administrator has set up, or which context the developer uses.
//!
//! | demo | hub | east | west |
//! |---|---|---|---|
//! | 1 stealing | Primary | Default | member |
//! | 2 mirroring | Primary | Default | member |
//! | 3 management-only | Primary without targets | Default | member |
//! | 4 direct connection | | | the context |
//! | 5 Primary as Default | Primary, Default | member | member |
//!
//! The service knows its cluster by a variable, a file and another service; the developer's process says what it sees of
//! them, and writes orders into a file of the service. So each answer tells of which cluster what is.

use std::collections::BTreeSet;
use std::fs;

use anyhow::{Context as _, Result, ensure};
use e2e::{OwnClusters, Stage, Story, until};
use lab::Progress;
use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;
use serde_json::{Value, json};
use tempfile::TempDir;

use super::super::surroundings::{Running, agent_image, standin_in};
use super::{Operator, SHOP, credential, member_of, no_session_is_left};

const PROGRAM: &str = include_str!("../../../fixtures/members/stand_in.py");
const SETTINGS: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/fixtures/members/standin.yaml");
const ALL: [&str; 3] = ["hub", "east", "west"];
/// What the service has written, if it has.
const ORDERS: [&str; 3] = [
    "sh",
    "-c",
    "cat /data/orders 2>/dev/null; rm -f /data/orders",
];

pub(super) async fn one_process_for_three_clusters(story: &Story<'_>) -> Result<()> {
    let clusters = OwnClusters::start(&ALL, &Progress::to_stderr()).await?;
    clusters.lab().load_image(&agent_image()?)?;
    let scene = Scene::set(story, &clusters).await?;

    scene.administrate("install", "east", false).await?;
    stealing(&scene).await?;
    mirroring(&scene).await?;
    staying_on_the_primary(&scene).await?;
    direct_connection(&scene).await?;

    scene.administrate("upgrade", "east", true).await?;
    management_only(&scene).await?;

    scene.administrate("upgrade", "hub", false).await?;
    primary_as_default(&scene).await?;

    scene.operators.iter().try_for_each(Operator::uninstall)
}

/// Demo 1. Requests of all clusters are answered by the one process, whose world is that of the Default.
async fn stealing(scene: &Scene<'_>) -> Result<()> {
    let status = scene.standin("hub", &["operator", "status"])?;
    for row in [
        "hub      Primary",
        "east     member, Default",
        "west     member",
    ] {
        ensure!(status.contains(row), "{row:?} is missing:\n{status}");
    }
    let session = StandIn::start(scene, "hub", &["--steal"])?;
    session
        .says("standing in for deployment/shop in the clusters hub, east (Default), west")
        .await?;
    session
        .says("3 pods: 1 in cluster east, 1 in cluster hub, 1 in cluster west")
        .await?;
    let listed = scene.standin("hub", &["operator", "session", "list"])?;
    ensure!(listed.contains("hub, east, west"), "{listed}");
    for cluster in ALL {
        scene
            .answers(cluster, "/", &developer("east"), &session)
            .await?;
    }
    scene.take_orders().await?;
    for cluster in ALL {
        let path = format!("/from-{cluster}");
        ensure!(scene.ask(cluster, &path).await? == developer("east"));
    }
    // Each request came once, and what the process writes is the Default's.
    let orders = scene.take_orders().await?;
    ensure!(
        orders == [("east", "/from-hub\n/from-east\n/from-west\n".to_owned())],
        "{orders:?}"
    );
    it_is_watched(scene).await?;
    a_member_is_away(scene, &session).await?;
    session.end()?;
    scene.is_as_before().await
}

/// Who watches the session on the developer's machine sees the clusters, and in which of them each request came.
async fn it_is_watched(scene: &Scene<'_>) -> Result<()> {
    let listed = scene.standin("hub", &["operator", "session", "list", "--json"])?;
    let listed: Value = serde_json::from_str(&listed)?;
    let id = listed[0]["id"].as_str().context("no session is listed")?;
    let info = scene.standin("hub", &["session", id, "info", "--json"])?;
    let info: Value = serde_json::from_str(&info)?;
    ensure!(info["clusters"] == json!(ALL), "{info}");
    let expected = ALL.map(|cluster| (format!("/from-{cluster}"), cluster.to_owned()));
    let expected = BTreeSet::from(expected);
    until("the requests of all clusters to be told", async || {
        let events = scene.standin("hub", &["session", id, "events", "--json"])?;
        Ok(labels(&events)?.is_superset(&expected).then_some(()))
    })
    .await
}

/// The way between the Primary and a member is cut: the others go on, the service there answers itself, and the developer is
/// told of the beginning and of the end of it.
async fn a_member_is_away(scene: &Scene<'_>, session: &StandIn) -> Result<()> {
    let lab = scene.clusters.lab();
    lab.cut("hub", "west")?;
    session.says("cluster west cannot be reached").await?;
    for cluster in ["hub", "east"] {
        ensure!(scene.ask(cluster, "/").await? == developer("east"));
    }
    scene.answers("west", "/", &shop("west"), session).await?;
    lab.heal()?;
    session.says("cluster west is there again").await?;
    scene
        .answers("west", "/", &developer("east"), session)
        .await?;
    scene.take_orders().await.map(drop)
}

/// Demo 2. The service answers in every cluster, and the process gets a copy of every request, with its cluster's name.
async fn mirroring(scene: &Scene<'_>) -> Result<()> {
    let folder = tempfile::tempdir()?;
    let recording = folder.path().join("recording");
    let record = format!("--record={}", recording.display());
    let session = StandIn::start(scene, "hub", &[&record])?;
    session.says("gets a copy of everything").await?;
    for cluster in ALL {
        let path = format!("/from-{cluster}");
        ensure!(scene.ask(cluster, &path).await? == shop(cluster));
        session.prints(&format!("asked for {path}\n")).await?;
    }
    session.end()?;
    let labels = labels(&fs::read_to_string(&recording)?)?;
    let expected = ALL.map(|cluster| (format!("/from-{cluster}"), cluster.to_owned()));
    ensure!(labels == BTreeSet::from(expected), "{labels:?}");
    scene.take_orders().await?;
    scene.is_as_before().await
}

/// Whoever wants the Primary's cluster alone says so.
async fn staying_on_the_primary(scene: &Scene<'_>) -> Result<()> {
    let session = StandIn::start(scene, "hub", &["--steal", "--no-multi-cluster"])?;
    scene
        .answers("hub", "/", &developer("hub"), &session)
        .await?;
    for cluster in ["east", "west"] {
        ensure!(scene.ask(cluster, "/").await? == shop(cluster));
    }
    session.end()?;
    scene.take_orders().await?;
    scene.is_as_before().await
}

/// Demo 3. The Primary has no targets: its service is nobody's business, and everything else is as before.
async fn management_only(scene: &Scene<'_>) -> Result<()> {
    // Nor is it listed. What the others have is, with their names; whoever asks for the one cluster gets it.
    let row = |listed: &str| {
        let mut rows = listed.lines();
        let row = rows.find(|row| row.starts_with("deployment/shop "));
        row.unwrap_or_default().to_owned()
    };
    let listed = scene.standin("hub", &["ls"])?;
    ensure!(row(&listed).ends_with("  east, west"), "{listed}");
    let mut here = standin_in(scene.shop("hub")?)?;
    let here = here.env("STANDIN_MULTI_CLUSTER", "false").arg("ls");
    let listed = lab::output_of(here)?;
    ensure!(
        !row(&listed).is_empty() && !listed.contains("CLUSTERS"),
        "{listed}"
    );
    // A namespace that the Primary does not have either may be elsewhere.
    let mut elsewhere = standin_in(scene.shop("hub")?)?;
    let said = elsewhere.args(["ls", "-n", "elsewhere"]).output()?.stderr;
    let said = String::from_utf8_lossy(&said);
    ensure!(
        said.contains("in the namespace elsewhere of the clusters east, west"),
        "{said}"
    );
    let session = StandIn::start(scene, "hub", &["--steal"])?;
    for cluster in ["east", "west"] {
        scene
            .answers(cluster, "/", &developer("east"), &session)
            .await?;
    }
    ensure!(scene.ask("hub", "/").await? == shop("hub"));
    let orders = scene.take_orders().await?;
    ensure!(matches!(orders.as_slice(), [("east", _)]), "{orders:?}");
    session.end()?;
    scene.is_as_before().await
}

/// Demo 4. A member is an operator like any other: who connects to it has its cluster, and only that.
async fn direct_connection(scene: &Scene<'_>) -> Result<()> {
    let session = StandIn::start(scene, "west", &["--steal"])?;
    scene
        .answers("west", "/", &developer("west"), &session)
        .await?;
    for cluster in ["hub", "east"] {
        ensure!(scene.ask(cluster, "/").await? == shop(cluster));
    }
    let orders = scene.take_orders().await?;
    ensure!(matches!(orders.as_slice(), [("west", _)]), "{orders:?}");
    session.end()?;
    // It coordinates nobody, which whoever wants several clusters is told.
    let refused = StandIn::start(scene, "west", &["--multi-cluster"])?;
    refused
        .says("the operator of this cluster coordinates no others")
        .await?;
    scene.is_as_before().await
}

/// Demo 5. What must have one answer has that of the Primary's own cluster.
async fn primary_as_default(scene: &Scene<'_>) -> Result<()> {
    let session = StandIn::start(scene, "hub", &["--steal"])?;
    for cluster in ALL {
        scene
            .answers(cluster, "/", &developer("hub"), &session)
            .await?;
    }
    let orders = scene.take_orders().await?;
    ensure!(matches!(orders.as_slice(), [("hub", _)]), "{orders:?}");
    session.end()?;
    scene.is_as_before().await
}

/// What the developer's process answers when this cluster is the Default.
fn developer(default: &str) -> String {
    format!("the developer: env of {default}, file of {default}, the inventory of {default}")
}

/// What the service answers itself.
fn shop(cluster: &str) -> String {
    format!("the shop of {cluster}")
}

/// The requests among events, each with its cluster.
fn labels(events: &str) -> Result<BTreeSet<(String, String)>> {
    let mut labels = BTreeSet::new();
    for line in events.lines() {
        let event: Value = serde_json::from_str(line)?;
        if event["type"] == "IncomingRequest" {
            let text = |key: &str| event[key].as_str().unwrap_or_default().to_owned();
            labels.insert((text("path"), text("cluster")));
        }
    }
    Ok(labels)
}

/// Three clusters, each with the service, somebody who asks it, and an operator.
struct Scene<'clusters> {
    clusters: &'clusters OwnClusters,
    /// In the order of [`ALL`].
    operators: Vec<Operator>,
    shops: Vec<Stage>,
    folder: TempDir,
}

impl<'clusters> Scene<'clusters> {
    /// The members have their operators, the Primary has none yet.
    async fn set(story: &Story<'_>, clusters: &'clusters OwnClusters) -> Result<Self> {
        let mut operators = Vec::new();
        let mut shops = Vec::new();
        for name in ALL {
            let operator = Operator::new(story, clusters, name).await?;
            let shop = Stage {
                cluster: operator.stage.cluster.clone(),
                namespace: SHOP.to_owned(),
            };
            operator.stage.kubectl(&["create", "namespace", SHOP])?;
            shop.kubectl(&[
                "create",
                "configmap",
                "place",
                &format!("--from-literal=cluster={name}"),
            ])?;
            shop.apply(include_str!("../../../fixtures/members/shop.yaml"))?;
            operators.push(operator);
            shops.push(shop);
        }
        let is_member = json!({"operator": {"multiClusterMember": true, "replicas": 1}});
        for member in &operators[1..] {
            member.helm("install", &is_member)?;
        }
        for shop in &shops {
            shop.kubectl(&["rollout", "status", "deployment/shop", "--timeout=180s"])?;
            until("the namespace's account", async || {
                Ok(shop.kubectl(&["get", "serviceaccount", "default"]).ok())
            })
            .await?;
            shop.client_pod("client").await?;
        }
        Ok(Scene {
            clusters,
            operators,
            shops,
            folder: tempfile::tempdir()?,
        })
    }

    /// What an administrator does: gives the clusters their roles, and waits until the members answer.
    async fn administrate(&self, verb: &str, default: &str, management_only: bool) -> Result<()> {
        let member = |name: &str| -> Result<Value> {
            let cluster = self.clusters.lab().cluster(name)?;
            let (authority, _) = cluster.authority()?;
            let account = "mirrord-operator-envoy";
            let stage = &self.operator(name)?.stage;
            let token = stage.kubectl(&["create", "token", account, "--duration=1h"])?;
            Ok(json!({
                "authType": "bearerToken",
                "server": cluster.api_server(),
                "caData": credential::base64(authority.as_bytes()),
                "bearerToken": token.trim(),
            }))
        };
        let values = json!({"operator": {"replicas": 1, "multiCluster": {
            "enabled": true,
            "clusterName": "hub",
            "defaultCluster": default,
            "managementOnly": management_only,
            "clusters": {"east": member("east")?, "west": member("west")?},
        }}});
        let hub = self.operator("hub")?;
        hub.helm(verb, &values)?;
        until("all clusters to be connected in their roles", async || {
            let object = hub.object()?;
            let connected = |name| member_of(&object, name)["connected"].is_object();
            let roles = &object["spec"]["multi_cluster"];
            let is_so = roles["default_cluster"] == default
                && roles["management_only"] == management_only
                && ["east", "west"].into_iter().all(connected);
            Ok(is_so.then_some(()))
        })
        .await
    }

    fn operator(&self, cluster: &str) -> Result<&Operator> {
        let index = ALL.iter().position(|name| *name == cluster);
        index
            .and_then(|index| self.operators.get(index))
            .context("no such cluster")
    }

    fn shop(&self, cluster: &str) -> Result<&Stage> {
        let mut shops = self.shops.iter();
        shops
            .find(|shop| shop.cluster.name == cluster)
            .context("no such cluster")
    }

    /// What `standin` prints.
    fn standin(&self, context: &str, arguments: &[&str]) -> Result<String> {
        let mut standin = standin_in(self.shop(context)?)?;
        Ok(lab::output_of(standin.args(arguments))?)
    }

    /// A request inside of a cluster.
    async fn ask(&self, cluster: &str, path: &str) -> Result<String> {
        let url = format!("http://shop{path}");
        let curl = ["curl", "--silent", "--max-time", "10", &url];
        let answer = self.shop(cluster)?.exec("client", &curl, None).await?;
        Ok(answer.stdout.trim().to_owned())
    }

    /// Waits until a request inside of a cluster gets this answer.
    async fn answers(
        &self,
        cluster: &str,
        path: &str,
        expected: &str,
        session: &StandIn,
    ) -> Result<()> {
        let mut last = String::new();
        let waited = until(&format!("{expected:?} in {cluster}"), async || {
            last = self.ask(cluster, path).await?;
            Ok((last == expected).then_some(()))
        })
        .await;
        waited.with_context(|| format!("the last answer was {last:?}\n{}", session.0.report()))
    }

    /// What was written down, by cluster, which is then forgotten.
    async fn take_orders(&self) -> Result<Vec<(&str, String)>> {
        let mut taken = Vec::new();
        for shop in &self.shops {
            let mut command = vec!["exec", "deployment/shop", "--"];
            command.extend(ORDERS);
            let orders = shop.kubectl(&command)?;
            if !orders.is_empty() {
                taken.push((shop.cluster.name.as_str(), orders));
            }
        }
        Ok(taken)
    }

    /// Every service answers for itself, and no session is left.
    async fn is_as_before(&self) -> Result<()> {
        for cluster in ALL {
            until(&format!("the shop of {cluster} to answer"), async || {
                let answer = self.ask(cluster, "/").await?;
                Ok((answer == shop(cluster)).then_some(()))
            })
            .await?;
        }
        no_session_is_left(&self.operators.iter().collect::<Vec<_>>()).await
    }
}

/// The developer's process in a session. It ends with this value.
struct StandIn(Running);

impl StandIn {
    /// `standin exec`, as its user would type it.
    fn start(scene: &Scene<'_>, context: &str, flags: &[&str]) -> Result<Self> {
        let mut standin = standin_in(scene.shop(context)?)?;
        standin
            .env_remove("STANDIN_AGENT_IMAGE")
            .env_remove("STANDIN_TARGET_NAMESPACE")
            .current_dir(scene.folder.path())
            .args(["exec", "-f", SETTINGS])
            .args(flags)
            .args(["--", "python3", "-c", PROGRAM]);
        Ok(StandIn(Running::start(standin, &[])?))
    }

    async fn says(&self, words: &str) -> Result<()> {
        self.0.says(words).await
    }

    /// Waits until the program has printed this, which it must not do twice.
    async fn prints(&self, line: &str) -> Result<()> {
        let waited = until(&format!("{line:?}"), async || {
            Ok(self.0.stdout()?.contains(line).then_some(()))
        })
        .await;
        waited.with_context(|| self.0.report())?;
        ensure!(self.0.stdout()?.matches(line).count() == 1);
        Ok(())
    }

    /// In good order, so that the operators are told.
    fn end(self) -> Result<()> {
        kill(Pid::from_raw(self.0.pid().try_into()?), Signal::SIGTERM)?;
        self.0.end().map(drop)
    }
}
