//! One local process replaces a service in three clusters. The program, settings and command are the same in five demos;
//! the administrator's configuration and the developer's context differ.
//!
//! | demo | hub | east | west |
//! |---|---|---|---|
//! | 1 stealing | Primary | Default | member |
//! | 2 mirroring | Primary | Default | member |
//! | 3 management-only | Primary without targets | Default | member |
//! | 4 direct connection | | | the context |
//! | 5 Primary as Default | Primary, Default | member | member |
//!
//! The service reads its cluster's name from a variable, a file and another service. The developer's process responds with
//! what it reads from them, and writes orders into a file of the service. So each response shows the clusters involved.

use std::collections::BTreeSet;
use std::fs;

use anyhow::{Context as _, Result, ensure};
use e2e::{OwnClusters, Scenario, TestNamespace, until};
use lab::Progress;
use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;
use serde_json::{Value, json};
use tempfile::TempDir;

use super::super::support::{SessionProcess, agent_image, standin_in};
use super::operator::{Operator, member_of};
use super::sessions::wait_until_no_session_is_left;
use super::{SHOP, credential};

const PROGRAM: &str = include_str!("../../../fixtures/members/stand_in.py");
const SETTINGS: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/fixtures/members/standin.yaml");
const CLUSTERS: [&str; 3] = ["hub", "east", "west"];
/// Prints and removes the orders that were written.
const TAKE_ORDERS: [&str; 3] = [
    "sh",
    "-c",
    "cat /data/orders 2>/dev/null; rm -f /data/orders",
];

pub(super) async fn one_process_for_three_clusters(scenario: &Scenario<'_>) -> Result<()> {
    let clusters = OwnClusters::start(&CLUSTERS, &Progress::to_stderr()).await?;
    clusters.lab().load_image(&agent_image()?)?;
    let setup = Setup::install(scenario, &clusters).await?;

    setup.configure_roles("install", "east", false).await?;
    stealing(&setup).await?;
    mirroring(&setup).await?;
    staying_on_the_primary(&setup).await?;
    direct_connection(&setup).await?;

    setup.configure_roles("upgrade", "east", true).await?;
    management_only(&setup).await?;

    setup.configure_roles("upgrade", "hub", false).await?;
    primary_as_default(&setup).await?;

    setup.operators.iter().try_for_each(Operator::uninstall)
}

/// Demo 1. The process serves the requests of all clusters, and its environment is that of the Default.
async fn stealing(setup: &Setup<'_>) -> Result<()> {
    let status = setup.standin("hub", &["operator", "status"])?;
    for row in [
        "hub      Primary",
        "east     member, Default",
        "west     member",
    ] {
        ensure!(status.contains(row), "{row:?} is missing:\n{status}");
    }
    let session = DeveloperSession::start(setup, "hub", &["--steal"])?;
    session
        .wait_for_message(
            "standing in for deployment/shop in the clusters hub, east (Default), west",
        )
        .await?;
    session
        .wait_for_message("3 pods: 1 in cluster east, 1 in cluster hub, 1 in cluster west")
        .await?;
    let listed = setup.standin("hub", &["operator", "session", "list"])?;
    ensure!(listed.contains("hub, east, west"), "{listed}");
    for cluster in CLUSTERS {
        setup
            .wait_for_response(cluster, "/", &developer("east"), &session)
            .await?;
    }
    setup.take_orders().await?;
    for cluster in CLUSTERS {
        let path = format!("/from-{cluster}");
        ensure!(setup.request(cluster, &path).await? == developer("east"));
    }
    // Each request was received once, and the process writes to the Default.
    let orders = setup.take_orders().await?;
    ensure!(
        orders == [("east", "/from-hub\n/from-east\n/from-west\n".to_owned())],
        "{orders:?}"
    );
    local_events_show_the_clusters(setup).await?;
    a_member_is_unreachable(setup, &session).await?;
    session.end()?;
    setup.wait_until_restored().await
}

/// The local session information shows the clusters, and its events show the cluster of each request.
async fn local_events_show_the_clusters(setup: &Setup<'_>) -> Result<()> {
    let listed = setup.standin("hub", &["operator", "session", "list", "--json"])?;
    let listed: Value = serde_json::from_str(&listed)?;
    let id = listed[0]["id"].as_str().context("no session is listed")?;
    let info = setup.standin("hub", &["session", id, "info", "--json"])?;
    let info: Value = serde_json::from_str(&info)?;
    ensure!(info["clusters"] == json!(CLUSTERS), "{info}");
    let expected = CLUSTERS.map(|cluster| (format!("/from-{cluster}"), cluster.to_owned()));
    let expected = BTreeSet::from(expected);
    until("events for the requests of all clusters", async || {
        let events = setup.standin("hub", &["session", id, "events", "--json"])?;
        Ok(requests_by_cluster(&events)?
            .is_superset(&expected)
            .then_some(()))
    })
    .await
}

