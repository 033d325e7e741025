//! Agents on nodes: a session starts nothing, policies apply to every name of a target, and a replaced agent has a new
//! identity.

use anyhow::{Result, ensure};
use api::connect::ConnectParameters;
use api::session::SessionId;
use cluster::{Cluster, OperatorConnection, OperatorSession};
use e2e::machine::ProgramOutput;
use e2e::{Scenario, TestNamespace, until};
use link::tls::rustls::pki_types::ServerName;
use link::tls::{Identity, TlsDialer, Trust};
use link::{Link, Settings};

use super::Operator;
use super::targets::{targets_of_every_kind_are_served, users_are_counted};
use crate::scenarios::operator_sessions::hostile::unauthenticated_peers_take_nothing;
use crate::scenarios::operator_sessions::policies::policies_apply_to_running_sessions;
use crate::scenarios::operator_sessions::secrets::{TRACE_LOGS, add_password, secrets_do_not_leak};
use crate::scenarios::operator_sessions::serving::a_session_without_a_target_sees_the_network;
use crate::scenarios::operator_sessions::{Shell, session_for};
use crate::scenarios::support::{SessionProcess, exec_for};

const POLICY: &str = "apiVersion: policies.mirrord.metalbear.co/v1alpha\nkind: MirrordPolicy\nmetadata: {name: careful}\nspec: \
                      {targetPath: deployment/web, block: [steal-without-filter], env: {exclude: [WEB_*]}, fs: {notFound: \
                      [^/web/]}}\n";

pub(super) async fn agents_run_on_nodes(scenario: &Scenario<'_>) -> Result<()> {
    let operator = Operator::install_with(
        scenario,
        0,
        &format!("operator.agent.mode=node,{TRACE_LOGS}"),
    )
    .await?;
    operator.namespace.kubectl(&[
        "rollout",
        "status",
        "daemonset/mirrord-node-agent",
        "--timeout=120s",
    ])?;
    agents_have_exactly_their_privileges(&operator)?;
    let shop = scenario.namespace_in(0).await?;
    shop.web().await?;
    shop.kubectl(&["set", "env", "deployment/web", "WEB_GREETING=hello"])?;
    shop.kubectl(&["rollout", "status", "deployment/web", "--timeout=120s"])?;
    targets_of_every_kind_are_served(&shop).await?;
    policies_apply_to_every_name_of_the_target(scenario, &shop).await?;
    a_replaced_agent_has_a_new_identity(&operator, &shop).await?;
    shop.client_pod("client").await?;
    policies_apply_to_running_sessions(scenario, &shop, &operator).await?;
    a_session_continues_with_a_restarted_agent(scenario, &operator, &shop).await?;
    add_password(&shop)?;
    secrets_do_not_leak(scenario, &shop, &operator).await?;
    unauthenticated_peers_take_nothing(scenario, &shop, &operator).await?;
    a_session_without_a_target_sees_the_network(scenario, &shop).await?;
    // The administrator, and the user of the session without a target.
    users_are_counted(&operator, 2).await?;
    let entries = shop.kubectl(&[
        "get",
        "pods",
        "--output=jsonpath={.items[*].spec.ephemeralContainers}",
    ])?;
    ensure!(
        entries.trim().is_empty(),
        "something was started: {entries}"
    );
    operator.uninstall()
}

fn agents_have_exactly_their_privileges(operator: &Operator) -> Result<()> {
    let all = "--output=jsonpath={.items[0].spec.automountServiceAccountToken} {.items[0].spec.hostNetwork} \
               {.items[0].spec.containers[0].securityContext}";
    let selector = "--selector=app.kubernetes.io/component=node-agent";
    let found = operator
        .namespace
        .kubectl(&["get", "pods", selector, all])?;
    for expected in [
        "false  {",
        r#""add":["NET_ADMIN","SYS_PTRACE","SETUID","SETGID","SYS_ADMIN"],"drop":["ALL"]"#,
        r#""privileged":false"#,
        r#""readOnlyRootFilesystem":true"#,
    ] {
        ensure!(found.contains(expected), "{expected} is missing: {found}");
    }
    Ok(())
}

async fn policies_apply_to_every_name_of_the_target(
    scenario: &Scenario<'_>,
    shop: &TestNamespace,
) -> Result<()> {
    let inspect = |target: &str| -> Result<ProgramOutput> {
        let mut session = exec_for(scenario, shop, target)?;
        session.env_remove("STANDIN_AGENT_IMAGE");
        let script = "echo \"<$WEB_GREETING>\"; cat /web/web.py";
        ProgramOutput::of(session.args(["--fs-mode", "read", "--", "sh", "-c", script]))
    };
    let unrestricted = inspect("deployment/web")?;
    ensure!(unrestricted.stdout.contains("<hello>"), "{unrestricted}");
    ensure!(
        unrestricted.stdout.contains("http.server"),
        "{unrestricted}"
    );
    ensure!(
        unrestricted.stderr.contains("through the operator"),
        "{unrestricted}"
    );
    shop.apply(POLICY)?;
    let pod = shop.kubectl(&["get", "pods", "--selector=app=web", "--output=name"])?;
    let pod = pod.lines().next().unwrap_or_default().to_owned();
    for target in ["deployment/web", "service/web", &pod] {
        let restricted = inspect(target)?;
        ensure!(restricted.stdout.contains("<>"), "{target}: {restricted}");
        ensure!(
            !restricted.stdout.contains("http.server"),
            "{target}: {restricted}"
        );
    }
    // Traffic cannot be stolen without a filter either.
    let mut session = exec_for(scenario, shop, "service/web")?;
    session.env_remove("STANDIN_AGENT_IMAGE").args([
        "--steal",
        "--",
        "python3",
        "-m",
        "http.server",
        "8080",
    ]);
    let session = SessionProcess::start(session, &[])?;
    session
        .wait_for_message("a policy of the cluster's administrators does not let sessions steal its traffic without a filter")
        .await?;
    shop.kubectl(&[
        "delete",
        "mirrordpolicies.policies.mirrord.metalbear.co",
        "careful",
    ])?;
    Ok(())
}

