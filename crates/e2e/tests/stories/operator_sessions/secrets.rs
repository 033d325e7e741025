//! What is secret stays between a session, its target and the API server: it is in no log, no event and no object.

use anyhow::{Context as _, Result, ensure};
use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use e2e::{Stage, Story, until};

use super::super::operator::Operator;
use super::{Shell, User, listed_sessions};

/// Of the target: a variable whose value is in a Secret, as careful people have it.
const PASSWORD: &str = "a-password-that-nobody-else-has-4711";

/// The operator and its agents say everything that they can say.
pub(crate) const TALKATIVE: &str = "operator.log.level=trace,operator.agent.log=trace";

/// For the deployment `web`, whose pods are made anew.
pub(crate) fn give_password(shop: &Stage) -> Result<()> {
    let literal = format!("--from-literal=PASSWORD={PASSWORD}");
    shop.kubectl(&["create", "secret", "generic", "password", &literal])?;
    shop.kubectl(&["set", "env", "deployment/web", "--from=secret/password"])?;
    shop.kubectl(&["rollout", "status", "deployment/web", "--timeout=120s"])
        .map(drop)
}

/// A user has a session, reads the password, sends it somewhere and writes it to a file. Then everything is searched.
pub(crate) async fn secrets_are_nowhere(
    story: &Story<'_>,
    shop: &Stage,
    operator: &Operator,
) -> Result<()> {
    let user = User::new(shop, "mallory")?;
    let account = format!("--serviceaccount={}:mallory", shop.namespace);
    shop.kubectl(&[
        "create",
        "rolebinding",
        "mallory",
        "--clusterrole=mirrord-operator-user",
        &account,
    ])?;
    // A right is known a little later.
    let mut session = until("a session of the user", async || {
        let mut session = user.session(story, shop, "deployment/web")?;
        session.args(["--fs-mode", "write", "-v"]);
        let mut session = Shell::start(session)?;
        ensure!(session.ask("echo $PASSWORD").await? == PASSWORD);
        Ok(Some(session))
    })
    .await?;
    let send = "curl --silent --max-time 60 -H \"x-password: $PASSWORD\" \"http://web/$PASSWORD\"";
    let answer = session.ask(send).await?;
    ensure!(answer.starts_with("web-"), "{answer}");
    let write = "echo $PASSWORD > /tmp/$PASSWORD && cat /tmp/$PASSWORD";
    ensure!(session.ask(write).await? == PASSWORD);
    // While the session is there, with its objects.
    ensure!(!listed_sessions(story, shop)?.is_empty());
    search(shop, operator, &user.token()?).await?;
    let said = session.end()?.stderr;
    ensure!(!said.contains(PASSWORD), "standin says it: {said}");
    search(shop, operator, &user.token()?).await
}

async fn search(shop: &Stage, operator: &Operator, token: &str) -> Result<()> {
    let signature = token.rsplit('.').next().context("no token")?;
    for (what, text) in everything(shop, operator).await? {
        for secret in [PASSWORD, &STANDARD.encode(PASSWORD), signature] {
            if let Some(found) = text.lines().find(|line| line.contains(secret)) {
                anyhow::bail!("{what} has a secret: {found}");
            }
        }
    }
    Ok(())
}

/// Each with what it is. Each is something: a search through nothing would find nothing.
async fn everything(shop: &Stage, operator: &Operator) -> Result<Vec<(String, String)>> {
    let mut all = Vec::new();
    let mut add = |what: &str, text: String, has: &str| {
        ensure!(text.contains(has), "{what} says nothing of {has}: {text}");
        all.push((what.to_owned(), text));
        Ok(())
    };
    let pods = operator.stage.kubectl(&["get", "pods", "--output=name"])?;
    for pod in pods.lines().filter(|pod| pod.contains("mirrord")) {
        let logs = operator.stage.kubectl(&["logs", pod, "--tail=-1"])?;
        let has = if pod.contains("operator") {
            "the operator is there"
        } else {
            ""
        };
        add(pod, logs, has)?;
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
            // One that was just ordered has a log when it has started.
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