/// The network between the Primary and a member is cut: the other clusters continue, the member's service responds itself,
/// and the developer is notified of the beginning and the end of the cut.
async fn a_member_is_unreachable(setup: &Setup<'_>, session: &DeveloperSession) -> Result<()> {
    let lab = setup.clusters.lab();
    lab.cut("hub", "west")?;
    session
        .wait_for_message("cluster west cannot be reached")
        .await?;
    for cluster in ["hub", "east"] {
        ensure!(setup.request(cluster, "/").await? == developer("east"));
    }
    setup
        .wait_for_response("west", "/", &shop("west"), session)
        .await?;
    lab.heal()?;
    session
        .wait_for_message("cluster west is reachable again")
        .await?;
    setup
        .wait_for_response("west", "/", &developer("east"), session)
        .await?;
    setup.take_orders().await.map(drop)
}

/// Demo 2. The service responds in every cluster, and the process gets a copy of every request, with its cluster's name.
async fn mirroring(setup: &Setup<'_>) -> Result<()> {
    let folder = tempfile::tempdir()?;
    let recording = folder.path().join("recording");
    let record = format!("--record={}", recording.display());
    let session = DeveloperSession::start(setup, "hub", &[&record])?;
    session
        .wait_for_message("gets a copy of everything")
        .await?;
    for cluster in CLUSTERS {
        let path = format!("/from-{cluster}");
        ensure!(setup.request(cluster, &path).await? == shop(cluster));
        session.wait_for_line(&format!("request {path}\n")).await?;
    }
    let expected = CLUSTERS.map(|cluster| (format!("/from-{cluster}"), cluster.to_owned()));
    let expected = BTreeSet::from(expected);
    // The agent reports a request after it was delivered. While the recording is written, its last line may be incomplete.
    until(
        "the requests of all clusters in the recording",
        async || {
            let recorded = requests_by_cluster(&fs::read_to_string(&recording)?);
            Ok(recorded
                .is_ok_and(|recorded| recorded == expected)
                .then_some(()))
        },
    )
    .await?;
    session.end()?;
    let recorded = requests_by_cluster(&fs::read_to_string(&recording)?)?;
    ensure!(recorded == expected, "{recorded:?}");
    setup.take_orders().await?;
    setup.wait_until_restored().await
}

/// A flag limits a session to the Primary's own cluster.
async fn staying_on_the_primary(setup: &Setup<'_>) -> Result<()> {
    let session = DeveloperSession::start(setup, "hub", &["--steal", "--no-multi-cluster"])?;
    setup
        .wait_for_response("hub", "/", &developer("hub"), &session)
        .await?;
    for cluster in ["east", "west"] {
        ensure!(setup.request(cluster, "/").await? == shop(cluster));
    }
    session.end()?;
    setup.take_orders().await?;
    setup.wait_until_restored().await
}

/// Demo 3. The Primary has no targets: its service is not part of sessions, and everything else is as before.
async fn management_only(setup: &Setup<'_>) -> Result<()> {
    // The targets of the members are listed with their clusters. Without multi-cluster, the Primary's own are listed.
    let row = |listed: &str| {
        let mut rows = listed.lines();
        let row = rows.find(|row| row.starts_with("deployment/shop "));
        row.unwrap_or_default().to_owned()
    };
    let listed = setup.standin("hub", &["ls"])?;
    ensure!(row(&listed).ends_with("  east, west"), "{listed}");
    let mut local = standin_in(setup.shop("hub")?)?;
    let local = local.env("STANDIN_MULTI_CLUSTER", "false").arg("ls");
    let listed = lab::output_of(local)?;
    ensure!(
        !row(&listed).is_empty() && !listed.contains("CLUSTERS"),
        "{listed}"
    );
    // A namespace that the Primary does not have may exist in a member.
    let mut other_namespace = standin_in(setup.shop("hub")?)?;
    let stderr = other_namespace
        .args(["ls", "-n", "elsewhere"])
        .output()?
        .stderr;
    let stderr = String::from_utf8_lossy(&stderr);
    ensure!(
        stderr.contains("in the namespace elsewhere of the clusters east, west"),
        "{stderr}"
    );
    let session = DeveloperSession::start(setup, "hub", &["--steal"])?;
    for cluster in ["east", "west"] {
        setup
            .wait_for_response(cluster, "/", &developer("east"), &session)
            .await?;
    }
    ensure!(setup.request("hub", "/").await? == shop("hub"));
    let orders = setup.take_orders().await?;
    ensure!(matches!(orders.as_slice(), [("east", _)]), "{orders:?}");
    session.end()?;
    setup.wait_until_restored().await
}

