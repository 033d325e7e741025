//! The operator: installed by its chart, asked by kubectl, used for sessions, and gone without a trace.
//!
//! There is one operator in a cluster, so all of it is one story per cluster.

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
use e2e::{LaterWorld, Needs, Stage, Story, tell, until};
use lab::standind;
use libtest_mimic::Trial;
use link::tls::rustls::pki_types::ServerName;
use link::tls::{FirstSeen, Identity, TlsDialer, Trust};
use link::{Link, Settings};

use super::surroundings::load_agent_image;
use rights::{
    another_operator_is_refused, forged_sessions_are_refused, only_the_api_server_is_answered,
    sessions_are_not_changed_by_others, the_operator_makes_no_jobs_but_agents, users_need_rights,
};

const CHART: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/../../charts/standin-operator");
const API_SERVICE: &str = "v1.operator.metalbear.co";
const TARGET: &str = "targets.operator.metalbear.co/deployment.web";

pub(crate) fn stories(world: &Arc<LaterWorld>) -> Vec<Trial> {
    vec![
        tell(
            world,
            "an_operator_serves_sessions_and_leaves_nothing",
            Needs::Lab,
            an_operator_serves_sessions,
        ),
        tell(
            world,
            "an_operator_whose_agents_wait_on_nodes_starts_nothing_and_forbids_what_policies_do",
            Needs::Lab,
            nodes::agents_wait_on_nodes,
        ),
        tell(
            world,
            "an_operator_whose_agents_are_pods_leaves_none",
            Needs::Lab,
            pods::agents_are_pods,
        ),
        tell(
            world,
            "an_operator_that_is_down_can_be_uninstalled",
            Needs::Lab,
            an_operator_that_is_down,
        ),
    ]
}

async fn an_operator_serves_sessions(story: &Story<'_>) -> Result<()> {
    let operator = Operator::install(story, 0).await?;
    let shop = story.stage_in(0).await?;
    shop.web().await?;
    kubectl_knows_the_operator(&operator, &shop)?;
    another_operator_is_refused(&operator)?;
    forged_sessions_are_refused(&operator)?;
    the_operator_makes_no_jobs_but_agents(&operator, &shop)?;
    only_the_api_server_is_answered(&operator).await?;
    users_need_rights(&operator, &shop).await?;
    a_session_reaches_every_pod_and_outlives_a_replica(&operator, &shop).await?;
    operator.uninstall()
}

fn kubectl_knows_the_operator(operator: &Operator, shop: &Stage) -> Result<()> {
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
        "there is no licence:\n{object}"
    );
    let namespace = format!("operator_namespace: {}", operator.stage.namespace);
    ensure!(object.contains(&namespace), "{object}");
    let table = shop.kubectl(&["get", "targets"])?;
    let row = table
        .lines()
        .find(|line| line.starts_with("deployment.web "));
    let cells: Vec<&str> = row.context("no row")?.split_whitespace().collect();
    ensure!(cells == ["deployment.web", "web", "2", "-"], "{table}");
    let explained = shop.kubectl(&["explain", "targets.spec.containers"])?;
    ensure!(
        explained.contains("beside which an agent can work"),
        "{explained}"
    );
    Ok(())
}

