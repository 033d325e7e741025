//! Secrets stay between a session, its target and the API server: they are in no log, event or object.

use anyhow::{Context as _, Result, ensure};
use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use e2e::{Scenario, TestNamespace, until};

use super::super::operator::Operator;
use super::{Shell, User, listed_sessions};

/// A variable of the target whose value is in a Secret.
const PASSWORD: &str = "a-unique-password-4711";

/// Values with which the operator and its agents log everything.
pub(crate) const TRACE_LOGS: &str = "operator.log.level=trace,operator.agent.log=trace";

/// Adds the password to the deployment `web`, whose pods are recreated.
pub(crate) fn add_password(shop: &TestNamespace) -> Result<()> {
    let literal = format!("--from-literal=PASSWORD={PASSWORD}");
    shop.kubectl(&["create", "secret", "generic", "password", &literal])?;
    shop.kubectl(&["set", "env", "deployment/web", "--from=secret/password"])?;
    shop.kubectl(&["rollout", "status", "deployment/web", "--timeout=120s"])
        .map(drop)
}

/// A user reads the password in a session, sends it in a request and writes it to a file. Then everything is searched.
pub(crate) async fn secrets_do_not_leak(
    scenario: &Scenario<'_>,
    shop: &TestNamespace,
    operator: &Operator,
) -> Result<()> {
    let user = User::new(shop, "mallory")?;
    let account = format!("--serviceaccount={}:mallory", shop.name);
    shop.kubectl(&[
        "create",
        "rolebinding",
        "mallory",
        "--clusterrole=mirrord-operator-user",
        &account,
    ])?;
    // A new permission takes effect after a moment.
    let mut session = until("a session of the user", async || {
        let mut session = user.session(scenario, shop, "deployment/web")?;
        session.args(["--fs-mode", "write", "-v"]);
        let mut session = Shell::start(session)?;
        ensure!(session.run("echo $PASSWORD").await? == PASSWORD);
        Ok(Some(session))
    })
    .await?;
    let send = "curl --silent --max-time 60 -H \"x-password: $PASSWORD\" \"http://web/$PASSWORD\"";
    let response = session.run(send).await?;
    ensure!(response.starts_with("web-"), "{response}");
    let write = "echo $PASSWORD > /tmp/$PASSWORD && cat /tmp/$PASSWORD";
    ensure!(session.run(write).await? == PASSWORD);
    // Searches while the session and its objects exist.
    ensure!(!listed_sessions(scenario, shop)?.is_empty());
    search(shop, operator, &user.token()?).await?;
    let stderr = session.end()?.stderr;
    ensure!(!stderr.contains(PASSWORD), "standin prints it: {stderr}");
    search(shop, operator, &user.token()?).await
}

async fn search(shop: &TestNamespace, operator: &Operator, token: &str) -> Result<()> {
    let signature = token.rsplit('.').next().context("no token")?;
    for (what, text) in logs_and_objects(shop, operator).await? {
        for secret in [PASSWORD, &STANDARD.encode(PASSWORD), signature] {
            if let Some(found) = text.lines().find(|line| line.contains(secret)) {
                anyhow::bail!("{what} contains a secret: {found}");
            }
        }
    }
    Ok(())
}

/// All logs and objects, each with its name. None may be empty, or the search would prove nothing.
async fn logs_and_objects(
    shop: &TestNamespace,
    operator: &Operator,
) -> Result<Vec<(String, String)>> {
    let mut all = Vec::new();
    let mut add = |what: &str, text: String, expected: &str| {
        ensure!(
            text.contains(expected),
            "{what} does not contain {expected}: {text}"
        );
        all.push((what.to_owned(), text));
        Ok(())
    };
    let pods = operator
        .namespace
        .kubectl(&["get", "pods", "--output=name"])?;
    for pod in pods.lines().filter(|pod| pod.contains("mirrord")) {
        let logs = operator.namespace.kubectl(&["logs", pod, "--tail=-1"])?;
        let expected = if pod.contains("operator") {
            "listening"
        } else {
            ""
        };
        add(pod, logs, expected)?;
    }
    for pod in shop
        .kubectl(&["get", "pods", "--selector=app=web", "--output=name"])?
        .lines()
    {
        let agents = shop.kubectl(&[
            "get",
            pod,
            "--output=jsonpath={.spec.ephemeralContainers[*].name}",
        ])?;
        for agent in agents.split_whitespace() {
            // A new agent has a log only after it has started.
            let logs = until("the log of an agent", async || {
                let logs = ["logs", pod, "--container", agent, "--tail=-1"];
                shop.kubectl(&logs).map(Some)
            });
            add(agent, logs.await?, "")?;
        }
    }
    let kinds = shop.kubectl(&["api-resources", "--verbs=list", "--output=name"])?;
    for kind in kinds.lines().filter(|kind| *kind != "secrets") {
        let objects = shop.kubectl(&["get", kind, "--all-namespaces", "--output=yaml"])?;
        add(kind, objects, "items")?;
    }
    Ok(all)
}
