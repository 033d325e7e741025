//! Faults between a client and its agents, and connections through the target that survive them.

use anyhow::{Context as _, Result, ensure};
use e2e::{Scenario, TestNamespace, until};
use k8s_openapi::api::core::v1::Pod;
use kube::api::{EvictParams, ListParams};
use lab::HOST;

use super::super::cluster_sessions::{start_checkout, succeed};
use super::super::operator::Operator;
use super::serving::{Server, pods, wait_for_response_from};
use super::{Shell, listed_sessions, session_for, wait_until_nothing_is_left, with_operator};

/// Opens one connection for each fault: the server closes a connection after one response.
const OPEN: &str = "exec 3<>/dev/tcp/web/80 4<>/dev/tcp/web/80 5<>/dev/tcp/web/80 6<>/dev/tcp/web/80 && echo opened";

pub(super) async fn sessions_survive_cuts_and_restarts(scenario: &Scenario<'_>) -> Result<()> {
    let shop = scenario.namespace_in(0).await?;
    start_checkout(&shop)?;
    shop.web().await?;
    with_operator(scenario, async |operator| {
        // A killed client does not end its session. The operator detects that while the rest of the scenario runs.
        let folder = tempfile::tempdir()?;
        let file = folder.path().join("standin.yaml");
        std::fs::write(&file, "agent:\n  communication_timeout: 2\n")?;
        let mut killed = session_for(scenario, &shop, "deployment/checkout")?;
        killed.arg("--config-file").arg(&file);
        let mut killed = Shell::start(killed)?;
        ensure!(killed.run("echo $GREETING").await? == "from the pod");
        killed.kill()?;
        survive_faults(scenario, &shop, operator).await?;
        no_request_is_lost_while_replicas_are_drained(scenario, &shop, operator).await?;
        wait_until_nothing_is_left(&shop).await?;
        ensure!(listed_sessions(scenario, &shop)?.is_empty());
        Ok(())
    })
    .await
}

async fn survive_faults(
    scenario: &Scenario<'_>,
    shop: &TestNamespace,
    operator: &Operator,
) -> Result<()> {
    let mut session = Shell::start(session_for(scenario, shop, "deployment/checkout")?)?;
    ensure!(session.run(OPEN).await? == "opened");
    // The operator checks its certificates at intervals, so the other faults are tested in the meantime.
    shop.client_pod("tls-client").await?;
    let authorities = served_authorities(shop, operator).await?;
    break_authority(operator)?;

    let lab = scenario.lab()?;
    let name = &shop.cluster.name;
    lab.cut(HOST, name)?;
    let lost = session
        .wait_for_message("connection to the agent lost, reconnecting")
        .await;
    lab.heal_link(HOST, name)?;
    lost?;
    session.wait_for_message("reconnected to the agent").await?;
    check_still_open(&mut session, 3)
        .await
        .context("after a cut")?;

    let cluster = lab.cluster(name)?;
    let node = cluster.plan().nodes.first().context("no node")?;
    cluster.restart_component(&node.name, lab::component::API_SERVER)?;
    cluster.wait_for_api_server()?;
    check_still_open(&mut session, 4)
        .await
        .context("after a restart of the API server")?;

    wait_for_new_certificates(shop, operator, &authorities).await?;
    check_still_open(&mut session, 6)
        .await
        .context("after new certificates")?;
    let mut another = session_for(scenario, shop, "deployment/checkout")?;
    let another = succeed(another.args(["--", "sh", "-c", "echo $GREETING"]))?;
    ensure!(another.stdout.trim() == "from the pod", "{another}");

    // All replicas at once, without a graceful shutdown.
    let deleted = operator.namespace.kubectl(&[
        "delete",
        "pod",
        "--selector=app.kubernetes.io/component=operator",
        "--force",
        "--grace-period=0",
    ])?;
    ensure!(deleted.matches("deleted").count() == 2, "{deleted}");
    check_still_open(&mut session, 5)
        .await
        .context("after the end of the operator's replicas")?;

    let output = session.end()?;
    ensure!(output.code == Some(0), "{output}");
    ensure!(!output.stderr.contains("another agent"), "{output}");
    Ok(())
}

/// Without its key the authority cannot sign certificates, so the operator must create a new one.
fn break_authority(operator: &Operator) -> Result<()> {
    let patch = r#"--patch={"stringData": {"ca.key": "not a key"}}"#;
    let secret = "secret/mirrord-operator-tls";
    operator
        .namespace
        .kubectl(&["patch", secret, patch])
        .map(drop)
}

/// The issuer of each replica's certificate, as a TLS client sees it. The issuer's name contains the second of its
/// creation.
async fn served_authorities(shop: &TestNamespace, operator: &Operator) -> Result<Vec<String>> {
    let selector = ListParams::default().labels("app.kubernetes.io/component=operator");
    let mut authorities = Vec::new();
    for pod in operator.namespace.pods().list(&selector).await? {
        let address = pod.status.and_then(|status| status.pod_ip);
        let script = format!(
            "curl --silent --insecure --verbose --max-time 10 https://{}:8443/ 2>&1 | grep -o 'standin-operator-ca@[0-9]*'",
            address.context("no address")?
        );
        let issuer = shop.run("tls-client", &["sh", "-c", &script]).await?;
        authorities.extend(issuer.lines().next().map(str::to_owned));
    }
    ensure!(authorities.len() == 2, "{authorities:?}");
    Ok(authorities)
}

