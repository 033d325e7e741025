//! Agents that wait on nodes: a session starts nothing, policies bind it whatever its target is called, and an agent that is
//! replaced is known to be another one.

use anyhow::{Result, ensure};
use api::connect::ConnectParameters;
use api::session::SessionId;
use cluster::{Cluster, OperatorConnection, OperatorSession};
use e2e::machine::Ended;
use e2e::{Stage, Story, until};
use link::tls::rustls::pki_types::ServerName;
use link::tls::{Identity, TlsDialer, Trust};
use link::{Link, Settings};

use super::Operator;
use super::targets::{targets_of_every_kind_are_served, users_are_counted};
use crate::stories::operator_sessions::policies::policies_reach_sessions_that_run;
use crate::stories::operator_sessions::secrets::{TALKATIVE, give_password, secrets_are_nowhere};
use crate::stories::operator_sessions::serving::without_a_target_it_sees_the_network;
use crate::stories::operator_sessions::{Shell, session_for};
use crate::stories::surroundings::{Running, exec_for};

const POLICY: &str = "apiVersion: policies.mirrord.metalbear.co/v1alpha\nkind: MirrordPolicy\nmetadata: {name: careful}\nspec: \
                      {targetPath: deployment/web, block: [steal-without-filter], env: {exclude: [WEB_*]}, fs: {notFound: \
                      [^/web/]}}\n";