/// Demo 4. A member is an operator like any other: a session through it covers only its own cluster.
async fn direct_connection(setup: &Setup<'_>) -> Result<()> {
    let session = DeveloperSession::start(setup, "west", &["--steal"])?;
    setup
        .wait_for_response("west", "/", &developer("west"), &session)
        .await?;
    for cluster in ["hub", "east"] {
        ensure!(setup.request(cluster, "/").await? == shop(cluster));
    }
    let orders = setup.take_orders().await?;
    ensure!(matches!(orders.as_slice(), [("west", _)]), "{orders:?}");
    session.end()?;
    // It has no members itself, which a session over several clusters reports.
    let refused = DeveloperSession::start(setup, "west", &["--multi-cluster"])?;
    refused
        .wait_for_message("the operator of this cluster coordinates no others")
        .await?;
    setup.wait_until_restored().await
}

/// Demo 5. The Primary's own cluster is the Default.
async fn primary_as_default(setup: &Setup<'_>) -> Result<()> {
    let session = DeveloperSession::start(setup, "hub", &["--steal"])?;
    for cluster in CLUSTERS {
        setup
            .wait_for_response(cluster, "/", &developer("hub"), &session)
            .await?;
    }
    let orders = setup.take_orders().await?;
    ensure!(matches!(orders.as_slice(), [("hub", _)]), "{orders:?}");
    session.end()?;
    setup.wait_until_restored().await
}

/// The response of the developer's process when this cluster is the Default.
fn developer(default: &str) -> String {
    format!("the developer: env of {default}, file of {default}, the inventory of {default}")
}

/// The response of the service itself.
fn shop(cluster: &str) -> String {
    format!("the shop of {cluster}")
}

/// The paths of the requests among these events, each with its cluster.
fn requests_by_cluster(events: &str) -> Result<BTreeSet<(String, String)>> {
    let mut requests_by_cluster = BTreeSet::new();
    for line in events.lines() {
        let event: Value = serde_json::from_str(line)?;
        if event["type"] == "IncomingRequest" {
            let text = |key: &str| event[key].as_str().unwrap_or_default().to_owned();
            requests_by_cluster.insert((text("path"), text("cluster")));
        }
    }
    Ok(requests_by_cluster)
}

/// Three clusters, each with the service, a client pod, and an operator.
struct Setup<'clusters> {
    clusters: &'clusters OwnClusters,
    /// In the order of [`CLUSTERS`].
    operators: Vec<Operator>,
    shops: Vec<TestNamespace>,
    folder: TempDir,
}

