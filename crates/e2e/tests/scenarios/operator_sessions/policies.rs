//! Policies that are created, changed and removed while sessions run.

use anyhow::{Result, ensure};
use e2e::{Scenario, TestNamespace, until};
use serde_json::Value;

use super::super::operator::Operator;
use super::serving::{Server, pods, ports_are_listed, wait_for_response};
use super::{Shell, session_for};

const RESTRICTIVE: &str = "apiVersion: policies.mirrord.metalbear.co/v1alpha\nkind: MirrordPolicy\nmetadata: {name: late}\nspec: \
                       {targetPath: deployment/web, block: [steal-without-filter], fs: {notFound: [^/web/]}, network: \
                       {outgoing: {block: [':80']}}}\n";
const OPEN: &str = "exec 3<>/dev/tcp/web/80 && echo opened";
const OPEN_ANOTHER: &str = "(exec 4<>/dev/tcp/web/80) 2>/dev/null && echo opened || echo refused";
/// No request was sent on this connection, so the server neither responds nor closes it.
const READ: &str = "timeout 60 head -c 1 <&3 >/dev/null 2>&1; echo $?";
const CHANGED: &str = "the rules of the cluster's administrators for pod web-";

/// Forbidden operations end while the agent stays, the user is notified, and allowed operations work again.
pub(crate) async fn policies_apply_to_running_sessions(
    scenario: &Scenario<'_>,
    shop: &TestNamespace,
    operator: &Operator,
) -> Result<()> {
    let mut files = session_for(scenario, shop, "deployment/web")?;
    files.args(["--fs-mode", "read"]);
    let mut session = Shell::start(files)?;
    ensure!(session.run(OPEN).await? == "opened");
    ensure!(session.run("cat /web/web.py | wc -c").await? != "0");
    let mut stealing = session_for(scenario, shop, "deployment/web")?;
    stealing.arg("--steal");
    let mut server = Server::start(stealing, "stolen")?;
    let all = pods(shop).await?;
    for pod in &all {
        wait_for_response(shop, pod, None, "stolen", &mut server).await?;
    }
    ports_are_listed(scenario, shop, &["8080 (steal)"]).await?;

    shop.apply(RESTRICTIVE)?;
    session.wait_for_message(CHANGED).await?;
    ensure!(session.run(READ).await? == "1", "the connection is open");
    ensure!(session.run(OPEN_ANOTHER).await? == "refused");
    // The local kernel's cache of a file expires after a moment.
    until("the file to be hidden", async || {
        let found = session.run("cat /web/web.py 2>/dev/null | wc -c").await?;
        Ok((found == "0").then_some(()))
    })
    .await?;
    for pod in &all {
        wait_for_response(shop, pod, None, &pod.0, &mut server).await?;
    }
    ports_are_listed(scenario, shop, &[]).await?;
    ports_are_in_the_audit_log(shop, operator, 1)?;

    let policy = "mirrordpolicies.policies.mirrord.metalbear.co/late";
    shop.kubectl(&["delete", policy])?;
    until("the address to be allowed", async || {
        Ok((session.run(OPEN_ANOTHER).await? == "opened").then_some(()))
    })
    .await?;
    for pod in &all {
        wait_for_response(shop, pod, None, "stolen", &mut server).await?;
    }
    ports_are_listed(scenario, shop, &["8080 (steal)"]).await?;
    drop(server);
    let output = session.end()?;
    ensure!(output.code == Some(0), "{output}");
    ensure!(!output.stderr.contains("another agent"), "{output}");
    until("the end of the session's port to be logged", async || {
        Ok(ports_are_in_the_audit_log(shop, operator, 2).ok())
    })
    .await
}

/// Checks that the log has at least this number of claims and releases of the whole port.
fn ports_are_in_the_audit_log(
    shop: &TestNamespace,
    operator: &Operator,
    times: usize,
) -> Result<()> {
    let selector = "--selector=app.kubernetes.io/component=operator";
    let log = operator
        .namespace
        .kubectl(&["logs", selector, "--tail=-1"])?;
    let lines = log.lines().filter(|line| line.contains("audit"));
    let lines = lines.filter_map(|line| serde_json::from_str::<Value>(line).ok());
    let port_events: Vec<Value> = lines
        .filter(|line| {
            line["namespace"] == *shop.name
                && line["workload"] == "deployment/web"
                && line["port"] == 8080
                && line["mode"] == "steal"
                && line["filter"] == ""
        })
        .collect();
    for message in ["port claimed", "port released"] {
        let found = port_events.iter().filter(|line| line["message"] == message);
        ensure!(found.count() >= times, "{message}: {port_events:#?}");
    }
    ensure!(port_events.iter().all(|line| line["user"] != ""));
    Ok(())
}
