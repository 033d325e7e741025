//! Sessions through the operator: what a program sees and serves, who may, what goes on after a fault, and what is said
//! when something is wrong. The same settings and the same programs as without one.

pub(crate) mod policies;
mod resuming;
pub(crate) mod secrets;
pub(crate) mod serving;
mod watching;
mod wrong;

use std::fs;
use std::path::PathBuf;
use std::process::{Command, Stdio};
use std::sync::Arc;

use anyhow::{Context as _, Result, ensure};
use e2e::machine::Ended;
use e2e::{LaterWorld, Needs, Stage, Story, tell, until};
use libtest_mimic::Trial;
use tempfile::TempDir;

use super::operator::Operator;
use super::surroundings::{Running, exec_for, standin_for};

pub(crate) fn stories(world: &Arc<LaterWorld>) -> Vec<Trial> {
    vec![
        tell(
            world,
            "through_the_operator_a_program_sees_and_serves",
            Needs::Lab,
            serving::a_program_sees_and_serves,
        ),
        tell(
            world,
            "through_the_operator_users_share_a_port_by_filters",
            Needs::Lab,
            serving::users_share_a_port_by_filters,
        ),
        tell(
            world,
            "through_the_operator_sessions_outlive_cuts_and_restarts",
            Needs::Lab,
            resuming::sessions_outlive_cuts_and_restarts,
        ),
        tell(
            world,
            "through_the_operator_what_is_wrong_is_said",
            Needs::Lab,
            wrong::what_is_wrong_is_said,
        ),
    ]
}

/// `standin exec` as those use it who have an operator: the image of agents is not their concern.
pub(crate) fn session_for(story: &Story<'_>, stage: &Stage, target: &str) -> Result<Command> {
    let mut session = exec_for(story, stage, target)?;
    session.env_remove("STANDIN_AGENT_IMAGE");
    Ok(session)
}

/// `standin operator …`.
fn ask_operator(story: &Story<'_>, stage: &Stage, arguments: &[&str]) -> Result<Ended> {
    let mut standin = standin_for(story, stage)?;
    Ended::of(standin.arg("operator").args(arguments))
}

/// The sessions that the operator lists, with their ids and users.
pub(crate) fn listed_sessions(story: &Story<'_>, stage: &Stage) -> Result<Vec<serde_json::Value>> {
    let listed = ask_operator(story, stage, &["session", "list", "--json"])?;
    ensure!(listed.code == Some(0), "{listed}");
    Ok(serde_json::from_str(&listed.stdout)?)
}

/// Waits until the operator has no session, and no agent runs in the stage's pods.
async fn nothing_is_left(stage: &Stage) -> Result<()> {
    until("the session's object to be gone", async || {
        let left = stage.kubectl(&["get", "mirrordclustersessions", "--output=name"])?;
        Ok(left.trim().is_empty().then_some(()))
    })
    .await?;
    until("the agents to end", async || {
        let agents = super::cluster_sessions::ephemeral_agents(stage).await?;
        Ok((!agents.iter().any(|(_, _, runs)| *runs)).then_some(()))
    })
    .await
}

/// Tells a story that has an operator, which is gone afterwards, also when the story goes wrong: an API that nobody serves
/// keeps namespaces from being deleted.
async fn with_operator(
    story: &Story<'_>,
    told: impl AsyncFnOnce(&Operator) -> Result<()>,
) -> Result<()> {
    with_operator_that(story, "operator.agent.mode=ephemeral", told).await
}

/// The same with values of the chart.
async fn with_operator_that(
    story: &Story<'_>,
    values: &str,
    told: impl AsyncFnOnce(&Operator) -> Result<()>,
) -> Result<()> {
    let operator = Operator::install_with(story, 0, values).await?;
    let result = told(&operator).await;
    result.and(operator.uninstall())
}

/// A shell in a session, which does what it is told. It ends with this value.
pub(crate) struct Shell {
    session: Running,
    /// How many lines it was asked for.
    asked: usize,
}

impl Shell {
    pub(crate) fn start(mut session: Command) -> Result<Self> {
        session.args(["--", "bash"]).stdin(Stdio::piped());
        let session = Running::start(session, &[])?;
        Ok(Shell { session, asked: 0 })
    }

    /// Lets the shell do something that prints one line, and returns the line.
    pub(crate) async fn ask(&mut self, command: &str) -> Result<String> {
        self.session.tell(command)?;
        self.asked += 1;
        let what = format!("an answer to {command:?}");
        let answer = until(&what, async || {
            let lines = self.session.stdout()?;
            let whole = lines.matches('\n').count() >= self.asked;
            let line = lines.lines().nth(self.asked - 1).map(str::to_owned);
            Ok(line.filter(|_| whole))
        });
        answer.await.with_context(|| self.session.report())
    }

    /// What `standin` has said.
    fn said(&self) -> Result<String> {
        self.session.stderr()
    }

    pub(crate) async fn says(&self, words: &str) -> Result<()> {
        self.session.says(words).await
    }

    /// Closes the input, and waits for the end.
    pub(crate) fn end(self) -> Result<Ended> {
        self.session.end()
    }

    fn kill(self) -> Result<()> {
        self.session.kill()
    }
}

/// Somebody with an account and without rights.
pub(crate) struct User {
    name: &'static str,
    _folder: TempDir,
    kubeconfig: PathBuf,
}

impl User {
    fn new(stage: &Stage, name: &'static str) -> Result<Self> {
        stage.kubectl(&["create", "serviceaccount", name])?;
        let token = stage.kubectl(&["create", "token", name])?;
        let context = stage.cluster.client.name();
        let view = stage.kubectl(&[
            "config",
            "view",
            "--raw",
            "--minify",
            "--flatten",
            "--output=json",
            "--context",
            context,
        ])?;
        let mut config: serde_json::Value = serde_json::from_str(&view)?;
        config["users"][0]["user"] = serde_json::json!({ "token": token.trim() });
        let folder = tempfile::tempdir()?;
        let kubeconfig = folder.path().join("kubeconfig");
        fs::write(&kubeconfig, config.to_string())?;
        Ok(User {
            name,
            _folder: folder,
            kubeconfig,
        })
    }

    fn token(&self) -> Result<String> {
        let config: serde_json::Value = serde_json::from_slice(&fs::read(&self.kubeconfig)?)?;
        let token = config["users"][0]["user"]["token"].as_str();
        Ok(token.context("no token")?.to_owned())
    }

    /// A session of this user.
    fn session(&self, story: &Story<'_>, stage: &Stage, target: &str) -> Result<Command> {
        let mut session = session_for(story, stage, target)?;
        session
            .arg("--kubeconfig")
            .arg(&self.kubeconfig)
            .env("USER", self.name)
            .env_remove("SUDO_USER");
        Ok(session)
    }

    /// Grants exactly what a refusal asks for.
    fn grant(&self, stage: &Stage, refusal: &Ended) -> Result<()> {
        let role = refusal
            .stderr
            .find("apiVersion: rbac.authorization.k8s.io/v1")
            .map(|start| &refusal.stderr[start..])
            .with_context(|| format!("there is no rule in {refusal}"))?;
        stage.apply(role)?;
        let account = format!("--serviceaccount={}:{}", stage.namespace, self.name);
        let binding = [
            "create",
            "rolebinding",
            self.name,
            "--role=standin",
            &account,
        ];
        stage.kubectl(&binding).map(drop)
    }
}