impl<'clusters> Setup<'clusters> {
    /// Installs the operators of the members. The Primary gets its operator later.
    async fn install(scenario: &Scenario<'_>, clusters: &'clusters OwnClusters) -> Result<Self> {
        let mut operators = Vec::new();
        let mut shops = Vec::new();
        for name in CLUSTERS {
            let operator = Operator::new(scenario, clusters, name).await?;
            let shop = TestNamespace {
                cluster: operator.namespace.cluster.clone(),
                name: SHOP.to_owned(),
            };
            operator.namespace.kubectl(&["create", "namespace", SHOP])?;
            shop.kubectl(&[
                "create",
                "configmap",
                "cluster",
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
        Ok(Setup {
            clusters,
            operators,
            shops,
            folder: tempfile::tempdir()?,
        })
    }

    /// Configures the roles of the clusters, and waits until the members are connected.
    async fn configure_roles(
        &self,
        verb: &str,
        default: &str,
        management_only: bool,
    ) -> Result<()> {
        let member = |name: &str| -> Result<Value> {
            let cluster = self.clusters.lab().cluster(name)?;
            let (authority, _) = cluster.authority()?;
            let account = "mirrord-operator-envoy";
            let namespace = &self.operator(name)?.namespace;
            let token = namespace.kubectl(&["create", "token", account, "--duration=1h"])?;
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
            let is_configured = roles["default_cluster"] == default
                && roles["management_only"] == management_only
                && ["east", "west"].into_iter().all(connected);
            Ok(is_configured.then_some(()))
        })
        .await
    }

    fn operator(&self, cluster: &str) -> Result<&Operator> {
        let index = CLUSTERS.iter().position(|name| *name == cluster);
        index
            .and_then(|index| self.operators.get(index))
            .context("no such cluster")
    }

    fn shop(&self, cluster: &str) -> Result<&TestNamespace> {
        let mut shops = self.shops.iter();
        shops
            .find(|shop| shop.cluster.name == cluster)
            .context("no such cluster")
    }

    /// Runs `standin` and returns its output.
    fn standin(&self, context: &str, arguments: &[&str]) -> Result<String> {
        let mut standin = standin_in(self.shop(context)?)?;
        Ok(lab::output_of(standin.args(arguments))?)
    }

    /// Sends a request inside a cluster, and returns the response.
    async fn request(&self, cluster: &str, path: &str) -> Result<String> {
        let url = format!("http://shop{path}");
        let curl = ["curl", "--silent", "--max-time", "10", &url];
        let response = self.shop(cluster)?.exec("client", &curl, None).await?;
        Ok(response.stdout.trim().to_owned())
    }

    /// Waits until a request inside a cluster gets this response.
    async fn wait_for_response(
        &self,
        cluster: &str,
        path: &str,
        expected: &str,
        session: &DeveloperSession,
    ) -> Result<()> {
        let mut last = String::new();
        let waited = until(&format!("{expected:?} in {cluster}"), async || {
            last = self.request(cluster, path).await?;
            Ok((last == expected).then_some(()))
        })
        .await;
        waited.with_context(|| format!("the last response was {last:?}\n{}", session.0.report()))
    }

    /// Returns the orders that were written, by cluster, and removes them.
    async fn take_orders(&self) -> Result<Vec<(&str, String)>> {
        let mut taken = Vec::new();
        for shop in &self.shops {
            let mut command = vec!["exec", "deployment/shop", "--"];
            command.extend(TAKE_ORDERS);
            let orders = shop.kubectl(&command)?;
            if !orders.is_empty() {
                taken.push((shop.cluster.name.as_str(), orders));
            }
        }
        Ok(taken)
    }

    /// Waits until every service responds itself and no session is left.
    async fn wait_until_restored(&self) -> Result<()> {
        for cluster in CLUSTERS {
            until(&format!("the shop of {cluster} to respond"), async || {
                let response = self.request(cluster, "/").await?;
                Ok((response == shop(cluster)).then_some(()))
            })
            .await?;
        }
        wait_until_no_session_is_left(&self.operators.iter().collect::<Vec<_>>()).await
    }
}

/// The developer's process in a session. It is killed when this value is dropped.
struct DeveloperSession(SessionProcess);

impl DeveloperSession {
    /// Starts `standin exec` as a user would type it.
    fn start(setup: &Setup<'_>, context: &str, flags: &[&str]) -> Result<Self> {
        let mut standin = standin_in(setup.shop(context)?)?;
        standin
            .env_remove("STANDIN_AGENT_IMAGE")
            .env_remove("STANDIN_TARGET_NAMESPACE")
            .current_dir(setup.folder.path())
            .args(["exec", "-f", SETTINGS])
            .args(flags)
            .args(["--", "python3", "-c", PROGRAM]);
        Ok(DeveloperSession(SessionProcess::start(standin, &[])?))
    }

    async fn wait_for_message(&self, text: &str) -> Result<()> {
        self.0.wait_for_message(text).await
    }

    /// Waits until the program has printed this line, and checks that it printed it once.
    async fn wait_for_line(&self, line: &str) -> Result<()> {
        let waited = until(&format!("{line:?}"), async || {
            Ok(self.0.stdout()?.contains(line).then_some(()))
        })
        .await;
        waited.with_context(|| self.0.report())?;
        ensure!(self.0.stdout()?.matches(line).count() == 1);
        Ok(())
    }

    /// Ends the session gracefully, so that the operators are notified.
    fn end(self) -> Result<()> {
        kill(Pid::from_raw(self.0.pid().try_into()?), Signal::SIGTERM)?;
        self.0.end().map(drop)
    }
}
