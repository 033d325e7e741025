//! Faults between clusters, one after the other, in one lab: a hub without targets, east, which is the Default, and west.
//! Sessions need the Default and continue without other members. After each fault the objects in all clusters are counted,
//! down to the rules in the network namespaces of pods: nothing may be left.

mod administration;
mod credentials;
mod network;
mod requests;
mod restarts;
mod rules;

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use anyhow::{Context as _, Result, ensure};
use api::connect::{AgentEndpoint, AgentEndpoints, ConnectParameters};
use api::session::SessionId;
use cluster::{Cluster, OperatorSession, ReconnectingOperator};
use e2e::{OwnClusters, Scenario, TestNamespace, until};
use lab::Progress;
use link::tls::rustls::pki_types::ServerName;
use link::tls::{FirstSeen, Identity, TlsDialer, Trust};
use link::{Link, Settings};
use parking_lot::Mutex;
use serde_json::{Value, json};

use super::super::support::agent_image;
use super::membership::create_certificate;
use super::operator::{Operator, member_of};
use super::{SHOP, credential};

/// The resume window of clients that do not request another one, in seconds. It is the shortest that can be set.
const SHORT_WINDOW: u64 = 15;
/// A resume window that is longer than any fault that a session must survive.
const LONG_WINDOW: u64 = 300;

pub(super) async fn member_faults_leave_nothing(scenario: &Scenario<'_>) -> Result<()> {
    let clusters = OwnClusters::start(&["hub", "east", "west"], &Progress::to_stderr()).await?;
    clusters.lab().load_image(&agent_image()?)?;
    let setup = Setup::install(scenario, &clusters).await?;
    let mut faults = FaultRunner::new(&setup).await?;
    faults
        .run(
            "a member is down at the start",
            network::down_at_the_start(&setup),
        )
        .await;
    faults
        .run("a member goes down", network::down_later(&setup))
        .await;
    faults
        .run(
            "a member's operator is restarted",
            restarts::of_a_member(&setup),
        )
        .await;
    faults
        .run(
            "the Primary is restarted before a session is ready",
            restarts::before_ready(&setup),
        )
        .await;
    faults
        .run(
            "the Primary is restarted during a session",
            restarts::while_ready(&setup),
        )
        .await;
    faults
        .run(
            "the Primary is restarted at the end of a session",
            restarts::while_ending(&setup),
        )
        .await;
    faults
        .run(
            "the network is cut and heals",
            network::cut_during_the_window(&setup),
        )
        .await;
    faults
        .run(
            "the network is cut for too long",
            network::cut_past_the_window(&setup),
        )
        .await;
    faults
        .run(
            "requests during faults",
            requests::none_is_lost_or_duplicated(&setup),
        )
        .await;
    faults
        .run(
            "a token is revoked, and its Secret is removed",
            credentials::token_revoked(&setup),
        )
        .await;
    faults
        .run(
            "a certificate expires, and its Secret is removed",
            credentials::certificate_expired(&setup),
        )
        .await;
    faults
        .run(
            "users delete objects of the operator",
            administration::objects_deleted(&setup),
        )
        .await;
    faults
        .run(
            "a member has an older version",
            administration::older_member(&setup),
        )
        .await;
    faults
        .run(
            "a user has no permission",
            administration::without_permission(&setup),
        )
        .await;
    faults
        .run(
            "a member has two Primaries",
            administration::two_primaries(&setup),
        )
        .await;
    faults.end()?;
    for operator in [&setup.hub, &setup.east, &setup.west] {
        operator.uninstall()?;
    }
    Ok(())
}

struct Setup<'clusters> {
    clusters: &'clusters OwnClusters,
    hub: Operator,
    east: Operator,
    west: Operator,
}

impl<'clusters> Setup<'clusters> {
    /// Installs the operators and the targets.
    async fn install(scenario: &Scenario<'_>, clusters: &'clusters OwnClusters) -> Result<Self> {
        let setup = Setup {
            clusters,
            hub: Operator::new(scenario, clusters, "hub").await?,
            east: Operator::new(scenario, clusters, "east").await?,
            west: Operator::new(scenario, clusters, "west").await?,
        };
        for member in [&setup.east, &setup.west] {
            member.namespace.kubectl(&["create", "namespace", SHOP])?;
            start_targets(member)?;
            member.helm("install", &member_values())?;
        }
        create_certificate(&setup.hub, &setup.west, clusters)?;
        setup.hub.helm("install", &setup.hub_values()?)?;
        setup.wait_until_connected("east").await?;
        setup.wait_until_connected("west").await?;
        Ok(setup)
    }

