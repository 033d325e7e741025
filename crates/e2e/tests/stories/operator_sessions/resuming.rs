//! Faults between a client and its agents, and connections through the target that outlive them.

use anyhow::{Context as _, Result, ensure};
use e2e::{Stage, Story, until};
use k8s_openapi::api::core::v1::Pod;
use kube::api::{EvictParams, ListParams};
use lab::HOST;

use super::super::cluster_sessions::{start_checkout, succeed};
use super::super::operator::Operator;
use super::serving::{Server, answers_from, pods};
use super::{Shell, listed_sessions, nothing_is_left, session_for, with_operator};

/// Opened before the faults, one for each: the server ends a connection after one answer.
const OPEN: &str = "exec 3<>/dev/tcp/web/80 4<>/dev/tcp/web/80 5<>/dev/tcp/web/80 6<>/dev/tcp/web/80 && echo opened";

pub(super) async fn sessions_outlive_cuts_and_restarts(story: &Story<'_>) -> Result<()> {
    let shop = story.stage_in(0).await?;
    start_checkout(&shop)?;
    shop.web().await?;
    with_operator(story, async |operator| {
        // One that is killed has nobody who says goodbye. The operator finds out while the rest is told.
        let folder = tempfile::tempdir()?;
        let file = folder.path().join("standin.yaml");
        std::fs::write(&file, "agent:\n  communication_timeout: 2\n")?;
        let mut killed = session_for(story, &shop, "deployment/checkout")?;
        killed.arg("--config-file").arg(&file);
        let mut killed = Shell::start(killed)?;
        ensure!(killed.ask("echo $GREETING").await? == "from the pod");
        killed.kill()?;
        outlive(story, &shop, operator).await?;
        no_request_is_lost_while_replicas_are_drained(story, &shop, operator).await?;
        nothing_is_left(&shop).await?;
        ensure!(listed_sessions(story, &shop)?.is_empty());
        Ok(())
    })
    .await
}

async fn outlive(story: &Story<'_>, shop: &Stage, operator: &Operator) -> Result<()> {
    let mut session = Shell::start(session_for(story, shop, "deployment/checkout")?)?;
    ensure!(session.ask(OPEN).await? == "opened");
    // It takes until the operator looks at its certificates again, so the other faults come meanwhile.
    shop.client_pod("witness").await?;
    let authorities = served_authorities(shop, operator).await?;
    spoil_authority(operator)?;

    let lab = story.lab()?;
    let name = &shop.cluster.name;
    lab.cut(HOST, name)?;
    let lost = session.says("is lost and is being made again").await;
    lab.heal_link(HOST, name)?;
    lost?;
    session.says("the connection to the agent is back").await?;
    still_open(&mut session, 3).await.context("after a cut")?;

    let cluster = lab.cluster(name)?;
    let node = cluster.plan().nodes.first().context("no node")?;
    cluster.restart_component(&node.name, lab::component::API_SERVER)?;
    cluster.wait_for_api_server()?;
    still_open(&mut session, 4)
        .await
        .context("after a restart of the API server")?;

    certificates_are_exchanged(shop, operator, &authorities).await?;
    still_open(&mut session, 6)
        .await
        .context("after new certificates")?;
    let mut another = session_for(story, shop, "deployment/checkout")?;
    let another = succeed(another.args(["--", "sh", "-c", "echo $GREETING"]))?;
    ensure!(another.stdout.trim() == "from the pod", "{another}");

    // All replicas at once, without a word.
    let gone = operator.stage.kubectl(&[
        "delete",
        "pod",
        "--selector=app.kubernetes.io/component=operator",
        "--force",
        "--grace-period=0",
    ])?;
    ensure!(gone.matches("deleted").count() == 2, "{gone}");
    still_open(&mut session, 5)
        .await
        .context("after the end of the operator's replicas")?;

    let ended = session.end()?;
    ensure!(ended.code == Some(0), "{ended}");
    ensure!(!ended.stderr.contains("another agent"), "{ended}");
    Ok(())
}

/// Without the authority's key, no certificate can be made by it, and there has to be a new one.
fn spoil_authority(operator: &Operator) -> Result<()> {
    let patch = r#"--patch={"stringData": {"ca.key": "not a key"}}"#;
    let secret = "secret/mirrord-operator-tls";
    operator.stage.kubectl(&["patch", secret, patch]).map(drop)
}

