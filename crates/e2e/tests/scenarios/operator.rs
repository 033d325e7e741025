//! The operator: installation by its chart, its API with kubectl, its sessions, and its removal.
//!
//! A cluster can have only one operator, so each scenario tests many things with one installation.

mod nodes;
mod pods;
mod rights;
mod targets;

use std::path::Path;
use std::sync::Arc;

use anyhow::{Context as _, Result, ensure};
use api::connect::ConnectParameters;
use api::session::SessionId;
use cluster::{Cluster, OperatorConnection, OperatorSession};
use e2e::{LazyEnvironment, Needs, Scenario, TestNamespace, scenario, until};
use lab::standind;
use libtest_mimic::Trial;
use link::tls::rustls::pki_types::ServerName;
use link::tls::{FirstSeen, Identity, TlsDialer, Trust};
use link::{Link, Settings};

use super::support::load_agent_image;
use rights::{
    another_operator_is_refused, forged_sessions_are_refused, only_the_api_server_is_served,
    sessions_are_not_changed, the_operator_creates_no_jobs_but_agents, users_need_permissions,
};

const CHART: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/../../charts/standin-operator");
const API_SERVICE: &str = "v1.operator.metalbear.co";
const TARGET: &str = "targets.operator.metalbear.co/deployment.web";

pub(crate) fn scenarios(environment: &Arc<LazyEnvironment>) -> Vec<Trial> {
    vec![
        scenario(
            environment,
            "an_operator_serves_sessions_and_leaves_nothing",
            Needs::Lab,
            an_operator_serves_sessions,
        ),
        scenario(
            environment,
            "an_operator_with_agents_on_nodes_starts_nothing_and_enforces_policies",
            Needs::Lab,
            nodes::agents_run_on_nodes,
        ),
        scenario(
            environment,
            "an_operator_with_agents_as_pods_leaves_none",
            Needs::Lab,
            pods::agents_are_pods,
        ),
        scenario(
            environment,
            "an_operator_that_is_down_can_be_uninstalled",
            Needs::Lab,
            an_operator_that_is_down,
        ),
    ]
}

async fn an_operator_serves_sessions(scenario: &Scenario<'_>) -> Result<()> {
    let operator = Operator::install(scenario, 0).await?;
    let shop = scenario.namespace_in(0).await?;
    shop.web().await?;
    kubectl_shows_the_operator(&operator, &shop)?;
    another_operator_is_refused(&operator)?;
    forged_sessions_are_refused(&operator)?;
    the_operator_creates_no_jobs_but_agents(&operator, &shop)?;
    only_the_api_server_is_served(&operator).await?;
    users_need_permissions(&operator, &shop).await?;
    a_session_reaches_every_pod_and_survives_a_replica(&operator, &shop).await?;
    operator.uninstall()
}

fn kubectl_shows_the_operator(operator: &Operator, shop: &TestNamespace) -> Result<()> {
    let object = shop.kubectl(&["get", "mirrordoperators", "operator", "--output=yaml"])?;
    for line in [
        "kind: MirrordOperator",
        "  features:\n  - ProxyApi",
        "  sessions: []",
    ] {
        ensure!(object.contains(line), "{line} is missing:\n{object}");
    }
    ensure!(
        !object.contains("license"),
        "the object has a license:\n{object}"
    );
    let namespace = format!("operator_namespace: {}", operator.namespace.name);
    ensure!(object.contains(&namespace), "{object}");
    let table = shop.kubectl(&["get", "targets"])?;
    let row = table
        .lines()
        .find(|line| line.starts_with("deployment.web "));
    let cells: Vec<&str> = row.context("no row")?.split_whitespace().collect();
    ensure!(cells == ["deployment.web", "web", "2", "-"], "{table}");
    let explained = shop.kubectl(&["explain", "targets.spec.containers"])?;
    ensure!(
        explained.contains("can be the target container"),
        "{explained}"
    );
    Ok(())
}

