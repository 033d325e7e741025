//! A policy that an agent does not confirm: the session's traffic to the agent stops until it does.

use std::fs;
use std::time::Duration;

use anyhow::{Context as _, Result, ensure};
use api::connect::ConnectParameters;
use api::session::SessionId;
use cluster::{Cluster, OperatorConnection, OperatorSession};
use e2e::{Scenario, TestNamespace, until};
use k8s_openapi::api::core::v1::Pod;
use kube::ResourceExt as _;
use kube::api::ListParams;
use lab::Lab;
use link::Dial as _;
use link::tls::Identity;
use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::time::timeout;

use super::super::operator::{Operator, connect_link, ready_endpoints};
use super::super::support::lab_processes;
use super::wait_until_nothing_is_left;

const ID: SessionId = SessionId(0x570b);
const POLICY: &str = "apiVersion: policies.mirrord.metalbear.co/v1alpha\nkind: MirrordPolicy\nmetadata: {name: unconfirmed}\n\
                      spec: {targetPath: deployment/checkout, block: [steal-without-filter]}\n";
const GAUGE: &str = "standin_operator_sessions_with_unconfirmed_policies";
const UNCONFIRMED: &str = "has not confirmed the current policies";
/// The lab's machine may be busy.
const TIMEOUT: Duration = Duration::from_secs(120);

/// The process of the agent is stopped while a policy changes, as on a node without processor time.
pub(super) async fn an_agent_that_does_not_confirm_gets_no_traffic(
    scenario: &Scenario<'_>,
    shop: &TestNamespace,
    operator: &Operator,
) -> Result<()> {
    let identity = Identity::generate()?;
    let session = session(shop, &identity).await?;
    let connection = session.connect().await?;
    let [endpoint] = *ready_endpoints(&connection, 1).await? else {
        anyhow::bail!("the session has one pod");
    };
    // An agent ends with its last link.
    let link = connect_link(&connection, endpoint, &identity).await?;

    let agent = StoppedAgent::stop(scenario.lab()?, &identity)?;
    // The kernel accepts it for the agent.
    let mut before = connection.dialer(endpoint).dial().await?;
    before.write_all(b"hello").await?;
    shop.apply(POLICY)?;
    let ended = timeout(TIMEOUT, before.read(&mut [0; 1])).await;
    let ended = ended.context("the channel to the agent is open")?;
    ensure!(
        !matches!(ended, Ok(1..)),
        "the agent has responded: {ended:?}"
    );
    let refused = refusal(&connection, endpoint).await?;
    ensure!(refused.contains(UNCONFIRMED), "{refused}");
    until("the status to show the reason", async || {
        Ok(error_of_pod(shop)?.contains(UNCONFIRMED).then_some(()))
    })
    .await?;
    // Every replica closes its own connections.
    until("all replicas to count the session", async || {
        let counted = operator.metrics(GAUGE)?;
        ensure!(
            counted == [format!("{GAUGE} 1"), format!("{GAUGE} 1")],
            "{counted:?}"
        );
        Ok(Some(()))
    })
    .await?;

    drop(agent);
    until("the agent to confirm the policy", async || {
        let error = error_of_pod(shop)?;
        let counted = operator.metrics(GAUGE)?;
        ensure!(
            error.is_empty() && counted.iter().all(|line| line.ends_with(" 0")),
            "{error} {counted:?}"
        );
        Ok(Some(()))
    })
    .await?;
    connect_link(&connection, endpoint, &identity).await?;
    drop(link);
    connection.end_session();
    shop.kubectl(&[
        "delete",
        "mirrordpolicies.policies.mirrord.metalbear.co/unconfirmed",
    ])?;
    wait_until_nothing_is_left(shop).await
}

/// A session with one pod.
async fn session(shop: &TestNamespace, identity: &Identity) -> Result<OperatorSession> {
    let labelled = ListParams::default().labels("app=checkout");
    let pods: Vec<Pod> = shop.pods().list(&labelled).await?.items;
    let pod = pods.first().context("no pod")?.name_any();
    let parameters = ConnectParameters {
        connect: true,
        resume_window: Some(120),
        ..ConnectParameters::default()
    };
    let target = format!("pod/{pod}").parse()?;
    let cluster = Cluster::new(shop.cluster.kube.clone(), &*shop.name);
    Ok(OperatorSession::new(
        &cluster,
        &shop.name,
        &target,
        &parameters,
        ID,
        identity,
    ))
}

/// Why the operator refuses another channel to the agent.
async fn refusal(connection: &OperatorConnection, endpoint: u32) -> Result<String> {
    let mut channel = connection.dialer(endpoint).dial().await?;
    let read = timeout(TIMEOUT, channel.read(&mut [0; 1])).await;
    let error = read.context("the channel is open")?.err();
    Ok(error
        .context("the channel was closed without a reason")?
        .to_string())
}

fn error_of_pod(shop: &TestNamespace) -> Result<String> {
    let error = "--output=jsonpath={.status.pods[0].error}";
    shop.kubectl(&["get", "mirrordclustersession", &ID.object_name(), error])
}

/// The stopped process of a session's agent. It continues when this value is dropped.
struct StoppedAgent(Pid);

impl StoppedAgent {
    fn stop(lab: &Lab, identity: &Identity) -> Result<Self> {
        // Its arguments name the client that it accepts.
        let client = format!("--client-certificate={}", identity.fingerprint());
        let found = lab_processes(lab, |pid| {
            let line = fs::read(format!("/proc/{pid}/cmdline")).unwrap_or_default();
            line.split(|byte| *byte == 0)
                .any(|argument| argument == client.as_bytes())
        })?;
        let [pid] = *found else {
            anyhow::bail!("the agent is one process: {found:?}");
        };
        let pid = Pid::from_raw(pid.try_into()?);
        kill(pid, Signal::SIGSTOP)?;
        Ok(Self(pid))
    }
}

impl Drop for StoppedAgent {
    fn drop(&mut self) {
        let _ = kill(self.0, Signal::SIGCONT);
    }
}