    /// Undoes everything that a fault may have changed before it failed, so that the next one starts as if alone.
    async fn restore(&self) -> Result<()> {
        self.clusters.lab().heal()?;
        for cluster in ["hub", "east", "west"] {
            network::set_api_server(self, cluster, true)?;
        }
        for primary in [&self.hub, &self.east] {
            let all = ["delete", "mmcs", "--all", "--wait=false"];
            primary.namespace.kubectl(&all)?;
        }
        for member in [&self.east, &self.west] {
            // A namespace that is being deleted can be created only when it is gone.
            until("the namespace of the targets", async || {
                let found = [
                    "get",
                    "namespace",
                    SHOP,
                    "--output=jsonpath={.status.phase}",
                ];
                match member.namespace.kubectl(&found).as_deref() {
                    Ok("Active") => Ok(Some(())),
                    Ok(_) => Ok(None),
                    Err(_) => {
                        member.namespace.kubectl(&["create", "namespace", SHOP])?;
                        Ok(Some(()))
                    }
                }
            })
            .await?;
            start_targets(member)?;
            // Also recreates the hub's account and the resource definitions.
            member.helm("upgrade", &member_values())?;
        }
        create_certificate(&self.hub, &self.west, self.clusters)?;
        // Also recreates the Secret of east, with a new token.
        self.hub.helm("upgrade", &self.hub_values()?)?;
        self.wait_until_connected("east").await?;
        self.wait_until_connected("west").await
    }

    /// The chart value of a member: with this token, or else with a certificate in a Secret.
    fn entry(&self, member: &Operator, token: Option<&str>) -> Result<Value> {
        let cluster = self
            .clusters
            .lab()
            .cluster(&member.namespace.cluster.name)?;
        let (authority, _) = cluster.authority()?;
        let mut entry = json!({
            "authType": if token.is_some() { "bearerToken" } else { "mtls" },
            "server": cluster.api_server(),
            "caData": credential::base64(authority.as_bytes()),
            "namespace": member.namespace.name,
        });
        if let Some(token) = token {
            entry["bearerToken"] = json!(token);
        }
        Ok(entry)
    }