/// By whom the certificate of each replica is, as whoever connects sees it. An authority's name has the second in it at which
/// it was made.
async fn served_authorities(shop: &Stage, operator: &Operator) -> Result<Vec<String>> {
    let selector = ListParams::default().labels("app.kubernetes.io/component=operator");
    let mut authorities = Vec::new();
    for pod in operator.stage.pods().list(&selector).await? {
        let address = pod.status.and_then(|status| status.pod_ip);
        let script = format!(
            "curl --silent --insecure --verbose --max-time 10 https://{}:8443/ 2>&1 | grep -o 'standin-operator-ca@[0-9]*'",
            address.context("no address")?
        );
        let issuer = shop.run("witness", &["sh", "-c", &script]).await?;
        authorities.extend(issuer.lines().next().map(str::to_owned));
    }
    ensure!(authorities.len() == 2, "{authorities:?}");
    Ok(authorities)
}

/// All replicas have certificates by another authority than before, and the API server believes them.
async fn certificates_are_exchanged(
    shop: &Stage,
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

/// A connection from before carries a request and its answer, and a new one can be made.
async fn still_open(session: &mut Shell, descriptor: u32) -> Result<()> {
    let request = format!(
        r"printf 'GET / HTTP/1.0\r\n\r\n' >&{descriptor}; head -n 1 <&{descriptor} | grep . || echo nothing"
    );
    let answer = session.ask(&request).await?;
    ensure!(answer.contains("200 OK"), "{answer:?}");
    let new = "curl --silent --max-time 60 http://web/ || echo failed";
    let answer = session.ask(new).await?;
    ensure!(answer.starts_with("web-"), "{answer:?}");
    Ok(())
}

/// So many clients ask one after the other for as long as there is no file `stop`, and note what comes of it.
const LOAD: &str = "rm -f /tmp/stop /tmp/answers.*; for number in 1 2 3 4; do (while [ ! -e /tmp/stop ]; do curl --silent \
                    --max-time 60 --write-out '%{http_code}\\n' http://ADDRESS:8080/ >>/tmp/answers.$number; done; touch \
                    /tmp/done.$number) >/dev/null 2>&1 & done";

/// As a drained node evicts them: one after the other, each when the disruption budget allows it.
async fn no_request_is_lost_while_replicas_are_drained(
    story: &Story<'_>,
    shop: &Stage,
    operator: &Operator,
) -> Result<()> {
    shop.client_pod("load").await?;
    let mut session = session_for(story, shop, "deployment/web")?;
    let log = tempfile::NamedTempFile::new()?;
    session.args(["--steal", "--log-file"]).arg(log.path());
    // Slow enough that some are always on their way.
    let mut server = Server::start(session, "slowly")?;
    let all = pods(shop).await?;
    let pod = all.first().context("no pod")?;
    answers_from(shop, "load", pod, "slowly", &mut server).await?;
    let script = LOAD.replace("ADDRESS", &pod.1);
    shop.run("load", &["sh", "-c", &script]).await?;
    let count = async || -> Result<usize> {
        let lines = shop
            .run("load", &["sh", "-c", "cat /tmp/answers.*"])
            .await?;
        Ok(lines.lines().filter(|line| *line == "200").count())
    };
    let before = until("answers", async || {
        Ok(Some(count().await?).filter(|count| *count > 8))
    })
    .await?;
    let operators = operator.stage.pods();
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
        until("another replica in its place", async || {
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
    let after = until("answers after it", async || {
        Ok(Some(count().await?).filter(|count| *count > drained + 8))
    })
    .await?;
    ensure!(
        drained > before && after > drained,
        "{before}, {drained}, {after}"
    );
    shop.run("load", &["touch", "/tmp/stop"]).await?;
    until("the clients to end", async || {
        let ended = shop
            .run("load", &["sh", "-c", "ls /tmp/done.* | wc -l"])
            .await?;
        Ok((ended.trim() == "4").then_some(()))
    })
    .await?;
    let lines = shop
        .run("load", &["sh", "-c", "cat /tmp/answers.*"])
        .await?;
    // Each answer is a line of the program and one with the code.
    let lost: Vec<&str> = lines
        .lines()
        .filter(|line| !matches!(*line, "200" | "slowly"))
        .collect();
    ensure!(lost.is_empty(), "lost: {lost:?}\n{}", server.said()?);
    ensure!(
        lines.matches("slowly").count() == lines.matches("200").count(),
        "{lines}"
    );
    let log = std::fs::read_to_string(log.path())?;
    ensure!(
        log.contains("another replica of the operator carries the session")
            && !log.contains("the connection to the operator has ended"),
        "it did not go to another replica before it left one: {log}"
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
