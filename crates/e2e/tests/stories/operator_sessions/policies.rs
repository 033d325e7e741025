//! Policies that are made, changed and removed while sessions run.

use anyhow::{Result, ensure};
use e2e::{Stage, Story, until};
use serde_json::Value;

use super::super::operator::Operator;
use super::serving::{Server, answers, pods, ports_are_listed};
use super::{Shell, session_for};

const CAREFUL: &str = "apiVersion: policies.mirrord.metalbear.co/v1alpha\nkind: MirrordPolicy\nmetadata: {name: late}\nspec: \
                       {targetPath: deployment/web, block: [steal-without-filter], fs: {notFound: [^/web/]}, network: \
                       {outgoing: {block: [':80']}}}\n";
const OPEN: &str = "exec 3<>/dev/tcp/web/80 && echo opened";
const OPEN_ANOTHER: &str = "(exec 4<>/dev/tcp/web/80) 2>/dev/null && echo opened || echo refused";
/// Nothing was asked for on it, so the server has nothing to say and no reason to end it.
const READ: &str = "timeout 60 head -c 1 <&3 >/dev/null 2>&1; echo $?";
const CHANGED: &str = "the rules of the cluster's administrators for pod web-";

/// What is forbidden ends beside the same agent, the user is told, and what is allowed again works again.
pub(crate) async fn policies_reach_sessions_that_run(
    story: &Story<'_>,
    shop: &Stage,
    operator: &Operator,
) -> Result<()> {
    let mut files = session_for(story, shop, "deployment/web")?;
    files.args(["--fs-mode", "read"]);
    let mut session = Shell::start(files)?;
    ensure!(session.ask(OPEN).await? == "opened");
    ensure!(session.ask("cat /web/web.py | wc -c").await? != "0");
    let mut stealing = session_for(story, shop, "deployment/web")?;
    stealing.arg("--steal");
    let mut server = Server::start(stealing, "stolen")?;
    let all = pods(shop).await?;
    for pod in &all {
        answers(shop, pod, None, "stolen", &mut server).await?;
    }
    ports_are_listed(story, shop, &["8080 (steal)"]).await?;

    shop.apply(CAREFUL)?;
    session.says(CHANGED).await?;
    ensure!(session.ask(READ).await? == "1", "the connection is open");
    ensure!(session.ask(OPEN_ANOTHER).await? == "refused");
    // What the kernel of this machine remembers of a file it forgets within moments.
    until("the file to be hidden", async || {
        let found = session.ask("cat /web/web.py 2>/dev/null | wc -c").await?;
        Ok((found == "0").then_some(()))
    })
    .await?;
    for pod in &all {
        answers(shop, pod, None, &pod.0, &mut server).await?;
    }
    ports_are_listed(story, shop, &[]).await?;
    ports_are_in_the_audit_log(shop, operator, 1)?;

    let policy = "mirrordpolicies.policies.mirrord.metalbear.co/late";
    shop.kubectl(&["delete", policy])?;
    until("the address to be allowed", async || {
        Ok((session.ask(OPEN_ANOTHER).await? == "opened").then_some(()))
    })
    .await?;
    for pod in &all {
        answers(shop, pod, None, "stolen", &mut server).await?;
    }
    ports_are_listed(story, shop, &["8080 (steal)"]).await?;
    drop(server);
    let ended = session.end()?;
    ensure!(ended.code == Some(0), "{ended}");
    ensure!(!ended.stderr.contains("another agent"), "{ended}");
    until("the end of the session's port to be logged", async || {
        Ok(ports_are_in_the_audit_log(shop, operator, 2).ok())
    })
    .await
}

/// That somebody had the whole port, at least so often, and then had it no more.
fn ports_are_in_the_audit_log(shop: &Stage, operator: &Operator, times: usize) -> Result<()> {
    let selector = "--selector=app.kubernetes.io/component=operator";
    let log = operator.stage.kubectl(&["logs", selector, "--tail=-1"])?;
    let lines = log.lines().filter(|line| line.contains("audit"));
    let lines = lines.filter_map(|line| serde_json::from_str::<Value>(line).ok());
    let of_the_port: Vec<Value> = lines
        .filter(|line| {
            line["namespace"] == *shop.namespace
                && line["workload"] == "deployment/web"
                && line["port"] == 8080
                && line["mode"] == "steal"
                && line["filter"] == ""
        })
        .collect();
    for message in ["a session has a port", "a session has a port no more"] {
        let found = of_the_port.iter().filter(|line| line["message"] == message);
        ensure!(found.count() >= times, "{message}: {of_the_port:#?}");
    }
    ensure!(of_the_port.iter().all(|line| line["user"] != ""));
    Ok(())
}
