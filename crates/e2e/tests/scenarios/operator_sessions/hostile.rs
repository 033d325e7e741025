//! A pod of the cluster that opens many connections to every listener of operators and agents, and authenticates with none
//! of them.

use std::net::SocketAddr;

use anyhow::{Result, ensure};
use api::node::operator_port;
use e2e::machine::ProgramOutput;
use e2e::{Scenario, TestNamespace, until};
use lab::hostile::{HostileConnections, LOADED, POD, listeners_of_pods, listeners_of_sessions};
use serde_json::Value;

use super::super::operator::Operator;
use super::{Shell, session_for};

/// So many connections to each listener.
const CONNECTIONS: usize = 1_000;
/// So many of them per second and listener.
const RATE: usize = 200;
const POLICY: &str = "apiVersion: policies.mirrord.metalbear.co/v1alpha\nkind: MirrordPolicy\nmetadata: {name: hostile}\nspec: \
                      {targetPath: deployment/web, fs: {notFound: [^/web/]}}\n";
const CHANGED: &str = "the rules of the cluster's administrators for pod web-";

/// Meanwhile a session starts, a policy reaches a running session, no probe is missed, and no container restarts.
pub(crate) async fn unauthenticated_peers_take_nothing(
    scenario: &Scenario<'_>,
    shop: &TestNamespace,
    operator: &Operator,
) -> Result<()> {
    let namespace = &operator.namespace;
    let before = health(namespace)?;
    let mut files = session_for(scenario, shop, "deployment/web")?;
    files.args(["--fs-mode", "read"]);
    let mut running = Shell::start(files)?;
    ensure!(running.run("cat /web/web.py | wc -l").await? != "0");

    let connections = HostileConnections {
        count: CONNECTIONS,
        rate: RATE,
        listeners: listeners(shop, operator)?,
    };
    start(shop, &connections).await?;
    let mut session = session_for(scenario, shop, "deployment/web")?;
    session.args(["--fs-mode", "read"]);
    let output = ProgramOutput::of(session.args(["--", "sh", "-c", "wc -l < /web/web.py"]))?;
    ensure!(output.code == Some(0), "{output}");
    ensure!(output.stdout.trim() != "0", "{output}");
    shop.apply(POLICY)?;
    running.wait_for_message(CHANGED).await?;
    until("the file to be hidden", async || {
        let found = running.run("cat /web/web.py 2>/dev/null | wc -l").await?;
        Ok((found == "0").then_some(()))
    })
    .await?;
    let policy = "mirrordpolicies.policies.mirrord.metalbear.co/hostile";
    shop.kubectl(&["delete", policy])?;
    until("the file to be visible", async || {
        let found = running.run("cat /web/web.py 2>/dev/null | wc -l").await?;
        Ok((found != "0").then_some(()))
    })
    .await?;
    let phase = "--output=jsonpath={.status.phase}";
    let phase = shop.kubectl(&["get", "pod", POD, phase])?;
    ensure!(phase.trim() == "Running", "the load has ended: {phase}");

    let output = running.end()?;
    ensure!(output.code == Some(0), "{output}");
    ensure!(!output.stderr.contains("another agent"), "{output}");
    let after = health(namespace)?;
    ensure!(before == after, "{before:#?}, then {after:#?}");
    shop.kubectl(&["delete", "pod", POD, "--now"])?;
    Ok(())
}

/// Every address at which an operator or an agent listens.
fn listeners(shop: &TestNamespace, operator: &Operator) -> Result<Vec<String>> {
    let mut listeners = listeners_of_pods(&list(&operator.namespace, "pods")?);
    for of_client in listeners_of_sessions(&list(shop, "mirrordclustersessions")?) {
        let mut of_operator: SocketAddr = of_client.parse()?;
        of_operator.set_port(operator_port(of_operator.port()));
        listeners.extend([of_client, of_operator.to_string()]);
    }
    Ok(listeners)
}

/// Starts the pod, and waits until it has opened all connections.
async fn start(shop: &TestNamespace, connections: &HostileConnections) -> Result<()> {
    shop.apply(&connections.manifest())?;
    shop.wait_until_ready(POD).await?;
    until("all connections to be open", async || {
        let log = shop.kubectl(&["logs", POD])?;
        ensure!(!log.contains("Traceback"), "{log}");
        Ok(log.contains(LOADED).then_some(()))
    })
    .await
}

fn health(namespace: &TestNamespace) -> Result<Vec<String>> {
    let (pods, events) = (list(namespace, "pods")?, list(namespace, "events")?);
    Ok(lab::hostile::health(&pods, &events))
}

fn list(namespace: &TestNamespace, kind: &str) -> Result<Value> {
    let list = namespace.kubectl(&["get", kind, "--output=json"])?;
    Ok(serde_json::from_str(&list)?)
}