async fn a_session_reaches_every_pod_and_survives_a_replica(
    operator: &Operator,
    shop: &TestNamespace,
) -> Result<()> {
    let identity = Identity::generate()?;
    let id = SessionId(0x5eed);
    let cluster = Cluster::new(shop.cluster.kube.clone(), &*shop.name);
    let parameters = ConnectParameters {
        connect: true,
        resume_window: Some(120),
        ..ConnectParameters::default()
    };
    let target = "deployment/web".parse()?;
    let session = OperatorSession::new(&cluster, &shop.name, &target, &parameters, id, &identity)
        .with_client_names("Anna", "laptop");
    let connection = session.connect().await?;
    let pods = ready_endpoints(&connection, 2).await?;
    let mut links = Vec::new();
    for endpoint in &pods {
        links.push(connect_link(&connection, *endpoint, &identity).await?);
    }
    // An agent rejects any other client certificate, also through the session's own channel.
    let other_identity = Identity::generate()?;
    ensure!(
        connect_link(&connection, pods[0], &other_identity)
            .await
            .is_err(),
        "an unauthenticated client uses an agent"
    );
    let listed = shop.kubectl(&["get", "sessions.operator.metalbear.co"])?;
    ensure!(
        listed.contains(&id.to_string()) && listed.contains("Ready"),
        "{listed}"
    );
    let table = shop.kubectl(&["get", "targets", "deployment.web"])?;
    ensure!(
        table.contains("admin"),
        "the target does not show its users:\n{table}"
    );

    sessions_are_not_changed(operator, shop, id)?;
    bytes_are_counted_while_connections_are_open(operator)?;

    // The operator's replicas are replaced: the client is notified, reconnects, and resumes its session.
    operator
        .namespace
        .kubectl(&["rollout", "restart", "deployment/mirrord-operator"])?;
    connection.ended().await;
    // Another old replica would disconnect the client once more.
    operator.namespace.kubectl(&[
        "rollout",
        "status",
        "deployment/mirrord-operator",
        "--timeout=120s",
    ])?;
    let connection = until("the session to continue", async || {
        Ok(Some(session.connect().await?))
    })
    .await?;
    let resumed = ready_endpoints(&connection, 2).await?;
    ensure!(
        resumed == pods,
        "different endpoints: {resumed:?} instead of {pods:?}"
    );
    links.push(connect_link(&connection, resumed[0], &identity).await?);

    // A new pod joins the session with a new endpoint number.
    shop.kubectl(&["scale", "deployment/web", "--replicas=3"])?;
    let more = ready_endpoints(&connection, 3).await?;
    ensure!(
        pods.iter().all(|endpoint| more.contains(endpoint)),
        "{more:?}"
    );

    shop.kubectl(&["delete", "sessions.operator.metalbear.co", &id.to_string()])?;
    connection.ended().await;
    until("the session's object to be gone", async || {
        let left = shop.kubectl(&["get", "mirrordclustersessions", "--output=name"])?;
        Ok(left.trim().is_empty().then_some(()))
    })
    .await?;
    until("the agents to exit", async || {
        let running =
            "--output=jsonpath={.items[*].status.ephemeralContainerStatuses[*].state.running}";
        Ok(shop
            .kubectl(&["get", "pods", running])?
            .trim()
            .is_empty()
            .then_some(()))
    })
    .await
}

/// The sum over all replicas is positive although no connection has ended.
fn bytes_are_counted_while_connections_are_open(operator: &Operator) -> Result<()> {
    let counts = operator.metrics("standin_operator_relayed_bytes_total")?;
    let has_some = |direction: &str| {
        let mut counts = counts.iter().filter(|line| line.contains(direction));
        counts.any(|line| !line.ends_with(" 0"))
    };
    ensure!(has_some("to_agent") && has_some("to_client"), "{counts:?}");
    Ok(())
}

/// Waits for this number of ready agents, and returns their endpoint numbers, sorted.
pub(crate) async fn ready_endpoints(
    connection: &OperatorConnection,
    count: usize,
) -> Result<Vec<u32>> {
    until(&format!("{count} agents"), async || {
        let endpoints = connection.endpoints.borrow().endpoints.clone();
        let mut ready: Vec<u32> = endpoints
            .iter()
            .filter(|endpoint| endpoint.ready)
            .map(|endpoint| endpoint.number)
            .collect();
        ready.sort_unstable();
        Ok((ready.len() == count).then_some(ready))
    })
    .await
}

/// Connects a link to an agent, end to end: TLS with the client's certificate, and the link's handshake.
pub(crate) async fn connect_link(
    connection: &OperatorConnection,
    endpoint: u32,
    identity: &Identity,
) -> Result<Link> {
    let name = ServerName::try_from("agent")?;
    let trust = Trust::FirstSeen(FirstSeen::default());
    let dialer = TlsDialer::with_identity(connection.dialer(endpoint), name, trust, identity)?;
    let mut settings = Settings::default();
    settings.redial.first_connection_timeout = std::time::Duration::from_secs(2);
    Ok(Link::connect(dialer, settings).await?)
}

/// The operator's pods are gone before its release is removed: nothing hangs, and namespaces can be deleted.
async fn an_operator_that_is_down(scenario: &Scenario<'_>) -> Result<()> {
    let operator = Operator::install(scenario, 1).await?;
    let namespace = &operator.namespace;
    namespace.kubectl(&["scale", "deployment/mirrord-operator", "--replicas=0"])?;
    until("the API to be unavailable", async || {
        let available = namespace.kubectl(&[
            "get",
            "apiservice",
            API_SERVICE,
            "--output=jsonpath={.status.conditions[?(@.type==\"Available\")].status}",
        ])?;
        Ok((available == "False").then_some(()))
    })
    .await?;
    operator.uninstall()?;
    let victim = scenario.namespace_in(1).await?;
    victim
        .kubectl(&["delete", "namespace", &victim.name, "--timeout=60s"])
        .map(drop)
}