pub(super) async fn agents_wait_on_nodes(story: &Story<'_>) -> Result<()> {
    let operator =
        Operator::install_with(story, 0, &format!("operator.agent.mode=node,{TALKATIVE}")).await?;
    operator.stage.kubectl(&[
        "rollout",
        "status",
        "daemonset/mirrord-node-agent",
        "--timeout=120s",
    ])?;
    agents_have_exactly_their_rights(&operator)?;
    let shop = story.stage_in(0).await?;
    shop.web().await?;
    shop.kubectl(&["set", "env", "deployment/web", "WEB_GREETING=hello"])?;
    shop.kubectl(&["rollout", "status", "deployment/web", "--timeout=120s"])?;
    targets_of_every_kind_are_served(&shop).await?;
    policies_bind_whatever_the_target_is_called(story, &shop).await?;
    an_agent_that_is_replaced_is_another_one(&operator, &shop).await?;
    shop.client_pod("client").await?;
    policies_reach_sessions_that_run(story, &shop, &operator).await?;
    a_session_goes_on_with_an_agent_that_is_restarted(story, &operator, &shop).await?;
    give_password(&shop)?;
    secrets_are_nowhere(story, &shop, &operator).await?;
    without_a_target_it_sees_the_network(story, &shop).await?;
    // The administrator, and the one without a target.
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

fn agents_have_exactly_their_rights(operator: &Operator) -> Result<()> {
    let all = "--output=jsonpath={.items[0].spec.automountServiceAccountToken} {.items[0].spec.hostNetwork} \
               {.items[0].spec.containers[0].securityContext}";
    let selector = "--selector=app.kubernetes.io/component=node-agent";
    let found = operator.stage.kubectl(&["get", "pods", selector, all])?;
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

async fn policies_bind_whatever_the_target_is_called(
    story: &Story<'_>,
    shop: &Stage,
) -> Result<()> {
    let look = |target: &str| -> Result<Ended> {
        let mut session = exec_for(story, shop, target)?;
        session.env_remove("STANDIN_AGENT_IMAGE");
        let script = "echo \"<$WEB_GREETING>\"; cat /web/web.py";
        Ended::of(session.args(["--fs-mode", "read", "--", "sh", "-c", script]))
    };
    let free = look("deployment/web")?;
    ensure!(free.stdout.contains("<hello>"), "{free}");
    ensure!(free.stdout.contains("http.server"), "{free}");
    ensure!(free.stderr.contains("through the operator"), "{free}");
    shop.apply(POLICY)?;
    let pod = shop.kubectl(&["get", "pods", "--selector=app=web", "--output=name"])?;
    let pod = pod.lines().next().unwrap_or_default().to_owned();
    for target in ["deployment/web", "service/web", &pod] {
        let bound = look(target)?;
        ensure!(bound.stdout.contains("<>"), "{target}: {bound}");
        ensure!(!bound.stdout.contains("http.server"), "{target}: {bound}");
    }
    // Nor may traffic be had as a whole.
    let mut session = exec_for(story, shop, "service/web")?;
    session.env_remove("STANDIN_AGENT_IMAGE").args([
        "--steal",
        "--",
        "python3",
        "-m",
        "http.server",
        "8080",
    ]);
    let session = Running::start(session, &[])?;
    session
        .says("a policy of the cluster's administrators does not let sessions steal its traffic without a filter")
        .await?;
    shop.kubectl(&[
        "delete",
        "mirrordpolicies.policies.mirrord.metalbear.co",
        "careful",
    ])?;
    Ok(())
}

/// What was open through it is lost, and said to be; the session itself is not.
async fn a_session_goes_on_with_an_agent_that_is_restarted(
    story: &Story<'_>,
    operator: &Operator,
    shop: &Stage,
) -> Result<()> {
    let mut session = session_for(story, shop, "deployment/web")?;
    session.args(["--fs-mode", "read"]);
    let mut session = Shell::start(session)?;
    let opened = "exec 3<>/dev/tcp/web/80 && echo opened";
    ensure!(session.ask(opened).await? == "opened");
    operator.stage.kubectl(&[
        "delete",
        "pods",
        "--selector=app.kubernetes.io/component=node-agent",
    ])?;
    session
        .says("that were open through the target were reset")
        .await?;
    let read = "timeout 60 head -c 1 <&3 >/dev/null 2>&1; echo $?";
    ensure!(session.ask(read).await? == "1", "it was not reset");
    until("the session to go on", async || {
        let answer = session
            .ask("curl --silent --max-time 60 http://web/ || echo failed")
            .await?;
        Ok(answer.starts_with("web-").then_some(()))
    })
    .await?;
    ensure!(session.ask("cat /web/web.py | grep -c http.server").await? != "0");
    let ended = session.end()?;
    ensure!(ended.code == Some(0), "{ended}");
    Ok(())
}

async fn an_agent_that_is_replaced_is_another_one(operator: &Operator, shop: &Stage) -> Result<()> {
    let identity = Identity::generate()?;
    let cluster = Cluster::new(shop.cluster.kube.clone(), &*shop.namespace);
    let parameters = ConnectParameters {
        connect: true,
        resume_window: Some(120),
        ..ConnectParameters::default()
    };
    let target = "deployment/web".parse()?;
    let id = SessionId(0x0de);
    let namespace = &*shop.namespace;
    let session = OperatorSession::new(&cluster, namespace, &target, &parameters, id, &identity);
    let connection = session.connect().await?;
    let before = certificates(&connection, 2, &[]).await?;
    greet(&connection, &before[0], &identity).await?;
    // Whoever is at the right place and has another certificate is not believed.
    let (place, _, agent) = before[0].clone();
    let other = Identity::generate()?.fingerprint().to_string();
    ensure!(
        greet(&connection, &(place, other, agent), &identity)
            .await
            .is_err(),
        "any certificate is believed"
    );
    operator.stage.kubectl(&[
        "delete",
        "pods",
        "--selector=app.kubernetes.io/component=node-agent",
        "--wait=false",
    ])?;
    let after = certificates(&connection, 2, &before).await?;
    for (one, other) in before.iter().zip(&after) {
        ensure!(one.0 == other.0, "the places have changed");
        ensure!(one.2 != other.2, "another agent has the same name");
    }
    greet(&connection, &after[0], &identity).await?;
    connection.say_farewell();
    until("the session's object to be gone", async || {
        let left = shop.kubectl(&["get", "mirrordclustersessions", "--output=name"])?;
        Ok(left.trim().is_empty().then_some(()))
    })
    .await?;
    ensure!(
        greet(&connection, &after[0], &identity).await.is_err(),
        "the agent outlives its session"
    );
    Ok(())
}

/// A place, the certificate of its agent, and the agent's name.
type Placed = (u32, String, String);

/// The places of so many ready agents, in order, none of which was there before.
async fn certificates(
    connection: &OperatorConnection,
    count: usize,
    before: &[Placed],
) -> Result<Vec<Placed>> {
    until(&format!("{count} agents on nodes"), async || {
        let places = connection.places.borrow().places.clone();
        let ready = places.into_iter().filter(|place| place.ready);
        let mut ready: Vec<Placed> = ready
            .filter_map(|place| Some((place.number, place.certificate?, place.agent?)))
            .filter(|(_, certificate, _)| !before.iter().any(|(_, old, _)| old == certificate))
            .collect();
        ready.sort_unstable();
        Ok((ready.len() == count).then_some(ready))
    })
    .await
}

/// Makes a link with an agent that has this certificate.
async fn greet(
    connection: &OperatorConnection,
    (place, certificate, _): &Placed,
    identity: &Identity,
) -> Result<Link> {
    let name = ServerName::try_from("agent")?;
    let trust = Trust::Pinned(certificate.parse()?);
    let dialer = TlsDialer::with_identity(connection.dialer(*place), name, trust, identity)?;
    let mut settings = Settings::default();
    settings.redial.first_connection = std::time::Duration::from_secs(2);
    Ok(Link::connect(dialer, settings).await?)
}