/// Waits until all replicas have certificates of a new authority, and checks that the API server trusts them.
async fn wait_for_new_certificates(
    shop: &TestNamespace,
    operator: &Operator,
    before: &[String],
) -> Result<()> {
    until("new certificates", async || {
        let now = served_authorities(shop, operator).await?;
        let are_new = now.iter().all(|authority| !before.contains(authority));
        ensure!(are_new && now[0] == now[1], "{before:?}, {now:?}");
        Ok(Some(()))
    })
    .await?;
    let operators = ["get", "mirrordoperators", "operator", "--output=name"];
    shop.kubectl(&operators).map(drop)
}

/// Checks that an existing connection carries a request and its response, and that a new connection works.
async fn check_still_open(session: &mut Shell, descriptor: u32) -> Result<()> {
    let request = format!(
        r"printf 'GET / HTTP/1.0\r\n\r\n' >&{descriptor}; head -n 1 <&{descriptor} | grep . || echo nothing"
    );
    let response = session.run(&request).await?;
    ensure!(response.contains("200 OK"), "{response:?}");
    let new = "curl --silent --max-time 60 http://web/ || echo failed";
    let response = session.run(new).await?;
    ensure!(response.starts_with("web-"), "{response:?}");
    Ok(())
}

/// Four clients send requests until a file `stop` exists, and record the responses.
const LOAD: &str = "rm -f /tmp/stop /tmp/responses.*; for number in 1 2 3 4; do (while [ ! -e /tmp/stop ]; do curl --silent \
                    --max-time 60 --write-out '%{http_code}\\n' http://ADDRESS:8080/ >>/tmp/responses.$number; done; touch \
                    /tmp/done.$number) >/dev/null 2>&1 & done";

/// Replicas are evicted as in a node drain: one after the other, as the disruption budget allows.
async fn no_request_is_lost_while_replicas_are_drained(
    scenario: &Scenario<'_>,
    shop: &TestNamespace,
    operator: &Operator,
) -> Result<()> {
    shop.client_pod("load").await?;
    let mut session = session_for(scenario, shop, "deployment/web")?;
    let log = tempfile::NamedTempFile::new()?;
    session.args(["--steal", "--log-file"]).arg(log.path());
    // The responses are slow, so that some requests are always in flight.
    let mut server = Server::start(session, "slowly")?;
    let all = pods(shop).await?;
    let pod = all.first().context("no pod")?;
    wait_for_response_from(shop, "load", pod, "slowly", &mut server).await?;
    let script = LOAD.replace("ADDRESS", &pod.1);
    shop.run("load", &["sh", "-c", &script]).await?;
    let count = async || -> Result<usize> {
        let lines = shop
            .run("load", &["sh", "-c", "cat /tmp/responses.*"])
            .await?;
        Ok(lines.lines().filter(|line| *line == "200").count())
    };
    let before = until("responses", async || {
        Ok(Some(count().await?).filter(|count| *count > 8))
    })
    .await?;
    let operators = operator.namespace.pods();
    let selector = ListParams::default().labels("app.kubernetes.io/component=operator");
    let old = operators.list(&selector).await?.items;
    ensure!(old.len() == 2, "there are {} replicas", old.len());
    for pod in old {
        let name = pod.metadata.name.context("no name")?;
        until("a replica to be evicted", async || {
            operators.evict(&name, &EvictParams::default()).await?;
            Ok(Some(()))
        })
        .await?;
        until("a new replica", async || {
            let now = operators.list(&selector).await?.items;
            let is_gone = !now
                .iter()
                .any(|pod| pod.metadata.name.as_deref() == Some(&name));
            let ready = now.iter().filter(|pod| is_ready(pod)).count();
            Ok((is_gone && ready == 2).then_some(()))
        })
        .await?;
    }
    let drained = count().await?;
    let after = until("responses after the evictions", async || {
        Ok(Some(count().await?).filter(|count| *count > drained + 8))
    })
    .await?;
    ensure!(
        drained > before && after > drained,
        "{before}, {drained}, {after}"
    );
    shop.run("load", &["touch", "/tmp/stop"]).await?;
    until("the clients to exit", async || {
        let output = shop
            .run("load", &["sh", "-c", "ls /tmp/done.* | wc -l"])
            .await?;
        Ok((output.trim() == "4").then_some(()))
    })
    .await?;
    let lines = shop
        .run("load", &["sh", "-c", "cat /tmp/responses.*"])
        .await?;
    // Each response is a line of the program and a line with the status code.
    let lost: Vec<&str> = lines
        .lines()
        .filter(|line| !matches!(*line, "200" | "slowly"))
        .collect();
    ensure!(lost.is_empty(), "lost: {lost:?}\n{}", server.stderr()?);
    ensure!(
        lines.matches("slowly").count() == lines.matches("200").count(),
        "{lines}"
    );
    let log = std::fs::read_to_string(log.path())?;
    ensure!(
        log.contains("session handed over to another operator replica")
            && !log.contains("operator disconnected"),
        "the session was not handed over before its replica ended: {log}"
    );
    drop(server);
    Ok(())
}

fn is_ready(pod: &Pod) -> bool {
    let status = pod.status.as_ref();
    let conditions = status.and_then(|status| status.conditions.as_ref());
    let mut conditions = conditions.into_iter().flatten();
    pod.metadata.deletion_timestamp.is_none()
        && conditions.any(|condition| condition.type_ == "Ready" && condition.status == "True")
}