/// An operator in its own namespace.
pub(crate) struct Operator {
    pub(crate) namespace: TestNamespace,
}

impl Operator {
    pub(crate) async fn install(scenario: &Scenario<'_>, cluster: usize) -> Result<Self> {
        Self::install_with(scenario, cluster, "operator.agent.mode=ephemeral").await
    }

    /// Installs the chart with values in the form of `--set`.
    pub(crate) async fn install_with(
        scenario: &Scenario<'_>,
        cluster: usize,
        value: &str,
    ) -> Result<Self> {
        load_agent_image(scenario)?;
        let operator = Operator {
            namespace: scenario.namespace_in(cluster).await?,
        };
        let (repository, tag) = standind::REFERENCE.rsplit_once(':').context("no tag")?;
        let repository = format!("operator.image.repository={repository}");
        let tag = format!("operator.image.tag={tag}");
        ensure!(Path::new(CHART).exists(), "the chart is not at {CHART}");
        operator.helm(&[
            "install",
            "standin",
            CHART,
            "--wait",
            "--timeout=120s",
            "--set",
            value,
            "--set",
            &repository,
            "--set-string",
            &tag,
        ])?;
        operator.namespace.kubectl(&[
            "wait",
            "--for=condition=Available",
            &format!("apiservice/{API_SERVICE}"),
            "--timeout=60s",
        ])?;
        Ok(operator)
    }

    fn helm(&self, arguments: &[&str]) -> Result<String> {
        let mut command = self.namespace.cluster.client.helm();
        let command = command
            .args(["--namespace", &self.namespace.name])
            .args(arguments);
        Ok(lab::output_of(command)?)
    }

    pub(crate) fn uninstall(&self) -> Result<()> {
        self.helm(&["uninstall", "standin", "--wait", "--timeout=120s"])?;
        let kinds = "apiservices,customresourcedefinitions,clusterroles,clusterrolebindings,\
                     validatingadmissionpolicies,validatingadmissionpolicybindings";
        let cluster_wide = self.namespace.kubectl(&["get", kinds, "--output=name"])?;
        let own = "deployments,daemonsets,services,secrets,leases,serviceaccounts,jobs,roles,rolebindings,poddisruptionbudgets";
        let namespaced = self.namespace.kubectl(&["get", own, "--output=name"])?;
        let left: Vec<&str> = cluster_wide
            .lines()
            .chain(namespaced.lines())
            .filter(|name| name.contains("mirrord") || name.contains("metalbear"))
            .collect();
        ensure!(left.is_empty(), "left behind: {left:?}");
        Ok(())
    }

    /// The lines of a metric, from all replicas.
    pub(crate) fn metrics(&self, name: &str) -> Result<Vec<String>> {
        let namespace = &self.namespace;
        let replicas = "--selector=app.kubernetes.io/component=operator";
        let replicas = namespace.kubectl(&["get", "pods", replicas, "--output=name"])?;
        let replicas = replicas
            .lines()
            .filter_map(|line| line.strip_prefix("pod/"));
        let mut lines = Vec::new();
        for replica in replicas {
            let path = format!(
                "/api/v1/namespaces/{}/pods/{replica}:8080/proxy/metrics",
                namespace.name
            );
            let metrics = namespace.kubectl(&["get", "--raw", &path])?;
            let found = metrics.lines().filter(|line| line.starts_with(name));
            lines.extend(found.map(str::to_owned));
        }
        Ok(lines)
    }

    /// The response to an account of the shop that connects with the right protocol but without a session id.
    async fn connect_response(
        &self,
        shop: &TestNamespace,
        name: &str,
        path: &str,
    ) -> Result<String> {
        let token = shop.kubectl(&["create", "token", name])?;
        let header = format!("Authorization: Bearer {}", token.trim());
        self.namespace
            .exec("client", &["sh", "-c", "cat > /tmp/header"], Some(&header))
            .await?;
        let curl = format!(
            "curl -sSk --http1.1 --max-time 20 -H @/tmp/header -H 'Connection: Upgrade' -H 'Upgrade: websocket' -H \
             'Sec-WebSocket-Version: 13' -H 'Sec-WebSocket-Key: AAAAAAAAAAAAAAAAAAAAAA==' -H \
             'Sec-WebSocket-Protocol: standin.link.v1' 'https://kubernetes.default.svc{path}'"
        );
        Ok(self
            .namespace
            .exec("client", &["sh", "-c", &curl], None)
            .await?
            .stdout)
    }
}