async fn a_session_reaches_every_pod_and_outlives_a_replica(
    operator: &Operator,
    shop: &Stage,
) -> Result<()> {
    let identity = Identity::generate()?;
    let id = SessionId(0x5eed);
    let cluster = Cluster::new(shop.cluster.kube.clone(), &*shop.namespace);
    let parameters = ConnectParameters {
        connect: true,
        resume_window: Some(120),
        ..ConnectParameters::default()
    };
    let target = "deployment/web".parse()?;
    let session = OperatorSession::new(
        &cluster,
        &shop.namespace,
        &target,
        &parameters,
        id,
        &identity,
    )
    .introduce("Anna", "laptop");
    let connection = session.connect().await?;
    let pods = ready_places(&connection, 2).await?;
    let mut links = Vec::new();
    for place in &pods {
        links.push(greet(&connection, *place, &identity).await?);
    }
    // Somebody else's certificate gets nowhere, also through the right channel.
    let stranger = Identity::generate()?;
    ensure!(
        greet(&connection, pods[0], &stranger).await.is_err(),
        "a stranger uses an agent"
    );
    let listed = shop.kubectl(&["get", "sessions.operator.metalbear.co"])?;
    ensure!(
        listed.contains(&id.to_string()) && listed.contains("Ready"),
        "{listed}"
    );
    let table = shop.kubectl(&["get", "targets", "deployment.web"])?;
    ensure!(
        table.contains("admin"),
        "the target does not show who is there:\n{table}"
    );

    sessions_are_not_changed_by_others(shop, id)?;
    bytes_are_counted_as_they_go(operator)?;

    // The replicas are exchanged: the client is told, comes back, and finds its session.
    operator
        .stage
        .kubectl(&["rollout", "restart", "deployment/mirrord-operator"])?;
    connection.ended().await;
    // Another old replica would send the client away once more.
    operator.stage.kubectl(&[
        "rollout",
        "status",
        "deployment/mirrord-operator",
        "--timeout=120s",
    ])?;
    let connection = until("the session to continue", async || {
        Ok(Some(session.connect().await?))
    })
    .await?;
    let again = ready_places(&connection, 2).await?;
    ensure!(again == pods, "other places: {again:?} instead of {pods:?}");
    links.push(greet(&connection, again[0], &identity).await?);

    // A pod that comes joins, and has a number of its own.
    shop.kubectl(&["scale", "deployment/web", "--replicas=3"])?;
    let more = ready_places(&connection, 3).await?;
    ensure!(pods.iter().all(|place| more.contains(place)), "{more:?}");

    shop.kubectl(&["delete", "sessions.operator.metalbear.co", &id.to_string()])?;
    connection.ended().await;
    until("the session's object to be gone", async || {
        let left = shop.kubectl(&["get", "mirrordclustersessions", "--output=name"])?;
        Ok(left.trim().is_empty().then_some(()))
    })
    .await?;
    until("the agents to end", async || {
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

/// In whichever replica: none of the connections has ended.
fn bytes_are_counted_as_they_go(operator: &Operator) -> Result<()> {
    let stage = &operator.stage;
    let replicas = "--selector=app.kubernetes.io/component=operator";
    let replicas = stage.kubectl(&["get", "pods", replicas, "--output=name"])?;
    let mut counts = Vec::new();
    for replica in replicas
        .lines()
        .filter_map(|line| line.strip_prefix("pod/"))
    {
        let namespace = &stage.namespace;
        let path = format!("/api/v1/namespaces/{namespace}/pods/{replica}:8080/proxy/metrics");
        let metrics = stage.kubectl(&["get", "--raw", &path])?;
        let lines = metrics.lines().map(str::to_owned);
        counts
            .extend(lines.filter(|line| line.starts_with("standin_operator_relayed_bytes_total{")));
    }
    let has_some = |direction: &str| {
        let mut counts = counts.iter().filter(|line| line.contains(direction));
        counts.any(|line| !line.ends_with(" 0"))
    };
    ensure!(has_some("to_agent") && has_some("to_client"), "{counts:?}");
    Ok(())
}

/// The numbers of so many places whose agents are ready, in order.
async fn ready_places(connection: &OperatorConnection, count: usize) -> Result<Vec<u32>> {
    until(&format!("{count} agents"), async || {
        let places = connection.places.borrow().places.clone();
        let mut ready: Vec<u32> = places
            .iter()
            .filter(|place| place.ready)
            .map(|place| place.number)
            .collect();
        ready.sort_unstable();
        Ok((ready.len() == count).then_some(ready))
    })
    .await
}

/// Makes a link with an agent, end to end: TLS with the client's certificate, and the link's own greeting.
async fn greet(connection: &OperatorConnection, place: u32, identity: &Identity) -> Result<Link> {
    let name = ServerName::try_from("agent")?;
    let trust = Trust::FirstSeen(FirstSeen::default());
    let dialer = TlsDialer::with_identity(connection.dialer(place), name, trust, identity)?;
    let mut settings = Settings::default();
    settings.redial.first_connection = std::time::Duration::from_secs(2);
    Ok(Link::connect(dialer, settings).await?)
}

/// The operator is gone before its release: nothing hangs, and namespaces can be deleted.
async fn an_operator_that_is_down(story: &Story<'_>) -> Result<()> {
    let operator = Operator::install(story, 1).await?;
    let stage = &operator.stage;
    stage.kubectl(&["scale", "deployment/mirrord-operator", "--replicas=0"])?;
    until("the API to be unavailable", async || {
        let available = stage.kubectl(&[
            "get",
            "apiservice",
            API_SERVICE,
            "--output=jsonpath={.status.conditions[?(@.type==\"Available\")].status}",
        ])?;
        Ok((available == "False").then_some(()))
    })
    .await?;
    operator.uninstall()?;
    let victim = story.stage_in(1).await?;
    victim
        .kubectl(&["delete", "namespace", &victim.namespace, "--timeout=60s"])
        .map(drop)
}

/// An operator in a namespace of its own.
pub(crate) struct Operator {
    pub(crate) stage: Stage,
}

impl Operator {
    pub(crate) async fn install(story: &Story<'_>, cluster: usize) -> Result<Self> {
        Self::install_with(story, cluster, "operator.agent.mode=ephemeral").await
    }

    /// With values of the chart, as `--set` has them.
    pub(crate) async fn install_with(
        story: &Story<'_>,
        cluster: usize,
        value: &str,
    ) -> Result<Self> {
        load_agent_image(story)?;
        let operator = Operator {
            stage: story.stage_in(cluster).await?,
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
        operator.stage.kubectl(&[
            "wait",
            "--for=condition=Available",
            &format!("apiservice/{API_SERVICE}"),
            "--timeout=60s",
        ])?;
        Ok(operator)
    }

    fn helm(&self, arguments: &[&str]) -> Result<String> {
        let mut command = self.stage.cluster.client.helm();
        let command = command
            .args(["--namespace", &self.stage.namespace])
            .args(arguments);
        Ok(lab::output_of(command)?)
    }

    pub(crate) fn uninstall(&self) -> Result<()> {
        self.helm(&["uninstall", "standin", "--wait", "--timeout=120s"])?;
        let kinds = "apiservices,customresourcedefinitions,clusterroles,clusterrolebindings,\
                     validatingadmissionpolicies,validatingadmissionpolicybindings";
        let everywhere = self.stage.kubectl(&["get", kinds, "--output=name"])?;
        let own = "deployments,daemonsets,services,secrets,leases,serviceaccounts,jobs,roles,rolebindings,poddisruptionbudgets";
        let here = self.stage.kubectl(&["get", own, "--output=name"])?;
        let left: Vec<&str> = everywhere
            .lines()
            .chain(here.lines())
            .filter(|name| name.contains("mirrord") || name.contains("metalbear"))
            .collect();
        ensure!(left.is_empty(), "left behind: {left:?}");
        Ok(())
    }

    /// What is answered to an account of the shop that connects with the right protocol and nothing else.
    async fn connect_as(&self, shop: &Stage, name: &str, path: &str) -> Result<String> {
        let token = shop.kubectl(&["create", "token", name])?;
        let header = format!("Authorization: Bearer {}", token.trim());
        self.stage
            .exec("client", &["sh", "-c", "cat > /tmp/header"], Some(&header))
            .await?;
        let curl = format!(
            "curl -sSk --http1.1 --max-time 20 -H @/tmp/header -H 'Connection: Upgrade' -H 'Upgrade: websocket' -H \
             'Sec-WebSocket-Version: 13' -H 'Sec-WebSocket-Key: AAAAAAAAAAAAAAAAAAAAAA==' -H \
             'Sec-WebSocket-Protocol: standin.link.v1' 'https://kubernetes.default.svc{path}'"
        );
        Ok(self
            .stage
            .exec("client", &["sh", "-c", &curl], None)
            .await?
            .stdout)
    }
}