/// Connections through the agent are lost, and the loss is reported; the session continues.
async fn a_session_continues_with_a_restarted_agent(
    scenario: &Scenario<'_>,
    operator: &Operator,
    shop: &TestNamespace,
) -> Result<()> {
    let mut session = session_for(scenario, shop, "deployment/web")?;
    session.args(["--fs-mode", "read"]);
    let mut session = Shell::start(session)?;
    let opened = "exec 3<>/dev/tcp/web/80 && echo opened";
    ensure!(session.run(opened).await? == "opened");
    operator.namespace.kubectl(&[
        "delete",
        "pods",
        "--selector=app.kubernetes.io/component=node-agent",
    ])?;
    session
        .wait_for_message("that were open through the target were reset")
        .await?;
    let read = "timeout 60 head -c 1 <&3 >/dev/null 2>&1; echo $?";
    ensure!(session.run(read).await? == "1", "it was not reset");
    until("the session to continue", async || {
        let response = session
            .run("curl --silent --max-time 60 http://web/ || echo failed")
            .await?;
        Ok(response.starts_with("web-").then_some(()))
    })
    .await?;
    ensure!(session.run("cat /web/web.py | grep -c http.server").await? != "0");
    let output = session.end()?;
    ensure!(output.code == Some(0), "{output}");
    Ok(())
}

async fn a_replaced_agent_has_a_new_identity(
    operator: &Operator,
    shop: &TestNamespace,
) -> Result<()> {
    let identity = Identity::generate()?;
    let cluster = Cluster::new(shop.cluster.kube.clone(), &*shop.name);
    let parameters = ConnectParameters {
        connect: true,
        resume_window: Some(120),
        ..ConnectParameters::default()
    };
    let target = "deployment/web".parse()?;
    let id = SessionId(0x0de);
    let namespace = &*shop.name;
    let session = OperatorSession::new(&cluster, namespace, &target, &parameters, id, &identity);
    let connection = session.connect().await?;
    let before = certificates(&connection, 2, &[]).await?;
    connect_link(&connection, &before[0], &identity).await?;
    // An agent at the right endpoint with another certificate is not trusted.
    let (endpoint, _, agent) = before[0].clone();
    let other = Identity::generate()?.fingerprint().to_string();
    ensure!(
        connect_link(&connection, &(endpoint, other, agent), &identity)
            .await
            .is_err(),
        "any certificate is trusted"
    );
    operator.namespace.kubectl(&[
        "delete",
        "pods",
        "--selector=app.kubernetes.io/component=node-agent",
        "--wait=false",
    ])?;
    let after = certificates(&connection, 2, &before).await?;
    for (one, other) in before.iter().zip(&after) {
        ensure!(one.0 == other.0, "the endpoints have changed");
        ensure!(one.2 != other.2, "the replaced agent has the same name");
    }
    connect_link(&connection, &after[0], &identity).await?;
    connection.end_session();
    until("the session's object to be gone", async || {
        let left = shop.kubectl(&["get", "mirrordclustersessions", "--output=name"])?;
        Ok(left.trim().is_empty().then_some(()))
    })
    .await?;
    ensure!(
        connect_link(&connection, &after[0], &identity)
            .await
            .is_err(),
        "the agent outlives its session"
    );
    Ok(())
}

/// An endpoint number, the certificate of its agent, and the agent's name.
type NodeAgent = (u32, String, String);

/// Waits for this number of ready agents, none of which is in `before`. Returns them sorted.
async fn certificates(
    connection: &OperatorConnection,
    count: usize,
    before: &[NodeAgent],
) -> Result<Vec<NodeAgent>> {
    until(&format!("{count} agents on nodes"), async || {
        let endpoints = connection.endpoints.borrow().endpoints.clone();
        let ready = endpoints.into_iter().filter(|endpoint| endpoint.ready);
        let mut ready: Vec<NodeAgent> = ready
            .filter_map(|endpoint| Some((endpoint.number, endpoint.certificate?, endpoint.agent?)))
            .filter(|(_, certificate, _)| !before.iter().any(|(_, old, _)| old == certificate))
            .collect();
        ready.sort_unstable();
        Ok((ready.len() == count).then_some(ready))
    })
    .await
}

/// Connects a link to an agent that has this certificate.
async fn connect_link(
    connection: &OperatorConnection,
    (endpoint, certificate, _): &NodeAgent,
    identity: &Identity,
) -> Result<Link> {
    let name = ServerName::try_from("agent")?;
    let trust = Trust::Pinned(certificate.parse()?);
    let dialer = TlsDialer::with_identity(connection.dialer(*endpoint), name, trust, identity)?;
    let mut settings = Settings::default();
    settings.redial.first_connection_timeout = std::time::Duration::from_secs(2);
    Ok(Link::connect(dialer, settings).await?)
}