    fn hub_values(&self) -> Result<Value> {
        let token = account_token(&self.east)?;
        Ok(json!({"operator": {
            "replicas": 1,
            "session": {"ttlSecs": SHORT_WINDOW},
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

    async fn wait_until_connected(&self, member: &str) -> Result<()> {
        until(&format!("{member} to be connected"), async || {
            let object = self.hub.object()?;
            let member = member_of(&object, member);
            Ok(member["connected"].is_object().then_some(()))
        })
        .await
    }

    /// Waits until the hub shows a member with an error that contains this text.
    async fn wait_until_disconnected(&self, member: &str, text: &str) -> Result<()> {
        until(
            &format!("{member} to be disconnected: {text:?}"),
            async || {
                let object = self.hub.object()?;
                let error = member_of(&object, member)["error"].clone();
                Ok(error
                    .as_str()
                    .filter(|error| error.contains(text))
                    .map(drop))
            },
        )
        .await
    }

    /// The phase of the session over several clusters, if there is one.
    fn phase(&self) -> Result<String> {
        let phase = "--output=jsonpath={.items[*].status.phase}";
        self.hub.namespace.kubectl(&["get", "mmcs", phase])
    }

    /// The number of objects of each kind in each cluster.
    async fn object_counts(&self) -> Result<BTreeMap<String, usize>> {
        let mut counts = BTreeMap::new();
        for operator in [&self.hub, &self.east, &self.west] {
            let name = &operator.namespace.cluster.name;
            // Helm's own Secrets are not counted: each upgrade adds one.
            let count = |kinds: &str| -> Result<usize> {
                let found = operator
                    .namespace
                    .kubectl(&["get", kinds, "--output=name"])?;
                let is_other = |line: &&str| !line.contains("sh.helm.release");
                Ok(found.lines().filter(is_other).count())
            };
            let kinds = "mirrordmulticlustersessions.operator.metalbear.co,mirrordclustersessions.mirrord.metalbear.co";
            counts.insert(format!("sessions in {name}"), count(kinds)?);
            counts.insert(format!("Secrets in {name}"), count("secrets")?);
            let pods = pods(operator)?;
            counts.insert(format!("agents in {name}"), count_agents(&pods));
            counts.insert(format!("rules in {name}"), self.count_rules(&pods)?);
        }
        Ok(counts)
    }
}

/// Starts the targets of a member.
fn start_targets(member: &Operator) -> Result<()> {
    let client = &member.namespace.cluster.client;
    client.apply(SHOP, include_str!("../../../fixtures/web.yaml"))?;
    let status = ["rollout", "status", "deployment/web", "--timeout=180s"];
    member.kubectl_in(SHOP, &status).map(drop)
}

fn member_values() -> Value {
    json!({"operator": {"multiClusterMember": true, "replicas": 1, "session": {"ttlSecs": SHORT_WINDOW}}})
}

/// A token of the hub's account in a member.
fn account_token(member: &Operator) -> Result<String> {
    let account = "mirrord-operator-envoy";
    let token = member
        .namespace
        .kubectl(&["create", "token", account, "--duration=1h"])?;
    Ok(token.trim().to_owned())
}

fn running_agents(operator: &Operator) -> Result<usize> {
    Ok(count_agents(&pods(operator)?))
}

/// The shop's pods.
fn pods(operator: &Operator) -> Result<Vec<Value>> {
    let pods = operator.kubectl_in(SHOP, &["get", "pods", "--output=json"])?;
    let pods: Value = serde_json::from_str(&pods)?;
    Ok(pods["items"].as_array().cloned().unwrap_or_default())
}

/// Counts the running agents. The entries of agents that have ended stay in their pods.
fn count_agents(pods: &[Value]) -> usize {
    let agents = pods
        .iter()
        .filter_map(|pod| pod["status"]["ephemeralContainerStatuses"].as_array());
    let agents = agents.flatten();
    agents
        .filter(|agent| agent["state"]["running"].is_object())
        .count()
}

/// Runs one fault after the other and collects the failures, so that one failure does not hide the next.
struct FaultRunner<'setup> {
    setup: &'setup Setup<'setup>,
    before: BTreeMap<String, usize>,
    failures: Vec<String>,
}

impl<'setup> FaultRunner<'setup> {
    async fn new(setup: &'setup Setup<'setup>) -> Result<Self> {
        Ok(FaultRunner {
            setup,
            before: setup.object_counts().await?,
            failures: Vec::new(),
        })
    }

    /// Runs one fault, restores the clusters if it failed, and checks that nothing is left.
    async fn run(&mut self, name: &str, fault: impl Future<Output = Result<()>>) {
        let progress = Progress::to_stderr();
        progress.step(name);
        let result = Box::pin(fault).await;
        let restored = if result.is_err() {
            let restored = self.setup.restore().await;
            restored.context("cannot restore the clusters")
        } else {
            Ok(())
        };
        let cleaned_up = until("nothing to be left", async || {
            let counts = self.setup.object_counts().await?;
            ensure!(
                counts == self.before,
                "{counts:?} instead of {:?}",
                self.before
            );
            Ok(Some(()))
        })
        .await;
        for result in [result, restored, cleaned_up] {
            if let Err(error) = result {
                progress.step(format!("{name}: {error:#}"));
                self.failures.push(format!("{name}: {error:#}"));
            }
        }
    }

    fn end(self) -> Result<()> {
        ensure!(self.failures.is_empty(), "{}", self.failures.join("\n"));
        Ok(())
    }
}

/// A client of a session with `web` in all clusters.
struct Client {
    operator: ReconnectingOperator,
    identity: Identity,
    /// The namespace of the Primary's operator, for `kubectl`.
    primary: TestNamespace,
    /// The last link to each agent, by endpoint number. An agent without a link ends, and the operator starts another one.
    links: Mutex<BTreeMap<u32, Link>>,
}

impl Client {
    /// Connects, with retries: an operator that is being restarted responds later.
    async fn start(primary: &Operator, id: u64, window: u64) -> Result<Self> {
        let kube = primary.namespace.cluster.kube.clone();
        let identity = Identity::generate()?;
        let operator = until("a session", async || {
            let session = session(kube.clone(), id, window, &identity)?;
            Ok(Some(ReconnectingOperator::start(session).await?))
        })
        .await?;
        Ok(Client::new(operator, identity, primary))
    }

    fn new(operator: ReconnectingOperator, identity: Identity, primary: &Operator) -> Self {
        Client {
            operator,
            identity,
            primary: primary.namespace.clone(),
            links: Mutex::default(),
        }
    }

    /// Waits until the client's list of endpoints meets a condition, and returns the list.
    async fn wait_for_endpoints(
        &self,
        what: &str,
        condition: impl Fn(&AgentEndpoints) -> bool,
    ) -> Result<AgentEndpoints> {
        let endpoints = self.operator.endpoints();
        let what = format!("the client to see: {what}");
        let waited = until(&what, async || {
            let endpoints = endpoints.borrow().clone();
            Ok(condition(&endpoints).then_some(endpoints))
        });
        waited
            .await
            .with_context(|| format!("{:?}", self.operator.endpoints().borrow()))
    }

    /// Waits for two agents in each cluster, and connects to them. Returns their endpoint numbers.
    async fn wait_for_all_agents(&self) -> Result<BTreeSet<u32>> {
        let has_all = |endpoints: &AgentEndpoints| {
            ["east", "west"].iter().all(|name| {
                ready_in(endpoints, name).len() == 2 && !is_unreachable(endpoints, name)
            })
        };
        let endpoints = self
            .wait_for_endpoints("agents in all clusters", has_all)
            .await?;
        self.connect_to_agents(&endpoints, "east").await?;
        self.connect_to_agents(&endpoints, "west").await?;
        Ok(endpoints
            .endpoints
            .iter()
            .filter(|endpoint| endpoint.ready)
            .map(|endpoint| endpoint.number)
            .collect())
    }

    /// Waits until all agents are connected and the Primary has stored all of them as ready.
    ///
    /// A session is ready with its first agent, and while a member is unreachable the Primary reports the agents of its
    /// last known state. A fault that comes too early would freeze a state in which an agent is still starting.
    async fn wait_until_settled(&self) -> Result<BTreeSet<u32>> {
        let name = format!("mc-{}", self.operator.id());
        until("the Primary to store all agents as ready", async || {
            let parent = self
                .primary
                .kubectl(&["get", "mmcs", &name, "--output=json"])?;
            let parent: Value = serde_json::from_str(&parent)?;
            let has_all = |cluster: &str| {
                let child = &parent["status"]["clusterSessions"][cluster];
                let pods = child["pods"].as_array();
                child["ready"] == true
                    && pods.is_some_and(|pods| {
                        pods.len() == 2 && pods.iter().all(|pod| pod["ready"] == true)
                    })
            };
            ensure!(has_all("east") && has_all("west"), "{}", parent["status"]);
            Ok(Some(()))
        })
        .await?;
        self.wait_for_all_agents().await
    }

    /// Connects a new link to each agent of a cluster, end to end. It replaces the last one.
    async fn connect_to_agents(&self, endpoints: &AgentEndpoints, cluster: &str) -> Result<()> {
        for endpoint in ready_in(endpoints, cluster) {
            let what = format!("a link to {} in {cluster}", endpoint.pod);
            let link = until(&what, async || {
                let name = ServerName::try_from("agent")?;
                let trust = Trust::FirstSeen(FirstSeen::default());
                let dialer = self.operator.dialer(endpoint.number);
                let dialer = TlsDialer::with_identity(dialer, name, trust, &self.identity)?;
                let mut settings = Settings::default();
                settings.redial.first_connection_timeout = Duration::from_secs(2);
                Ok(Some(Link::connect(dialer, settings).await?))
            });
            let link = link.await?;
            self.links.lock().insert(endpoint.number, link);
        }
        Ok(())
    }

    async fn end(self) -> Result<()> {
        drop(self.links);
        self.operator.end().await;
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
    Ok(session.with_client_names("Anna", "laptop"))
}

fn ready_in(endpoints: &AgentEndpoints, cluster: &str) -> Vec<AgentEndpoint> {
    let is_ready =
        |endpoint: &&AgentEndpoint| endpoint.ready && endpoint.cluster.as_deref() == Some(cluster);
    endpoints
        .endpoints
        .iter()
        .filter(is_ready)
        .cloned()
        .collect()
}

fn is_unreachable(endpoints: &AgentEndpoints, cluster: &str) -> bool {
    unreachable_reason(endpoints, cluster).is_some()
}

fn unreachable_reason(endpoints: &AgentEndpoints, cluster: &str) -> Option<String> {
    let mut clusters = endpoints.clusters.iter();
    clusters
        .find(|candidate| candidate.name == cluster)?
        .error
        .clone()
}
